"""A process that was declared lost gives its jobs up under the name by which it had accepted them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_boundedpool import JobAbandoned, JobHandle, job
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job, Process
from django_boundedpool.store import writes
from django_boundedpool.testing import join

pytestmark = pytest.mark.django_db(transaction=True)

gate = threading.Event()
started = threading.Semaphore(0)
ran: list[object] = []


@job
def hold() -> None:
    started.release()
    assert gate.wait(30)


@job
def note(label: str) -> None:
    ran.append(label)


@pytest.fixture(autouse=True)
def _gate(settings: Any) -> Iterator[None]:
    gate.clear()
    ran.clear()
    yield
    gate.set()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def lose() -> UUID:
    """Do as the housekeeper does when it learns that this process was declared lost; return the old id."""
    active = runtime.current()
    old, active.recorder.process = active.process, uuid4()
    for pool in active.pools.values():
        pool.forfeit(active.process)
    return old


def assert_given_up(handle: JobHandle, owner: UUID) -> None:
    with pytest.raises(JobAbandoned, match="process_lost"):
        handle.result(10)
    join()
    row = Job.objects.get(pk=handle.id)
    assert (row.state, row.reason, row.live, row.attempt) == ("abandoned", "process_lost", False, 0)
    assert row.process == owner


def test_jobs_of_a_process_that_finds_itself_lost_are_written_down_as_abandoned(settings: Any) -> None:
    """By itself: nobody else is there, and for half a minute nobody would look."""
    settings.BOUNDED_POOL_OPTIONS = {"HEARTBEAT": 0.1, "LOST_AFTER": 60}
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    running, waiting = hold.submit(), note.submit("never")
    assert started.acquire(timeout=10)
    active = runtime.current()
    old = active.process
    wait_until(lambda: Process.objects.filter(pk=old).update(lost_at=Now()))
    wait_until(lambda: active.process != old)
    for handle in (running, waiting):
        with pytest.raises(JobAbandoned, match="process_lost"):
            handle.result(10)
    join()
    rows = Job.objects.order_by("id").values_list("state", "reason", "live", "process")
    assert list(rows) == [("abandoned", "process_lost", False, old)] * 2
    gate.set()
    assert note.submit("new").result(10) is None  # under the new id
    join()
    assert Job.objects.get(state="succeeded").process == active.process
    assert ran == ["new"]


def test_job_whose_owner_is_lost_before_its_transaction_commits_never_runs() -> None:
    note.submit("before").result(10)
    with transaction.atomic():
        handle = note.submit("never")
        old = lose()
    assert_given_up(handle, old)
    assert ran == ["before"]


def test_job_whose_owner_is_lost_while_its_row_is_inserted_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    note.submit("before").result(10)
    real, owners = writes.insert, []

    def insert(rows: Any, alias: str) -> None:
        real(rows, alias)
        owners.append(lose())

    monkeypatch.setattr(writes, "insert", insert)
    handle = note.submit("never")
    assert_given_up(handle, owners[0])
    assert ran == ["before"]


def test_row_of_a_submit_that_began_before_the_loss_belongs_to_the_old_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever declared the old one lost looks for its rows; under the new name this one would run as if owned."""
    note.submit("before").result(10)
    recorder = runtime.current().recorder
    real, owners = recorder.insert_all, []

    def insert_all(snapshots: Any, timeout: float) -> Any:
        owners.append(lose())
        return real(snapshots, timeout)

    monkeypatch.setattr(recorder, "insert_all", insert_all)
    handle = note.submit("never")
    assert_given_up(handle, owners[0])
    assert ran == ["before"]


def test_job_whose_owner_is_lost_and_whose_commit_hook_is_dropped_never_runs() -> None:
    """Its row is found and taken up by the recorder, not by its hook."""
    note.submit("before").result(10)

    def broken() -> None:
        raise RuntimeError("hook")

    handle = old = None
    try:
        with transaction.atomic():
            transaction.on_commit(broken)
            handle = note.submit("never")
            old = lose()
    except RuntimeError:
        pass
    assert handle is not None
    assert old is not None
    runtime.current().sweep()
    wait_until(lambda: handle.state.terminal)
    assert_given_up(handle, old)
    assert ran == ["before"]
