"""A worker thread: takes jobs from its pool one after another until the pool is closed."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .record import JobRecord

if TYPE_CHECKING:
    from .attempts import Attempts

logger = logging.getLogger("django_boundedpool.engine")

#: How many forks lie between the first process and this one. Cheaper to read than the process id.
forks = 0


def _forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)

#: Runs the code of a job and returns its value; supplied by the layer that knows contexts and frameworks.
Runner = Callable[[JobRecord], Any]
#: Makes the coroutine of an async job.
AsyncRunner = Callable[[JobRecord], Coroutine[Any, Any, Any]]


class Runners(NamedTuple):
    """How the layer above calls the code of jobs, and knows it again."""

    run: Runner
    arun: AsyncRunner
    #: Returns the job (its id as an integer) whose code calls, or None.
    here: Callable[[], int | None]


class Flight(Protocol):
    """A coroutine on its way."""

    def cancel(self) -> None:
        """Cancel it at its next await. Safe from any thread, harmless when it is over."""
        ...


class LoopLane(Protocol):
    """What a pool needs of the event loop."""

    thread: threading.Thread | None

    def start(self) -> None:
        """Start the thread, once; RuntimeError if the system gives none."""
        ...

    def launch(
        self,
        begin: Callable[[], Coroutine[Any, Any, Any]],
        done: Callable[[object, BaseException | None], object],
    ) -> Flight:
        """Run a coroutine, and call `done` with its value or error."""
        ...


class Worker(threading.Thread):
    """One daemon thread of a pool.

    It starts from an empty context and keeps it: a copy of the context of whoever submitted the first job would carry
    that request's caches, language and time zone into every later job.
    """

    def __init__(self, pool: Attempts, number: int) -> None:
        super().__init__(name=f"boundedpool-{pool.config.name}-{number}", daemon=True)
        self.pool = pool
        #: Whether the code of a job is running: what this thread has open belongs to it then.
        self.in_code = False
        #: The job that it was handed while it was parked: started, and to be run at once.
        self.handed: JobRecord | None = None
        # Held while the worker may not run; an idle worker parks by acquiring it, a waker releases it.
        self.parked = threading.Lock()
        self.parked.acquire()

    def run(self) -> None:
        """Work until the pool says that there is nothing more to come."""
        try:
            contextvars.Context().run(self._loop)
        except BaseException:
            logger.exception("Worker %s died; another one takes its place.", self.name)
            self.pool.worker_died(self)

    def _loop(self) -> None:
        pool, runner = self.pool, self.pool.runner
        while (record := pool.next_job(self)) is not None:
            while record is not None:
                record = execute(pool, runner, record, self)


def execute(pool: Attempts, runner: Runner, record: JobRecord, worker: Worker | None = None) -> JobRecord | None:
    """Run one attempt and report it; return what `worker` is to run next. Nothing that the job raises leaves it."""
    following: JobRecord | None = None
    here = forks
    if worker is not None:
        worker.in_code = True
    try:
        try:
            value = runner(record)
        except BaseException as error:  # noqa: BLE001 - SystemExit and its kin must not end the worker
            _left_code(worker, here)
            trace = error.__traceback__
            # This frame holds the record and would close a cycle. Before anybody who waits may see the error.
            # By method: a frozen dataclass refuses the assignment.
            BaseException.with_traceback(error, trace.tb_next if trace is not None else None)
            following = pool.attempt_raised(record, error, worker)
            del trace
            forget_locals(error)
        else:
            if worker is not None:
                if forks != here:
                    _left_code(worker, here)
                worker.in_code = False
            following = pool.attempt_returned(record, value, worker)
    except BaseException:
        # A defect of ours, or memory is exhausted. The job still gets its one terminal state and gives its place back.
        logger.exception("Job %s could not be concluded properly.", record.id)
        pool.attempt_broke(record)
    finally:
        del record  # the frames that a kept traceback holds know this one by f_back
    return following


def forks_so_far() -> int:
    """Return how many forks lie between the first process and this one."""
    return forks


def forget_locals(error: BaseException) -> None:
    """Let go what the frames of an error, of its causes and of the errors of a group hold.

    Its lines stay for `result()`, but none of the locals, which may be large.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        found = errors.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        traceback.clear_frames(found.__traceback__)
        errors += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            errors += found.exceptions


def _left_code(worker: Worker | None, before: int) -> None:
    if worker is not None:
        if forks != before:
            os._exit(1)  # the job forked and its child came back here: job and queue are its parent's
        worker.in_code = False
