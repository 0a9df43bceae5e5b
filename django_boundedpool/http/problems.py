"""Errors as problem details (RFC 9457), and which status each refusal has."""

from __future__ import annotations

import math
from typing import Any

from django.http import HttpResponse, JsonResponse

from ..engine.errors import Rejected

#: Status of each refusal code; a code without one is a programmer's error that Django should report.
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

TITLES = {
    401: "Authentication required",
    404: "No such job",
    409: "The job is over",
    413: "Too much data",
    422: "Conflicting request",
    429: "Too many requests",
    503: "Try again later",
}


def problem(status: int, code: str, detail: str = "", **members: Any) -> HttpResponse:
    """Return a problem+json answer.

    Arguments:
        status: HTTP status.
        code: fixed string for programs.
        detail: one sentence for people.
        members: further members of the body.
    """
    body = {"type": "about:blank", "title": TITLES[status], "status": status, "code": code, **members}
    if detail:
        body["detail"] = detail
    response = JsonResponse(body, status=status, content_type="application/problem+json")
    response["Cache-Control"] = "no-store"
    return response


def refusal(error: Rejected) -> HttpResponse | None:
    """Return the answer to a refused submit, with Retry-After where a moment is known; None for a programmer's error."""
    status = STATUS.get(error.code)
    if status is None:
        return None
    members: dict[str, Any] = {"pool": error.pool}
    if error.retry_after is not None:
        members["retry_after"] = math.ceil(error.retry_after)
    response = problem(status, error.code, str(error), **members)
    if error.retry_after is not None:
        response["Retry-After"] = str(math.ceil(error.retry_after))
    return response
