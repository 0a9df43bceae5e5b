"""What a pool can say about itself, and how fast it works."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """A pool at one instant. Ages are seconds.

    `accepted == queued + running + sum(finished.values())` always holds.
    """

    pool: str
    workers: int
    threads: int
    running: int
    stuck: int
    queue_size: int
    queued: int
    delayed: int
    reserved: int
    queue_bytes: int
    oldest_age: float
    draining: bool
    accepted: int
    rejected: Mapping[str, int]
    finished: Mapping[str, int]
    retries: int


class CompletionRate:
    """Jobs finished per second over the last minute. Not locked: the pool's lock protects it."""

    WINDOW = 60.0

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=128)

    def finished(self, now: float) -> None:
        """Count one end."""
        self._ends.append(now)

    def per_second(self, now: float) -> float | None:
        """Return the rate, or None while too few jobs ended to know one."""
        while self._ends and self._ends[0] < now - self.WINDOW:
            self._ends.popleft()
        if len(self._ends) < 2:
            return None
        # Up to now, not to the last end: a pool that stopped finishing must not keep its old rate.
        span = now - self._ends[0]
        return (len(self._ends) - 1) / span if span > 0 else None
