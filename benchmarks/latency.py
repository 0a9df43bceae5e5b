"""Microseconds from the call of submit to the first line of the job.

At idle one job comes every 0.7 ms: each wakes a parked thread. At load jobs of 5 ms (sleeps) come as a Poisson process
at 80 % of what 8 workers can do; both sides get the same arrivals. There the jobs have one priority: with several, ours
would show what priorities do to the later ones, and the executor has none. Both sides take the arguments of the job,
ours by way of JSON.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from harness import Row, Target, interleaved, percentile
from peers import warm_executor
from subjects import Engine, W

IDLE_JOBS = 1000
IDLE_EVERY = 0.0007
LOADED_JOBS = 2000
WORK = 0.005
LOAD = 0.8


def paced(submit: Callable[[int], Any], gaps: list[float], begun: list[float]) -> tuple[float, float]:
    """Submit after each gap; return the median and the 99th percentile of the latencies, in microseconds."""
    calls = []
    due = time.perf_counter()
    for number, gap in enumerate(gaps):
        due += gap
        if (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        calls.append(time.perf_counter())
        submit(number)
    while not all(begun):
        time.sleep(0.005)
    latencies = [(start - call) * 1e6 for start, call in zip(begun, calls, strict=True)]
    return percentile(latencies, 0.5), percentile(latencies, 0.99)


def measure(engine: bool, gaps: list[float], work: float) -> tuple[float, float]:  # noqa: FBT001
    """Measure one side."""
    begun = [0.0] * len(gaps)

    def code(number: int) -> None:
        begun[number] = time.perf_counter()
        if work:
            time.sleep(work)

    if engine:
        subject = Engine(code, priorities=(0,))
        answer = paced(subject.submit, gaps, begun)
        subject.pool.wait_empty(10)
        subject.close()
    else:
        executor = warm_executor(W)
        answer = paced(lambda number: executor.submit(code, number), gaps, begun)
        executor.shutdown()
    return answer


def arrivals(number: int) -> list[float]:
    """Return the gaps of round `number` at load: new ones each round, the same for both sides."""
    source = random.Random(number)  # noqa: S311
    return [source.expovariate(LOAD * W / WORK) for _ in range(LOADED_JOBS)]


def at_idle(engine: bool) -> tuple[float, float]:  # noqa: FBT001
    """Measure one side at idle."""
    return measure(engine, [IDLE_EVERY] * IDLE_JOBS, 0.0)


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    ours, peers = itertools.count(), itertools.count()
    idle = interleaved({"engine": lambda: at_idle(engine=True), "TPE": lambda: at_idle(engine=False)}, rounds)
    loaded = interleaved(
        {
            "engine": lambda: measure(True, arrivals(next(ours)), WORK),
            "TPE": lambda: measure(False, arrivals(next(peers)), WORK),
        },
        rounds,
    )
    rows = []
    for what, figures, number in (("idle, 1 job per 0.7 ms", idle, 2), ("80 % load, 5 ms sleeps", loaded, 3)):
        for place, share, most in ((0, "p50", 1.1), (1, "p99", 1.2)):
            rows.append(
                Row(
                    what=f"{what}, {share}",
                    unit="us",
                    ours=[figure[place] for figure in figures["engine"]],
                    peer=[figure[place] for figure in figures["TPE"]],
                    peer_name="TPE",
                    target=Target(most=most, number=number),
                )
            )
    return rows
