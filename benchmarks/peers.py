"""What people would use instead. None of them has priorities and a bound and cancellation and statistics at once.

Each is driven in the way that is cheapest for it: no future is kept, and the end is awaited by ending the threads,
which costs 8 joins per round where a callback per job would cost more.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

#: How long a producer that was refused sleeps before it tries again: a tenth of what a full queue lasts. Seconds.
PAUSE = 0.0005


class Peer(Protocol):
    """One way to run jobs in threads."""

    @property
    def submit(self) -> Callable[[], Any]:
        """What submits one job that does nothing, as soon as there is a place for it."""
        ...

    def finish(self) -> None:
        """Wait until every job has run, and end the threads."""
        ...


def nothing() -> None:
    """The code of a job that does nothing."""


def warm_executor(workers: int) -> ThreadPoolExecutor:
    """Return an executor whose threads have all been started."""
    executor = ThreadPoolExecutor(workers)
    inside = threading.Barrier(workers + 1)
    for _ in range(workers):
        executor.submit(inside.wait, 60)
    inside.wait(60)
    return executor


class Executor:
    """concurrent.futures.ThreadPoolExecutor: unbounded, first come first served, a future for each job."""

    def __init__(self, workers: int) -> None:
        self._executor = warm_executor(workers)
        self.submit: Callable[[], Any] = functools.partial(self._executor.submit, nothing)

    def finish(self) -> None:
        """Wait until every job has run, and end the threads."""
        self._executor.shutdown(wait=True)


class BoundedExecutor(Executor):
    """The usual way to bound it: a semaphore, given back by a callback of the future."""

    def __init__(self, workers: int, places: int) -> None:
        super().__init__(workers)
        self._places = threading.BoundedSemaphore(workers + places)
        self.submit = self._submit

    def _submit(self) -> None:
        while not self._places.acquire(blocking=False):
            time.sleep(PAUSE)
        self._executor.submit(nothing).add_done_callback(self._release)

    def _release(self, _: Future[None]) -> None:
        self._places.release()


class Queue:
    """queue.Queue(maxsize) and threads that call what they get: bounded, and nothing else."""

    def __init__(self, workers: int, places: int) -> None:
        self._queue: queue.Queue[Callable[[], Any] | None] = queue.Queue(places)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self) -> None:
        """Submit one job that does nothing, as soon as there is a place."""
        while True:
            try:
                self._queue.put_nowait(nothing)
            except queue.Full:
                time.sleep(PAUSE)
            else:
                return

    def finish(self) -> None:
        """Wait until every job has run, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()


class Huey:
    """huey's MemoryHuey with its own consumer in this process: priorities, results, retries; pickles every call.

    Its consumer polls. The longest nap is set to 10 ms instead of 10 s, which no user would want to pay for at idle,
    so that naps do not count here. Its log lines are off, as are ours.
    """

    def __init__(self, workers: int) -> None:
        from huey import MemoryHuey

        logging.getLogger("huey").setLevel(logging.CRITICAL)
        self._huey = MemoryHuey("benchmark")
        self._task = self._huey.task()(nothing)
        self._consumer = self._huey.create_consumer(
            workers=workers, periodic=False, initial_delay=0.001, max_delay=0.01, check_worker_health=False
        )
        self._consumer.start()
        time.sleep(0.05)
        self.submit = self._task

    def finish(self) -> None:
        """Wait until every job has run, and end the threads."""
        while self._huey.pending_count():
            time.sleep(0.001)
        self._consumer.stop(graceful=True)


def huey_is_there() -> bool:
    """Whether huey is installed; its lines are left out otherwise."""
    return importlib.util.find_spec("huey") is not None
