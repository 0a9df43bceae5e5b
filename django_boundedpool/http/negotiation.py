"""What a client would rather have: data or a page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers


def prefers_html(request: HttpRequest) -> bool:
    """Whether the client would rather have a page. `*/*`, nothing and nonsense mean JSON."""
    return request.get_preferred_type(["application/json", "text/html"]) == "text/html"


def private(response: HttpResponse) -> HttpResponse:
    """Mark an answer that depends on who asks and how; returns it.

    `no-cache`, not `no-store`: browsers never revalidate what they may not store.
    """
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["Accept", "Cookie"])
    return response
