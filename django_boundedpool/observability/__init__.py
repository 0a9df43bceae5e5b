"""What an operator sees: metrics and log lines."""

from __future__ import annotations


def install() -> None:
    """Listen to the pools. Without prometheus_client there are no metrics, and everything else works."""
    from ..lifecycle import runtime
    from . import log_lines

    runtime.EVENTS.subscribe(log_lines.on_event)
    try:
        from . import metrics
    except ImportError:
        return
    runtime.EVENTS.subscribe(metrics.on_event)
