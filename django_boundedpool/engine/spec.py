"""What a decorated function asks of the pool: one frozen record per job name, overridden per call by a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from .retry import Retry


class Lane(Enum):
    """On what a job's code runs."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and the queue looks lanes up for every job

    #: A worker thread.
    THREAD = "thread"
    #: A worker thread, one such job at a time in the whole process: two of them would only share one GIL.
    CPU = "cpu"
    #: The event loop.
    LOOP = "loop"


# By a name of their own: see states.py.
THREAD, CPU, LOOP = Lane.THREAD, Lane.CPU, Lane.LOOP


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
    owner_limit: int | None = None
    lane: Literal["io", "cpu"] = "io"
    #: Whether the function is a coroutine function.
    asynchronous: bool = False
    runs_on: Lane = field(init=False)
    #: Where its jobs wait: see `queue.JobQueue`.
    line: tuple[int, Lane] = field(init=False)

    def __post_init__(self) -> None:
        runs_on = Lane.LOOP if self.asynchronous else Lane.CPU if self.lane == "cpu" else Lane.THREAD
        object.__setattr__(self, "runs_on", runs_on)
        object.__setattr__(self, "line", (self.priority, runs_on))
