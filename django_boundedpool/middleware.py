"""Turns a refused submit into its HTTP answer, in sync and async projects."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from .engine.errors import Rejected
from .http.problems import answer_refusal


class OverloadMiddleware(MiddlewareMixin):
    """Answers 503, 429, 422 or 413 with Retry-After and problem+json where a view let a `Rejected` through.

    Invalid arguments are a programmer's error: they pass, and Django reports them.
    """

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a refusal; leave everything else alone."""
        return answer_refusal(request, exception) if isinstance(exception, Rejected) else None
