"""Retries: who decides, and how long to wait.

The pool owns retries; nothing else may stack on top. The delay is full-jitter exponential backoff: a uniform random
number between 0 and min(cap, base * 2^(n-1)) before attempt n+1 (M. Brooker, "Exponential Backoff and Jitter",
AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigurationError

#: Longest delay that an exception or classify() may ask for: dates and waits overflow beyond. Seconds.
MAX_DELAY = 366 * 86_400.0
Verdict = Literal["retry", "fail"] | float


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When and how often a failed attempt is tried again. Immutable, safe from any thread.

    Arguments:
        max_attempts: starts in all, the first included (1 to 1000).
        on: exception classes worth another attempt.
        never: exception classes that are not, although they match `on`.
        base: seconds; upper bound of the first delay (> 0).
        cap: seconds; upper bound of every delay (>= base).
        budget: retries that each fresh start of the job earns (0 to 1), besides ten free ones a minute per job name,
            so that an outage cannot multiply the load.
        classify: called with the exception; returns "retry", "fail" or a delay in seconds, and decides alone.

    Raises:
        ConfigurationError: a value outside its range.
    """

    max_attempts: int = 3
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()
    base: float = 1.0
    cap: float = 60.0
    budget: float = 0.2
    classify: Callable[[BaseException], Verdict] | None = None

    def __post_init__(self) -> None:
        faults = []
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            faults.append(f"max_attempts={self.max_attempts!r}: give a whole number from 1 to 1000")
        elif not 1 <= self.max_attempts <= 1000:
            faults.append(f"max_attempts={self.max_attempts!r}: give a whole number from 1 to 1000")
        for name in ("on", "never"):
            classes = getattr(self, name)
            if not isinstance(classes, tuple) or not all(
                isinstance(c, type) and issubclass(c, BaseException) for c in classes
            ):
                faults.append(f"{name}={classes!r}: give a tuple of exception classes")
        numbers = {"base": (self.base, 1e-9), "cap": (self.cap, 1e-9), "budget": (self.budget, 0)}
        for name, (value, low) in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= MAX_DELAY:
                faults.append(f"{name}={value!r}: give a number {'> 0' if low else '>= 0'}, at most 366 days")
        if not faults and self.cap < self.base:
            faults.append(f"cap={self.cap!r}: give at least base ({self.base!r})")
        if not faults and self.budget > 1:
            faults.append(f"budget={self.budget!r}: give at most 1")
        if self.classify is not None and not callable(self.classify):
            faults.append(f"classify={self.classify!r}: give a callable or None")
        if faults:
            raise ConfigurationError("Retry(...): " + "; ".join(faults) + ".")

    def verdict(self, error: BaseException) -> Verdict:
        """Return "retry", "fail" or a delay in seconds for an attempt that raised `error`."""
        if isinstance(error, RetryLater):
            return error.after
        if self.classify is not None:
            answer = self.classify(error)
            if answer in ("retry", "fail"):
                return answer
            if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 <= answer < float("inf"):
                raise TypeError(f"classify() returned {answer!r}; it returns 'retry', 'fail' or seconds >= 0.")
            return min(float(answer), MAX_DELAY)
        return "retry" if isinstance(error, self.on) and not isinstance(error, self.never) else "fail"

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after the `failures`-th failed attempt (>= 1), always within [0, cap]."""
        doublings = min(failures - 1, 64)  # beyond this any base exceeds any cap; keeps 2**n from growing without end
        return rng.uniform(0, min(self.cap, self.base * 2**doublings))


class RetryLater(Exception):
    """Raised by a job that knows when another attempt is worthwhile, such as a partner's 429 with Retry-After.

    Arguments:
        after: seconds until the next attempt (>= 0); the retry policy's cap does not apply.
    """

    def __init__(self, after: float, message: str = "") -> None:
        if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after < float("inf"):
            raise ValueError(f"RetryLater(after={after!r}): give seconds >= 0.")
        self.after = min(float(min(after, MAX_DELAY)), MAX_DELAY)
        super().__init__(message or f"retry after {self.after:g} s")


class RetryBudget:
    """A token bucket of retries for one job name. Not locked: its owner's lock protects it.

    Each fresh start adds `per_start` tokens; `FREE_PER_MINUTE` more flow in with time. A retry takes one.
    """

    FREE_PER_MINUTE = 10.0
    CEILING = 100.0  # tokens kept at most, so that a quiet week does not pay for a storm

    def __init__(self, now: float) -> None:
        self._tokens = self.FREE_PER_MINUTE
        self._at = now

    def _refill(self, now: float) -> None:
        self._tokens = min(self.CEILING, self._tokens + (now - self._at) * self.FREE_PER_MINUTE / 60)
        self._at = now

    def started(self, per_start: float, now: float) -> None:
        """Count a fresh start."""
        self._refill(now)
        self._tokens = min(self.CEILING, self._tokens + per_start)

    def take(self, now: float) -> bool:
        """Pay for one retry; False when the budget is exhausted."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
