"""Workers that do not come back: stuck ones, ghosts, dead ones, and those that never started.

Tried by hand, each makes a test here fail: counting ghosts against W in `_take_locked`, `_ghosts` in `_look` and
`stats`, the grace and the interval of the reports, `worker_died` that replaces nobody or ends no job.
"""

import logging
import re
import threading

import pytest

from django_boundedpool.engine import worker
from django_boundedpool.engine.attempts import SPAWN_RETRY, STUCK_GRACE, STUCK_REPORT_EVERY, Attempts
from django_boundedpool.engine.clock import ManualClock
from django_boundedpool.engine.errors import QueueFull
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.places import release
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.engine.worker import Worker

from .builders import Bench, until


class Blocked:
    """A job that blocks until it is let go."""

    def __init__(self):
        self.started, self._gate = threading.Event(), threading.Event()

    def __call__(self):
        self.started.set()
        self._gate.wait(30)
        return "late"

    def let_go(self):
        self._gate.set()


@pytest.fixture
def make():
    benches = []

    def build(**config):
        """A pool with real threads and a clock that is moved by hand."""
        benches.append(Bench(threaded=True, clock=ManualClock(), **config))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


@pytest.fixture
def blocked():
    job = Blocked()
    yield job
    job.let_go()


def over(bench, record):
    assert bench.pool.done_event(record).wait(10), record
    return record


def reports(bench):
    """Seconds after which a worker was reported."""
    return [event.ran for event in bench.events if event.kind is Kind.WORKER_STUCK]


# Stuck


def test_a_worker_past_its_time_out_is_reported_after_the_grace_and_every_half_minute(make, blocked, caplog):
    bench = make(workers=1)
    record = bench.submit(blocked, timeout=5.0)
    assert blocked.started.wait(10)
    assert bench.pool.stats().stuck == 0
    bench.advance(5)
    assert (record.overdue, record.token.reason, reports(bench)) == (True, Reason.TIMEOUT, [])
    assert bench.pool.stats().stuck == 0
    bench.advance(0.5)
    assert bench.pool.stats().stuck == 1
    assert reports(bench) == []
    bench.advance(STUCK_GRACE - 0.5)
    assert reports(bench) == [6.0]
    bench.advance(STUCK_REPORT_EVERY - 0.1)
    assert len(reports(bench)) == 1
    for _ in range(3):
        bench.advance(0.1 if len(reports(bench)) == 1 else STUCK_REPORT_EVERY)
    assert reports(bench) == pytest.approx([6.0, 36.0, 66.0, 96.0])
    lines = [entry for entry in caplog.records if "its worker is lost to other jobs" in entry.getMessage()]
    assert [entry.levelno for entry in lines] == [logging.WARNING] * 4
    assert len([event for event in bench.events if event.kind is Kind.WORKER_STUCK and event.job_id == record.id]) == 4
    assert bench.pool.stats().running == 1
    blocked.let_go()
    over(bench, record)
    assert bench.pool.stats().stuck == 0
    bench.advance(100)
    assert len(reports(bench)) == 4


def test_the_report_shows_where_the_code_is(make, blocked, caplog):
    def stands_here():
        blocked()

    bench = make(workers=1, stuck_after=10)
    record = bench.submit(stands_here)
    assert blocked.started.wait(10)
    bench.advance(10)
    text = caplog.text
    assert str(record.id) in text
    assert "tests.job" in text
    assert "has run for 10 s" in text
    assert re.search(r'File ".*test_stuck\.py", line \d+, in stands_here', text)
    assert "_gate.wait(30)" in text


def test_a_worker_without_a_time_out_is_stuck_after_a_while(make, blocked):
    bench = make(workers=1, stuck_after=60)
    record = bench.submit(blocked)
    assert blocked.started.wait(10)
    bench.advance(59.9)
    assert (bench.pool.stats().stuck, reports(bench)) == (0, [])
    bench.advance(0.2)
    assert (bench.pool.stats().stuck, len(reports(bench))) == (1, 1)
    assert not record.token.fired
    assert not record.overdue


def test_a_deadline_makes_stuck_as_a_time_out_does():
    bench = Bench(workers=1)
    bench.submit(deadline=5.0)
    bench.take()
    bench.advance(5)
    bench.advance(STUCK_GRACE)
    assert (bench.pool.stats().stuck, reports(bench)) == (1, [6.0])


def test_a_short_time_out_is_seen_although_longer_ones_were_armed_before_it():
    bench = Bench(workers=4, stuck_after=300)
    for timeout in (None, 50.0, 20.0):
        bench.submit(timeout=timeout)
        bench.take()
    short = bench.submit(timeout=1.0)
    bench.take()
    assert len(bench.timer) == 1
    bench.advance(1)
    assert short.token.reason is Reason.TIMEOUT
    bench.pool.attempt_returned(short, None)
    bench.advance(19)
    overdue = [record for record in bench.pool._running if record.overdue]
    assert [record.spec.timeout for record in overdue] == [20.0]
    assert len(bench.timer) == 1


def test_a_hundred_running_jobs_share_one_timer_and_each_is_stopped_at_its_own_moment():
    bench = Bench(workers=100)
    records = []
    for number in range(100):
        records.append(bench.submit(timeout=1.0 + (number * 37) % 100))
        bench.take()
    for second in range(1, 101):
        bench.advance(1)
        assert {record.spec.timeout for record in records if record.overdue} == {float(n) for n in range(1, second + 1)}
        assert len(bench.timer) <= 1


def test_a_next_attempt_begins_without_the_reports_of_the_one_before():
    bench = Bench(workers=1)
    record = bench.submit(timeout=5.0, retry=Retry(base=1, cap=1))
    bench.take()
    bench.advance(5)
    bench.advance(1)
    assert len(reports(bench)) == 1
    bench.pool.attempt_returned(record, None)
    assert record.state is JobState.QUEUED
    bench.advance(1)
    bench.take()
    assert (record.overdue, record.token.fired, bench.pool.stats().stuck) == (False, False, 0)
    bench.advance(4.9)
    assert len(reports(bench)) == 1
    bench.advance(0.1)
    assert record.overdue


def test_a_stuck_async_job_is_reported_with_the_stack_of_its_loop(caplog):
    from django_boundedpool.engine.event_loop import EventLoop

    loop = EventLoop()
    bench = Bench(threaded=True, clock=ManualClock(), loop=loop, workers=1, stuck_after=10)
    started, gate = threading.Event(), threading.Event()

    async def blocks_the_loop():
        started.set()
        gate.wait(30)

    record = bench.submit(blocks_the_loop, asynchronous=True)
    assert started.wait(10)
    bench.advance(10)
    assert "in blocks_the_loop" in caplog.text
    gate.set()
    over(bench, record)
    assert loop.stop(10)


# Ghosts


@pytest.mark.parametrize("way", ["give_up", "forfeit"])
def test_a_job_given_up_while_it_runs_occupies_its_worker_until_its_code_ends(make, blocked, way):
    bench = make(workers=1, queue_size=5, stuck_after=60)
    record = bench.submit(blocked)
    assert blocked.started.wait(10)
    bench.pool.forfeit(uuid7()) if way == "forfeit" else bench.pool.give_up()
    assert (record.state, record.token.reason) == (JobState.ABANDONED, Reason.SHUTDOWN)
    stats = bench.pool.stats()
    assert (stats.running, stats.given_up, stats.threads) == (0, 1, 1)
    if way == "forfeit":
        following = bench.submit()
        bench.pool._rouse()
        assert (following.state, bench.pool.stats().threads) == (JobState.QUEUED, 1)
    bench.advance(60.5)
    assert (bench.pool.stats().stuck, len(reports(bench))) == (1, 1)
    blocked.let_go()
    until(lambda: not bench.pool.stats().given_up)
    assert (record.state, record.result) == (JobState.ABANDONED, None)
    assert bench.pool.stats().finished["abandoned"] == 1
    if way == "forfeit":
        assert over(bench, following).state is JobState.SUCCEEDED
    assert bench.pool.stats().stuck == 0


@pytest.mark.parametrize("end", ["attempt_returned", "attempt_raised"])
def test_a_ghost_counts_against_w_and_not_against_the_places(end):
    bench = Bench(workers=2, queue_size=1)
    ghost = bench.submit()
    bench.take()
    bench.pool.forfeit(uuid7())
    running, waits, third = bench.submit(), bench.submit(), bench.submit()
    with pytest.raises(QueueFull):
        bench.submit()
    assert bench.take() is running
    assert bench.take() is None
    getattr(bench.pool, end)(ghost, ValueError())
    assert bench.take() is waits
    assert bench.take() is None
    assert third.state is JobState.QUEUED
    assert bench.pool.stats().given_up == 0


@pytest.mark.parametrize("lane", ["io", "cpu"])
def test_a_ghost_whose_end_cannot_be_concluded_frees_its_worker(lane):
    bench = Bench(workers=1)
    ghost = bench.submit(lane=lane)
    bench.take()
    bench.pool.forfeit(uuid7())
    bench.pool.attempt_broke(ghost)
    assert (ghost.state, bench.pool.stats().given_up) == (JobState.ABANDONED, 0)
    following = bench.submit(lane=lane)
    assert bench.take() is following


def test_a_running_job_that_is_given_up_is_told_by_its_callbacks(make, blocked):
    """Its state is written first, but whoever waits in it must come to know: nobody else will wake it."""
    for way in ("forfeit", "give_up"):
        bench = make(workers=1)
        job, told = Blocked(), threading.Event()
        record = bench.submit(job)
        assert job.started.wait(10)
        record.token.on_fire(told.set)
        bench.pool.forfeit(uuid7()) if way == "forfeit" else bench.pool.give_up()
        heard = told.wait(2)
        job.let_go()
        assert heard, way


def test_a_job_given_up_before_the_worker_it_was_handed_to_wakes_is_never_begun(make):
    """It may be running in another process by then."""
    bench = make(workers=1, queue_size=5)
    over(bench, bench.submit())
    until(lambda: bench.pool._idle)
    (thread,) = bench.pool._workers

    class Late:
        """The parking of the worker, whose wake-up comes late."""

        def __init__(self, parked):
            self.parked, self.calls = parked, 0

        def acquire(self):
            return self.parked.acquire()

        def release(self):
            self.calls += 1

        def locked(self):
            return self.parked.locked()

    parked, runs = thread.parked, []
    thread.parked = Late(parked)
    record = bench.admit(lambda: runs.append(1))
    assert thread.parked.calls == 1
    bench.pool.forfeit(uuid7())
    assert record.state is JobState.ABANDONED
    thread.parked = parked
    parked.release()
    assert over(bench, bench.submit()).state is JobState.SUCCEEDED
    assert runs == []
    assert bench.pool.stats().given_up == 0
    started = [event for event in bench.events if event.kind is Kind.JOB_STARTED and event.job_id == record.id]
    assert all(event.state is JobState.RUNNING for event in started)


# Dead workers


class Death(BaseException):
    pass


def dying(monkeypatch, method, times=1):
    """Have the next calls of a method of the pool by a worker's thread raise."""
    real = getattr(Attempts, method)
    left = iter(range(times))

    def broken(pool, *args, **kwargs):
        if isinstance(threading.current_thread(), Worker) and next(left, None) is not None:
            raise Death
        return real(pool, *args, **kwargs)

    monkeypatch.setattr(Attempts, method, broken)


def test_a_worker_that_dies_between_jobs_is_replaced_and_counted(make, monkeypatch, caplog):
    bench = make(workers=1)
    dying(monkeypatch, "next_job")
    record = over(bench, bench.submit())
    assert record.state is JobState.SUCCEEDED
    stats = bench.pool.stats()
    assert (stats.replaced, stats.threads) == (1, 1)
    until(lambda: any(event.kind is Kind.WORKER_REPLACED for event in bench.events))
    assert [event.kind for event in bench.events].count(Kind.WORKER_REPLACED) == 1
    assert "died; another one takes its place" in caplog.text


def test_a_worker_that_dies_with_a_job_in_its_hands_is_replaced_and_the_job_has_failed(make, monkeypatch):
    bench, real = make(workers=1), worker.execute

    def execute(pool, runner, record, thread):
        if record.spec.name == "tests.fatal":
            raise Death
        return real(pool, runner, record, thread)

    # It contains whatever comes out of a job: only what comes out of itself kills a worker.
    monkeypatch.setattr("django_boundedpool.engine.worker.execute", execute)
    record = over(bench, bench.submit(name="tests.fatal"))
    assert (record.state, record.reason) == (JobState.FAILED, Reason.ERROR)
    assert "could not conclude" in record.error["message"]
    assert over(bench, bench.submit()).state is JobState.SUCCEEDED
    stats = bench.pool.stats()
    assert (stats.replaced, stats.threads, stats.running) == (1, 1, 0)


def test_every_one_of_several_deaths_is_replaced_and_nothing_is_lost(make, monkeypatch):
    bench = make(workers=3, queue_size=50)
    dying(monkeypatch, "next_job", times=5)
    records = [bench.submit() for _ in range(50)]
    for record in records:
        assert over(bench, record).state is JobState.SUCCEEDED
    while bench.pool.stats().replaced < 5:  # whoever looks for the next job
        assert over(bench, bench.submit()).state is JobState.SUCCEEDED
    assert bench.pool.stats().threads <= 3


@pytest.mark.parametrize("method", ["attempt_returned", "attempt_raised"])
def test_an_attempt_that_cannot_be_concluded_still_ends_and_its_worker_lives_on(make, monkeypatch, method):
    def fail():
        raise ValueError

    bench = make(workers=1)
    real = getattr(type(bench.pool), method)
    left = iter([1])

    def broken(pool, *args):
        if next(left, None):
            raise MemoryError
        return real(pool, *args)

    monkeypatch.setattr(type(bench.pool), method, broken)
    record = over(bench, bench.submit(fail if method == "attempt_raised" else lambda: None))
    assert (record.state, record.reason) == (JobState.FAILED, Reason.ERROR)
    assert over(bench, bench.submit()).state is JobState.SUCCEEDED
    assert (bench.pool.stats().replaced, bench.pool.stats().threads) == (0, 1)


def test_a_worker_that_dies_occupied_by_a_ghost_leaves_no_ghost():
    bench = Bench(workers=1)
    thread = Worker(bench.pool, 1)
    bench.submit()
    bench.pool.take(thread)
    bench.pool.forfeit(uuid7())
    assert bench.pool.stats().given_up == 1
    bench.pool.worker_died(thread)
    assert bench.pool.stats().given_up == 0
    following = bench.submit()
    assert bench.take() is following


# Workers that cannot be started


def refusing(monkeypatch, times):
    """Have the system refuse the next threads of workers."""
    real = threading.Thread.start
    left, tries = iter(range(times)), []

    def start(thread):
        if isinstance(thread, Worker):
            tries.append(thread)
            if next(left, None) is not None:
                raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return tries


def test_a_worker_that_cannot_be_started_is_tried_again_after_a_second(make, monkeypatch, caplog):
    bench = make(workers=1)
    tries = refusing(monkeypatch, 2)
    record = bench.submit()
    assert (record.state, len(tries), bench.pool.stats().threads) == (JobState.QUEUED, 1, 0)
    assert "could not start a worker thread" in caplog.text
    bench.advance(SPAWN_RETRY)
    assert (record.state, len(tries)) == (JobState.QUEUED, 2)
    bench.advance(SPAWN_RETRY)
    assert over(bench, record).state is JobState.SUCCEEDED
    assert record.attempt == 1
    assert bench.pool.stats().replaced == 0


def test_a_submit_is_accepted_although_no_thread_can_be_started(make, monkeypatch):
    bench = make(workers=1, queue_size=1)
    refusing(monkeypatch, 10)
    for door in (bench.submit, bench.admit):
        assert door().state is JobState.QUEUED
    with pytest.raises(QueueFull):
        bench.submit()
    bench.pool.give_up()


def test_workers_that_exist_serve_the_queue_where_others_cannot_be_started(make, monkeypatch, blocked):
    bench = make(workers=3, queue_size=10)
    over(bench, bench.submit())
    refusing(monkeypatch, 100)
    first = bench.submit(blocked)
    assert blocked.started.wait(10)
    others = [bench.submit() for _ in range(5)]
    blocked.let_go()
    for record in (first, *others):
        assert over(bench, record).state is JobState.SUCCEEDED
    assert bench.pool.stats().threads == 1


def test_what_follows_a_wait_for_work_is_done_once_though_the_job_handed_over_was_given_up(make):
    """A worker that was handed a job that is given up before it wakes goes on looking; nothing is done twice."""
    bench = make(workers=1)
    bench.submit()
    until(lambda: bench.pool._idle)
    (worker,) = bench.pool._idle
    told = []
    real = bench.pool._apply_safely
    bench.pool._apply_safely = lambda effects: (told.append(id(effects)), real(effects))

    class Parked:
        """Gives the job up between the hand-over and the wake-up."""

        def __init__(self, lock):
            self.lock, self.acquire, self.locked = lock, lock.acquire, lock.locked

        def release(self):
            bench.pool.forfeit(uuid7())
            self.lock.release()

    worker.parked = Parked(worker.parked)
    record = bench.admit()
    assert record.state is JobState.ABANDONED
    until(lambda: bench.pool._idle)
    assert not bench.pool._ghosts
    assert len(told) == len(set(told)) > 0


def test_a_wake_up_too_many_does_not_park_a_worker_twice(make):
    bench = make(workers=2)
    bench.submit()
    until(lambda: bench.pool._idle)
    (worker,) = bench.pool._idle
    release(worker.parked)
    release(worker.parked)
    until(lambda: worker.parked.locked())
    assert bench.pool._idle == [worker]
    assert bench.pool.done_event(bench.submit()).wait(10)
    until(lambda: bench.pool._idle)
    assert len(set(bench.pool._idle)) == len(bench.pool._idle)
