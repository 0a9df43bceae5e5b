"""Builders for tests of the engine: a pool with a hand-moved clock and no threads, and one with real threads."""

import random
import threading
from collections.abc import Callable
from typing import Any

from django_boundedpool.engine.clock import Clock, ManualClock
from django_boundedpool.engine.config import RETENTION, PoolConfig
from django_boundedpool.engine.events import Event, Events
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.record import JobRecord, Snapshot
from django_boundedpool.engine.spec import JobSpec
from django_boundedpool.engine.timer import Timer
from django_boundedpool.engine.worker import execute

REAL = Clock()
ME = uuid7()


def nothing() -> None:
    """The code of a job that does nothing."""


class Bench:
    """One pool with everything around it in view."""

    def __init__(self, *, threaded: bool = False, **config: Any) -> None:
        self.clock: Any = REAL if threaded else ManualClock()
        self.timer = Timer(self.clock, threaded=threaded)
        self.saved: list[Snapshot] = []
        self.events: list[Event] = []
        events = Events()
        events.subscribe(self.events.append)
        self.pool = Pool(
            PoolConfig(**config),
            runner=lambda record: record.spec.function(),
            save=self.saved.append,
            clock=self.clock,
            timer=self.timer,
            events=events,
            rng=random.Random(7),
            threaded=threaded,
        )

    def record(self, function: Callable[[], Any] = nothing, *, payload: str = "[[],{}]", **spec: Any) -> JobRecord:
        return JobRecord(
            id=uuid7(),
            process=ME,
            spec=JobSpec(name=spec.pop("name", "tests.job"), function=function, **spec),
            payload=payload,
            payload_bytes=len(payload),
            stored_call=([], {}),
            args_withheld=False,
            submitted_at=self.clock.now(),
            retention=RETENTION,
        )

    def submit(self, function: Callable[[], Any] = nothing, **spec: Any) -> JobRecord:
        record = self.record(function, **spec)
        self.pool.reserve(record)
        self.pool.accept(record)
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
