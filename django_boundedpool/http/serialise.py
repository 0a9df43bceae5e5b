"""A job as JSON, for its owner."""

from __future__ import annotations

from typing import Any

from django.urls import NoReverseMatch, reverse

from ..engine.states import JobState
from ..jobs import registered
from ..models import Job

GENERIC_ERROR = "The job failed."


def job_url(job_id: object, view: str = "job-detail") -> str | None:
    """Return the path of a job's page, or None where the project has not included the urls."""
    try:
        return reverse(f"boundedpool:{view}", kwargs={"id": str(job_id)})
    except NoReverseMatch:
        return None


def poll_after(job: Job) -> int | None:
    """Return the seconds after which another look is worthwhile, or None when the job is over."""
    if job.terminal:
        return None
    return 1 if job.state == JobState.RUNNING.value else 2


def as_json(job: Job, *, privileged: bool = False) -> dict[str, Any]:
    """Return the public picture of a job; errors in full only for `privileged` staff."""
    progress = None
    if job.progress is not None:
        progress = {"fraction": job.progress, "message": job.progress_message}
    return {
        "id": str(job.pk),
        "name": job.name,
        "pool": job.pool,
        "batch": job.batch or "",
        "state": job.state,
        "reason": job.reason,
        "terminal": job.terminal,
        "cancel_requested": job.cancel_requested,
        "overdue": job.overdue,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "progress": progress,
        "result": job.result,
        "error": _error(job, privileged=privileged),
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "retain_until": job.retain_until,
        "durability": job.persist,
        "poll_after": poll_after(job),
        "links": {"self": job_url(job.pk), "cancel": job_url(job.pk, "job-cancel")},
    }


def _error(job: Job, *, privileged: bool) -> dict[str, str] | None:
    if not job.error:
        return None
    kind = str(job.error.get("type", ""))
    message = str(job.error.get("message", ""))
    if privileged:
        return {"type": kind, "message": message, "traceback": str(job.error.get("traceback", ""))}
    declared = registered().get(job.name)
    public = declared.spec.public_errors if declared is not None else ()
    names = {c.__qualname__ if c.__module__ == "builtins" else f"{c.__module__}.{c.__qualname__}" for c in public}
    return {"type": kind, "message": message if kind in names else GENERIC_ERROR}
