"""Cancelling jobs that wait: what it costs, and what it leaves behind. Every worker is busy meanwhile."""

from __future__ import annotations

import random
import time

from harness import MIB, Row, Target, apart, interleaved, rss
from subjects import Engine

from django_boundedpool.engine.states import Reason

FEW, MANY = 1_000, 100_000
CANCELS = 500
DRAINED = 5_000
STORM = 200_000
STANDING = 100


def cost(queued: int) -> float:
    """Return the microseconds of one cancel, by id as a handle does it, with `queued` jobs waiting."""
    engine = Engine()
    release = engine.hold()
    ids = [engine.submit(number, "abc").id for number in range(queued)]
    chosen = random.sample(ids, CANCELS)
    cancel = engine.pool.cancel
    began = time.perf_counter()
    for job_id in chosen:
        cancel(job_id, Reason.USER)
    took = time.perf_counter() - began
    engine.pool.give_up()
    release()
    engine.close()
    return took / CANCELS * 1e6


def drain(cancelled: bool) -> float:  # noqa: FBT001
    """Return the milliseconds that 5,000 waiting jobs take, after the cancel of as many others or without."""
    engine = Engine()
    release = engine.hold()
    records = [engine.submit() for _ in range(2 * DRAINED if cancelled else DRAINED)]
    if cancelled:
        for record in random.sample(records, DRAINED):
            engine.pool.cancel(record.id, Reason.USER)
    del records
    began = time.perf_counter()
    release()
    engine.pool.wait_empty(60)
    took = time.perf_counter() - began
    engine.close()
    return took * 1e3


def storm() -> tuple[float, float]:
    """Submit and cancel 200,000 times with 100 others waiting; return the growth in MiB and what is held too much."""
    engine = Engine()
    engine.hold()
    for number in range(STANDING):
        engine.submit(number, "abc")

    def churn(times: int) -> None:
        for number in range(times):
            engine.pool.cancel(engine.submit(number, "abc").id, Reason.USER)

    churn(STORM // 10)  # buffers and arenas reach their size
    before = rss()
    churn(STORM)
    growth = rss() - before
    pool = engine.pool
    live = STANDING + engine.config.workers
    held = max(len(pool._live), len(pool._queue) + len(pool._running), len(engine.timer._heap))
    return growth / MIB, float(held - live)


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    costs = interleaved({"few": lambda: cost(FEW), "many": lambda: cost(MANY)}, rounds)
    drains = interleaved({"cancels": lambda: drain(cancelled=True), "none": lambda: drain(cancelled=False)}, rounds)
    storms = [apart(storm) for _ in range(min(rounds, 3))]
    within = Target(most=10, of="ours", number=4)
    return [
        Row(what=f"cancel one of {FEW:,} queued", unit="us", ours=costs["few"], target=within),
        Row(what=f"cancel one of {MANY:,} queued", unit="us", ours=costs["many"], target=within),
        Row(
            what=f"cancel, {MANY:,} against {FEW:,} queued",
            unit="us",
            ours=costs["many"],
            peer=costs["few"],
            peer_name=f"at {FEW:,}",
            target=Target(most=4, number=4),
        ),
        Row(
            what=f"drain of {DRAINED:,} after {DRAINED:,} cancels",
            unit="ms",
            ours=drains["cancels"],
            peer=drains["none"],
            peer_name="without cancels",
            target=Target(most=1.5, number=4),
        ),
        Row(
            what=f"{STORM:,} submit + cancel: growth of RSS",
            unit="MiB",
            ours=[growth for growth, _ in storms],
            target=Target(most=1, of="ours", number=5),
        ),
        Row(
            what=f"{STORM:,} submit + cancel: entries held beyond the live jobs",
            unit="entries",
            ours=[held for _, held in storms],
            target=Target(most=64, of="ours", number=5),
        ),
    ]
