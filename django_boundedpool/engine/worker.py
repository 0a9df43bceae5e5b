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
        #: Whether the code of a job is running: what this thread has open belongs to it then.
        self.in_code = False
        # Held while the worker may not run; an idle worker parks by acquiring it, a waker releases it.
        self.parked = threading.Lock()
        self.parked.acquire()

    def run(self) -> None:
        """Work until the pool says that there is nothing more to come."""
        contextvars.Context().run(self._loop)

    def _loop(self) -> None:
        while True:
            record = self.pool.next_job(self)
            if record is None:
                return
            execute(self.pool, self._run, record)
            # An idle worker must not keep the last job's arguments, value and frames alive.
            del record

    def _run(self, record: JobRecord) -> Any:
        pid = os.getpid()
        self.in_code = True
        try:
            return self.runner(record)
        finally:
            if os.getpid() != pid:
                os._exit(1)  # the job forked and its child came back here: job and queue are its parent's
            self.in_code = False


def execute(pool: Attempts, runner: Runner, record: JobRecord) -> None:
    """Run one attempt and report it. Nothing that the job raises leaves this function."""
    try:
        try:
            value = runner(record)
        except BaseException as error:  # noqa: BLE001 - SystemExit and its kin must not end the worker
            trace = error.__traceback__
            # This frame holds the record and would close a cycle. Before anybody who waits may see the error.
            # By method: a frozen dataclass refuses the assignment.
            BaseException.with_traceback(error, trace.tb_next if trace is not None else None)
            pool.attempt_raised(record, error)
            # The lines stay for `result()`, but none of the locals: they may be large.
            traceback.clear_frames(trace)
            del trace
        else:
            pool.attempt_returned(record, value)
    except BaseException:
        # A defect of ours, or memory is exhausted. The job still gets its one terminal state and gives its place back.
        logger.exception("Job %s could not be concluded properly.", record.id)
        pool.attempt_broke(record)
    finally:
        del record  # the frames that a kept traceback holds know this one by f_back
