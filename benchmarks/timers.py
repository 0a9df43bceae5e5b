"""10,000 entries in the one timer thread of a process: retries that wait, start deadlines."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from harness import MIB, Row, Target, apart, interleaved, percentile, rss
from subjects import Engine

from django_boundedpool.engine.clock import Clock
from django_boundedpool.engine.timer import Timer, TimerEntry

ENTRIES = 10_000


def _callback(record: object) -> Callable[[], object]:
    """Return what a pool arms: a function that knows its job."""
    return lambda: record


def arm_and_cancel() -> tuple[float, float, float]:
    """Return the microseconds to arm and to cancel an entry, and the threads that 10,000 take."""
    before = threading.active_count()
    timer = Timer(Clock())
    now = time.monotonic()
    dues = [now + random.uniform(600, 1200) for _ in range(ENTRIES)]  # noqa: S311
    began = time.perf_counter()
    entries = [timer.at(due, _callback(None)) for due in dues]
    armed = time.perf_counter() - began
    count = threading.active_count() - before
    random.shuffle(entries)
    began = time.perf_counter()
    for entry in entries:
        timer.cancel(entry)
    cancelled = time.perf_counter() - began
    timer.stop()
    return armed / ENTRIES * 1e6, cancelled / ENTRIES * 1e6, float(count)


def memory() -> float:
    """Return by how many MiB RSS grows with 10,000 entries."""
    timer = Timer(Clock())
    timer.start()
    now = time.monotonic()
    entries: list[TimerEntry] = []
    before = rss()
    for number in range(ENTRIES):
        entries.append(timer.at(now + 600 + number * 7919 % 600, _callback(number)))  # noqa: PERF401 - the growth
    return (rss() - before) / MIB


def lag() -> float:
    """Return the 99th percentile of the lag in milliseconds when 10,000 entries fire within one second."""
    timer = Timer(Clock())
    lags: list[float] = []
    monotonic = time.monotonic
    first = monotonic() + 0.5

    def fire(due: float) -> Callable[[], object]:
        return lambda: lags.append(monotonic() - due)

    for _ in range(ENTRIES):
        due = first + random.random()  # noqa: S311
        timer.at(due, fire(due))
    while len(lags) < ENTRIES:
        time.sleep(0.05)
    timer.stop()
    return percentile(lags, 0.99) * 1e3


def due_jobs() -> float:
    """Return the same in milliseconds for 10,000 deferred jobs: from the moment they are due to their first line."""
    lags: list[float] = []
    monotonic = time.monotonic

    def code(due: float) -> None:
        lags.append(monotonic() - due)

    engine = Engine(code)
    first = monotonic() + 3
    for _ in range(ENTRIES):
        due = first + random.random()  # noqa: S311
        engine.submit_later(due, due)
    while len(lags) < ENTRIES:
        time.sleep(0.05)
    engine.close()
    return percentile(lags, 0.99) * 1e3


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    figures = interleaved({"costs": arm_and_cancel, "lag": lag, "jobs": due_jobs}, rounds, warm=False)
    arms, cancels, threads = ([cost[place] for cost in figures["costs"]] for place in range(3))
    growth = [apart(memory) for _ in range(min(rounds, 3))]

    def most(bound: float) -> Target:
        return Target(most=bound, of="ours", number=17)

    return [
        Row(what=f"arm one of {ENTRIES:,}", unit="us", ours=arms, target=most(20)),
        Row(what=f"cancel one of {ENTRIES:,}", unit="us", ours=cancels, target=most(20)),
        Row(what=f"growth of RSS with {ENTRIES:,}", unit="MiB", ours=growth, target=most(4)),
        Row(what="threads", unit="", ours=threads, target=most(1)),
        Row(what=f"{ENTRIES:,} fire within 1 s: p99 of the lag", unit="ms", ours=figures["lag"], target=most(50)),
        Row(what=f"{ENTRIES:,} deferred jobs start within 1 s: p99 of the lag", unit="ms", ours=figures["jobs"]),
    ]
