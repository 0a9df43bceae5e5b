"""Who gets a place, and what a refusal says."""

from __future__ import annotations

from itertools import islice

from .errors import BytesFull, Draining, Expired, OwnerLimit, Paused, QueueFull, Rejected, Shed
from .events import ACCEPTED, JOB_REJECTED, Kind, about, of_pool
from .places import Effects
from .record import JobRecord
from .spec import JobSpec
from .states import QUEUED, JobState, Reason
from .waiting import Line

#: A newcomer with large arguments evicts at most this many jobs with small ones.
MOST_EVICTED = 100


class Admission(Line):
    """The way in: reserve a place, make the row durable, accept. Every method is safe from any thread."""

    def turned_away(self, spec: JobSpec, *, may_wait: bool = False) -> type[Rejected] | None:
        """Say at once, before any argument is read, why no job of this kind could be accepted; None if one might be.

        What it returns is counted as a refusal. Takes no lock unless it refuses.

        Arguments:
            spec: the job that would be submitted.
            may_wait: whether the caller would wait for a place.
        """
        kind = self._shut
        if self.draining:
            kind = Draining
        elif kind is None:
            if len(self._live) < self._always_free or may_wait or self.config.shed:
                return None
            kind = self._full_for(spec.priority)
            if kind is None:
                return None
        with self._lock:
            self._rejected[kind.code] += 1
        self._emit((of_pool(JOB_REJECTED, self._name, spec.name, kind.code),))
        return kind

    def check_open(self, spec: JobSpec, *, may_wait: bool = False) -> None:
        """Raise what `turned_away` says.

        Raises:
            Rejected: Draining, Paused, Shed or QueueFull.
        """
        kind = self.turned_away(spec, may_wait=may_wait)
        if kind is not None:
            with self._lock:
                refusal = self._explained_locked(kind, spec, 0)
            raise refusal

    def reserve(self, record: JobRecord) -> None:
        """Take a place for `record`; it is not started before `accept`. Never waits.

        Raises:
            Rejected: no place; nothing is held.
        """
        effects = Effects()
        with self._lock:
            refusal = self._reserve_locked(record, effects)
        if refusal is not None:
            raise self.refused(refusal, record.spec.name)
        if effects.calls:
            self._apply(effects)

    def withdraw(self, record: JobRecord) -> bool:
        """Give a reservation back: the job never was accepted. False, and nothing happens, if there is none."""
        effects = Effects()
        with self._lock:
            if record not in self._reserved:
                return False
            del self._reserved[record]
            record.state = JobState.REJECTED
            if self._live.pop(record.key, None) is not None:
                self._give_back_locked(record, effects)
            self._release_waiters_locked(record, effects)
            effects.events.append(of_pool(Kind.POOL_CHANGED, self._name))
        self._apply(effects)
        return True

    def accept(self, record: JobRecord) -> None:
        """Turn a reservation whose row is durable into a queued job. Harmless when repeated."""
        effects = Effects()
        with self._lock:
            if record not in self._reserved:
                return
            del self._reserved[record]
            self._accept_locked(record, effects)
        self._apply(effects)

    def admit(self, record: JobRecord) -> None:
        """Reserve and accept in one step, for jobs without a row.

        Raises:
            Rejected: no place; nothing is held.
        """
        effects = Effects()
        with self._lock:
            refusal = self._reserve_locked(record, effects)
            if refusal is None:
                del self._reserved[record]
                self._accept_locked(record, effects)
        if refusal is not None:
            raise self.refused(refusal, record.spec.name)
        self._apply(effects)

    def refused(self, refusal: Rejected, job_name: str = "") -> Rejected:
        """Count `refusal`, tell the listeners and return it, for raising."""
        with self._lock:
            self._rejected[refusal.code] += 1
        self._emit((of_pool(JOB_REJECTED, self._name, job_name, refusal.code),))
        return refusal

    def retry_after(self) -> float | None:
        """Return the jittered seconds until a place is likely, from 1 to 120; None when no rate is known."""
        with self._lock:
            return self._retry_after_locked()

    def _accept_locked(self, record: JobRecord, effects: Effects) -> None:
        now = self._monotonic()
        record.state = QUEUED  # the row was inserted as queued: same version
        record.queued_mono = now
        self.accepted += 1
        effects.events.append(about(ACCEPTED, self._name, record))
        if record.special or self._drained is not None or not self._starting:
            self._accept_special_locked(record, now, effects)
        else:
            self._enqueue_locked(record, now, effects)

    def _accept_special_locked(self, record: JobRecord, now: float, effects: Effects) -> None:
        record.stored_call = None
        if record.forfeited:
            self._end_locked(record, JobState.ABANDONED, Reason.PROCESS_LOST, effects)
        elif record.cancel_requested is not None:
            self._end_locked(record, JobState.CANCELLED, record.cancel_requested, effects)
        elif not self._starting or (self.draining and self.config.on_shutdown != "run"):
            state, reason = self._unstarted_end()
            self._end_locked(record, state, reason, effects)
        elif record.deadline_mono is not None and record.deadline_mono <= now:
            self._end_locked(record, JobState.CANCELLED, Reason.START_DEADLINE, effects)
        elif record.run_after is not None and record.due > now:
            if self._horizon is not None and record.due > self._horizon:
                self._end_locked(record, JobState.ABANDONED, Reason.DRAIN_DEADLINE, effects)
                return
            self._deferred.push(record, now)
            if record.deadline_mono is not None and record.deadline_mono <= record.due:
                self._arm_locked(record, record.deadline_mono, self._start_deadline_passed)
            else:
                self._arm_locked(record, record.due, self._due)
        else:
            self._eligible_locked(record, now, effects)

    def _eligible_locked(self, record: JobRecord, now: float, effects: Effects) -> None:
        """Put a job that never started into the queue, for as long as it may wait there."""
        deadline = record.deadline_mono
        if record.spec.start_deadline is not None:
            start_by = now + record.spec.start_deadline
            deadline = start_by if deadline is None else min(deadline, start_by)
        if deadline is not None:
            if deadline <= now:
                self._end_locked(record, JobState.CANCELLED, Reason.START_DEADLINE, effects)
                return
            self._arm_locked(record, deadline, self._start_deadline_passed)
        self._enqueue_locked(record, now, effects)

    def _due(self, record: JobRecord) -> None:
        effects = Effects()
        with self._lock:
            if not self._deferred.remove(record):
                return
            record.timer = None
            self._eligible_locked(record, self.clock.monotonic(), effects)
        self._apply(effects)

    def _start_deadline_passed(self, record: JobRecord) -> None:
        effects = Effects()
        with self._lock:
            if record.state is not QUEUED or record.attempt:
                return
            record.timer = None
            self._unqueue_locked(record)
            self._end_locked(record, JobState.CANCELLED, Reason.START_DEADLINE, effects)
        self._apply(effects)

    # Refusals ----------------------------------------------------------------------------------------------------

    def _full_for(self, priority: int) -> type[Rejected] | None:
        """Say whether the pool has a place left for a job of `priority`."""
        taken = len(self._live)
        if taken < self._always_free:
            return None
        if taken >= self.workers + self.config.queue_size:
            return QueueFull
        share = 1.0
        for highest, part in self.config.priority_shares.items():
            if priority <= highest and part < share:
                share = part
        if share < 1.0 and taken >= self.workers + int(self.config.queue_size * share):
            return Shed
        return None

    def _reserve_locked(self, record: JobRecord, effects: Effects, *, in_line: bool = False) -> Rejected | None:
        live = self._live
        victims: list[JobRecord] | None = None
        # Only where one of these holds there can be a reason to refuse.
        if (
            len(live) >= self._always_free
            or self._bytes + record.payload_bytes > self._max_bytes
            or self.draining
            or self._shut is not None
            or self._line
            or record.special
        ):
            kind = self._objection_locked(record, in_line=in_line)
            if kind is QueueFull or kind is BytesFull:
                # Who stands in line has the first claim to whatever an eviction would free.
                evicts = self.config.shed and not in_line and not self._outranked_locked(record)
                victims = self._victims_locked(record) if evicts else None
                kind = None if victims else kind
            if kind is not None:
                return self._explained_locked(kind, record.spec, record.payload_bytes)
            if record.owner_key:
                self._owners[record.owner_key] += 1
        # In this order: `_repair_locked` takes a live job that is neither reserved nor elsewhere as accepted.
        self._reserved[record] = None
        live[record.key] = record
        self._bytes += record.payload_bytes
        if victims:
            # After the newcomer has its place: a place that frees would go to the line.
            for victim in victims:
                self._unqueue_locked(victim)
                self._end_locked(victim, JobState.CANCELLED, Reason.SHED, effects)
        return None

    def _objection_locked(self, record: JobRecord, *, in_line: bool) -> type[Rejected] | None:
        if self.draining:
            return Draining
        if self._shut is not None:
            return self._shut
        if record.deadline_mono is not None and record.deadline_mono <= self._monotonic():
            return Expired
        spec = record.spec
        if record.owner_key:
            limit = self.config.owner_limit if spec.owner_limit is None else spec.owner_limit
            if limit is not None and self._owners[record.owner_key] >= limit:
                return OwnerLimit
        kind = self._full_for(spec.priority)
        if kind is None and self._bytes + record.payload_bytes > self._max_bytes:
            return BytesFull
        if kind is None and not in_line and self._outranked_locked(record):
            return QueueFull  # the free place is too small for who waits first, and nobody overtakes
        return kind

    def _outranked_locked(self, record: JobRecord) -> bool:
        """Whether somebody waits for a place whom `record` must not overtake."""
        return bool(self._line) and max(self._line) >= record.spec.priority

    def _victims_locked(self, record: JobRecord) -> list[JobRecord]:
        """Return the jobs whose eviction makes room for `record`, or none if no eviction could."""
        priority = record.spec.priority
        candidates = [*islice(self._queue.expendable(priority), MOST_EVICTED)]
        candidates += islice(self._deferred.expendable(priority), MOST_EVICTED)
        candidates.sort(key=lambda job: (job.spec.priority, -job.queued_mono))
        victims: list[JobRecord] = []
        missing = self._bytes + record.payload_bytes - self.config.queue_bytes
        for victim in candidates[:MOST_EVICTED]:
            victims.append(victim)
            missing -= victim.payload_bytes
            if missing <= 0:
                return victims
        return []

    def _explained_locked(self, kind: type[Rejected], spec: JobSpec, payload_bytes: int) -> Rejected:
        config = self.config
        name = config.name
        retry_after = None
        if kind is Draining:
            message = f"Pool {name!r} accepts nothing more: its process is stopping."
        elif kind is Paused:
            message = f"Pool {name!r} is paused and refuses until it is resumed."
        elif kind is Expired:
            message = f"The deadline of {spec.name} has passed already."
        elif kind is OwnerLimit:
            limit = config.owner_limit if spec.owner_limit is None else spec.owner_limit
            message = f"The owner holds {limit} jobs of pool {name!r} already, which is its limit."
            retry_after = self._retry_after_locked()
        elif kind is BytesFull:
            message = (
                f"Pool {name!r} holds {self._bytes} bytes of arguments; {payload_bytes} more would pass "
                f"its QUEUE_BYTES of {config.queue_bytes}."
            )
            retry_after = self._retry_after_locked()
        else:
            message = (
                f"Pool {name!r} is full: {len(self._running)} of {self.workers} workers busy, "
                f"{len(self._live) - len(self._running)} of {config.queue_size} places taken."
            )
            if kind is Shed:
                message = (
                    f"Pool {name!r} has no place left for priority {spec.priority}: "
                    f"{len(self._live) - len(self._running)} of {config.queue_size} places are taken."
                )
            elif self._standing:
                message += f" {self._standing} wait for a place."
            if self._paused:
                message += " It is paused: what waits does not start until it is resumed."
            retry_after = self._retry_after_locked()
        return kind(message, pool=name, retry_after=retry_after)

    def _retry_after_locked(self) -> float | None:
        rate = self._rate.per_second(self.clock.monotonic())
        if self.draining or not rate:
            return None
        waiting = max(1, len(self._live) - len(self._running))
        return min(120.0, max(1.0, waiting / rate * self._rng.uniform(0.8, 1.2)))
