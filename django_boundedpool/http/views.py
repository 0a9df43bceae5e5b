"""Poll, cancel and list one's own jobs."""

from __future__ import annotations

from functools import wraps
from typing import Any
from uuid import UUID

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST, require_safe

from ..engine.states import JobState
from ..handles import JobHandle, owner_key
from ..lifecycle import runtime
from ..models import Job
from .permissions import find_job, user_of
from .problems import problem
from .serialise import as_json, poll_after

PAGE = 50


def _prefers_html(request: HttpRequest) -> bool:
    """Whether the client would rather have a page; `*/*` means JSON."""
    best = request.get_preferred_type(["application/json", "text/html"])
    return best == "text/html"


def _private(view: Any) -> Any:
    """Anonymous requests get the same answer for every id; strangers and unknown ids get the same 404."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        user = user_of(request)
        if not user.is_authenticated and runtime.current().options.authorize is None:
            if _prefers_html(request):
                return redirect_to_login(request.get_full_path())
            return problem(401, "authentication_required", "Sign in to see your jobs.")
        try:
            response: HttpResponse = view(request, *args, **kwargs)
        except Http404:
            return problem(404, "not_found", "There is no such job, or it is not yours.")
        return response

    # Answers 401 by itself where LoginRequiredMiddleware would redirect a program to a page.
    guarded.login_required = False  # type: ignore[attr-defined]
    return guarded


def _no_store(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "private, no-cache"
    response["Vary"] = "Accept, Cookie"
    return response


@_private
@require_safe
def job_detail(request: HttpRequest, id: str) -> HttpResponse:
    """Return one job."""
    job = find_job(request, id)
    privileged = user_of(request).has_perm("boundedpool.view_job")
    response = JsonResponse(as_json(job, privileged=privileged))
    pause = poll_after(job)
    if pause is not None:
        response["Retry-After"] = str(pause)
    return _no_store(response)


@csrf_protect
@_private
@require_POST
def job_cancel(request: HttpRequest, id: str) -> HttpResponse:
    """Ask a job to stop: 200 when it is over at once, 202 when it was asked, 409 when it was over before."""
    job = find_job(request, id, "cancel")
    answer = JobHandle.of_row(job).cancel(by=user_of(request))
    if answer == "finished":
        return problem(409, "finished", "The job was over before it could be cancelled.")
    body = {"id": str(job.pk), "answer": answer}
    return _no_store(JsonResponse(body, status=200 if answer == "cancelled" else 202))


@_private
@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    """Return one's own jobs, newest first, a page at a time."""
    key = owner_key(user_of(request))
    jobs = Job.objects.using(runtime.current().alias).filter(owner_key=key) if key else Job.objects.none()
    if state := request.GET.get("state"):
        if state not in JobState._value2member_map_:
            return _no_store(JsonResponse({"results": [], "next": None}))
        jobs = jobs.filter(state=state)
    if batch := request.GET.get("batch"):
        jobs = jobs.filter(batch=batch)
    if before := _uuid(request.GET.get("before")):
        jobs = jobs.filter(pk__lt=before)
    page = list(jobs.order_by("-pk")[: PAGE + 1])
    following = None
    if len(page) > PAGE:
        query = request.GET.copy()
        query["before"] = str(page[PAGE - 1].pk)
        following = f"{reverse('boundedpool:job-list')}?{query.urlencode()}"
    return _no_store(JsonResponse({"results": [as_json(job) for job in page[:PAGE]], "next": following}))


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
