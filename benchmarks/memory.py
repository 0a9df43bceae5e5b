"""What a waiting job and a refusal cost.

A waiting job has the arguments (i, "abc") and {"size": i}; ours keeps them as JSON. Nobody keeps its handle or future.
RSS is read from /proc/self/statm in a process of its own for each figure. A refusal is measured with a full queue and
busy workers, of the engine alone and of `JobFunction`; a refusal that raises goes up through 20 frames and is caught.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from harness import MIB, Row, Target, apart, interleaved, rss
from peers import warm_executor
from project import Q
from subjects import Engine, W

from django_boundedpool import job
from django_boundedpool.engine.errors import Rejected

WAITING = 100_000
REFUSALS = 1_000_000
CALLS = 2_000
FRAMES = 20

_gate = threading.Event()


@job(pool="small")
def blocked() -> None:
    """Wait for the end of the measurement."""
    _gate.wait()


@job(pool="small")
def small(number: int, text: str) -> None:
    """Do nothing with two arguments."""


def waiting_jobs(engine: bool) -> float:  # noqa: FBT001
    """Return the bytes of RSS per waiting job."""
    submit: Callable[..., Any]
    if engine:
        subject = Engine()
        subject.hold()
        submit = subject.submit
    else:
        executor = warm_executor(W)
        for _ in range(W):
            executor.submit(_gate.wait)

        def submit(*args: Any, **kwargs: Any) -> object:
            return executor.submit(_nothing, *args, **kwargs)

    before = rss()
    for number in range(WAITING):
        submit(number, "abc", size=number)
    return (rss() - before) / WAITING


def _nothing(*_: object, **__: object) -> None:
    """Do nothing with any arguments."""


def refusals() -> float:
    """Return by how many MiB RSS grows over a million refusals, half of which raise."""
    engine = Engine(queue_size=Q)
    engine.hold()
    spec = engine.specs[0]
    for _ in range(Q):
        engine.submit_one(spec)
    refused = 0

    def refuse(times: int) -> None:
        nonlocal refused
        for _ in range(times // 2):
            engine.pool.turned_away(spec)
            try:
                engine.submit_one(spec)
            except Rejected:
                refused += 1

    refuse(REFUSALS // 10)
    before = rss()
    refuse(REFUSALS)
    assert refused == (REFUSALS + REFUSALS // 10) // 2  # noqa: S101
    return (rss() - before) / MIB


def per_call(call: Callable[[], object]) -> float:
    """Return the microseconds of one call."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def refusal_costs(rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of every way to be refused, and of being accepted."""
    engine = Engine(queue_size=Q)
    engine.hold()
    spec = engine.specs[0]
    for _ in range(Q):
        engine.submit_one(spec)
    for _ in range(W + Q):
        blocked.submit()
    roomy = Engine()
    roomy.hold()

    def deep(frames: int) -> None:
        if frames:
            deep(frames - 1)
        else:
            small.submit(1, "abc")

    def raises() -> None:
        try:
            deep(FRAMES)
        except Rejected:
            pass

    accepting = small.using(pool="default")
    for _ in range(W):
        blocked.using(pool="default").submit()
    return interleaved(
        {
            "turned_away": lambda: per_call(lambda: engine.pool.turned_away(spec)),
            "try_submit": lambda: per_call(lambda: small.try_submit(1, "abc")),
            "submit": lambda: per_call(raises),
            "accepted": lambda: per_call(lambda: accepting.submit(1, "abc")),
        },
        rounds,
    )


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    few = min(rounds, 5)
    sizes = interleaved(
        {"engine": lambda: apart(waiting_jobs, True), "TPE": lambda: apart(waiting_jobs, False)}, few, warm=False
    )
    growths = [apart(refusals) for _ in range(min(rounds, 3))]
    costs = apart(refusal_costs, rounds)
    cheap = Target(most=2, of="ours", number=7)
    queued: dict[str, Any] = {"unit": "B", "ours": sizes["engine"]}
    raising: dict[str, Any] = {"unit": "us", "ours": costs["submit"]}
    return [
        Row(what=f"RSS per queued job, Q={WAITING:,}", target=Target(most=1024, of="ours", number=6), **queued),
        Row(
            what="the same, against an executor",
            peer=sizes["TPE"],
            peer_name="TPE",
            target=Target(most=0.6, number=6),
            **queued,
        ),
        Row(
            what=f"{REFUSALS:,} refusals: growth of RSS",
            unit="MiB",
            ours=growths,
            target=Target(most=1, of="ours", number=7),
        ),
        Row(what="refusal, engine's turned_away", unit="us", ours=costs["turned_away"], target=cheap),
        Row(what="refusal, try_submit returns None", unit="us", ours=costs["try_submit"], target=cheap),
        Row(
            what=f"refusal, submit raises through {FRAMES} frames",
            target=Target(most=10, of="ours", number=7),
            **raising,
        ),
        Row(
            what="the same, against an accepted submit",
            peer=costs["accepted"],
            peer_name="accepted",
            target=Target(most=1, number=7),
            **raising,
        ),
    ]
