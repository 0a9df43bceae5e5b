"""One thread that writes every job of this process, many rows to a transaction.

What is waiting for durability goes first and at once: while one commit is under way the next rows gather, so a busy
pool pays a fraction of a commit per job. What nobody waits for lingers a moment and is overwritten by newer versions.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    connections,
    transaction,
)

from ..engine.record import Snapshot
from ..engine.states import JobState, Reason
from ..models import Job
from . import writes

logger = logging.getLogger("django_boundedpool.store")

#: Rows written in one transaction at most: bounds how long the database's write lock is held.
BATCH = 256
#: How long a version that nobody waits for may linger, so that a newer one replaces it. Seconds.
LINGER = 0.05
#: Versions that may be waiting while the database is away, before admission is refused.
MAX_PENDING = 20_000
#: After this long without work the connection is treated by Django's rules (CONN_MAX_AGE). Seconds.
IDLE = 0.2
#: Failed flushes after which rows are written one by one: one of them may be the trouble.
STRIKES = 2
#: Failures of one row alone, with the database reachable, after which its details are left out.
PATIENCE = 5
#: Longest pause between two tries while the database is away. Seconds.
MAX_BACKOFF = 1.0


class StoreError(Exception):
    """A row could not be made durable. `unknown` says that it may yet appear, and will then be cancelled."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class _Insert:
    """A row that somebody waits for."""

    __slots__ = ("done", "error", "in_flight", "row", "uncertain", "unwanted")

    def __init__(self, row: Snapshot) -> None:
        self.row = row
        self.done = threading.Event()
        self.error: StoreError | None = None
        self.in_flight = False
        self.uncertain = False  # a COMMIT was sent and its answer never came
        self.unwanted = False


class Recorder:
    """Writes rows of one database from one daemon thread. Every method is safe from any thread.

    Invariant: a job's snapshot is in `_inserts` or `_updates` until it is committed, and only the newest version is
    kept. The lock is never held during I/O.

    Arguments:
        alias: database alias.
        process: boot id of this process, written into each row and checked by each update.
        settle: called on the recorder's thread with the id of a job whose transaction ended in an unknown way, and
            whether its row is there.
    """

    def __init__(self, alias: str, process: UUID, settle: Callable[[UUID, bool], None]) -> None:
        self.alias = alias
        self.process = process
        self._settle = settle
        self._lock = threading.Lock()
        self._inserts: dict[UUID, _Insert] = {}
        self._updates: dict[UUID, Snapshot] = {}
        # Reentrant by design: a finalizer that runs anywhere, under any lock, may put into it.
        self._inbox: SimpleQueue[None] = SimpleQueue()
        self._unsettled: deque[UUID] = deque()
        self._thread: threading.Thread | None = None
        self._hasty = threading.Event()
        self._written = threading.Condition(self._lock)
        self._stopped = False
        self._failing = False
        self._strikes = 0
        self._refusals: Counter[UUID] = Counter()

    def insert(self, snapshot: Snapshot, timeout: float) -> None:
        """Make a new row durable; returns once it is committed.

        Arguments:
            snapshot: the job as queued.
            timeout: longest wait in seconds.

        Raises:
            StoreError: it is not durable; unless `unknown` is set, it provably never will be.
        """
        (error,) = self.insert_all([snapshot], timeout)
        if error is not None:
            raise error

    def insert_all(self, snapshots: Sequence[Snapshot], timeout: float) -> list[StoreError | None]:
        """Make new rows durable, in one transaction as far as it may be that large.

        Returns for each row, in order: None if it is committed, else the error that `insert` would raise.
        """
        self.start()
        waiting = [_Insert(snapshot) for snapshot in snapshots]
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._stopped:
                raise StoreError("the recorder has stopped")
            if len(self._updates) >= MAX_PENDING:
                raise StoreError(f"{len(self._updates)} states are waiting to be written")
            self._inserts.update((pending.row.id, pending) for pending in waiting)
        self._inbox.put(None)
        try:
            return [self._outcome(pending, deadline, timeout) for pending in waiting]
        except BaseException:  # a signal handler's SystemExit: the submit will not accept the rows
            with self._lock:
                for pending in waiting:
                    pending.unwanted = True
            raise

    def _outcome(self, pending: _Insert, deadline: float, timeout: float) -> StoreError | None:
        if not pending.done.wait(max(0.0, deadline - time.monotonic())):
            with self._lock:
                if not pending.done.is_set():
                    if pending.in_flight:
                        pending.unwanted = True
                    else:
                        self._inserts.pop(pending.row.id, None)
                        if pending.uncertain:
                            self.settle(pending.row.id)
                    unknown = pending.in_flight or pending.uncertain
                    return StoreError(f"no commit within {timeout:g} s", unknown=unknown)
        return pending.error

    def save(self, snapshot: Snapshot) -> None:
        """Write a newer version of a row soon. Never waits."""
        with self._lock:
            older = self._updates.get(snapshot.id)
            if older is None or older.version < snapshot.version:
                self._updates[snapshot.id] = snapshot
        self._inbox.put(None)

    def settle(self, job_id: UUID) -> None:
        """Find out whether the row of a job exists whose transaction ended without a word. May run in a finalizer."""
        self._unsettled.append(job_id)
        self._inbox.put(None)

    def flush(self, timeout: float) -> bool:
        """Write everything that is pending now; False if that was not possible within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._hasty.set()
        self._inbox.put(None)
        with self._lock:
            while self._inserts or self._updates or self._unsettled:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._written.wait(min(left, 0.1))
        return True

    @property
    def started(self) -> bool:
        """Whether the thread was started; before that there is no row to find."""
        return self._thread is not None

    @property
    def pending(self) -> int:
        """Rows that wait to be written."""
        return len(self._inserts) + len(self._updates)

    def stop(self, timeout: float = 5.0) -> None:
        """Write what is pending, end the thread and close its connection."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        self._hasty.set()
        self._inbox.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def start(self) -> None:
        """Start the thread, once. `insert` does it by itself; nothing else is written before it.

        Raises:
            StoreError: the system gives no thread.
        """
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopped:
                    thread = threading.Thread(
                        target=contextvars.Context().run,
                        args=(self._loop,),
                        name=f"boundedpool-recorder-{self.alias}",
                        daemon=True,
                    )
                    try:
                        thread.start()
                    except RuntimeError as error:
                        raise StoreError(f"the recorder's thread could not be started: {error}") from error
                    self._thread = thread

    # The recorder's thread ---------------------------------------------------------------------------------------

    def _loop(self) -> None:
        backoff = 0.05
        while True:
            stopped = self._stopped
            try:
                self._gather(backoff)
                with self._lock:
                    work = bool(self._inserts or self._updates or self._unsettled)
                    stopped = self._stopped
                if work:
                    self._write_once()
                self._failing = False
                self._strikes = 0
                backoff = 0.05
            except Exception as error:  # noqa: BLE001 - the thread must outlive every trouble of the database
                level = logging.DEBUG if self._failing else logging.WARNING
                text = missing_table(error, self.alias) or str(error)
                logger.log(level, "The store of the pools cannot be written (%s); trying again.", text)
                self._failing = True
                self._close()
                backoff = min(MAX_BACKOFF, backoff * 2)
                if self._stopped:
                    self._fail_inserts(StoreError(f"the database cannot be written: {error}"))
                    return
            if stopped and not self.pending:
                self._close()
                return

    def _gather(self, backoff: float) -> None:
        """Wait for something to write, and a moment longer for more of it."""
        if self._failing:
            self._hasty.wait(backoff)
            self._hasty.clear()
        with self._lock:
            waiting = bool(self._updates or self._inserts or self._unsettled or self._stopped)
        if not waiting:
            self._take(IDLE, then=lambda: self._obsolete())
        while self._take(0):
            pass
        with self._lock:
            linger = not self._inserts and not self._stopped and not self._failing and bool(self._updates)
        if linger and not self._hasty.is_set():
            deadline = time.monotonic() + LINGER
            while (left := deadline - time.monotonic()) > 0 and not self._hasty.is_set():
                self._take(left)
                with self._lock:
                    if self._inserts or self._stopped:
                        break
        self._hasty.clear()

    def _take(self, timeout: float, then: Callable[[], object] | None = None) -> bool:
        """Take one wake-up; after `timeout` without one call `then` and wait without limit."""
        try:
            self._inbox.get(block=timeout > 0, timeout=timeout)
        except Empty:
            if then is None:
                return False
            then()
            self._inbox.get()
        return True

    def _write_once(self) -> None:
        with self._lock:
            inserts = list(self._inserts.values())[:BATCH]
            for pending in inserts:
                pending.in_flight = True
            updates = [row for job_id, row in self._updates.items() if job_id not in self._inserts][
                : BATCH - len(inserts)
            ]
        if inserts or updates:
            try:
                self._transaction(inserts, updates)
            except Exception as error:
                if self._is_trouble(error) and self._strikes < STRIKES:
                    self._strikes += 1
                    self._explain_missing_table(error)
                    self._back_in_line(inserts)
                    raise
                # Whichever row the database cannot take, the others must go on.
                logger.debug("A flush was refused (%s); writing row by row.", error)
                self._one_by_one(inserts, updates)
        while self._unsettled:
            job_id = self._unsettled[0]
            if job_id in self._inserts:
                break  # given up by its submitter, but not written yet: the next round writes it first
            self._settle(job_id, writes.exists(job_id, self.alias))
            self._unsettled.popleft()

    @staticmethod
    def _is_trouble(error: Exception) -> bool:
        """Whether the database is in trouble, rather than the data of a row: then nothing may be dropped."""
        return isinstance(error, DatabaseError | InterfaceError) and not isinstance(error, DataError | IntegrityError)

    def _transaction(self, inserts: list[_Insert], updates: list[Snapshot]) -> None:
        lost = []
        with transaction.atomic(using=self.alias):
            if inserts:
                writes.insert([pending.row for pending in inserts], self.alias)
            lost = [row for row in updates if not writes.update(row, self.alias)]
            for pending in inserts:
                pending.uncertain = True
        for row in lost:
            logger.debug("Job %s: version %d came too late.", row.id, row.version)
        self._done(inserts, updates)

    def _one_by_one(self, inserts: list[_Insert], updates: list[Snapshot]) -> None:
        trouble: Exception | None = None
        for pending in inserts:
            try:
                self._transaction([pending], [])
            except Exception as error:
                if self._is_trouble(error):
                    if _out_of_room(error) and not _locked(error):
                        self._back_in_line([p for p in inserts if not p.done.is_set()])
                        raise  # no other row will do better
                    self._back_in_line([pending])
                    self._reconnect(inserts)
                    trouble = trouble or error
                    continue
                # A commit whose answer was lost is repeated, and then the row is there already.
                if not (isinstance(error, IntegrityError) and writes.exists(pending.row.id, self.alias)):
                    pending.error = StoreError(f"the database refused the row: {error}")
                self._done([pending], [])
        for row in updates:
            try:
                self._transaction([], [row])
            except Exception as error:
                if self._is_trouble(error):
                    if _out_of_room(error) and not _locked(error):
                        self._back_in_line([p for p in inserts if not p.done.is_set()])
                        raise
                    self._reconnect(inserts)
                    if not _out_of_room(error):
                        self._refusals[row.id] += 1
                    if self._refusals[row.id] < PATIENCE or self._written_after_all(row):
                        # The row stays in the map and is tried again; the others go on.
                        trouble = trouble or error
                        continue
                logger.exception("Job %s: its state could not be written in full.", row.id)
                self._write_stripped(row)
        if trouble is not None:
            raise trouble

    def _reconnect(self, inserts: list[_Insert]) -> None:
        """Go on with the next row on a fresh connection; raises while the database is away."""
        self._close()
        try:
            connections[self.alias].ensure_connection()
        except Exception:
            self._back_in_line([pending for pending in inserts if not pending.done.is_set()])
            raise

    def _written_after_all(self, row: Snapshot) -> bool:
        """Whether `row` can be written now; raises if nothing can be written, whatever it is."""
        with transaction.atomic(using=self.alias):
            writes.touch(row, self.alias)
        try:
            self._transaction([], [row])
        except Exception as error:  # noqa: BLE001 - whatever it says, it is about this row
            logger.debug("Job %s: refused although the database can be written (%s).", row.id, error)
            self._close()
            return False
        return True

    def _write_stripped(self, row: Snapshot) -> None:
        try:
            self._transaction([], [_stripped(row)])
        except Exception as error:
            if self._is_trouble(error):
                raise
            # Only a defect gets here; it must not hold up every other job.
            logger.exception("Job %s: its state could not be written at all.", row.id)
            self._done([], [row])

    def _done(self, inserts: list[_Insert], updates: list[Snapshot]) -> None:
        unwanted = []
        with self._lock:
            for pending in inserts:
                self._inserts.pop(pending.row.id, None)
                if pending.unwanted and pending.error is None:
                    unwanted.append(pending.row)
                pending.done.set()
            for row in updates:
                self._refusals.pop(row.id, None)
                current = self._updates.get(row.id)
                if current is not None and current.version <= row.version:
                    del self._updates[row.id]
            self._written.notify_all()
        for row in unwanted:
            logger.warning("Job %s was stored after its submit had been refused; cancelling it.", row.id)
            writes.cancel_unwanted(row.id, row.process, self.alias)

    def _back_in_line(self, inserts: list[_Insert]) -> None:
        """After a failed transaction: rows that nobody wants any more need not be tried again."""
        with self._lock:
            for pending in inserts:
                pending.in_flight = False
                if pending.unwanted:
                    # Most likely nothing was stored; a look settles whether the failure hid a commit.
                    self._inserts.pop(pending.row.id, None)
                    self._unsettled.append(pending.row.id)

    def _fail_inserts(self, error: StoreError) -> None:
        with self._lock:
            for pending in self._inserts.values():
                pending.error = error
                pending.done.set()
            self._inserts.clear()

    def _explain_missing_table(self, error: Exception) -> None:
        """Tell every waiting submit to run migrate, if that is what is wrong."""
        if message := missing_table(error, self.alias):
            self._fail_inserts(StoreError(message))

    def _obsolete(self) -> None:
        """Treat the idle connection as Django does at the end of a request."""
        connection: Any = connections[self.alias]
        if connection.connection is not None:
            if connection.settings_dict.get("CONN_MAX_AGE") == 0:
                self._close()
            else:
                connection.close_if_unusable_or_obsolete()

    def _close(self) -> None:
        try:
            connections[self.alias].close()
        except Exception:
            logger.debug("Closing the store's connection failed.", exc_info=True)


def _out_of_room(error: Exception) -> bool:
    """Whether a full disk, a held lock or a server that is going down is to blame, and no row."""
    cause = error.__cause__
    sqlite = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # busy, locked, I/O error, full
    state = str(getattr(cause, "sqlstate", None) or "")  # PostgreSQL: resources, operator, lock not available
    number = cause.args[0] if isinstance(cause, Exception) and cause.args else None  # MariaDB: disk, table, lock
    return sqlite in (5, 6, 10, 13) or state.startswith(("53", "57", "55P03")) or number in (1021, 1114, 1205)


def _locked(error: Exception) -> bool:
    """Whether a held lock is to blame, which may be one row's alone."""
    cause = error.__cause__
    number = cause.args[0] if isinstance(cause, Exception) and cause.args else None
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    return code in (5, 6) or getattr(cause, "sqlstate", None) == "55P03" or number == 1205


def _stripped(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` without the texts and values that a database might refuse: its state must get through."""
    values = dict(snapshot.values)
    note = {"type": "", "message": "The details could not be stored; see the log.", "traceback": ""}
    if values["state"] == JobState.SUCCEEDED.value:  # without its result it would claim more than is there
        values.update(state=JobState.FAILED.value, reason=Reason.BAD_RESULT.value)
    values.update(result=None, error=note, first_error=None, attempts=[], progress=None, progress_message="")
    return replace(snapshot, values=values)


def missing_table(error: Exception, alias: str) -> str:
    """Return what to do if `error` comes from a table that is not there yet, else an empty text."""
    # ProgrammingError on most databases; SQLite has no error of its own for it.
    if not isinstance(error, ProgrammingError) and "no such table" not in str(error):
        return ""
    try:
        connection = connections[alias]
        with connection.cursor() as cursor:
            tables = connection.introspection.table_names(cursor)
    except Exception:  # noqa: BLE001 - the database is away: then nothing is known about its tables
        return ""
    table = Job._meta.db_table
    return "" if table in tables else f"table {table} does not exist in database {alias!r}: run manage.py migrate"


class DirectRecorder:
    """Writes at once on the caller's connection: for INLINE, where there is no other thread."""

    def __init__(self, alias: str, process: UUID) -> None:
        self.alias = alias
        self.process = process
        self.pending = 0

    def insert(self, snapshot: Snapshot, timeout: float) -> None:
        """INSERT the row in the caller's transaction, if there is one."""
        del timeout
        try:
            with transaction.atomic(using=self.alias):
                writes.insert([snapshot], self.alias)
        except DatabaseError as error:
            raise StoreError(missing_table(error, self.alias) or f"the database refused the row: {error}") from error

    def insert_all(self, snapshots: Sequence[Snapshot], timeout: float) -> list[StoreError | None]:
        """INSERT rows, with one statement where none is refused; returns for each None or its error."""
        if len(snapshots) > 1:
            try:
                with transaction.atomic(using=self.alias):
                    for start in range(0, len(snapshots), BATCH):
                        writes.insert(snapshots[start : start + BATCH], self.alias)
                return [None] * len(snapshots)
            except DatabaseError as error:
                logger.debug("Rows were refused together (%s); inserting one by one.", error)
        errors: list[StoreError | None] = []
        for snapshot in snapshots:
            try:
                self.insert(snapshot, timeout)
            except StoreError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    def save(self, snapshot: Snapshot) -> None:
        """UPDATE the row."""
        with transaction.atomic(using=self.alias):
            writes.update(snapshot, self.alias)

    def flush(self, timeout: float) -> bool:
        """Nothing is ever pending."""
        del timeout
        return True

    def stop(self, timeout: float = 5.0) -> None:
        """There is no thread."""
