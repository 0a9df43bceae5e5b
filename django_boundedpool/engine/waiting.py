"""Waiting for a place: first come, first served within a priority, for at most as long as the caller said."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable

from .errors import BytesFull, QueueFull, Rejected, Shed, WaitTimeout
from .places import Effects, Places
from .record import JobRecord


class Waiter:
    """One submit that stands in line."""

    __slots__ = ("notify", "record", "refusal", "served")

    def __init__(self, record: JobRecord, notify: Callable[[], object]) -> None:
        self.record = record
        self.notify = notify
        #: Whether it has its place.
        self.served = False
        #: Why it never will have one.
        self.refusal: Rejected | None = None


class Line(Places):
    """Those who wait for a place. A place that frees goes to the line before any newcomer may have it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._standing = 0

    def line_up(self, record: JobRecord, notify: Callable[[], object]) -> Waiter | None:
        """Reserve a place now and return None, or stand in line and have `notify` called once that has an end.

        Raises:
            Rejected: waiting could not help, or as many as the queue has places wait already.
        """
        effects = Effects()
        waiter = None
        with self._lock:
            refusal = self._reserve_locked(record, effects)
            if isinstance(refusal, QueueFull | BytesFull | Shed) and self._standing < self.config.queue_size:
                refusal = None
                waiter = Waiter(record, notify)
                self._line.setdefault(record.spec.priority, OrderedDict())[waiter] = None
                self._standing += 1
        self._apply(effects)
        if refusal is not None:
            raise self.refused(refusal, record.spec.name)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting: return if there is a place, raise otherwise; then the job is provably not queued.

        Raises:
            WaitTimeout: the time is up.
            Rejected: the pool refuses it meanwhile.
        """
        effects = Effects()
        with self._lock:
            if waiter.served:
                return
            self._forget_locked(waiter)
            self._place_freed_locked(effects)  # it may have kept those behind it from a place
            refusal = waiter.refusal or WaitTimeout(
                f"Pool {self.config.name!r} had no free place in time: {len(self._live) - len(self._running)} of "
                f"{self.config.queue_size} places are taken and {self._standing} more wait.",
                pool=self.config.name,
                retry_after=self._retry_after_locked(),
            )
        self._apply(effects)
        raise self.refused(refusal, waiter.record.spec.name)

    def desert(self, waiter: Waiter) -> None:
        """Stop waiting for a caller that is gone, and give the place back if there is one."""
        effects = Effects()
        with self._lock:
            self._forget_locked(waiter)
            self._place_freed_locked(effects)
        self._apply(effects)
        self.withdraw(waiter.record)

    def reserve_within(self, record: JobRecord, seconds: float) -> None:
        """Take a place, waiting for one at most `seconds`.

        Raises:
            Rejected: no place; nothing is held.
        """
        gate = threading.Lock()
        gate.acquire()
        waiter = self.line_up(record, gate.release)
        if waiter is None:
            return
        try:
            gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
        except BaseException:  # a signal handler's exception
            self.desert(waiter)
            raise
        self.leave(waiter)

    async def areserve_within(self, record: JobRecord, seconds: float) -> None:
        """Do as `reserve_within` without blocking the event loop. When cancelled, nothing is held."""
        loop = asyncio.get_running_loop()
        served: asyncio.Future[None] = loop.create_future()

        def serve() -> None:
            if not served.done():
                served.set_result(None)

        waiter = self.line_up(record, lambda: loop.call_soon_threadsafe(serve))
        if waiter is None:
            return
        try:
            await asyncio.wait([served], timeout=max(0.0, seconds))
        except BaseException:
            self.desert(waiter)
            raise
        self.leave(waiter)

    def _place_freed_locked(self, effects: Effects) -> None:
        while self._line:
            waiter = next(iter(self._line[max(self._line)]))
            refusal = self._reserve_locked(waiter.record, effects, in_line=True)
            if isinstance(refusal, QueueFull | BytesFull | Shed):
                return  # nobody behind it may overtake, however little they need
            waiter.served = refusal is None
            waiter.refusal = refusal
            self._forget_locked(waiter)
            effects.calls.append((self._notify, waiter))

    def _notify(self, waiter: Waiter) -> None:
        try:
            waiter.notify()
        except RuntimeError:
            # The event loop of whoever waited was closed under it: nobody will ever come for the place.
            self.withdraw(waiter.record)

    def _forget_locked(self, waiter: Waiter) -> None:
        lane = self._line.get(waiter.record.spec.priority)
        if lane is None or waiter not in lane:
            return
        del lane[waiter]
        self._standing -= 1
        if not lane:
            del self._line[waiter.record.spec.priority]

    # Done by the parts above ---------------------------------------------------------------------------------------

    def _reserve_locked(self, record: JobRecord, effects: Effects, *, in_line: bool = False) -> Rejected | None:
        """Take a place for `record`, or say why not."""
        raise NotImplementedError

    def _retry_after_locked(self) -> float | None:
        raise NotImplementedError

    def refused(self, refusal: Rejected, job_name: str = "") -> Rejected:
        """Count `refusal` and tell the listeners."""
        raise NotImplementedError

    def withdraw(self, record: JobRecord) -> bool:
        """Give a reservation back."""
        raise NotImplementedError
