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

    __slots__ = ("_ageing", "_lanes", "length", "plain")

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        # By record, which hashes by identity: cheaper than its id. The value is since when it is eligible.
        self._lanes: dict[tuple[int, Lane], OrderedDict[JobRecord, float]] = {}
        #: Jobs in all lanes.
        self.length = 0
        #: The only lane there is, if its jobs need a worker thread and no more; else None.
        self.plain: OrderedDict[JobRecord, float] | None = None

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
            # Empty lanes stay as long as they are alone: a queue that is short is empty every now and then.
            for other in [other for other, jobs in self._lanes.items() if not jobs]:
                del self._lanes[other]
            lane = self._lanes[key] = OrderedDict()
            self._look_for_plain()
        lane[record] = now
        self.length += 1

    def best(self, without: Lane | None = None) -> tuple[int, Lane] | None:
        """Return where the job to start next waits, for `pop`; None if none waits, but for those on `without`."""
        best: tuple[int, Lane] | None = None
        best_order = 0.0
        for key, lane in self._lanes.items():
            if not lane or key[1] is without:
                continue
            order = next(iter(lane.values())) - key[0] * self._ageing
            # On a tie the higher priority wins.
            if best is None or order < best_order or (order == best_order and key[0] > best[0]):
                best, best_order = key, order
        return best

    def pop_plain(self, runs_on: Lane) -> JobRecord | None:
        """Remove and return the job to start next, if it runs on `runs_on` and nothing else about it is special."""
        lane = self.plain if runs_on is THREAD else None
        if not lane:
            best = self.best()
            if best is None or best[1] is not runs_on:
                return None
            lane = self._lanes[best]
        record, since = lane.popitem(last=False)
        if record.special or record.timer is not None or record.spec.retry is not None:
            lane[record] = since
            lane.move_to_end(record, last=False)
            return None
        self.length -= 1
        if not lane and self.plain is None:
            self._drop(record.spec.line)
        return record

    def first(self, key: tuple[int, Lane]) -> JobRecord:
        """Return what `pop` would."""
        return next(iter(self._lanes[key]))

    def pop(self, key: tuple[int, Lane]) -> JobRecord:
        """Remove and return the first job that waits at `key`, which is one that `best` returned."""
        lane = self._lanes[key]
        record = lane.popitem(last=False)[0]
        self._shrunk(key, lane)
        return record

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

    def expendable(self, priority: int) -> Iterator[JobRecord]:
        """Yield jobs below `priority` that never started: the lowest priority first, its newest first."""
        for lower in sorted({key[0] for key in self._lanes if key[0] < priority}):
            lanes = (lane.items() for key, lane in self._lanes.items() if key[0] == lower)
            for record, _ in heapq.merge(*map(reversed, lanes), key=_since, reverse=True):
                if not record.attempt:
                    yield record

    def _shrunk(self, key: tuple[int, Lane], lane: OrderedDict[JobRecord, float]) -> None:
        self.length -= 1
        if not lane:
            self._drop(key)

    def _drop(self, key: tuple[int, Lane]) -> None:
        if len(self._lanes) > 1:
            del self._lanes[key]
            self._look_for_plain()

    def _look_for_plain(self) -> None:
        self.plain = None
        if len(self._lanes) == 1:
            ((key, lane),) = self._lanes.items()
            if key[1] is THREAD:
                self.plain = lane


def _since(entry: tuple[JobRecord, float]) -> float:
    return entry[1]
