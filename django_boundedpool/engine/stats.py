"""What a pool can say about itself, and how fast it works."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """A pool at one instant. Ages are seconds.

    `accepted == queued + running + sum(finished.values())` always holds.

    Attributes:
        workers: jobs that may run at once.
        threads: worker threads there are.
        given_up: jobs that ended on paper while their code still occupies a worker.
        stuck: jobs past their time-out, or past STUCK_AFTER.
        replaced: worker threads that died and were replaced.
        queued: jobs that wait, `delayed` of them for a moment to come.
        reserved: places of submits that are not accepted yet.
        waiting: submits that wait for a place.
    """

    pool: str
    workers: int
    threads: int
    running: int
    given_up: int
    stuck: int
    replaced: int
    queue_size: int
    queued: int
    delayed: int
    reserved: int
    waiting: int
    queue_bytes: int
    oldest_age: float
    paused: bool
    draining: bool
    accepted: int
    rejected: Mapping[str, int]
    finished: Mapping[str, int]
    retries: int

    @property
    def busy(self) -> int:
        """Workers that are occupied, by jobs that were given up too."""
        return self.running + self.given_up


class CompletionRate:
    """Jobs finished per second over the last minute. Not locked: the pool's lock protects it."""

    WINDOW = 60.0

    def __init__(self) -> None:
        #: When the latest jobs ended, on the monotonic clock; appended to.
        self.ends: deque[float] = deque(maxlen=128)

    def per_second(self, now: float) -> float | None:
        """Return the rate, or None while too few jobs ended to know one."""
        while self.ends and self.ends[0] < now - self.WINDOW:
            self.ends.popleft()
        if len(self.ends) < 2:
            return None
        # Up to now, not to the last end: a pool that stopped finishing must not keep its old rate.
        span = now - self.ends[0]
        return (len(self.ends) - 1) / span if span > 0 else None
