"""Draining: what fits is finished, what does not is given up, and everything is written down."""

import threading
import time

import pytest

from django_boundedpool.engine.drain import drain
from django_boundedpool.engine.errors import Draining
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench, until


@pytest.fixture
def make():
    benches = []

    def build(**config):
        benches.append(Bench(threaded=True, **config))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


def run_drain(bench, *, limited=True, hurry=lambda: False, flush=lambda timeout: True, began=None):
    moment = time.monotonic() if began is None else began
    return drain(
        [bench.pool],
        reason="test",
        began=lambda: moment if limited else None,
        hurry=hurry,
        flush=flush,
    )


def test_work_that_fits_is_finished_and_admission_is_closed(make):
    bench = make(workers=2, drain_timeout=20.0)
    records = [bench.submit() for _ in range(20)]
    report = run_drain(bench)
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert report.flushed
    assert not report.hurried
    with pytest.raises(Draining):
        bench.submit()


def test_what_does_not_fit_is_abandoned_within_the_deadline(make):
    bench = make(workers=1, drain_timeout=1.0)
    gate = threading.Event()
    deaf, waiting = bench.submit(lambda: gate.wait(30) and None), bench.submit()
    began = time.monotonic()
    report = run_drain(bench)
    assert time.monotonic() - began < 2
    assert (deaf.state, deaf.reason) == (JobState.ABANDONED, Reason.DRAIN_DEADLINE)
    assert (waiting.state, waiting.attempt) == (JobState.ABANDONED, 0)
    assert report.counts() == {"abandoned/drain_deadline": 2}
    assert set(report.outcomes["abandoned/drain_deadline"]) == {deaf.id, waiting.id}
    gate.set()


def test_a_running_job_is_asked_to_stop_before_it_is_given_up(make):
    bench = make(workers=1, drain_timeout=1.0)
    records = []
    started = threading.Event()

    def cooperative():
        started.set()
        records[0].token.sleep(30)

    record = bench.record(cooperative)
    records.append(record)
    bench.pool.reserve(record)
    bench.pool.accept(record)
    assert started.wait(10)
    run_drain(bench)
    assert (record.state, record.reason, record.token.reason) == (
        JobState.ABANDONED,
        Reason.DRAIN_DEADLINE,
        Reason.SHUTDOWN,
    )


def test_code_that_returns_after_it_was_asked_to_stop_has_succeeded(make):
    bench = make(workers=1, drain_timeout=5.0, cancel_grace=4.9)
    records, started = [], threading.Event()

    def tidy():
        fired = threading.Event()
        records[0].token.on_fire(fired.set)
        started.set()
        assert fired.wait(30)
        return "saved"

    record = bench.record(tidy)
    records.append(record)
    bench.pool.reserve(record)
    bench.pool.accept(record)
    assert started.wait(10)
    run_drain(bench)
    assert (record.state, record.result) == (JobState.SUCCEEDED, "saved")


def test_a_retry_that_is_not_due_in_time_is_given_up_at_once(make):
    def fail():
        raise RuntimeError

    bench = make(workers=1, drain_timeout=10.0)
    record = bench.submit(fail, retry=Retry(base=3000, cap=3000))
    deadline = time.monotonic() + 10
    while record.state is not JobState.QUEUED or not record.failures:
        assert time.monotonic() < deadline
    began = time.monotonic()
    run_drain(bench)
    assert time.monotonic() - began < 5
    assert (record.state, record.reason) == (JobState.ABANDONED, Reason.DRAIN_DEADLINE)


@pytest.mark.parametrize(
    ("policy", "outcome"), [("cancel", "cancelled/shutdown"), ("abandon", "abandoned/drain_deadline")]
)
def test_the_policy_ends_what_no_worker_has_started(make, policy, outcome):
    bench = make(workers=1, on_shutdown=policy)
    gate, started = threading.Event(), threading.Event()
    running = bench.submit(lambda: (started.set(), gate.wait(30)) and None)
    assert started.wait(10)
    queued = [bench.submit() for _ in range(3)]
    threading.Timer(0.1, gate.set).start()
    report = run_drain(bench)
    assert report.counts() == {outcome: 3, "succeeded": 1}
    assert running.state is JobState.SUCCEEDED
    assert not any(record.attempt for record in queued)


def test_an_open_reservation_is_waited_for_and_then_run(make):
    bench = make(workers=1)
    record = bench.record()
    bench.pool.reserve(record)
    threading.Timer(0.2, bench.pool.accept, [record]).start()
    run_drain(bench)
    assert record.state is JobState.SUCCEEDED


def test_a_reservation_that_commits_after_the_end_is_given_up_and_not_lost(make):
    bench = make(workers=1, drain_timeout=0.5)
    record = bench.record()
    bench.pool.reserve(record)
    run_drain(bench)
    bench.pool.accept(record)
    assert (record.state, record.reason) == (JobState.ABANDONED, Reason.DRAIN_DEADLINE)
    assert bench.last(record)["state"] == "abandoned"


def test_a_drain_without_a_deadline_waits_until_a_signal_gives_it_one(make):
    bench = make(workers=1, drain_timeout=0.5)
    gate = threading.Event()
    record = bench.submit(lambda: gate.wait(30) and None)
    signals = []
    threading.Timer(0.7, lambda: signals.append(time.monotonic())).start()
    report = drain(
        [bench.pool],
        reason="exit",
        began=lambda: signals[0] if signals else None,
        hurry=lambda: False,
        flush=lambda timeout: True,
    )
    assert record.state is JobState.ABANDONED
    assert report.deadline == 0.5
    gate.set()


def test_a_hurried_drain_stops_waiting_and_still_writes(make):
    bench = make(workers=1, drain_timeout=60.0)
    gate, flushed = threading.Event(), []
    record = bench.submit(lambda: gate.wait(30) and None)
    began = time.monotonic()
    report = run_drain(bench, hurry=lambda: True, flush=lambda timeout: flushed.append(timeout) or True)
    assert time.monotonic() - began < 5
    assert report.hurried
    assert flushed
    assert record.state is JobState.ABANDONED
    gate.set()


def test_what_is_raised_while_a_drain_waits_ends_the_waiting_and_not_the_writing(make):
    def interrupted():
        raise KeyboardInterrupt

    bench = make(workers=1, drain_timeout=60.0)
    gate = threading.Event()
    record = bench.submit(lambda: gate.wait(30) and None)
    report = run_drain(bench, hurry=interrupted)
    assert report.hurried
    assert record.state is JobState.ABANDONED
    gate.set()


def test_a_drain_that_cannot_write_says_so(make, caplog):
    bench = make(workers=1)
    bench.submit()
    assert not run_drain(bench, flush=lambda timeout: False).flushed
    assert "not everything could be written" in caplog.text


def test_a_move_that_a_raising_signal_handler_tore_in_two_is_completed(make):
    """As if the exception had come right after a line of `accept`; without the repair the drain would wait for ever."""
    bench = make(workers=1)
    never_queued = bench.record()
    bench.pool.reserve(never_queued)
    del bench.pool._reserved[never_queued]
    never_woken = bench.record()
    bench.pool.reserve(never_woken)
    del bench.pool._reserved[never_woken]
    never_woken.state = JobState.QUEUED
    bench.pool._queue.push(never_woken, bench.clock.monotonic())
    cancelled = bench.record()
    bench.pool.reserve(cancelled)
    del bench.pool._reserved[cancelled]
    cancelled.cancel_requested = Reason.USER
    run_drain(bench, limited=False)
    assert [record.state for record in (never_queued, never_woken, cancelled)] == [
        JobState.SUCCEEDED,
        JobState.SUCCEEDED,
        JobState.CANCELLED,
    ]
    assert not bench.pool._live


def test_a_handing_over_that_a_raising_signal_handler_tore_in_two_is_completed(make, monkeypatch):
    """As if the exception had come before the wake-up of the worker that had been given the job."""
    bench = make(workers=1)
    assert bench.pool.done_event(bench.submit()).wait(10)
    until(lambda: bench.pool._idle)
    (worker,) = bench.pool._workers

    class Torn:
        def release(self):
            raise KeyboardInterrupt

    parked, record = worker.parked, bench.record()
    worker.parked = Torn()
    with pytest.raises(KeyboardInterrupt):
        bench.pool.admit(record)
    worker.parked = parked
    assert not record.state.terminal
    bench.pool.begin_drain(None)
    assert bench.pool.wait_empty(5)
    assert record.state is JobState.SUCCEEDED


def test_L08_fifty_threads_submit_while_the_pool_drains(make):
    bench = make(workers=2, queue_size=5, drain_timeout=5.0)
    outcomes, lock, go = [], threading.Lock(), threading.Event()

    def submit():
        assert go.wait(10)
        try:
            record = bench.submit()
        except Exception as error:
            record = error
        with lock:
            outcomes.append(record)

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    bench.submit()
    go.set()
    run_drain(bench)
    for thread in threads:
        thread.join(10)
    assert len(outcomes) == 50
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            assert type(outcome).__name__ in ("Draining", "QueueFull")
        else:
            assert outcome.state is JobState.SUCCEEDED
    stats = bench.pool.stats()
    assert stats.accepted == sum(stats.finished.values())


@pytest.mark.parametrize("policy", ["run", "cancel"])
def test_what_waits_in_a_paused_pool_is_given_up_by_a_drain_that_nothing_limits(policy):
    bench = Bench(workers=1, queue_size=9, on_shutdown=policy)
    running = bench.submit(retry=Retry(max_attempts=3))
    assert bench.take() is running
    bench.pool.pause()
    waiting, deferred = bench.submit(), bench.submit(run_after=5)
    bench.pool.begin_drain(None)
    assert {waiting.state, deferred.state} == {JobState.CANCELLED if policy == "cancel" else JobState.ABANDONED}
    bench.pool.attempt_raised(running, ValueError("again"))
    assert running.state is JobState.ABANDONED
    assert bench.pool.wait_empty(0)
