"""The two steps that nearly every job takes, written out: into the queue, and from one job's success to the next job.

Each does for a job about which nothing is special exactly what the general way does, and leaves every other job to
it; `tests/engine/test_express.py` compares the two. They exist because the lock is what all threads contend for: here
it is held for a third of the time, since clocks are read and events are made before or after.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from threading import get_ident, main_thread
from typing import Any

from .admission import Admission
from .attempts import Attempts
from .events import ACCEPTED, FINISHED, STARTED
from .places import Effects, release
from .record import JobRecord
from .spec import CPU, LOOP, THREAD
from .states import NO_REASON, QUEUED, RUNNING, SUBMITTED, SUCCEEDED
from .worker import Worker

logger = logging.getLogger("django_boundedpool.engine")

#: The thread that signal handlers run in.
MAIN = main_thread().ident


def _forked() -> None:
    global MAIN
    MAIN = main_thread().ident


os.register_at_fork(after_in_child=_forked)


def acquire(lock: threading.Lock) -> None:
    """Take `lock`, which is taken now, letting other threads run rather than waiting in its line.

    A thread that waits there is given the lock before it has the interpreter's, and then every other thread must wait
    for both: once that has begun, each job costs a switch of threads until the queue is empty. Only where the lock is
    never free when looked at, as in a storm of submits, is the line the way to come by it at all.
    """
    for _ in range(TRIES):
        time.sleep(0)
        if lock.acquire(False):
            return
    lock.acquire()


def stand_back(lock: threading.Lock) -> None:
    """Let other threads run until `lock` looks free, or for so long that it is better to wait in its line."""
    for _ in range(TRIES):
        time.sleep(0)
        if not lock.locked():
            return


#: How often a thread lets others run before it waits in the line of the lock.
TRIES = 20


class Express(Admission, Attempts):
    """Admission and attempts, with short cuts. Every method is safe from any thread."""

    def admit(self, record: JobRecord) -> None:
        """Reserve and accept in one step, for jobs without a row.

        Raises:
            Rejected: no place; nothing is held.
        """
        runs_on = record.spec.runs_on
        if record.special or (
            runs_on is not THREAD and (runs_on is CPU or self._loop is None or self._loop.thread is None)
        ):
            super().admit(record)
            return
        record.queued_mono = now = self._monotonic()
        record.state = QUEUED
        lock = self._lock
        if get_ident() != MAIN:
            if not lock.acquire(False):
                acquire(lock)
            try:
                express, begun, worker, picture = self._admit_locked(record, now)
            finally:
                lock.release()
        else:
            if lock.locked():
                stand_back(lock)
            # By `with`: between acquire() and try a signal handler's exception would leave the lock taken for ever.
            with lock:
                express, begun, worker, picture = self._admit_locked(record, now)
        if not express:
            record.state = SUBMITTED
            super().admit(record)
            return
        if worker is not None:
            release(worker.parked)
        elif begun:
            self._launch(record)
        if picture is not None:
            self._save(picture)
        name, kind = self._name, record.spec.name
        accepted = (ACCEPTED, name, record.key, kind, 0, QUEUED, NO_REASON, "", 0.0, 0.0, 0.0, None)
        if begun:
            self._emit((accepted, (STARTED, name, record.key, kind, 1, RUNNING, NO_REASON, "", 0.0, 0.0, 0.0, None)))
        else:
            self._emit((accepted,))

    def _admit_locked(self, record: JobRecord, now: float) -> tuple[bool, bool, Worker | None, Any]:
        """Take `record` in if nothing about the pool is special.

        Returns whether it did, whether the job has begun, which worker to wake and what to save. Where nothing waits,
        a job begins at once: on the event loop, or in the hands of a parked worker that need not come for it.
        """
        live = self._live
        size = record.payload_bytes
        idle = self._idle
        spec = record.spec
        on_loop = spec.runs_on is LOOP
        queue = self._queue
        straight = (
            (idle or on_loop)
            and not queue.length
            and not self._paused
            and now < self._fresh_until
            and spec.retry is None
            and len(self._running) + len(self._ghosts) < self.workers
        )
        if (
            len(live) >= self._always_free
            or self._bytes + size > self._max_bytes
            or not (straight if on_loop else (idle or len(self._workers) >= self.workers))
            or not self._starting
            or self._shut is not None
            or self._drained is not None
            or self.draining
            or self._line
        ):
            return False, False, None, None
        live[record.key] = record
        self._bytes += size
        self.accepted += 1
        if not straight:
            queue.push(record, now)
            return True, False, idle.pop() if idle else None, None
        if on_loop:
            assert self._loop is not None  # noqa: S101 - `admit` has looked
            worker, thread = None, self._loop.thread
        else:
            worker = thread = idle.pop()
            worker.handed = record
        self._begin_locked(record, thread, now, self._time())
        return True, True, worker, self._picture(record) if self._saves_live else None

    def _begin_locked(self, record: JobRecord, thread: threading.Thread | None, now: float, wall: float) -> None:
        """Start a job about which nothing is special: what `_start_locked` does for one."""
        # As `begin`.
        record.state = RUNNING
        record.version += 1
        record.attempt += 1
        record.made_token = None
        record.started = wall
        record.started_mono = now
        self._running[record] = thread
        timeout = record.spec.timeout
        if timeout is None:
            look = now + self._stuck_after
        else:
            record.ends_mono = look = now + timeout
        record.look_mono = look
        if self._watch is None or look < self._watch.due:
            self._watch_locked(look)

    def attempt_returned(self, record: JobRecord, value: object, worker: Worker | None = None) -> JobRecord | None:
        """Conclude an attempt whose code returned `value`; return what `worker` is to run next."""
        spec = record.spec
        runs_on = spec.runs_on
        if (value is not None and spec.store_result) or record.owner_key:
            return super().attempt_returned(record, value, worker)
        # The token of an async job knows its flight.
        token = record.made_token
        if token is not None and (token.reason is not None if runs_on is LOOP else not token.untouched):
            return super().attempt_returned(record, value, worker)
        if runs_on is CPU or (worker is None and runs_on is not LOOP):
            return super().attempt_returned(record, value, worker)
        now = self._monotonic()
        wall = self._time()
        following = picture = evicted = None
        more: bool | int = False
        saves_live = self._saves_live
        queue = self._queue
        lock = self._lock
        if not lock.acquire(False):
            acquire(lock)
        try:
            express = (
                record.state is RUNNING
                and record.waiters is None
                and record.timer is None
                and self._drained is None
                and self._starting
                and now < self._fresh_until
                and not self._line
                and not self._paused
                and not self._closed
                and not (self._joining and len(self._live) <= 2)
                and len(self._workers) <= self.workers
            )
            if express:
                record.ran = ran = now - record.started_mono
                record.finished = wall
                record.payload = None
                record.version += 1
                record.state = SUCCEEDED
                if not saves_live:
                    evicted = self._save(self._picture(record))  # see `Places`: before it leaves
                del self._running[record]
                del self._live[record.key]
                self._bytes -= record.payload_bytes
                self._finished[SUCCEEDED] += 1
                self._ends.append(now)
                if queue.length and len(self._running) + len(self._ghosts) < self.workers:
                    following = queue.pop_plain(LOOP if worker is None else THREAD)
                    if following is not None:
                        thread = worker if worker is not None or self._loop is None else self._loop.thread
                        self._begin_locked(following, thread, now, wall)
                        if saves_live:
                            picture = self._picture(following)
                    # Others may have use for what is left.
                    more = queue.elsewhere and len(self._running) + len(self._ghosts) < self.workers
        finally:
            lock.release()
        del evicted
        if not express:
            return super().attempt_returned(record, value, worker)
        # fmt: off
        name = self._name
        ended = (
            FINISHED, name, record.key, spec.name, record.attempt, SUCCEEDED, NO_REASON, "",
            0.0, ran, 0.0, None,
        )
        try:
            if runs_on is LOOP and token is not None:
                token.clear()  # of the flight, which is over
            if saves_live:
                self._save(self._picture(record))
            if following is None:
                self._emit((ended,))
            else:
                if picture is not None:
                    self._save(picture)
                self._emit((ended, (
                    STARTED, name, following.key, following.spec.name, following.attempt, RUNNING, NO_REASON, "",
                    now - following.queued_mono, 0.0, 0.0, None,
                )))
        except BaseException:
            logger.exception("What follows a move of a job failed.")  # the next job must come to its worker
        # fmt: on
        if more:
            self._rouse()
        if worker is None:
            if following is not None:
                self._launch(following)
            elif queue.length:
                self._rouse()
            return None
        if following is None and queue.length:
            effects = Effects()  # what waits there is special
            with self._lock:
                following = self._go_on_locked(record, worker, effects)
            self._apply_after(effects, following)
        return following
