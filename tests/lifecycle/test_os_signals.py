"""The signal handler between handlers of others."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from django_boundedpool.lifecycle import os_signals

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test arms is disarmed after it."""
    present = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(os_signals, "_previous", {})
    monkeypatch.setattr(os_signals, "_find", lambda: None)
    yield
    for signum, handler in present.items():
        signal.signal(signum, handler)


def test_library_that_chained_to_us_may_be_chained_to_in_turn() -> None:
    """As when a server's start-up arms us again over a library that was loaded after us."""
    calls = []

    def first(signum: int, frame: FrameType | None) -> None:
        calls.append("first")

    signal.signal(signal.SIGTERM, first)
    assert os_signals.arm(lambda: None)
    ours = signal.getsignal(signal.SIGTERM)

    def theirs(signum: int, frame: FrameType | None) -> None:
        calls.append("theirs")
        assert callable(ours)
        ours(signum, frame)

    signal.signal(signal.SIGTERM, theirs)
    assert os_signals.arm(lambda: None)
    for _ in range(2):  # and it is no matter of the first signal only
        signal.raise_signal(signal.SIGTERM)
    assert calls.count("theirs") == 2


def test_server_below_a_chaining_library_still_hears_the_signal() -> None:
    calls: list[str] = []

    def library(signum: int, frame: FrameType | None) -> None:
        calls.append("library")
        ours(signum, frame)  # type: ignore[operator, misc]

    signal.signal(signal.SIGTERM, lambda *_: calls.append("server"))
    os_signals.arm(lambda: None)
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, library)
    os_signals.arm(lambda: None)
    signal.raise_signal(signal.SIGTERM)
    assert calls == ["library", "server"]


def test_second_signal_while_the_first_one_is_handled_goes_to_the_same_handler() -> None:
    calls: list[str] = []

    def server(signum: int, frame: FrameType | None) -> None:
        calls.append("server")
        if len(calls) == 1:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, server)
    os_signals.arm(lambda: None)
    signal.raise_signal(signal.SIGTERM)
    assert calls == ["server", "server"]
