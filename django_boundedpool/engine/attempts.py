"""Taking jobs, and what each attempt comes to: success, failure, another attempt."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from uuid import UUID

from . import payload
from .cancellation import CancelToken
from .errors import JobInterrupted, JobTimedOut
from .events import Kind
from .places import Effects, Places
from .record import JobRecord, describe_error
from .retry import RetryBudget, Verdict
from .states import JobState, Reason
from .worker import Worker, execute

logger = logging.getLogger("django_boundedpool.engine")

#: Least time between two stored progress reports of one job, in seconds.
PROGRESS_INTERVAL = 0.25
#: How long after a worker thread could not be started the pool tries again, in seconds.
SPAWN_RETRY = 1.0


class Attempts(Places):
    """The work: workers take jobs here and report how each attempt ended. Every method is safe from any thread."""

    def next_job(self, worker: Worker) -> JobRecord | None:
        """Return the next job for `worker`, waiting for one; None when the pool is closed."""
        while True:
            effects = Effects()
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
        effects = Effects()
        with self._lock:
            record = self._take_locked(thread, effects)
        self._apply(effects)
        return record

    def _take_locked(self, thread: threading.Thread, effects: Effects) -> JobRecord | None:
        fresh = self.clock.monotonic() < self._fresh_until
        record = self._queue.pop() if self._starting and fresh else None
        if record is not None:
            self._start_locked(record, thread, effects)
        return record

    def confirm_alive(self, until: float) -> None:
        """Let jobs start until the monotonic moment `until`, and wake the workers that waited for that.

        A process that could not give a sign of life for too long may have been declared lost, and its jobs given up.
        """
        effects = Effects()
        with self._lock:
            stale = self.clock.monotonic() >= self._fresh_until
            self._fresh_until = until
            if stale:
                self._rouse_locked(effects)
        self._apply(effects)

    def run_inline(self, record: JobRecord) -> None:
        """Run an accepted job, retries included, in the calling thread without waiting between attempts."""
        while True:
            effects = Effects()
            with self._lock:
                if record.state is not JobState.QUEUED:
                    return
                self._unqueue_locked(record)
                self._start_locked(record, threading.current_thread(), effects)
            try:
                self._apply(effects)
            except BaseException:
                self.attempt_broke(record)  # inline, writing the state may raise: the place must not be kept
                raise
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
        effects = Effects()
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
        effects = Effects()
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
        effects = Effects()
        with self._lock:
            if record.state is JobState.RUNNING:
                self._failed_locked(record, error, described, verdict, effects)
        self._apply(effects)

    def _failed_locked(
        self, record: JobRecord, error: BaseException, described: dict[str, str], verdict: Verdict, effects: Effects
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

    def _start_locked(self, record: JobRecord, thread: threading.Thread, effects: Effects) -> None:
        now = self.clock.monotonic()
        waited = now - record.queued_mono
        record.move(JobState.RUNNING)
        record.attempt += 1
        record.token = CancelToken()
        record.overdue = False
        record.error = None  # that of the attempt before; the first one stays
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
        effects: Effects,
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
        self, record: JobRecord, reason: Reason, error: BaseException, described: dict[str, str], effects: Effects
    ) -> None:
        self._note_failure_locked(record, "failed", described, self.clock.monotonic())
        record.exception, record.exception_trace = error, error.__traceback__
        self._end_locked(record, JobState.FAILED, reason, effects, error=error, noted=True)

    def _retry_due(self, job_id: UUID) -> None:
        effects = Effects()
        with self._lock:
            record = self._delayed.pop(job_id, None)
            if record is None:
                return
            self._enqueue_locked(record, self.clock.monotonic(), effects)
        self._apply(effects)

    def _timeout_passed(self, job_id: UUID, attempt: int) -> None:
        effects = Effects()
        with self._lock:
            record, _ = self._running.get(job_id, (None, None))
            if record is None or record.attempt != attempt:
                return
            record.overdue = True
            effects.tokens.append((record.token, Reason.TIMEOUT))
        self._apply(effects)

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

    def _spawn_again(self) -> None:
        effects = Effects()
        with self._lock:
            if len(self._queue) and not self._idle and len(self._workers) < self.config.workers and not self._closed:
                effects.spawn = 1
        self._apply(effects)
