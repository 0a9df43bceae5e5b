"""Builders for tests of the engine: a pool with a hand-moved clock and no threads, and one with real threads."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from django_boundedpool.engine.clock import Clock, ManualClock
from django_boundedpool.engine.config import RETENTION, PoolConfig
from django_boundedpool.engine.cpu_lane import CpuLane
from django_boundedpool.engine.events import Event, Events
from django_boundedpool.engine.ids import uuid7, uuid7_int
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.record import JobRecord, Snapshot
from django_boundedpool.engine.spec import JobSpec
from django_boundedpool.engine.timer import Timer
from django_boundedpool.engine.worker import LoopLane, execute

REAL = Clock()
ME = uuid7()


def nothing() -> None:
    """The code of a job that does nothing."""


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for what another thread is about to do, where there is no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0)


class Bench:
    """One pool with everything around it in view.

    Arguments:
        threaded: real worker threads, and by default the real clock and a timer thread.
        clock: another clock; its timer has no thread then, and `advance` runs what is due.
        kind: the class of the pool.
        loop, cpu_lane: what the pool shares with others.
        config: of the pool.
    """

    def __init__(
        self,
        *,
        threaded: bool = False,
        clock: Clock | None = None,
        kind: type[Pool] = Pool,
        loop: LoopLane | None = None,
        cpu_lane: CpuLane | None = None,
        **config: Any,
    ) -> None:
        self.clock: Any = clock or (REAL if threaded else ManualClock())
        self.timer = Timer(self.clock, threaded=threaded and clock is None)
        self.saved: list[Snapshot] = []
        self.events: list[Event] = []
        self.events_hub = Events()
        self.events_hub.subscribe(lambda events: self.events.extend(map(Event._make, events)))
        self.pool = kind(
            PoolConfig(**config),
            runner=lambda record: record.spec.function(),
            async_runner=lambda record: record.spec.function(),
            save=self.saved.append,
            clock=self.clock,
            timer=self.timer,
            events=self.events_hub,
            loop=loop,
            cpu_lane=cpu_lane,
            rng=random.Random(7),
            threaded=threaded,
        )

    def record(
        self,
        function: Callable[[], Any] = nothing,
        *,
        payload: str = "[[],{}]",
        owner: str = "",
        deadline: float | None = None,
        run_after: float | None = None,
        **spec: Any,
    ) -> JobRecord:
        """A job of this pool; moments are seconds from now."""
        record = JobRecord(
            uuid7_int(),
            JobSpec(name=spec.pop("name", "tests.job"), function=function, **spec),
            payload,
            len(payload),
            self.clock.time(),
            ME,
            RETENTION,
            owner,
        )
        if deadline is not None:
            record.deadline, record.deadline_mono = self.clock.time() + deadline, self.clock.monotonic() + deadline
            record.special = True
        if run_after is not None:
            record.run_after, record.due = self.clock.time() + run_after, self.clock.monotonic() + run_after
            record.special = True
        return record

    def submit(self, function: Callable[[], Any] = nothing, **spec: Any) -> JobRecord:
        record = self.record(function, **spec)
        self.pool.reserve(record)
        self.pool.accept(record)
        return record

    def admit(self, function: Callable[[], Any] = nothing, **spec: Any) -> JobRecord:
        """As `submit`, in the one step that jobs without a row take."""
        record = self.record(function, **spec)
        self.pool.admit(record)
        return record

    def take(self) -> JobRecord | None:
        return self.pool.take(threading.current_thread())

    def run_next(self) -> JobRecord | None:
        record = self.take()
        if record is not None:
            execute(self.pool, self.pool._runner, record)
        return record

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.run_due()

    def last(self, record: JobRecord) -> dict[str, Any]:
        """The newest stored picture of a job."""
        mine = [snapshot for snapshot in self.saved if snapshot.id == record.id]
        return dict(max(mine, key=lambda snapshot: snapshot.version).values)

    def close(self) -> None:
        self.pool.give_up()
        assert self.pool.close(timeout=10)
        self.timer.stop()
