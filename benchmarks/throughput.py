"""Jobs per second from the first submit to the end of the last job: W=8, jobs that do nothing.

Included on our side: the record with its id, the early look for a refusal, the bound, three priorities in turn, a
time-out that is watched for every job, a cancel token, statistics, three events with two listeners (Prometheus metrics
and a plain one), and the store of finished jobs. Left out: all that Django needs (see decorated.py), JSON (no
arguments), results (None), and a handle. Threads are started before the clock is, on every side.

Not fair: to us, that no peer but huey does any of this; the executor's future is the only thing it offers more than
`queue.Queue`. To the executor, that its futures are made though nobody looks at them; a user cannot avoid that. To
huey, that it pickles each call for a queue that might be remote.

With Q=1000 kept full, whoever is refused sleeps for half a millisecond and tries again, on every side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import Row, Target, interleaved
from peers import PAUSE, BoundedExecutor, Executor, Huey, Peer, Queue, huey_is_there
from project import Q
from subjects import Engine, W

from django_boundedpool.engine.errors import QueueFull

JOBS = 20_000
#: huey is slower by so much that a round of it would take all the time there is.
FEWER = 2_000

TARGET = Target(least=1.5, worst=1.0, stretch=2.5, number=1)


class Ours:
    """The engine, in the shape of a peer."""

    def __init__(self, queue_size: int = 1_000_000) -> None:
        self._engine = Engine(queue_size=queue_size)
        self.submit: Callable[[], Any] = self._engine.submit_bare if queue_size > JOBS else self._submit

    def _submit(self) -> None:
        while True:
            try:
                self._engine.submit_bare()
            except QueueFull:
                time.sleep(PAUSE)
            else:
                return

    def finish(self) -> None:
        """Wait until every job has run."""
        self._engine.pool.wait_empty(60)

    def close(self, jobs: int) -> None:
        """End the threads, and see that all was done."""
        finished = self._engine.pool.stats().finished
        assert sum(finished.values()) == finished["succeeded"] == jobs + W, finished  # noqa: S101
        self._engine.close()


def rate(make: Callable[[], Peer | Ours], producers: int, jobs: int) -> float:
    """Return jobs per second with `producers` threads that submit."""
    subject = make()
    share = jobs // producers
    ready = threading.Barrier(producers + 1)

    def produce() -> None:
        submit = subject.submit
        ready.wait()
        for _ in range(share):
            submit()

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    ready.wait()
    for thread in threads:
        thread.join()
    subject.finish()
    took = time.perf_counter() - began
    if isinstance(subject, Ours):
        subject.close(share * producers)
    return share * producers / took


def run(rounds: int) -> list[Row]:
    """Measure the section."""
    rows = []
    for producers in (1, 4):
        what = f"no-op jobs, {producers} producer{'s' if producers > 1 else ''}"
        variants = {
            "engine": partial(rate, Ours, producers, JOBS),
            "TPE": partial(rate, partial(Executor, W), producers, JOBS),
            "Queue": partial(rate, partial(Queue, W, 0), producers, JOBS),
        }
        if huey_is_there():
            variants["huey"] = partial(rate, partial(Huey, W), producers, FEWER)
        rows += compared(what, variants, rounds)
        variants = {
            "engine": partial(rate, partial(Ours, Q), producers, JOBS),
            "TPE + semaphore": partial(rate, partial(BoundedExecutor, W, Q), producers, JOBS),
            "Queue": partial(rate, partial(Queue, W, Q), producers, JOBS),
        }
        rows += compared(f"{what}, Q={Q} kept full", variants, rounds)
    return rows


def compared(what: str, variants: dict[str, partial[float]], rounds: int) -> list[Row]:
    """Measure the engine and its peers; the target is about the executor."""
    figures = interleaved(variants, rounds)
    ours = figures.pop("engine")
    return [
        Row(
            what=what,
            unit="jobs/s",
            ours=ours,
            peer=peer,
            peer_name=name,
            target=TARGET if name.startswith("TPE") else None,
        )
        for name, peer in figures.items()
    ]
