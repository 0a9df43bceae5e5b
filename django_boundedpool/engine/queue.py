"""The order in which waiting jobs start: priority with ageing, first come first served within a priority.

A job's order key is fixed when it becomes eligible: that moment minus priority * ageing seconds. The smallest key
starts next, so a low priority waits longer but not for ever. Keys within one priority only grow, which is why one
ordered map per priority gives push, removal and pop without searching.

Not locked: the pool's lock protects it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from .record import JobRecord
from .spec import THREAD, Lane


class JobQueue:
    """Waiting jobs. Push and removal are O(1), pop is O(number of priorities in use)."""

    __slots__ = ("_ageing", "_heads", "_lanes", "elsewhere", "length")

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        # By record, which hashes by identity: cheaper than its id. The value is since when it is eligible. A lane
        # stays when it is empty: there are as many as priorities were ever used.
        self._lanes: dict[tuple[int, Lane], OrderedDict[JobRecord, float]] = {}
        # The order key of the first job of each lane that has one; None where it is not worked out yet.
        self._heads: dict[tuple[int, Lane], float | None] = {}
        #: Jobs in all lanes, and those of them that a worker thread alone does not start.
        self.length = 0
        self.elsewhere = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[JobRecord]:
        for lane in self._lanes.values():
            yield from lane

    def push(self, record: JobRecord, now: float) -> None:
        """Add `record`, eligible since `now` (monotonic seconds, never smaller than before)."""
        key = record.spec.line
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = OrderedDict()
        if not lane:
            self._heads[key] = None
        lane[record] = now
        self.length += 1
        if key[1] is not THREAD:
            self.elsewhere += 1

    def best(self, without: Lane | None = None) -> tuple[int, Lane] | None:
        """Return where the job to start next waits, for `pop`; None if none waits, but for those on `without`."""
        heads = self._heads
        best: tuple[int, Lane] | None = None
        if without is None and len(heads) == 1:
            (best,) = heads
            return best
        best_order = 0.0
        for key, order in heads.items():
            if key[1] is without:
                continue
            if order is None:
                order = heads[key] = next(iter(self._lanes[key].values())) - key[0] * self._ageing
            # On a tie the higher priority wins.
            if best is None or order < best_order or (order == best_order and key[0] > best[0]):
                best, best_order = key, order
        return best

    def first(self, key: tuple[int, Lane]) -> JobRecord:
        """Return what `pop` would."""
        return next(iter(self._lanes[key]))

    def pop(self, key: tuple[int, Lane]) -> JobRecord:
        """Remove and return the first job that waits at `key`, which is one that `best` returned."""
        lane = self._lanes[key]
        record, _ = lane.popitem(last=False)
        self._shrunk(key, lane)
        return record

    def pop_plain(self, runs_on: Lane) -> JobRecord | None:
        """Remove and return the job to start next, if it runs on `runs_on` and nothing else about it is special."""
        best = self.best()
        if best is None or best[1] is not runs_on:
            return None
        record = self.first(best)
        if record.special or record.timer is not None or record.spec.retry is not None:
            return None
        return self.pop(best)

    def oldest(self) -> float | None:
        """Return since when the longest waiting job is eligible (monotonic seconds), or None."""
        return min((next(iter(lane.values())) for lane in self._lanes.values() if lane), default=None)

    def remove(self, record: JobRecord) -> bool:
        """Take `record` out; False if it was not in."""
        key = record.spec.line
        lane = self._lanes.get(key)
        if lane is None or lane.pop(record, None) is None:
            return False
        self._shrunk(key, lane)
        return True

    def _shrunk(self, key: tuple[int, Lane], lane: OrderedDict[JobRecord, float]) -> None:
        self.length -= 1
        if key[1] is not THREAD:
            self.elsewhere -= 1
        if lane:
            self._heads[key] = None
        else:
            del self._heads[key]

    def expendable(self, priority: int) -> Iterator[JobRecord]:
        """Yield jobs below `priority` that never started: the lowest priority first, its newest first."""
        for lower in sorted({key[0] for key in self._lanes if key[0] < priority}):
            lanes = (lane.items() for key, lane in self._lanes.items() if key[0] == lower)
            for record, _ in heapq.merge(*map(reversed, lanes), key=_since, reverse=True):
                if not record.attempt:
                    yield record


def _since(entry: tuple[JobRecord, float]) -> float:
    return entry[1]
