"""Answers for a project's own views: a job was accepted, or it was refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse, JsonResponse

from ..engine.errors import Rejected
from ..handles import JobHandle
from .problems import refusal
from .serialise import job_url

View = TypeVar("View", bound=Callable[..., Any])

#: What a client should wait before its first look at a fresh job. Seconds.
FIRST_POLL = 1


def accepted(request: HttpRequest, handle: JobHandle) -> HttpResponse:
    """Return 202 with where to poll the job: Location, Retry-After and a JSON body. Never raises after acceptance.

    Arguments:
        request: the request that submitted it.
        handle: what `submit` returned.
    """
    path = job_url(handle.id)
    cancel = job_url(handle.id, "job-cancel")
    body = {
        "id": str(handle.id),
        "state": handle.state.value,
        "terminal": handle.state.terminal,
        "created": handle.created,
        "poll_after": FIRST_POLL,
        "links": {"self": path, "cancel": cancel},
    }
    response = JsonResponse(body, status=202)
    response["Retry-After"] = str(FIRST_POLL)
    response["Cache-Control"] = "no-store"
    if path is not None:
        response["Location"] = path  # relative: building an absolute one fails for a host that is not allowed
    return response


def overload_responses(view: View) -> View:
    """Decorate one view so that a refused submit becomes its HTTP answer; OverloadMiddleware does it for all views."""
    if asyncio.iscoroutinefunction(view):

        @functools.wraps(view)
        async def asynchronous(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                return await view(request, *args, **kwargs)
            except Rejected as error:
                return _answer(error)

        return asynchronous  # type: ignore[return-value]

    @functools.wraps(view)
    def synchronous(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(request, *args, **kwargs)
        except Rejected as error:
            return _answer(error)

    return synchronous  # type: ignore[return-value]


def _answer(error: Rejected) -> HttpResponse:
    answer = refusal(error)
    if answer is None:
        raise error
    return answer
