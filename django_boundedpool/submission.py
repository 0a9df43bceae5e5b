"""From a reserved place to a durable row to an accepted job, whatever transaction surrounds the submit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from .engine.errors import ConfigurationError, Rejected, StoreUnavailable
from .engine.pool import Pool
from .engine.record import JobRecord
from .engine.states import JobState
from .lifecycle.runtime import Runtime
from .store.recorder import DirectRecorder, StoreError


def make_durable(active: Runtime, pool: Pool, record: JobRecord) -> None:
    """Store the row of a reserved job, and start the job once it is durable."""
    connection = connections[active.alias]
    if _in_testcase(connection) and not active.options.inline:
        raise ConfigurationError(
            "A job submitted inside a TestCase cannot be seen by a worker thread. Use TransactionTestCase, or set "
            'BOUNDED_POOL_OPTIONS = {"INLINE": True} in the test settings.'
        )
    if _caller_atomic(connection):
        _join_transaction(active, pool, record)
        return
    _refuse_manual_transaction(connection)
    other = next((c for c in connections.all(initialized_only=True) if _caller_atomic(c)), None)
    if other is not None:
        _start_threads(active, pool, record)
        # The jobs live in another database than the caller's transaction: both follow its commit.
        _CommitHook(active, record, lambda: _store_and_start(active, pool, record), other, stored=False)
        return
    _store_and_start(active, pool, record)


def _store_and_start(active: Runtime, pool: Pool, record: JobRecord) -> None:
    if pool.find(record.id) is not record:
        pool.reserve(record)  # its hook looked forgotten while an earlier one took its time
    try:
        active.recorder.insert(record.first_row(), active.options.store_timeout)
    except StoreError as error:
        retry_after = None if error.unknown else pool.retry_after()
        refusal = StoreUnavailable(
            f"The row of job {record.spec.name} could not be made durable: {error}.",
            pool=pool.config.name,
            retry_after=retry_after,
        )
        if error.unknown and not pool.withdraw(record) and record.state is not JobState.REJECTED:
            return  # settled meanwhile: its row was there, and the pool has taken it up
        pool.withdraw(record)
        raise pool.refused(refusal, record.spec.name) from error
    _start(active, pool, record)


def _start(active: Runtime, pool: Pool, record: JobRecord) -> None:
    active.start()
    if record.process != active.process:
        record.forfeited = True  # its owner was declared lost meanwhile: nobody may run it
    pool.accept(record)
    if active.options.inline:
        pool.run_inline(record)


def _start_threads(active: Runtime, pool: Pool, record: JobRecord) -> None:
    try:
        active.start()
    except StoreError as error:
        raise pool.refused(StoreUnavailable(f"{error}.", pool=pool.config.name), record.spec.name) from error


def _join_transaction(active: Runtime, pool: Pool, record: JobRecord) -> None:
    """Insert the row on the caller's own connection and start the job when that transaction commits."""
    _start_threads(active, pool, record)  # first: somebody must see how the transaction of the row ends
    try:
        DirectRecorder(active.alias, active.process).insert(record.first_row(), 0)
    except StoreError as error:
        refusal = StoreUnavailable(
            f"The row of job {record.spec.name} could not be stored: {error}.", pool=pool.config.name
        )
        raise pool.refused(refusal, record.spec.name) from error
    _CommitHook(active, record, lambda: _start(active, pool, record), connections[active.alias], stored=True)


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
