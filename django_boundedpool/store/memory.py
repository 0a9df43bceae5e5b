"""Jobs of pools with PERSIST="memory": no rows, but what ended lately can still be asked for in its process."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.utils.timezone import make_naive

from ..engine.clock import Clock
from ..engine.record import JobRecord, Snapshot
from ..engine.states import Reason
from ..models import Job

#: Finished jobs that a pool keeps.
LIMIT = 1000


def itself(record: JobRecord) -> JobRecord:
    """Picture of a job for `Memory.keep`: nothing changes any more about one that has ended."""
    return record


class Memory:
    """The last finished jobs of one pool, until their retention passes.

    Safe from any thread without a lock, by which every worker would wait for every other one: each step on the map is
    one operation of the interpreter, and none depends on another.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: OrderedDict[int, JobRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def keep(self, record: JobRecord) -> JobRecord | None:
        """Keep a finished job; return the oldest one where there are too many, for letting it go."""
        self._jobs[record.key] = record
        if len(self._jobs) > LIMIT:
            try:
                return self._jobs.popitem(last=False)[1]
            except KeyError:
                pass  # others have let go as much
        return None

    def find(self, job_id: UUID) -> JobRecord | None:
        """Return a finished job, or None if there is none or its retention has passed."""
        record = self._jobs.get(job_id.int)
        if record is None or not self._passed(record):
            return record
        self._jobs.pop(job_id.int, None)
        return None

    def prune(self) -> None:
        """Let the jobs go whose retention has passed."""
        for key in list(self._jobs):
            record = self._jobs.get(key)
            if record is not None and self._passed(record):
                self._jobs.pop(key, None)

    def _passed(self, record: JobRecord) -> bool:
        kept = record.spec.retention if record.spec.retention is not None else record.retention[record.state]
        return (record.finished or 0.0) + kept <= self._clock.time()


def pictures(record: JobRecord) -> tuple[Snapshot, Snapshot, Reason | None]:
    """Return all that `row` shows of a job. The lock of its pool is held."""
    return record.first_row(), record.changes_locked(), record.cancel_requested


def row(record: JobRecord, inserted: Snapshot, changes: Snapshot, asked: Reason | None) -> Job:
    """Return a job as a row that is in no database. Not under a lock: making a model tells receivers."""
    values = {**inserted.values, **changes.values}
    if asked is not None:
        # When that was is not kept, and not shown.
        values.update(cancel_requested_at=values["submitted_at"], cancel_reason=asked.value)
    if not settings.USE_TZ:  # as the database gives them then
        values.update({name: make_naive(value) for name, value in values.items() if isinstance(value, datetime)})
    return Job(
        id=record.id,
        process=record.process,
        fence=changes.fence,
        version=changes.version,
        persist="memory",
        **values,
    )
