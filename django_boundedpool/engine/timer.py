"""One thread for every timer of the process: time-outs, retry delays, start deadlines."""

from __future__ import annotations

import contextvars
import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from .clock import Clock

logger = logging.getLogger("django_boundedpool.engine")


class TimerEntry:
    """One callback due at a monotonic moment."""

    __slots__ = ("argument", "callback", "due")

    def __init__(self, due: float, callback: Callable[..., object] | None, argument: object) -> None:
        self.due = due
        self.callback = callback
        self.argument = argument


class Timer:
    """A heap of callbacks and a daemon thread that runs them when they are due. Safe from any thread.

    Callbacks run on the timer's thread and must be short; what they raise is logged.

    Arguments:
        clock: source of the monotonic time.
        threaded: False for tests that call `run_due` themselves.
    """

    def __init__(self, clock: Clock, *, threaded: bool = True) -> None:
        self._clock = clock
        self._threaded = threaded
        self._condition = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, TimerEntry]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def __len__(self) -> int:
        with self._condition:
            return len(self._heap) - self._cancelled

    def at(self, due: float, callback: Callable[..., object], argument: object = None) -> TimerEntry:
        """Run `callback`, with `argument` unless that is None, once the clock's monotonic time reaches `due`."""
        entry = TimerEntry(due, callback, argument)
        with self._condition:
            heapq.heappush(self._heap, (due, next(self._numbers), entry))
            if self._heap[0][2] is entry:
                self._condition.notify()
        self.start()
        return entry

    def start(self) -> None:
        """Start the thread, once. Called early: Python 3.12.0-3.12.2 starts no thread once the interpreter ends."""
        with self._condition:
            needs_thread = self._threaded and self._thread is None and not self._stopped
            if needs_thread:
                self._thread = thread = self._make_thread()
        if needs_thread:
            try:
                thread.start()
            except RuntimeError:
                logger.exception("The timer thread could not be started; the next timer tries again.")
                with self._condition:
                    self._thread = None

    def cancel(self, entry: TimerEntry) -> None:
        """Forget `entry`; harmless if it has run."""
        with self._condition:
            if entry.callback is None:
                return
            entry.callback = entry.argument = None
            self._cancelled += 1
            # Dead entries are dropped in bulk once they are the majority: memory stays proportional to the live.
            if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
                self._heap = [item for item in self._heap if item[2].callback is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def run_due(self) -> int:
        """Run every callback that is due; return how many."""
        count = 0
        while True:
            with self._condition:
                due = self._pop_due_locked()
            if due is None:
                return count
            count += 1
            callback, argument = due
            try:
                if argument is None:
                    callback()
                else:
                    callback(argument)
            except BaseException:
                logger.exception("A timer callback failed.")
            del due, callback, argument  # they may be the last to know a job

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; entries still waiting are dropped."""
        with self._condition:
            self._stopped = True
            self._heap.clear()
            self._cancelled = 0
            thread = self._thread
            self._condition.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _make_thread(self) -> threading.Thread:
        # From an empty context: the timer must not carry what the request that armed it had set.
        context = contextvars.Context()
        return threading.Thread(target=context.run, args=(self._loop,), name="boundedpool-timer", daemon=True)

    def _pop_due_locked(self) -> tuple[Callable[..., object], object] | None:
        now = self._clock.monotonic()
        while self._heap:
            due, _, entry = self._heap[0]
            if entry.callback is None:
                heapq.heappop(self._heap)
                self._cancelled -= 1
            elif due <= now:
                heapq.heappop(self._heap)
                callback, argument = entry.callback, entry.argument
                entry.callback = entry.argument = None
                return callback, argument
            else:
                return None
        return None

    def _loop(self) -> None:
        while True:
            self.run_due()
            with self._condition:
                if self._stopped:
                    return
                delay = self._heap[0][0] - self._clock.monotonic() if self._heap else None
                if delay is None or delay > 0:
                    # Condition.wait refuses more than threading.TIMEOUT_MAX.
                    self._condition.wait(None if delay is None else min(delay, 3600.0))
