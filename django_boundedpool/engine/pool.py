"""The bounded pool: W workers and a queue of Q places."""

from __future__ import annotations

import threading
from typing import Literal
from uuid import UUID

from .admission import Admission
from .attempts import Attempts
from .events import Kind
from .places import Effects
from .record import JobRecord
from .states import JobState, Reason
from .stats import PoolStats

CancelAnswer = Literal["cancelled", "requested", "finished"]


class Pool(Admission, Attempts):
    """W workers and a queue of Q places: admission, attempts, cancellation, the steps of a drain, and figures.

    What it holds, its invariants and its arguments are those of `places.Places`.
    """

    def find(self, job_id: UUID) -> JobRecord | None:
        """Return the live record of a job of this pool, or None."""
        return self._live.get(job_id)

    def cancel(self, job_id: UUID, reason: Reason) -> CancelAnswer | None:
        """Cancel a live job of this pool; None if it is not (or no longer) one.

        A queued job ends at once and frees its place. A running one is asked to stop: it ends when its code does, and
        until then its worker stays occupied. Safe from any thread; never waits.
        """
        effects = Effects()
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

    # Drain -------------------------------------------------------------------------------------------------------

    def begin_drain(self, horizon: float | None) -> None:
        """Close admission, give up what is not due before `horizon` and apply ON_SHUTDOWN to the queue.

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
                for record in [record for record in self._delayed.values() if record.due > horizon]:
                    self._unqueue_locked(record)
                    self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
            if self.config.on_shutdown != "run":
                self._end_unstarted_locked(effects)
        self._apply(effects)

    def interrupt(self) -> None:
        """Start nothing more, give up what waits, and ask running jobs to stop."""
        effects = Effects()
        with self._lock:
            self._starting = False
            self._end_unstarted_locked(effects)
            for record, _ in self._running.values():
                effects.tokens.append((record.token, Reason.SHUTDOWN))
        self._apply(effects)

    def give_up(self) -> None:
        """Mark every accepted job that is left as abandoned; what its code does later is discarded."""
        effects = Effects()
        with self._lock:
            self._starting = False
            self._repair_locked(effects)
            self._end_unstarted_locked(effects)
            for record in [record for record, _ in self._running.values()]:
                effects.tokens.append((record.token, Reason.SHUTDOWN))
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
        self._apply(effects)

    def _repair_locked(self, effects: Effects) -> None:
        """Complete the moves that an exception out of a signal handler has torn in two.

        A KeyboardInterrupt or SystemExit may come between any two lines of the main thread, under the lock as well.
        What it leaves is a live job that is nowhere, or whose worker was never woken; nobody else would find it.
        """
        somewhere = {*self._reserved, *self._delayed, *self._running, *(record.id for record in self._queue)}
        for record in [r for r in self._live.values() if r.state.terminal or r.id not in somewhere]:
            if record.state.terminal:
                self._unqueue_locked(record)
                self._running.pop(record.id, None)
                record.finished_at = record.finished_at or self.clock.now()
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
        self._rouse_locked(effects)

    def forfeit(self, owner: UUID) -> None:
        """Drop every accepted job but those of `owner`: this process was declared lost and goes on under that id."""
        effects = Effects()
        with self._lock:
            for record in [record for record in (*self._queue, *self._delayed.values()) if record.process != owner]:
                self._unqueue_locked(record)
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
            for record in [record for record, _ in self._running.values() if record.process != owner]:
                effects.tokens.append((record.token, Reason.SHUTDOWN))
                self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
        self._apply(effects)

    def _end_unstarted_locked(self, effects: Effects) -> None:
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
