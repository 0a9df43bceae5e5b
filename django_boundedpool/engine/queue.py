"""The order in which waiting jobs start: priority with ageing, first come first served within a priority.

A job's order key is fixed when it becomes eligible: that moment minus priority * ageing seconds. The smallest key
starts next, so a low priority waits longer but not for ever. Keys within one priority only grow, which is why one
ordered map per priority gives push, removal and pop without searching.

Not locked: the pool's lock protects it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from uuid import UUID

from .record import JobRecord


class JobQueue:
    """Eligible jobs. Push and removal are O(1), pop is O(number of priorities in use)."""

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        self._lanes: dict[int, OrderedDict[UUID, JobRecord]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[JobRecord]:
        for lane in self._lanes.values():
            yield from lane.values()

    def push(self, record: JobRecord, now: float) -> None:
        """Add `record`, eligible since `now` (monotonic seconds, never smaller than before)."""
        priority = record.spec.priority
        record.order = now - priority * self._ageing
        self._lanes.setdefault(priority, OrderedDict())[record.id] = record
        self._length += 1

    def pop(self) -> JobRecord | None:
        """Remove and return the job to start next, or None."""
        best: int | None = None
        best_order = 0.0
        for priority, lane in self._lanes.items():
            head = next(iter(lane.values()))
            # On a tie the higher priority wins.
            if best is None or (head.order, -priority) < (best_order, -best):
                best, best_order = priority, head.order
        if best is None:
            return None
        lane = self._lanes[best]
        _, record = lane.popitem(last=False)
        if not lane:
            del self._lanes[best]
        self._length -= 1
        return record

    def oldest(self) -> float | None:
        """Return since when the longest waiting job is eligible (monotonic seconds), or None."""
        return min((next(iter(lane.values())).queued_mono for lane in self._lanes.values()), default=None)

    def remove(self, record: JobRecord) -> bool:
        """Take `record` out; False if it was not in."""
        priority = record.spec.priority
        lane = self._lanes.get(priority)
        if lane is None or lane.pop(record.id, None) is None:
            return False
        if not lane:
            del self._lanes[priority]
        self._length -= 1
        return True
