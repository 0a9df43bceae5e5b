"""The routes, each one habit of real servers:

/fast  /slow?ms=300  /redirect?n=3  /missing  /error500  /flaky?id=7&fails=1  /limited?rate=5  /hang  /drip  /loop
/redirect-private  /huge  /break-off  /sitemap.xml?n=240  /links.txt?n=240

/control breaks the server on purpose, for demonstrations and tests: POST (or GET) with `fail=1` answers every request
with 500, `delay_ms=400` makes every answer slower, `reset=1` ends both. It always answers with what is set.
"""

import json
import random
import threading
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

DRIP_SECONDS = 0.1
LONGEST_HANG = 60.0


def demo_paths(count: int) -> list[str]:
    """A batch worth watching: mostly good links, a few of every bad kind, in a fixed shuffled order."""
    rare = [
        "/hang",
        "/huge",
        "/loop",
        "/drip",
        "/break-off",
        "/redirect-private",
        "/redirect-private?to=metadata",
        "/error500?id=1",
        "/error500?id=2",
    ]
    paths = rare[: count // 10]
    share = count - len(paths)
    paths += [f"/flaky?id={i}" for i in range(share * 5 // 100)]
    paths += [f"/limited?id={i}" for i in range(share * 4 // 100)]
    paths += [f"/missing?id={i}" for i in range(share * 4 // 100)]
    paths += [f"/redirect?n={1 + i % 5}&id={i}" for i in range(share * 6 // 100)]
    paths += [f"/slow?ms={100 + 50 * (i % 7)}&id={i}" for i in range(share * 40 // 100)]
    paths += [f"/fast?id={i}" for i in range(count - len(paths))]
    random.Random(3).shuffle(paths)  # noqa: S311 - an order, not a secret
    return paths


class DownstreamServer(ThreadingHTTPServer):
    """Serves in threads; `stopping` ends the slow routes at once."""

    daemon_threads = True
    # The default backlog of 5 drops connections of a busy pool, which would look like our own failures.
    request_queue_size = 128

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.limited: deque[float] = deque()
        self.fail = False
        self.delay_ms = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        """Stop serving. Call it from another thread than the one in serve_forever()."""
        self.stopping.set()
        self.shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that hangs up is part of the demonstration."""


class Handler(BaseHTTPRequestHandler):
    server: DownstreamServer
    server_version = "downstream"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/control":
            return self.control()
        if self.server.delay_ms:
            self.server.stopping.wait(self.server.delay_ms / 1000)
        route = ROUTES.get(parts.path)
        if self.server.fail:
            self.answer(500, "broken on purpose\n")
        elif route is None:
            self.answer(404, "no such page\n")
        else:
            route(self)
        return None

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length", "0")), 4096)
        body = parse_qs(self.rfile.read(length).decode("utf-8", "replace"))
        parts = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in (parse_qs(parts.query) | body).items()}
        if parts.path == "/control":
            self.control()
        else:
            self.answer(405, "GET only\n")

    def control(self) -> None:
        server = self.server
        if "reset" in self.query:
            server.fail, server.delay_ms = False, 0
        if "fail" in self.query:
            server.fail = self.query["fail"] == "1"
        if "delay_ms" in self.query:
            server.delay_ms = self.number("delay_ms", 0, 60_000)
        state = {"fail": server.fail, "delay_ms": server.delay_ms, "requests": dict(server.seen)}
        self.answer(200, json.dumps(state), "application/json")

    def fast(self) -> None:
        self.answer(200, "fine\n" * (1 + self.number("id", 0, 500)))

    def slow(self) -> None:
        self.server.stopping.wait(self.number("ms", 300, 60_000) / 1000)
        self.answer(200, "fine, at last\n")

    def flaky(self) -> None:
        with self.server.lock:
            self.server.seen[self.path] += 1
            failing = self.server.seen[self.path] <= self.number("fails", 1, 100)
        self.answer(503 if failing else 200, "not yet\n" if failing else "fine now\n")

    def error500(self) -> None:
        self.answer(500, "always broken\n")

    def limited(self) -> None:
        """At most `rate` requests a second, over all clients."""
        now = time.monotonic()
        recent = self.server.limited
        with self.server.lock:
            while recent and recent[0] < now - 1:
                recent.popleft()
            too_many = len(recent) >= self.number("rate", 5, 1000)
            if not too_many:
                recent.append(now)
        if too_many:
            self.answer(429, "slow down\n", headers={"Retry-After": "1"})
        else:
            self.answer(200, "fine\n")

    def hang(self) -> None:
        self.server.stopping.wait(LONGEST_HANG)

    def drip(self) -> None:
        """One byte at a time, for ever: defeats time-outs that count from the last byte."""
        self.send_response(200)
        self.end_headers()
        while not self.server.stopping.wait(DRIP_SECONDS):
            self.wfile.write(b".")

    def drip_headers(self) -> None:
        for byte in b"HTTP/1.0 200 OK\r\nX-Slow: " + b"." * 1000:
            if self.server.stopping.wait(DRIP_SECONDS):
                return
            self.wfile.write(bytes([byte]))

    def huge_headers(self) -> None:
        self.send_response(200)
        for number in range(90):
            self.send_header(f"X-Filler-{number}", "x" * 4000)
        self.end_headers()

    def redirect(self) -> None:
        hops = self.number("n", 1, 100)
        self.answer(302, "", headers={"Location": f"/redirect?n={hops - 1}" if hops > 1 else "/fast"})

    def loop(self) -> None:
        self.answer(302, "", headers={"Location": "/loop"})

    def redirect_private(self) -> None:
        metadata = self.query.get("to") == "metadata"
        self.answer(302, "", headers={"Location": "http://169.254.169.254/" if metadata else "http://127.0.0.1:22/"})

    def huge(self) -> None:
        """A body without an end."""
        self.send_response(200)
        self.end_headers()
        while not self.server.stopping.is_set():
            self.wfile.write(b"x" * 65536)

    def break_off(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half an ans")

    def sitemap(self) -> None:
        locations = "".join(f"<url><loc>{escape(url)}</loc></url>\n" for url in self.demo_urls())
        namespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
        xml = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{namespace}">\n{locations}</urlset>\n'
        self.answer(200, xml, "application/xml")

    def links(self) -> None:
        self.answer(200, "# A batch for the link checker\n" + "\n".join(self.demo_urls()) + "\n")

    def demo_urls(self) -> list[str]:
        return [self.server.url + path for path in demo_paths(self.number("n", 240, 5000))]

    def answer(
        self, status: int, text: str, content_type: str = "text/plain", headers: dict[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def number(self, name: str, default: int, highest: int) -> int:
        text = self.query.get(name, "")
        return min(int(text), highest) if text.isascii() and text.isdigit() else default


ROUTES = {
    "/fast": Handler.fast,
    "/slow": Handler.slow,
    "/flaky": Handler.flaky,
    "/error500": Handler.error500,
    "/limited": Handler.limited,
    "/hang": Handler.hang,
    "/drip": Handler.drip,
    "/drip-headers": Handler.drip_headers,
    "/huge-headers": Handler.huge_headers,
    "/redirect": Handler.redirect,
    "/loop": Handler.loop,
    "/redirect-private": Handler.redirect_private,
    "/huge": Handler.huge,
    "/break-off": Handler.break_off,
    "/sitemap.xml": Handler.sitemap,
    "/links.txt": Handler.links,
}
