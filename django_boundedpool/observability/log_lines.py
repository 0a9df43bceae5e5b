"""One log line per event, with the same fields everywhere; never arguments or results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..engine.events import Event, Kind, RawEvent
from ..engine.states import JobState

logger = logging.getLogger("django_boundedpool.jobs")
JOB_RETRIED, FAILED, ABANDONED = Kind.JOB_RETRIED, JobState.FAILED, JobState.ABANDONED


def on_events(events: Sequence[RawEvent]) -> None:
    """Log each of `events`; see `on_event`."""
    everything = logger.isEnabledFor(logging.DEBUG)
    for event in events:
        if everything or event[0] is JOB_RETRIED or event[5] is FAILED or event[5] is ABANDONED:
            on_event(Event._make(event))


def on_event(event: Event) -> None:
    """Log `event`: a failure for good at ERROR, what is worth a look at WARNING, the rest at DEBUG.

    The fields are in the message and, as a dictionary, in the record's attribute `boundedpool`. Only the failure for
    good has the exception with it; a retried attempt names its type alone.
    """
    level = _level(event)
    if not logger.isEnabledFor(level):
        return
    error = event.error
    fields: dict[str, Any] = {
        "pool": event.pool,
        "job_id": str(event.job_id) if event.job_id else "",
        "job_name": event.job_name,
        "attempt": event.attempt,
        "code": event.code,
        "state": event.state.value if event.state else "",
        "reason": event.reason.value,
        "waited": round(event.waited, 6),
        "ran": round(event.ran, 6),
        "delay": round(event.delay, 6),
        "error": type(error).__qualname__ if error is not None else "",
    }
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", 0))
    info = (type(error), error, error.__traceback__) if level >= logging.ERROR and error is not None else None
    logger.log(level, "%s %s", event.kind.value, shown, extra={"boundedpool": fields}, exc_info=info)


def _level(event: Event) -> int:
    if event.kind is Kind.JOB_RETRIED:
        return logging.WARNING
    if event.kind is Kind.JOB_FINISHED and event.state is JobState.FAILED:
        return logging.ERROR
    if event.kind is Kind.JOB_FINISHED and event.state is JobState.ABANDONED:
        return logging.WARNING
    return logging.DEBUG
