"""One accepted job inside its process, and the immutable picture of it that goes to the store."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

from . import errors
from .cancellation import CancelToken
from .payload import printable
from .spec import JobSpec
from .states import LIVE, JobState, Reason, check_move

#: Attempts kept in full; the first ones and the last ones tell the story.
MAX_ATTEMPTS_KEPT = 20


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
    """The pool's mutable record of one job. The pool's lock protects every field but `token`.

    Places and bytes are held by the record: it is counted from `reserve` to its terminal state, on every path.
    """

    __slots__ = (
        "_done",
        "args_withheld",
        "attempt",
        "attempts",
        "batch",
        "cancel_requested",
        "correlation_id",
        "due",
        "error",
        "exception",
        "exception_trace",
        "failures",
        "fence",
        "finished_at",
        "first_error",
        "forfeited",
        "id",
        "order",
        "overdue",
        "owner_key",
        "payload",
        "payload_bytes",
        "process",
        "progress",
        "progress_message",
        "progress_mono",
        "queued_mono",
        "reason",
        "result",
        "retention",
        "run_after",
        "spec",
        "started_at",
        "started_mono",
        "state",
        "stored_call",
        "submitted_at",
        "timers",
        "token",
        "version",
    )

    def __init__(
        self,
        *,
        id: UUID,
        process: UUID,
        spec: JobSpec,
        payload: str,
        payload_bytes: int,
        stored_call: tuple[Any, Any],
        args_withheld: bool,
        submitted_at: datetime,
        retention: Mapping[JobState, float],
        owner_key: str = "",
        batch: str = "",
        correlation_id: str = "",
    ) -> None:
        self.id = id
        self.process = process
        self.spec = spec
        self.payload: str | None = payload
        self.payload_bytes = payload_bytes
        self.stored_call = stored_call
        self.args_withheld = args_withheld
        self.owner_key = owner_key
        self.batch = batch
        self.correlation_id = correlation_id
        self.retention = retention
        self.state = JobState.SUBMITTED
        self.reason = Reason.NONE
        self.fence = 1
        self.version = 1
        self.attempt = 0
        self.failures = 0
        self.attempts: list[dict[str, Any]] = []
        self.token = CancelToken()
        self.cancel_requested: Reason | None = None
        self.overdue = False
        self.forfeited = False
        self.submitted_at = submitted_at
        self.started_at: datetime | None = None
        self.finished_at: datetime | None = None
        self.run_after: datetime | None = None
        self.queued_mono = 0.0
        self.started_mono = 0.0
        self.order = 0.0
        self.due = 0.0
        self.result: Any = None
        self.exception: BaseException | None = None
        self.exception_trace: TracebackType | None = None
        self.error: dict[str, str] | None = None
        self.first_error: dict[str, str] | None = None
        self.progress: float | None = None
        self.progress_message = ""
        self.progress_mono = float("-inf")
        self.timers: list[Any] = []
        self._done: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<JobRecord {self.id} {self.spec.name} {self.state.value}>"

    @property
    def max_attempts(self) -> int:
        """How often the code may be started because of failures."""
        return self.spec.retry.max_attempts if self.spec.retry else 1

    def move(self, state: JobState, reason: Reason = Reason.NONE) -> None:
        """Go to `state`, or raise `IllegalMove`."""
        check_move(self.state, state, reason)
        self.state, self.reason = state, reason
        self.version += 1

    def done_event_locked(self) -> threading.Event:
        """Return the event of its end; made by the first waiter, since most jobs have none."""
        if self._done is None:
            self._done = threading.Event()
            if self.state.terminal:
                self._done.set()
        return self._done

    def release_waiters_locked(self) -> None:
        """Wake whoever waits for the end."""
        if self._done is not None:
            self._done.set()

    def note_attempt_locked(self, outcome: str, ran: float, error: Mapping[str, str] | None, now: datetime) -> None:
        """Keep what one attempt came to."""
        entry: dict[str, Any] = {
            "attempt": self.attempt,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "finished_at": now.isoformat(),
            "ran": round(ran, 6),
            "outcome": outcome,
        }
        if error is not None:
            entry["error"] = {"type": error["type"], "message": error["message"][:500]}
        self.attempts.append(entry)
        if len(self.attempts) > MAX_ATTEMPTS_KEPT:
            del self.attempts[MAX_ATTEMPTS_KEPT // 2]

    def changes_locked(self) -> Snapshot:
        """Return the columns that change after the INSERT."""
        retain_until = None
        if self.state.terminal and self.finished_at is not None:
            kept = self.spec.retention if self.spec.retention is not None else self.retention[self.state]
            retain_until = self.finished_at + timedelta(seconds=kept)
        values = {
            "state": self.state.value,
            "reason": self.reason.value,
            "live": self.state in LIVE,
            "attempt": self.attempt,
            "failures": self.failures,
            "attempts": tuple(self.attempts),
            "result": self.result,
            "error": self.error,
            "first_error": self.first_error,
            "progress": self.progress,
            "progress_message": self.progress_message,
            "run_after": self.run_after,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "retain_until": retain_until,
        }
        return Snapshot(self.id, self.process, self.fence, self.version, values)

    def first_row(self) -> Snapshot:
        """Return every column of the INSERT: the job as queued, at version 1."""
        args, kwargs = self.stored_call
        values = {
            "state": JobState.QUEUED.value,
            "name": self.spec.name,
            "pool": self.spec.pool,
            "priority": self.spec.priority,
            "owner_key": self.owner_key,
            "args": args,
            "kwargs": kwargs,
            "args_withheld": self.args_withheld,
            "payload_bytes": self.payload_bytes,
            "max_attempts": self.max_attempts,
            "timeout": self.spec.timeout,
            "start_by": self.submitted_at + timedelta(seconds=self.spec.start_deadline)
            if self.spec.start_deadline is not None
            else None,
            "batch": self.batch or None,
            "correlation_id": self.correlation_id or None,
            "submitted_at": self.submitted_at,
        }
        return Snapshot(self.id, self.process, self.fence, 1, values)
