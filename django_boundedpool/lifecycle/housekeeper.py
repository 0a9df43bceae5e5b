"""The thread that keeps this process's row alive and looks after what other processes ask or leave behind."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from django.db import connections

from ..engine.config import ProcessOptions
from ..engine.events import Event, Events, Kind
from ..engine.pool import Pool
from ..engine.report import DrainReport
from ..engine.states import JobState, Reason
from ..store import processes, retention
from ..store.recorder import DirectRecorder, Recorder

logger = logging.getLogger("django_boundedpool.lifecycle")

#: How soon a busy process sees a cancel request from another one. Seconds.
CANCEL_POLL = 1.0
#: Time between two cleanups, and how long one may take. Seconds.
PRUNE_EVERY = 300.0
PRUNE_BUDGET = 2.0


class Housekeeper:
    """Heartbeat, cancel requests, recovery of lost processes, retention. One daemon thread, started on demand."""

    def __init__(
        self,
        *,
        options: ProcessOptions,
        alias: str,
        pools: Sequence[Pool],
        stored: Sequence[Pool],
        recorder: Recorder | DirectRecorder,
        server: str,
        sweep: Callable[[], None],
        events: Events,
    ) -> None:
        self._options = options
        self._alias = alias
        self._pools = pools
        # Those whose jobs have rows. Without one there is nothing in the database to look after.
        self._stored = stored
        self._recorder = recorder
        self._server = server
        self._sweep = sweep
        self._events = events
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._report: DrainReport | None = None
        self._tried = False
        self._registered = False
        self._complained = False
        self._beat_at = self._poll_at = self._reap_at = self._prune_at = 0.0

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                # From an empty context: this runs for as long as the process, not for the request that began it.
                thread = threading.Thread(
                    target=contextvars.Context().run, args=(self._loop,), name="boundedpool-housekeeper", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    logger.exception("The housekeeper could not be started; the next request or job tries again.")
                    return
                self._thread = thread

    def stop(self, report: DrainReport | None, timeout: float = 5.0) -> None:
        """End the thread, noting an orderly stop if there is a report."""
        self._report = report
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _loop(self) -> None:
        self._judge = processes.Judge(
            lost_after=self._options.lost_after,
            heartbeat=self._options.heartbeat,
            alias=self._alias,
            retention={pool.config.name: pool.config.retention[JobState.ABANDONED] for pool in self._stored},
        )
        # Jobs start for LOST_AFTER / 2 after a beat: the next one must come before that, however LOST_AFTER is set.
        tick = min(CANCEL_POLL, self._options.heartbeat, self._options.lost_after / 6)
        self._beat_every = min(self._options.heartbeat, self._options.lost_after / 2 - 2 * tick)
        self._prune_at = time.monotonic() + PRUNE_EVERY / 10  # not while the process is still starting
        self._confirm_alive(time.monotonic())  # nobody knows of this process yet, so nobody can have given it up
        while True:
            try:
                self._sweep()
                # Ages and stuck workers change without an event: let whoever watches look again.
                self._events.emit([Event(Kind.POOL_CHANGED, pool.config.name) for pool in self._pools])
                if self._stored:
                    self._look_after_rows(time.monotonic())
                self._complained = False
            except Exception as error:  # noqa: BLE001 - the database may be away or not migrated; the next beat tries again
                level = logging.DEBUG if self._complained else logging.WARNING
                self._complained = True
                logger.log(level, "The housekeeper cannot use database %r: %s", self._alias, error)
            finally:
                self._release_connection()
            if self._stop.wait(tick):
                break
        try:
            if self._report is not None and self._registered:
                if not processes.stop(self._recorder.process, self._report.as_json(), self._alias):
                    logger.warning("This process leaves live jobs behind; another one will give them up.")
        except Exception:
            logger.warning("The orderly stop of this process could not be noted.", exc_info=True)
        finally:
            connections.close_all()

    def _look_after_rows(self, now: float) -> None:
        heartbeat = self._options.heartbeat
        if now >= self._beat_at:
            self._beat_at = now + self._beat_every
            self._beat()
        if now >= self._poll_at and any(pool.gauges()[:2] != (0, 0) for pool in self._stored):
            self._poll_at = now + min(CANCEL_POLL, heartbeat) * 0.9
            self._obey()
        if now >= self._reap_at:
            self._reap_at = now + heartbeat
            self._judge.reap(self._recorder.process)
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            for _ in retention.prune(self._alias, budget=PRUNE_BUDGET):
                pass
            processes.prune_processes(self._alias)

    def _beat(self) -> None:
        sent = time.monotonic()
        # Asked again after a failed registration too: the row may be there, and only the answer was lost.
        answer = processes.beat(self._recorder.process, self._figures(), self._alias) if self._tried else "missing"
        self._tried = True
        if answer == "lost":
            logger.error("This process was declared lost; it drops its jobs and goes on under a new id.")
            self._recorder.process = uuid4()
            for pool in self._stored:
                pool.forfeit(self._recorder.process)
        if answer != "alive":
            self._register()
        self._registered = True
        self._confirm_alive(sent)

    def _confirm_alive(self, since: float) -> None:
        for pool in self._stored:
            pool.confirm_alive(since + self._options.lost_after / 2)

    def _register(self) -> None:
        processes.register(
            self._recorder.process, server=self._server, release=self._options.release, alias=self._alias
        )
        if not self._registered:
            bounds = ", ".join(
                f"{pool.config.name} ({pool.config.workers} workers, {pool.config.queue_size} places)"
                for pool in self._pools
            )
            logger.info("This process (%s) runs pool %s; every process has as many.", self._server, bounds)
        self._registered = True

    def _figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for pool in self._pools:
            stats = pool.stats()
            figures[pool.config.name] = {
                "workers": stats.workers,
                "running": stats.running,
                "stuck": stats.stuck,
                "queue_size": stats.queue_size,
                "queued": stats.queued,
                "oldest_age": round(stats.oldest_age, 3),
                "accepted": stats.accepted,
                "rejected": dict(stats.rejected),
                "finished": dict(stats.finished),
                "draining": stats.draining,
            }
        return figures

    def _obey(self) -> None:
        for job_id, code in processes.cancel_requests(self._recorder.process, self._alias):
            reason = Reason(code) if code in Reason._value2member_map_ and code else Reason.OPERATOR
            for pool in self._stored:
                if pool.cancel(job_id, reason) is not None:
                    break

    def _release_connection(self) -> None:
        connection: Any = connections[self._alias]
        if connection.connection is not None:
            connection.close_if_unusable_or_obsolete()
