"""Who may see and cancel a job. Asked again at every request."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpRequest
from django.utils.module_loading import import_string

from ..engine.errors import JobNotFound
from ..handles import JobHandle, load, owner_key
from ..lifecycle import runtime
from ..models import Job

Action = Literal["view", "cancel"]


def user_of(request: HttpRequest) -> Any:
    """Return the request's user; anonymous where no authentication is installed."""
    return getattr(request, "user", None) or AnonymousUser()


def allowed(request: HttpRequest, job: Job, action: Action) -> bool:
    """Whether this request may do `action` to `job`.

    The owner may, and whoever has the permission boundedpool.view_job or boundedpool.cancel_job. The option AUTHORIZE
    names a callable ``(request, job, action) -> bool`` that decides instead.
    """
    rule = runtime.current().options.authorize
    if rule is not None:
        return bool(import_string(rule)(request, job, action))
    user = user_of(request)
    if not user.is_active:
        return False
    if job.owner_key and job.owner_key == owner_key(user):
        return True
    return bool(user.has_perm(f"boundedpool.{action}_job"))


def find_job(request: HttpRequest, job_id: UUID | str, action: Action = "view") -> Job:
    """Return the row of a job that this request may see.

    Raises:
        Http404: the same for a job that does not exist, one that is not this user's, and a malformed id.
    """
    try:
        job = load(job_id)
    except JobNotFound:
        raise Http404("No such job.") from None
    # Without the right to look there is no job, so nobody learns from a refused cancel that an id exists.
    if not allowed(request, job, action):
        raise Http404("No such job.")
    return job


def get_job_or_404(request: HttpRequest, job_id: UUID | str) -> JobHandle:
    """Return the handle of a job that this request's user may see, for a project's own views.

    Raises:
        Http404: there is no such job for this user.
    """
    job = find_job(request, job_id)
    return JobHandle.of_row(job)
