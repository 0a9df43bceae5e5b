"""The event loop of the process: one daemon thread on which every async job runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

logger = logging.getLogger("django_boundedpool.engine")

#: Starts the code of a job. Called on the loop's thread, inside the task and the context of the flight.
Begin = Callable[[], Coroutine[Any, Any, Any]]
#: Takes a flight's value, or its error.
Done = Callable[[Any, BaseException | None], object]

#: The flight whose code runs, also in callbacks: they have no current task, but a copy of the context.
_flight: contextvars.ContextVar[Flight | None] = contextvars.ContextVar("boundedpool_flight", default=None)


class EventLoop:
    """An asyncio loop in a daemon thread of its own, for coroutines that know nothing of each other.

    A flight is over once its coroutine is, every task that it left pending was cancelled and has ended, and every async
    generator that it left suspended is closed. What asyncio counts as neither is left alone: calls in an executor,
    timers, transports. Safe from any thread. After a fork the child needs an event loop of its own.

    Invariant: a flight in `_flights` is in the inbox, or the loop's thread has it, or its launch is not over. Only
    start and stop take the lock: a launch must not wait for another one that a signal handler has interrupted.

    Arguments:
        name: name of the thread.
    """

    def __init__(self, name: str = "boundedpool-loop") -> None:
        self.name = name
        #: None before the first start.
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._flights: set[Flight] = set()
        self._inbox: deque[Flight] = deque()  # flights to look at: launched or cancelled
        self._awake = False  # whether the loop is about to empty the inbox
        self._context = contextvars.Context()  # of our own callbacks, and so of every `done`
        self._stopped = False  # no launch from now on
        self._closing: asyncio.Task[None] | None = None
        self._ended = False  # nothing runs any more
        self._sealed = False  # nobody will look into the inbox again

    def __len__(self) -> int:
        """How many flights are not done."""
        return len(self._flights)

    def start(self) -> None:
        """Start the thread, unless it runs.

        Raises:
            RuntimeError: the system gives no thread or no descriptors (a later call tries again), or `stop` was called.
        """
        if self._loop is None or self._stopped:
            self._start()

    def launch(self, begin: Begin, done: Done) -> Flight:
        """Run the coroutine that `begin` returns; start the thread if need be. Never waits for the loop.

        Arguments:
            begin: called once, in an empty context; not at all if the flight is cancelled before.
            done: called exactly once, on the loop's thread, when the flight is over: with the value and None, or with
                None and whatever `begin` or the coroutine raised, SystemExit and its kin included. It must be short;
                what it raises is logged.

        Raises:
            RuntimeError: as `start`; neither `begin` nor `done` is called then.
        """
        loop = self._loop
        if loop is None or self._stopped:
            loop = self._start()
        flight = Flight(self, loop, begin, done)
        self._flights.add(flight)
        self._post(flight)
        if self._sealed:
            # Stopped meanwhile. Either this takes the flight back, or the loop's thread has seen it and cancels it.
            with contextlib.suppress(ValueError):
                self._inbox.remove(flight)
                self._flights.discard(flight)
                raise self._refusal()
        return flight

    def stop(self, timeout: float = 5.0) -> bool:
        """Cancel every flight, close the loop when all are over, and wait for the thread to end.

        A flight that goes on in spite of its cancellation keeps the thread; the loop is closed when it is over. Another
        call cancels once more. From the loop's own thread this asks only and returns False.

        Arguments:
            timeout: how long to wait at most. Seconds.

        Returns:
            Whether the thread has ended.
        """
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self.thread
        if loop is None or thread is None:
            return True
        with contextlib.suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(self._cancel_all, context=self._context)
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def _start(self) -> _Loop:
        # The thread is started under the lock: a launch beside must not rely on a thread that then fails to start.
        with self._lock:
            if self._stopped:
                raise self._refusal()
            if self._loop is not None:
                return self._loop
            try:
                loop = _Loop()
            except OSError as error:
                raise RuntimeError(f"The event loop {self.name} could not be made: {error}") from error
            # From an empty context: it must not carry what the request that launched the first flight had set.
            target = contextvars.Context().run
            thread = threading.Thread(target=target, args=(self._run, loop), name=self.name, daemon=True)
            try:
                thread.start()
            finally:
                if thread.ident is not None:  # even if a signal handler has interrupted this
                    self.thread, self._loop = thread, loop
                else:
                    loop.close()
            return loop

    def _refusal(self) -> RuntimeError:
        return RuntimeError(f"The event loop {self.name} was stopped.")

    def _post(self, flight: Flight) -> None:
        """Have the loop's thread look at `flight`. One wake-up for a burst: they are what costs."""
        self._inbox.append(flight)
        if not self._awake and self._loop is not None:
            try:
                self._awake = True
                self._loop.call_soon_threadsafe(self._look, context=self._context)
            except BaseException as error:
                self._awake = False  # a signal handler has interrupted this: the next launch wakes the loop
                if not isinstance(error, RuntimeError):  # it is closed: see `launch`
                    raise

    def _look(self) -> None:
        self._awake = False  # first: a launch from here on wakes the loop again
        for _ in range(len(self._inbox)):
            self._inbox.popleft()._heed()

    def _run(self, loop: _Loop) -> None:
        while not self._ended:
            try:
                loop.run_forever()  # a job may have stopped it
            except (SystemExit, KeyboardInterrupt) as error:
                _cut_loose(error)  # of a task, where whoever awaits it sees it, or of a callback
            except BaseException:
                logger.exception("The event loop %s failed; it goes on.", self.name)
                time.sleep(0.1)  # it may fail again at once
        self._sealed = True
        with contextlib.suppress(IndexError):
            while True:
                self._inbox.popleft()._heed()
        loop.close()

    def _cancel_all(self) -> None:
        for flight in self._flights.copy():
            flight._cancelled = True
            flight._heed()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._stopped and not self._flights and self._closing is None and self._loop is not None:
            self._closing = asyncio.Task(self._close(self._loop), loop=self._loop, context=self._context)

    async def _close(self, loop: _Loop) -> None:
        try:
            # Tasks that belong to no flight: what callbacks and finalizers started after its end.
            while others := asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
                for task in others:
                    task.cancel()
                await asyncio.wait(others)
            await loop.shutdown_asyncgens()
            # A call that came back to a closed loop would report an error.
            with contextlib.suppress(RuntimeError):  # Python ends: it starts no thread to wait, and has waited itself
                await loop.shutdown_default_executor()
        except BaseException:
            logger.exception("The event loop %s could not be closed properly.", self.name)
        finally:
            self._ended = True
            loop.stop()


class Flight:
    """One coroutine on the event loop."""

    __slots__ = (
        "__weakref__",
        "_begin",
        "_cancelled",
        "_context",
        "_done",
        "_error",
        "_home",
        "_left",
        "_loop",
        "_task",
        "_value",
    )

    def __init__(self, home: EventLoop, loop: _Loop, begin: Begin, done: Done) -> None:
        self._home = home
        self._loop = loop
        self._begin: Begin | None = begin  # until the first step
        self._done: Done | None = done  # until the flight is over
        self._cancelled = False
        self._context: contextvars.Context | None = None
        self._task: asyncio.Task[None] | None = None  # while the coroutine runs
        self._left: _Leavings | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Request cancellation and return at once. Safe from any thread; harmless if requested before, or over.

        A flight that has not begun never does and ends with CancelledError. Otherwise the coroutine gets CancelledError
        at its next await; one that swallows it goes on, and what it then returns counts.
        """
        if not self._cancelled and self._done is not None:
            self._cancelled = True
            self._home._post(self)

    # The rest runs on the loop's thread.

    def _heed(self) -> None:
        """Do what is due: begin, or cancel."""
        if self._task is not None:
            self._task.cancel()
        elif self._begin is not None:
            if self._cancelled or self._home._stopped:
                self._begin = None
                self._error = asyncio.CancelledError()
                self._conclude()
            else:
                self._context = contextvars.Context()
                self._task = asyncio.Task(self._fly(), loop=self._loop, context=self._context)
                self._task.add_done_callback(self._landed, context=self._home._context)
        elif self._left is not None:
            self._left.cancel()

    async def _fly(self) -> None:
        begin, self._begin = self._begin, None
        try:
            if self._cancelled or begin is None:
                raise asyncio.CancelledError
            _flight.set(self)
            self._value = await begin()
        except BaseException as error:  # noqa: BLE001 - asyncio would let SystemExit and its kin end the loop
            trace = error.__traceback__
            # Without this frame, and by method: a frozen dataclass refuses the assignment.
            BaseException.with_traceback(error, trace.tb_next if trace is not None else None)
            self._error = error
            del trace
        finally:
            del begin, self  # the frames that a kept traceback holds know this one by f_back

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._begin is not None:  # its code never ran, whoever cancelled it
            self._begin = None
            self._error = asyncio.CancelledError()
        if self._left is None:
            self._conclude()
        else:
            self._left.end()

    def _conclude(self) -> None:
        done, value, error = self._done, self._value, self._error
        self._done = self._value = self._error = self._left = self._context = None
        self._home._flights.discard(self)
        try:
            if done is not None:
                done(value, error)
        except BaseException:
            logger.exception("The end of an async job could not be reported properly.")
        self._home._close_if_idle()

    def _leavings(self) -> _Leavings:
        if self._left is None:
            self._left = _Leavings(self)
        return self._left


class _Leavings:
    """What the code of one flight has started beside itself. Used on the loop's thread only.

    Ended in rounds: what a task starts while it is being cancelled may be its way to clean up, and so is cancelled in
    the next round only.
    """

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._tasks: dict[asyncio.Future[Any], bool] = {}  # those not over, and whether to cancel them
        # Weak: an exhausted one must not stay for as long as the flight. In the order of their first steps.
        self._generators: weakref.WeakValueDictionary[int, AsyncGenerator[Any, Any]] = weakref.WeakValueDictionary()
        self._ending = False
        self._round: set[asyncio.Future[Any]] = set()
        self._failed: list[asyncio.Future[Any]] = []

    def adopt(self, task: asyncio.Future[Any], *, cancel: bool = True) -> None:
        if not task.done():  # an eager one, of a factory that a job has set
            self._tasks[task] = cancel
            self._flight._loop.owners[task] = self._flight
            task.add_done_callback(self._task_over, context=self._flight._home._context)

    def watch(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = generator

    def cancel(self) -> None:
        for task, cancel in list(self._tasks.items()):
            if cancel:
                task.cancel()

    def end(self) -> None:
        """End what is left, one kind after the other; conclude the flight when nothing is."""
        self._ending = True
        failed, self._failed = self._failed, []
        for task in failed:
            _report(task)
        if self._tasks:
            self._round = set(self._tasks)
            self.cancel()
        # After the tasks: a generator cannot be closed while a task runs it.
        elif generators := list(self._generators.values()):
            self._generators.clear()
            closer = asyncio.Task(_close(generators), loop=self._flight._loop, context=self._flight._context)
            self.adopt(closer, cancel=False)
            self._round = {closer}
        else:
            self._flight._conclude()

    def _task_over(self, task: asyncio.Future[Any]) -> None:
        del self._tasks[task], self._flight._loop.owners[task]
        if self._ending:
            self._failed.append(task)  # whether anybody takes its error is known when the round is over
            self._round.discard(task)
            if not self._round:
                self.end()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that knows to which flight a task or an async generator belongs.

    By methods, not by a task factory and `sys.set_asyncgen_hooks`: a job may set a factory of its own, and asyncio sets
    its hooks anew whenever it is run again. Were the hooks renamed, generators would be closed by asyncio alone.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The tasks that have an owner, except those of the flights themselves.
        self.owners: dict[asyncio.Future[Any], Flight] = {}

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        if (flight := self._owner()) is not None:
            flight._leavings().adopt(task)
        return task

    def _owner(self) -> Flight | None:
        # By the task first: a job may give a task a context that is not its own.
        task = asyncio.current_task(self)
        flight = (self.owners.get(task) if task is not None else None) or _flight.get()
        return flight if flight is not None and flight._done is not None else None

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        if (flight := self._owner()) is not None:
            flight._leavings().watch(agen)
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # At once where asyncio would do it soon: the flight may end with this very step, and waits for its tasks.
        if asyncio._get_running_loop() is self and (flight := self._owner()) is not None:
            flight._leavings().adopt(asyncio.Task(agen.aclose(), loop=self), cancel=False)
        else:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]


async def _close(generators: list[AsyncGenerator[Any, Any]]) -> None:
    # One after another: the first may be closing those that it iterates.
    for generator in generators:
        try:
            await generator.aclose()
        except BaseException:
            logger.warning("An async generator that an async job had left could not be closed.", exc_info=True)


def _report(task: asyncio.Future[Any]) -> None:
    """Log the error of a task that was left, unless somebody has taken it."""
    if not task.cancelled() and task._log_traceback and (error := task.exception()) is not None:
        logger.warning("A task that an async job had left failed while it was being ended.", exc_info=error)


def _cut_loose(error: BaseException) -> None:
    """Cut the loop's frames off a traceback: they know the task that keeps the error, and would close a cycle."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith((__name__, "asyncio.")):
        with contextlib.suppress(RuntimeError):  # it runs: `_run`
            trace.tb_frame.clear()
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)
