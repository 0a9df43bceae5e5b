"""Django signals for projects that want to react to jobs.

Each is sent outside every lock, in the thread that caused it; a receiver that fails is logged and harms no job. What
an async job causes is sent on the event loop's thread: a receiver must not block there, and Django lets it use no ORM.

=============  ========================================================================
signal         arguments
=============  ========================================================================
job_accepted   event
job_rejected   event (``code`` says why)
job_started    event
job_retried    event (``delay`` in seconds, ``error``)
job_finished   event (``state``, ``reason``, ``ran`` in seconds)
pool_drained   report, a ``DrainReport``
=============  ========================================================================

``event`` is an `engine.events.Event`; ``sender`` is the name of the job, or None.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from django.db import close_old_connections
from django.dispatch import Signal

from .engine.events import Event, Kind, RawEvent
from .engine.report import DrainReport
from .lifecycle import runtime

logger = logging.getLogger("django_boundedpool.signals")

job_accepted = Signal()
job_rejected = Signal()
job_started = Signal()
job_retried = Signal()
job_finished = Signal()
pool_drained = Signal()

_BY_KIND = {
    Kind.JOB_ACCEPTED: job_accepted,
    Kind.JOB_REJECTED: job_rejected,
    Kind.JOB_STARTED: job_started,
    Kind.JOB_RETRIED: job_retried,
    Kind.JOB_FINISHED: job_finished,
}


def connect() -> None:
    """Pass the engine's events on, once in a process."""
    if _forward_drain in runtime.DRAINED:
        return
    runtime.EVENTS.subscribe(_forward)
    runtime.DRAINED.append(_forward_drain)


def _forward(events: Sequence[RawEvent]) -> None:
    # Written out: this is asked twice for every job.
    if not (
        job_finished.receivers
        or job_started.receivers
        or job_accepted.receivers
        or job_rejected.receivers
        or job_retried.receivers
    ):
        return
    sent = False
    for raw in events:
        signal = _BY_KIND.get(raw[0])
        if signal is None or not signal.receivers:
            continue
        event = Event._make(raw)
        sent = True
        for receiver, answer in signal.send_robust(sender=event.job_name or None, event=event):
            if isinstance(answer, Exception):
                logger.error("Receiver %r failed on %s.", receiver, event.kind, exc_info=answer)
    if not sent:
        return
    thread = threading.current_thread()
    if thread.name.startswith("boundedpool-") and not getattr(thread, "in_code", False):
        # What a receiver opened in a thread of ours, no request will ever close. A job that submits another one is
        # still using its connection.
        close_old_connections()


def _forward_drain(report: DrainReport) -> None:
    for receiver, answer in pool_drained.send_robust(sender=None, report=report):
        if isinstance(answer, Exception):
            logger.error("Receiver %r failed on the drain report.", receiver, exc_info=answer)
