"""Rows as the pool leaves them, for tests of what is made of them."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from django_boundedpool.engine.states import LIVE
from django_boundedpool.models import Job, Process

TERMINAL = ("succeeded", "failed", "cancelled", "abandoned")
REASONS = {"failed": "attempts_exhausted", "cancelled": "user", "abandoned": "drain_deadline"}
#: Markup, quotes and template syntax, for every text that a job can leave behind.
EVIL = """<script>alert(1)</script><img src=x onerror="alert('2')">{{ 4000|add:4111 }}{% now "Y" %}&amp;"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/reports/jobs.py", line 41, in build_report
    page = client.get(address, timeout=context.remaining())
  File "/srv/shop/vendor/client.py", line 212, in get
    raise ConnectionError(f"{address} closed the connection before the answer was complete")
ConnectionError: https://partner.example/api closed the connection before the answer was complete
"""


def row(state: str = "succeeded", **values: Any) -> Job:
    """Insert the row of a job that another process ran."""
    now = timezone.now()
    over = state in TERMINAL
    given: dict[str, Any] = {
        "name": "shop.reports.jobs.build_report",
        "pool": "default",
        "state": state,
        "reason": REASONS.get(state, ""),
        "live": state in LIVE,
        "submitted_at": now - timedelta(seconds=12),
        "process": uuid4(),
        **values,
    }
    if over:
        given.setdefault("finished_at", now)
        given.setdefault("retain_until", now + timedelta(days=3))
    if state not in ("queued", "cancelled"):
        given.setdefault("started_at", now - timedelta(seconds=9))
        given.setdefault("attempt", 1)
    return Job.objects.create(**given)


def row_of_each_state() -> dict[str, Job]:
    """One row of each state, as lifelike as they come."""
    error = {"type": "builtins.ConnectionError", "message": "the partner closed the connection", "traceback": TRACEBACK}
    now = timezone.now()
    attempts = [
        {
            "attempt": number,
            "started_at": (now - timedelta(seconds=30 - 9 * number)).isoformat(),
            "finished_at": now.isoformat(),
            "ran": 1.25 * number,
            "outcome": "failed" if number == 3 else "retried",
            "error": {"type": "ConnectionError", "message": "the partner closed the connection"},
        }
        for number in (1, 2, 3)
    ]
    call = {"args": [41, "2026-11"], "kwargs": {"format": "pdf", "columns": ["sum", "tax"], "password": "[withheld]"}}
    return {
        "queued": row("queued", owner_key="17", **call),
        "running": row("running", progress=0.4, progress_message="page 4 of 10", owner_key="17", **call),
        "asked": row(
            "running", cancel_requested_at=now, cancel_requested_by="3", cancel_reason="operator", timeout=5, **call
        ),
        "succeeded": row("succeeded", result={"file": "reports/41.pdf", "pages": 10, "rows": [1, 2, 3]}, **call),
        "failed": row(
            "failed", error=error, first_error={**error, "message": "timed out"}, attempts=attempts, attempt=3,
            max_attempts=3, failures=3, correlation_id="request 7f3a", args_withheld=True, **call,
        ),
        "cancelled": row("cancelled", **call),
        "abandoned": row("abandoned", reason="process_lost", losses=1, **call),
        "handed_over": row("handed_over", hand_over_alias="durable", hand_over_id="9", **call),
        "unknown": row("postponed", name="shop.removed.job", **call),
    }  # fmt: skip


def process(**values: Any) -> Process:
    """Insert the row of a process."""
    stats = {"default": {"running": 2, "workers": 4, "queued": 31, "queue_size": 100, "oldest_age": 4.2}}
    given: dict[str, Any] = {
        "id": uuid4(),
        "host": "web-1",
        "pid": 4711,
        "server": "gunicorn",
        "stats": stats,
        **values,
    }
    return Process.objects.create(**given)
