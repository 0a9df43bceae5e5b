"""1,000 async jobs in flight on the pool's event loop, 10 ms sleeps, against 1,000 threads.

The limit of both is 1,000 / 10 ms = 100,000 jobs/s. Starting the threads is not counted, though it takes them a tenth
of a second. Memory is the growth of RSS over the whole round in a process of its own: the threads' stacks, our loop,
and the jobs that wait, which are as many on both sides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from harness import MIB, Row, Target, apart, interleaved, rss
from peers import warm_executor
from subjects import Engine

from django_boundedpool import job, pools

IN_FLIGHT = 1000
JOBS = 20_000
SLEEP = 0.01


async def nap() -> None:
    """Sleep for 10 ms."""
    await asyncio.sleep(SLEEP)


@job(pool="coroutines")
async def decorated_nap() -> None:
    """Sleep for 10 ms."""
    await asyncio.sleep(SLEEP)


def block() -> None:
    """Sleep for 10 ms in a thread."""
    time.sleep(SLEEP)


def timed(submit: Callable[[], Any], finish: Callable[[], Any]) -> tuple[float, float]:
    """Return jobs per second and the microseconds of a submit."""
    began = time.perf_counter()
    for _ in range(JOBS):
        submit()
    submitted = time.perf_counter()
    finish()
    return JOBS / (time.perf_counter() - began), (submitted - began) / JOBS * 1e6


def ours() -> tuple[float, float]:
    """Measure the engine."""
    engine = Engine(nap, workers=IN_FLIGHT, loop=True)
    try:
        return timed(engine.submit, lambda: engine.pool.wait_empty(60))
    finally:
        engine.close()


def decorated() -> tuple[float, float]:
    """Measure `@job` on a coroutine function."""
    return timed(decorated_nap.submit, pools["coroutines"].join)


def threads() -> tuple[float, float]:
    """Measure the executor."""
    executor = warm_executor(IN_FLIGHT)
    return timed(lambda: executor.submit(block), executor.shutdown)


def growth(engine: bool) -> float:  # noqa: FBT001
    """Return by how many MiB RSS grows when the jobs run."""
    before = rss()
    if engine:
        subject = Engine(nap, workers=IN_FLIGHT, loop=True)
        timed(subject.submit, lambda: subject.pool.wait_empty(60))
    else:
        executor = warm_executor(IN_FLIGHT)
        timed(lambda: executor.submit(block), lambda: None)
    return (rss() - before) / MIB


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    figures = interleaved({"engine": ours, "TPE": threads, "decorated": decorated}, rounds)
    rates = {name: [rate for rate, _ in values] for name, values in figures.items()}
    submits = {name: [submit for _, submit in values] for name, values in figures.items()}
    memory = interleaved(
        {"engine": lambda: apart(growth, True), "TPE": lambda: apart(growth, False)}, min(rounds, 3), warm=False
    )
    peer: dict[str, Any] = {"peer": rates["TPE"], "peer_name": "1,000 threads", "unit": "jobs/s"}
    return [
        Row(what="10 ms sleeps, 1,000 in flight", ours=rates["engine"], target=Target(least=3, number=16), **peer),
        Row(
            what="the same, as a rate",
            unit="jobs/s",
            ours=rates["engine"],
            target=Target(least=40_000, of="ours", number=16),
        ),
        Row(what="the same through @job", ours=rates["decorated"], **peer),
        Row(
            what="growth of RSS",
            unit="MiB",
            ours=memory["engine"],
            peer=memory["TPE"],
            peer_name="1,000 threads",
            target=Target(most=0.25, number=16),
        ),
        Row(what="submit, engine", unit="us", ours=submits["engine"], target=Target(most=5, of="ours", number=16)),
        Row(what="submit, @job", unit="us", ours=submits["decorated"]),
    ]
