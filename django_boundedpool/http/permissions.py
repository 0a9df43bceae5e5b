"""Who may see and cancel a job. Asked again at every request."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.utils.module_loading import import_string

from ..engine.errors import ConfigurationError, JobNotFound
from ..handles import JobHandle, load, owner_key
from ..lifecycle import runtime
from ..models import Job

Action = Literal["view", "cancel"]
Rule = Callable[[HttpRequest, Job, Action], object]

#: Python's UUID also takes braces, underscores and the digits of every script; an address has one spelling.
_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
#: Looked up in place of a malformed id, so that it costs what an unknown one costs.
_NOBODYS = UUID(int=0)


class _Nobody:
    """Stands in for Django's AnonymousUser, whose module cannot be imported without django.contrib.auth installed."""

    is_anonymous = True
    is_authenticated = is_active = is_staff = False


def user_of(request: HttpRequest) -> Any:
    """Return the request's user; nobody where no authentication is installed."""
    return getattr(request, "user", None) or _Nobody()


def key_of(user: Any) -> str:
    """Return the text under which jobs of `user` are stored; "" for nobody, and for a user who cannot own any."""
    try:
        return owner_key(user)
    except ValueError:
        return ""


def has_permission(user: Any, action: Action) -> bool:
    """Whether `user` holds boundedpool.view_job or boundedpool.cancel_job. A user model may have no permissions."""
    ask = getattr(user, "has_perm", None)
    return ask is not None and bool(ask(f"boundedpool.{action}_job"))


def may_read_tracebacks(user: Any) -> bool:
    """Whether `user` is a member of staff who may see any job."""
    return bool(getattr(user, "is_staff", False)) and has_permission(user, "view")


def rule() -> Rule | None:
    """Return the callable that the option AUTHORIZE names, or None."""
    path = runtime.current().options.authorize
    return None if path is None else import_string(path)


def allowed(request: HttpRequest, job: Job, action: Action) -> bool:
    """Whether this request may do `action` to `job`.

    The owner may, and whoever has the permission boundedpool.view_job or boundedpool.cancel_job. The option AUTHORIZE
    names a callable ``(request, job, action) -> bool`` that decides instead; raising PermissionDenied means no.

    Raises:
        ConfigurationError: that callable is async: what it returns would always count as a yes.
    """
    decide = rule()
    if decide is None:
        return _default(user_of(request), job, action)
    try:
        answer = decide(request, job, action)
    except PermissionDenied:
        return False
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigurationError("BOUNDED_POOL_OPTIONS['AUTHORIZE'] names an async callable; give a plain one.")
    return bool(answer)


def _default(user: Any, job: Job | None, action: Action) -> bool:
    """Apply the usual rule. Without a job it answers no, at the price in queries that a stranger's job has."""
    if not user.is_active:
        return False
    if job is not None and job.owner_key and job.owner_key == key_of(user):
        return True
    return has_permission(user, action) and job is not None


def find_job(request: HttpRequest, job_id: UUID | str, action: Action = "view") -> Job:
    """Return the row of a job that this request may see.

    Raises:
        Http404: the same, after the same number of queries, for a job that does not exist, one that is not this
            user's, and a malformed id. (An AUTHORIZE of one's own is asked about existing jobs only.)
    """
    custom = rule() is not None
    job = _row(job_id)
    if job is None:
        if not custom:
            _default(user_of(request), None, action)
        raise Http404("No such job.")
    # Without the right to look there is no job, so nobody learns from a refused cancel that an id exists.
    if not allowed(request, job, action):
        raise Http404("No such job.")
    return job


def _row(job_id: UUID | str) -> Job | None:
    key = job_id if isinstance(job_id, UUID) else parse_id(job_id) or _NOBODYS
    try:
        return load(key)
    except JobNotFound:
        return None


def parse_id(text: str) -> UUID | None:
    """Return the id that `text` spells, or None."""
    return UUID(text) if _ID.fullmatch(text) else None


def get_job_or_404(request: HttpRequest, job_id: UUID | str) -> JobHandle:
    """Return the handle of a job that this request's user may see, for a project's own views.

    Raises:
        Http404: there is no such job for this user.
    """
    return JobHandle.of_row(find_job(request, job_id))
