"""One CPU-bound job at a time in a process: two would only take turns at the interpreter's lock, as would requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class CpuLane:
    """Admits one holder. Shared by the pools of a process; its lock is taken under a pool's lock, never around one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Hashable | None = None
        self._waiting: dict[Callable[[], object], None] = {}

    def enter(self, holder: Hashable, when_free: Callable[[], object]) -> bool:
        """Take the lane for `holder`; where it is taken return False, and have `when_free` returned by a `leave`."""
        with self._lock:
            if self._holder is None:
                self._holder = holder
                return True
            self._waiting[when_free] = None
            return False

    def call_when_free(self, when_free: Callable[[], object]) -> bool:
        """Have `when_free` returned by the `leave` of whoever holds the lane; False if nobody does."""
        with self._lock:
            if self._holder is None:
                return False
            self._waiting[when_free] = None
            return True

    def leave(self, holder: Hashable) -> list[Callable[[], object]]:
        """Free the lane if `holder` has it; return whom to call, without a lock, since it may be taken again."""
        with self._lock:
            if self._holder is not holder:
                return []
            self._holder = None
            waiting, self._waiting = self._waiting, {}
        return list(waiting)
