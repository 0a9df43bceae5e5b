"""Submits inside transactions that end in unusual ways: none is lost, and none holds its place for ever."""

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from django_boundedpool import JobState, pools
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.record import Snapshot
from django_boundedpool.engine.report import DrainReport
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job
from django_boundedpool.store import writes
from django_boundedpool.store.recorder import Recorder, StoreError

from . import jobs_for_tests as jobs

pytestmark = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    pass


@pytest.fixture(autouse=True)
def _gate(settings) -> Iterator[None]:
    jobs.reset_gate()
    yield
    jobs.gate.set()


@pytest.fixture
def other(transactional_db: None, tmp_path: Path) -> Iterator[str]:
    """A second database, which the jobs are not in."""
    connections.databases["other"] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "other.sqlite3"),
        "OPTIONS": {},
    }
    connections["other"].connect()  # Django's and pytest's guards ask at the first use of a database, and know it not
    yield "other"
    connections["other"].close()
    del connections["other"]
    del connections.databases["other"]


def rolled_back(alias: str = "default") -> None:
    try:
        with transaction.atomic(using=alias):
            jobs.add.submit(1)
            raise Undo
    except Undo:
        pass


def drained() -> DrainReport:
    """Drain this process's pools as its exit would; not here, where the drain would take over the signals."""
    active = runtime.current()
    reports = []
    thread = threading.Thread(target=lambda: reports.append(active.drain("exit")), daemon=True)
    thread.start()
    thread.join(10)
    active.give_back_dropped()  # so that a drain that waits for it ends before the database of this test goes
    assert reports, "the drain waits for a place that nobody holds"
    thread.join(10)
    return reports[0]


def test_the_end_of_a_process_does_not_wait_for_a_submit_that_was_rolled_back_on_another_database(other: str) -> None:
    assert jobs.add.submit(1).result(10) == 1
    rolled_back(other)
    gc.collect()
    assert drained().flushed
    assert Job.objects.count() == 1


def test_the_end_of_a_process_does_not_wait_for_a_submit_that_was_rolled_back_inline(settings) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}
    assert jobs.add.submit(1).result() == 1
    rolled_back()
    gc.collect()
    assert pools["default"].stats().reserved == 1
    assert drained().flushed
    assert pools["default"].stats().reserved == 0


def test_a_submit_rolled_back_on_another_database_gives_its_place_back_without_another_submit(other: str) -> None:
    rolled_back(other)
    gc.collect()
    runtime.current().sweep()
    assert pools["default"].stats().reserved == 0


def tear_next_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be cut short, as by a signal handler's exception."""
    real: Callable[[Pool, object], None] = Pool.accept

    def torn(pool: Pool, record: object) -> None:
        monkeypatch.setattr(Pool, "accept", real)
        raise SystemExit(143)

    monkeypatch.setattr(Pool, "accept", torn)


def test_a_signal_inside_the_commit_hook_loses_no_job_and_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed: its job has been promised."""
    handles = []

    @transaction.atomic
    def view() -> None:
        handles.append(jobs.add.submit(3))
        tear_next_acceptance(monkeypatch)

    with pytest.raises(SystemExit):
        view()
    gc.collect()
    assert runtime.current().recorder.flush(10)
    assert pools["default"].stats().reserved == 0
    assert handles[0].result(10) == 3


def test_a_submit_behind_a_slow_commit_hook_of_another_database_is_not_lost(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an earlier hook runs, the connection has forgotten the later ones, and whoever sweeps cannot know why."""
    swept, inserted = [], []
    real = writes.insert

    def insert(rows: Any, alias: str) -> None:
        inserted.append(handle.state)
        real(rows, alias)

    def slow() -> None:
        active = runtime.current()
        active.sweep()
        active.give_back_dropped()
        swept.append(handle.state)

    monkeypatch.setattr(writes, "insert", insert)
    with transaction.atomic(using=other):
        transaction.on_commit(slow, using=other)
        handle = jobs.add.submit(2)
    assert (swept, inserted) == ([JobState.REJECTED], [JobState.SUBMITTED])
    assert handle.result(10) == 2
    assert runtime.current().recorder.flush(10)
    assert Job.objects.get(pk=handle.id).state == "succeeded"
    stats = pools["default"].stats()
    assert (stats.accepted, stats.reserved, stats.queue_bytes) == (1, 0, 0)


def test_a_submit_behind_a_slow_commit_hook_of_its_own_database_runs_once(settings) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    jobs.gate.set()

    def slow() -> None:
        active = runtime.current()
        active.sweep()
        assert active.recorder.flush(10)

    with transaction.atomic():
        transaction.on_commit(slow)
        handle = jobs.hold.submit("once")
    assert handle.result(10) == "once"
    assert jobs.add.submit(1).result(10) == 1  # by the same worker: nothing is left before it
    assert jobs.log == ["once"]


def test_a_signal_inside_the_hook_of_another_database_leaves_no_live_row(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add.submit(1).result(10)
    kept = None  # as an error report would keep it, and with it the hook
    try:
        with transaction.atomic(using=other):
            jobs.add.submit(3)
            tear_next_acceptance(monkeypatch)
    except SystemExit as error:
        kept = error
    assert kept is not None
    active = runtime.current()
    active.sweep()
    assert active.recorder.flush(10)
    assert not Job.objects.filter(live=True).exists()
    assert pools["default"].stats().reserved == 0


def test_a_submit_that_is_taken_up_before_its_refusal_is_known_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.gate.set()
    jobs.add.submit(1).result(10)
    real = Recorder.insert

    def insert(recorder: Recorder, snapshot: Snapshot, timeout: float) -> None:
        real(recorder, snapshot, timeout)
        recorder.settle(snapshot.id)
        assert recorder.flush(10)
        raise StoreError("no commit within 5 s", unknown=True)

    monkeypatch.setattr(Recorder, "insert", insert)
    assert jobs.hold.submit("ran").result(10) == "ran"


def test_a_hook_that_is_refused_keeps_no_other_hook_from_running(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(recorder: Recorder, snapshot: Snapshot, timeout: float) -> None:
        raise StoreError("the database is away")

    monkeypatch.setattr(Recorder, "insert", insert)
    ran: list[str] = []
    with transaction.atomic(using=other):
        jobs.add.submit(1)
        transaction.on_commit(lambda: ran.append("theirs"), using=other)
    assert ran == ["theirs"]
    assert pools["default"].stats().reserved == 0


def test_a_submit_that_fails_before_anything_is_stored_does_not_hold_up_the_end() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError):
            jobs.add.submit(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert runtime.current().recorder.flush(0.1)
