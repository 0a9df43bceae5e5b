"""Waiting for a place, and what makes a submit wait or keeps it from it."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_boundedpool import (
    Draining,
    Expired,
    JobHandle,
    JobState,
    OwnerLimit,
    Paused,
    QueueFull,
    Shed,
    WaitTimeout,
    job,
    pools,
)
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.engine.states import Reason
from django_boundedpool.models import Job
from django_boundedpool.testing import join

from . import jobs_for_tests as jobs
from .loops import until

pytestmark = pytest.mark.django_db(transaction=True)

TINY = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1}}


@pytest.fixture(autouse=True)
def _clean(settings: Any) -> Iterator[None]:
    jobs.reset_gate()
    yield
    jobs.gate.set()


def fill(settings: Any, **config: Any) -> list[JobHandle]:
    """One job runs, and the queue is full."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1, **config}}
    handles = [jobs.hold.submit("runs")]
    assert jobs.started.acquire(timeout=10)
    size = settings.BOUNDED_POOLS["default"]["QUEUE_SIZE"]
    return handles + [jobs.hold.using(priority=-50).submit("waits") for _ in range(size)]


def timed(code: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    try:
        outcome = code()
    except Exception as error:
        outcome = error
    return time.monotonic() - began, outcome


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_O05_a_wait_is_as_long_as_it_says_whatever_the_wall_clock_does(
    settings: Any, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    fill(settings)
    real = time.time
    timer = threading.Timer(0.3, lambda: monkeypatch.setattr(time, "time", lambda: real() + jump))
    monkeypatch.setattr(pools["default"].clock, "time", lambda: time.time())
    timer.start()
    took, outcome = timed(lambda: jobs.add.using(wait=1.0).submit(1))
    timer.join()
    assert isinstance(outcome, WaitTimeout)
    assert 0.7 <= took <= 1.3
    assert pools["default"].stats().waiting == pools["default"].stats().reserved == 0
    assert Job.objects.count() == 2


def test_O05_twenty_wait_five_give_up_and_no_place_stays_free(settings: Any) -> None:
    """A place frees every 50 ms; whoever stays is served in the order in which they came."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 20, "PERSIST": "memory"}}
    pool = pools["default"]
    jobs.hold.submit("runs")
    assert jobs.started.acquire(timeout=10)
    queued = [jobs.add.submit(n) for n in range(20)]
    served: list[tuple[float, int]] = []
    refused: list[int] = []

    def wait(number: int) -> None:
        try:
            jobs.add.using(wait=0.2 if number % 4 == 0 else 20).submit(number)
        except WaitTimeout:
            refused.append(number)
        else:
            served.append((time.monotonic(), number))

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda n=number: pool.stats().waiting == n + 1)  # type: ignore[misc]
    until(lambda: len(refused) == 5)
    freed = []
    for handle in queued[:15]:
        freed.append(time.monotonic())
        assert handle.cancel() == "cancelled"
        until(lambda: len(served) == len(freed), 0.1)  # no place is free for longer than 100 ms while somebody waits
        time.sleep(0.05)
    for thread in threads:
        thread.join(10)
    assert sorted(refused) == [0, 4, 8, 12, 16]
    assert [number for _, number in served] == [n for n in range(20) if n % 4]
    assert pool.stats().waiting == 0
    assert pool.stats().rejected == {"wait_timeout": 5}


def test_O05_a_more_urgent_one_is_served_first_and_nobody_overtakes(settings: Any) -> None:
    _, *queued = fill(settings, QUEUE_SIZE=3)
    served: list[str] = []

    def wait(name: str, priority: int) -> None:
        jobs.hold.using(wait=20, priority=priority).submit(name)
        served.append(name)

    threads = []
    for number, (name, priority) in enumerate([("first", 0), ("second", 0), ("urgent", 5)]):
        threads.append(threading.Thread(target=wait, args=(name, priority)))
        threads[-1].start()
        until(lambda n=number: pools["default"].stats().waiting == n + 1)  # type: ignore[misc]
    with pytest.raises(QueueFull):  # as many wait as the queue has places
        jobs.add.using(wait=20).submit(1)
    for number, handle in enumerate(queued):
        assert handle.cancel() == "cancelled"
        until(lambda n=number: len(served) == n + 1)  # type: ignore[misc]
        with pytest.raises(QueueFull):
            jobs.add.submit(1)
    for thread in threads:
        thread.join(10)
    assert served == ["urgent", "first", "second"]


def test_O05_inside_a_transaction_nothing_waits(settings: Any) -> None:
    fill(settings, WAIT=20)
    with transaction.atomic():
        took, outcome = timed(lambda: jobs.add.submit(1))
    assert isinstance(outcome, QueueFull)
    assert took < 0.5


def test_O06_a_bounded_wait_from_a_worker_of_the_full_pool_is_refused_at_once(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0, "WAIT": 20}}
    took, outcome = timed(lambda: jobs.submits_child.submit().result(5))
    assert isinstance(outcome, QueueFull)
    assert took < 1


def test_the_pools_own_wait_holds_where_the_submit_does_not_say(settings: Any) -> None:
    _, queued = fill(settings, WAIT=20)
    pool = pools["default"]
    threading.Timer(0.1, lambda: pool.cancel(queued.id, Reason.USER)).start()  # no connection to be closed
    took, outcome = timed(lambda: jobs.add.submit(1))
    assert isinstance(outcome, JobHandle)
    assert 0.05 < took < 5
    took, outcome = timed(lambda: jobs.add.using(wait=0).submit(1))
    assert isinstance(outcome, QueueFull)
    assert took < 0.5


def test_a_wait_ends_when_the_pool_begins_to_drain_or_refuses(settings: Any) -> None:
    fill(settings)
    outcomes: list[Any] = []

    def wait() -> None:
        outcomes.append(timed(lambda: jobs.add.using(wait=20).submit(1))[1])

    pool = pools["default"]
    for end, kind in ((lambda: pool.pause(refuse=True), Paused), (lambda: pool.drain(timeout=0), Draining)):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: pool.stats().waiting == 1)
        end()
        thread.join(5)
        assert isinstance(outcomes.pop(), kind)
        pool.resume()
    assert pool.stats().waiting == pool.stats().reserved == 0


def test_no_wait_is_longer_than_the_jobs_own_deadline(settings: Any) -> None:
    fill(settings)
    took, outcome = timed(lambda: jobs.add.using(wait=20, deadline=0.3).submit(1))
    assert isinstance(outcome, WaitTimeout)
    assert took < 2


# Deadlines and deferred starts


@pytest.mark.parametrize("deadline", [0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_deadline_that_has_passed_is_refused_before_the_arguments_are_read(deadline: Any) -> None:
    with pytest.raises(Expired) as caught:
        jobs.echo.using(deadline=deadline).submit(object())
    assert (caught.value.code, caught.value.retry_after) == ("expired", None)
    assert jobs.echo.using(deadline=deadline).try_submit(object()) is None
    assert pools["default"].stats().rejected == {"expired": 2}


def test_a_deadline_holds_for_the_queue_and_for_the_run(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    running = jobs.obedient.using(deadline=0.3).submit()
    assert jobs.started.acquire(timeout=10)
    waiting = jobs.hold.using(deadline=timedelta(seconds=0.1)).submit()
    until(lambda: waiting.state.terminal)
    until(lambda: running.state.terminal)
    join()
    rows = {row.pk: row for row in Job.objects.all()}
    assert (rows[waiting.id].state, rows[waiting.id].reason) == ("cancelled", "start_deadline")
    assert (rows[running.id].state, rows[running.id].reason) == ("failed", "timeout")
    assert rows[running.id].deadline is not None


@job(takes_context=True, timeout=60)
def tells_its_deadline(context: Any) -> float:
    assert context.deadline is not None
    return float(context.remaining())


def test_a_job_knows_the_nearer_of_its_time_out_and_its_deadline() -> None:
    assert 50 < tells_its_deadline.submit().result(10) <= 60
    assert tells_its_deadline.using(deadline=5).submit().result(10) <= 5
    assert 50 < tells_its_deadline.using(deadline=500).submit().result(10) <= 60


def test_a_deferred_job_holds_a_place_and_starts_when_it_is_due(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    began = time.monotonic()
    handle = jobs.add.using(run_after=0.3).submit(1)
    stats = pools["default"].stats()
    assert (stats.queued, stats.delayed) == (1, 1)
    with pytest.raises(QueueFull):
        jobs.add.submit(2)
    assert Job.objects.get().run_after is not None
    assert handle.result(10) == 1
    assert 0.25 < time.monotonic() - began < 3


def test_a_moment_is_an_aware_datetime_or_seconds_and_not_too_far_ahead(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"MAX_DEFER": 60}}
    now = datetime.now(UTC)
    assert jobs.add.using(run_after=now - timedelta(days=1)).submit(1).result(10) == 1
    with pytest.raises(ConfigurationError, match="MAX_DEFER"):
        jobs.add.using(run_after=now + timedelta(minutes=2)).submit(1)
    with pytest.raises(ConfigurationError, match="could never start"):
        jobs.add.using(run_after=30, deadline=20).submit(1)
    with pytest.raises(ConfigurationError, match="aware"):
        jobs.add.using(deadline=datetime(2030, 1, 1))
    assert pools["default"].stats().reserved == pools["default"].stats().queued == 0
    deferred = jobs.add.using(run_after=50).submit(1)
    assert deferred.cancel() == "cancelled"


# Shares, shedding, owners


def test_a_low_priority_is_refused_past_its_share_of_the_queue(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 10, "PRIORITY_SHARES": {-1: 0.5}}}
    for _ in range(6):
        jobs.hold.submit()
    with pytest.raises(Shed) as caught:
        jobs.add.using(priority=-1).submit(object())
    assert caught.value.code == "shed"
    jobs.hold.submit()


def test_a_newcomer_evicts_the_newest_of_the_lowest_priority_and_everybody_is_told(settings: Any) -> None:
    handles = fill(settings, SHED=True, QUEUE_SIZE=2)
    kept = jobs.add.submit(1)
    assert [handle.state for handle in handles] == [JobState.RUNNING, JobState.QUEUED, JobState.CANCELLED]
    with pytest.raises(QueueFull):
        jobs.hold.using(priority=-50).submit()
    jobs.gate.set()
    assert kept.result(10) == 1
    join()
    evicted = Job.objects.get(pk=handles[2].id)
    assert (evicted.state, evicted.reason, evicted.attempt) == ("cancelled", "shed", 0)


def test_an_owner_has_no_more_jobs_than_its_limit(settings: Any, other_user: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "OWNER_LIMIT": 2}}
    mine = jobs.hold.using(owner="key-of-ann")
    first, _ = mine.submit(), mine.submit()
    with pytest.raises(OwnerLimit) as caught:
        mine.submit()
    assert "key-of-ann" not in str(caught.value)
    jobs.hold.using(owner=other_user).submit()
    jobs.hold.submit()
    mine.using(owner_limit=3).submit()
    jobs.gate.set()
    first.result(10)
    join()
    assert mine.submit().result(10) is None


# The CPU lane


@job(lane="cpu", timeout=60)
def computes() -> int:
    jobs.log.append("begin")
    time.sleep(0.05)
    jobs.log.append("end")
    return 1


def test_jobs_of_the_cpu_lane_run_one_at_a_time_in_all_pools(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 4}, "other": {"WORKERS": 4}}
    handles = [computes.using(pool=pool).submit() for pool in ("default", "other") for _ in range(3)]
    assert jobs.add.submit(1).result(10) == 1  # the others are not held up
    assert [handle.result(10) for handle in handles] == [1] * 6
    assert jobs.log == ["begin", "end"] * 6


# pools["default"]


def test_a_paused_pool_starts_nothing_and_admits_until_it_is_full(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1}}
    pool = pools["default"]
    pool.pause()
    handles = [jobs.add.submit(n) for n in range(2)]
    with pytest.raises(QueueFull):
        jobs.add.submit(2)
    time.sleep(0.05)
    assert [handle.state for handle in handles] == [JobState.QUEUED] * 2
    assert pool.stats().paused
    pool.resume()
    assert [handle.result(10) for handle in handles] == [0, 1]
    pool.pause(refuse=True)
    with pytest.raises(Paused):
        jobs.add.submit(object())
    pool.resume()
    assert jobs.add.submit(1).result(10) == 1


def test_a_pool_is_resized_while_it_works(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 4}}
    pool = pools["default"]
    for _ in range(3):
        jobs.hold.submit()
    until(lambda: pool.stats().running == 1)
    pool.resize(workers=3)
    until(lambda: pool.stats().running == 3)
    pool.resize(workers=1)
    assert pool.stats().running == 3
    jobs.gate.set()
    assert pool.join(10)
    assert jobs.add.submit(1).result(10) == 1
    with pytest.raises(ConfigurationError, match="workers"):
        pool.resize(workers=0)


def test_a_drain_that_no_exit_follows_gives_nothing_up_and_reports(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    pool = pools["default"]
    handles = [jobs.hold.submit(), jobs.add.submit(1)]
    report = pool.drain(timeout=0.1)
    assert (report.hurried, report.counts()) == (True, {})
    with pytest.raises(Draining):
        jobs.add.submit(2)
    jobs.gate.set()
    report = pool.drain(timeout=10)
    assert (report.hurried, [handle.state for handle in handles]) == (False, [JobState.SUCCEEDED] * 2)
    pool.resume()
    assert jobs.add.submit(2).result(10) == 2
