"""The one seam between the engine and everything that watches it: metrics, logs, Django signals.

======================  =====================================================================
kind                    when
======================  =====================================================================
job_accepted            the job has a place and its row is durable
job_rejected            a submit was refused; `code` says why
job_started             a worker begins an attempt; `waited` is its time in the queue
job_retried             an attempt failed after `ran` seconds; another follows after `delay`
job_finished            the job reached a terminal state; `ran` is its last attempt's run time
cancel_requested        somebody asked a live job to stop, for the first time; `reason` says who
pool_changed            depth, busy workers or another gauge may have changed
======================  =====================================================================

Events are emitted outside every lock, in the thread that caused them, so two of them may arrive out of order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from .cancellation import of_signal_handler
from .states import JobState, Reason

logger = logging.getLogger("django_boundedpool.engine")


class Kind(StrEnum):
    """What happened."""

    JOB_ACCEPTED = "job_accepted"
    JOB_REJECTED = "job_rejected"
    JOB_STARTED = "job_started"
    JOB_RETRIED = "job_retried"
    JOB_FINISHED = "job_finished"
    CANCEL_REQUESTED = "cancel_requested"
    POOL_CHANGED = "pool_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; fields that do not apply keep their default. Arguments and results never appear here."""

    kind: Kind
    pool: str
    job_id: UUID | None = None
    job_name: str = ""
    attempt: int = 0
    state: JobState | None = None
    reason: Reason = Reason.NONE
    code: str = ""
    waited: float = 0.0
    ran: float = 0.0
    delay: float = 0.0
    error: BaseException | None = None


Listener = Callable[[Event], object]


class Events:
    """A list of listeners. Subscribe before the pool is used; emitting is safe from any thread."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every later event. What it raises is logged and harms no job."""
        self._listeners = (*self._listeners, listener)

    def emit(self, events: list[Event]) -> None:
        """Tell every listener about `events`, in order."""
        for event in events:
            for listener in self._listeners:
                try:
                    listener(event)
                except BaseException as error:
                    if of_signal_handler(error):
                        raise
                    logger.exception("A listener failed on %s.", event.kind)
