"""What counts as the end of a job, and what may go wrong around it."""

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.core.cache.backends.locmem import LocMemCache
from django.db import connections, transaction
from django.dispatch import Signal

from django_boundedpool import JobAbandoned, JobNotFound, JobState, Retry, job, pools
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.payload import MAX_DEPTH
from django_boundedpool.models import Job
from django_boundedpool.signals import job_accepted, job_finished, job_started
from django_boundedpool.store import writes
from django_boundedpool.testing import join

from . import jobs_for_tests as jobs

pytestmark = pytest.mark.django_db(transaction=True)

ran: list[object] = []


@job
def purge(days=30):
    ran.append(days)


@job(retry=Retry(max_attempts=3, base=0.01, cap=0.01))
def charge():
    cache.get("a")  # opens the cache in this thread, so that it is closed after the job
    ran.append("charged")
    return "charged"


@job
def nested(depth):
    return nest(depth)


def nest(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture(autouse=True)
def _clean(settings) -> Iterator[None]:
    jobs.reset_gate()
    ran.clear()
    yield
    jobs.gate.set()


@pytest.fixture
def receive() -> Iterator[Callable[[Signal, Callable[..., object]], None]]:
    connected: list[tuple[Signal, Callable[..., object]]] = []

    def connect(signal: Signal, receiver: Callable[..., object]) -> None:
        connected.append((signal, receiver))
        signal.connect(receiver)

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.mark.parametrize("ends", ["forfeit", "give_up"])
def test_a_job_given_up_between_its_start_and_its_code_does_not_run(settings, receive, ends: str) -> None:
    """Its arguments are forgotten by then: it would run with its defaults."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}

    def give_up(**kwargs: Any) -> None:
        pool = pools["default"]
        if ends == "forfeit":
            pool.forfeit(uuid7())
        else:
            pool.give_up()
        job_started.disconnect(give_up)

    receive(job_started, give_up)
    handle = purge.submit(3650)
    with pytest.raises(JobAbandoned):
        handle.result(10)
    if ends == "forfeit":  # a pool that gave up starts nothing more
        assert jobs.add.submit(1).result(10) == 1  # by the same worker, which has left the other job by now
    else:
        assert pools["default"].close()
    assert ran == []


def test_tidying_up_that_fails_does_not_undo_a_success(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """The job has done its work: another attempt would do it twice."""

    def close(self: LocMemCache, **kwargs: Any) -> None:
        raise ConnectionError("the cache is gone")

    with monkeypatch.context() as patch:
        patch.setattr(LocMemCache, "close", close)
        assert charge.submit().result(10) == "charged"
        join()
    row = Job.objects.get()
    assert (row.state, row.attempt, ran) == ("succeeded", 1, ["charged"])
    assert "Tidying up after a job failed" in caplog.text


def test_the_deepest_values_that_are_taken_come_back_from_every_database() -> None:
    argument = nest(MAX_DEPTH - 1)  # the list of arguments is a level of its own
    echoed = jobs.echo.submit(argument)
    assert echoed.result(10) == argument
    made = nested.submit(MAX_DEPTH)
    assert made.result(10) == nest(MAX_DEPTH)
    join()
    assert Job.objects.get(pk=echoed.id).args == [argument]
    assert Job.objects.get(pk=echoed.id).result == argument
    assert Job.objects.get(pk=made.id).result == nest(MAX_DEPTH)
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


@pytest.mark.parametrize("thread", ["default", "timer"])
def test_a_receiver_that_reads_the_database_leaves_no_connection_open(settings, receive, thread: str) -> None:
    """No request ends in the pool's own threads, so nobody else would close it."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    used: list[Any] = []

    def reads(event: Any, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith(f"boundedpool-{thread}"):
            Job.objects.count()
            used.append(connections["default"])
            assert used[0].connection is not None

    receive(job_finished, reads)
    if thread == "timer":
        jobs.hold.submit()
        assert jobs.started.acquire(timeout=10)
        jobs.add.using(start_deadline=0.01).submit(1)
    else:
        jobs.add.submit(1)
    deadline = time.monotonic() + 10
    while not used or used[0].connection is not None:
        assert time.monotonic() < deadline, used
        time.sleep(0.005)


def test_asking_for_a_failed_result_again_and_again_does_not_lengthen_its_traceback(settings) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    handle = jobs.boom.submit("no")
    assert jobs.add.submit(1).result(10) == 1  # by the same worker, which is done with the other job by now
    lengths = set()
    for _ in range(20):
        with pytest.raises(ValueError, match="no") as caught:
            handle.result(10)
        frames = traceback.extract_tb(caught.value.__traceback__)
        lengths.add(len(frames))
        assert frames[-1].name == "boom"
    assert len(lengths) == 1


def test_a_job_that_is_over_here_is_not_asked_to_stop_for_what_its_row_says(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
) -> None:
    """The row follows a moment later; a request noted on it would stay there for ever."""
    real, late = writes.update, threading.Event()

    def update(snapshot: Any, alias: str) -> bool:
        assert late.wait(30)
        return real(snapshot, alias)

    monkeypatch.setattr(writes, "update", update)
    try:
        handle = jobs.add.submit(1)
        assert handle.result(10) == 1
        with django_assert_num_queries(0):
            assert handle.cancel() == "finished"
    finally:
        late.set()
    join()
    row = Job.objects.get()
    assert (row.state, row.cancel_requested_at) == ("succeeded", None)


@job
def walks() -> int:
    for seen, _ in enumerate(Job.objects.order_by("id").iterator(chunk_size=1), start=1):
        jobs.add.submit(1)
        if seen == 3:
            return seen
    return 0


def test_a_receiver_does_not_close_the_connection_that_a_job_is_using(receive) -> None:
    for _ in range(3):
        jobs.add.submit(1)
    join()
    receive(job_accepted, lambda **kwargs: None)
    assert walks.submit().result(10) == 3


def test_whoever_waits_sees_the_lines_of_the_job_however_fast_it_is(settings, receive) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    late = threading.Event()
    receive(job_finished, lambda **kwargs: late.wait(10))
    handle = jobs.boom.submit("no")
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as caught:
            handle.result(10)
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "boom"
        late.set()


def test_cancelling_a_submit_that_was_rolled_back_finds_no_job() -> None:
    handle = None
    try:
        with transaction.atomic():
            handle = jobs.add.submit(1)
            raise LookupError
    except LookupError:
        pass
    assert handle is not None
    deadline = time.monotonic() + 10
    while handle.state is not JobState.REJECTED:
        assert time.monotonic() < deadline
    with pytest.raises(JobNotFound):
        handle.cancel()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int


@job(retry=Retry(max_attempts=2, on=(Frozen,), base=0.01, cap=0.01))
def raises_frozen() -> None:
    raise Frozen(5)


@job
def leaves_a_transaction_open() -> None:
    transaction.atomic().__enter__()
    Job.objects.count()


def test_a_job_that_leaves_a_transaction_open_fails_and_harms_no_later_job(settings, caplog) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    with pytest.raises(RuntimeError, match="transaction open on database default"):
        leaves_a_transaction_open.submit().result(10)
    for _ in range(3):
        assert jobs.counts_users.submit().result(10) == 0
    assert jobs.submits_child.submit().result(10)


def test_an_exception_that_refuses_assignment_is_recorded_as_itself() -> None:
    handle = raises_frozen.submit()
    with pytest.raises(Frozen):
        handle.result(10)
    join()
    row = Job.objects.get(pk=handle.id)
    assert (row.attempt, row.reason, row.error["type"].rpartition(".")[2]) == (2, "attempts_exhausted", "Frozen")
