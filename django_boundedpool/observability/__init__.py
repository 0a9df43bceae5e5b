"""What an operator sees: metrics and log lines."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from django.core.signals import request_started

from ..engine.events import Events, RawEvent
from ..engine.report import DrainReport
from ..lifecycle import runtime
from . import log_lines

_listening_to: Events | None = None
_metrics: ModuleType | None = None


def install() -> None:
    """Listen to the pools, once. Without prometheus_client there are no metrics, and everything else works."""
    global _listening_to, _metrics
    try:
        from . import metrics
    except ImportError:
        _metrics = None
    else:
        _metrics = metrics
    if _listening_to is runtime.EVENTS:
        return  # the app is set up a second time in this process
    _listening_to = runtime.EVENTS
    runtime.EVENTS.subscribe(log_lines.on_events)
    runtime.EVENTS.subscribe(_on_events)
    runtime.DRAINED.append(_on_drained)
    request_started.connect(_on_request, dispatch_uid="boundedpool.observability")


def _on_events(events: Sequence[RawEvent]) -> None:
    if _metrics is not None:
        _metrics.on_events(events)


def _on_drained(report: DrainReport) -> None:
    if _metrics is not None:
        _metrics.refresh()


def _on_request(sender: object, **_: object) -> None:
    """Bring the gauges up to date: a scrape is a request, and must see a queue that stalls without an event."""
    if _metrics is not None:
        _metrics.refresh()
