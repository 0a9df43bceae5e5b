"""A job from outside: look, wait, cancel."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation

from .context import current_job
from .engine import payload
from .engine.errors import JobAbandoned, JobCancelled, JobFailed, JobNotFound, JobTimedOut, WaitingWouldDeadlock
from .engine.pool import CancelAnswer, Pool
from .engine.record import JobRecord
from .engine.states import JobState, Reason
from .lifecycle import runtime
from .models import KEY_LENGTH, Job
from .store import writes

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

    def __init__(self, job_id: UUID, *, record: JobRecord | None = None, row: Job | None = None) -> None:
        self.id = job_id
        self.created = True
        self._record = record
        self._row = row

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
    def of_row(cls, row: Job) -> JobHandle:
        """Return the handle of a loaded row."""
        return cls(row.pk, record=_live_record(row.pool, row.pk), row=row)

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
        self._row = load(self.id)
        if self._record is not None and self._record.state.terminal and self._row.terminal:
            # The row may say more: another process may have given the job up.
            self._record = self._record if self._row.state == self._record.state.value else None
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
        if self._record is not None and self._record.state.terminal and self._record.state is not JobState.REJECTED:
            return "finished"
        row = load(self.id)
        asker = owner_key(by)
        reason = Reason.OPERATOR if asker and asker != row.owner_key else Reason.USER
        if row.terminal:
            return "finished"
        asked = writes.request_cancel(self.id, reason, asker, _alias())
        for pool in runtime.current().pools.values():
            answer = pool.cancel(self.id, reason)
            if answer is not None:
                return answer
        record = self._record
        if record is not None and record.state.terminal:
            # It ended in between; by this very request, if the housekeeper read it from the row first.
            return "cancelled" if asked and record.state is JobState.CANCELLED else "finished"
        if asked:
            return "requested"
        self.refresh()
        return "finished" if self.state.terminal else "requested"

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return what the job's code returned, as JSON values.

        Arguments:
            timeout: longest wait in seconds; None waits without a limit.

        Raises:
            TimeoutError: it is not over within `timeout`; the job goes on.
            Exception: what the job's code raised, in the process that ran it.
            JobFailed, JobTimedOut: it failed, elsewhere or not by an exception.
            JobCancelled, JobAbandoned: it did not end by itself.
            WaitingWouldDeadlock: from inside a worker of the same pool, or before one's own transaction commits.
        """
        record = self._record
        if record is None or (record.state.terminal and record.state is JobState.REJECTED):
            return self._result_of_row(timeout)
        if not record.state.terminal:
            self._wait(record, timeout)
        if record.state is JobState.REJECTED:
            raise JobNotFound(f"Job {self.id} was never accepted: its transaction was rolled back.")
        if record.state is JobState.SUCCEEDED:
            return payload.decode(payload.encode(record.result, "the result"))
        if record.state is JobState.FAILED and record.reason is not Reason.TIMEOUT:
            error = record.exception
            if isinstance(error, Exception) and record.reason is not Reason.BAD_RESULT:
                raise error.with_traceback(record.exception_trace)
        raise _ended(record.state, record.reason, record.error, record.attempt)

    def _wait(self, record: JobRecord, timeout: float | None) -> None:
        pool = runtime.current().pools[record.spec.pool]
        here = current_job()
        if here is not None and here.pool == record.spec.pool:
            raise WaitingWouldDeadlock(
                f"Job {here.job_id} waits for {self.id} in its own pool {here.pool!r}: with every worker waiting like "
                "this none would be left to run it. Use another pool, or let the second job report by itself."
            )
        event = pool.done_event(record)
        if record.state is JobState.SUBMITTED:
            raise WaitingWouldDeadlock(
                f"Job {self.id} starts when the surrounding transaction commits; waiting inside it would never end."
            )
        if not event.wait(timeout):
            raise TimeoutError(f"Job {self.id} is {record.state.value} after {timeout:g} s.")

    def _result_of_row(self, timeout: float | None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK
        here = current_job()
        while True:
            row = self._row = load(self.id)
            if row.terminal:
                break
            if here is not None and here.pool == row.pool:
                raise WaitingWouldDeadlock(f"Job {here.job_id} waits for {self.id} in its own pool {here.pool!r}.")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"Job {self.id} is {row.state} after {timeout:g} s.")
            time.sleep(pause if left is None else min(pause, left))
            pause = min(LAST_LOOK, pause * 2)
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
        return Job.objects.using(_alias()).get(pk=key)
    except (Job.DoesNotExist, ValueError, AttributeError, TypeError):
        raise JobNotFound(f"There is no job {job_id}.") from None


def _alias() -> str:
    return runtime.current().alias


def _live_record(pool: str, job_id: UUID) -> JobRecord | None:
    found: Pool | None = runtime.current().pools.get(pool)
    return found.find(job_id) if found is not None else None


def _ended(state: JobState, reason: Reason, error: dict[str, str] | None, attempts: int) -> Exception:
    details = error or {}
    if state is JobState.CANCELLED:
        return JobCancelled(f"The job was cancelled ({reason.value}).", reason=reason)
    if state is JobState.ABANDONED:
        return JobAbandoned(f"The job was given up ({reason.value}).", reason=reason)
    kind = JobTimedOut if reason is Reason.TIMEOUT else JobFailed
    return kind(details.get("message", reason.value), type=details.get("type", ""), attempts=attempts)
