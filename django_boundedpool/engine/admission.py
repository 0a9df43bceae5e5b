"""Who gets a place, and what a refusal says."""

from __future__ import annotations

from uuid import UUID

from .errors import BytesFull, Draining, QueueFull, Rejected
from .events import Event, Kind
from .places import Effects, Places
from .record import JobRecord
from .states import JobState, Reason


class Admission(Places):
    """The way in: reserve a place, make the row durable, accept. Every method is safe from any thread."""

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
                # In this order: `_repair_locked` takes a live job that is neither reserved nor elsewhere as accepted.
                self._reserved[record.id] = record
                self._live[record.id] = record
                self._bytes += record.payload_bytes
        if refusal is not None:
            raise self.refused(refusal, record.spec.name)

    def withdraw(self, record: JobRecord) -> bool:
        """Give a reservation back: the job never was accepted. False, and nothing happens, if there is none."""
        effects = Effects()
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
        effects = Effects()
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

    def _start_deadline_passed(self, job_id: UUID) -> None:
        effects = Effects()
        with self._lock:
            record = self._live.get(job_id)
            if record is None or record.state is not JobState.QUEUED or record.attempt:
                return
            self._unqueue_locked(record)
            self._end_locked(record, JobState.CANCELLED, Reason.START_DEADLINE, effects)
        self._apply(effects)
