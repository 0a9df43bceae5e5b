"""A scripted visitor: cookies, CSRF tokens and redirects like a browser, with the standard library."""

import json
import re
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from typing import Any


class Visitor:
    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.url = base_url
        self._opener = urllib.request.build_opener(
            # No proxy: the server is on this machine.
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPCookieProcessor(CookieJar()),
        )

    def get(self, path: str) -> str:
        return self._open(urllib.request.Request(self._address(path)))  # noqa: S310 - our own http address

    def get_json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get(path))
        return answer

    def submit(self, path: str, **fields: str) -> str:
        """Load the page at `path`, fill in its form, send it. Returns the page that follows; `url` is its address."""
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(path))
        if token is None:
            raise RuntimeError(f"{self.url} has no form")
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        return self._open(urllib.request.Request(self._address(path), data=data))  # noqa: S310 - our own http address

    def log_in(self, name: str, password: str) -> None:
        self.submit("/login/", username=name, password=password)
        if urllib.parse.urlsplit(self.url).path == "/login/":
            raise RuntimeError(f"cannot log in as {name!r}: was the password changed in the admin?")

    def _address(self, path: str) -> str:
        return urllib.parse.urljoin(self.base_url, path)

    def _open(self, request: urllib.request.Request) -> str:
        with self._opener.open(request, timeout=30) as response:
            self.url = response.url
            text: str = response.read().decode()
            return text
