"""The bounded pool: admission, places, workers and the moves of every live job."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from uuid import UUID

from . import payload
from .cancellation import CancelToken
from .clock import Clock
from .config import PoolConfig
from .errors import BytesFull, Draining, JobInterrupted, JobTimedOut, QueueFull, Rejected
from .events import Event, Events, Kind
from .queue import JobQueue
from .record import JobRecord, Snapshot, describe_error
from .retry import RetryBudget, Verdict
from .states import JobState, Reason
from .stats import CompletionRate, PoolStats
from .timer import Timer
from .worker import Runner, Worker, execute

logger = logging.getLogger("django_boundedpool.engine")

CancelAnswer = Literal["cancelled", "requested", "finished"]

#: Least time between two stored progress reports of one job, in seconds.
PROGRESS_INTERVAL = 0.25
#: How long after a worker thread could not be started the pool tries again, in seconds.
SPAWN_RETRY = 1.0


@dataclass(slots=True)
class _Effects:
    """What must happen after the lock is released: nothing foreign runs under it."""

    saves: list[Snapshot] = field(default_factory=list)
    tokens: list[tuple[CancelToken, Reason]] = field(default_factory=list)
    timers: list[tuple[float, JobRecord, int, Callable[[], object]]] = field(default_factory=list)
    clears: list[CancelToken] = field(default_factory=list)
    wake: list[Worker] = field(default_factory=list)
    spawn: int = 0
    events: list[Event] = field(default_factory=list)


class Pool:
    """W workers and a queue of Q places.

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
        self._closed = False
        self._horizon: float | None = None
        self._drained: dict[str, list[UUID]] | None = None

    # Admission ---------------------------------------------------------------------------------------------------

    def check_open(self, job_name: str = "") -> None:
        """Refuse at once when no argument could be accepted, before the arguments are read.

        Raises:
            Draining: the process is stopping.
            QueueFull: every place is taken.
        """
        if self.draining or len(self._live) >= self.config.capacity:
            with self._lock:
                refusal = self._refusal_locked(0)
            if refusal is not None:
                raise self.refused(refusal, job_name)

    def reserve(self, record: JobRecord) -> None:
        """Take a place for `record`; it is not started before `accept`. Never waits. Safe from any thread.

        Raises:
            Draining, QueueFull, BytesFull: no place; nothing is held.
        """
        with self._lock:
            refusal = self._refusal_locked(record.payload_bytes)
            if refusal is None:
                record.state = JobState.SUBMITTED
                self._live[record.id] = record
                self._reserved[record.id] = record
                self._bytes += record.payload_bytes
        if refusal is not None:
            raise self.refused(refusal, record.spec.name)

    def withdraw(self, record: JobRecord) -> bool:
        """Give a reservation back: the job never was accepted. False, and nothing happens, if there is none."""
        effects = _Effects()
        with self._lock:
            if self._reserved.pop(record.id, None) is None:
                return False
            record.state = JobState.REJECTED
            self._release_place_locked(record)
            record.release_waiters_locked()
            effects.events.append(Event(kind=Kind.POOL_CHANGED, pool=self.config.name))
        self._apply(effects)
        return True

    def accept(self, record: JobRecord) -> None:
        """Turn a reservation whose row is durable into a queued job. Harmless when repeated."""
        effects = _Effects()
        with self._lock:
            if self._reserved.pop(record.id, None) is None:
                return
            now = self.clock.monotonic()
            record.state = JobState.QUEUED  # the row was inserted as queued: same version
            record.queued_mono = now
            self.accepted += 1
            effects.events.append(self._event_locked(Kind.JOB_ACCEPTED, record))
            if record.forfeited:
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
            elif record.cancel_requested is not None:
                self._end_locked(record, JobState.CANCELLED, record.cancel_requested, effects)
            elif not self._starting or (self._drained is not None and self.config.on_shutdown != "run"):
                state, reason = self._unstarted_end()
                self._end_locked(record, state, reason, effects)
            else:
                self._enqueue_locked(record, now, effects)
                if record.spec.start_deadline is not None and record.attempt == 0:
                    due = now + record.spec.start_deadline
                    effects.timers.append((due, record, record.version, lambda: self._start_deadline_passed(record.id)))
        self._apply(effects)

    def refused(self, refusal: Rejected, job_name: str = "") -> Rejected:
        """Count `refusal`, tell the listeners and return it, for raising."""
        with self._lock:
            self._rejected[refusal.code] += 1
        self._events.emit([Event(kind=Kind.JOB_REJECTED, pool=self.config.name, job_name=job_name, code=refusal.code)])
        return refusal

    def retry_after(self) -> float | None:
        """Return the jittered seconds until a place is likely, from 1 to 120; None when no rate is known."""
        with self._lock:
            return self._retry_after_locked()

    def _refusal_locked(self, payload_bytes: int) -> Rejected | None:
        config = self.config
        if self.draining:
            return Draining(f"Pool {config.name!r} accepts nothing more: its process is stopping.", pool=config.name)
        if len(self._live) >= config.capacity:
            message = (
                f"Pool {config.name!r} is full: {len(self._running)} of {config.workers} workers busy, "
                f"{len(self._live) - len(self._running)} of {config.queue_size} places taken."
            )
            return QueueFull(message, pool=config.name, retry_after=self._retry_after_locked())
        if self._bytes + payload_bytes > config.queue_bytes:
            message = (
                f"Pool {config.name!r} holds {self._bytes} bytes of arguments; {payload_bytes} more would pass "
                f"its QUEUE_BYTES of {config.queue_bytes}."
            )
            return BytesFull(message, pool=config.name, retry_after=self._retry_after_locked())
        return None

    def _retry_after_locked(self) -> float | None:
        rate = self._rate.per_second(self.clock.monotonic())
        if self.draining or not rate:
            return None
        waiting = max(1, len(self._live) - len(self._running))
        return min(120.0, max(1.0, waiting / rate * self._rng.uniform(0.8, 1.2)))

    # Cancellation ------------------------------------------------------------------------------------------------

    def find(self, job_id: UUID) -> JobRecord | None:
        """Return the live record of a job of this pool, or None."""
        return self._live.get(job_id)

    def cancel(self, job_id: UUID, reason: Reason) -> CancelAnswer | None:
        """Cancel a live job of this pool; None if it is not (or no longer) one.

        A queued job ends at once and frees its place. A running one is asked to stop: it ends when its code does, and
        until then its worker stays occupied. Safe from any thread; never waits.
        """
        effects = _Effects()
        answer: CancelAnswer | None
        with self._lock:
            record = self._live.get(job_id)
            if record is None:
                return None
            if record.cancel_requested is None:
                record.cancel_requested = reason
                effects.events.append(self._event_locked(Kind.CANCEL_REQUESTED, record, reason=reason))
                if record.state is JobState.RUNNING:
                    effects.tokens.append((record.token, reason))
            answer = "requested"
            if record.state is JobState.QUEUED:
                self._unqueue_locked(record)
                self._end_locked(record, JobState.CANCELLED, reason, effects)
                answer = "cancelled"
        self._apply(effects)
        return answer

    def done_event(self, record: JobRecord) -> threading.Event:
        """Return the event that is set when `record` is over."""
        with self._lock:
            return record.done_event_locked()

    # Work --------------------------------------------------------------------------------------------------------

    def next_job(self, worker: Worker) -> JobRecord | None:
        """Return the next job for `worker`, waiting for one; None when the pool is closed."""
        while True:
            effects = _Effects()
            with self._lock:
                if self._closed:
                    self._workers.discard(worker)
                    return None
                record = self._take_locked(worker, effects)
                if record is None:
                    self._idle.append(worker)
            if record is not None:
                self._apply(effects)
                return record
            worker.parked.acquire()

    def take(self, thread: threading.Thread) -> JobRecord | None:
        """Start the next job in `thread` and return it, or None when nothing may start. Never waits."""
        effects = _Effects()
        with self._lock:
            record = self._take_locked(thread, effects)
        self._apply(effects)
        return record

    def _take_locked(self, thread: threading.Thread, effects: _Effects) -> JobRecord | None:
        record = self._queue.pop() if self._starting else None
        if record is not None:
            self._start_locked(record, thread, effects)
        return record

    def run_inline(self, record: JobRecord) -> None:
        """Run an accepted job, retries included, in the calling thread without waiting between attempts."""
        while True:
            effects = _Effects()
            with self._lock:
                if record.state is not JobState.QUEUED:
                    return
                self._unqueue_locked(record)
                self._start_locked(record, threading.current_thread(), effects)
            self._apply(effects)
            execute(self, self._runner, record)

    def attempt_returned(self, record: JobRecord, value: object) -> None:
        """Conclude an attempt whose code returned `value`."""
        result: object = None
        fault: BaseException | None = None
        if record.spec.store_result:
            try:
                result = self._checked_result(value)
            except Exception as error:  # noqa: BLE001 - whatever the value does when it is read, its job has failed
                fault = error
        if record.token.reason is Reason.TIMEOUT:
            self._failed(record, self._timed_out(record))
            return
        described = describe_error(fault) if fault is not None else None
        effects = _Effects()
        with self._lock:
            if record.state is not JobState.RUNNING:
                return
            if fault is not None and described is not None:
                self._fail_locked(record, Reason.BAD_RESULT, fault, described, effects)
            else:
                record.result = result
                self._end_locked(record, JobState.SUCCEEDED, Reason.NONE, effects)
        self._apply(effects)

    def attempt_raised(self, record: JobRecord, error: BaseException) -> None:
        """Conclude an attempt whose code raised `error`."""
        if record.token.reason is Reason.TIMEOUT:
            timed_out = self._timed_out(record)
            if not isinstance(error, JobInterrupted):
                timed_out.__cause__ = error
            error = timed_out
        self._failed(record, error)

    def attempt_broke(self, record: JobRecord) -> None:
        """Conclude an attempt that could not be concluded otherwise."""
        effects = _Effects()
        with self._lock:
            if record.state is not JobState.RUNNING:
                return
            record.error = {
                "type": "",
                "message": "The pool could not conclude this attempt; see the log.",
                "traceback": "",
            }
            self._end_locked(record, JobState.FAILED, Reason.ERROR, effects)
        self._apply(effects)

    def report_progress(self, record: JobRecord, fraction: float, message: str) -> None:
        """Keep a running job's progress; at most a few reports a second are stored."""
        snapshot = None
        with self._lock:
            if record.state is not JobState.RUNNING:
                return
            record.progress, record.progress_message = fraction, message
            now = self.clock.monotonic()
            if now - record.progress_mono >= PROGRESS_INTERVAL or fraction >= 1:
                record.progress_mono = now
                record.version += 1
                snapshot = record.changes_locked()
        if snapshot is not None:
            self._save(snapshot)

    def _checked_result(self, value: object) -> object:
        text = payload.encode(value, "the result")
        size = payload.size(text)
        if size > self.config.max_result_bytes:
            raise payload.NotJson(
                f"the result has {size} bytes as JSON; at most {self.config.max_result_bytes} (MAX_RESULT_BYTES) are "
                "stored. Store it elsewhere and return its key, or use store_result=False."
            )
        return payload.decode(text)

    def _timed_out(self, record: JobRecord) -> JobTimedOut:
        limit = record.spec.timeout or 0.0
        return JobTimedOut(f"still running after its time-out of {limit:g} s", attempts=record.attempt)

    def _failed(self, record: JobRecord, error: BaseException) -> None:
        """End the job or schedule its next attempt after a failure that counts."""
        policy = record.spec.retry
        verdict: Verdict = "fail"
        try:
            if policy is not None:
                verdict = policy.verdict(error)
        except Exception:
            logger.exception("classify() of job %s failed; its attempt is not retried.", record.spec.name)
        described = describe_error(error)
        effects = _Effects()
        with self._lock:
            if record.state is JobState.RUNNING:
                self._failed_locked(record, error, described, verdict, effects)
        self._apply(effects)

    def _failed_locked(
        self, record: JobRecord, error: BaseException, described: dict[str, str], verdict: Verdict, effects: _Effects
    ) -> None:
        now = self.clock.monotonic()
        policy = record.spec.retry
        timed_out = isinstance(error, JobTimedOut)
        # The request is noted under the lock a moment before the token fires: whichever the code saw, it counts.
        asked = record.cancel_requested or (Reason.SHUTDOWN if record.token.reason is Reason.SHUTDOWN else None)
        if asked is not None and not timed_out:
            if not isinstance(error, JobInterrupted):
                record.error = described
            if asked is Reason.SHUTDOWN:
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
            else:
                self._end_locked(record, JobState.CANCELLED, asked, effects)
        elif policy is None or verdict == "fail":
            self._fail_locked(record, Reason.TIMEOUT if timed_out else Reason.ERROR, error, described, effects)
        elif record.failures + 1 >= policy.max_attempts:
            self._fail_locked(record, Reason.ATTEMPTS_EXHAUSTED, error, described, effects)
        elif record.cancel_requested is not None:  # timed out and cancelled: nobody wants another attempt
            self._fail_locked(record, Reason.TIMEOUT, error, described, effects)
        elif len(self._delayed) >= self._retry_places() or not self._budget_locked(record, now).take(now):
            self._fail_locked(record, Reason.RETRY_BUDGET, error, described, effects)
        else:
            delay = verdict if isinstance(verdict, float) else policy.delay(record.failures + 1, self._rng)
            self._retry_locked(record, error, described, now, delay, effects)

    def _retry_places(self) -> int:
        share = self.config.retry_share
        return max(1, int(self.config.capacity * share)) if share else 0

    def _budget_locked(self, record: JobRecord, now: float) -> RetryBudget:
        budget = self._budgets.get(record.spec.name)
        if budget is None:
            budget = self._budgets[record.spec.name] = RetryBudget(now)
        return budget

    def _start_locked(self, record: JobRecord, thread: threading.Thread, effects: _Effects) -> None:
        now = self.clock.monotonic()
        waited = now - record.queued_mono
        record.move(JobState.RUNNING)
        record.attempt += 1
        record.token = CancelToken()
        record.overdue = False
        record.run_after = None
        record.started_at = self.clock.now()
        record.started_mono = now
        self._cancel_timers_locked(record)
        self._running[record.id] = (record, thread)
        policy = record.spec.retry
        if policy is not None and record.attempt == 1:
            self._budget_locked(record, now).started(policy.budget, now)
        if record.spec.timeout is not None:
            attempt = record.attempt
            due = now + record.spec.timeout
            effects.timers.append((due, record, record.version, lambda: self._timeout_passed(record.id, attempt)))
        effects.saves.append(record.changes_locked())
        effects.events.append(self._event_locked(Kind.JOB_STARTED, record, waited=waited))

    def _retry_locked(
        self,
        record: JobRecord,
        error: BaseException,
        described: dict[str, str],
        now: float,
        delay: float,
        effects: _Effects,
    ) -> None:
        self._note_failure_locked(record, "retried", described, now)
        due = now + delay
        if not self._starting or (self._horizon is not None and due > self._horizon):
            self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects, noted=True)
            return
        self._running.pop(record.id)
        effects.clears.append(record.token)
        record.move(JobState.QUEUED)
        record.due = due
        record.run_after = self.clock.now() + timedelta(seconds=delay)
        self._retries += 1
        self._delayed[record.id] = record
        self._cancel_timers_locked(record)
        effects.timers.append((due, record, record.version, lambda: self._retry_due(record.id)))
        effects.saves.append(record.changes_locked())
        ran = now - record.started_mono
        effects.events.append(self._event_locked(Kind.JOB_RETRIED, record, ran=ran, delay=delay, error=error))

    def _note_failure_locked(self, record: JobRecord, outcome: str, described: dict[str, str], now: float) -> None:
        record.failures += 1
        record.error = described
        if record.first_error is None:
            record.first_error = described
        record.note_attempt_locked(outcome, now - record.started_mono, described, self.clock.now())

    def _fail_locked(
        self, record: JobRecord, reason: Reason, error: BaseException, described: dict[str, str], effects: _Effects
    ) -> None:
        self._note_failure_locked(record, "failed", described, self.clock.monotonic())
        record.exception = error
        self._end_locked(record, JobState.FAILED, reason, effects, error=error, noted=True)

    # Moves -------------------------------------------------------------------------------------------------------

    def _enqueue_locked(self, record: JobRecord, now: float, effects: _Effects) -> None:
        record.queued_mono = now
        self._queue.push(record, now)
        if self._idle:
            effects.wake.append(self._idle.pop())
        elif len(self._workers) + effects.spawn < self.config.workers:
            effects.spawn += 1

    def _unqueue_locked(self, record: JobRecord) -> None:
        if self._delayed.pop(record.id, None) is None:
            self._queue.remove(record)

    def _end_locked(
        self,
        record: JobRecord,
        state: JobState,
        reason: Reason,
        effects: _Effects,
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

    # Timers ------------------------------------------------------------------------------------------------------

    def _retry_due(self, job_id: UUID) -> None:
        effects = _Effects()
        with self._lock:
            record = self._delayed.pop(job_id, None)
            if record is None:
                return
            self._enqueue_locked(record, self.clock.monotonic(), effects)
        self._apply(effects)

    def _timeout_passed(self, job_id: UUID, attempt: int) -> None:
        effects = _Effects()
        with self._lock:
            record, _ = self._running.get(job_id, (None, None))
            if record is None or record.attempt != attempt:
                return
            record.overdue = True
            effects.tokens.append((record.token, Reason.TIMEOUT))
        self._apply(effects)

    def _start_deadline_passed(self, job_id: UUID) -> None:
        effects = _Effects()
        with self._lock:
            record = self._live.get(job_id)
            if record is None or record.state is not JobState.QUEUED or record.attempt:
                return
            self._unqueue_locked(record)
            self._end_locked(record, JobState.CANCELLED, Reason.START_DEADLINE, effects)
        self._apply(effects)

    def _spawn_again(self) -> None:
        effects = _Effects()
        with self._lock:
            if len(self._queue) and not self._idle and len(self._workers) < self.config.workers and not self._closed:
                effects.spawn = 1
        self._apply(effects)

    # Drain -------------------------------------------------------------------------------------------------------

    def begin_drain(self, horizon: float | None) -> None:
        """Close admission, give up what is not due before `horizon` and apply ON_SHUTDOWN to the queue.

        Arguments:
            horizon: monotonic moment at which the drain gives up, or None for a drain without a deadline.
        """
        self.draining = True
        effects = _Effects()
        with self._lock:
            if self._drained is None:
                self._drained = {}
            self._horizon = horizon
            if horizon is not None:
                for record in [record for record in self._delayed.values() if record.due > horizon]:
                    self._unqueue_locked(record)
                    self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
            if self.config.on_shutdown != "run":
                self._end_unstarted_locked(effects)
        self._apply(effects)

    def interrupt(self) -> None:
        """Start nothing more, give up what waits, and ask running jobs to stop."""
        effects = _Effects()
        with self._lock:
            self._starting = False
            self._end_unstarted_locked(effects)
            for record, _ in self._running.values():
                effects.tokens.append((record.token, Reason.SHUTDOWN))
        self._apply(effects)

    def give_up(self) -> None:
        """Mark every accepted job that is left as abandoned; what its code does later is discarded."""
        effects = _Effects()
        with self._lock:
            self._starting = False
            self._end_unstarted_locked(effects)
            # Every live record, not only the running ones: a signal handler that raised in the main thread may have
            # torn a move in two, and its job must not be forgotten.
            for record in [record for record in self._live.values() if record.id not in self._reserved]:
                if record.state is JobState.SUBMITTED:
                    record.state = JobState.QUEUED
                elif record.state.terminal:  # torn after the move: finish it
                    self._unqueue_locked(record)
                    self._running.pop(record.id, None)
                    record.finished_at = record.finished_at or self.clock.now()
                    self._release_place_locked(record)
                    record.release_waiters_locked()
                    effects.saves.append(record.changes_locked())
                    continue
                effects.tokens.append((record.token, Reason.SHUTDOWN))
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
        self._apply(effects)

    def forfeit(self) -> None:
        """Drop every accepted job: this process was declared lost, and its rows belong to others now."""
        effects = _Effects()
        with self._lock:
            for record in [*self._queue, *self._delayed.values()]:
                self._unqueue_locked(record)
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
            for record, _ in list(self._running.values()):
                effects.tokens.append((record.token, Reason.SHUTDOWN))
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
        self._apply(effects)

    def _unstarted_end(self) -> tuple[JobState, Reason]:
        if self.config.on_shutdown == "cancel":
            return JobState.CANCELLED, Reason.SHUTDOWN
        return JobState.ABANDONED, Reason.DRAIN_DEADLINE

    def _end_unstarted_locked(self, effects: _Effects) -> None:
        state, reason = self._unstarted_end()
        for record in [*self._queue, *self._delayed.values()]:
            self._unqueue_locked(record)
            self._end_locked(record, state, reason, effects)

    def wait_empty(self, timeout: float | None = None, *, beside: threading.Thread | None = None) -> bool:
        """Wait until no job and no reservation is left; True if so.

        Arguments:
            timeout: seconds, or None without a limit.
            beside: a worker thread whose own job does not count: the one that waits.
        """
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        with self._lock:
            while True:
                own = sum(thread is beside for _, thread in self._running.values()) if beside else 0
                if len(self._live) <= own:
                    return True
                left = None if deadline is None else deadline - self.clock.monotonic()
                if left is not None and left <= 0:
                    return False
                self._empty.wait(left)

    def drain_outcomes(self) -> dict[str, list[UUID]]:
        """Return the ids of the jobs that ended since the drain began, by outcome."""
        with self._lock:
            return {outcome: list(ids) for outcome, ids in (self._drained or {}).items()}

    def close(self, timeout: float = 5.0) -> bool:
        """End the idle workers and, as they finish, the busy ones; True if all ended within `timeout` seconds."""
        with self._lock:
            self.draining = True
            self._closed = True
            idle, self._idle = self._idle, []
            workers = list(self._workers)
        for worker in idle:
            worker.parked.release()
        deadline = self.clock.monotonic() + timeout
        for worker in workers:
            if worker is not threading.current_thread() and worker.ident is not None:
                worker.join(max(0.0, deadline - self.clock.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    # Looking on --------------------------------------------------------------------------------------------------

    def gauges(self) -> tuple[int, int, int]:
        """Return queued, running and bytes, without the lock: each is one atomic read."""
        running = len(self._running)
        return len(self._queue) + len(self._delayed), running, self._bytes

    def oldest_age(self) -> float:
        """Return the seconds that the longest eligible job has waited; 0 when none waits."""
        with self._lock:
            return self._oldest_age_locked()

    def _oldest_age_locked(self) -> float:
        oldest = self._queue.oldest()
        return 0.0 if oldest is None else max(0.0, self.clock.monotonic() - oldest)

    def stats(self) -> PoolStats:
        """Return the pool at this instant. Safe from any thread."""
        with self._lock:
            now = self.clock.monotonic()
            stuck = sum(
                now - record.started_mono > (record.spec.timeout or self.config.stuck_after)
                for record, _ in self._running.values()
            )
            return PoolStats(
                pool=self.config.name,
                workers=self.config.workers,
                threads=len(self._workers),
                running=len(self._running),
                stuck=stuck,
                queue_size=self.config.queue_size,
                queued=len(self._queue) + len(self._delayed),
                delayed=len(self._delayed),
                reserved=len(self._reserved),
                queue_bytes=self._bytes,
                oldest_age=self._oldest_age_locked(),
                draining=self.draining,
                accepted=self.accepted,
                rejected=dict(self._rejected),
                finished=dict(self._finished),
                retries=self._retries,
            )

    # Effects -----------------------------------------------------------------------------------------------------

    def _apply(self, effects: _Effects) -> None:
        for snapshot in effects.saves:
            self._save(snapshot)
        for token, reason in effects.tokens:
            token.fire(reason)
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
        with self._lock:
            if self._closed or not self._threaded or len(self._workers) >= self.config.workers:
                return
            self._spawned += 1
            worker = Worker(self, self._runner, self._spawned)
            self._workers.add(worker)
        try:
            worker.start()
        except RuntimeError:
            # The system refuses threads. Workers that exist serve the queue; if there is none, the timer tries again.
            with self._lock:
                self._workers.discard(worker)
            logger.exception("Pool %s could not start a worker thread.", self.config.name)
            self._timer.at(self.clock.monotonic() + SPAWN_RETRY, self._spawn_again)
