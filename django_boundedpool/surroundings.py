"""What a job finds around it, and what it leaves: nothing.

A job finds its thread as a request would, with connections that were checked, and runs in a copy of a context that
holds nothing but the thread's cache connections. Whatever context variables it sets (the active language and time zone
are two of them) end with that copy. Neither of the obvious ways would do: in the thread's own context the next job sees
what this one has set, and in an empty context each job opens a cache connection of its own, which nobody closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.cache import caches
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import BaseConnectionHandler

from .engine import worker

logger = logging.getLogger("django_boundedpool.jobs")

#: Connections by the `Local` in which a handler keeps them, and their alias there. Not by handler: tests that change
#: a setting give it a new `Local`, and what was opened before must not come back.
Opened = dict[tuple[Any, str], Any]

#: Where Django and its backport keep the backends of tasks, which live as long as a thread too.
TASK_MODULES = ("django.tasks", "django_tasks")


class _Thread(threading.local):
    """What a thread keeps from one job to the next."""

    def __init__(self) -> None:
        self.context = contextvars.Context()  # every job runs in a copy of it
        self.kept: Opened = {}  # what is set in it


_thread = _Thread()

#: What finished async jobs have opened, for the next ones. Not one set for all: some clients serve one user at a time.
_spare: list[Opened] = []
os.register_at_fork(after_in_child=_spare.clear)


def call(code: Callable[..., Any], *args: Any) -> Any:
    """Return `code(*args)`, called in this thread in surroundings of its own.

    Raises:
        RuntimeError: `code` returned with a transaction open, which was rolled back.
        Whatever `code` raises.
    """
    return _thread.context.copy().run(_call, code, args)


def _call(code: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    # Not a generator's context manager: that assigns to the exception which passes through, and some refuse it.
    here = worker.forks
    if not without_connections():
        reset_queries()
        close_old_connections()
    left_open: list[str] = []
    try:
        value = code(*args)
    finally:
        # A child that the job forked must not close the connections that it shares with its parent.
        if worker.forks == here:
            if opened := _opened():
                _keep(opened)
            if opened or not without_connections():
                left_open = _tidy(opened, close_old_connections)
    if left_open:
        raise _left(left_open)
    return value


def call_inline(code: Callable[..., Any], *args: Any) -> Any:
    """Return `code(*args)`, called as a part of the caller: with its connections, language and time zone.

    Context variables that `code` sets end with it. What it opens is the caller's, who closes it with the rest.
    """
    context = contextvars.copy_context()
    try:
        return context.run(code, *args)
    finally:
        known = _opened(connections)
        for (local, alias), connection in context.run(_opened, connections).items():
            if known.get((local, alias)) is not connection:
                setattr(local, alias, connection)


async def acall(code: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Return what `code(*args)` comes to, awaited on this event loop in surroundings of its own.

    The task must have been created with an empty context: `loop.create_task(..., context=contextvars.Context())`.
    What `code` runs through `sync_to_async` runs in a thread of its own, which is started by the first such call; its
    connections are closed before this returns.

    When cancelled: `code` is; then this waits until the thread has left what `sync_to_async` ran in it, however long
    that takes, so that none of the job's code runs afterwards.

    Raises:
        RuntimeError: `code` returned with a transaction open, which was rolled back.
        Whatever `code` raises.
    """
    pid = os.getpid()
    lent = _spare.pop() if _spare else {}
    for (local, alias), connection in lent.items():
        setattr(local, alias, connection)
    left_open: list[str] = []
    async with ThreadSensitiveContext() as sensitive:
        try:
            value = await code(*args)
        finally:
            if os.getpid() == pid:
                left_open = await _atidy(sensitive)
                # What the code has left running may begin anew; it is ended when this has returned.
                for _ in range(3):
                    if sensitive in SyncToAsync.context_to_thread_executor:
                        left_open += await _atidy(sensitive)
    if left_open:
        raise _left(left_open)
    return value


async def _atidy(sensitive: ThreadSensitiveContext) -> list[str]:
    executor = SyncToAsync.context_to_thread_executor.pop(sensitive, None)
    opened = _opened()
    left_open: list[str] = []
    try:
        if executor is not None:
            # All of them: the thread ends, and nobody could use what it keeps.
            left_open = await _outlast(executor, lambda: _tidy(opened, connections.close_all))
        elif opened:
            _tidy(opened, lambda: None)
        if not without_connections():
            # Opened on the loop's own thread (DJANGO_ALLOW_ASYNC_UNSAFE), where they end with the context.
            left_open += _tidy({}, _close_open)
    finally:
        if opened:
            _spare.append(opened)
    return left_open


async def _outlast(executor: Executor, tidy: Callable[[], list[str]]) -> list[str]:
    """Call `tidy` in the one thread of `executor`, after what runs there, and end that thread."""
    try:
        future = asyncio.wrap_future(executor.submit(contextvars.copy_context().run, tidy))
    except RuntimeError:
        logger.exception("Tidying up after a job failed.")  # the interpreter is ending, or refuses threads
        return []
    finally:
        executor.shutdown(wait=False)
    while not future.done():
        # The job's code is over, and its outcome stands: what asks it to stop now is too late.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(future)
    return future.result()


def unset(local: object) -> bool:
    """Whether nothing was ever set on an asgiref `Local` here; False where that cannot be told at once.

    Asking Django takes two microseconds each time, since asgiref answers "nothing" by an exception. This looks at the
    context variable behind it, and relies on no more than finding one.
    """
    variable = getattr(getattr(local, "_storage", None), "_data", None)
    if type(variable) is not contextvars.ContextVar:
        return False
    stored = variable.get(None)
    return not getattr(stored, "data", stored)


def without_connections() -> bool:
    """Whether this thread has no database connection, not even a closed one; False where that takes time to tell."""
    try:
        storage = connections._connections._storage  # type: ignore[attr-defined]
    except AttributeError:
        return False
    return type(storage) is threading.local and not storage.__dict__


def known_connections() -> Iterable[Any]:
    """Return the database connections of this thread, closed ones too: as `connections.all(initialized_only=True)`.

    Django asks for each alias whether it has one, which takes longer than all else that is done for a small job.
    """
    try:
        storage = connections._connections._storage  # type: ignore[attr-defined]
    except AttributeError:
        storage = None
    if type(storage) is threading.local:
        return [value for value in storage.__dict__.values() if isinstance(value, BaseDatabaseWrapper)]
    return connections.all(initialized_only=True)


def _opened(*more: BaseConnectionHandler[Any]) -> Opened:
    """Return what handlers keep for this context (and this thread): caches, backends of tasks, and those of `more`."""
    handlers: list[Any] = [caches, *more]
    for name in TASK_MODULES:
        if name in sys.modules:
            handler = getattr(sys.modules[name], "task_backends", None)
            if isinstance(handler, BaseConnectionHandler):
                handlers.append(handler)
    opened: Opened = {}
    for handler in handlers:
        local = handler._connections
        if not unset(local):
            opened.update({(local, alias): getattr(local, alias) for alias in handler if hasattr(local, alias)})
    return opened


def _keep(opened: Opened) -> None:
    """Let the next job of this thread find what this one has opened."""
    kept = _thread.kept
    for (local, alias), connection in opened.items():
        if kept.get((local, alias)) is not connection:
            _thread.context.run(setattr, local, alias, connection)
            kept[local, alias] = connection


def _tidy(opened: Opened, close: Callable[[], object]) -> list[str]:
    """Close caches, end transactions and close connections; return the databases that had a transaction open."""
    left_open: list[str] = []

    def end() -> None:
        left_open.extend(_roll_back(connections.all(initialized_only=True)))
        close()

    of_caches = getattr(caches, "_connections", None)
    for step in (*(cache.close for (local, _), cache in opened.items() if local is of_caches), end):
        try:
            step()
        except Exception:
            logger.exception("Tidying up after a job failed.")  # its outcome stands
    return left_open


def _roll_back(candidates: Iterable[Any]) -> list[str]:
    """End what a job left open, and return where: a connection closed inside an atomic block stays unusable."""
    left = [connection for connection in candidates if connection.in_atomic_block]
    for connection in left:
        logger.error("A job left a transaction open on database %r; it is rolled back.", connection.alias)
        del connections[connection.alias]
        connection.close()
    return [connection.alias for connection in left]


def _close_open() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.close()


def _left(aliases: list[str]) -> RuntimeError:
    return RuntimeError(
        f"The job returned with a transaction open on database {', '.join(aliases)}; it was rolled back."
    )
