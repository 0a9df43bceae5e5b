"""What a running job sees of the pool, and how its code is called."""

from __future__ import annotations

import asyncio
import contextlib
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

from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.utils import timezone

from . import carry, surroundings
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
    """One attempt of a job, from inside. Safe from any thread the job starts; worthless after the attempt."""

    __slots__ = ("__weakref__", "_attempt", "_outside", "_pool", "_record")

    def __init__(self, record: JobRecord, pool: Pool) -> None:
        self._record = record
        self._pool = pool
        self._attempt = record.attempt
        self._outside = False

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self._record.id

    @property
    def name(self) -> str:
        """The registered name of the job."""
        return self._record.spec.name

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._record.spec.pool

    @property
    def attempt(self) -> int:
        """Which start of its code this is, from 1."""
        return self._attempt

    @property
    def max_attempts(self) -> int:
        """How many failures end it."""
        return self._record.max_attempts

    @property
    def owner_key(self) -> str:
        """Text of the owner's primary key, "" for nobody."""
        return self._record.owner_key

    @property
    def correlation_id(self) -> str:
        """Id of what caused the job, "" if none was given."""
        return self._record.correlation_id

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop, for any reason: a request, its time-out, a shutdown."""
        return self.reason is not None

    @property
    def reason(self) -> Reason | None:
        """Why the job was asked to stop, or None."""
        return self._record.stop_reason if self._record.attempt == self._attempt else None

    @property
    def deadline(self) -> datetime | None:
        """The moment at which this attempt must be over, by its time-out or the job's own deadline, or None."""
        left = self.remaining()
        return None if left is None else timezone.now() + timedelta(seconds=left)

    def remaining(self) -> float | None:
        """Return the seconds until `deadline` (0 when it has passed), or None without one."""
        ends = self._record.ends_mono
        return None if ends is None else max(0.0, ends - self._pool.clock.monotonic())

    def check(self) -> None:
        """Raise `JobInterrupted` if the job was asked to stop; otherwise return at once."""
        if (reason := self.reason) is not None:
            raise JobInterrupted(reason)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, but raise `JobInterrupted` at once when the job is asked to stop.

        Raises:
            SynchronousOnlyOperation: on a running event loop, which it would block; await `asyncio.sleep` there.
        """
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise SynchronousOnlyOperation(
                "context.sleep() would block the event loop; use `await asyncio.sleep(...)`, which a request to stop "
                "interrupts as well."
            )
        self._record.token.sleep(seconds)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the job is asked to stop, or at once if it was: to close a client or end a statement.

        It runs in a thread of its own, but in this one if the job was asked already; what it raises is logged.
        """

        def call() -> None:
            try:
                callback()
            finally:
                if threading.current_thread().name == "boundedpool-cancel":
                    connections.close_all()  # nothing else ever would, and a connection pool would run dry

        self._record.token.on_fire(call)

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
        if parent := (self._record.carry or {}).get("traceparent"):
            headers["traceparent"] = parent
        return headers


def current_job() -> JobContext | None:
    """Return the context of the job that runs here, or None outside of one.

    Works in the job's thread or task, and in the tasks and threads that it starts with asyncio or asgiref.
    """
    return _current.get()


def current_key() -> int | None:
    """Return the id of the job that runs here as an integer, or None outside of one."""
    context = _current.get()
    return None if context is None else context._record.key


def run(record: JobRecord) -> Any:
    """Call the code of a job in this thread and return its value: the runner of every pool."""
    active = runtime.current()
    context, args, kwargs = _prepared(record, active)
    if active.options.inline:
        # In the caller's thread, whose connections and language are the caller's business.
        function = record.spec.function
        if inspect.iscoroutinefunction(function):
            function = async_to_sync(_stoppable(function, record))  # its `sync_to_async` comes back to this thread
        return surroundings.call_inline(_call, context, function, args, kwargs)
    return surroundings.call(_call, context, record.spec.function, args, kwargs)


def _stoppable(function: Callable[..., Any], record: JobRecord) -> Callable[..., Any]:
    """Return `function` as a coroutine function whose task is cancelled when the job is asked to stop."""

    async def stoppable(*args: Any, **kwargs: Any) -> Any:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended since
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)

        record.token.interrupt_by(stop)
        return await function(*args, **kwargs)

    return stoppable


async def arun(record: JobRecord) -> Any:
    """Await the code of an async job on this event loop and return its value.

    The task must have been created with an empty context, `loop.create_task(arun(record), context=Context())`:
    otherwise the job finds what its creator has set.

    When cancelled: so is the job's code; this ends when that has ended, with what it runs through `sync_to_async`.
    """
    active = runtime.current()
    context, args, kwargs = _prepared(record, active)
    if active.options.inline:
        # A task of its own: what the job sets must not reach the caller, on whose connections it runs.
        return await asyncio.create_task(_acall(context, args, kwargs))
    return await surroundings.acall(_acall, context, args, kwargs)


def _prepared(record: JobRecord, active: runtime.Runtime) -> tuple[JobContext, list[Any], dict[str, Any]]:
    context = JobContext(record, active.pools[record.spec.pool])
    text = record.payload
    if text is None:  # ended (given up, forfeited) between its start and this line
        raise JobInterrupted(record.stop_reason or Reason.SHUTDOWN)
    # Reading JSON is a third of what a job without arguments costs here.
    args, kwargs = payload.decode(text) if text != payload.NO_ARGUMENTS else ([], {})
    if record.spec.takes_context:
        args.insert(0, context)
    return context, args, kwargs


def _call(context: JobContext, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    _current.set(context)  # never reset: this context ends with the job
    carried = context._record.carry
    if not carried:
        return function(*args, **kwargs)
    pid = os.getpid()
    undos = carry.restore(carried, context._pool.config.carry)
    try:
        return function(*args, **kwargs)
    finally:
        if os.getpid() == pid:  # else this is a child that the job forked
            carry.undo(undos)


async def _acall(context: JobContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
    _current.set(context)
    record = context._record
    undos = carry.restore(record.carry, context._pool.config.carry)
    try:
        return await record.spec.function(*args, **kwargs)
    finally:
        carry.undo(undos)


def bind(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:  # noqa: FBT001 - one internal caller
    """Return the signature that a submit's arguments must fit."""
    signature = inspect.signature(function)
    if takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature
