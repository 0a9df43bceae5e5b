"""The options of a job and of one submit: which there are, what each takes, and what people write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
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
    "countdown": "start_deadline (a longest wait); deferred starts come with a later version",
    "eta": "start_deadline (a longest wait); deferred starts come with a later version",
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
)
#: What `using` alone takes.
CALL_OPTIONS = ("owner", "batch", "correlation_id")
#: What `@job` alone takes.
FIXED_OPTIONS = ("name", "takes_context", "sensitive")
USING_OPTIONS = (*CALL_OPTIONS, *(option for option in JOB_OPTIONS if option not in FIXED_OPTIONS))
#: Named in the design, built in a later version.
LATER_OPTIONS = (
    "idempotency_key",
    "wait",
    "deadline",
    "run_after",
    "hand_over",
    "on_lost",
    "at_most_once",
    "on_shutdown",
    "owner_limit",
    "lane",
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
