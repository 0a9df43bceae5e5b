"""What is measured: one pool of the engine with all features on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal
from uuid import uuid4

import project
from prometheus_client import CollectorRegistry

from django_boundedpool.engine import payload
from django_boundedpool.engine.clock import Clock
from django_boundedpool.engine.config import PoolConfig
from django_boundedpool.engine.event_loop import EventLoop
from django_boundedpool.engine.events import Events
from django_boundedpool.engine.ids import uuid7_int
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.record import JobRecord
from django_boundedpool.engine.spec import JobSpec
from django_boundedpool.engine.timer import Timer
from django_boundedpool.observability.metrics import Metrics
from django_boundedpool.store import memory

W = project.W
NO_ARGUMENTS = "[[],{}]"
#: Far more than any job here takes: a time-out must be watched, not met.
TIMEOUT = 60.0


def nothing() -> None:
    """The code of a job that does nothing."""


class Receiver:
    """A plain listener, as a project would write one: it counts."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, events: Sequence[Any]) -> None:
        """Count `events`."""
        self.seen += len(events)


class Engine:
    """One pool with everything on: time-outs, tokens, priorities, statistics, the in-memory store, two listeners.

    `submit` does what `JobFunction.submit` does, without Django's part of it: the early look for a refusal, arguments
    to JSON where there are any, the record, the admission. The runner reads the arguments from the JSON again.

    Arguments:
        function: the code of the jobs; a coroutine function with `loop`.
        workers, queue_size: W and Q.
        priorities: of the jobs, in turn.
        loop: whether jobs run on the event loop.
        lane: where they run otherwise.
    """

    def __init__(
        self,
        function: Callable[..., Any] = nothing,
        *,
        workers: int = W,
        queue_size: int = 1_000_000,
        priorities: Sequence[int] = (0, 5, -5),
        loop: bool = False,
        lane: Literal["io", "cpu"] = "io",
    ) -> None:
        self.clock = Clock()
        self.timer = Timer(self.clock)
        self.timer.start()  # as the runtime does with the first job
        self.metrics = Metrics(CollectorRegistry())
        self.receiver = Receiver()
        self.loop = EventLoop() if loop else None
        events = Events()
        events.subscribe(self.receiver)
        events.subscribe(self.metrics.note)
        self.store = memory.Memory(self.clock)
        self.config = PoolConfig(workers=workers, queue_size=queue_size, queue_bytes=1 << 30, persist="memory")
        self.pool = Pool(
            self.config,
            runner=_run,
            async_runner=_arun,
            save=self.store.keep,
            picture=memory.itself,
            saves_live=False,
            clock=self.clock,
            timer=self.timer,
            events=events,
            loop=self.loop,
        )
        self._process = uuid4()
        self._time, self._retention = self.clock.time, self.config.retention
        self.specs = [self.spec(function, priority, loop=loop, lane=lane) for priority in priorities]
        self._turns = itertools.cycle(self.specs)
        if self.loop is not None:
            self.loop.start()
        elif lane == "io":
            self.hold()()  # every worker thread has been started

    def spec(
        self,
        function: Callable[..., Any],
        priority: int = 0,
        *,
        loop: bool = False,
        lane: Literal["io", "cpu"] = "io",
    ) -> JobSpec:
        """Return what `@job` on `function` comes to."""
        name = f"benchmarks.{function.__name__}{priority}"
        return JobSpec(name=name, function=function, priority=priority, timeout=TIMEOUT, lane=lane, asynchronous=loop)

    def submit(self, *args: Any, **kwargs: Any) -> JobRecord:
        """Submit one job of the function, with the next priority."""
        return self.submit_one(next(self._turns), args, kwargs)

    def submit_bare(self) -> JobRecord:
        """Do as `submit` without arguments, with no call more than it takes."""
        spec, pool = next(self._turns), self.pool
        pool.check_open(spec)
        record = JobRecord(uuid7_int(), spec, NO_ARGUMENTS, 7, self._time(), self._process, self._retention, "")
        pool.admit(record)
        return record

    def submit_one(self, spec: JobSpec, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> JobRecord:
        """Submit one job of `spec`."""
        pool = self.pool
        pool.check_open(spec)
        text = payload.encode_call(args, kwargs or {}) if args or kwargs else NO_ARGUMENTS
        record = JobRecord(uuid7_int(), spec, text, len(text), self._time(), self._process, self._retention, "")
        pool.admit(record)
        return record

    def submit_later(self, due: float, *args: Any) -> JobRecord:
        """Submit one job that is not to start before the monotonic moment `due`."""
        spec = next(self._turns)
        text = payload.encode_call(args, {})
        now = self._time()
        record = JobRecord(uuid7_int(), spec, text, len(text), now, self._process, self._retention, "")
        record.run_after, record.due = now + (due - self.clock.monotonic()), due
        record.special = True
        self.pool.admit(record)
        return record

    def hold(self) -> Callable[[], None]:
        """Occupy every worker; return what lets them go again and waits for it."""
        gate = threading.Event()
        inside = threading.Barrier(self.config.workers + 1)

        def wait() -> None:
            inside.wait(30)
            gate.wait()

        spec = self.spec(wait, 100)
        held = [self.submit_one(spec) for _ in range(self.config.workers)]
        inside.wait(30)

        def release() -> None:
            over = [self.pool.done_event(record) for record in held]
            gate.set()
            for event in over:
                event.wait(30)

        return release

    def close(self) -> None:
        """End every thread."""
        self.pool.give_up()
        self.pool.close(30)
        if self.loop is not None:
            self.loop.stop()
        self.timer.stop()


def _arguments(record: JobRecord) -> tuple[list[Any], dict[str, Any]]:
    text = record.payload
    if text is None or text == NO_ARGUMENTS:
        return [], {}
    args, kwargs = payload.decode(text)
    return args, kwargs


def _run(record: JobRecord) -> Any:
    args, kwargs = _arguments(record)
    return record.spec.function(*args, **kwargs)


async def _arun(record: JobRecord) -> Any:
    args, kwargs = _arguments(record)
    return await record.spec.function(*args, **kwargs)
