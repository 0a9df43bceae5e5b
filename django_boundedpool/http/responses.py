"""Answers for a project's own views: a job was accepted, or it was refused."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse, JsonResponse

from ..engine.errors import Rejected
from ..handles import JobHandle
from .problems import answer_refusal, roll_back
from .serialise import job_url

logger = logging.getLogger("django_boundedpool.http")

View = TypeVar("View", bound=Callable[..., Any])

#: What a client should wait before its first look at a fresh job. Seconds.
FIRST_POLL = 1


def accepted(request: HttpRequest, handle: JobHandle) -> HttpResponse:
    """Return 202 with where to poll the job: Location, Retry-After and a JSON body. Never raises after acceptance.

    Where the project has not included the urls, or they cannot be resolved, there is no Location, the links are null,
    and the log says so once. Nothing needs to be polled of a job that is over already (`INLINE`): no Retry-After then.

    Arguments:
        request: the request that submitted it.
        handle: what `submit` returned.
    """
    path = job_url(handle.id, request=request)
    if path is None:
        _warn_without_urls()
    state = handle.state
    body = {
        "id": str(handle.id),
        "state": state.value,
        "terminal": state.terminal,
        "created": handle.created,
        "poll_after": None if state.terminal else FIRST_POLL,
        "links": {"self": path, "cancel": job_url(handle.id, "job-cancel", request=request)},
    }
    response = JsonResponse(body, status=202)
    if not state.terminal:
        response["Retry-After"] = str(FIRST_POLL)
    response["Cache-Control"] = "no-store"
    if path is not None:
        response["Location"] = path  # relative: building an absolute one fails for a host that is not allowed
    return response


@functools.cache  # once in a process
def _warn_without_urls() -> None:
    logger.warning(
        "An accepted job has no address: nobody can poll it. "
        'Add path("jobs/", include("django_boundedpool.urls")) to the root URLconf.'
    )


def overload_responses(view: View) -> View:
    """Decorate one view so that a refused submit becomes its HTTP answer; OverloadMiddleware does it for all views.

    For functions and methods, sync and async. Under ATOMIC_REQUESTS the request's transaction is rolled back, as it is
    for any exception.
    """
    if iscoroutinefunction(view):

        @functools.wraps(view)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(view(*args, **kwargs), args)

        return asynchronous  # type: ignore[return-value]

    @functools.wraps(view)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = view(*args, **kwargs)
        except Rejected as error:
            return _answer(error, args)
        # `dispatch` of a class-based view is a plain method that returns its async handler's coroutine.
        return _awaited(answer, args) if inspect.isawaitable(answer) else answer

    return synchronous  # type: ignore[return-value]


async def _awaited(answer: Awaitable[Any], args: tuple[Any, ...]) -> Any:
    try:
        return await answer
    except Rejected as error:
        return _answer(error, args)


def _answer(error: Rejected, args: tuple[Any, ...]) -> HttpResponse:
    # The first argument of a function, the second of a method; REST framework's own request is not an HttpRequest.
    request = next((argument for argument in args if hasattr(argument, "META")), None)
    answer = answer_refusal(request, error)
    if answer is None:
        raise error
    roll_back()
    return answer
