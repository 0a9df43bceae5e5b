"""What a pool holds, and the moves of every job in it: the part that all others stand on."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .cancellation import PATIENCE, CancelToken
from .clock import Clock
from .config import PoolConfig
from .cpu_lane import CpuLane
from .errors import Rejected
from .events import FINISHED, Events, RawEvent, about
from .queue import JobQueue
from .record import JobRecord
from .retry import RetryBudget
from .states import RUNNING, SUCCEEDED, TERMINAL, JobState, Reason
from .stats import CompletionRate
from .timer import Timer, TimerEntry
from .worker import LoopLane, Runner, Worker

if TYPE_CHECKING:
    from .waiting import Waiter

#: What the store is given of a job; see `Places`.
Picture = Callable[[JobRecord], Any]


class Effects:
    """What must happen after the lock is released: nothing foreign runs under it."""

    __slots__ = ("calls", "events")

    def __init__(self) -> None:
        #: Functions and their one argument, called in order.
        self.calls: list[tuple[Callable[[Any], object], Any]] = []
        self.events: list[RawEvent] = []


class Places:
    """The places of one pool, its lock, and what happens after the lock is released.

    Invariants, at every instant the lock is free: every job that holds a place is in `_live` and in exactly one of
    reserved, queue, deferred, delayed, running; `len(_live) <= W + Q`; `_bytes` is the sum of their payloads;
    `accepted == queued + running + finished`; `len(_running) + len(_ghosts) <= W`. A `resize` to fewer workers lets
    the last two exceed what they were until jobs end. Lock order: the pool's lock, then the timer's or the CPU lane's;
    no other lock is taken under it, and no callback, log call or I/O happens under it.

    Arguments:
        config: bounds and policies.
        runner: runs a job's code and returns its value.
        save: takes each new picture of a job; must not block.
        picture: makes what `save` takes, under the lock.
        saves_live: whether `save` takes pictures of live jobs too, or of finished ones only. Then it is called under
            the lock, before the job leaves the pool, so that there is no moment at which nobody knows the job: it is
            one step on a map, and what it returns is let go after the lock.
        clock, timer, events: shared by the pools of a process.
        loop: runs the code of async jobs; None where there are none.
        cpu_lane: shared by the pools of a process.
        here: returns the job (its id as an integer) whose code calls, or None.
        rng: source of jitter.
        threaded: False where nobody but `run_inline` or `take` is to run jobs.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        runner: Runner,
        save: Callable[[Any], object],
        clock: Clock,
        timer: Timer,
        events: Events,
        picture: Picture = JobRecord.changes_locked,
        saves_live: bool = True,
        loop: LoopLane | None = None,
        cpu_lane: CpuLane | None = None,
        here: Callable[[], int | None] = lambda: None,
        rng: random.Random | None = None,
        threaded: bool = True,
    ) -> None:
        self.config = config
        self.clock = clock
        self._name = config.name
        self._monotonic = clock.monotonic
        self._time = clock.time
        #: W: jobs that may run at once. Read without the lock; `resize` changes it.
        self.workers = config.workers
        self._runner = runner
        self._save = save
        self._picture = picture
        self._saves_live = saves_live
        self._timer = timer
        self._emit = events.emit
        self._loop = loop
        self._cpu_lane = cpu_lane or CpuLane()
        self._here = here
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._threaded = threaded
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._joining = 0
        # Who waits for a place, by priority: see `waiting.Line`.
        self._line: dict[int, OrderedDict[Waiter, None]] = {}
        self._live: dict[int, JobRecord] = {}
        self._reserved: dict[JobRecord, None] = {}
        self._delayed: dict[JobRecord, None] = {}
        self._running: dict[JobRecord, threading.Thread | None] = {}
        # Jobs that were given up while their code ran: their worker is occupied until it ends.
        self._ghosts: dict[JobRecord, threading.Thread | None] = {}
        self._queue = JobQueue(config.ageing)
        self._deferred = JobQueue(config.ageing)
        self._bytes = 0
        self._owners: Counter[str] = Counter()
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        self._spawned = 0
        self._replaced = 0
        self._watch: TimerEntry | None = None
        self._budgets: dict[str, RetryBudget] = {}
        self._rate = CompletionRate()
        self._ends = self._rate.ends
        #: Jobs accepted so far; read without the lock.
        self.accepted = 0
        self._retries = 0
        self._rejected: Counter[str] = Counter()
        self._finished: dict[JobState, int] = dict.fromkeys(TERMINAL, 0)
        # Set by a signal handler, hence a plain attribute that is read before the lock and again under it.
        self.draining = False
        # Paused or Draining where `pause` or `drain` refuses; read without the lock too.
        self._shut: type[Rejected] | None = None
        self._paused = False
        self._starting = True
        # No job starts later than this (monotonic seconds): see `confirm_alive`.
        self._fresh_until = float("inf")
        self._closed = False
        self._horizon: float | None = None
        self._drained: dict[str, list[UUID]] | None = None

        self._stuck_after = config.stuck_after
        self._max_bytes = config.queue_bytes
        self._measure_locked()

    def _measure_locked(self) -> None:
        """Work out below how many live jobs no bound of the queue can matter."""
        share = min((1.0, *self.config.priority_shares.values()))
        self._always_free = self.workers + int(self.config.queue_size * share)

    @property
    def capacity(self) -> int:
        """Jobs that may be queued or running together: W + Q."""
        return self.workers + self.config.queue_size

    def _waiting_locked(self) -> int:
        return len(self._queue) + len(self._deferred) + len(self._delayed)

    def _enqueue_locked(self, record: JobRecord, now: float, effects: Effects) -> None:
        """Let `record` start as soon as there is a worker for it."""
        record.queued_mono = now
        self._queue.push(record, now)
        if record.spec.asynchronous:
            self._launch_locked(effects)
        elif self._idle:
            effects.calls.append((_wake, self._idle.pop()))
        elif len(self._workers) < self.workers and self._threaded and not self._closed:
            self._spawn_locked(effects)

    def _rouse_locked(self, effects: Effects) -> None:
        """Start, wake or make as much as the queue has use for."""
        self._launch_locked(effects)
        wanted = min(len(self._queue), self.workers - len(self._running) - len(self._ghosts))
        for _ in range(wanted):
            if self._idle:
                effects.calls.append((_wake, self._idle.pop()))
            elif len(self._workers) < self.workers and self._threaded and not self._closed:
                self._spawn_locked(effects)

    def _spawn_locked(self, effects: Effects) -> None:
        self._spawned += 1
        worker = Worker(self, self._spawned)  # type: ignore[arg-type]  # every pool is made of all parts
        self._workers.add(worker)
        effects.calls.append((self._start_worker, worker))

    def _unqueue_locked(self, record: JobRecord) -> None:
        if record in self._delayed:
            del self._delayed[record]
        elif not self._queue.remove(record):
            self._deferred.remove(record)

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
        """End a live job, give its place back, count the end and tell everybody."""
        now = self._monotonic()
        record.finished = wall = self._time()
        ran = 0.0
        if record.state is RUNNING:
            record.ran = ran = now - record.started_mono
            self._running.pop(record, None)
            self._ends.append(now)
            if not noted and state is not SUCCEEDED:
                record.note_attempt_locked(state.value, ran, record.error, wall)
        record.move(state, reason)
        record.payload = None
        # It has callbacks, or was fired. A ghost is told to stop first, and its token cleared when its code ends.
        token = record.made_token
        if token is not None and not token.untouched and record not in self._ghosts:
            effects.calls.append((CancelToken.clear, token))  # finalizers may run: never under the lock
        if record.timer is not None:
            self._disarm_locked(record)
        self._conclude_locked(record, effects, ran, error)

    def _conclude_locked(
        self, record: JobRecord, effects: Effects, ran: float = 0.0, error: BaseException | None = None
    ) -> None:
        if not self._saves_live:
            effects.calls.append((_let_go, self._save(self._picture(record))))
        if self._live.pop(record.key, None) is not None:
            self._give_back_locked(record, effects)
        self._finished[record.state] += 1
        if self._drained is not None:
            outcome = f"{record.state.value}/{record.reason.value}" if record.reason else record.state.value
            self._drained.setdefault(outcome, []).append(record.id)
        self._save_locked(record, effects)
        if record.waiters is not None:
            self._release_waiters_locked(record, effects)
        effects.events.append(about(FINISHED, self._name, record, 0.0, ran, 0.0, error))

    def _give_back_locked(self, record: JobRecord, effects: Effects) -> None:
        """Count the place of a record that has left `_live` as free, and let whoever waits for one have it."""
        self._bytes -= record.payload_bytes
        if record.owner_key:
            self._owners[record.owner_key] -= 1
            if not self._owners[record.owner_key]:
                del self._owners[record.owner_key]
        if self._line:
            self._place_freed_locked(effects)
        if self._joining and len(self._live) <= 1:  # the one may be the job that waits for the others
            self._empty.notify_all()

    def _save_locked(self, record: JobRecord, effects: Effects) -> None:
        if self._saves_live:
            effects.calls.append((self._save, self._picture(record)))

    def _release_waiters_locked(self, record: JobRecord, effects: Effects) -> None:
        if record.waiters is not None:
            effects.calls += [(call, waiter) for waiter in record.waiters]
            record.waiters = None

    def _arm_locked(self, record: JobRecord, due: float, callback: Callable[[JobRecord], object]) -> None:
        """Call `callback` with `record` at `due` (monotonic), unless it moves on before."""
        record.timer = self._timer.at(due, callback, record)

    def _disarm_locked(self, record: JobRecord) -> None:
        if record.timer is not None:
            self._timer.cancel(record.timer)
            record.timer = None

    def _unstarted_end(self) -> tuple[JobState, Reason]:
        if self.config.on_shutdown == "cancel":
            return JobState.CANCELLED, Reason.SHUTDOWN
        return JobState.ABANDONED, Reason.DRAIN_DEADLINE

    def _fire_all(self, tokens: Sequence[tuple[CancelToken, Reason]]) -> None:
        patience = PATIENCE  # for all of them together: a drain asks every running job at once
        for token, reason in tokens:
            began = time.monotonic()
            token.fire(reason, patience)
            patience = max(0.0, patience - (time.monotonic() - began))

    def _apply(self, effects: Effects) -> None:
        for function, argument in effects.calls:
            function(argument)
        if effects.events:
            self._emit(effects.events)

    # Done by the parts above ---------------------------------------------------------------------------------------

    def _place_freed_locked(self, effects: Effects) -> None:
        """Give a freed place to whoever waits for one."""
        raise NotImplementedError

    def _launch_locked(self, effects: Effects) -> None:
        """Start the jobs at the head of the queue that need no thread."""
        raise NotImplementedError

    def _start_worker(self, worker: Worker) -> None:
        """Start the thread of a new worker."""
        raise NotImplementedError


def _wake(worker: Worker) -> None:
    release(worker.parked)


def _let_go(_: object) -> None:
    """Nothing but the end of a reference: finalizers run where no lock is held."""


def release(parked: threading.Lock) -> None:
    """Wake a parked worker. Harmless when another thread has just done so."""
    with contextlib.suppress(RuntimeError):
        parked.release()


def call(function: Callable[[], object]) -> None:
    """Call a function that takes nothing, as an effect."""
    function()
