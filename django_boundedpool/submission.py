"""From a reserved place to a durable row to an accepted job, whatever transaction surrounds the submit."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import AsyncToSync, sync_to_async
from django.db import connections, transaction

from .engine.errors import ConfigurationError, Rejected, StoreUnavailable
from .engine.pool import Pool
from .engine.record import JobRecord
from .engine.states import JobState, Reason
from .lifecycle.runtime import Runtime
from .store.recorder import DirectRecorder, StoreError
from .surroundings import known_connections


def complete(active: Runtime, pool: Pool, record: JobRecord) -> None:
    """Make a reserved job durable and start it, or give its place back."""
    try:
        (refusal,) = make_all_durable(active, [(pool, record)])
        if refusal is not None:
            raise refusal
    except Rejected:
        pool.withdraw(record)
        raise
    except BaseException:
        # A signal handler's SystemExit may come at any point: whether there is a row, the row itself must tell.
        # Unless it was accepted already: then it is the pool's, and runs.
        if pool.withdraw(record):
            active.settle(record.id, stored=pool.config.name not in active.memories)
        raise


class Writing:
    """The part of an `asubmit` that needs a thread: that of the task's database work, for its transaction may be open.

    It is never cut short once it has begun, since what is half written must be settled. Whoever awaits it may leave.
    """

    def __init__(self, active: Runtime, pool: Pool, record: JobRecord) -> None:
        self._active = active
        self._pool = pool
        self._record = record
        # Taken by the thread when it begins, or by whoever leaves before: what never begins must give the place back,
        # and a loop that ends cancels its tasks without saying whether their threads had begun.
        self._begun = threading.Lock()

    async def done(self) -> None:
        """Wait for it. When cancelled: there is no job, or it is cancelled as soon as it is accepted."""
        writing = asyncio.ensure_future(sync_to_async(self._write)())
        writing.add_done_callback(_seen)
        try:
            await asyncio.shield(writing)
        except (asyncio.CancelledError, GeneratorExit):
            self._desert()
            raise
        except BaseException:
            if self._begun.acquire(blocking=False):
                self._pool.withdraw(self._record)  # there was no thread to begin in
            raise
        finally:
            del writing, self  # a refusal's traceback would close a cycle

    def _write(self) -> None:
        if self._begun.acquire(blocking=False):
            complete(self._active, self._pool, self._record)

    def _desert(self) -> None:
        active, pool, record = self._active, self._pool, self._record
        if self._begun.acquire(blocking=False):
            pool.withdraw(record)
        elif active.options.inline:
            return  # its code runs in this very submit
        elif record.state is JobState.SUBMITTED:
            pool.cancel(record.id, Reason.DISCONNECT)  # takes effect at its acceptance: it never runs
        elif not record.state.terminal and not pool.cancel_if_queued(record.id, Reason.DISCONNECT):
            active.disconnects.cancel(record.id, record)


def _seen(written: asyncio.Future[None]) -> None:
    """Look at the outcome: nobody else will when whoever submitted has gone, and asyncio would complain."""
    if not written.cancelled():
        written.exception()


def make_all_durable(active: Runtime, jobs: Sequence[tuple[Pool, JobRecord]]) -> list[Rejected | None]:
    """Store the rows of reserved jobs together, and start each job whose row is durable; return why the others are not.

    Jobs of pools that write no rows start at once, or when the caller's transaction commits.
    """
    stored = [(pool, record) for pool, record in jobs if pool.config.name not in active.memories]
    # First the rows: where none can be written at all, nothing is to be submitted.
    refusals = _make_rows(active, stored) if stored else {}
    if len(stored) < len(jobs):
        around = next((c for c in connections.all(initialized_only=True) if _caller_atomic(c)), None)
        for pool, record in jobs:
            if pool.config.name in active.memories:
                refusals[record] = _start_unstored(active, pool, record, around)
    return [refusals[record] for _, record in jobs]


def transaction_open() -> bool:
    """Whether the caller has a transaction open on any database: then a wait would hold its locks."""
    for connection in known_connections():
        if connection.in_atomic_block and _caller_atomic(connection):
            return True
    return False


def sync_caller_waits() -> bool:
    """Whether this task runs below `async_to_sync`, so that a thread with a transaction of its own may wait for it.

    True where asgiref does not let that be told.
    """
    try:
        above = getattr(AsyncToSync.executors, "current", None) is not None
        return above or asyncio.get_running_loop() in AsyncToSync.loop_thread_executors
    except AttributeError:
        return True


def _start_unstored(active: Runtime, pool: Pool, record: JobRecord, around: Any) -> Rejected | None:
    try:
        start_threads(active, pool, record)
    except StoreUnavailable as refusal:
        return refusal
    if around is None:
        _start(active, pool, record)
    else:
        _CommitHook(active, record, functools.partial(_start_late, active, pool, record), around, stored=False)
    return None


def _start_late(active: Runtime, pool: Pool, record: JobRecord) -> None:
    _reserve_again(pool, record)
    _start(active, pool, record)


def _reserve_again(pool: Pool, record: JobRecord) -> None:
    """Take a place again if the hook of `record` looked forgotten while an earlier one took its time."""
    if pool.find(record.id) is record:
        return
    record.state = JobState.SUBMITTED
    try:
        pool.reserve(record)
    except Rejected:
        record.state = JobState.REJECTED
        raise


def _make_rows(active: Runtime, jobs: Sequence[tuple[Pool, JobRecord]]) -> dict[JobRecord, Rejected | None]:
    connection = connections[active.alias]
    if _in_testcase(connection) and not active.options.inline:
        raise ConfigurationError(
            "A job submitted inside a TestCase cannot be seen by a worker thread. Use TransactionTestCase, or set "
            'BOUNDED_POOL_OPTIONS = {"INLINE": True} in the test settings.'
        )
    if _caller_atomic(connection):
        return _join_transaction(active, jobs)
    _refuse_manual_transaction(connection)
    other = next((c for c in connections.all(initialized_only=True) if _caller_atomic(c)), None)
    if other is None:
        return _store_and_start(active, jobs)
    refusals: dict[JobRecord, Rejected | None] = {}
    for pool, record in jobs:
        try:
            start_threads(active, pool, record)
        except StoreUnavailable as refusal:
            refusals[record] = refusal
            continue
        # The jobs live in another database than the caller's transaction: both follow its commit.
        _CommitHook(active, record, functools.partial(_late, active, pool, record), other, stored=False)
        refusals[record] = None
    return refusals


def _late(active: Runtime, pool: Pool, record: JobRecord) -> None:
    _reserve_again(pool, record)
    refusal = _store_and_start(active, [(pool, record)])[record]
    if refusal is not None:
        raise refusal


def _store_and_start(active: Runtime, jobs: Sequence[tuple[Pool, JobRecord]]) -> dict[JobRecord, Rejected | None]:
    errors: Sequence[StoreError | None]
    try:
        errors = active.recorder.insert_all([record.first_row() for _, record in jobs], active.options.store_timeout)
    except StoreError as of_all:
        errors = [of_all] * len(jobs)
    refusals: dict[JobRecord, Rejected | None] = {}
    for (pool, record), error in zip(jobs, errors, strict=True):
        refusals[record] = None
        if error is None:
            _start(active, pool, record)
        # Settled meanwhile? Then its row was there, and the pool has taken it up.
        elif pool.withdraw(record) or record.state is JobState.REJECTED or not error.unknown:
            refusals[record] = pool.refused(_unavailable(pool, record, error), record.spec.name)
    return refusals


def _unavailable(pool: Pool, record: JobRecord, error: StoreError) -> StoreUnavailable:
    refusal = StoreUnavailable(
        f"The row of job {record.spec.name} could not be made durable: {error}.",
        pool=pool.config.name,
        retry_after=None if error.unknown else pool.retry_after(),
    )
    refusal.__cause__ = error
    return refusal


def _start(active: Runtime, pool: Pool, record: JobRecord) -> None:
    active.start()
    if record.process != active.process:
        record.forfeited = record.special = True  # its owner was declared lost meanwhile: nobody may run it
    pool.accept(record)
    if active.options.inline:
        run_inline(pool, record)


def run_inline(pool: Pool, record: JobRecord) -> None:
    """Run an accepted job in the calling thread, an async one too."""
    pool.run_inline(record)


def start_threads(active: Runtime, pool: Pool, record: JobRecord) -> None:
    """Start what looks after jobs; first of all, for somebody must see how the transaction of a row ends.

    Raises:
        StoreUnavailable: the system gives no thread; the place of `record`, if it has one, is given back.
    """
    try:
        active.start()
    except StoreError as error:
        pool.withdraw(record)
        raise pool.refused(StoreUnavailable(f"{error}.", pool=pool.config.name), record.spec.name) from error


def _join_transaction(active: Runtime, jobs: Sequence[tuple[Pool, JobRecord]]) -> dict[JobRecord, Rejected | None]:
    """Insert rows on the caller's own connection and start each job when that transaction commits."""
    refusals: dict[JobRecord, Rejected | None] = {}
    ready = []
    for pool, record in jobs:
        try:
            start_threads(active, pool, record)
        except StoreUnavailable as refusal:
            refusals[record] = refusal
        else:
            ready.append((pool, record))
    errors = DirectRecorder(active.alias, active.process).insert_all([record.first_row() for _, record in ready], 0)
    for (pool, record), error in zip(ready, errors, strict=True):
        if error is None:
            start = functools.partial(_start, active, pool, record)
            _CommitHook(active, record, start, connections[active.alias], stored=True)
            refusals[record] = None
        else:
            pool.withdraw(record)
            refusals[record] = pool.refused(_unavailable(pool, record, error), record.spec.name)
    return refusals


class _CommitHook:
    """Starts a job on commit; when Django drops it without a call, the transaction ended otherwise.

    Django has no hook for a rollback. It forgets its on-commit callables then, so the end of this object's life is the
    sign; where a kept exception keeps this object too, the housekeeper sees that the connection has forgotten it. The
    row tells what really happened: an earlier callable may have raised after the commit.
    """

    def __init__(
        self, active: Runtime, record: JobRecord, start: Callable[[], None], connection: Any, *, stored: bool
    ) -> None:
        self._active = active
        self._job_id = record.id
        self._start = start
        self._connection = connection
        self.stored = stored
        self._called = False
        # Set last: where a signal handler's SystemExit cuts the start short, the row must still be looked at.
        self._over = False
        self.__qualname__ = f"the submit of {record.spec.name}"  # Django names a failed callable by it
        transaction.on_commit(self, using=connection.alias, robust=True)
        active.watch(record.id, self)

    def __call__(self) -> None:
        self._called = True
        try:
            self._start()
        except Rejected:
            self._over = True
            raise
        except BaseException:
            # A signal handler's SystemExit cut the start short: there may be a row, whatever the transaction was.
            self._called, self.stored = False, True
            raise
        self._over = True

    def __del__(self) -> None:
        if not self._over:
            # Once the start has begun there may be a row, whatever the transaction was.
            self._active.settle(self._job_id, stored=self.stored or self._called)

    def forgotten(self) -> bool:
        """Whether the transaction is over without a call. May be asked from any thread."""
        return not self._called and not any(entry[1] is self for entry in self._connection.run_on_commit)


def _in_testcase(connection: Any) -> bool:
    return bool(connection.in_atomic_block and connection.atomic_blocks and connection.atomic_blocks[0]._from_testcase)


def _caller_atomic(connection: Any) -> bool:
    """Whether the caller has a transaction open; the one that TestCase wraps around a test is not the caller's."""
    return any(not block._from_testcase for block in connection.atomic_blocks) if connection.in_atomic_block else False


def _refuse_manual_transaction(connection: Any) -> None:
    if connection.in_atomic_block:
        return
    connected = connection.connection is not None
    if not (connection.autocommit if connected else connection.settings_dict["AUTOCOMMIT"]):
        raise ConfigurationError(
            f"Autocommit is off on database {connection.alias!r}, so there is no commit the job could wait for. "
            "Submit inside transaction.atomic(), or turn autocommit on."
        )
