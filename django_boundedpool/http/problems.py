"""Errors as problem details (RFC 9457), and which status each refusal has."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.log import log_response

from ..engine.errors import InvalidArguments, Rejected
from .negotiation import prefers_html

#: Status of each refusal code.
STATUS = {
    "draining": 503,
    "paused": 503,
    "expired": 503,
    "payload_too_large": 413,
    "idempotency_conflict": 422,
    "owner_limit": 429,
    "rate_limit": 429,
    "global_limit": 503,
    "shed": 503,
    "queue_full": 503,
    "bytes_full": 503,
    "wait_timeout": 503,
    "store_unavailable": 503,
}

#: Said instead of the error's own text, which may name the database server.
DETAIL = {"store_unavailable": "The job could not be stored and was not accepted."}


def problem(status: int, code: str, detail: str, **members: Any) -> HttpResponse:
    """Return a problem+json answer.

    Arguments:
        status: HTTP status.
        code: fixed string for programs.
        detail: one sentence for people.
        members: further members of the body.
    """
    # "about:blank" says that the status explains itself; its title is then the status's own phrase.
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, **members}
    response = JsonResponse(body, status=status, content_type="application/problem+json")
    response["Cache-Control"] = "no-store"
    return response


def refusal(error: Rejected, request: HttpRequest | None = None) -> HttpResponse | None:
    """Return the answer to a refused submit; None for a programmer's error, which Django should report.

    Problem details, or the template boundedpool/refused.html where the request would rather have a page. Retry-After is
    there, in whole seconds, only where a moment is known.
    """
    if isinstance(error, InvalidArguments):
        return None
    members: dict[str, Any] = {"pool": error.pool}
    if error.retry_after is not None:
        members["retry_after"] = max(1, math.ceil(error.retry_after))
    status, detail = STATUS.get(error.code, 503), DETAIL.get(error.code, str(error))
    response = None
    if isinstance(request, HttpRequest) and prefers_html(request):  # REST framework's own request is not one
        response = _page(status, request, {"code": error.code, "detail": detail, **members})
    response = response or problem(status, error.code, detail, **members)
    patch_vary_headers(response, ["Accept"])
    if "retry_after" in members:
        response["Retry-After"] = str(members["retry_after"])
    return response


def _page(status: int, request: HttpRequest, context: dict[str, Any]) -> HttpResponse | None:
    """Return the page for people, or None in a project without Django's templates."""
    try:
        text = render_to_string("boundedpool/refused.html", {"title": HTTPStatus(status).phrase, **context}, request)
    except (TemplateDoesNotExist, ImproperlyConfigured):
        return None
    response = HttpResponse(text, status=status)
    response["Cache-Control"] = "no-store"
    return response


def answer_refusal(request: HttpRequest | None, error: Rejected) -> HttpResponse | None:
    """Return the answer to a refused submit and log it, at WARNING; None for a programmer's error.

    Django itself would log every 503 as an error, and so mail the administrators once for each refusal of an overload.
    """
    response = refusal(error, request)
    if response is not None:
        path = request.path if request is not None else ""
        log_response("Refused (%s): %s", error.code, path, response=response, request=request, level="warning")
    return response


def roll_back() -> None:
    """Undo what the view wrote under ATOMIC_REQUESTS: an error that is answered inside the view would commit it."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)
