"""The one seam between the engine and everything that watches it: metrics, logs, Django signals.

======================  =====================================================================
kind                    when, and which fields beside pool, job_id, job_name, attempt and state
======================  =====================================================================
job_accepted            the job has a place and its row is durable
job_rejected            a submit was refused; `code` says why (there is no job_id)
job_started             an attempt begins; `waited` is how long it was eligible
job_retried             an attempt failed after `ran` seconds with `error`; another follows after `delay`
job_finished            the job reached a terminal state; `reason`, `ran` of its last attempt, `error` if it failed
cancel_requested        somebody asked a live job to stop, for the first time; `reason` says who
worker_stuck            a job is past its time-out, or past STUCK_AFTER, for `ran` seconds; again every 30 s
worker_replaced         a worker thread died of a defect or for want of memory; another takes its place
pool_changed            depth, busy workers or another gauge may have changed
======================  =====================================================================

Events are emitted outside every lock, in the thread that caused them, so two of them may arrive out of order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from .cancellation import of_signal_handler
from .states import NO_REASON, JobState, Reason

if TYPE_CHECKING:
    from .record import JobRecord

logger = logging.getLogger("django_boundedpool.engine")


class Kind(StrEnum):
    """What happened."""

    __hash__ = str.__hash__

    JOB_ACCEPTED = "job_accepted"
    JOB_REJECTED = "job_rejected"
    JOB_STARTED = "job_started"
    JOB_RETRIED = "job_retried"
    JOB_FINISHED = "job_finished"
    CANCEL_REQUESTED = "cancel_requested"
    WORKER_STUCK = "worker_stuck"
    WORKER_REPLACED = "worker_replaced"
    POOL_CHANGED = "pool_changed"


# By a name of their own: see states.py.
ACCEPTED, STARTED, FINISHED = Kind.JOB_ACCEPTED, Kind.JOB_STARTED, Kind.JOB_FINISHED
JOB_REJECTED = Kind.JOB_REJECTED


class Event(NamedTuple):
    """One event, with the fields of a `RawEvent` by name. Arguments and results never appear here.

    Fields that do not apply keep their default. `key` is the job's id as an integer, None without a job; `waited`,
    `ran` and `delay` are seconds.
    """

    kind: Kind
    pool: str
    key: int | None = None
    job_name: str = ""
    attempt: int = 0
    state: JobState | None = None
    reason: Reason = Reason.NONE
    code: str = ""
    waited: float = 0.0
    ran: float = 0.0
    delay: float = 0.0
    error: BaseException | None = None

    @property
    def job_id(self) -> UUID | None:
        """The job's id, None without a job."""
        return None if self.key is None else UUID(int=self.key)


#: An event as it is emitted: a plain tuple of the fields of `Event`, in order. Three are made for every job, and one
#: with names takes four times as long to make and to drop; `Event._make` gives them their names.
RawEvent = tuple[
    Kind, str, int | None, str, int, JobState | None, Reason, str, float, float, float, BaseException | None
]


def about(
    kind: Kind,
    pool: str,
    record: JobRecord,
    waited: float = 0.0,
    ran: float = 0.0,
    delay: float = 0.0,
    error: BaseException | None = None,
    reason: Reason | None = None,
) -> RawEvent:
    """Return an event about `record` as it is now; its lock is held."""
    return (
        kind, pool, record.key, record.spec.name, record.attempt, record.state,
        record.reason if reason is None else reason, "", waited, ran, delay, error,
    )  # fmt: skip


def of_pool(kind: Kind, pool: str, job_name: str = "", code: str = "") -> RawEvent:
    """Return an event that is about no job."""
    return (kind, pool, None, job_name, 0, None, NO_REASON, code, 0.0, 0.0, 0.0, None)


#: Called with one or more events, in order.
Listener = Callable[[Sequence[RawEvent]], object]


class Events:
    """A list of listeners. Subscribe before the pool is used; emitting is safe from any thread."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with all later events. What it raises is logged and harms no job."""
        self._listeners = (*self._listeners, listener)

    def emit(self, events: Sequence[RawEvent]) -> None:
        """Tell every listener about `events`, which it must not change."""
        for listener in self._listeners:
            try:
                listener(events)
            except BaseException as error:
                if of_signal_handler(error):
                    raise
                logger.exception("A listener failed on %s.", ", ".join(event[0] for event in events))
