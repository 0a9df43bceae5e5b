"""What a pool holds, and the moves of every job in it: the part that all others stand on."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from .cancellation import PATIENCE, CancelToken
from .clock import Clock
from .config import PoolConfig
from .events import Event, Events, Kind
from .queue import JobQueue
from .record import JobRecord, Snapshot
from .retry import RetryBudget
from .states import JobState, Reason
from .stats import CompletionRate
from .timer import Timer
from .worker import Runner, Worker


@dataclass(slots=True)
class Effects:
    """What must happen after the lock is released: nothing foreign runs under it."""

    saves: list[Snapshot] = field(default_factory=list)
    tokens: list[tuple[CancelToken, Reason]] = field(default_factory=list)
    timers: list[tuple[float, JobRecord, int, Callable[[], object]]] = field(default_factory=list)
    clears: list[CancelToken] = field(default_factory=list)
    wake: list[Worker] = field(default_factory=list)
    spawn: int = 0
    events: list[Event] = field(default_factory=list)


class Places:
    """The places of one pool, its lock, and what happens after the lock is released.

    Invariants, at every instant the lock is free: every job that holds a place is in `_live` and in exactly one of
    reserved, queue, delayed, running; `len(_live) <= W + Q`; `_bytes` is the sum of their payloads;
    `accepted == queued + running + finished`. Lock order: the pool's lock, then the timer's; no other lock is taken
    under it, and no callback, log call or I/O happens under it.

    Arguments:
        config: bounds and policies.
        runner: runs a job's code and returns its value.
        save: takes each new snapshot of a job; must not block.
        clock, timer, events: shared by the pools of a process.
        rng: source of jitter.
        threaded: False where nobody but `run_inline` or `take` is to run jobs.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        runner: Runner,
        save: Callable[[Snapshot], None],
        clock: Clock,
        timer: Timer,
        events: Events,
        rng: random.Random | None = None,
        threaded: bool = True,
    ) -> None:
        self.config = config
        self.clock = clock
        self._runner = runner
        self._save = save
        self._timer = timer
        self._events = events
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._threaded = threaded
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._live: dict[UUID, JobRecord] = {}
        self._reserved: dict[UUID, JobRecord] = {}
        self._delayed: dict[UUID, JobRecord] = {}
        self._running: dict[UUID, tuple[JobRecord, threading.Thread]] = {}
        self._queue = JobQueue(config.ageing)
        self._bytes = 0
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        self._spawned = 0
        self._budgets: dict[str, RetryBudget] = {}
        self._rate = CompletionRate()
        #: Jobs accepted so far; read without the lock.
        self.accepted = 0
        self._retries = 0
        self._rejected: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        # Set by a signal handler, hence a plain attribute that is read before the lock and again under it.
        self.draining = False
        self._starting = True
        # No job starts later than this (monotonic seconds): see `confirm_alive`.
        self._fresh_until = float("inf")
        self._closed = False
        self._horizon: float | None = None
        self._drained: dict[str, list[UUID]] | None = None

    def _enqueue_locked(self, record: JobRecord, now: float, effects: Effects) -> None:
        record.queued_mono = now
        self._queue.push(record, now)
        if self._idle:
            effects.wake.append(self._idle.pop())
        elif len(self._workers) + effects.spawn < self.config.workers:
            effects.spawn += 1

    def _rouse_locked(self, effects: Effects) -> None:
        """Wake or start as many workers as the queue has use for."""
        while self._idle and len(effects.wake) < len(self._queue):
            effects.wake.append(self._idle.pop())
        missing = min(len(self._queue) - len(effects.wake), self.config.workers - len(self._workers))
        effects.spawn = max(effects.spawn, missing)

    def _unqueue_locked(self, record: JobRecord) -> None:
        if self._delayed.pop(record.id, None) is None:
            self._queue.remove(record)

    def _end_locked(
        self,
        record: JobRecord,
        state: JobState,
        reason: Reason,
        effects: Effects,
        *,
        error: BaseException | None = None,
        noted: bool = False,
    ) -> None:
        now = self.clock.monotonic()
        ran = 0.0
        if record.state is JobState.RUNNING:
            ran = now - record.started_mono
            self._running.pop(record.id, None)
            self._rate.finished(now)
            if not noted:
                record.note_attempt_locked(state.value, ran, record.error, self.clock.now())
        record.move(state, reason)
        record.finished_at = self.clock.now()
        record.run_after = None
        record.payload = None
        record.stored_call = ([], {})
        effects.clears.append(record.token)  # its callbacks may have finalizers: never under the lock
        self._cancel_timers_locked(record)
        self._conclude_locked(record, effects, ran=ran, error=error)

    def _conclude_locked(
        self, record: JobRecord, effects: Effects, *, ran: float = 0.0, error: BaseException | None = None
    ) -> None:
        """Give the place of an ended job back, count the end and tell everybody."""
        state, reason = record.state, record.reason
        self._release_place_locked(record)
        self._finished[state.value] += 1
        if self._drained is not None:
            outcome = f"{state.value}/{reason.value}" if reason else state.value
            self._drained.setdefault(outcome, []).append(record.id)
        record.release_waiters_locked()
        effects.saves.append(record.changes_locked())
        effects.events.append(self._event_locked(Kind.JOB_FINISHED, record, reason=reason, ran=ran, error=error))

    def _release_place_locked(self, record: JobRecord) -> None:
        if self._live.pop(record.id, None) is not None:
            self._bytes -= record.payload_bytes
            self._empty.notify_all()

    def _cancel_timers_locked(self, record: JobRecord) -> None:
        for entry in record.timers:
            self._timer.cancel(entry)
        record.timers.clear()

    def _unstarted_end(self) -> tuple[JobState, Reason]:
        if self.config.on_shutdown == "cancel":
            return JobState.CANCELLED, Reason.SHUTDOWN
        return JobState.ABANDONED, Reason.DRAIN_DEADLINE

    def _event_locked(
        self,
        kind: Kind,
        record: JobRecord,
        *,
        reason: Reason = Reason.NONE,
        waited: float = 0.0,
        ran: float = 0.0,
        delay: float = 0.0,
        error: BaseException | None = None,
    ) -> Event:
        return Event(
            kind=kind,
            pool=self.config.name,
            job_id=record.id,
            job_name=record.spec.name,
            attempt=record.attempt,
            state=record.state,
            reason=reason,
            waited=waited,
            ran=ran,
            delay=delay,
            error=error,
        )

    def _apply(self, effects: Effects) -> None:
        for snapshot in effects.saves:
            self._save(snapshot)
        patience = PATIENCE  # for all of them together: a drain asks every running job at once
        for token, reason in effects.tokens:
            began = time.monotonic()
            token.fire(reason, patience)
            patience = max(0.0, patience - (time.monotonic() - began))
        for token in effects.clears:
            token.clear()
        for due, record, version, callback in effects.timers:
            entry = self._timer.at(due, callback)
            with self._lock:
                # Moved on meanwhile (a busy worker took it, somebody cancelled it): a dead timer would keep it alive.
                if record.version == version:
                    record.timers.append(entry)
                else:
                    self._timer.cancel(entry)
        for worker in effects.wake:
            worker.parked.release()
        for _ in range(effects.spawn):
            self._spawn()
        if effects.events:
            self._events.emit(effects.events)

    def _spawn(self) -> None:
        """Start one more worker thread."""
        raise NotImplementedError
