"""Background jobs inside the Django process, in a bounded pool.

Every public name of the package is here and is loaded when it is first used, so that importing the package needs
neither configured settings nor loaded models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from .context import JobContext, current_job
    from .engine.errors import (
        BytesFull,
        Draining,
        Expired,
        GlobalLimit,
        IdempotencyConflict,
        InvalidArguments,
        JobAbandoned,
        JobCancelled,
        JobFailed,
        JobInterrupted,
        JobNotFound,
        JobTimedOut,
        OwnerLimit,
        Paused,
        PayloadTooLarge,
        QueueFull,
        RateLimited,
        Rejected,
        Shed,
        StoreUnavailable,
        WaitTimeout,
    )
    from .engine.retry import Retry, RetryLater
    from .engine.states import JobState
    from .handles import JobHandle
    from .http.permissions import get_job_or_404
    from .http.responses import accepted, overload_responses
    from .jobs import JobFunction, job, submit_many
    from .lifecycle.runtime import pools

_HOMES = {
    "JobContext": "context",
    "current_job": "context",
    "BytesFull": "engine.errors",
    "Draining": "engine.errors",
    "Expired": "engine.errors",
    "GlobalLimit": "engine.errors",
    "IdempotencyConflict": "engine.errors",
    "InvalidArguments": "engine.errors",
    "JobAbandoned": "engine.errors",
    "JobCancelled": "engine.errors",
    "JobFailed": "engine.errors",
    "JobInterrupted": "engine.errors",
    "JobNotFound": "engine.errors",
    "JobTimedOut": "engine.errors",
    "OwnerLimit": "engine.errors",
    "Paused": "engine.errors",
    "PayloadTooLarge": "engine.errors",
    "QueueFull": "engine.errors",
    "RateLimited": "engine.errors",
    "Rejected": "engine.errors",
    "Shed": "engine.errors",
    "StoreUnavailable": "engine.errors",
    "WaitTimeout": "engine.errors",
    "Retry": "engine.retry",
    "RetryLater": "engine.retry",
    "JobState": "engine.states",
    "JobHandle": "handles",
    "accepted": "http.responses",
    "overload_responses": "http.responses",
    "get_job_or_404": "http.permissions",
    "JobFunction": "jobs",
    "job": "jobs",
    "submit_many": "jobs",
    "pools": "lifecycle.runtime",
}

__all__ = [
    "BytesFull",
    "Draining",
    "Expired",
    "GlobalLimit",
    "IdempotencyConflict",
    "InvalidArguments",
    "JobAbandoned",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobInterrupted",
    "JobNotFound",
    "JobState",
    "JobTimedOut",
    "OwnerLimit",
    "Paused",
    "PayloadTooLarge",
    "QueueFull",
    "RateLimited",
    "Rejected",
    "Retry",
    "RetryLater",
    "Shed",
    "StoreUnavailable",
    "WaitTimeout",
    "accepted",
    "current_job",
    "get_job_or_404",
    "job",
    "overload_responses",
    "pools",
    "submit_many",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
