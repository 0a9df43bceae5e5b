import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from downstream.server import DownstreamServer
from linkchecker.fetching import (
    Broken,
    Fetched,
    Limits,
    Refused,
    TooManyRequests,
    TransientFailure,
    _connect,
    _retry_after,
    fetch,
)
from linkchecker.targets import Policy, Target

Fetch = Callable[..., Fetched]


@pytest.fixture
def get(downstream: DownstreamServer, policy: Policy) -> Fetch:
    def get(path: str, *, seconds: float = 10, **options) -> Fetched:
        return fetch(downstream.url + path, policy=policy, limits=Limits(seconds=seconds), **options)

    return get


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Interrupted(BaseException):
    pass


def test_good_page_is_measured(get: Fetch) -> None:
    found = get("/fast?id=3", keep_body=True)
    assert (found.status, found.size, found.redirects, found.cut) == (200, 20, 0, False)
    assert found.body == b"fine\n" * 4
    assert 0 < found.seconds < 10


def test_missing_page_is_an_answer(get: Fetch) -> None:
    assert get("/missing").status == 404


def test_five_redirects_are_followed_and_six_are_not(get: Fetch) -> None:
    found = get("/redirect?n=5")
    assert (found.status, found.redirects) == (200, 5)
    assert found.url.endswith("/fast")
    with pytest.raises(Broken, match="more than 5 redirects"):
        get("/redirect?n=6")


def test_redirect_loop_is_noticed(get: Fetch) -> None:
    with pytest.raises(Broken, match="loop"):
        get("/loop")


@pytest.mark.parametrize("query", ["", "?to=metadata"])
def test_redirect_to_a_closed_address_is_refused(get: Fetch, query: str) -> None:
    with pytest.raises(Refused, match=r"loopback|port 22|link-local"):
        get("/redirect-private" + query)


def test_server_error_is_transient(get: Fetch) -> None:
    with pytest.raises(TransientFailure, match="HTTP 500") as caught:
        get("/error500")
    assert caught.value.status == 500


def test_flaky_page_is_fine_the_second_time(get: Fetch) -> None:
    with pytest.raises(TransientFailure):
        get("/flaky?id=test-fetching")
    assert get("/flaky?id=test-fetching").status == 200


def test_too_many_requests_names_the_delay(get: Fetch) -> None:
    with pytest.raises(TooManyRequests) as caught:
        get("/limited?rate=0")
    assert caught.value.retry_after == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 1),
        ("3", 3),
        ("7200", 10),
        ("0", 0.1),
        ("-5", 1),
        ("soon", 1),
        ("\u00b2", 1),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.1),
    ],
)
def test_delay_is_read_and_capped(header: str | None, seconds: float) -> None:
    assert _retry_after(header, 10) == seconds


def test_endless_body_is_cut(get: Fetch) -> None:
    found = get("/huge")
    assert found.cut
    assert 1024 * 1024 < found.size < 1024 * 1024 + 2 * 65536


def test_headers_without_end_are_cut(get: Fetch) -> None:
    with pytest.raises(Broken, match="larger than 64 KiB"):
        get("/huge-headers")


@pytest.mark.parametrize("path", ["/hang", "/drip", "/drip-headers"])
def test_slow_server_cannot_pass_the_deadline(get: Fetch, path: str) -> None:
    started = time.monotonic()
    with pytest.raises(TransientFailure, match="in time"):
        get(path, seconds=0.5)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("path", ["/hang", "/drip", "/drip-headers"])
def test_cancellation_acts_while_the_server_is_silent(get: Fetch, path: str) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.3, cancelled.set)
    timer.start()

    def check() -> None:
        if cancelled.is_set():
            raise Interrupted

    started = time.monotonic()
    with pytest.raises(Interrupted):
        get(path, check=check)
    timer.join()
    assert time.monotonic() - started < 2


def test_answer_that_breaks_off_is_transient(get: Fetch) -> None:
    with pytest.raises(TransientFailure, match="broke off"):
        get("/break-off")


def test_closed_port_is_transient() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    policy = Policy(exempt=frozenset({("127.0.0.1", port)}))
    with pytest.raises(TransientFailure, match="no connection"):
        fetch(f"http://127.0.0.1:{port}/", policy=policy, limits=Limits())


def test_silent_tls_server_cannot_pass_the_deadline(silent_port: int) -> None:
    policy = Policy(exempt=frozenset({("127.0.0.1", silent_port)}))
    with pytest.raises(TransientFailure, match="in time"):
        fetch(f"https://127.0.0.1:{silent_port}/", policy=policy, limits=Limits(seconds=0.5))


def test_server_that_does_not_speak_tls_is_broken(downstream: DownstreamServer, policy: Policy) -> None:
    with pytest.raises(Broken, match="TLS"):
        fetch(downstream.url.replace("http", "https"), policy=policy, limits=Limits(seconds=2))


@pytest.fixture
def answers() -> Iterator[Callable[[bytes], Fetched]]:
    """Fetches from a server that sends exactly the given bytes to each of its visitors."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as executor:
        port = server.getsockname()[1]

        def serve(answer: bytes) -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                with suppress(ConnectionError):
                    connection.sendall(answer)

        def answers(answer: bytes) -> Fetched:
            served = executor.submit(serve, answer)
            try:
                policy = Policy(exempt=frozenset({("127.0.0.1", port)}))
                return fetch(f"http://127.0.0.1:{port}/", policy=policy, limits=Limits(seconds=5))
            finally:
                served.result()

        yield answers


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\r\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n"])
def test_answer_that_is_not_http_is_broken(answers: Callable[[bytes], Fetched], answer: bytes) -> None:
    with pytest.raises(Broken, match="not HTTP"):
        answers(answer)


def test_announced_size_is_believed_up_to_what_can_be_stored(answers: Callable[[bytes], Fetched]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    body = b"x" * (1024 * 1024 + 1)
    assert answers(head % 5_000_000 + body).size == 5_000_000
    assert answers(head % 10**30 + body).size == 2**63 - 1


def test_chunked_answer_that_breaks_off_is_transient(answers: Callable[[bytes], Fetched]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answers(head + b"4\r\nfine\r\n0\r\n\r\n").size == 4
    with pytest.raises(TransientFailure, match="broke off"):
        answers(head + b"4\r\nfi")


@pytest.mark.parametrize(
    ("location", "expected"),
    [(b"http://[", Broken), (b"", Broken), (b"file:///etc/passwd", Refused), (b"//10.0.0.1/", Refused)],
)
def test_redirect_to_nonsense_does_not_crash(
    answers: Callable[[bytes], Fetched], location: bytes, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        answers(b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\n\r\n")


def test_next_address_is_tried_when_the_first_does_not_answer(downstream: DownstreamServer) -> None:
    port = downstream.server_address[1]
    # The first fails at once, the second by a refused connection.
    addresses = ("255.255.255.255", "127.0.0.9", "127.0.0.1")
    target = Target(scheme="http", host="name.example", port=port, path="/fast", addresses=addresses)
    wire = _connect(target, Limits(), time.monotonic() + 5, lambda: None)
    assert wire.sock.getpeername() == ("127.0.0.1", port)
    wire.hang_up()


@pytest.mark.parametrize(("number", "expected"), [(socket.EAI_NONAME, Broken), (socket.EAI_AGAIN, TransientFailure)])
def test_lookup_failure_is_final_or_transient_by_its_kind(number: int, expected: type[Exception]) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(number, "no")

    with pytest.raises(expected):
        fetch("http://example.com/", policy=Policy(), limits=Limits(), resolve=resolve)


def test_connection_goes_to_the_checked_address_without_a_second_lookup(
    downstream: DownstreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers first with a public and then with a private address gains nothing."""
    asked: list[str] = []
    dialled: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"] if len(asked) == 1 else ["127.0.0.1"]

    def connect_ex(self: socket.socket, address: tuple[str, int]) -> int:
        dialled.append(address)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("linkchecker.fetching.socket.socket", type("Spy", (socket.socket,), {"connect_ex": connect_ex}))
    with pytest.raises(TransientFailure):
        fetch("http://rebinding.example/", policy=Policy(), limits=Limits(), resolve=resolve)
    assert asked == ["rebinding.example"]
    assert dialled == [("93.184.216.34", 80)]


def test_certificates_are_verified() -> None:
    from linkchecker.fetching import _tls_context

    context = _tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
