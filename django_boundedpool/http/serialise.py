"""A job as JSON, for its owner."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from ..engine import errors
from ..engine.states import JobState, Reason
from ..jobs import registered
from ..models import Job

logger = logging.getLogger("django_boundedpool.http")

APP_NAME = "boundedpool"
GENERIC_ERROR = "The job failed."
TIMED_OUT = "It ran longer than its time-out."

#: Columns that no answer shows; a list need not fetch them.
UNSEEN = ("args", "kwargs", "attempts", "first_error", "carry")


def job_url(job_id: object, view: str = "job-detail", *, request: HttpRequest | None = None) -> str | None:
    """Return the path of a job's page, or None where the project has not included the urls. Never raises.

    Arguments:
        job_id: the job.
        view: name of one of the views of this app.
        request: while one of these views answers, their own inclusion is used, under whatever namespace.
    """
    match = getattr(request, "resolver_match", None)
    ours = match is not None and match.app_names[-1:] == [APP_NAME]
    namespace = match.namespace if match is not None and ours else APP_NAME
    try:
        return reverse(f"{namespace}:{view}", kwargs={"id": str(job_id)})
    except NoReverseMatch:
        return None
    except Exception:
        # The job is accepted: a URLconf that cannot be loaded must not turn that into an error.
        logger.exception("The address of job %s cannot be built.", job_id)
        return None


def poll_after(job: Job) -> int | None:
    """Return the seconds after which another look is worthwhile, or None when the job is over."""
    if job.terminal:
        return None
    return 1 if job.state == JobState.RUNNING.value else 2


def as_json(job: Job, *, privileged: bool = False, request: HttpRequest | None = None) -> dict[str, Any]:
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
        "submitted_at": _moment(job.submitted_at),
        "started_at": _moment(job.started_at),
        "finished_at": _moment(job.finished_at),
        "retain_until": _moment(job.retain_until),
        "durability": job.persist,
        "poll_after": poll_after(job),
        "links": {
            "self": job_url(job.pk, request=request),
            "cancel": job_url(job.pk, "job-cancel", request=request),
        },
    }


def _moment(value: datetime | None) -> datetime | None:
    """Return `value` with its offset: without USE_TZ the database gives local times."""
    return timezone.make_aware(value, timezone.get_default_timezone()) if value and timezone.is_naive(value) else value


def _error(job: Job, *, privileged: bool) -> dict[str, str] | None:
    if not job.error:
        return None
    kind = str(job.error.get("type", ""))
    message = str(job.error.get("message", ""))
    if privileged:
        return {"type": kind, "message": message, "traceback": str(job.error.get("traceback", ""))}
    generic = TIMED_OUT if job.reason == Reason.TIMEOUT.value else GENERIC_ERROR
    return {"type": kind, "message": message if _is_public(job.name, kind) else generic}


def _is_public(job_name: str, kind: str) -> bool:
    """Whether the job declared errors of type `kind`, or of a class above it, as fit for its owner."""
    declared = registered().get(job_name)
    public = declared.spec.public_errors if declared is not None else ()
    raised = _loaded_class(kind) if public else None
    return raised is not None and issubclass(raised, tuple(public))


def _loaded_class(dotted: str) -> type | None:
    """Return the class with this stored name if its module is loaded; importing is not the business of a poll."""
    module, _, name = dotted.rpartition(".")
    if not module:
        found = getattr(sys.modules["builtins"], name, None)
        return found if isinstance(found, type) else None
    # Our own errors are stored under the package, which does not export each of them.
    holder: Any = errors if module == "django_boundedpool" else sys.modules.get(module) or _loaded_class(module)
    found = getattr(holder, name, None)
    return found if isinstance(found, type) else None
