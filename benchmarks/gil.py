"""What jobs that compute do to the rest of the process, and whether it shows.

A request is 4 x (0.25 ms of Python, then a wait of 0.2 ms that lets other threads run). Each wait costs it a turn at
the interpreter's lock: up to one switch interval for each thread that computes. On a machine where other processes want
the cores too, the figures contain their turns as well.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from harness import Row, Target, interleaved, percentile
from subjects import Engine, W

from django_boundedpool.engine.lag import EVERY, LagProbe

#: How long requests are served in one round, and how many at least. Seconds, number.
SERVE = 0.8
LEAST = 15
DEFAULT, SHORT = 0.005, 0.001


def spin(turns: int) -> int:
    """Compute."""
    total = 0
    for number in range(turns):
        total += number & 7
    return total


def turns_of(seconds: float) -> int:
    """Return how many turns take `seconds` on an idle machine."""
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        spin(10_000)
        best = min(best, time.perf_counter() - began)
    return int(10_000 * seconds / best)


class Computing:
    """Jobs that compute until told to stop.

    Arguments:
        jobs: how many are submitted.
        lane: "cpu" lets one of them run at a time, "io" all.
    """

    def __init__(self, jobs: int, lane: str) -> None:
        self._stop = threading.Event()

        def compute() -> None:
            while not self._stop.is_set():
                spin(20_000)

        self.engine = Engine(compute, priorities=(0,), lane="cpu" if lane == "cpu" else "io")
        for _ in range(jobs):
            self.engine.submit()
        expected = min(jobs, 1) if lane == "cpu" else jobs
        while self.engine.pool.gauges()[1] < expected:
            time.sleep(0.01)

    def close(self) -> None:
        """End them."""
        self._stop.set()
        self.engine.close()


def request_time(jobs: int, lane: str, interval: float, turns: int) -> float:
    """Return the median milliseconds of a request beside `jobs` that compute."""
    sys.setswitchinterval(interval)
    computing = Computing(jobs, lane)
    took: list[float] = []
    try:
        end = time.perf_counter() + SERVE
        while len(took) < LEAST or time.perf_counter() < end:
            began = time.perf_counter()
            for _ in range(4):
                spin(turns)
                time.sleep(0.0002)
            took.append(time.perf_counter() - began)
            time.sleep(0.002)
    finally:
        computing.close()
        sys.setswitchinterval(DEFAULT)
    return percentile(took, 0.5) * 1e3


def probe(jobs: int) -> float:
    """Return what the lag probe reports after three of its measurements, in milliseconds."""
    computing = Computing(jobs, "cpu")
    try:
        lag = LagProbe(computing.engine.clock, computing.engine.timer)
        lag.start()
        time.sleep(EVERY * 3.3)
        return lag.seconds * 1e3
    finally:
        computing.close()


def machine() -> float:
    """Return the same of a plain wait: how late this machine wakes a thread that waited for a second."""
    condition = threading.Condition()
    lags = []
    for _ in range(3):
        due = time.monotonic() + EVERY
        with condition:
            condition.wait(EVERY)
        lags.append(time.monotonic() - due)
    return max(lags) * 1e3


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    lags: dict[str, Callable[[], float]] = {"idle": partial(probe, 0), "one": partial(probe, 1), "machine": machine}
    probes = interleaved(lags, min(rounds, 3), warm=False)
    turns = turns_of(0.00025)
    cases: dict[str, tuple[int, str, float]] = {
        "idle": (0, "io", DEFAULT),
        "8 jobs that compute, in the CPU lane": (W, "cpu", DEFAULT),
        "8 jobs that compute, in the CPU lane, switch interval 1 ms": (W, "cpu", SHORT),
        "8 jobs that compute, no lane": (W, "io", DEFAULT),
        "8 jobs that compute, no lane, switch interval 1 ms": (W, "io", SHORT),
    }
    bounds = dict(zip(list(cases)[1:3], (10.0, 4.0), strict=True))
    variants = {name: partial(request_time, *case, turns) for name, case in cases.items()}
    figures = interleaved(variants, rounds, warm=False)
    rows = [
        Row(
            what="lag probe, idle",
            unit="ms",
            ours=probes["idle"],
            peer=probes["machine"],
            peer_name="a plain wait of 1 s",
        ),
        Row(
            what="lag probe, one job computes",
            unit="ms",
            ours=probes["one"],
            peer=probes["idle"],
            peer_name="idle",
            target=Target(least=3, of="ours", number=21),
        ),
    ]
    for name in list(cases)[1:]:
        target = Target(most=bounds[name], number=21) if name in bounds else None
        rows.append(
            Row(
                what=f"request beside {name}, p50",
                unit="ms",
                ours=figures[name],
                peer=figures["idle"],
                peer_name="idle",
                target=target,
            )
        )
    return rows
