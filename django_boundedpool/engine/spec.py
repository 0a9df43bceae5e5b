"""What a decorated function asks of the pool: one frozen record per job name, overridden per call by a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .retry import Retry


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """How one kind of job is run. Durations are seconds; None takes the pool's setting where it has one."""

    name: str
    function: Callable[..., Any]
    pool: str = "default"
    priority: int = 0
    timeout: float | None = None
    start_deadline: float | None = None
    retry: Retry | None = None
    takes_context: bool = False
    sensitive: tuple[str, ...] | None = None
    store_result: bool = True
    public_errors: tuple[type[BaseException], ...] = ()
    retention: float | None = None
