"""Who gets a place, who is refused first and with what, and who has to go for whom.

Tried by hand, each makes a test here fail: removing the bound, the share or the owner check of `_objection_locked` and
`_full_for`, the line that gives an owner's count back, the state check of `_start_deadline_passed`, the removal of
`_due`, `not record.attempt` in `expendable`, the look at the line before an eviction.
"""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_boundedpool.engine.admission import MOST_EVICTED
from django_boundedpool.engine.clock import ManualClock
from django_boundedpool.engine.errors import (
    BytesFull,
    ConfigurationError,
    Draining,
    Expired,
    JobInterrupted,
    OwnerLimit,
    Paused,
    QueueFull,
    Rejected,
    Shed,
)
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench, until

pytestmark = pytest.mark.fast

DOORS = pytest.mark.parametrize("door", ["submit", "admit"])


def refusal(bench, door="submit", **spec):
    """The code with which a job is refused, or None."""
    try:
        getattr(bench, door)(**spec)
    except Rejected as rejected:
        return rejected.code
    return None


def fill(bench, door="submit", limit=1000, **spec):
    """How many more jobs get in."""
    for count in range(limit):
        if refusal(bench, door, **spec) is not None:
            return count
    raise AssertionError("there is no bound")


def fail():
    raise ValueError("no")


# Order of refusals


@DOORS
def test_refusals_come_in_a_fixed_order(door):
    """Everything is wrong with the job; one thing after another is put right."""
    bench = Bench(workers=1, queue_size=3, queue_bytes=40, max_payload_bytes=40, owner_limit=1,
                  priority_shares={-1: 0.5})  # fmt: skip
    jobs = [bench.submit(owner="ann", payload="x" * 10), *(bench.submit(payload="x" * 10) for _ in range(3))]
    job = {"owner": "ann", "payload": "x" * 25, "priority": -1, "deadline": 0.0}
    bench.pool.draining = True
    bench.pool.pause(refuse=True)
    assert refusal(bench, door, **job) == "draining"
    bench.pool.draining = False
    assert refusal(bench, door, **job) == "paused"
    bench.pool.resume()
    assert refusal(bench, door, **job) == "expired"
    del job["deadline"]
    assert refusal(bench, door, **job) == "owner_limit"
    job["owner"] = "bob"
    assert refusal(bench, door, **job) == "queue_full"
    bench.pool.cancel(jobs.pop().id, Reason.USER)
    assert refusal(bench, door, **job) == "shed"
    job["priority"] = 0
    assert refusal(bench, door, **job) == "bytes_full"
    bench.pool.cancel(jobs.pop().id, Reason.USER)
    bench.pool.cancel(jobs.pop().id, Reason.USER)
    assert refusal(bench, door, **job) is None
    codes = ["draining", "paused", "expired", "owner_limit", "queue_full", "shed", "bytes_full"]
    assert bench.pool.stats().rejected == dict.fromkeys(codes, 1)
    assert [event.code for event in bench.events if event.kind is Kind.JOB_REJECTED] == codes


@DOORS
def test_a_refused_job_holds_nothing(door):
    bench = Bench(workers=1, queue_size=0, owner_limit=5)
    bench.submit(owner="ann")
    before = bench.pool.stats()
    record = bench.record(owner="ann", payload="x" * 99)
    with pytest.raises(QueueFull):
        (bench.pool.reserve if door == "submit" else bench.pool.admit)(record)
    after = bench.pool.stats()
    assert (after.queued, after.reserved, after.queue_bytes) == (before.queued, before.reserved, before.queue_bytes)
    assert bench.pool._owners == {"ann": 1}
    assert record.state is JobState.SUBMITTED
    assert bench.pool.withdraw(record) is False
    bench.pool.accept(record)
    assert record.state is JobState.SUBMITTED
    assert bench.pool.stats().accepted == 1


@DOORS
def test_exactly_as_many_bytes_as_allowed_get_in(door):
    bench = Bench(queue_bytes=20, max_payload_bytes=20)
    assert refusal(bench, door, payload="x" * 12) is None
    assert refusal(bench, door, payload="x" * 9) == "bytes_full"
    assert refusal(bench, door, payload="x" * 8) is None


# Looking before the arguments are read


@pytest.mark.parametrize(
    ("shut", "kind"), [("drain", Draining), ("pause", Paused), ("full", QueueFull), ("share", Shed)]
)
def test_a_job_is_turned_away_before_its_arguments_are_read_and_counted_once(shut, kind):
    bench = Bench(workers=1, queue_size=2, priority_shares={-1: 0.5})
    spec = bench.record(priority=-1).spec
    assert bench.pool.turned_away(spec) is None
    bench.pool.check_open(spec)
    if shut == "drain":
        bench.pool.begin_drain(None)
    elif shut == "pause":
        bench.pool.pause(refuse=True)
    else:
        for _ in range(3 if shut == "full" else 2):
            bench.submit()
    before = bench.pool.stats().rejected.get(kind.code, 0)
    seen = len(bench.events)
    assert bench.pool.turned_away(spec) is kind
    with pytest.raises(kind):
        bench.pool.check_open(spec)
    assert bench.pool.stats().rejected[kind.code] == before + 2
    assert [(event.kind, event.code, event.job_name) for event in bench.events[seen:]] == [
        (Kind.JOB_REJECTED, kind.code, "tests.job")
    ] * 2


def test_a_full_pool_turns_nobody_away_who_would_wait_or_may_evict():
    for config, may_wait in (({}, True), ({"shed": True}, False)):
        bench = Bench(workers=1, queue_size=0, **config)
        bench.submit()
        assert bench.pool.turned_away(bench.record().spec, may_wait=may_wait) is None
        assert bench.pool.stats().rejected == {}


def test_who_would_wait_is_turned_away_where_waiting_cannot_help():
    bench = Bench()
    bench.pool.pause(refuse=True)
    assert bench.pool.turned_away(bench.record().spec, may_wait=True) is Paused
    bench.pool.draining = True
    assert bench.pool.turned_away(bench.record().spec, may_wait=True) is Draining


def test_looking_takes_no_lock_while_there_is_room():
    bench = Bench()
    with bench.pool._lock:
        assert bench.pool.turned_away(bench.record().spec) is None
        bench.pool.check_open(bench.record().spec)


# Shares


@DOORS
@pytest.mark.parametrize(("priority", "limit"), [(100, 12), (0, 12), (-1, 10), (-9, 10), (-10, 7), (-100, 7)])
def test_a_priority_gets_w_and_its_share_of_q(door, priority, limit):
    bench = Bench(workers=2, queue_size=10, priority_shares={-1: 0.8, -10: 0.5})
    assert fill(bench, door, priority=priority) == limit
    assert refusal(bench, door, priority=priority) == ("queue_full" if limit == 12 else "shed")
    assert fill(bench, door, priority=0) == 12 - limit


def test_the_smallest_share_that_applies_counts_even_if_a_lower_priority_has_a_larger_one():
    bench = Bench(workers=1, queue_size=10, priority_shares={-1: 0.3, -10: 0.9})
    assert fill(bench, priority=-10) == 4


def test_a_share_is_of_whole_places_and_rounded_down():
    assert fill(Bench(workers=1, queue_size=7, priority_shares={0: 0.5})) == 4


def test_a_share_of_nothing_leaves_what_a_worker_can_start_at_once():
    assert fill(Bench(workers=3, queue_size=7, priority_shares={0: 0.0})) == 3


def test_a_whole_share_is_no_limit_of_its_own():
    bench = Bench(workers=1, queue_size=2, priority_shares={0: 1.0})
    assert fill(bench) == 3
    assert refusal(bench) == "queue_full"


def test_a_share_counts_running_reserved_and_deferred_jobs():
    bench = Bench(workers=1, queue_size=4, priority_shares={-1: 0.5})
    bench.submit()
    assert bench.take() is not None
    bench.pool.reserve(bench.record())
    bench.submit(run_after=60.0)
    assert refusal(bench, priority=-1) == "shed"
    assert refusal(bench, priority=0) is None


@given(
    shares=st.dictionaries(st.integers(-100, 100), st.floats(0, 1), max_size=4),
    priority=st.integers(-100, 100),
    workers=st.integers(1, 4),
    queue=st.integers(0, 12),
)
def test_the_limit_of_a_priority_is_what_the_formula_says(shares, priority, workers, queue):
    share = min((part for highest, part in shares.items() if priority <= highest), default=1.0)
    limit = workers + int(share * queue)
    for door in ("submit", "admit"):
        bench = Bench(workers=workers, queue_size=queue, priority_shares=shares)
        assert fill(bench, door, priority=priority) == limit


# Shed


def shedding(**config):
    bench = Bench(**{"workers": 1, "queue_size": 2, "shed": True, **config})
    running = bench.submit(priority=-100)
    assert bench.take() is running
    return bench


def ends(records):
    return [(record.state.value, record.reason.value) for record in records]


@DOORS
def test_the_newest_job_of_the_lowest_priority_goes_for_a_more_important_one(door):
    bench = shedding(queue_size=3)
    old, new = bench.submit(priority=-5), bench.submit(priority=-5)
    middle = bench.submit(priority=-1)
    told = bench.pool.done_event(new)
    assert refusal(bench, door, priority=1) is None
    assert ends([old, new, middle]) == [("queued", ""), ("cancelled", "shed"), ("queued", "")]
    assert told.is_set()
    assert bench.last(new)["reason"] == "shed"
    assert [e.reason for e in bench.events if e.kind is Kind.JOB_FINISHED and e.job_id == new.id] == [Reason.SHED]
    assert refusal(bench, door, priority=1) is None
    assert refusal(bench, door, priority=1) is None
    assert ends([old, middle]) == [("cancelled", "shed")] * 2
    assert refusal(bench, door, priority=1) == "queue_full"
    stats = bench.pool.stats()
    assert (stats.queued, stats.finished, stats.rejected) == (3, {"cancelled": 3}, {"queue_full": 1})
    assert new.attempt == 0


@DOORS
def test_a_newcomer_never_evicts_its_equal_nor_its_better(door):
    bench = shedding()
    jobs = [bench.submit(priority=0), bench.submit(priority=1)]
    assert refusal(bench, door, priority=0) == "queue_full"
    assert refusal(bench, door, priority=-1) == "queue_full"
    assert ends(jobs) == [("queued", "")] * 2


def test_without_shed_nobody_goes():
    bench = Bench(workers=1, queue_size=0)
    low = bench.submit(priority=-100)
    assert refusal(bench, priority=100) == "queue_full"
    assert low.state is JobState.QUEUED


def test_a_running_or_reserved_job_is_not_evicted():
    bench = shedding(queue_size=1)
    bench.pool.reserve(bench.record(priority=-100))
    assert refusal(bench, priority=100) == "queue_full"


@pytest.mark.parametrize("due", [False, True], ids=["while it waits for its moment", "while it waits for a worker"])
def test_a_job_that_has_started_once_is_spared(due):
    bench = Bench(workers=1, queue_size=1, shed=True)
    again = bench.submit(fail, priority=-5, retry=Retry(base=1, cap=1))
    assert bench.run_next() is again
    assert again.state is JobState.QUEUED
    bench.submit(priority=-1)
    if due:
        bench.advance(1)
    assert refusal(bench, priority=5) is None  # evicts the other one, although its priority is higher
    assert refusal(bench, priority=5) == "queue_full"
    assert again.state is JobState.QUEUED


def test_a_deferred_job_may_be_evicted_too():
    bench = shedding()
    later, queued = bench.submit(priority=-5, run_after=60.0), bench.submit(priority=-4)
    bench.submit(priority=0)
    assert ends([later, queued]) == [("cancelled", "shed"), ("queued", "")]
    bench.advance(60)
    assert (later.attempt, len(bench.pool._deferred), later.timer) == (0, 0, None)


def test_queued_and_deferred_jobs_of_one_priority_are_evicted_newest_first():
    bench = shedding(queue_size=3)
    jobs = []
    for after in (None, 60.0, None):
        jobs.append(bench.submit(priority=-5, run_after=after))
        bench.advance(1)
    order = []
    for _ in jobs:
        bench.submit()
        order += [job for job in jobs if job.state is JobState.CANCELLED and job not in order]
    assert order == jobs[::-1]


@DOORS
def test_as_many_go_as_the_bytes_need_and_no_more(door):
    bench = shedding(queue_size=10, queue_bytes=108, max_payload_bytes=100)
    low = [bench.submit(priority=-1, payload="x" * 30) for _ in range(3)]
    assert refusal(bench, door, payload="x" * 50) is None
    assert ends(low) == [("queued", ""), ("cancelled", "shed"), ("cancelled", "shed")]
    assert bench.pool.stats().queue_bytes == 7 + 30 + 50


@DOORS
def test_nobody_goes_in_vain(door):
    bench = shedding(queue_size=10, queue_bytes=107, max_payload_bytes=100)
    equal = bench.submit(payload="x" * 30)
    low = [bench.submit(priority=-1, payload="x" * 30) for _ in range(2)]
    assert refusal(bench, door, payload="x" * 71) == "bytes_full"
    assert ends([equal, *low]) == [("queued", "")] * 3
    assert refusal(bench, door, payload="x" * 70) is None
    assert ends([equal, *low]) == [("queued", ""), *[("cancelled", "shed")] * 2]


@pytest.mark.parametrize("size", [MOST_EVICTED, MOST_EVICTED + 1])
def test_at_most_a_hundred_go_for_one(size):
    bench = shedding(queue_size=200, queue_bytes=157, max_payload_bytes=157)
    low = [bench.submit(priority=-1, payload="x") for _ in range(150)]
    assert refusal(bench, payload="x" * size) == (None if size == MOST_EVICTED else "bytes_full")
    gone = [job for job in low if job.state is JobState.CANCELLED]
    assert gone == (low[50:] if size == MOST_EVICTED else [])


def test_a_job_past_its_priority_share_is_shed_itself_and_evicts_nobody():
    bench = Bench(workers=1, queue_size=4, shed=True, priority_shares={-1: 0.5})
    low = [bench.submit(priority=-5) for _ in range(3)]
    assert refusal(bench, priority=-1) == "shed"
    assert ends(low) == [("queued", "")] * 3


def test_an_eviction_lets_no_newcomer_overtake_who_waits_in_line():
    """First come, first served within a priority: what becomes evictable while somebody waits is his."""
    bench = shedding(queue_size=1)
    reserved = bench.record(priority=-5)
    bench.pool.reserve(reserved)
    waiter = bench.pool.line_up(bench.record(), lambda: None)
    bench.pool.accept(reserved)
    assert refusal(bench) == "queue_full" or waiter.served


def test_a_small_newcomer_evicts_nobody_while_a_place_is_free_and_a_big_one_waits_for_bytes():
    bench = shedding(queue_size=10, queue_bytes=107, max_payload_bytes=100)
    bench.submit(payload="x" * 60)
    low = bench.submit(priority=-5, payload="x" * 5)
    waiter = bench.pool.line_up(bench.record(payload="x" * 90), lambda: None)
    assert waiter is not None
    assert refusal(bench, payload="x" * 5) == "queue_full"
    assert low.state is JobState.QUEUED


# Owner limit


@DOORS
def test_an_owner_gets_what_its_limit_says_and_others_are_not_concerned(door):
    bench = Bench(workers=1, queue_size=50, owner_limit=3)
    assert fill(bench, door, owner="ann") == 3
    assert fill(bench, door, owner="bob") == 3
    assert fill(bench, door) == 51 - 6
    with pytest.raises(OwnerLimit, match="holds 3 jobs"):
        bench.submit(owner="ann")


def test_the_limit_of_a_kind_of_job_comes_before_that_of_the_pool():
    bench = Bench(owner_limit=3)
    assert fill(bench, owner="ann", owner_limit=2) == 2
    assert fill(bench, owner="ann") == 1
    assert fill(bench, owner="ann", owner_limit=5) == 2
    assert fill(Bench(workers=1, queue_size=50), owner="ann", owner_limit=1) == 1


def test_an_owners_running_queued_deferred_retried_and_reserved_jobs_count():
    bench = Bench(workers=2, owner_limit=5)
    bench.submit(fail, owner="ann", retry=Retry(base=60, cap=60))
    bench.run_next()
    bench.submit(owner="ann")
    bench.take()
    bench.submit(owner="ann")
    bench.submit(owner="ann", run_after=60.0)
    bench.pool.reserve(bench.record(owner="ann"))
    assert refusal(bench, owner="ann") == "owner_limit"


def start(bench, record):
    assert bench.take() is record


WAYS_OUT = {
    "withdrawn": lambda bench, record: bench.pool.withdraw(record),
    "accepted into a drain": lambda bench, record: (bench.pool.give_up(), bench.pool.accept(record)),
    "cancelled": lambda bench, record: (bench.pool.accept(record), bench.pool.cancel(record.id, Reason.USER)),
    "cancelled before": lambda bench, record: (bench.pool.cancel(record.id, Reason.USER), bench.pool.accept(record)),
    "start deadline": lambda bench, record: (bench.pool.accept(record), bench.advance(5)),
    "forfeited": lambda bench, record: (bench.pool.accept(record), bench.pool.forfeit(uuid7())),
    "given up": lambda bench, record: (bench.pool.accept(record), bench.pool.give_up()),
    "shed": lambda bench, record: (bench.pool.accept(record), bench.submit(priority=1), bench.submit(priority=1)),
    "succeeded": lambda bench, record: (bench.pool.accept(record), bench.run_next()),
    "failed": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.attempt_raised(record, ValueError())
    ),
    "broken": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.attempt_broke(record)
    ),
    "timed out": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.advance(3), bench.pool.attempt_returned(record, 1)
    ),
    "bad result": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.attempt_returned(record, object())
    ),
    "interrupted": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.cancel(record.id, Reason.USER),
        bench.pool.attempt_raised(record, JobInterrupted(Reason.USER)),
    ),
    "given up while running": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.give_up(), bench.pool.attempt_returned(record, 1)
    ),
    "forfeited while running": lambda bench, record: (
        bench.pool.accept(record), start(bench, record), bench.pool.forfeit(uuid7()),
        bench.pool.attempt_raised(record, ValueError()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_OUT)
def test_every_way_out_gives_an_owner_its_place_back(way):
    bench = Bench(workers=1, queue_size=1, shed=True, owner_limit=1)
    record = bench.record(owner="ann", start_deadline=5.0, timeout=3.0, payload="x" * 9)
    bench.pool.reserve(record)
    assert refusal(bench, owner="ann") == "owner_limit"
    WAYS_OUT[way](bench, record)
    assert record.state.terminal
    assert bench.pool._owners == {}
    assert "ann" not in bench.pool._owners
    assert record.key not in bench.pool._live
    assert bench.pool.stats().queue_bytes == sum(job.payload_bytes for job in bench.pool._live.values())
    if not bench.pool.draining and bench.pool._starting:
        bench.submit(owner="ann", priority=2)


# Deadline


@DOORS
@pytest.mark.parametrize("deadline", [0.0, -5.0])
def test_a_job_whose_deadline_is_reached_is_refused(door, deadline):
    bench = Bench()
    with pytest.raises(Expired) as caught:
        getattr(bench, door)(deadline=deadline)
    assert caught.value.retry_after is None
    assert refusal(bench, door, deadline=0.001) is None


def test_a_deadline_that_passes_in_the_queue_cancels_the_job_at_that_moment():
    bench = Bench(workers=1)
    record = bench.submit(deadline=5.0)
    bench.advance(4.999)
    assert record.state is JobState.QUEUED
    bench.advance(0.001)
    assert ends([record]) == [("cancelled", "start_deadline")]
    assert bench.take() is None


@pytest.mark.parametrize(("deadline", "start_deadline"), [(5.0, 9.0), (9.0, 5.0), (5.0, 5.0)])
def test_the_smaller_of_deadline_and_start_deadline_ends_the_wait(deadline, start_deadline):
    bench = Bench()
    record = bench.submit(deadline=deadline, start_deadline=start_deadline)
    bench.advance(4.9)
    assert record.state is JobState.QUEUED
    bench.advance(0.1)
    assert ends([record]) == [("cancelled", "start_deadline")]


@pytest.mark.parametrize(
    ("timeout", "deadline", "text"),
    [(None, 5.0, "its deadline"), (9.0, 5.0, "its deadline"), (5.0, 9.0, "its time-out of 5 s"), (5.0, None, "of 5 s")],
)
def test_the_smaller_of_time_out_and_deadline_stops_the_run(timeout, deadline, text):
    bench = Bench()
    record = bench.submit(timeout=timeout, deadline=deadline)
    bench.take()
    bench.advance(4.9)
    assert not record.token.fired
    bench.advance(0.1)
    assert record.token.reason is Reason.TIMEOUT
    assert (record.state, record.overdue) == (JobState.RUNNING, True)
    bench.pool.attempt_returned(record, "late")
    assert (*ends([record])[0], record.result) == ("failed", "timeout", None)
    assert text in record.error["message"]


def test_the_deadline_counts_through_queue_and_run_together():
    bench = Bench()
    record = bench.submit(deadline=5.0, timeout=4.0)
    bench.advance(3)
    bench.take()
    bench.advance(2)
    assert record.token.reason is Reason.TIMEOUT


@pytest.mark.parametrize(("delay", "again"), [(2.999, True), (3.0, False), (60.0, False)])
def test_a_retry_that_cannot_start_before_the_deadline_is_not_waited_for(delay, again):
    bench = Bench()
    policy = Retry(max_attempts=5, classify=lambda error: delay)
    record = bench.submit(fail, deadline=5.0, retry=policy)
    bench.advance(2)
    bench.run_next()
    if again:
        assert record.state is JobState.QUEUED
        return
    assert ends([record]) == [("failed", "timeout")]
    assert (record.error["message"], record.attempt) == ("no", 1)


def test_a_retry_whose_deadline_passes_while_no_worker_is_free_never_starts():
    """Its last error is kept; nothing of it may run after its deadline."""
    bench = Bench(workers=1)
    record = bench.submit(fail, deadline=5.0, retry=Retry(max_attempts=5, classify=lambda error: 1.0))
    bench.run_next()
    other = bench.submit()
    assert bench.take() is other
    bench.advance(1)
    assert record.state is JobState.QUEUED
    bench.advance(4)
    assert ends([record]) == [("failed", "timeout")]
    assert record.error["message"] == "no"
    bench.pool.attempt_returned(other, None)
    assert bench.run_next() is None
    assert record.attempt == 1


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_a_reservation_that_commits_after_its_deadline_is_never_started(late):
    bench = Bench()
    record = bench.record(deadline=5.0)
    bench.pool.reserve(record)
    bench.advance(5 + late)
    assert record.state is JobState.SUBMITTED
    bench.pool.accept(record)
    assert bench.take() is None
    assert ends([record]) == [("cancelled", "start_deadline")]
    assert bench.pool.stats().accepted == 1


# Deferred starts


@DOORS
def test_a_deferred_job_holds_its_place_and_starts_no_sooner_than_it_may(door):
    bench = Bench(workers=1, queue_size=1)
    record = getattr(bench, door)(run_after=60.0)
    stats = bench.pool.stats()
    assert (stats.queued, stats.delayed, stats.oldest_age, stats.accepted) == (1, 1, 0.0, 1)
    bench.advance(59.9)
    assert bench.take() is None
    assert bench.pool.oldest_age() == 0
    assert fill(bench, door) == 1
    bench.advance(0.1)
    stats = bench.pool.stats()
    assert (stats.queued, stats.delayed) == (2, 0)
    bench.advance(5)
    other = bench.run_next()
    assert other is not record
    assert bench.pool.oldest_age() == 5
    assert bench.run_next() is record


@pytest.mark.parametrize("parked", [False, True], ids=["by a new thread", "by a parked one"])
def test_a_deferred_job_is_started_when_its_moment_comes(parked):
    bench = Bench(threaded=True, clock=ManualClock(), workers=1)
    if parked:
        assert bench.pool.done_event(bench.submit()).wait(10)
        until(lambda: bench.pool._idle)
    record = bench.submit(run_after=60.0)
    assert record.state is JobState.QUEUED
    bench.advance(60)
    assert bench.pool.done_event(record).wait(10)
    bench.close()


def test_a_moment_that_has_passed_defers_nothing():
    bench = Bench()
    assert bench.submit(run_after=0.0) is bench.take()
    assert bench.pool.stats().delayed == 0


def test_a_deferred_job_queues_up_when_its_moment_comes():
    bench = Bench(ageing=0)
    late, early = bench.submit(run_after=20.0), bench.submit(run_after=10.0)
    first = bench.submit()
    bench.advance(10)
    between = bench.submit()
    bench.advance(10)
    last = bench.submit()
    assert [bench.run_next() for _ in range(5)] == [first, early, between, late, last]


def test_a_deferred_job_can_be_cancelled_and_never_starts():
    bench = Bench(workers=1, queue_size=0)
    record = bench.submit(run_after=60.0)
    assert bench.pool.cancel(record.id, Reason.USER) == "cancelled"
    assert fill(bench) == 1
    bench.advance(60)
    assert bench.run_next() is not record
    assert (record.attempt, len(bench.timer)) == (0, 1)  # that of the running jobs


def test_a_deferred_jobs_start_deadline_counts_from_its_moment():
    bench = Bench()
    record = bench.submit(run_after=60.0, start_deadline=5.0)
    bench.advance(60)
    bench.advance(4)
    assert record.state is JobState.QUEUED
    bench.advance(1)
    assert ends([record]) == [("cancelled", "start_deadline")]


def test_a_deferred_job_whose_deadline_comes_before_its_moment_gives_its_place_back_then():
    bench = Bench(workers=1, queue_size=0)
    record = bench.submit(run_after=60.0, deadline=5.0)
    bench.advance(5)
    assert ends([record]) == [("cancelled", "start_deadline")]
    assert fill(bench) == 1


@pytest.mark.parametrize("when", ["before the drain", "in the drain"])
def test_a_drain_gives_up_what_is_not_due_before_its_horizon(when):
    bench = Bench()
    records = [bench.record(run_after=after) for after in (9.0, 10.0, 11.0)]
    for record in records:
        bench.pool.reserve(record)
    steps = [
        lambda: bench.pool.begin_drain(bench.clock.monotonic() + 10),
        lambda: list(map(bench.pool.accept, records)),
    ]
    for step in steps if when == "in the drain" else steps[::-1]:
        step()
    assert ends(records) == [("queued", ""), ("queued", ""), ("abandoned", "drain_deadline")]
    bench.advance(10)
    assert [bench.run_next(), bench.run_next()] == records[:2]


@pytest.mark.parametrize(
    ("policy", "end"),
    [("run", ("queued", "")), ("cancel", ("cancelled", "shutdown")), ("abandon", ("abandoned", "drain_deadline"))],
)
def test_a_reservation_that_commits_in_a_drain_ends_as_what_no_worker_has_started(policy, end):
    bench = Bench(on_shutdown=policy)
    record = bench.record()
    bench.pool.reserve(record)
    bench.pool.begin_drain(None)
    bench.pool.accept(record)
    assert ends([record]) == [end]


def test_a_drain_without_a_deadline_waits_for_deferred_jobs():
    bench = Bench()
    record = bench.submit(run_after=3000.0)
    bench.pool.begin_drain(None)
    bench.advance(3000)
    assert bench.run_next() is record


# Pause


@DOORS
def test_a_paused_pool_starts_nothing_and_admits_until_it_is_full(door):
    bench = Bench(workers=1, queue_size=2)
    running = bench.submit()
    bench.take()
    bench.pool.pause()
    assert bench.pool.stats().paused
    assert fill(bench, door) == 2
    bench.pool.attempt_returned(running, None)
    assert bench.take() is None
    assert fill(bench, door) == 1
    bench.pool.resume()
    assert not bench.pool.stats().paused
    assert [bench.run_next() is not None for _ in range(4)] == [True, True, True, False]


def test_time_outs_and_deadlines_go_on_while_a_pool_is_paused():
    bench = Bench(workers=1)
    running = bench.submit(timeout=5.0)
    bench.take()
    queued = bench.submit(start_deadline=5.0)
    bench.pool.pause()
    bench.advance(5)
    assert running.token.reason is Reason.TIMEOUT
    assert ends([queued]) == [("cancelled", "start_deadline")]


def test_a_retry_that_falls_due_while_the_pool_is_paused_waits_for_its_resume():
    bench = Bench()
    record = bench.submit(fail, retry=Retry(base=1, cap=1))
    bench.run_next()
    bench.pool.pause()
    bench.advance(1)
    assert (bench.take(), record.state) == (None, JobState.QUEUED)
    bench.pool.resume()
    assert bench.run_next() is record


@DOORS
def test_a_pool_that_was_told_to_refuse_does_until_it_is_resumed(door):
    bench = Bench()
    record = bench.submit()
    bench.pool.pause(refuse=True)
    assert refusal(bench, door) == "paused"
    bench.pool.pause()
    assert refusal(bench, door) == "paused"
    assert bench.take() is None
    bench.pool.resume()
    assert refusal(bench, door) is None
    assert bench.run_next() is record


def test_a_reservation_is_accepted_although_the_pool_refuses_meanwhile():
    bench = Bench()
    record = bench.record()
    bench.pool.reserve(record)
    bench.pool.pause(refuse=True)
    bench.pool.accept(record)
    assert record.state is JobState.QUEUED


def test_neither_pause_nor_resume_opens_a_process_that_stops():
    bench = Bench()
    bench.pool.begin_drain(None)
    bench.pool.pause(refuse=True)
    bench.pool.resume()
    assert refusal(bench) == "draining"


def test_workers_that_a_pause_stopped_go_on_with_its_resume():
    bench = Bench(threaded=True, workers=2)
    bench.pool.pause()
    records = [bench.submit() for _ in range(6)]
    assert {record.state for record in records} == {JobState.QUEUED}
    bench.pool.resume()
    assert all(bench.pool.done_event(record).wait(10) for record in records)
    bench.close()


# Resize


@pytest.mark.parametrize("workers", [0, -1, 1001, True, 1.5, "2", None])
def test_an_impossible_number_of_workers_is_refused_and_changes_nothing(workers):
    bench = Bench(workers=2)
    with pytest.raises(ConfigurationError, match="whole number from 1 to 1000"):
        bench.pool.resize(workers=workers)
    assert bench.pool.workers == 2


@DOORS
def test_more_workers_start_and_admit_more(door):
    bench = Bench(workers=1, queue_size=2)
    assert fill(bench, door) == 3
    assert [bench.take() is not None for _ in range(2)] == [True, False]
    bench.pool.resize(workers=3)
    assert bench.pool.stats().workers == 3
    assert [bench.take() is not None for _ in range(3)] == [True, True, False]
    assert fill(bench, door) == 2


@DOORS
def test_fewer_workers_let_running_jobs_end_and_keep_the_queue(door):
    bench = Bench(workers=3, queue_size=2)
    assert fill(bench, door) == 5
    running = [bench.take() for _ in range(3)]
    queued = [record for record in bench.pool._queue]
    bench.pool.resize(workers=1)
    assert {record.state for record in running} == {JobState.RUNNING}
    assert {record.state for record in queued} == {JobState.QUEUED}
    for record in running[:2]:
        assert refusal(bench, door) == "queue_full"
        assert bench.take() is None
        bench.pool.attempt_returned(record, None)
    assert refusal(bench, door) == "queue_full"  # one runs, two wait
    bench.pool.attempt_returned(running[2], None)
    assert fill(bench, door) == 1
    assert [bench.run_next() for _ in range(2)] == queued


def test_shares_follow_the_number_of_workers():
    bench = Bench(workers=1, queue_size=2, priority_shares={0: 0.0})
    assert fill(bench) == 1
    bench.pool.resize(workers=3)
    assert fill(bench) == 2
    bench.pool.resize(workers=2)
    assert refusal(bench) == "shed"


def test_threads_come_and_go_with_the_number_of_workers():
    bench = Bench(threaded=True, workers=1, queue_size=20)
    gate, lock, running = threading.Event(), threading.Lock(), []
    all_run = threading.Event()

    def job():
        with lock:
            running.append(1)
            if len(running) == 3:
                all_run.set()
        gate.wait(10)

    records = [bench.submit(job) for _ in range(3)]
    bench.pool.resize(workers=3)
    assert all_run.wait(10)
    workers = list(bench.pool._workers)
    assert len(workers) == 3
    bench.pool.resize(workers=1)
    gate.set()
    for record in records:
        assert bench.pool.done_event(record).wait(10)
    assert bench.pool.done_event(bench.submit()).wait(10)
    until(lambda: bench.pool.stats().threads == 1)
    for worker in set(workers) - bench.pool._workers:
        worker.join(10)
    assert sum(worker.is_alive() for worker in workers) == 1
    bench.close()


def test_idle_threads_leave_at_once_and_the_last_one_works_on():
    bench = Bench(threaded=True, workers=4)
    barrier = threading.Barrier(4)
    records = [bench.submit(lambda: barrier.wait(10) and None) for _ in range(4)]
    for record in records:
        assert bench.pool.done_event(record).wait(10)
    until(lambda: len(bench.pool._idle) == 4)
    workers = set(bench.pool._workers)
    bench.pool.resize(workers=1)
    for worker in workers - bench.pool._workers:
        worker.join(10)
    assert sum(worker.is_alive() for worker in workers) == bench.pool.stats().threads == 1
    assert all(bench.pool.done_event(bench.submit()).wait(10) for _ in range(5))
    bench.close()


# A drain that the process survives


def test_a_drain_that_the_process_survives_refuses_waits_and_can_be_undone():
    bench = Bench(threaded=True, workers=2)
    records = [bench.submit() for _ in range(10)]
    report = bench.pool.drain(10)
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert not report.hurried
    assert report.flushed
    assert set(report.counts()) <= {"succeeded"}
    assert bench.pool.stats().draining
    assert refusal(bench) == "draining"
    bench.pool.resume()
    assert not bench.pool.stats().draining
    assert bench.pool.done_event(bench.submit()).wait(10)
    bench.close()


def test_a_drain_that_runs_out_of_time_interrupts_and_gives_up_nothing():
    bench = Bench(workers=1)
    running, queued, later = bench.submit(), bench.submit(), bench.submit(run_after=60.0)
    bench.take()
    report = bench.pool.drain(0)
    assert report.hurried
    assert report.counts() == {}
    assert not running.token.fired
    assert {record.state for record in (queued, later)} == {JobState.QUEUED}
    bench.pool.attempt_returned(running, None)
    assert bench.run_next() is queued
    bench.pool.resume()
    assert refusal(bench) is None


def test_a_drain_reports_what_ended_meanwhile_and_the_next_one_begins_anew():
    bench = Bench(threaded=True, workers=1)
    gate = threading.Event()
    before = bench.submit()
    assert bench.pool.done_event(before).wait(10)
    record = bench.submit(lambda: gate.wait(10) and None)
    reports = []
    drainer = threading.Thread(target=lambda: reports.append(bench.pool.drain(10)))
    drainer.start()
    until(lambda: bench.pool.stats().draining)
    gate.set()
    drainer.join(10)
    assert reports[0].outcomes == {"succeeded": [record.id]}
    assert bench.pool.drain(0).outcomes == {}
    bench.close()


def test_a_pause_beside_a_drain_does_not_change_what_a_refusal_says():
    bench = Bench()
    bench.pool.drain(0)
    bench.pool.pause(refuse=True)
    assert refusal(bench) == "draining"


# When to come back


@pytest.mark.parametrize("config", [{}, {"owner_limit": 1}])
def test_a_refusal_for_want_of_room_says_when_to_come_back(config):
    bench = Bench(workers=1, queue_size=1, **config)
    for _ in range(3):
        bench.submit()
        bench.run_next()
        bench.advance(3)
    bench.submit(owner="ann")
    bench.submit(owner="" if config else "bob")
    with pytest.raises(OwnerLimit if config else QueueFull) as caught:
        bench.submit(owner="ann")
    assert 2 / (2 / 9) * 0.8 <= caught.value.retry_after <= 2 / (2 / 9) * 1.2


def test_a_rate_that_would_mean_hours_or_no_time_is_held_between_1_and_120_seconds():
    slow = Bench(workers=1, queue_size=1000)
    for _ in range(1001):
        slow.submit()
    for _ in range(2):
        slow.run_next()
        slow.advance(29)
    assert slow.pool.retry_after() == 120
    fast = Bench(workers=1)
    for _ in range(50):
        fast.submit()
        fast.run_next()
        fast.advance(0.001)
    assert fast.pool.retry_after() == 1


def test_a_draining_pool_never_says_when_to_come_back():
    bench = Bench(workers=1, queue_size=0)
    for _ in range(3):
        bench.submit()
        bench.run_next()
        bench.advance(1)
    assert bench.pool.retry_after() is not None
    bench.pool.draining = True
    assert bench.pool.retry_after() is None
    with pytest.raises(Draining) as caught:
        bench.submit()
    assert caught.value.retry_after is None


def test_two_answers_differ_so_that_callers_do_not_come_back_together():
    bench = Bench(workers=1, queue_size=100)
    for _ in range(50):
        bench.submit()
    for _ in range(5):
        bench.run_next()
        bench.advance(1)
    assert len({bench.pool.retry_after() for _ in range(20)}) == 20


def test_a_refusal_names_pool_and_numbers():
    bench = Bench(workers=2, queue_size=3, queue_bytes=100, max_payload_bytes=100, priority_shares={-1: 0.5})
    for _ in range(3):
        bench.submit(payload="x" * 20)
    bench.take()
    with pytest.raises(
        BytesFull, match="'default' holds 60 bytes of arguments; 41 more would pass its QUEUE_BYTES of 1"
    ):
        bench.submit(payload="x" * 41)
    with pytest.raises(Shed, match="no place left for priority -3: 2 of 3 places"):
        bench.submit(priority=-3)
    for _ in range(2):
        bench.submit()
    bench.pool.line_up(bench.record(), lambda: None)
    with pytest.raises(QueueFull, match=r"1 of 2 workers busy, 4 of 3 places taken\. 1 wait for a place\."):
        bench.submit()


@pytest.mark.parametrize(("live", "running", "waiting"), [(0, 0, 1), (1, 1, 1), (3, 1, 2), (5, 0, 5)])
def test_when_to_come_back_is_who_waits_over_the_rate_times_a_fifth_more_or_less(live, running, waiting):
    bench = Bench(workers=1)
    for _ in range(3):
        bench.submit()
        bench.run_next()
        bench.advance(10)
    for _ in range(live):
        bench.submit()
    for _ in range(running):
        bench.take()
    asked = []
    bench.pool._rng.uniform = lambda low, high: asked.append((low, high)) or high
    assert bench.pool.retry_after() == pytest.approx(waiting / (2 / 30) * 1.2)
    assert asked == [(0.8, 1.2)]


def test_a_roll_back_tells_who_watches_that_a_place_is_free():
    bench = Bench()
    record = bench.record()
    bench.pool.reserve(record)
    assert bench.events == []
    bench.pool.withdraw(record)
    assert [event.kind for event in bench.events] == [Kind.POOL_CHANGED]


def test_a_reservation_that_commits_after_everything_was_given_up_is_given_up_too():
    bench = Bench()
    record = bench.record()
    bench.pool.reserve(record)
    bench.pool.give_up()
    bench.pool.accept(record)
    assert ends([record]) == [("abandoned", "drain_deadline")]


def test_a_deferred_job_with_time_enough_starts_at_its_moment_and_not_at_its_deadline():
    bench = Bench()
    record = bench.submit(run_after=10.0, deadline=60.0)
    bench.advance(10)
    assert bench.run_next() is record


def test_a_reservation_that_commits_while_drain_waits_is_run_all_the_same():
    """`drain()` interrupts nothing: only a process that stops applies ON_SHUTDOWN."""
    bench = Bench(workers=1, queue_size=3, on_shutdown="cancel")
    record = bench.record()
    bench.pool.reserve(record)
    waiting = threading.Thread(target=bench.pool.drain, args=(60,))
    waiting.start()
    until(lambda: bench.pool._drained is not None)
    bench.pool.accept(record)
    assert record.state is JobState.QUEUED
    bench.run_next()
    waiting.join(10)
    assert not waiting.is_alive()
    assert record.state is JobState.SUCCEEDED


@pytest.mark.parametrize("policy", ["run", "abandon"])
def test_a_drain_that_was_refused_on_an_event_loop_leaves_nothing_behind(policy):
    bench = Bench(workers=1, on_shutdown=policy)
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(drained(bench))
    bench.pool.resume()
    assert bench.submit().state is JobState.QUEUED
    assert bench.pool._drained is None


async def drained(bench):
    bench.pool.drain(0)


def test_a_job_that_waits_for_its_retry_has_begun_and_is_not_cancelled_as_queued():
    bench = Bench(workers=1)
    record = bench.submit(retry=Retry(max_attempts=3))
    bench.take()
    bench.pool.attempt_raised(record, ValueError("once"))
    assert record.state is JobState.QUEUED
    assert not bench.pool.cancel_if_queued(record.id, Reason.DISCONNECT)
    assert record.state is JobState.QUEUED


def test_a_deferred_reservation_that_commits_at_its_deadline_is_over_at_once():
    """Found by the nightly machine: it held its place until the timer came by."""
    bench = Bench(workers=1)
    record = bench.record(run_after=1.0, deadline=0.5)
    bench.pool.reserve(record)
    bench.clock.advance(0.5)
    bench.pool.accept(record)
    assert (record.state, record.reason) == (JobState.CANCELLED, Reason.START_DEADLINE)
