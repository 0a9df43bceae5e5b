"""Time, behind one object, so that tests can move it.

Durations and deadlines use the monotonic clock; only moments that are stored or shown use the wall clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """The real time. Safe from any thread."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        return datetime.now(UTC)


class ManualClock(Clock):
    """A clock that moves only when told to. For tests; safe from any thread.

    Arguments:
        start: first reading of both clocks, in seconds (the wall clock counts from the epoch).
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._lock = threading.Lock()
        self._seconds = start
        self._listeners: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        """The seconds set so far."""
        return self._seconds

    def now(self) -> datetime:
        """The seconds set so far, as a moment."""
        return datetime.fromtimestamp(self._seconds, UTC)

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each `advance`, as a timer's wake-up would."""
        self._listeners.append(callback)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"A clock moves forward only, not by {seconds} s.")
        with self._lock:
            self._seconds += seconds
        for callback in self._listeners:
            callback()
