"""Poll, cancel and list one's own jobs."""

from __future__ import annotations

from functools import wraps
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST, require_safe

from ..engine.errors import JobNotFound
from ..handles import JobHandle
from ..lifecycle import runtime
from ..models import Job
from . import permissions
from .negotiation import prefers_html, private
from .permissions import find_job, key_of, parse_id, user_of
from .problems import problem
from .serialise import UNSEEN, as_json, job_url, poll_after

#: Jobs on one page of the list, and most ids that one request may name.
PAGE = 50


def _private(view: Any) -> Any:
    """Give anonymous requests the same answer for every id; and strangers' and unknown ids the same 404."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        anonymous = not user_of(request).is_authenticated
        # Only a rule of one's own may know an anonymous client by something else than a login.
        if anonymous and permissions.rule() is None:
            return _ask_to_sign_in(request, **kwargs)
        try:
            response: HttpResponse = view(request, *args, **kwargs)
        except Http404:
            if anonymous:
                return _ask_to_sign_in(request, **kwargs)
            response = problem(404, "not_found", "There is no such job, or it is not yours.")
        return response

    # Answers 401 by itself where LoginRequiredMiddleware would redirect a program to a page.
    guarded.login_required = False  # type: ignore[attr-defined]
    return guarded


def _ask_to_sign_in(request: HttpRequest, id: str | None = None) -> HttpResponse:
    if prefers_html(request) and apps.is_installed("django.contrib.auth"):
        from django.contrib.auth.views import redirect_to_login

        back = request.get_full_path()
        if request.method not in ("GET", "HEAD") and id is not None:
            back = job_url(id, request=request) or back  # the login page sends people on by GET
        return private(redirect_to_login(back))
    return private(problem(401, "authentication_required", "Sign in to see your jobs."))


@_private
@require_safe
def job_detail(request: HttpRequest, id: str) -> HttpResponse:
    """Return one job."""
    job = find_job(request, id)
    privileged = bool(job.error) and permissions.may_read_tracebacks(user_of(request))
    response = JsonResponse(as_json(job, privileged=privileged, request=request))
    pause = poll_after(job)
    if pause is not None:
        response["Retry-After"] = str(pause)
    return private(response)


@csrf_protect
@_private
@require_POST
def job_cancel(request: HttpRequest, id: str) -> HttpResponse:
    """Ask a job to stop: 200 when it is over at once, 202 when it was asked, 409 when it was over before."""
    job = find_job(request, id, "cancel")
    user = user_of(request)
    try:
        answer = JobHandle.of_row(job).cancel(by=user if key_of(user) else None)
    except JobNotFound:  # pruned since it was looked up
        raise Http404("No such job.") from None
    if answer == "finished":
        return problem(409, "finished", "The job was over before it could be cancelled.")
    body = {"id": str(job.pk), "answer": answer, "links": {"self": job_url(job.pk, request=request)}}
    return private(JsonResponse(body, status=200 if answer == "cancelled" else 202))


@_private
@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    """Return one's own jobs, newest first, a page at a time."""
    before = request.GET.get("before")
    if before and parse_id(before) is None:
        return private(problem(400, "invalid_cursor", "`before` is not the id of a job; follow `next` instead."))
    state = request.GET.get("state")
    if state and state not in dict(Job.STATES):
        return private(problem(400, "invalid_filter", f"`state` is one of {', '.join(dict(Job.STATES))}."))
    if None in map(parse_id, request.GET.getlist("id")):
        return private(problem(400, "invalid_filter", "`id` is not the id of a job."))
    user = user_of(request)
    key = key_of(user) if user.is_active else ""
    page = list(_filtered(request, key)[: PAGE + 1]) if key else []
    following = None
    if len(page) > PAGE:
        query = request.GET.copy()
        query["before"] = str(page[PAGE - 1].pk)
        following = f"{request.path}?{query.urlencode()}"
    # Compared again: a database whose collation ignores case takes the keys "Ann" and "ann" for one.
    own = [job for job in page[:PAGE] if job.owner_key == key and permissions.allowed(request, job, "view")]
    return private(JsonResponse({"results": [as_json(job, request=request) for job in own], "next": following}))


def _filtered(request: HttpRequest, key: str) -> QuerySet[Job]:
    jobs = Job.objects.using(runtime.current().alias).filter(owner_key=key).defer(*UNSEEN).order_by("-pk")
    for column in ("state", "batch"):
        if value := request.GET.get(column):
            # PostgreSQL refuses to compare with a text that it cannot hold.
            jobs = jobs.none() if "\0" in value else jobs.filter(**{column: value})
    if "id" in request.GET:
        jobs = jobs.filter(pk__in=[UUID(text) for text in request.GET.getlist("id")[:PAGE]])
    if before := parse_id(request.GET.get("before", "")):
        jobs = jobs.filter(pk__lt=before)
    return jobs
