"""The pools of this process, and everything they share. Built anew in each process that uses them.

Nothing starts when Django loads: the housekeeper starts with the first request, workers with the first job. A server
that forks after loading the app (gunicorn --preload, uWSGI) leaves its child without any thread, so whatever was
built before the fork is thrown away, found out by the process id since not every server runs Python's fork hooks.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol
from uuid import UUID, uuid4

from django.core.signals import request_started, setting_changed

from .. import conf
from ..engine.clock import Clock
from ..engine.config import PoolConfig, ProcessOptions
from ..engine.cpu_lane import CpuLane
from ..engine.drain import drain
from ..engine.errors import ConfigurationError
from ..engine.event_loop import EventLoop
from ..engine.events import Events
from ..engine.ids import reseed
from ..engine.lag import LagProbe
from ..engine.pool import Pool
from ..engine.record import JobRecord
from ..engine.report import DrainReport
from ..engine.states import JobState
from ..engine.timer import Timer
from ..engine.worker import Runners
from ..store import memory, writes
from ..store.recorder import DirectRecorder, Recorder
from . import os_signals
from .disconnects import Disconnects
from .housekeeper import Housekeeper

logger = logging.getLogger("django_boundedpool.lifecycle")


class CommitHook(Protocol):
    """A submit that waits for its transaction."""

    stored: bool

    def forgotten(self) -> bool:
        """Whether the transaction is over without a call."""
        ...


class Runtime:
    """Pools, recorder, timer and housekeeper of one process. Safe from any thread.

    Arguments:
        configs: one record per pool.
        options: process-wide options.
        runners: how job code is called.
    """

    def __init__(
        self,
        configs: Mapping[str, PoolConfig],
        options: ProcessOptions,
        runners: Runners,
    ) -> None:
        self.pid = os.getpid()
        reseed()  # not every server runs Python's fork hooks
        self.options = options
        self.clock = Clock()
        self.events = EVENTS
        self.timer = Timer(self.clock)
        self.lag = LagProbe(self.clock, self.timer)
        self.loop = EventLoop()
        cpu_lane = CpuLane()
        self.alias = writes.alias_for_write(options.database)
        boot_id = uuid4()
        self.recorder: Recorder | DirectRecorder = (
            DirectRecorder(self.alias, boot_id) if options.inline else Recorder(self.alias, boot_id, self._settle)
        )
        #: Finished jobs of the pools that write no rows.
        self.memories = {
            name: memory.Memory(self.clock) for name, config in configs.items() if config.persist == "memory"
        }
        self.pools = {
            name: Pool(
                config,
                runner=runners.run,
                async_runner=runners.arun,
                save=self.memories[name].keep if name in self.memories else self.recorder.save,
                picture=memory.itself if name in self.memories else JobRecord.changes_locked,
                saves_live=name not in self.memories,
                clock=self.clock,
                timer=self.timer,
                events=self.events,
                loop=self.loop,
                cpu_lane=cpu_lane,
                here=runners.here,
                threaded=not options.inline,
            )
            for name, config in configs.items()
        }
        self.housekeeper = Housekeeper(
            options=options,
            alias=self.alias,
            pools=list(self.pools.values()),
            stored=[pool for name, pool in self.pools.items() if name not in self.memories],
            recorder=self.recorder,
            server=server(),
            sweep=self.sweep,
            events=self.events,
        )
        self.disconnects = Disconnects(self.pools.values(), self.alias)
        self.serving = False
        self._started = False
        self.signals = os_signals.Watch()
        # Filled by finalizers, which may run under any lock: this queue is made for that.
        self._dropped: SimpleQueue[UUID] = SimpleQueue()
        self._hooks: dict[UUID, weakref.ref[CommitHook]] = {}
        self._drain_lock = threading.Lock()
        self._report: DrainReport | None = None

    @property
    def process(self) -> UUID:
        """The boot id under which this process owns jobs."""
        return self.recorder.process

    @property
    def used(self) -> bool:
        """Whether an end of this process must be taken care of. Takes no lock: a signal handler asks."""
        return self.housekeeper.started or any(pool.accepted for pool in self.pools.values())

    def start(self) -> None:
        """Start the recorder and the housekeeper, unless they run or jobs run inline.

        Raises:
            StoreError: the system gives no thread for the recorder.
        """
        if not self._started and isinstance(self.recorder, Recorder):
            if len(self.memories) < len(self.pools):
                self.recorder.start()
            self.timer.start()
            self.lag.start()
            self.housekeeper.start()
            self._started = self.housekeeper.started

    def close_admission(self) -> None:
        """Refuse every later submit. Sets plain attributes only: a signal handler may call it."""
        for pool in self.pools.values():
            pool.draining = True

    def drain(self, reason: str) -> DrainReport | None:
        """End the work of every pool, once; a second caller waits for the first and gets the same report.

        Arguments:
            reason: what ends the process, for the report.

        DRAIN_TIMEOUT counts from the first signal, or in a process that served requests from now; a script without a
        signal waits until its pools are empty.
        """
        if self.pid != os.getpid() or not self.used:
            return None
        with self._drain_lock:
            if self._report is None:
                self.close_admission()
                now = time.monotonic()
                self.signals.draining_since = now
                os_signals.take_over(self.signals)
                self._report = drain(
                    list(self.pools.values()),
                    reason=self.signals.name or reason,
                    began=lambda: self.signals.first or (now if self.serving else None),
                    hurry=self._look,
                    flush=self.recorder.flush,
                )
                self._conclude(self._report)
            return self._report

    def _look(self) -> bool:
        self.sweep()
        return self.signals.hurry

    def _conclude(self, report: DrainReport) -> None:
        for listener in DRAINED:
            try:
                listener(report)
            except Exception:
                logger.exception("A listener failed on the drain report.")
        # A process whose last states could not be written is left to be found lost: then they are set right.
        # There is nothing to note then, and nothing to wait for.
        self.housekeeper.stop(report if report.flushed else None, timeout=1.0 if report.flushed else 0.0)

    def close(self) -> None:
        """Give up what is left, end every thread and close their connections. For tests."""
        for pool in self.pools.values():
            pool.give_up()
        stuck = [pool.config.name for pool in self.pools.values() if not pool.close()]
        self.disconnects.stop()
        self.housekeeper.stop(None)
        self.recorder.stop()
        self.loop.stop()
        self.timer.stop()
        if stuck:
            raise RuntimeError(f"Jobs of pool {', '.join(stuck)} still run and hold their worker thread.")

    def settle(self, job_id: UUID, *, stored: bool) -> None:
        """Note that a submit's transaction ended without a commit hook being called. May run in a finalizer.

        Arguments:
            job_id: the reserved job.
            stored: whether its row was part of that transaction; otherwise it provably has none.
        """
        if stored and isinstance(self.recorder, Recorder) and self.recorder.started:
            self.recorder.settle(job_id)
        else:
            self._dropped.put(job_id)

    def watch(self, job_id: UUID, hook: CommitHook) -> None:
        """Remember a commit hook for the housekeeper, without keeping it alive, until its job is settled."""
        if not self.options.inline:
            self._hooks[job_id] = weakref.ref(hook)

    def sweep(self) -> None:
        """Settle the jobs of commit hooks that their connection has forgotten."""
        self.give_back_dropped()
        for kept in self.memories.values():
            kept.prune()
        for job_id, reference in list(self._hooks.items()):
            hook = reference()
            if hook is None:
                self._hooks.pop(job_id, None)  # its end has settled it, or it was called
            elif hook.forgotten():
                self._hooks.pop(job_id, None)
                self.settle(job_id, stored=hook.stored)

    def give_back_dropped(self) -> None:
        """Give back the places of submits whose transaction was rolled back before a row was written."""
        while not self._dropped.empty():
            try:
                job_id = self._dropped.get_nowait()
            except Empty:
                return
            self._settle(job_id, False)

    def find(self, job_id: UUID) -> JobRecord | None:
        """Return a job without a row, live or ended lately, or None."""
        for name, kept in self.memories.items():
            record = self.pools[name].find(job_id) or kept.find(job_id)
            if record is not None:
                return record
        return None

    def _settle(self, job_id: UUID, exists: bool) -> None:  # noqa: FBT001 - a callback's fixed signature
        """Take up or give back a job whose transaction ended without a word."""
        for pool in self.pools.values():
            record = pool.find(job_id)
            if record is not None and record.state is JobState.SUBMITTED:
                if exists:
                    if record.process != self.process:
                        record.forfeited = record.special = True
                    pool.accept(record)
                else:
                    pool.withdraw(record)
                return
        if exists:
            writes.cancel_unwanted(job_id, self.process, self.alias)


EVENTS = Events()
DRAINED: list[Callable[[DrainReport], object]] = []

_lock = threading.Lock()
_runtime: Runtime | None = None
_runners: Runners | None = None


def current() -> Runtime:
    """Return the runtime of this process, built at the first call in it.

    Raises:
        ConfigurationError: the settings cannot work, or the app is not installed.
    """
    global _runtime
    runtime = _runtime
    if runtime is None or runtime.pid != os.getpid():
        with _lock:
            if _runtime is None or _runtime.pid != os.getpid():
                if _runners is None:
                    raise ConfigurationError(
                        "django_boundedpool is not ready: add it to INSTALLED_APPS and call django.setup() first."
                    )
                _runtime = Runtime(*conf.load(), _runners)
            runtime = _runtime
    return runtime


def peek() -> Runtime | None:
    """Return the runtime if this process has built one."""
    runtime = _runtime
    return runtime if runtime is not None and runtime.pid == os.getpid() else None


def forget() -> Runtime | None:
    """Let the next call of `current` build a new runtime; return the old one."""
    global _lock, _runtime
    runtime, _runtime = peek(), None
    return runtime


def _after_fork() -> None:
    # A lock held by another thread of the parent would stay locked for ever in the child.
    global _lock, _runtime
    _lock = threading.Lock()
    _runtime = None


def install(runners: Runners) -> None:
    """Arm the signal handler and the exit hooks. Starts no thread and opens no connection.

    Arguments:
        runners: how job code is called; kept for the runtimes of this process and of its forks.

    Raises:
        ConfigurationError: the settings cannot work. Not in a management command, whose system checks report it better.
    """
    global _runners
    first = _runners is None
    _runners = runners
    if not _in_management_command():
        conf.load()
    options, _ = conf.process_options()
    if options.handle_signals:
        os_signals.arm(peek)
    if first:
        os.register_at_fork(after_in_child=_after_fork)
        os_signals.at_exit(lambda: _drain_at_exit("exit"))
        request_started.connect(_on_request, dispatch_uid="boundedpool")
        setting_changed.connect(_on_setting_changed, dispatch_uid="boundedpool")


def _drain_at_exit(reason: str) -> None:
    runtime = peek()
    if runtime is not None:
        runtime.drain(reason)


def _on_request(sender: object, **_: object) -> None:
    if getattr(sender, "__module__", "").startswith("django.test"):
        return  # the test client is no server: its process must stay free of threads until a test submits a job
    try:
        runtime = current()
    except ConfigurationError:
        return  # reported by the check and by every submit; a page that needs no job must still be served
    if not runtime.serving:
        runtime.serving = True
        if runtime.options.handle_signals:
            # gunicorn --preload resets every handler after the fork; a synchronous worker gets here in its main thread.
            os_signals.arm(peek)
    if runtime.options.start_at == "first_request" and not runtime.options.inline:
        runtime.housekeeper.start()


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in ("BOUNDED_POOLS", "BOUNDED_POOL_OPTIONS", "DATABASE_ROUTERS"):
        runtime = forget()
        if runtime is not None:
            runtime.close()


def _in_management_command() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "django.core.management" and frame.f_code.co_name == "execute":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def server() -> str:
    """Return the name of the server that runs this process, as far as its modules tell."""
    if "uwsgi" in sys.modules:
        return "uwsgi"
    if "mod_wsgi" in sys.modules:
        return "mod_wsgi"
    for name in ("gunicorn", "uvicorn", "hypercorn", "daphne", "granian", "waitress", "cheroot"):
        module = sys.modules.get(f"{name}.arbiter") if name == "gunicorn" else sys.modules.get(name)
        if module is not None:
            return name
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


class NoSuchPool(ConfigurationError, KeyError):
    """A pool that the settings do not have."""

    __str__ = Exception.__str__  # a KeyError would show its message in quotes


class Pools(Mapping[str, Pool]):
    """The pools of this process by name, such as ``pools["default"].stats()``."""

    def __getitem__(self, name: str) -> Pool:
        known = current().pools
        if name not in known:
            raise NoSuchPool(f"There is no pool {name!r}; BOUNDED_POOLS has {', '.join(map(repr, known))}.")
        return known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(current().pools)

    def __len__(self) -> int:
        return len(current().pools)


pools = Pools()
