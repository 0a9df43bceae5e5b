"""System checks. An id never changes its meaning.

========================  ================================================================================
boundedpool.E001          a setting has an unknown key, a wrong type or an impossible value
boundedpool.E002          a job names a pool that BOUNDED_POOLS does not have
boundedpool.E003          the option AUTHORIZE names nothing that can be called
boundedpool.E004          the jobs would be stored in an in-memory SQLite database, which threads cannot share
boundedpool.E005          CARRY names something that is no carrier
boundedpool.W001          OverloadMiddleware is not installed: a full pool answers 500
boundedpool.W002          the urls are not included: nobody can poll a job
boundedpool.W003          a job has no time-out, neither its own nor its pool's
boundedpool.W004          SQLite without transaction_mode IMMEDIATE: "database is locked" under threads
boundedpool.W005          more workers than the database's connection pool can serve
boundedpool.W006          jobs run inline although DEBUG is off
boundedpool.W007          a retention of less than 60 seconds: results vanish before they are polled
boundedpool.W008          as E004, in a test run, where Django itself makes the database one in memory
boundedpool.W009          a setting is named almost as one of ours, which nothing reads
boundedpool.W010          WAIT with ATOMIC_REQUESTS: views have a transaction open, in which no submit waits
========================  ================================================================================
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from . import carry, conf
from .jobs import MIDDLEWARE, registered
from .store import writes

SETTINGS = ("BOUNDED_POOLS", "BOUNDED_POOL_OPTIONS")

#: Connections of a psycopg pool for which the settings give no number.
PSYCOPG_POOL_SIZE = 4
#: Connections that the recorder and the housekeeper need besides the workers.
OWN_CONNECTIONS = 2

Check = Callable[..., Sequence[CheckMessage]]


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E001, E003, E005, W006, W007, W009: what the two settings themselves say."""
    configs, faults = conf.pool_configs()
    options, more = conf.process_options()
    messages: list[CheckMessage] = [
        Error(
            f"{fault.path} is {fault.value!r}.",
            hint=f"{fault.remedy[:1].upper()}{fault.remedy[1:]}",
            id="boundedpool.E001",
        )
        for fault in faults + more
    ]
    if options.authorize is not None and (wrong := _why_unusable(options.authorize)):
        messages.append(
            Error(
                f"BOUNDED_POOL_OPTIONS['AUTHORIZE'] is {options.authorize!r}, which {wrong}.",
                hint="Give the dotted path of a plain callable (request, job, action) -> bool.",
                id="boundedpool.E003",
            )
        )
    if options.inline and not settings.DEBUG and not _under_test():
        messages.append(
            Warning(
                "BOUNDED_POOL_OPTIONS['INLINE'] is True: every submit runs its job in the request.",
                hint="INLINE is for tests; remove it from the settings that serve users.",
                id="boundedpool.W006",
            )
        )
    messages += [
        Warning(f"The setting {name} is not read.", hint=f"Did you mean {meant[0]!r}?", id="boundedpool.W009")
        for name in dir(settings)
        if name.isupper() and name not in SETTINGS and (meant := difflib.get_close_matches(name, SETTINGS, 1, 0.78))
    ]
    for config in configs.values():
        messages += [
            Error(
                f"BOUNDED_POOLS[{config.name!r}]['CARRY']: {fault[:1].upper()}{fault[1:]}",
                hint="Give the dotted path of an object at module level with capture() and restore(value).",
                id="boundedpool.E005",
            )
            for fault in carry.check(config.carry)
        ]
        short = [f"{state.value} ({kept:g} s)" for state, kept in config.retention.items() if kept < 60]
        if short:
            messages.append(
                Warning(
                    f"BOUNDED_POOLS[{config.name!r}]['RETENTION'] keeps {', '.join(short)} less than a minute.",
                    hint="Keep rows at least as long as somebody may poll them.",
                    id="boundedpool.W007",
                )
            )
    return messages


def _why_unusable(dotted: str) -> str:
    try:
        rule = import_string(dotted)
    except Exception as error:  # noqa: BLE001 - a module may raise anything when it is imported
        return f"cannot be imported ({type(error).__name__}: {error})"
    if not callable(rule):
        return "cannot be called"
    if inspect.iscoroutinefunction(rule) or inspect.iscoroutinefunction(getattr(rule, "__call__", None)):  # noqa: B004
        return "is async: the coroutine it returns would count as a yes"
    return ""


def check_jobs(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E002, W003: what the declared jobs say."""
    return list(_job_messages())


def _job_messages() -> Iterator[CheckMessage]:
    configs, _faults = conf.pool_configs()
    raw = getattr(settings, "BOUNDED_POOLS", {})
    if not isinstance(raw, Mapping):
        return  # E001 says so
    # A pool whose settings are wrong is no reason to say that there is none.
    known = [*raw, *(name for name in configs if name not in raw)]
    for name, declared in sorted(registered().items()):
        pool = declared.spec.pool
        if pool not in known:
            yield Error(
                f"Job {name} wants pool {pool!r}, which BOUNDED_POOLS does not have.",
                hint=f"Use one of {', '.join(map(repr, known))}, or add that pool.",
                id="boundedpool.E002",
            )
        elif declared.spec.timeout is None and pool in configs and configs[pool].timeout is None:
            yield Warning(
                f"Job {name} has no time-out: a call that hangs keeps its worker for ever.",
                hint=f"Give @job(timeout=...) or BOUNDED_POOLS[{pool!r}]['TIMEOUT'].",
                id="boundedpool.W003",
            )


def check_project(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """W001, W002, W010: what the rest of the project lacks, or has that does not go together."""
    messages: list[CheckMessage] = []
    configs, _faults = conf.pool_configs()
    waiting = [repr(name) for name, config in configs.items() if config.wait > 0]
    atomic = [repr(alias) for alias, values in connections.settings.items() if values.get("ATOMIC_REQUESTS")]
    if waiting and atomic:
        messages.append(
            Warning(
                f"WAIT of pool {', '.join(waiting)} has no effect in views: database {', '.join(atomic)} has "
                "ATOMIC_REQUESTS, and inside a transaction no submit waits.",
                hint="Decorate submitting views with @transaction.non_atomic_requests, or leave WAIT out.",
                id="boundedpool.W010",
            )
        )
    if not any(map(_answers_overload, settings.MIDDLEWARE)):
        messages.append(
            Warning(
                "OverloadMiddleware is not installed: a refused submit answers 500.",
                hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE, or decorate every submitting view with @overload_responses.",
                id="boundedpool.W001",
            )
        )
    try:
        reverse("boundedpool:job-list")
    except NoReverseMatch:
        messages.append(
            Warning(
                "The urls of the pool are not included under the namespace 'boundedpool': nobody can poll a job.",
                hint='Add path("jobs/", include("django_boundedpool.urls")) to the root URLconf, in no namespace.',
                id="boundedpool.W002",
            )
        )
    except Exception:  # noqa: BLE001, S110 - Django's own checks report a URLconf that cannot be loaded
        pass
    return messages


def _answers_overload(dotted: str) -> bool:
    """Whether this entry of MIDDLEWARE is the middleware, or a subclass under whatever name."""
    if dotted == MIDDLEWARE:
        return True
    try:
        found = import_string(dotted)
    except Exception:  # noqa: BLE001 - Django says so when it loads the middleware
        return False
    return isinstance(found, type) and issubclass(found, import_string(MIDDLEWARE))


def check_database(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E004, W004, W005, W008: whether the jobs' database can serve threads. Opens no connection."""
    options, _faults = conf.process_options()
    alias = writes.alias_for_write(options.database)
    if alias not in connections.settings:
        return [
            Error(
                f"BOUNDED_POOL_OPTIONS['DATABASE'] is {alias!r}, which DATABASES does not have.",
                hint=f"Use one of {', '.join(map(repr, connections.settings))}.",
                id="boundedpool.E001",
            )
        ]
    configs, _more = conf.pool_configs()
    if options.inline or all(config.persist == "memory" for config in configs.values()):
        return []  # jobs run on the caller's own connection, or are stored nowhere
    connection = connections[alias]
    values = connections.settings[alias]
    messages: list[CheckMessage] = []
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():  # type: ignore[attr-defined]
            text = f"Database {alias!r} is SQLite in memory, which worker threads cannot share."
            hint = 'Use a file (in tests: DATABASES[...]["TEST"]["NAME"]), or INLINE in tests.'
            # A project whose tests submit nothing must not fail for having the app installed.
            messages.append(
                Warning(text, hint=hint, id="boundedpool.W008")
                if _under_test()
                else Error(text, hint=hint, id="boundedpool.E004")
            )
        if str(values["OPTIONS"].get("transaction_mode", "")).upper() != "IMMEDIATE":
            messages.append(
                Warning(
                    f'Database {alias!r} is SQLite without transaction_mode IMMEDIATE: threads get "locked" errors.',
                    hint='Set DATABASES[...]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
                    '"init_command": "PRAGMA journal_mode=WAL"}.',
                    id="boundedpool.W004",
                )
            )
    size = _pool_size(values["OPTIONS"].get("pool"))
    if size is not None:
        workers = sum(config.workers for config in configs.values())
        if workers + OWN_CONNECTIONS > size:
            messages.append(
                Warning(
                    f"{workers} workers, the recorder and the housekeeper share {size} connections with the requests.",
                    hint=f'Raise DATABASES[{alias!r}]["OPTIONS"]["pool"]["max_size"] or lower WORKERS.',
                    id="boundedpool.W005",
                )
            )
    return messages


def _pool_size(pool: object) -> int | None:
    """Return the most connections that the option `pool` of a PostgreSQL database gives; None without a pool."""
    if not pool:
        return None
    options = pool if isinstance(pool, Mapping) else {}
    least = options.get("min_size", PSYCOPG_POOL_SIZE)
    most = options.get("max_size") or least  # psycopg reads None as "as many as min_size"
    return most if isinstance(most, int) else None


def _under_test() -> bool:
    # The test runner moves the outbox into place before anything else.
    from django.core import mail

    return hasattr(mail, "outbox")


def register_all() -> None:
    """Register every check."""
    for check in (check_settings, check_jobs, check_project, check_database):
        register(check, "boundedpool")
