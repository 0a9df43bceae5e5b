"""Taking jobs, and what each attempt comes to: success, failure, another attempt."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
import traceback
from typing import Any

from . import payload
from .cancellation import CancelToken
from .errors import JobInterrupted, JobTimedOut
from .events import STARTED, Kind, about, of_pool
from .places import Effects, Places, call
from .record import JobRecord, describe_error
from .retry import RetryBudget, Verdict
from .spec import CPU, LOOP, THREAD, Lane
from .states import NO_REASON, QUEUED, RUNNING, SUCCEEDED, TIMED_OUT, JobState, Reason
from .worker import AsyncRunner, LoopLane, Runner, Worker, execute, forget_locals, forks_so_far

logger = logging.getLogger("django_boundedpool.engine")

#: Least time between two stored progress reports of one job, in seconds.
PROGRESS_INTERVAL = 0.25
#: How long after a thread could not be started the pool tries again, in seconds.
SPAWN_RETRY = 1.0
#: How long after its time-out a job that does not end is first reported, and how often then. Seconds.
STUCK_GRACE = 1.0
STUCK_REPORT_EVERY = 30.0


class Attempts(Places):
    """The work: workers take jobs here and report how each attempt ended. Every method is safe from any thread."""

    def __init__(self, *args: Any, async_runner: AsyncRunner | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._async_runner = async_runner

    @property
    def runner(self) -> Runner:
        """What runs the code of a job."""
        return self._runner

    # Starting ----------------------------------------------------------------------------------------------------

    def next_job(self, worker: Worker) -> JobRecord | None:
        """Return the next job for `worker`, waiting for one; None when it is to end."""
        while True:
            effects = Effects()
            with self._lock:
                if self._closed or len(self._workers) > self.workers or worker not in self._workers:
                    self._workers.discard(worker)
                    if not self._closed:
                        self._rouse_locked(effects)  # its wake-up may have been meant for a job
                    record, leave = None, True
                else:
                    record, leave = self._take_locked(worker, effects), False
                    if record is None and worker not in self._idle:  # else this was a wake-up too many
                        self._idle.append(worker)
            self._apply_safely(effects)
            if record is not None or leave:
                return record
            del effects  # an idle worker keeps nothing
            worker.parked.acquire()
            handed = worker.handed
            if handed is not None:
                worker.handed = None
                if handed.state is not RUNNING:  # given up before it began
                    effects = Effects()
                    with self._lock:
                        self._end_of_ghost_locked(handed, effects)
                    self._apply_safely(effects)
                    continue
                return handed

    def take(self, thread: threading.Thread) -> JobRecord | None:
        """Start the next job in `thread` and return it, or None when nothing may start. Never waits."""
        effects = Effects()
        with self._lock:
            record = self._take_locked(thread, effects)
        self._apply(effects)
        return record

    def _take_locked(self, thread: threading.Thread | None, effects: Effects) -> JobRecord | None:
        """Start the next job in `thread` and return it; jobs of the event loop that come before it start there.

        Without a thread only the latter.
        """
        queue = self._queue
        if not queue or not self._starting or self._paused:
            return None
        now = self._monotonic()
        if now >= self._fresh_until:
            return None
        without: Lane | None = None
        while len(self._running) + len(self._ghosts) < self.workers:
            best = queue.best(without)
            if best is None:
                return None
            lane = best[1]
            if lane is THREAD:
                if thread is None:
                    return None
            elif lane is LOOP:
                loop = self._loop
                if loop is None or loop.thread is None:
                    effects.calls.append((self._start_loop, loop))
                    return None
                record = queue.pop(best)
                self._start_locked(record, loop.thread, now, effects)
                effects.calls.append((self._launch, record))
                continue
            elif thread is None:
                if not self._cpu_lane.call_when_free(self._rouse):
                    return None  # a worker is on its way for it
                without = CPU
                continue
            elif not self._cpu_lane.enter(queue.first(best), self._rouse):
                without = CPU
                continue
            record = queue.pop(best)
            self._start_locked(record, thread, now, effects)
            if queue.elsewhere:
                self._launch_locked(effects)  # what waited behind this one need not
            return record
        return None

    def _launch_locked(self, effects: Effects) -> None:
        self._take_locked(None, effects)

    def _rouse(self) -> None:
        effects = Effects()
        with self._lock:
            self._rouse_locked(effects)
        self._apply(effects)

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

    def run_inline(self, record: JobRecord, runner: Runner | None = None) -> None:
        """Run an accepted job, retries included, in the calling thread without waiting between attempts."""
        while True:
            effects = Effects()
            with self._lock:
                if record.state is not QUEUED:
                    return
                self._unqueue_locked(record)
                self._start_locked(record, threading.current_thread(), self.clock.monotonic(), effects)
            try:
                self._apply(effects)
            except BaseException:
                self.attempt_broke(record)  # inline, writing the state may raise: the place must not be kept
                raise
            execute(self, runner or self._runner, record)

    def _start_locked(self, record: JobRecord, thread: threading.Thread | None, now: float, effects: Effects) -> None:
        record.begin(now, self._time())
        if record.attempt > 1:
            record.overdue = False
            record.error = None  # that of the attempt before; the first one stays
        if record.timer is not None:
            self._disarm_locked(record)
        self._running[record] = thread
        spec = record.spec
        if spec.retry is not None and record.attempt == 1:
            self._budget_locked(record, now).started(spec.retry.budget, now)
        ends = record.deadline_mono
        if spec.timeout is not None and (ends is None or now + spec.timeout < ends):
            ends = now + spec.timeout
        record.ends_mono = ends
        record.look_mono = look = now + self._stuck_after if ends is None else ends
        if self._watch is None or look < self._watch.due:
            self._watch_locked(look)
        self._save_locked(record, effects)
        effects.events.append(about(STARTED, self._name, record, now - record.queued_mono))

    # Concluding --------------------------------------------------------------------------------------------------

    def attempt_returned(self, record: JobRecord, value: object, worker: Worker | None = None) -> JobRecord | None:
        """Conclude an attempt whose code returned `value`; return what `worker` is to run next."""
        result: object = None
        fault: BaseException | None = None
        if value is not None and record.spec.store_result:
            try:
                result = self._checked_result(value)
            except Exception as error:  # noqa: BLE001 - whatever the value does when it is read, its job has failed
                fault = error
        if record.stop_reason is TIMED_OUT:
            return self._failed(record, self._timed_out(record), worker)
        described = describe_error(fault) if fault is not None else None
        effects = Effects()
        with self._lock:
            if record.state is not RUNNING:
                self._end_of_ghost_locked(record, effects)
            elif fault is not None and described is not None:
                self._fail_locked(record, Reason.BAD_RESULT, fault, described, effects)
            else:
                record.result = result
                self._end_locked(record, SUCCEEDED, NO_REASON, effects)
            following = self._go_on_locked(record, worker, effects)
        self._apply_after(effects, following)
        return following

    def attempt_raised(self, record: JobRecord, error: BaseException, worker: Worker | None = None) -> JobRecord | None:
        """Conclude an attempt whose code raised `error`; return what `worker` is to run next."""
        if record.stop_reason is TIMED_OUT:
            timed_out = self._timed_out(record)
            if not isinstance(error, JobInterrupted | asyncio.CancelledError):
                timed_out.__cause__ = error
            error = timed_out
        return self._failed(record, error, worker)

    def attempt_broke(self, record: JobRecord) -> None:
        """Conclude an attempt that could not be concluded otherwise."""
        effects = Effects()
        with self._lock:
            if record.state is RUNNING:
                record.error = {
                    "type": "",
                    "message": "The pool could not conclude this attempt; see the log.",
                    "traceback": "",
                }
                self._end_locked(record, JobState.FAILED, Reason.ERROR, effects)
            elif record in self._ghosts:
                self._end_of_ghost_locked(record, effects)
            else:
                return
            self._go_on_locked(record, None, effects)
        self._apply(effects)

    def _end_of_ghost_locked(self, record: JobRecord, effects: Effects) -> None:
        """Free the worker of a job that was given up: its code has ended at last, and its outcome is discarded."""
        self._ghosts.pop(record, None)
        if record.made_token is not None:
            effects.calls.append((CancelToken.clear, record.made_token))

    def _go_on_locked(self, record: JobRecord, worker: Worker | None, effects: Effects) -> JobRecord | None:
        """Use the worker that `record` has left: by `worker` itself, or by whoever can."""
        if record.spec.runs_on is CPU:
            effects.calls += [(call, rouse) for rouse in self._cpu_lane.leave(record)]
        if worker is not None:
            if self._closed or len(self._workers) > self.workers or worker not in self._workers:
                return None
            return self._take_locked(worker, effects)
        if self._queue:
            self._rouse_locked(effects)
        return None

    def _apply_after(self, effects: Effects, following: JobRecord | None) -> None:
        if following is None:
            self._apply(effects)
        else:
            self._apply_safely(effects)  # the next job has been started: it must come to its worker

    def _apply_safely(self, effects: Effects) -> None:
        try:
            self._apply(effects)
        except BaseException:
            logger.exception("What follows a move of a job failed.")

    def report_progress(self, record: JobRecord, fraction: float, message: str) -> None:
        """Keep a running job's progress; at most a few reports a second are stored."""
        effects = Effects()
        with self._lock:
            if record.state is not RUNNING:
                return
            record.progress, record.progress_message = fraction, message
            now = self.clock.monotonic()
            if now - record.progress_mono >= PROGRESS_INTERVAL or fraction >= 1:
                record.progress_mono = now
                record.version += 1
                self._save_locked(record, effects)
        self._apply(effects)

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
        limit = record.spec.timeout
        if record.ends_mono is not None and record.ends_mono == record.deadline_mono:
            return JobTimedOut("still running at its deadline", attempts=record.attempt)
        return JobTimedOut(f"still running after its time-out of {limit or 0.0:g} s", attempts=record.attempt)

    def _failed(self, record: JobRecord, error: BaseException, worker: Worker | None) -> JobRecord | None:
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
            if record.state is RUNNING:
                self._failed_locked(record, error, described, verdict, effects)
            else:
                self._end_of_ghost_locked(record, effects)
            following = self._go_on_locked(record, worker, effects)
        self._apply_after(effects, following)
        return following

    def _failed_locked(
        self, record: JobRecord, error: BaseException, described: dict[str, str], verdict: Verdict, effects: Effects
    ) -> None:
        now = self.clock.monotonic()
        policy = record.spec.retry
        timed_out = isinstance(error, JobTimedOut)
        # The request is noted under the lock a moment before the token fires: whichever the code saw, it counts.
        asked = record.cancel_requested or (Reason.SHUTDOWN if record.stop_reason is Reason.SHUTDOWN else None)
        if asked is not None and not timed_out:
            if not isinstance(error, JobInterrupted | asyncio.CancelledError):
                record.error = described
            if asked is Reason.SHUTDOWN:
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
            else:
                self._end_locked(record, JobState.CANCELLED, asked, effects)
        elif policy is None or verdict == "fail":
            self._fail_locked(record, TIMED_OUT if timed_out else Reason.ERROR, error, described, effects)
        elif record.failures + 1 >= policy.max_attempts:
            self._fail_locked(record, Reason.ATTEMPTS_EXHAUSTED, error, described, effects)
        elif record.cancel_requested is not None:  # timed out and cancelled: nobody wants another attempt
            self._fail_locked(record, TIMED_OUT, error, described, effects)
        else:
            delay = verdict if isinstance(verdict, float) else policy.delay(record.failures + 1, self._rng)
            if record.deadline_mono is not None and now + delay >= record.deadline_mono:
                # Its deadline leaves no time for another attempt.
                self._fail_locked(record, TIMED_OUT, error, described, effects)
            elif len(self._delayed) >= self._retry_places() or not self._budget_locked(record, now).take(now):
                self._fail_locked(record, Reason.RETRY_BUDGET, error, described, effects)
            else:
                self._retry_locked(record, error, described, now, delay, effects)

    def _retry_places(self) -> int:
        share = self.config.retry_share
        return max(1, int(self.capacity * share)) if share else 0

    def _budget_locked(self, record: JobRecord, now: float) -> RetryBudget:
        budget = self._budgets.get(record.spec.name)
        if budget is None:
            budget = self._budgets[record.spec.name] = RetryBudget(now)
        return budget

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
        del self._running[record]
        if record.made_token is not None:
            effects.calls.append((CancelToken.clear, record.made_token))
        record.move(QUEUED)
        record.due = due
        record.run_after = self.clock.time() + delay
        record.special = True
        record.ends_mono = None
        self._retries += 1
        self._delayed[record] = None
        self._arm_locked(record, due, self._retry_due)
        self._save_locked(record, effects)
        ran = now - record.started_mono
        effects.events.append(about(Kind.JOB_RETRIED, self.config.name, record, 0.0, ran, delay, error))

    def _note_failure_locked(self, record: JobRecord, outcome: str, described: dict[str, str], now: float) -> None:
        record.failures += 1
        record.error = described
        if record.first_error is None:
            record.first_error = described
        record.note_attempt_locked(outcome, now - record.started_mono, described, self.clock.time())

    def _fail_locked(
        self, record: JobRecord, reason: Reason, error: BaseException, described: dict[str, str], effects: Effects
    ) -> None:
        self._note_failure_locked(record, "failed", described, self.clock.monotonic())
        record.exception, record.exception_trace = error, error.__traceback__
        self._end_locked(record, JobState.FAILED, reason, effects, error=error, noted=True)

    def _retry_due(self, record: JobRecord) -> None:
        effects = Effects()
        with self._lock:
            if record not in self._delayed:
                return
            del self._delayed[record]
            record.timer = None
            if record.deadline_mono is not None:
                self._arm_locked(record, record.deadline_mono, self._retry_too_late)
            self._enqueue_locked(record, self.clock.monotonic(), effects)
        self._apply(effects)

    def _retry_too_late(self, record: JobRecord) -> None:
        effects = Effects()
        with self._lock:
            if record.state is not QUEUED:
                return
            record.timer = None
            self._unqueue_locked(record)
            self._end_locked(record, JobState.FAILED, TIMED_OUT, effects)  # with the error of its last attempt
        self._apply(effects)

    # Threads and the event loop ------------------------------------------------------------------------------------

    def _start_worker(self, worker: Worker) -> None:
        try:
            worker.start()
        except RuntimeError:
            # The system refuses threads. Workers that exist serve the queue; if there is none, the timer tries again.
            with self._lock:
                self._workers.discard(worker)
            logger.exception("Pool %s could not start a worker thread.", self.config.name)
            self._timer.at(self.clock.monotonic() + SPAWN_RETRY, self._rouse)

    def worker_died(self, worker: Worker) -> None:
        """Put another worker in the place of one whose thread ends though nobody asked it to."""
        effects = Effects()
        with self._lock:
            held = [record for record, thread in self._running.items() if thread is worker]
            for ghost in [record for record, thread in self._ghosts.items() if thread is worker]:
                del self._ghosts[ghost]
                effects.calls += [(call, rouse) for rouse in self._cpu_lane.leave(ghost)]
            self._workers.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            self._replaced += 1
            effects.events.append(of_pool(Kind.WORKER_REPLACED, self._name))
        for record in held:
            self.attempt_broke(record)
        with self._lock:
            self._rouse_locked(effects)
        self._apply(effects)

    def _start_loop(self, loop: LoopLane | None) -> None:
        try:
            if loop is None:
                raise RuntimeError("This pool has no event loop.")
            loop.start()
        except RuntimeError:
            logger.exception("Pool %s could not start the event loop's thread.", self.config.name)
            self._timer.at(self.clock.monotonic() + SPAWN_RETRY, self._rouse)
        else:
            self._rouse()

    def _launch(self, record: JobRecord) -> None:
        assert self._loop is not None  # noqa: S101 - `_take_locked` has looked
        assert self._async_runner is not None  # noqa: S101 - comes with the loop
        token = record.token
        try:
            flight = self._loop.launch(
                functools.partial(self._async_runner, record), functools.partial(self._landed, record, forks_so_far())
            )
        except RuntimeError:  # the loop was stopped
            logger.exception("Async job %s could not be launched.", record.id)
            self.attempt_broke(record)
            return
        token.interrupt_by(flight.cancel)

    def _landed(self, record: JobRecord, forks: int, value: object, error: BaseException | None) -> None:
        if forks_so_far() != forks:
            os._exit(1)  # as `worker.execute`: the job and its event loop are the parent's
        try:
            if error is None:
                self.attempt_returned(record, value)
            else:
                self.attempt_raised(record, error)
                forget_locals(error)
        except BaseException:
            logger.exception("Job %s could not be concluded properly.", record.id)
            self.attempt_broke(record)

    # Time-outs and stuck workers -----------------------------------------------------------------------------------

    def _watch_locked(self, moment: float) -> None:
        """Look at the running jobs at `moment`.

        One timer entry serves all of them: it is armed for the earliest and, since most jobs end before, moved seldom.
        """
        if self._watch is not None:
            self._timer.cancel(self._watch)
        self._watch = self._timer.at(moment, self._look)

    def _look(self) -> None:
        """Interrupt what is overdue and report what is stuck."""
        effects = Effects()
        tokens: list[tuple[CancelToken, Reason]] = []
        reports: list[tuple[JobRecord, threading.Thread | None, float]] = []
        with self._lock:
            now = self.clock.monotonic()
            self._watch = None
            jobs = {**self._running, **self._ghosts}
            for record, thread in jobs.items():
                if record.look_mono is not None and record.look_mono <= now:
                    overdue = record.ends_mono is not None and not record.overdue
                    if overdue and record.state is RUNNING:
                        record.overdue = True
                        tokens.append((record.token, TIMED_OUT))
                        record.look_mono = now + STUCK_GRACE
                    else:
                        ran = now - record.started_mono
                        reports.append((record, thread, ran))
                        effects.events.append(about(Kind.WORKER_STUCK, self.config.name, record, 0.0, ran))
                        record.look_mono = now + STUCK_REPORT_EVERY
            moments = [record.look_mono for record in jobs if record.look_mono is not None]
            if moments:
                self._watch = self._timer.at(min(moments), self._look)
        self._fire_all(tokens)
        for record, thread, ran in reports:
            report_stuck(record, thread, ran)
        self._apply(effects)


def report_stuck(record: JobRecord, thread: threading.Thread | None, ran: float) -> None:
    """Log where a job that does not end is."""
    frame = sys._current_frames().get(thread.ident) if thread is not None and thread.ident else None
    where = "".join(traceback.format_stack(frame)) if frame is not None else "(its stack is not known)\n"
    del frame
    logger.warning(
        "Job %s %s of pool %s has run for %.0f s, past its limit; its worker is lost to other jobs until it ends. "
        "It is here:\n%s", record.spec.name, record.id, record.spec.pool, ran, payload.printable(where, 8000),
    )  # fmt: skip
