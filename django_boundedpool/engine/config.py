"""Configuration records, and the one reader that turns settings into them.

A record is frozen and complete: code never asks whether a value is valid. Reading collects every fault, so that a
user mends a settings file in one go.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from .errors import ConfigurationError
from .states import JobState

MIB = 1024 * 1024
DAY = 86_400.0
#: Longest duration of any setting or option: dates and waits overflow beyond.
LONGEST = 366 * DAY


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong with a setting: where, what was given, and what to write instead."""

    path: str
    value: object
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} = {self.value!r}: {self.remedy}"


class _Bad(Exception):
    """Internal: a value that a reader refuses, with the remedy."""


Reader = Callable[[object], Any]
Record = TypeVar("Record")


def _integer(low: int, high: int, *, optional: bool = False) -> Reader:
    def read(value: object) -> int | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _Bad(f"give a whole number from {low} to {high}{', or None' if optional else ''}.")
        return value

    return read


def seconds(value: object) -> float:
    """Read a duration given as seconds (int, float) or timedelta; raise ValueError for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        raise ValueError("give seconds (a finite number) or a timedelta")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("give a number of seconds that a float can hold") from None


def _span(duration: float) -> str:
    days = duration / DAY
    return f"{days:g} day{'' if days == 1 else 's'}" if days >= 1 else f"{duration:g} seconds"


_workers = _integer(1, 1000)


def workers_fault(value: object) -> str | None:
    """Return what to give instead of `value` as a number of workers; None if it is one."""
    try:
        _workers(value)
    except _Bad as bad:
        return str(bad)
    return None


def _seconds(low: float, high: float = LONGEST, *, optional: bool = False) -> Reader:
    remedy = f"give seconds or a timedelta, from {_span(low)} to {_span(high)}{', or None' if optional else ''}."

    def read(value: object) -> float | None:
        if value is None and optional:
            return None
        try:
            result = seconds(value)
        except ValueError:
            raise _Bad(remedy) from None
        if not low <= result <= high:
            raise _Bad(remedy)
        return result

    return read


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Bad("give True or False.")
    return value


def _choice(*words: str) -> Reader:
    def read(value: object) -> str:
        if value not in words:
            raise _Bad(f"give one of {', '.join(map(repr, words))}.")
        return str(value)

    return read


def _text(*, optional: bool) -> Reader:
    def read(value: object) -> str | None:
        if value is None and optional:
            return None
        if not isinstance(value, str) or (optional and not value):
            raise _Bad(f"give a text{' or None' if optional else ''}.")
        return value

    return read


def _fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _Bad("give a number from 0 to 1.")
    return float(value)


RETENTION: Mapping[JobState, float] = MappingProxyType(
    {
        JobState.SUCCEEDED: 3 * DAY,
        JobState.FAILED: 7 * DAY,
        JobState.CANCELLED: 3 * DAY,
        JobState.ABANDONED: 30 * DAY,
    }
)


def _retention(value: object) -> Mapping[JobState, float]:
    keys = ", ".join(map(repr, map(str, RETENTION)))
    remedy = f"give a dictionary with any of the keys {keys} and timedeltas from 0 to 366 days."
    if not isinstance(value, Mapping):
        raise _Bad(remedy)
    merged = dict(RETENTION)
    for key, duration in value.items():
        if key not in RETENTION:
            raise _Bad(f"{key!r} is no state that a job ends in; {remedy}")
        try:
            merged[JobState(key)] = seconds(duration)
        except ValueError:
            raise _Bad(remedy) from None
        if not 0 < merged[JobState(key)] <= LONGEST:
            raise _Bad(remedy)
    return MappingProxyType(merged)


def _shares(value: object) -> Mapping[int, float]:
    remedy = "give a dictionary of priorities (-100 to 100) to shares of the queue (0 to 1), such as {-1: 0.8}."
    if not isinstance(value, Mapping):
        raise _Bad(remedy)
    shares = {}
    for priority, share in value.items():
        if isinstance(priority, bool) or not isinstance(priority, int) or not -100 <= priority <= 100:
            raise _Bad(f"{priority!r} is no priority; {remedy}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise _Bad(f"{share!r} is no share; {remedy}")
        shares[priority] = float(share)
    return MappingProxyType(shares)


def _persist(value: object) -> str:
    if value == "behind":
        raise _Bad("this version does not have 'behind' yet; give 'commit' or 'memory'.")
    if value not in ("commit", "memory"):
        raise _Bad("give 'commit' or 'memory'.")
    return str(value)


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(path, str) and "." in path for path in value):
        raise _Bad("give a tuple of dotted paths, such as ('project.carriers.tenant',).")
    return tuple(value)


@dataclass(frozen=True)
class _NotYet:
    """Reads a key whose feature is not built yet: only its default is honest."""

    default: object

    def __call__(self, value: object) -> object:
        if isinstance(value, bool) is not isinstance(self.default, bool) or value != self.default:
            raise _Bad(f"this version does not have that feature yet; leave the key out (it means {self.default!r}).")
        return value


def _key(default: Any, reader: Reader) -> Any:
    return field(default=default, metadata={"read": reader})


def _missing(default: Any) -> Any:
    return field(default=default, metadata={"read": _NotYet(default)})


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How one pool behaves. Durations are seconds."""

    name: str = "default"
    #: Jobs that run at once in this process. Small: each may hold a database connection, and all share one GIL.
    workers: int = _key(4, _workers)
    #: Jobs that may wait for a worker; 0 means that nothing waits.
    queue_size: int = _key(100, _integer(0, 1_000_000))
    #: UTF-8 bytes of arguments that all waiting and running jobs may hold together.
    queue_bytes: int = _key(16 * MIB, _integer(1, 1 << 40))
    #: UTF-8 bytes of one job's arguments. Small: pass keys, not documents.
    max_payload_bytes: int = _key(64 * 1024, _integer(1, 1 << 30))
    #: UTF-8 bytes of one job's result.
    max_result_bytes: int = _key(256 * 1024, _integer(1, 1 << 30))
    #: Priority to the share of the queue up to which jobs of that priority and below are admitted.
    priority_shares: Mapping[int, float] = field(default_factory=dict, metadata={"read": _shares})
    #: Whether a newcomer to a full queue evicts the newest job of the lowest lower priority that never started.
    shed: bool = _key(default=False, reader=_boolean)
    #: How many seconds of waiting one step of priority is worth; 0 makes priority count for nothing.
    ageing: float = _key(30.0, _seconds(0, DAY))
    #: How long a submit waits for a place, where it does not say so itself.
    wait: float = _key(0.0, _seconds(0, 3600))
    #: Jobs that one owner may have queued and running; None means that nothing limits them.
    owner_limit: int | None = _key(None, _integer(1, 1_000_000, optional=True))
    #: Longest run of one attempt; None means that nothing limits it.
    timeout: float | None = _key(None, _seconds(0.001, optional=True))
    #: Longest wait in the queue before the first start; None means that nothing limits it.
    start_deadline: float | None = _key(None, _seconds(0.001, optional=True))
    #: A worker on a job without a time-out is called stuck after this long.
    stuck_after: float = _key(300.0, _seconds(1))
    #: How far ahead a deferred start may be: it holds a place, and a crash loses the moment.
    max_defer: float = _key(3600.0, _seconds(0))
    #: Share of the queue's places that jobs waiting for a retry may hold.
    retry_share: float = _key(0.5, _fraction)
    #: From the first signal to the last write. Less than what the server or the orchestrator grants.
    drain_timeout: float = _key(20.0, _seconds(0.1, DAY))
    #: How long before the end of a drain running jobs are asked to stop; None is a quarter of the drain, at most 5.
    cancel_grace: float | None = _key(None, _seconds(0, DAY, optional=True))
    #: What a drain does with jobs that no worker has started.
    on_shutdown: str = _key("run", _choice("run", "cancel", "abandon"))
    adopt_within: float = field(default=3600.0, metadata={"read": _NotYet(3600)})
    #: How long a row is kept after its job ended, by state.
    retention: Mapping[JobState, float] = field(default_factory=lambda: RETENTION, metadata={"read": _retention})
    #: When the row of a job is written: before its submit returns, or never.
    persist: str = _key("commit", _persist)
    linger: float = field(default=0.05, metadata={"read": _NotYet(0.05)})
    #: Dotted paths of objects that carry context from the submit to the job.
    carry: tuple[str, ...] = _key((), _paths)
    hand_over_to: str | None = _missing(None)
    overflow: str = _missing("reject")

    @property
    def capacity(self) -> int:
        """Jobs that may be queued or running together: W + Q."""
        return self.workers + self.queue_size

    @property
    def give_up_after(self) -> float:
        """Seconds of a drain after which what is left is given up: the rest is kept for writing it down."""
        return max(self.drain_timeout * 0.1, self.drain_timeout - max(1.0, self.drain_timeout * 0.1))

    @property
    def interrupt_after(self) -> float:
        """Seconds of a drain after which running jobs are asked to stop."""
        grace = min(5.0, self.drain_timeout / 4) if self.cancel_grace is None else self.cancel_grace
        return min(self.drain_timeout - grace, self.give_up_after)


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """What holds for every pool of a process. Durations are seconds."""

    #: Database alias of the jobs; None asks the project's routers.
    database: str | None = _key(None, _text(optional=True))
    #: Longest wait of a submit for its commit.
    store_timeout: float = _key(5.0, _seconds(0.05, 3600))
    #: Time between two signs of life of a process.
    heartbeat: float = _key(5.0, _seconds(0.1, 3600))
    #: Silence after which a process counts as lost.
    lost_after: float = _key(30.0, _seconds(0.5, DAY))
    #: What starts the housekeeper in a process.
    start_at: str = _key("first_request", _choice("first_request", "first_job"))
    #: Whether to chain a handler for SIGTERM (and SIGINT, where a server has one).
    handle_signals: bool = _key(default=True, reader=_boolean)
    #: Run jobs in the caller's thread on the caller's connection: for tests of a host project.
    inline: bool = _key(default=False, reader=_boolean)
    #: Dotted path of a callable that replaces the rule of who may see and cancel a job.
    authorize: str | None = _key(None, _text(optional=True))
    #: Name of the deployed release, shown with each process.
    release: str = _key("", _text(optional=False))


POOL_KEYS = tuple(f.name.upper() for f in fields(PoolConfig) if f.name != "name")
OPTION_KEYS = tuple(f.name.upper() for f in fields(ProcessOptions))


def _meant(key: str, known: list[str]) -> str:
    """Say what to write instead of a key that is not there: never one whose feature is not built yet."""
    if key in OPTION_KEYS and key not in known:
        return f"{key} belongs into BOUNDED_POOL_OPTIONS."
    if key in POOL_KEYS and key not in known:
        return f"{key} belongs into BOUNDED_POOLS['default']."
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}."
    return f"there is no such key; {hint}"


def _read(kind: type[Record], raw: object, path: str, faults: list[Fault], **given: Any) -> Record | None:
    """Build one record from a settings dictionary, adding to `faults`; None when anything is wrong."""
    if not isinstance(raw, Mapping):
        faults.append(Fault(path=path, value=raw, remedy="give a dictionary."))
        return None
    readers = {f.name.upper(): (f.name, f.metadata["read"]) for f in fields(kind) if "read" in f.metadata}  # type: ignore[arg-type]
    before = len(faults)
    for key, value in raw.items():
        where = f"{path}[{key!r}]"
        if key not in readers:
            known = [known for known, (_, reader) in readers.items() if not isinstance(reader, _NotYet)]
            faults.append(Fault(path=where, value=value, remedy=_meant(str(key).upper(), known)))
            continue
        name, reader = readers[key]
        try:
            given[name] = reader(value)
        except _Bad as bad:
            faults.append(Fault(path=where, value=value, remedy=str(bad)))
    return kind(**given) if len(faults) == before else None


def read_pools(raw: object, path: str = "BOUNDED_POOLS") -> tuple[dict[str, PoolConfig], list[Fault]]:
    """Turn the BOUNDED_POOLS setting into records; an absent `default` pool is added with its defaults."""
    faults: list[Fault] = []
    configs: dict[str, PoolConfig] = {}
    if not isinstance(raw, Mapping):
        return {"default": PoolConfig()}, [
            Fault(path=path, value=raw, remedy="give a dictionary of pool names to dictionaries.")
        ]
    for name, values in raw.items():
        if name in POOL_KEYS + OPTION_KEYS and not isinstance(values, Mapping):
            remedy = f'did you forget the pool\'s name? {{"default": {{"{name}": {values!r}}}}}'
            if name in OPTION_KEYS:
                remedy = _meant(name, [])
            faults.append(Fault(path=f"{path}[{name!r}]", value=values, remedy=remedy))
            continue
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 50:
            remedy = "name a pool with letters, digits and underscores, at most 50 characters."
            faults.append(Fault(path=path, value=name, remedy=remedy))
            continue
        where = f"{path}[{name!r}]"
        config = _read(PoolConfig, values, where, faults, name=name)
        if config is None:
            continue
        faults.extend(_contradictions(config, where))
        configs[name] = config
    if "default" not in raw:
        configs["default"] = PoolConfig()
    return configs, faults


def _contradictions(config: PoolConfig, where: str) -> list[Fault]:
    faults = []
    if config.cancel_grace is not None and config.cancel_grace >= config.drain_timeout:
        remedy = f"give less than DRAIN_TIMEOUT ({config.drain_timeout:g} s)."
        faults.append(Fault(path=f"{where}['CANCEL_GRACE']", value=config.cancel_grace, remedy=remedy))
    if config.max_payload_bytes > config.queue_bytes:
        remedy = f"give at most QUEUE_BYTES ({config.queue_bytes})."
        faults.append(Fault(path=f"{where}['MAX_PAYLOAD_BYTES']", value=config.max_payload_bytes, remedy=remedy))
    return faults


def read_options(raw: object, path: str = "BOUNDED_POOL_OPTIONS") -> tuple[ProcessOptions, list[Fault]]:
    """Turn the BOUNDED_POOL_OPTIONS setting into a record."""
    faults: list[Fault] = []
    options = _read(ProcessOptions, raw, path, faults) or ProcessOptions()
    if not faults and options.lost_after < 2 * options.heartbeat:
        remedy = f"give at least twice HEARTBEAT ({options.heartbeat:g} s), or a busy process counts as lost."
        faults.append(Fault(path=f"{path}['LOST_AFTER']", value=options.lost_after, remedy=remedy))
    return options, faults


def refuse(faults: list[Fault]) -> None:
    """Raise `ConfigurationError` naming every fault, if there is one."""
    if faults:
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise ConfigurationError(f"The pool settings cannot work:\n{lines}")
