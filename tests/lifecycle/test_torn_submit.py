"""A signal handler's exception in the main thread may come at any point of a submit."""

import threading
import time
from collections.abc import Iterator

import pytest

from django_boundedpool import job, pools
from django_boundedpool.engine.pool import Pool
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job
from django_boundedpool.testing import join

pytestmark = pytest.mark.django_db(transaction=True)

gate = threading.Event()
ran: list[str] = []


@job(timeout=60)
def hold() -> None:
    assert gate.wait(30)


@job(timeout=60)
def note(label: str) -> None:
    ran.append(label)


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    gate.clear()
    ran.clear()
    yield
    gate.set()


def test_job_that_was_accepted_before_the_exception_is_not_cancelled_behind_the_pools_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool has it and will run it; a row that says cancelled meanwhile would be a lie."""
    for _ in range(pools["default"].config.workers):
        hold.submit()
    accept = Pool.accept

    def torn(pool: Pool, record: object) -> None:
        accept(pool, record)
        raise SystemExit(143)

    monkeypatch.setattr(Pool, "accept", torn)
    with pytest.raises(SystemExit):
        note.submit("once")
    monkeypatch.undo()
    recorder = runtime.current().recorder
    recorder.flush(10)
    deadline = time.monotonic() + 0.5  # what must not happen leaves no event to wait for
    while time.monotonic() < deadline:
        row = Job.objects.get(name=note.spec.name)
        assert (row.state, row.live) == ("queued", True)
        time.sleep(0.02)
    gate.set()
    join()
    row.refresh_from_db()
    assert (row.state, ran) == ("succeeded", ["once"])


def test_flush_waits_until_a_torn_submit_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process ends first, and the row is left for another process to find."""

    def torn(pool: Pool, record: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(Pool, "accept", torn)
    for _ in range(20):
        with pytest.raises(SystemExit):
            note.submit("never")
        assert runtime.current().recorder.flush(10)
        assert not Job.objects.filter(live=True).exists()
    assert set(Job.objects.values_list("state", "reason")) == {("cancelled", "disconnect")}
    assert ran == []
