"""A job from outside: look, wait, cancel."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from .context import current_job
from .engine import payload
from .engine.config import seconds
from .engine.errors import JobAbandoned, JobCancelled, JobFailed, JobNotFound, JobTimedOut, WaitingWouldDeadlock
from .engine.pool import CancelAnswer, Pool
from .engine.record import JobRecord
from .engine.states import JobState, Reason
from .lifecycle import runtime
from .models import KEY_LENGTH, Job
from .store import memory, writes

OnDisconnect = Literal["detach", "cancel", "cancel_if_queued"]

#: Time between two looks at a job of another process: soon at first, then seldom. Seconds.
FIRST_LOOK, LAST_LOOK = 0.05, 1.0


def owner_key(owner: Any) -> str:
    """Return the text under which jobs of `owner` are stored.

    Arguments:
        owner: a user, the primary key of one, or None for nobody. An anonymous user is nobody.

    Raises:
        ValueError: the key is longer than 191 characters, or the user is not saved yet.
        SynchronousOnlyOperation: `request.user`, not loaded yet, on a running event loop.
    """
    try:
        if owner is None or getattr(owner, "is_anonymous", False):
            return ""
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(
            "request.user cannot be loaded on a running event loop; use owner=await request.auser()."
        ) from None
    if hasattr(owner, "_meta"):
        if owner.pk is None:
            raise ValueError("The owner has no primary key yet: save it first.")
        owner = owner.pk
    key = payload.printable(str(owner), KEY_LENGTH + 1)
    if len(key) > KEY_LENGTH:
        raise ValueError(f"The owner's key has more than {KEY_LENGTH} characters.")
    return key


class JobHandle:
    """One job. Obtained from `submit` or `JobHandle.get`; safe from any thread.

    Attributes:
        id: the job's id, a UUID of version 7.
        created: whether this submit made the job.
    """

    def __init__(self, *, record: JobRecord | None = None, row: Job | None = None) -> None:
        self.created = True
        self._record = record
        self._row = row

    @cached_property
    def id(self) -> UUID:
        """The job's id."""
        if self._record is not None:
            return self._record.id
        assert self._row is not None  # noqa: S101 - one of the two is always there
        return self._row.pk

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.state.value}>"

    @classmethod
    def get(cls, job_id: UUID | str) -> JobHandle:
        """Load the job with this id, without asking who may see it.

        Raises:
            JobNotFound: there is no such job, or its retention has passed.
        """
        return cls.of_row(load(job_id))

    @classmethod
    async def aget(cls, job_id: UUID | str) -> JobHandle:
        """Do as `get` without blocking the event loop."""
        return cls.of_row(await sync_to_async(load)(job_id))

    @classmethod
    def of_row(cls, row: Job) -> JobHandle:
        """Return the handle of a loaded row."""
        return cls(record=_known_record(row), row=row)

    @property
    def state(self) -> JobState:
        """The state: of this moment for a job of this process, else as of the last `refresh`."""
        if self._record is not None:
            return self._record.state
        assert self._row is not None  # noqa: S101 - one of the two is always there
        # What a newer version wrote reads as a job that is not over.
        return self._row.known_state or JobState.RUNNING

    def refresh(self) -> JobHandle:
        """Read the row again and return this handle.

        Raises:
            JobNotFound: the row is gone, or its transaction was rolled back.
        """
        if self._record is not None and self._record.state is JobState.SUBMITTED and _unstored(self._record):
            return self  # nobody else can see it yet
        self._row = load(self.id)
        if self._record is not None and self._record.state.terminal and self._row.terminal:
            # The row may say more: another process may have given the job up.
            self._record = self._record if self._row.state == self._record.state.value else None
        return self

    async def arefresh(self) -> JobHandle:
        """Do as `refresh` without blocking the event loop."""
        await sync_to_async(self.refresh)()
        return self

    def cancel(self, by: object = None) -> CancelAnswer:
        """Ask the job to stop and return at once.

        Returns:
            "cancelled": it was waiting; it is over and never ran.
            "requested": it is running, here or in another process. It ends when its code next checks or returns;
                until then its worker stays occupied.
            "finished": it was over already.

        Arguments:
            by: the user who asks, or None; kept on the row. Somebody other than the owner counts as an operator.

        Raises:
            JobNotFound: there is no such job.
        """
        record = self._record
        if record is not None and record.state.terminal and record.state is not JobState.REJECTED:
            return "finished"
        active = runtime.current()
        asker = owner_key(by)
        if record is not None and _unstored(record):
            if record.state is JobState.REJECTED:
                raise _never_accepted(record)
            return active.pools[record.spec.pool].cancel(self.id, _asked_by(asker, record.owner_key)) or "finished"
        row = load(self.id)
        if row.terminal:
            return "finished"
        reason = _asked_by(asker, row.owner_key)
        asked = writes.request_cancel(self.id, reason, asker, active.alias)
        for pool in active.pools.values():
            answer = pool.cancel(self.id, reason)
            if answer is not None:
                return answer
        if record is not None and record.state.terminal:
            # It ended in between; by this very request, if the housekeeper read it from the row first.
            return "cancelled" if asked and record.state is JobState.CANCELLED else "finished"
        if asked:
            return "requested"
        self.refresh()
        return "finished" if self.state.terminal else "requested"

    async def acancel(self, by: object = None) -> CancelAnswer:
        """Do as `cancel` without blocking the event loop."""
        return await sync_to_async(self.cancel)(by)

    def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the end and return what the job's code returned, as JSON values.

        Arguments:
            timeout: longest wait in seconds; None waits without a limit.

        Raises:
            TimeoutError: it is not over within `timeout`; the job goes on.
            Exception: what the job's code raised, in the process that ran it.
            JobFailed, JobTimedOut: it failed, elsewhere or not by an exception.
            JobCancelled, JobAbandoned: it did not end by itself.
            WaitingWouldDeadlock: from inside a worker of the same pool, or before one's own transaction commits.
            SynchronousOnlyOperation: called on a running event loop.
        """
        _refuse_event_loop()
        limit = _limit(timeout)
        record = self._record
        try:
            if record is None or record.state is JobState.REJECTED:
                return self._result_of_row(limit)
            if not record.state.terminal:
                self._wait(record, limit)
            return _outcome(record)
        finally:
            # The job's own error is kept, and its traceback would keep this frame: together they would be a cycle.
            del self, record

    async def aresult(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - part of the contract, as in `result`
        on_disconnect: OnDisconnect = "detach",
    ) -> Any:
        """Do as `result` without blocking the event loop.

        Arguments:
            timeout: longest wait in seconds; None waits without a limit.
            on_disconnect: what becomes of the job when the waiting task is cancelled, as it is when a client goes
                away: "detach" lets it go on, "cancel" asks it to stop, "cancel_if_queued" cancels it unless it has
                begun. A job of another process is not cancelled by the latter: whether it has begun is known there.

        Raises:
            What `result` raises.

        When cancelled: does what `on_disconnect` says and ends at once; nothing of the wait is left.
        """
        if on_disconnect not in ("detach", "cancel", "cancel_if_queued"):
            raise ValueError(f"on_disconnect={on_disconnect!r}: give 'detach', 'cancel' or 'cancel_if_queued'.")
        limit = _limit(timeout)
        record = self._record
        try:
            if record is None or record.state is JobState.REJECTED:
                return await self._aresult_of_row(limit)
            if not record.state.terminal:
                await self._await(record, limit)
            return _outcome(record)
        except asyncio.CancelledError:
            self._disconnect(on_disconnect)
            raise
        finally:
            del self, record

    def _wait(self, record: JobRecord, limit: float | None) -> None:
        pool = self._pool_to_wait_for(record)
        event = threading.Event()
        pool.when_over(record, event.set)
        try:
            if not event.wait(None if limit is None else min(limit, threading.TIMEOUT_MAX)):
                raise self._not_over(limit)
        finally:
            pool.not_when_over(record, event.set)

    async def _await(self, record: JobRecord, limit: float | None) -> None:
        pool = self._pool_to_wait_for(record)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def set_over() -> None:
            if not over.done():
                over.set_result(None)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(set_over)
            except RuntimeError:
                pass  # that loop is closed: nobody waits any more

        pool.when_over(record, wake)
        try:
            done, _ = await asyncio.wait([over], timeout=limit)
        finally:
            pool.not_when_over(record, wake)
        if not done:
            raise self._not_over(limit)

    def _not_over(self, limit: float | None) -> TimeoutError:
        return TimeoutError(f"Job {self.id} is {self.state.value} after {limit or 0.0:g} s.")

    async def _aresult_of_row(self, limit: float | None) -> Any:
        deadline = None if limit is None else time.monotonic() + limit
        pause = FIRST_LOOK
        look = sync_to_async(self._look_at_row)
        while not await look():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._not_over(limit)
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(LAST_LOOK, pause * 2)
        return self._outcome_of_row()

    def _disconnect(self, policy: OnDisconnect) -> None:
        """Do what `on_disconnect` says, for a job of this process or by its row."""
        if policy == "detach":
            return
        active, record = runtime.current(), self._record
        if record is None:
            if policy == "cancel":
                active.disconnects.cancel(self.id)
        elif not record.state.terminal:
            pool = active.pools.get(record.spec.pool)
            begun = record.attempt > 0  # a job that waits for its retry is queued as well
            if pool is not None and not begun and pool.cancel_if_queued(self.id, Reason.DISCONNECT):
                return
            if policy == "cancel":
                active.disconnects.cancel(self.id, record)

    def _pool_to_wait_for(self, record: JobRecord) -> Pool:
        _refuse_deadlock(self.id, record.spec.pool)
        if record.state is JobState.SUBMITTED:
            raise WaitingWouldDeadlock(
                f"Job {self.id} starts when the surrounding transaction commits; waiting inside it would never end."
            )
        return runtime.current().pools[record.spec.pool]

    def _look_at_row(self) -> bool:
        """Load the row; whether the job is over."""
        row = self._row = load(self.id)
        if not row.terminal:
            _refuse_deadlock(self.id, row.pool)
        return row.terminal

    def _result_of_row(self, limit: float | None) -> Any:
        deadline = None if limit is None else time.monotonic() + limit
        pause = FIRST_LOOK
        while not self._look_at_row():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._not_over(limit)
            time.sleep(pause if left is None else min(pause, left))
            pause = min(LAST_LOOK, pause * 2)
        return self._outcome_of_row()

    def _outcome_of_row(self) -> Any:
        row = self._row
        assert row is not None  # noqa: S101 - just loaded
        if row.state == JobState.SUCCEEDED.value:
            return row.result
        reason = Reason(row.reason) if row.reason in Reason._value2member_map_ else Reason.NONE
        raise _ended(JobState(row.state), reason, row.error, row.attempt)


def load(job_id: UUID | str) -> Job:
    """Return the row of a job from the database that it is written to.

    Raises:
        JobNotFound: there is none, or `job_id` is no id.
    """
    try:
        key = job_id if isinstance(job_id, UUID) else UUID(job_id)
    except (ValueError, AttributeError, TypeError):
        raise JobNotFound(f"There is no job {job_id}.") from None
    active = runtime.current()
    if active.memories and (record := active.find(key)) is not None and record.state is not JobState.SUBMITTED:
        return memory.row(record, *active.pools[record.spec.pool].locked(record, memory.pictures))
    if len(active.memories) == len(active.pools):
        raise JobNotFound(f"There is no job {job_id}.")
    try:
        return Job.objects.using(active.alias).get(pk=key)
    except Job.DoesNotExist:
        raise JobNotFound(f"There is no job {job_id}.") from None


def _known_record(row: Job) -> JobRecord | None:
    """Return the record of a job that this process runs, or has run without a row."""
    active = runtime.current()
    if row.persist == "memory":
        return active.find(row.pk)
    pool = active.pools.get(row.pool)
    return pool.find(row.pk) if pool is not None else None


def _unstored(record: JobRecord) -> bool:
    return record.spec.pool in runtime.current().memories


def _asked_by(asker: str, owner: str) -> Reason:
    return Reason.OPERATOR if asker and asker != owner else Reason.USER


def _limit(timeout: float | timedelta | None) -> float | None:
    """Return a limit of a wait in seconds, or None without one."""
    return None if timeout is None else max(0.0, seconds(timeout))


def _refuse_deadlock(job_id: UUID, pool: str) -> None:
    here = current_job()
    if here is not None and here.pool == pool:
        raise WaitingWouldDeadlock(
            f"Job {here.job_id} waits for {job_id} in its own pool {here.pool!r}: with every worker waiting like "
            "this none would be left to run it. Use another pool, or let the second job report by itself."
        )


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation("result() would block the event loop; use `await handle.aresult()`.")


def _outcome(record: JobRecord) -> Any:
    error = record.exception
    try:
        if record.state is JobState.REJECTED:
            raise _never_accepted(record)
        if record.state is JobState.SUCCEEDED:
            return payload.decode(payload.encode(record.result, "the result"))
        if record.state is JobState.FAILED and record.reason not in (Reason.TIMEOUT, Reason.BAD_RESULT):
            if isinstance(error, Exception):
                raise error.with_traceback(record.exception_trace)
        raise _ended(record.state, record.reason, record.error, record.attempt)
    finally:
        del record, error  # see `result`


def _never_accepted(record: JobRecord) -> JobNotFound:
    return JobNotFound(f"Job {record.id} was never accepted: its transaction was rolled back.")


def _ended(state: JobState, reason: Reason, error: dict[str, str] | None, attempts: int) -> Exception:
    details = error or {}
    if state is JobState.CANCELLED:
        return JobCancelled(f"The job was cancelled ({reason.value}).", reason=reason)
    if state is JobState.ABANDONED:
        return JobAbandoned(f"The job was given up ({reason.value}).", reason=reason)
    kind = JobTimedOut if reason is Reason.TIMEOUT else JobFailed
    return kind(details.get("message", reason.value), type=details.get("type", ""), attempts=attempts)
