"""The options of a job and of one submit: which there are, what each takes, and what people write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .config import LONGEST, seconds
from .errors import ConfigurationError
from .retry import Retry

#: Words that people bring along from elsewhere, and ours.
FOREIGN_WORDS: Mapping[str, str] = {
    "delay": "submit(*args, **kwargs)",
    "apply_async": "using(...).submit(*args, **kwargs)",
    "enqueue": "submit(*args, **kwargs)",
    "bind": "takes_context=True",
    "countdown": "using(run_after=...), seconds from now",
    "eta": "using(run_after=...), an aware datetime",
    "max_retries": "retry=Retry(max_attempts=...)",
    "autoretry_for": "retry=Retry(on=(...))",
    "expires": "start_deadline",
    "queue": "pool",
    "queue_name": "pool",
    "rate_limit": "a smaller WORKERS, or RetryLater(after=...) inside the job",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
}

JOB_OPTIONS = (
    "pool",
    "name",
    "priority",
    "timeout",
    "start_deadline",
    "retry",
    "takes_context",
    "sensitive",
    "store_result",
    "public_errors",
    "retention",
    "owner_limit",
    "lane",
)
#: What `using` alone takes.
CALL_OPTIONS = ("owner", "batch", "correlation_id", "wait", "deadline", "run_after")
#: What `@job` alone takes.
FIXED_OPTIONS = ("name", "takes_context", "sensitive", "lane")
USING_OPTIONS = (*CALL_OPTIONS, *(option for option in JOB_OPTIONS if option not in FIXED_OPTIONS))
#: Named in the design, built in a later version.
LATER_OPTIONS = (
    "idempotency_key",
    "hand_over",
    "on_lost",
    "at_most_once",
    "on_shutdown",
)


def why_unknown(option: str, known: Sequence[str]) -> str:
    """Say what to write instead of an option that is not among `known`."""
    if option in FOREIGN_WORDS:
        return f"{option}: here it is {FOREIGN_WORDS[option]}"
    if option in LATER_OPTIONS:
        return f"{option}: this version does not have {option} yet"
    if option in CALL_OPTIONS:
        return f"{option}: that belongs to using({option}=...)"
    if option in FIXED_OPTIONS:
        return f"{option}: that belongs to @job(...)"
    close = difflib.get_close_matches(option, known, n=1)
    return f"{option}: no such option; {f'did you mean {close[0]}? T' if close else 't'}here are {', '.join(known)}"


def misplaced(words: Sequence[str]) -> str:
    """Say of keyword arguments of a submit which are options, or were elsewhere; "" if none is."""
    hints = [f"{word!r} is an option: using({word}=...).submit(...)." for word in words if word in USING_OPTIONS]
    hints += [f"{why_unknown(word, ())}." for word in words if word in (*FOREIGN_WORDS, *LATER_OPTIONS)]
    return "".join(f" {hint}" for hint in hints)


def checked(where: str, options: Mapping[str, Any], known: Sequence[str] = JOB_OPTIONS) -> dict[str, Any]:
    """Return the values of `options` as a `JobSpec` takes them.

    Arguments:
        where: how an error calls the place that gave them.
        options: options of a job and their values.
        known: the options that may be given there.

    Raises:
        ConfigurationError: names everything wrong with them.
    """
    faults = []
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option not in known:
            faults.append(why_unknown(option, known))
            continue
        try:
            values[option] = _checked(option, value)
        except ValueError as error:
            faults.append(f"{option}={value!r}: {error}")
    if faults:
        raise ConfigurationError(f"{where}: {'; '.join(faults)}.")
    return values


def moment(option: str, value: Any) -> Moment | None:
    """Return a moment that a caller gave: an aware datetime, seconds or a timedelta from the submit, or None.

    Raises:
        ConfigurationError: anything else.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(f"{option}={value!r}: give an aware datetime or seconds.")
        return Moment(at=value.timestamp())
    return Moment(after=span(option, value))


def span(option: str, value: Any) -> float:
    """Return seconds from 0 to 366 days that a caller gave as a number or a timedelta.

    Raises:
        ConfigurationError: anything else.
    """
    try:
        duration = seconds(value)
    except ValueError:
        duration = -1.0
    if not 0 <= duration <= LONGEST:
        raise ConfigurationError(f"{option}={value!r}: give seconds or a timedelta, from 0 to 366 days.")
    return duration


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment as a caller names it: seconds since the epoch, or seconds after the submit."""

    at: float | None = None
    after: float = 0.0

    def seen_from(self, now: float) -> float:
        """Return it as seconds since the epoch for a submit at `now`."""
        return now + self.after if self.at is None else self.at


def _checked(option: str, value: Any) -> Any:
    if option in ("timeout", "start_deadline", "retention"):
        if value is None:
            return None
        duration = seconds(value)
        if duration <= 0:
            raise ValueError("give more than 0 seconds")
        if duration > LONGEST:
            raise ValueError("give at most 366 days")
        return duration
    if option == "priority" and (isinstance(value, bool) or not isinstance(value, int) or not -100 <= value <= 100):
        raise ValueError("give a whole number from -100 to 100")
    if option in ("takes_context", "store_result") and not isinstance(value, bool):
        raise ValueError("give True or False")
    if option == "owner_limit" and not (
        value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000)
    ):
        raise ValueError("give a whole number from 1 to 1000000, or None")
    if option == "lane" and value not in ("io", "cpu"):
        raise ValueError("give 'io' or 'cpu'")
    if option == "retry" and not (value is None or isinstance(value, Retry)):
        raise ValueError("give a Retry(...) or None")
    if option == "pool" and not isinstance(value, str):
        raise ValueError("give the name of a pool in BOUNDED_POOLS")
    if option == "sensitive":
        if not isinstance(value, tuple | list | set | frozenset) or not all(isinstance(item, str) for item in value):
            raise ValueError("give a tuple of argument names")
        return tuple(value)
    if option == "public_errors":
        if not isinstance(value, tuple | list) or not all(
            isinstance(item, type) and issubclass(item, BaseException) for item in value
        ):
            raise ValueError("give a tuple of exception classes")
        return tuple(value)
    return value
