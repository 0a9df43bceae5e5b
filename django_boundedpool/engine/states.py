"""Every state a job can be in, why it can end there, and the only source of legal moves.

The documentation's state table is built from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    """The state of one job. Members compare equal to their stored text."""

    description: str

    def __new__(cls, value: str, description: str = "") -> JobState:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    SUBMITTED = "submitted", "Holds a place inside the caller's open transaction; nothing runs before its commit."
    REJECTED = "rejected", "Refused at admission; never stored, counted by code."
    QUEUED = "queued", "Accepted, waiting for a worker or for the moment of its next attempt."
    RUNNING = "running", "A worker executes it."
    SUCCEEDED = "succeeded", "Its code returned; the result is stored."
    FAILED = "failed", "Its code failed for good; the error is stored."
    CANCELLED = "cancelled", "Stopped on request before its code ended normally."
    ABANDONED = "abandoned", "Accepted but given up by the pool: a drain ran out of time or its process was lost."
    HANDED_OVER = "handed_over", "Owned by a durable engine, which ends it."

    # That of the text: Enum's own is written in Python, and states are looked up several times per job.
    __hash__ = str.__hash__

    @property
    def terminal(self) -> bool:
        """Whether none of the job's code is still running and nothing will change any more."""
        return self in TERMINAL

    @property
    def stored(self) -> bool:
        """Whether a row can be in this state."""
        return self not in (JobState.SUBMITTED, JobState.REJECTED)


class Reason(StrEnum):
    """Why a job is in its terminal state; the codes are part of the contract and never change meaning."""

    __hash__ = str.__hash__

    NONE = ""
    ERROR = "error"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    RETRY_BUDGET = "retry_budget"
    TIMEOUT = "timeout"
    BAD_RESULT = "bad_result"
    USER = "user"
    OPERATOR = "operator"
    SHED = "shed"
    START_DEADLINE = "start_deadline"
    DISCONNECT = "disconnect"
    SHUTDOWN = "shutdown"
    DRAIN_DEADLINE = "drain_deadline"
    PROCESS_LOST = "process_lost"
    UNADOPTED = "unadopted"
    HANDOVER_LOST = "handover_lost"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.ABANDONED, JobState.REJECTED})

REASONS: Mapping[JobState, frozenset[Reason]] = {
    JobState.SUBMITTED: frozenset({Reason.NONE}),
    JobState.QUEUED: frozenset({Reason.NONE}),
    JobState.RUNNING: frozenset({Reason.NONE}),
    JobState.HANDED_OVER: frozenset({Reason.NONE}),
    JobState.SUCCEEDED: frozenset({Reason.NONE}),
    JobState.FAILED: frozenset(
        {Reason.ERROR, Reason.ATTEMPTS_EXHAUSTED, Reason.RETRY_BUDGET, Reason.TIMEOUT, Reason.BAD_RESULT}
    ),
    JobState.CANCELLED: frozenset(
        {Reason.USER, Reason.OPERATOR, Reason.SHED, Reason.START_DEADLINE, Reason.DISCONNECT, Reason.SHUTDOWN}
    ),
    JobState.ABANDONED: frozenset({Reason.DRAIN_DEADLINE, Reason.PROCESS_LOST, Reason.UNADOPTED, Reason.HANDOVER_LOST}),
    JobState.REJECTED: frozenset({Reason.NONE}),
}

MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.SUBMITTED: frozenset({JobState.QUEUED, JobState.REJECTED}),
    JobState.REJECTED: frozenset(),
    JobState.QUEUED: frozenset(
        # Failed: a retry whose deadline passes while it waits.
        {
            JobState.QUEUED,
            JobState.RUNNING,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.ABANDONED,
            JobState.HANDED_OVER,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.ABANDONED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.ABANDONED: frozenset(),
    JobState.HANDED_OVER: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.ABANDONED}),
}

LIVE = frozenset({JobState.QUEUED, JobState.RUNNING})

#: Every legal move with every reason it may have, for a look-up in one step.
LEGAL = frozenset((old, new, reason) for old, news in MOVES.items() for new in news for reason in REASONS[new])

# The members that every job meets, by a name of their own: finding one on its enum takes Python longer than anything
# that is done with it.
SUBMITTED, QUEUED, RUNNING, SUCCEEDED = JobState.SUBMITTED, JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED
NO_REASON, TIMED_OUT = Reason.NONE, Reason.TIMEOUT


class IllegalMove(RuntimeError):
    """A move that the state table does not contain: always a defect of the pool, never of the user."""


def check_move(old: JobState, new: JobState, reason: Reason = Reason.NONE) -> None:
    """Raise `IllegalMove` unless a job in `old` may go to `new` with `reason`."""
    if new not in MOVES[old]:
        raise IllegalMove(f"A job cannot move from {old.value!r} to {new.value!r}.")
    if reason not in REASONS[new]:
        raise IllegalMove(f"Reason {reason.value!r} does not belong to state {new.value!r}.")
