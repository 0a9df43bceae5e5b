"""Trouble of the database costs time, never a state; a row that it cannot take costs that row its details."""

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_boundedpool.engine.record import Snapshot
from django_boundedpool.models import Job
from django_boundedpool.store import recorder as recorder_module
from django_boundedpool.store import writes
from django_boundedpool.store.recorder import Recorder, StoreError

pytestmark = pytest.mark.django_db(transaction=True)

ME = uuid.uuid4()
POISON = "poison"


def first() -> Snapshot:
    values = {"name": "x", "pool": "default", "state": "queued", "submitted_at": datetime.now(UTC)}
    return Snapshot(uuid.uuid4(), ME, 1, 1, values)


def ended(snapshot: Snapshot, state: str = "succeeded", **values: Any) -> Snapshot:
    return Snapshot(snapshot.id, ME, 1, 2, {"state": state, "live": False, **values})


@pytest.fixture
def settled() -> list[tuple[uuid.UUID, bool]]:
    return []


@pytest.fixture
def recorder(settled: list[tuple[uuid.UUID, bool]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(recorder_module, "MAX_BACKOFF", 0.02)
    recorder = Recorder("default", ME, lambda job_id, exists: settled.append((job_id, exists)))
    yield recorder
    recorder.stop()


def fail_first(times: int, name: str, fault: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the first writes fail; returns what counts them down."""
    real, left = getattr(writes, name), [times]

    def write(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            fault()
        return real(*args)

    monkeypatch.setattr(writes, name, write)
    return left


def read_only() -> None:
    """What a standby, a full disk or a provider's lock says; the real thing where one statement brings it about."""
    if connection.vendor == "postgresql":
        with connections["default"].cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")  # whatever is written next is refused
    else:
        raise InternalError("cannot execute UPDATE in a read-only transaction")


def raising(error: Exception) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


TROUBLES = pytest.mark.parametrize(
    "fault",
    [
        read_only,
        raising(ProgrammingError("permission denied for table")),
        raising(NotSupportedError("not now")),
        raising(DatabaseError("out of order")),
    ],
    ids=["read-only", "permission", "not supported", "of no kind"],
)


@TROUBLES
def test_terminal_state_survives_trouble_that_is_not_operational(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]
) -> None:
    snapshot = first()
    recorder.insert(snapshot, 5)
    left = fail_first(4, "update", fault, monkeypatch)
    recorder.save(ended(snapshot, result={"a": 1}))
    assert recorder.flush(10)
    assert left == [0]
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.result, job.version) == ("succeeded", {"a": 1}, 2)


@TROUBLES
def test_submit_waits_for_the_end_of_trouble_that_is_not_operational(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]
) -> None:
    left = fail_first(4, "insert", fault, monkeypatch)
    snapshot = first()
    recorder.insert(snapshot, 10)
    assert left == [0]
    assert Job.objects.filter(pk=snapshot.id).exists()


class Poisoned:
    """One row's details are refused with an error that elsewhere means an outage, as by MariaDB's packet limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        real = writes.update

        def update(row: Snapshot, alias: str) -> bool:
            if row.values.get("result") == POISON:
                self.refused += 1
                raise OperationalError("Got a packet bigger than 'max_allowed_packet' bytes")
            return real(row, alias)

        monkeypatch.setattr(writes, "update", update)


def test_row_that_is_refused_like_an_outage_stops_nobody_else(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, others = first(), [first() for _ in range(3)]
    for snapshot in (bad, *others):
        recorder.insert(snapshot, 5)
    monkeypatch.setattr(recorder_module, "PATIENCE", 1_000_000)  # it stays in the map for as long as this test
    poisoned = Poisoned(monkeypatch)
    recorder.save(ended(bad, result=POISON))
    for snapshot in others:
        recorder.save(ended(snapshot, result=1))
    deadline = time.monotonic() + 10
    while Job.objects.filter(state="succeeded", result=1).count() < 3:
        assert time.monotonic() < deadline
    recorder.insert(first(), 10)
    assert poisoned.refused
    assert Job.objects.get(pk=bad.id).state == "queued"
    assert recorder.pending == 1
    monkeypatch.undo()
    assert recorder.flush(10)


def test_row_that_is_refused_like_an_outage_ends_without_its_details(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says failed then: a success without its result would claim more than is there."""
    bad, worse = first(), first()
    for snapshot in (bad, worse):
        recorder.insert(snapshot, 5)
    poisoned = Poisoned(monkeypatch)
    recorder.save(ended(bad, result=POISON))
    recorder.save(ended(worse, "abandoned", reason="process_lost", result=POISON))
    assert recorder.flush(10)
    assert poisoned.refused >= 2 * recorder_module.PATIENCE
    job = Job.objects.get(pk=bad.id)
    assert (job.state, job.reason, job.result, job.live, job.version) == ("failed", "bad_result", None, False, 2)
    assert "could not be stored" in job.error["message"]
    job = Job.objects.get(pk=worse.id)
    assert (job.state, job.reason, job.live) == ("abandoned", "process_lost", False)


def test_refusals_are_forgotten_once_the_row_is_written(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every row that saw a few bad moments would one day lose its details."""
    snapshot = first()
    recorder.insert(snapshot, 5)
    monkeypatch.setattr(recorder_module, "STRIKES", 0)
    fail_first(2 * (recorder_module.PATIENCE - 1), "update", raising(OperationalError("deadlock")), monkeypatch)
    recorder.save(Snapshot(snapshot.id, ME, 1, 2, {"state": "running"}))
    assert recorder.flush(10)
    fail_first(2 * (recorder_module.PATIENCE - 1), "update", raising(OperationalError("deadlock")), monkeypatch)
    recorder.save(Snapshot(snapshot.id, ME, 1, 3, {"state": "succeeded", "live": False, "result": 7}))
    assert recorder.flush(10)
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.result) == ("succeeded", 7)


def test_commit_whose_answer_is_lost_before_a_long_outage_is_unknown_and_settled_afterwards(
    recorder: Recorder, settled: list[tuple[uuid.UUID, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is there although its submit was refused: whoever refused it must be told."""
    recorder.insert(first(), 10)
    real_commit, real_insert = BaseDatabaseWrapper._commit, writes.insert
    committed, away = threading.Event(), threading.Event()

    def commit(wrapper: BaseDatabaseWrapper) -> None:
        real_commit(wrapper)
        if threading.current_thread() is recorder._thread and not committed.is_set():
            committed.set()
            away.set()
            raise OperationalError("server closed the connection unexpectedly")

    def insert(rows: Any, alias: str) -> None:
        if away.is_set():
            raise OperationalError("connection refused")
        real_insert(rows, alias)

    monkeypatch.setattr(recorder_module, "MAX_BACKOFF", 60)  # asleep, not in the middle of a try, when time is up
    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    monkeypatch.setattr(writes, "insert", insert)
    snapshot = first()
    with pytest.raises(StoreError) as caught:
        recorder.insert(snapshot, 1.0)
    assert committed.is_set()
    assert caught.value.unknown
    away.clear()
    assert recorder.flush(10)
    assert settled == [(snapshot.id, True)]


def test_row_whose_submit_is_torn_while_it_waits_for_its_commit_is_cancelled(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's SystemExit ends the wait, and nobody will accept the job."""
    real, torn = writes.insert, threading.Event()

    class Torn(threading.Event):
        """What a submit waits for, when a signal comes."""

        def wait(self, timeout: float | None = None) -> bool:
            torn.set()
            raise SystemExit(143)

    class Insert(recorder_module._Insert):
        """A row of such a submit."""

        def __init__(self, row: Snapshot) -> None:
            super().__init__(row)
            self.done = Torn()

    def insert(rows: Any, alias: str) -> None:
        assert torn.wait(10)
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    monkeypatch.setattr(recorder_module, "_Insert", Insert)
    snapshot = first()
    with pytest.raises(SystemExit):
        recorder.insert(snapshot, 10)
    recorder.stop()
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.reason, job.live) == ("cancelled", "disconnect", False)


def test_insert_that_is_refused_like_an_outage_stops_nobody_else(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writes.insert
    bad, good, old = first(), first(), first()

    def insert(rows: Any, alias: str) -> None:
        rows = list(rows)
        if any(row.id == bad.id for row in rows):
            raise OperationalError("the packet is too large")
        real(rows, alias)

    recorder.insert(old, 5)
    monkeypatch.setattr(writes, "insert", insert)
    refused: list[StoreError] = []

    def submit() -> None:
        try:
            recorder.insert(bad, 5)
        except StoreError as error:
            refused.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    deadline = time.monotonic() + 10
    while not recorder.pending:
        assert time.monotonic() < deadline
    recorder.save(ended(old))
    recorder.insert(good, 4)
    while Job.objects.get(pk=old.id).state != "succeeded":
        assert time.monotonic() < deadline
    thread.join(20)
    assert len(refused) == 1


@pytest.mark.parametrize("times", [9, 10, 11, 12, 13])
def test_end_of_a_long_read_only_time_costs_no_result(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    snapshot = first()
    recorder.insert(snapshot, 5)
    left = fail_first(times, "update", read_only, monkeypatch)
    touch = writes.touch

    def counted(row: Snapshot, alias: str) -> None:
        if left[0]:
            left[0] -= 1
            read_only()
        touch(row, alias)

    monkeypatch.setattr(writes, "touch", counted)
    recorder.save(ended(snapshot, result=1))
    assert recorder.flush(20)
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.result) == ("succeeded", 1)


def full_disk() -> None:
    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise OperationalError("database or disk is full") from cause


def test_full_disk_costs_no_result_however_long_it_lasts(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a row without its details would have fitted."""
    snapshot = first()
    recorder.insert(snapshot, 5)
    real, left = writes.update, [3 * recorder_module.PATIENCE]

    def update(row: Snapshot, alias: str) -> bool:
        if row.values.get("result") is not None and left[0]:
            left[0] -= 1
            full_disk()
        return real(row, alias)

    monkeypatch.setattr(writes, "update", update)
    recorder.save(ended(snapshot, result=1))
    assert recorder.flush(30)
    assert left[0] == 0
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.result) == ("succeeded", 1)
