"""A worker thread: takes jobs from its pool one after another until the pool is closed."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .record import JobRecord

if TYPE_CHECKING:
    from .attempts import Attempts

logger = logging.getLogger("django_boundedpool.engine")

#: Runs the code of a job and returns its value; supplied by the layer that knows contexts and frameworks.
Runner = Callable[[JobRecord], Any]


class Worker(threading.Thread):
    """One daemon thread of a pool.

    It starts from an empty context and keeps it: a copy of the context of whoever submitted the first job would carry
    that request's caches, language and time zone into every later job.
    """

    def __init__(self, pool: Attempts, runner: Runner, number: int) -> None:
        super().__init__(name=f"boundedpool-{pool.config.name}-{number}", daemon=True)
        self.pool = pool
        self.runner = runner
        # Held while the worker may not run; an idle worker parks by acquiring it, a waker releases it.
        self.parked = threading.Lock()
        self.parked.acquire()

    def run(self) -> None:
        """Work until the pool says that there is nothing more to come."""
        contextvars.Context().run(self._loop)

    def _loop(self) -> None:
        pid = os.getpid()
        while True:
            record = self.pool.next_job(self)
            if record is None:
                return
            execute(self.pool, self.runner, record)
            if os.getpid() != pid:
                os._exit(1)  # a job forked and its child came back here: the queue is its parent's
            # An idle worker must not keep the last job's arguments, value and frames alive.
            del record


def execute(pool: Attempts, runner: Runner, record: JobRecord) -> None:
    """Run one attempt and report it. Nothing that the job raises leaves this function."""
    try:
        try:
            value = runner(record)
        except BaseException as error:  # noqa: BLE001 - SystemExit and its kin must not end the worker
            pool.attempt_raised(record, error)
            _let_go(record, error)
        else:
            pool.attempt_returned(record, value)
    except BaseException:
        # A defect of ours, or memory is exhausted. The job still gets its one terminal state and gives its place back.
        logger.exception("Job %s could not be concluded properly.", record.id)
        pool.attempt_broke(record)


def _let_go(record: JobRecord, error: BaseException) -> None:
    """Keep the lines of an error's traceback for `result()`, but none of the locals: they may be large.

    The first frame is `execute`'s own, which holds the record and would close a cycle.
    """
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if record.exception is error:
        record.exception_trace = error.__traceback__
