"""What a running job sees of the pool, and how its code is called."""

from __future__ import annotations

import inspect
import logging
import math
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.cache import caches
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone, translation

from .engine import payload
from .engine.errors import JobInterrupted
from .engine.pool import Pool
from .engine.record import JobRecord
from .engine.states import Reason
from .lifecycle import runtime

logger = logging.getLogger("django_boundedpool.jobs")

_current: ContextVar[JobContext | None] = ContextVar("boundedpool_job", default=None)

#: Longest stored progress message, in characters.
MESSAGE_LENGTH = 255


class JobContext:
    """One attempt of a job, from inside. Safe from any thread the job starts; worthless after the attempt.

    Attributes:
        job_id: the job's id.
        name: the registered name of the job.
        pool: the name of its pool.
        attempt: which start of its code this is, from 1.
        max_attempts: how many failures end it.
        owner_key: text of the owner's primary key, "" for nobody.
        correlation_id: id of what caused the job, "" if none was given.
    """

    def __init__(self, record: JobRecord, pool: Pool) -> None:
        self.job_id: UUID = record.id
        self.name = record.spec.name
        self.pool = record.spec.pool
        self.attempt = record.attempt
        self.max_attempts = record.max_attempts
        self.owner_key = record.owner_key
        self.correlation_id = record.correlation_id
        self._token = record.token
        self._record = record
        self._pool = pool
        self._outside = False
        self._ends = None if record.spec.timeout is None else record.started_mono + record.spec.timeout

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop, for any reason: a request, its time-out, a shutdown."""
        return self._token.fired

    @property
    def reason(self) -> Reason | None:
        """Why the job was asked to stop, or None."""
        return self._token.reason

    @property
    def deadline(self) -> datetime | None:
        """The moment of this attempt's time-out, or None."""
        left = self.remaining()
        return None if left is None else timezone.now() + timedelta(seconds=left)

    def remaining(self) -> float | None:
        """Return the seconds until this attempt's time-out (0 when it has passed), or None without one."""
        return None if self._ends is None else max(0.0, self._ends - self._pool.clock.monotonic())

    def check(self) -> None:
        """Raise `JobInterrupted` if the job was asked to stop; otherwise return at once."""
        self._token.check()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, but raise `JobInterrupted` at once when the job is asked to stop."""
        self._token.sleep(seconds)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the job is asked to stop, or at once if it was: to close a client or end a statement.

        It runs in a thread of its own, and what it raises is logged.
        """

        def call() -> None:
            try:
                callback()
            finally:
                if threading.current_thread().name == "boundedpool-cancel":
                    connections.close_all()  # nothing else ever would, and a connection pool would run dry

        self._token.on_fire(call)

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the job is.

        Arguments:
            fraction: from 0 to 1; what is outside counts as 0 or 1, with one warning in the log.
            message: plain text for the owner, at most 255 characters are kept.

        Cheap in a tight loop: only a few reports a second are stored.

        Raises:
            ValueError: `fraction` is no number.
        """
        try:
            done = min(1.0, max(0.0, fraction))
        except TypeError:
            done = math.nan
        if math.isnan(done) or fraction != fraction:  # only nan is not itself
            raise ValueError(f"progress({fraction!r}): give a number from 0 to 1.")
        if done != fraction and not self._outside:
            self._outside = True
            logger.warning("Job %s %s: progress(%r) counts as %g.", self.name, self.job_id, fraction, done)
        self._pool.report_progress(self._record, float(done), payload.printable(str(message), MESSAGE_LENGTH))

    def headers(self) -> dict[str, str]:
        """Return headers that tell a downstream service about this attempt."""
        headers = {"X-Job-Id": str(self.job_id), "X-Job-Attempt": str(self.attempt)}
        if (left := self.remaining()) is not None:
            headers["X-Job-Remaining-Seconds"] = f"{left:.3f}"
        if self.correlation_id:
            headers["X-Correlation-Id"] = self.correlation_id
        return headers


def current_job() -> JobContext | None:
    """Return the context of the job that runs in this thread, or None outside of one."""
    return _current.get()


def run(record: JobRecord) -> Any:
    """Call the code of a job and return its value: the runner of every pool."""
    active = runtime.current()
    context = JobContext(record, active.pools[record.spec.pool])
    text = record.payload
    if text is None:  # ended (given up, forfeited) between its start and this line
        raise JobInterrupted(record.token.reason or Reason.SHUTDOWN)
    args, kwargs = payload.decode(text)
    if record.spec.takes_context:
        args.insert(0, context)
    token = _current.set(context)
    try:
        # Inline jobs share the caller's thread, whose connections and language are the caller's business.
        if active.options.inline:
            return record.spec.function(*args, **kwargs)
        return _run_in_clean_thread(record.spec.function, args, kwargs)
    finally:
        _current.reset(token)


def _run_in_clean_thread(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Give a job the thread as a request would find it, and leave nothing of the job behind.

    Not a generator's context manager: that assigns to the exception which passes through, and some refuse it.
    """
    pid = os.getpid()
    reset_queries()
    close_old_connections()
    left_open: list[str] = []
    try:
        value = function(*args, **kwargs)
    finally:
        # A child that the job forked must not close the connections that it shares with its parent.
        if os.getpid() == pid:
            for tidy in (translation.deactivate, timezone.deactivate, caches.close_all, close_old_connections):
                try:
                    if tidy is close_old_connections:
                        left_open = _roll_back()
                    tidy()
                except Exception:
                    logger.exception("Tidying up after a job failed.")  # its outcome stands
    if left_open:
        raise RuntimeError(
            f"The job returned with a transaction open on database {', '.join(left_open)}; it was rolled back."
        )
    return value


def _roll_back() -> list[str]:
    """End what a job left open, and return where: a connection closed inside an atomic block stays unusable."""
    left = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    for connection in left:
        logger.error("A job left a transaction open on database %r; it is rolled back.", connection.alias)
        del connections[connection.alias]
        connection.close()
    return [connection.alias for connection in left]


def bind(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:  # noqa: FBT001 - one internal caller
    """Return the signature that a submit's arguments must fit."""
    signature = inspect.signature(function)
    if takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature
