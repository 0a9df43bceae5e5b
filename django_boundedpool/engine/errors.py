"""Everything the pool raises.

::

    BoundedPoolError
    ├── ConfigurationError
    ├── Rejected                    submit: not accepted; has code, pool, retry_after
    │   ├── Draining                draining             the process is stopping
    │   ├── Paused                  paused
    │   ├── Expired                 expired              the caller's deadline has passed
    │   ├── InvalidArguments        invalid_arguments    also a TypeError
    │   ├── PayloadTooLarge         payload_too_large
    │   ├── IdempotencyConflict     idempotency_conflict
    │   ├── OwnerLimit              owner_limit
    │   ├── RateLimited             rate_limit
    │   ├── GlobalLimit             global_limit
    │   ├── Shed                    shed
    │   ├── QueueFull               queue_full
    │   ├── BytesFull               bytes_full
    │   ├── WaitTimeout             wait_timeout
    │   └── StoreUnavailable        store_unavailable    the row could not be made durable
    ├── JobNotFound                 no such job (also a LookupError)
    ├── JobFailed                   result(): the job failed; has type, message, attempts
    │   └── JobTimedOut             also a TimeoutError
    ├── JobCancelled                result(): the job was cancelled
    ├── JobAbandoned                result(): the pool gave the job up
    └── WaitingWouldDeadlock        result() where waiting could never end
    BaseException
    └── JobInterrupted              raised inside a job by its context; has reason
"""

from __future__ import annotations

from typing import ClassVar

from .states import Reason


class BoundedPoolError(Exception):
    """Base of every ordinary error of this package."""


class ConfigurationError(BoundedPoolError):
    """A setting or an option that cannot work; the message lists every fault at once."""


class Rejected(BoundedPoolError):
    """A job that was not accepted. It has no row, holds no place and will not run.

    Attributes:
        code: a fixed string, one per subclass.
        pool: name of the pool that refused.
        retry_after: seconds after which another try is worthwhile, or None when that is not known.
    """

    code: ClassVar[str] = "rejected"

    def __init__(self, message: str, *, pool: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.pool = pool
        self.retry_after = retry_after


class Draining(Rejected):
    """The process is stopping and accepts nothing more."""

    code = "draining"


class Paused(Rejected):
    """The pool is paused and refuses."""

    code = "paused"


class Expired(Rejected):
    """The caller's deadline had passed at submit."""

    code = "expired"


class InvalidArguments(Rejected, TypeError):
    """An argument that is not a JSON value, or that does not fit the function's signature: a programmer's error."""

    code = "invalid_arguments"


class PayloadTooLarge(Rejected):
    """The arguments are larger than MAX_PAYLOAD_BYTES."""

    code = "payload_too_large"


class IdempotencyConflict(Rejected):
    """The idempotency key was used with other arguments."""

    code = "idempotency_conflict"


class OwnerLimit(Rejected):
    """The owner already holds its share of the pool."""

    code = "owner_limit"


class RateLimited(Rejected):
    """The rate limit across replicas was reached."""

    code = "rate_limit"


class GlobalLimit(Rejected):
    """The concurrency limit across replicas was reached."""

    code = "global_limit"


class Shed(Rejected):
    """The queue is past the share of this job's priority."""

    code = "shed"


class QueueFull(Rejected):
    """Every place of the pool is taken."""

    code = "queue_full"


class BytesFull(Rejected):
    """The waiting arguments fill QUEUE_BYTES."""

    code = "bytes_full"


class WaitTimeout(Rejected):
    """The wait for a place ended without one; the job is provably not queued."""

    code = "wait_timeout"


class StoreUnavailable(Rejected):
    """The job's row could not be made durable in time."""

    code = "store_unavailable"


REJECTIONS: tuple[type[Rejected], ...] = (
    Draining,
    Paused,
    Expired,
    InvalidArguments,
    PayloadTooLarge,
    IdempotencyConflict,
    OwnerLimit,
    RateLimited,
    GlobalLimit,
    Shed,
    QueueFull,
    BytesFull,
    WaitTimeout,
    StoreUnavailable,
)


class JobNotFound(BoundedPoolError, LookupError):
    """No job has this id: it never existed, was rolled back, or its retention has passed."""


class JobFailed(BoundedPoolError):
    """The job failed for good.

    Attributes:
        type: dotted name of the exception its code raised.
        message: text of that exception.
        attempts: how many times its code was started.
    """

    def __init__(self, message: str, *, type: str = "", attempts: int = 0) -> None:
        super().__init__(f"{type}: {message}" if type else message)
        self.type = type
        self.message = message
        self.attempts = attempts


class JobTimedOut(JobFailed, TimeoutError):
    """The job's code was still running at its time-out; whatever it returned later was discarded."""


class JobCancelled(BoundedPoolError):
    """The job was cancelled. `reason` says by what."""

    def __init__(self, message: str, *, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class JobAbandoned(BoundedPoolError):
    """The job was accepted but the pool gave it up. `reason` says why."""

    def __init__(self, message: str, *, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class WaitingWouldDeadlock(BoundedPoolError):
    """Waiting here could never end: inside a worker of the same pool, or before one's own transaction commits."""


class JobInterrupted(BaseException):
    """Raised inside a job by `check()` and `sleep()` once the job was asked to stop.

    A BaseException, so that `except Exception` around a call inside the job does not swallow it.

    Attributes:
        reason: why the job should stop: user, operator, timeout, shutdown, ...
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"The job was asked to stop: {reason.value}.")
        self.reason = reason
