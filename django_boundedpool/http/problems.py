"""Errors as problem details (RFC 9457), and which status each refusal has."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import DisallowedHost, ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.utils.cache import patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.log import log_response
from django.utils.translation import gettext_lazy as _

from ..engine.errors import InvalidArguments, Rejected
from .negotiation import prefers_html

logger = logging.getLogger("django_boundedpool.http")

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

#: Said instead of the error's own text, which may name the database server. With DEBUG that text follows.
DETAIL = {"store_unavailable": "The job could not be stored and was not accepted."}

#: What the page says: numbers of workers and bytes are of no use to people.
BUSY = _("The site is busy and did not start your request.")
FOR_PEOPLE = {
    "draining": _("The site is restarting and did not start your request."),
    "paused": _("The site has paused this work and did not start your request."),
    "expired": _("Your request came too late and was not started."),
    "payload_too_large": _("Your request holds too much data and was not started."),
    "idempotency_conflict": _("A request like this one was sent before with other data. Yours was not started."),
    "owner_limit": _("Your earlier requests are still being worked on. This one was not started."),
    "rate_limit": _("There were too many requests in a short time. Yours was not started."),
    "store_unavailable": _("The site cannot take requests at the moment and did not start yours."),
}
#: Refused again however often it is sent.
HOPELESS = frozenset({"payload_too_large", "idempotency_conflict"})


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
    if settings.DEBUG and error.code in DETAIL:
        detail = f"{detail} {error}"
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
    code = context["code"]
    context |= {
        "text": FOR_PEOPLE.get(code, BUSY),
        "again": code not in HOPELESS,
        "back": _way_back(request),
        "repeat": request.get_full_path() if request.method in ("GET", "HEAD") else None,
        "stylesheet": _stylesheet(),
        "debug": settings.DEBUG,
    }
    try:
        text = render_to_string("boundedpool/refused.html", context, request)
    except (TemplateDoesNotExist, ImproperlyConfigured):
        return None
    except Exception:
        logger.exception("The page of a refusal could not be rendered; problem details are sent instead.")
        return None
    response = HttpResponse(text, status=status)
    response["Cache-Control"] = "no-store"
    return response


def _way_back(request: HttpRequest) -> str | None:
    """Return the page of this site that the request came from, or None."""
    referrer = request.META.get("HTTP_REFERER", "")
    try:
        ours = url_has_allowed_host_and_scheme(referrer, {request.get_host()}, require_https=request.is_secure())
    except DisallowedHost:
        return None
    return str(referrer) if ours else None


def _stylesheet() -> str | None:
    """Return the address of the page's style sheet, or None in a project that does not serve it."""
    if not apps.is_installed("django.contrib.staticfiles"):
        return None
    try:
        return static("django_boundedpool/refused.css")
    except Exception:  # noqa: BLE001 - a manifest from before this file was added; the page does without
        return None


def answer_refusal(request: HttpRequest | None, error: Rejected) -> HttpResponse | None:
    """Return the answer to a refused submit and log it, with the error's own text; None for a programmer's error.

    At WARNING: Django itself would log every 503 as an error, and so mail the administrators once for each refusal of
    an overload. A store that cannot be written is an error.
    """
    response = refusal(error, request)
    if response is not None:
        path = request.path if request is not None else ""
        level = "error" if error.code == "store_unavailable" else "warning"
        log_response("Refused (%s): %s: %s", error.code, path, error, response=response, request=request, level=level)
    return response


def roll_back() -> None:
    """Undo what the view wrote under ATOMIC_REQUESTS: an error that is answered inside the view would commit it."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)
