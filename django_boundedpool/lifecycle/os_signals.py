"""Signals and exit hooks: what tells a process to stop, on servers that each do it differently.

The handler only sets plain attributes and chains to the previous one. It may interrupt the main thread while that
holds any lock (a synchronous worker runs views there), so it takes none, logs nothing and touches no database.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - imported first, so that its exit hook is registered before ours and runs after it
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

#: Two signals closer than this count as one: gunicorn turns one Ctrl-C into INT and QUIT for each worker. Seconds.
DEBOUNCE = 1.0
#: Signals that a drain in the main thread takes over: another handler would raise in the middle of it.
DURING_DRAIN = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT)


class Watch:
    """What signals have said so far. Plain attributes, written by the handler, read by the drain."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.name = ""
        self.draining_since: float | None = None
        self.hurry = False
        self._interrupts = 0

    def saw(self, signum: int) -> None:
        """Note a signal."""
        now = time.monotonic()
        began = self.first or self.draining_since or now
        if self.first is None:
            self.first = now
            self.name = signal.Signals(signum).name
        if self.draining_since is not None and now - began > DEBOUNCE:
            if signum == signal.SIGINT:
                self._interrupts += 1
            if signum in (signal.SIGQUIT, signal.SIGABRT) or self._interrupts >= 2:
                self.hurry = True


class _Runtime(Protocol):
    """What the handler needs of a runtime."""

    signals: Watch

    @property
    def used(self) -> bool: ...

    def close_admission(self) -> None: ...


#: Handlers that ours was put over, oldest first.
_previous: dict[int, list[Any]] = {}
_find: Callable[[], _Runtime | None] = lambda: None  # noqa: E731 - replaced by `arm`


def arm(find: Callable[[], _Runtime | None]) -> bool:
    """Chain the handler on SIGTERM, and on SIGINT where a server has a handler of its own; True if SIGTERM is ours.

    Arguments:
        find: returns the runtime of this process without taking a lock, or None.

    Called again after a server has put its own handlers in place, it chains to those.
    """
    global _find
    _find = find
    if threading.current_thread() is not threading.main_thread():
        return False  # only the main thread may set handlers
    if "uwsgi" in sys.modules or "mod_wsgi" in sys.modules:
        return False  # their handlers are C code that Python's table does not show
    for signum in (signal.SIGTERM, signal.SIGINT):
        present = signal.getsignal(signum)
        if present is _handle or present is None or present is signal.SIG_IGN:
            continue
        # asyncio installs its own SIGINT handling only over the default one.
        if signum == signal.SIGINT and (present is signal.default_int_handler or present is signal.SIG_DFL):
            continue
        _previous.setdefault(signum, []).append(present)
        signal.signal(signum, _handle)
        if _is_gunicorn(present):
            signal.siginterrupt(signum, False)  # as gunicorn had set it; installing a handler resets it
    return signal.getsignal(signal.SIGTERM) is _handle


def take_over(watch: Watch) -> None:
    """While a drain runs in the main thread, let signals only count: another handler would raise inside it."""
    if threading.current_thread() is not threading.main_thread():
        return

    def count(signum: int, frame: FrameType | None) -> None:
        watch.saw(signum)

    for signum in DURING_DRAIN:
        present = signal.getsignal(signum)
        if present is None or present is signal.SIG_IGN:
            continue
        if present is signal.SIG_DFL and signum in (signal.SIGQUIT, signal.SIGABRT):
            continue
        signal.signal(signum, count)


def at_exit(callback: Callable[[], object]) -> None:
    """Run `callback` at the end of the process, before the interpreter joins or freezes threads.

    Registered twice, since neither way is reached on every server; `callback` must not mind.
    """
    register: Callable[[Callable[[], object]], object] | None = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(callback)
    else:
        # Wakes at the same moment: the interpreter joins non-daemon threads after the main thread has ended.
        def wait() -> None:
            threading.main_thread().join()
            callback()

        threading.Thread(target=wait, name="boundedpool-janitor", daemon=False).start()
    atexit.register(callback)


#: Per signal: the frame that the delivery under way interrupted, and how often we were called for it.
_delivery: dict[int, tuple[FrameType | None, int]] = {}


def _handle(signum: int, frame: FrameType | None) -> None:
    # A library that chained to us before we were armed again, over it, calls us a second time: pass on to the
    # handler that we had been put over then.
    outer = _delivery.get(signum)
    # Another frame: not a chain, but a second signal that came while the first one's handler runs.
    depth = outer[1] if outer is not None and (frame is None or frame is outer[0]) else 0
    older = _previous.get(signum, [])
    _delivery[signum] = frame, depth + 1
    try:
        _pass_on(signum, frame, older[-1 - depth] if depth < len(older) else signal.SIG_DFL)
    finally:
        if outer is None:
            _delivery.pop(signum, None)
        else:
            _delivery[signum] = outer


def _pass_on(signum: int, frame: FrameType | None, previous: Any) -> None:
    runtime = _find()
    if runtime is not None:
        if runtime.signals.draining_since is not None:
            runtime.signals.saw(signum)
            return
        if runtime.used:
            runtime.signals.saw(signum)
            runtime.close_admission()
    if _is_uvicorn(previous):
        # Its handler would capture the signal and raise it again with the default action after the server has
        # stopped: death without any exit hook. Asking the server to stop is all that is needed.
        server = previous.__self__
        if server.should_exit and signum == signal.SIGINT:
            server.force_exit = True
        server.should_exit = True
    elif callable(previous):
        previous(signum, frame)
    elif previous is signal.SIG_DFL:
        if (runtime is not None and runtime.used) or os.getpid() == 1:
            raise SystemExit(128 + signum)
        # Nobody uses the pool: behave as if we were not here, exit status included. (As process 1 the kernel would
        # ignore the default action.)
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _is_uvicorn(handler: object) -> bool:
    server = getattr(handler, "__self__", None)
    module = sys.modules.get("uvicorn.server")
    return module is not None and isinstance(server, module.Server)


def _is_gunicorn(handler: object) -> bool:
    return type(getattr(handler, "__self__", None)).__module__.startswith("gunicorn.")
