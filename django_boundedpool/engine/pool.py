"""The bounded pool: W workers and a queue of Q places."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar
from uuid import UUID

from .config import Fault, refuse, workers_fault
from .errors import Draining, Paused
from .events import Kind, about, of_pool
from .express import Express
from .places import Effects, release
from .record import JobRecord
from .report import DrainReport
from .states import JobState, Reason
from .stats import PoolStats

CancelAnswer = Literal["cancelled", "requested", "finished"]
Value = TypeVar("Value")


class Pool(Express):
    """W workers and a queue of Q places: admission, attempts, cancellation, the steps of a drain, and figures.

    What it holds, its invariants and its arguments are those of `places.Places`.
    """

    def find(self, job_id: UUID) -> JobRecord | None:
        """Return the live record of a job of this pool, or None."""
        return self._live.get(job_id.int)

    def cancel(self, job_id: UUID, reason: Reason) -> CancelAnswer | None:
        """Cancel a live job of this pool; None if it is not (or no longer) one.

        A queued job ends at once and frees its place. A running one is asked to stop: it ends when its code does, and
        until then its worker stays occupied. Safe from any thread; never waits.
        """
        return self.cancel_key(job_id.int, reason)

    def cancel_key(self, key: int, reason: Reason) -> CancelAnswer | None:
        """Do as `cancel` for an id given as an integer."""
        effects = Effects()
        answer: CancelAnswer | None
        with self._lock:
            record = self._live.get(key)
            if record is None:
                return None
            if record.cancel_requested is None:
                record.cancel_requested = reason
                record.special = True  # it may be a reservation still
                effects.events.append(about(Kind.CANCEL_REQUESTED, self._name, record, reason=reason))
                if record.state is JobState.RUNNING:
                    effects.calls.append((self._fire_all, [(record.token, reason)]))
            answer = "requested"
            if record.state is JobState.QUEUED:
                self._unqueue_locked(record)
                self._end_locked(record, JobState.CANCELLED, reason, effects)
                answer = "cancelled"
        self._apply(effects)
        return answer

    def cancel_if_queued(self, job_id: UUID, reason: Reason) -> bool:
        """Cancel a job of this pool unless it has begun; True if it was."""
        effects = Effects()
        with self._lock:
            record = self._live.get(job_id.int)
            if record is None or record.state is not JobState.QUEUED or record.attempt:
                return False
            record.cancel_requested = reason
            effects.events.append(about(Kind.CANCEL_REQUESTED, self._name, record, reason=reason))
            self._unqueue_locked(record)
            self._end_locked(record, JobState.CANCELLED, reason, effects)
        self._apply(effects)
        return True

    def when_over(self, record: JobRecord, callback: Callable[[], object]) -> None:
        """Call `callback`, which must not block, once `record` is over: at once if it is, else in whatever thread."""
        with self._lock:
            if not record.state.terminal:
                if record.waiters is None:
                    record.waiters = []
                record.waiters.append(callback)
                return
        callback()

    def not_when_over(self, record: JobRecord, callback: Callable[[], object]) -> None:
        """Forget a callback of `when_over`: whoever waited has gone."""
        with self._lock:
            if record.waiters is not None and callback in record.waiters:
                record.waiters.remove(callback)

    def locked(self, record: JobRecord, read: Callable[[JobRecord], Value]) -> Value:
        """Return `read(record)`, which is quick, while nothing about the job changes."""
        with self._lock:
            return read(record)

    def done_event(self, record: JobRecord) -> threading.Event:
        """Return an event that is set when `record` is over."""
        event = threading.Event()
        self.when_over(record, event.set)
        return event

    # At run time -------------------------------------------------------------------------------------------------

    def pause(self, *, refuse: bool = False) -> None:
        """Start no further job until `resume`; jobs are admitted until the queue is full.

        Arguments:
            refuse: admit none either; submits raise `Paused`, those that wait for a place too.

        Running jobs go on, and time-outs and deadlines do. Safe from any thread; never waits.
        """
        effects = Effects()
        with self._lock:
            self._paused = True
            if refuse and self._shut is None:
                self._shut = Paused
                self._place_freed_locked(effects)  # whoever waits for a place is told
            effects.events.append(of_pool(Kind.POOL_CHANGED, self._name))
        self._apply(effects)

    def resume(self) -> None:
        """Undo `pause` and `drain`: start jobs and admit them. A process that stops stays closed."""
        effects = Effects()
        with self._lock:
            self._paused = False
            self._shut = None
            self._rouse_locked(effects)
            effects.events.append(of_pool(Kind.POOL_CHANGED, self._name))
        self._apply(effects)

    def resize(self, *, workers: int) -> None:
        """Change W, in this process and until it ends.

        Arguments:
            workers: jobs that may run at once (1 to 1000). Fewer than run now lets those end first, and the queue
                keeps what it holds; admission opens when there are less than W + Q again.

        Raises:
            ConfigurationError: no such number.

        Safe from any thread; never waits.
        """
        fault = workers_fault(workers)
        if fault is not None:
            refuse([Fault(path="resize(workers=...)", value=workers, remedy=fault)])
        effects = Effects()
        with self._lock:
            self.workers = workers
            self._measure_locked()
            while self._idle and len(self._workers) > workers:
                leaving = self._idle.pop()
                self._workers.discard(leaving)
                effects.calls.append((release, leaving.parked))
            self._rouse_locked(effects)
            self._place_freed_locked(effects)
            effects.events.append(of_pool(Kind.POOL_CHANGED, self._name))
        self._apply(effects)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no job and no reservation is left; True if so.

        Arguments:
            timeout: longest wait in seconds, or None without a limit.

        Inside a job of this pool that job is not waited for. Safe from any thread but the event loop's.

        Raises:
            RuntimeError: called on a running event loop, which it would block.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.wait_empty(timeout, beside=self._here())
        raise RuntimeError("This would block the event loop; call it in a thread, as sync_to_async does.")

    def drain(self, timeout: float | None = None) -> DrainReport:
        """Refuse every submit with `Draining` and wait for the jobs; `resume` opens the pool again.

        Arguments:
            timeout: longest wait in seconds, or None without a limit. What is left then goes on: nothing is
                interrupted or given up, since the process lives on.

        Returns:
            What ended meanwhile, by outcome.

        Raises:
            RuntimeError: called on a running event loop; the pool refuses from then on all the same.
        """
        effects = Effects()
        began = time.monotonic()
        with self._lock:
            self._shut = Draining
            own = self._drained is None
            if own:
                self._drained = {}
            self._place_freed_locked(effects)
            effects.events.append(of_pool(Kind.POOL_CHANGED, self._name))
        try:
            self._apply(effects)
            finished = self.join(timeout)
        finally:
            with self._lock:
                outcomes = {outcome: list(ids) for outcome, ids in (self._drained or {}).items()}
                if own and not self.draining:
                    self._drained = None
        return DrainReport(
            reason="drain()",
            seconds=time.monotonic() - began,
            deadline=timeout,
            outcomes=outcomes,
            flushed=True,
            hurried=not finished,
        )

    # Drain -------------------------------------------------------------------------------------------------------

    def begin_drain(self, horizon: float | None) -> None:
        """Close admission, give up what is not due before `horizon` and apply ON_SHUTDOWN to the queue.

        What waits in a paused pool is given up: nobody may start it, and nobody is left to resume.

        Arguments:
            horizon: monotonic moment at which the drain gives up, or None for a drain without a deadline.
        """
        self.draining = True
        effects = Effects()
        with self._lock:
            if self._drained is None:
                self._drained = {}
            self._horizon = horizon
            self._repair_locked(effects)
            if horizon is not None:
                for record in [record for record in (*self._delayed, *self._deferred) if record.due > horizon]:
                    self._unqueue_locked(record)
                    self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
            if self._paused:
                self._starting = False  # what must not start would be waited for in vain
            if self._paused or self.config.on_shutdown != "run":
                self._end_unstarted_locked(effects)
            self._place_freed_locked(effects)  # whoever waits for a place is told
        self._apply(effects)

    def interrupt(self) -> None:
        """Start nothing more, give up what waits, and ask running jobs to stop."""
        effects = Effects()
        with self._lock:
            self._starting = False
            self._end_unstarted_locked(effects)
            effects.calls.append((self._fire_all, [(record.token, Reason.SHUTDOWN) for record in self._running]))
        self._apply(effects)

    def give_up(self) -> None:
        """Mark every accepted job that is left as abandoned; what its code does later is discarded."""
        effects = Effects()
        with self._lock:
            self._starting = False
            self._repair_locked(effects)
            self._end_unstarted_locked(effects)
            self._give_up_running_locked(list(self._running), Reason.DRAIN_DEADLINE, effects)
        self._apply(effects)

    def _repair_locked(self, effects: Effects) -> None:
        """Complete the moves that an exception out of a signal handler has torn in two.

        A KeyboardInterrupt or SystemExit may come between any two lines of the main thread, under the lock as well.
        What it leaves is a live job that is nowhere, or whose worker was never woken; nobody else would find it.
        """
        for worker in [worker for worker in self._workers if worker.ident is None]:
            self._workers.discard(worker)  # its start was cut off; one that comes after all ends by itself
        for worker in self._workers:
            if worker.handed is not None and worker.parked.locked():
                effects.calls.append((release, worker.parked))  # its wake-up was cut off
        somewhere = {*self._reserved, *self._running, *self._unstarted_locked()}
        for record in [r for r in self._live.values() if r.state.terminal or r not in somewhere]:
            if record.state.terminal:
                self._unqueue_locked(record)
                self._running.pop(record, None)
                record.finished = record.finished or self.clock.time()
                self._conclude_locked(record, effects)
                continue
            if record.state is JobState.SUBMITTED:
                record.state = JobState.QUEUED
            if record.cancel_requested is not None:
                self._end_locked(record, JobState.CANCELLED, record.cancel_requested, effects)
            elif record.state is JobState.QUEUED and self._threaded:
                self._enqueue_locked(record, self.clock.monotonic(), effects)
            else:
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
        # The interruption may have come before the count.
        self.accepted = len(self._live) - len(self._reserved) + sum(self._finished.values())
        self._rouse_locked(effects)

    def forfeit(self, owner: UUID) -> None:
        """Drop every accepted job but those of `owner`: this process was declared lost and goes on under that id."""
        effects = Effects()
        with self._lock:
            for record in [record for record in self._unstarted_locked() if record.process != owner]:
                self._unqueue_locked(record)
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
            others = [record for record in self._running if record.process != owner]
            self._give_up_running_locked(others, Reason.PROCESS_LOST, effects)
        self._apply(effects)

    def _give_up_running_locked(self, records: list[JobRecord], reason: Reason, effects: Effects) -> None:
        """End running jobs on paper. Their workers stay occupied until the code ends, whose outcome is discarded."""
        tokens = []
        for record in records:
            self._ghosts[record] = self._running[record]
            self._end_locked(record, JobState.ABANDONED, reason, effects)
            tokens.append((record.token, Reason.SHUTDOWN))
        effects.calls.append((self._fire_all, tokens))  # last: what is written first is not lost to a slow callback

    def _unstarted_locked(self) -> list[JobRecord]:
        return [*self._queue, *self._deferred, *self._delayed]

    def _end_unstarted_locked(self, effects: Effects) -> None:
        state, reason = self._unstarted_end()
        for record in self._unstarted_locked():
            self._unqueue_locked(record)
            self._end_locked(record, state, reason, effects)

    def wait_empty(self, timeout: float | None = None, *, beside: threading.Thread | int | None = None) -> bool:
        """Wait until no job and no reservation is left; True if so.

        Arguments:
            timeout: seconds, or None without a limit.
            beside: what does not count: the job that waits (its id as an integer), or that of the thread which does.
        """
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        with self._lock:
            self._joining += 1
            try:
                while True:
                    if isinstance(beside, int):
                        own = int(beside in self._live)
                    else:
                        own = sum(thread is beside for thread in self._running.values()) if beside else 0
                    if len(self._live) <= own:
                        return True
                    left = None if deadline is None else deadline - self.clock.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._empty.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            finally:
                self._joining -= 1

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
        return self._waiting_locked(), running, self._bytes

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
                now > (record.started_mono + self.config.stuck_after if record.ends_mono is None else record.ends_mono)
                for record in (*self._running, *self._ghosts)
            )
            return PoolStats(
                pool=self.config.name,
                workers=self.workers,
                threads=len(self._workers),
                running=len(self._running),
                given_up=len(self._ghosts),
                stuck=stuck,
                replaced=self._replaced,
                queue_size=self.config.queue_size,
                queued=self._waiting_locked(),
                delayed=len(self._delayed) + len(self._deferred),
                reserved=len(self._reserved),
                waiting=self._standing,
                queue_bytes=self._bytes,
                oldest_age=self._oldest_age_locked(),
                paused=self._paused,
                draining=self.draining or self._shut is Draining,
                accepted=self.accepted,
                rejected=dict(self._rejected),
                finished={state: count for state, count in self._finished.items() if count},
                retries=self._retries,
            )
