"""A strict Content-Security-Policy, which Django 5.2 does not send by itself (6.0 does)."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"


View = Callable[[HttpRequest], HttpResponse]


def content_security_policy(get_response: View) -> View:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.setdefault("Content-Security-Policy", POLICY)
        return response

    return middleware
