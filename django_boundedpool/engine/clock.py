"""Time, behind one object, so that tests can move it.

Durations and deadlines use the monotonic clock; only moments that are stored or shown use the wall clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


def moment(seconds: float) -> datetime:
    """Return seconds since the epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


class Clock:
    """The real time. Safe from any thread."""

    def __init__(self) -> None:
        # The functions themselves: they are called several times for every job.
        #: Seconds on a clock that never jumps.
        self.monotonic: Callable[[], float] = time.monotonic
        #: Seconds since the epoch, for moments that are stored or shown: `moment` makes a date of them.
        self.time: Callable[[], float] = time.time

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        return moment(self.time())


class ManualClock(Clock):
    """A clock that moves only when told to. For tests; safe from any thread.

    Arguments:
        start: first reading of both clocks, in seconds (the wall clock counts from the epoch).
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._lock = threading.Lock()
        self._seconds = start
        self._listeners: list[Callable[[], None]] = []
        self.monotonic = self.time = lambda: self._seconds

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
