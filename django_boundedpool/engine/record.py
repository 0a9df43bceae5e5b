"""One accepted job inside its process, and the immutable picture of it that goes to the store."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any
from uuid import UUID

from . import errors
from .cancellation import CancelToken
from .clock import moment
from .payload import printable
from .spec import JobSpec
from .states import LEGAL, LIVE, NO_REASON, QUEUED, RUNNING, SUBMITTED, SUCCEEDED, JobState, Reason, check_move

#: What one attempt came to: its number, start and end (seconds since the epoch), run time, outcome and error.
Attempt = tuple[int, float, float, float, str, Mapping[str, str] | None]

#: Attempts kept in full; the first ones and the last ones tell the story.
MAX_ATTEMPTS_KEPT = 20

# Guards the making of tokens. Taken under a pool's lock too, and nothing is done under it.
_making = threading.Lock()


def _forked() -> None:
    global _making
    _making = threading.Lock()  # another thread of the parent may have had it


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The owner-written columns of a job at one version. Safe to share between threads."""

    id: UUID
    #: Boot id under which the row is inserted; it stays, even when the process takes a new one.
    process: UUID
    fence: int
    version: int
    values: Mapping[str, Any]


def describe_error(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of `error` as storable text, even when it cannot be printed."""
    kind = type(error)
    # Our own errors are known by the path from which they are imported.
    module = "django_boundedpool" if kind.__module__ == errors.__name__ else kind.__module__
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - whatever a broken __str__ raises must not hide the job's failure
        message = f"<unprintable: str() raised {type(broken).__name__}>"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001 - as above: formatting prints the whole chain of causes
        trace = f"<unprintable traceback: {type(broken).__name__}>"
    return {"type": printable(name, 255), "message": printable(message, 2000), "traceback": printable(trace, 20_000)}


class JobRecord:
    """The pool's mutable record of one job. The pool's lock protects every field but the token.

    Places and bytes are held by the record: it is counted from `reserve` to its terminal state, on every path.
    Moments are seconds since the epoch, those called `mono` seconds on the monotonic clock; dates are made when
    somebody reads them.
    """

    # What every job has is in slots; what few have is found on the class until it is set, and costs them nothing.
    __slots__ = (
        "__dict__",
        "attempt",
        "ends_mono",
        "finished",
        "key",
        "look_mono",
        "made_token",
        "owner_key",
        "payload",
        "payload_bytes",
        "process",
        "queued_mono",
        "ran",
        "reason",
        "result",
        "retention",
        "spec",
        "special",
        "started",
        "started_mono",
        "state",
        "submitted",
        "timer",
        "version",
    )

    fence = 1
    failures = 0
    batch = ""
    correlation_id = ""
    carry: dict[str, Any] | None = None
    #: The arguments as they may be shown; needed for the INSERT only.
    stored_call: tuple[Any, Any] | None = None
    args_withheld = False
    cancel_requested: Reason | None = None
    overdue = False
    forfeited = False
    #: When queue, run and retries together must be over; the same on the monotonic clock.
    deadline: float | None = None
    deadline_mono: float | None = None
    #: Not before this moment: a deferred start or the next attempt; the same on the monotonic clock.
    run_after: float | None = None
    due = 0.0
    #: What attempts came to that did not succeed.
    attempts: tuple[Attempt, ...] = ()
    exception: BaseException | None = None
    exception_trace: TracebackType | None = None
    error: dict[str, str] | None = None
    first_error: dict[str, str] | None = None
    progress: float | None = None
    progress_message = ""
    progress_mono = float("-inf")
    #: Called when it is over; made by the first that waits, since nobody waits for most jobs.
    waiters: list[Callable[[], object]] | None = None

    def __init__(
        self,
        key: int,
        spec: JobSpec,
        payload: str,
        payload_bytes: int,
        submitted: float,
        process: UUID,
        retention: Mapping[JobState, float],
        owner_key: str = "",
    ) -> None:
        self.key = key
        self.spec = spec
        self.payload: str | None = payload
        self.payload_bytes = payload_bytes
        self.submitted = submitted
        self.process = process
        self.retention = retention
        self.owner_key = owner_key
        #: Whether something about it must be looked at when it is admitted: an owner, a moment, a request to cancel.
        self.special = spec.start_deadline is not None or owner_key != ""
        self.state = SUBMITTED
        self.reason = NO_REASON
        self.version = 1
        self.attempt = 0
        #: The token of the attempt, once somebody has asked for it.
        self.made_token: CancelToken | None = None
        self.queued_mono = 0.0
        self.started: float | None = None
        self.started_mono = 0.0
        #: How long the last attempt ran, once it is over.
        self.ran = 0.0
        #: When the running attempt must be over, and when somebody must look at it again.
        self.ends_mono: float | None = None
        self.look_mono: float | None = None
        self.finished: float | None = None
        self.result: Any = None
        #: Of its queued state: the end of its wait, or of its delay.
        self.timer: Any = None

    def __repr__(self) -> str:
        return f"<JobRecord {self.id} {self.spec.name} {self.state.value}>"

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(int=self.key)

    @property
    def token(self) -> CancelToken:
        """What tells this attempt to stop; made when somebody first asks, since most jobs are never told."""
        token = self.made_token
        if token is None:
            with _making:
                token = self.made_token
                if token is None:
                    token = self.made_token = CancelToken()
        return token

    @property
    def stop_reason(self) -> Reason | None:
        """Why this attempt was told to stop, or None."""
        return None if self.made_token is None else self.made_token.reason

    @property
    def max_attempts(self) -> int:
        """How often the code may be started because of failures."""
        return self.spec.retry.max_attempts if self.spec.retry else 1

    def begin(self, now: float, wall: float) -> None:
        """Go from queued to running: `move`, written out since every job comes by."""
        if self.state is not QUEUED:
            check_move(self.state, RUNNING)
        self.state = RUNNING
        self.version += 1
        self.attempt += 1
        self.made_token = None
        self.started = wall
        self.started_mono = now

    def move(self, state: JobState, reason: Reason = NO_REASON) -> None:
        """Go to `state`, or raise `IllegalMove`."""
        if (self.state, state, reason) not in LEGAL:
            check_move(self.state, state, reason)
        # The state last: who reads it without the lock finds the rest there.
        self.reason = reason
        self.version += 1
        self.state = state

    def note_attempt_locked(self, outcome: str, ran: float, error: Mapping[str, str] | None, now: float) -> None:
        """Keep what one attempt came to."""
        kept = (*self.attempts, (self.attempt, self.started or now, now, ran, outcome, error))
        if len(kept) > MAX_ATTEMPTS_KEPT:
            kept = kept[: MAX_ATTEMPTS_KEPT // 2] + kept[MAX_ATTEMPTS_KEPT // 2 + 1 :]
        self.attempts = kept

    def changes_locked(self) -> Snapshot:
        """Return the columns that change after the INSERT."""
        retain_until = None
        if self.finished is not None:
            kept = self.spec.retention if self.spec.retention is not None else self.retention[self.state]
            retain_until = moment(self.finished + kept)
        values = {
            "state": self.state.value,
            "reason": self.reason.value,
            "live": self.state in LIVE,
            "attempt": self.attempt,
            "failures": self.failures,
            "attempts": tuple(map(_described, self._all_attempts())),
            "result": self.result,
            "error": self.error,
            "first_error": self.first_error,
            "progress": self.progress,
            "progress_message": self.progress_message,
            "run_after": _date(self.run_after),
            "started_at": _date(self.started),
            "finished_at": _date(self.finished),
            "retain_until": retain_until,
        }
        return Snapshot(self.id, self.process, self.fence, self.version, values)

    def _all_attempts(self) -> tuple[Attempt, ...]:
        if self.state is not SUCCEEDED or self.finished is None or self.started is None:
            return self.attempts
        return (*self.attempts, (self.attempt, self.started, self.finished, self.ran, "succeeded", None))

    def first_row(self) -> Snapshot:
        """Return every column of the INSERT: the job as queued, at version 1."""
        args, kwargs = self.stored_call or ([], {})
        spec = self.spec
        values = {
            "state": JobState.QUEUED.value,
            "name": spec.name,
            "pool": spec.pool,
            "priority": spec.priority,
            "owner_key": self.owner_key,
            "args": args,
            "kwargs": kwargs,
            "args_withheld": self.args_withheld,
            "payload_bytes": self.payload_bytes,
            "max_attempts": self.max_attempts,
            "timeout": spec.timeout,
            "run_after": _date(self.run_after),
            "start_by": None
            if spec.start_deadline is None
            else moment((self.run_after or self.submitted) + spec.start_deadline),
            "deadline": _date(self.deadline),
            "batch": self.batch or None,
            "carry": self.carry or {},
            "correlation_id": self.correlation_id or None,
            "submitted_at": moment(self.submitted),
        }
        return Snapshot(self.id, self.process, self.fence, 1, values)


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _described(attempt: Attempt) -> dict[str, Any]:
    number, started, finished, ran, outcome, error = attempt
    entry: dict[str, Any] = {
        "attempt": number,
        "started_at": moment(started).isoformat(),
        "finished_at": moment(finished).isoformat(),
        "ran": round(ran, 6),
        "outcome": outcome,
    }
    if error is not None:
        entry["error"] = {"type": error["type"], "message": error["message"][:500]}
    return entry
