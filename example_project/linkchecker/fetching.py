"""Fetch one URL within limits of time, size and redirects. No Django here, only the standard library.

Exceptions:

    Refused            a rule of targets.py is broken, here or behind a redirect
    Broken             an answer that will not get better by asking again
    TransientFailure   worth another try
        TooManyRequests    the server named (or we chose) a delay: `retry_after`

Python's own time-outs count from the last byte, so a server that sends one byte a second holds a plain client for
ever. Here every wait is cut into short slices; between them the total deadline and `check` (the job's cancellation)
are looked at.
"""

import email.utils
import errno
import http.client
import io
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from urllib.parse import urljoin

from .targets import Policy, Refused, Resolver, Target, locate, system_resolver

SLICE = 0.2  # seconds between two looks at deadline and cancellation
CHUNK = 64 * 1024
LARGEST_SIZE = 2**63 - 1
REDIRECTS = frozenset({301, 302, 303, 307, 308})
TRANSIENT_STATUS = frozenset({500, 502, 503, 504})
USER_AGENT = "linkchecker (django-boundedpool example)"


class Broken(Exception):
    """The answer is final and bad."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TransientFailure(Exception):
    """The failure may pass: no connection, no answer in time, or a 5xx status."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TooManyRequests(TransientFailure):
    def __init__(self, retry_after: float) -> None:
        super().__init__(status_line(429), 429)
        self.retry_after = retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    seconds: float = 10
    connect_seconds: float = 5
    header_bytes: int = 64 * 1024
    body_bytes: int = 1024 * 1024
    redirects: int = 5
    # A 429 may ask for an hour. The job would hold its place in the queue for that long.
    retry_after: float = 10


@dataclass(frozen=True, kw_only=True)
class Fetched:
    status: int
    url: str
    redirects: int
    seconds: float
    # What the server announced when it announced more than we read.
    size: int
    cut: bool
    body: bytes = b""


def fetch(
    url: str,
    *,
    policy: Policy,
    limits: Limits,
    check: Callable[[], None] = lambda: None,
    resolve: Resolver = system_resolver,
    keep_body: bool = False,
) -> Fetched:
    """GET `url`, following redirects, and read at most `limits.body_bytes` of the answer.

    `check` is called at least every 0.2 s while waiting (name resolution excepted) and may raise to stop the fetch.
    """
    started = time.monotonic()
    deadline = started + limits.seconds
    seen: list[str] = []
    while True:
        check()
        try:
            target = locate(url, policy, resolve)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise TransientFailure("the name server did not answer") from error
            raise Broken("unknown host name") from error
        except OSError as error:
            raise TransientFailure("the host name could not be resolved") from error
        if target.url in seen:
            raise Broken("redirects in a loop")
        if len(seen) > limits.redirects:
            raise Broken(f"more than {limits.redirects} redirects")
        seen.append(target.url)
        try:
            status, location, size, cut, body = _exchange(target, limits, deadline, check, keep_body=keep_body)
        except TimeoutError as error:
            raise TransientFailure("no complete answer in time") from error
        except ssl.SSLCertVerificationError as error:
            raise Broken(f"bad certificate: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise Broken(f"TLS failed: {error.reason or 'connection closed'}") from error
        except OSError as error:
            raise TransientFailure(f"no connection: {error.strerror or 'closed by the server'}") from error
        except http.client.IncompleteRead as error:
            raise TransientFailure("the answer broke off") from error
        except (http.client.HTTPException, ValueError) as error:
            raise Broken("the answer is not HTTP") from error
        if status not in REDIRECTS or location is None:
            break
        try:
            url = urljoin(target.url, location)
        except ValueError as error:
            raise Broken("redirects to something that is not a URL") from error
    if status in TRANSIENT_STATUS:
        raise TransientFailure(status_line(status), status)
    return Fetched(
        status=status,
        url=target.url,
        redirects=len(seen) - 1,
        seconds=time.monotonic() - started,
        size=size,
        cut=cut,
        body=body,
    )


def status_line(status: int) -> str:
    return f"HTTP {status} {http.client.responses.get(status, '')}".rstrip()


def _exchange(
    target: Target, limits: Limits, deadline: float, check: Callable[[], None], *, keep_body: bool
) -> tuple[int, str | None, int, bool, bytes]:
    """One request and its answer: status, Location, size of the body, whether it was cut, the body."""
    wire = _connect(target, limits, deadline, check)
    # Only for writing the request and reading the answer: the connection is already made, to a checked address.
    connection = http.client.HTTPConnection(target.netloc)
    connection.sock = wire
    try:
        wire.allowance = limits.header_bytes
        connection.request(
            "GET",
            target.path,
            headers={
                "Host": target.netloc,
                "User-Agent": USER_AGENT,
                "Accept": "*/*",
                "Accept-Encoding": "identity",
                "Connection": "close",
            },
        )
        response = connection.getresponse()
        if response.status == 429:
            raise TooManyRequests(_retry_after(response.getheader("Retry-After"), limits.retry_after))
        location = response.getheader("Location")
        if response.status in REDIRECTS and location is not None:
            # http.client reads headers as Latin-1; servers that send raw UTF-8 mean UTF-8. Browsers mend spaces, too.
            location = location.encode("latin-1").decode("utf-8", "replace").strip().replace(" ", "%20")
            return response.status, location, 0, False, b""
        # Chunk headers come on top of the body, so the wire may carry somewhat more than body_bytes.
        wire.allowance = 2 * limits.body_bytes + limits.header_bytes
        kept: list[bytes] = []
        size = 0
        while size <= limits.body_bytes and (chunk := response.read(CHUNK)):
            size += len(chunk)
            if keep_body:
                kept.append(chunk)
        cut = size > limits.body_bytes
        missing = response.length or 0
        if missing and not cut:
            # read(n) ends quietly where read() would raise this.
            raise http.client.IncompleteRead(b"", missing)
        # A server can announce any number; a database column cannot hold it.
        size = min(size + missing, LARGEST_SIZE)
        return response.status, None, size, cut, b"".join(kept)
    except _TooMuch:
        raise Broken(f"headers or framing larger than {limits.header_bytes // 1024} KiB") from None
    finally:
        wire.hang_up()


def _connect(target: Target, limits: Limits, deadline: float, check: Callable[[], None]) -> "_Wire":
    """Connect to the first checked address that answers."""
    failure: OSError | None = None
    for address in target.addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        wire = _Wire(sock, min(deadline, time.monotonic() + limits.connect_seconds), check)
        try:
            wire.connect((address, target.port))
            if target.scheme == "https":
                wire.start_tls(target.host)
        except ssl.SSLError:
            wire.hang_up()
            raise
        except OSError as error:
            wire.hang_up()
            failure = error
            continue
        except BaseException:
            wire.hang_up()
            raise
        wire.deadline = deadline
        return wire
    raise failure or OSError("the host has no address")


class _TooMuch(Exception):
    pass


class _Wire:
    """As much of a socket as http.client uses, with a deadline for everything and an allowance of bytes to read."""

    def __init__(self, sock: socket.socket, deadline: float, check: Callable[[], None]) -> None:
        self.sock = sock
        self.deadline = deadline
        self.check = check
        self.allowance = 0

    def connect(self, address: tuple[str, int]) -> None:
        self.sock.setblocking(False)
        error = self.sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            writable = select.poll()
            writable.register(self.sock, select.POLLOUT)
            while not writable.poll(self._slice() * 1000):
                pass
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error).lower())

    def start_tls(self, host: str) -> None:
        self.sock.settimeout(self._slice())
        secured = _tls_context().wrap_socket(self.sock, server_hostname=host, do_handshake_on_connect=False)
        self.sock = secured
        while True:
            secured.settimeout(self._slice())
            try:
                return secured.do_handshake()
            except TimeoutError:
                continue

    def sendall(self, data: bytes) -> None:
        # A request of a few KiB fits into the socket's buffer: this does not wait in practice.
        self._slice()
        self.sock.settimeout(max(0.001, self.deadline - time.monotonic()))
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_WireReader(self))

    def receive_into(self, buffer: memoryview) -> int:
        if self.allowance <= 0:
            raise _TooMuch
        while True:
            self.sock.settimeout(self._slice())
            try:
                count = self.sock.recv_into(buffer)
            except TimeoutError:
                continue
            self.allowance -= count
            return count

    def close(self) -> None:
        """Nothing: http.client closes its socket once it has the headers, while the body is still to be read."""

    def hang_up(self) -> None:
        self.sock.close()

    def _slice(self) -> float:
        """How long the next wait may be, in seconds."""
        self.check()
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline passed")
        return min(SLICE, left)


class _WireReader(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._wire.receive_into(buffer)


@cache
def _tls_context() -> ssl.SSLContext:
    # Reading the system's certificates takes some 20 ms; one context serves all threads.
    return ssl.create_default_context()


def _retry_after(value: str | None, cap: float) -> float:
    """Seconds from a Retry-After header, which holds a number or a date."""
    seconds = 1.0
    if value and value.isascii() and value.strip().isdigit():
        seconds = float(value)
    elif value:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            pass
    return min(max(seconds, 0.1), cap)


__all__ = [
    "Broken",
    "Fetched",
    "Limits",
    "Policy",
    "Refused",
    "TooManyRequests",
    "TransientFailure",
    "fetch",
    "status_line",
]
