"""How long a thread of this process waits for its turn at the interpreter's lock."""

from __future__ import annotations

import threading
from collections import deque

from .clock import Clock
from .timer import Timer

#: Time between two measurements, and how many of them a reading looks back over. Seconds, number.
EVERY = 1.0
KEPT = 10


class LagProbe:
    """Measures how late the timer's thread runs what is due.

    A thread that wakes must get the lock from whoever computes, which takes one switch interval (5 ms) per thread that
    does. That is what each request of the process waits for as well, at each of its own wake-ups. Safe from any thread.
    """

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._lags: deque[float] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._due: float | None = None

    def start(self) -> None:
        """Begin to measure, once."""
        with self._lock:
            if self._due is not None:
                return
            self._due = self._clock.monotonic() + EVERY
        self._timer.at(self._due, self._measure)

    @property
    def seconds(self) -> float:
        """The longest lag of the last ten seconds, 0 if none was measured."""
        return max(tuple(self._lags), default=0.0)

    def _measure(self) -> None:
        now = self._clock.monotonic()
        if self._due is not None:
            self._lags.append(max(0.0, now - self._due))
        self._due = now + EVERY
        self._timer.at(self._due, self._measure)
