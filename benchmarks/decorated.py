"""Jobs per second through `@job` and `submit`, PERSIST="memory", against the same function in an executor.

Ours includes what Django makes necessary: the check for an open transaction, arguments to JSON and back, a context
copied for every job, the look for connections that a job left, Prometheus metrics and log lines as the app installs
them. The executor does none of it and cannot refuse; it is not fair to us in that, and it is what a project would
compare with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import project  # noqa: F401 - configures Django
from harness import Row, Target, interleaved
from peers import warm_executor
from subjects import Receiver, W

from django_boundedpool import job, pools
from django_boundedpool.lifecycle import runtime
from django_boundedpool.signals import job_finished

JOBS = 10_000
TARGET = Target(least=1.0)


@job
def bare() -> None:
    """Do nothing."""


@job
def small(number: int, text: str) -> None:
    """Do nothing with two arguments."""


def rate(submit: Callable[..., Any], arguments: bool, producers: int, finish: Callable[[], Any]) -> float:  # noqa: FBT001
    """Return jobs per second with `producers` threads that submit."""
    share = JOBS // producers
    ready = threading.Barrier(producers + 1)

    def produce() -> None:
        ready.wait()
        if arguments:
            for number in range(share):
                submit(number, "abc")
        else:
            for _ in range(share):
                submit()

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    ready.wait()
    for thread in threads:
        thread.join()
    finish()
    return share * producers / (time.perf_counter() - began)


def ours(arguments: bool, producers: int) -> float:  # noqa: FBT001
    """Measure our side; the handles are dropped."""
    return rate(small.submit if arguments else bare.submit, arguments, producers, pools["default"].join)


def with_signal(arguments: bool, producers: int) -> float:  # noqa: FBT001
    """Measure our side with a receiver of a Django signal."""
    job_finished.connect(_received)
    try:
        return ours(arguments, producers)
    finally:
        job_finished.disconnect(_received)


def _received(sender: object, **_: object) -> None:
    """Be called."""


def executor(arguments: bool, producers: int) -> float:  # noqa: FBT001
    """Measure the executor; the futures are dropped."""
    pool = warm_executor(W)
    function = small.spec.function if arguments else bare.spec.function
    return rate(lambda *args: pool.submit(function, *args), arguments, producers, pool.shutdown)


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    runtime.EVENTS.subscribe(Receiver())
    rows = []
    for arguments in (False, True):
        for producers in (1, 4):
            variants = {
                "ours": partial(ours, arguments, producers),
                "TPE": partial(executor, arguments, producers),
                "signal": partial(with_signal, arguments, producers),
            }
            figures = interleaved(variants, rounds)
            call = 'submit(i, "abc")' if arguments else "submit()"
            what = f"{call}, {producers} producer{'s' if producers > 1 else ''}"
            common: dict[str, Any] = {"unit": "jobs/s", "peer": figures["TPE"], "peer_name": "TPE"}
            rows.append(Row(what=what, ours=figures["ours"], target=TARGET, **common))
            rows.append(Row(what=f"{what}, a receiver of job_finished", ours=figures["signal"], **common))
    return rows
