"""Admission, order, cancellation and time-outs of one pool, stepped by hand."""

import itertools
import threading

import pytest

from django_boundedpool.engine.errors import BytesFull, Draining, JobInterrupted, QueueFull
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench, nothing

pytestmark = pytest.mark.fast


# Admission


def test_exactly_w_plus_q_jobs_are_accepted():
    bench = Bench(workers=2, queue_size=3)
    for _ in range(5):
        bench.submit()
    for _ in range(2):
        bench.take()
    with pytest.raises(QueueFull, match="3 of 3 places"):
        bench.submit()
    assert bench.pool.stats().rejected == {"queue_full": 1}


def test_a_queue_of_zero_takes_only_what_a_worker_can_start():
    bench = Bench(workers=1, queue_size=0)
    bench.submit()
    with pytest.raises(QueueFull):
        bench.submit()
    bench.run_next()
    bench.submit()


def test_a_reservation_holds_its_place_until_it_is_withdrawn():
    bench = Bench(workers=1, queue_size=0)
    record = bench.record()
    bench.pool.reserve(record)
    with pytest.raises(QueueFull):
        bench.submit()
    bench.pool.withdraw(record)
    bench.pool.withdraw(record)
    bench.submit()
    assert bench.pool.stats().accepted == 1


def test_a_withdrawn_reservation_cannot_be_accepted_any_more():
    bench = Bench()
    record = bench.record()
    bench.pool.reserve(record)
    bench.pool.withdraw(record)
    bench.pool.accept(record)
    assert record.state is JobState.REJECTED
    assert bench.take() is None


def test_bytes_bound_beside_the_count_and_are_given_back():
    bench = Bench(queue_bytes=20, max_payload_bytes=20)
    first = bench.submit(payload="x" * 15)
    with pytest.raises(BytesFull, match="15 bytes"):
        bench.submit(payload="x" * 6)
    bench.pool.cancel(first.id, Reason.USER)
    bench.submit(payload="x" * 20)
    bench.run_next()
    assert bench.pool.stats().queue_bytes == 0


def test_a_draining_pool_refuses_and_gives_no_retry_after():
    bench = Bench()
    bench.pool.draining = True
    with pytest.raises(Draining) as caught:
        bench.submit()
    assert (caught.value.code, caught.value.retry_after) == ("draining", None)


def test_retry_after_is_unknown_before_a_rate_is():
    bench = Bench(workers=1, queue_size=0)
    bench.submit()
    with pytest.raises(QueueFull) as caught:
        bench.submit()
    assert caught.value.retry_after is None


def test_retry_after_is_queue_over_rate_within_1_and_120_seconds():
    bench = Bench(workers=1, queue_size=10)
    for _ in range(10):
        bench.submit()
    for _ in range(6):
        bench.run_next()
        bench.advance(2)
    assert 4 / 0.5 * 0.8 <= bench.pool.retry_after() <= 4 / 0.4 * 1.25
    bench.advance(59)
    assert bench.pool.retry_after() is None


def test_the_refusal_names_the_numbers_and_never_the_arguments():
    bench = Bench(workers=1, queue_size=1)
    for _ in range(2):
        bench.submit(payload='[["hush"],{}]')
    with pytest.raises(QueueFull) as caught:
        bench.submit(payload='[["hush"],{}]')
    assert "hush" not in str(caught.value)
    assert caught.value.pool == "default"


# Order


def test_O03_urgent_first_then_the_order_of_submit():
    bench = Bench(workers=1)
    equals = [bench.submit() for _ in range(5)]
    urgent = bench.submit(priority=10)
    assert [bench.run_next() for _ in range(6)] == [urgent, *equals]


def test_O03_a_low_priority_starts_once_it_has_aged():
    bench = Bench(workers=1, ageing=30)
    low = bench.submit(priority=-1)
    starts = []
    for _ in range(40):
        bench.submit()
        bench.advance(1)
        starts.append(bench.run_next())
    assert starts.index(low) == pytest.approx(30, abs=2)


def test_without_ageing_priority_counts_for_nothing():
    bench = Bench(ageing=0)
    first = bench.submit(priority=-100)
    bench.advance(1)
    bench.submit(priority=100)
    assert bench.run_next() is first


def test_the_oldest_age_counts_eligible_jobs_only():
    bench = Bench()
    assert bench.pool.oldest_age() == 0
    bench.submit()
    bench.advance(3)
    bench.submit()
    assert bench.pool.oldest_age() == 3
    bench.run_next()
    assert bench.pool.oldest_age() == 0


# Cancellation


def test_X06_cancelling_a_queued_job_frees_its_place_at_once_and_it_never_runs():
    bench = Bench(workers=1, queue_size=2)
    running = bench.submit()
    assert bench.take() is running
    queued = [bench.submit(), bench.submit()]
    for record in queued:
        assert bench.pool.cancel(record.id, Reason.USER) == "cancelled"
        assert bench.last(record)["state"] == "cancelled"
    assert bench.pool.stats().queued == 0
    again = [bench.submit(), bench.submit()]
    assert bench.take() is None  # the worker is still busy
    bench.pool.attempt_returned(running, None)
    assert [bench.run_next(), bench.run_next(), bench.run_next()] == [*again, None]
    assert all(record.attempt == 0 for record in queued)


def test_X06_a_thousand_cancellations_leave_nothing_behind():
    bench = Bench(workers=1, queue_size=1)
    for _ in range(1000):
        bench.pool.cancel(bench.submit(start_deadline=60.0).id, Reason.USER)
    assert len(bench.pool._live) == len(bench.pool._queue) == len(list(bench.pool._queue)) == 0
    assert not any(bench.pool._queue._lanes.values())
    assert len(bench.timer) == 0
    assert len(bench.timer._heap) < 200
    assert bench.pool.stats().finished == {"cancelled": 1000}


def test_X01_a_running_job_stays_running_until_its_code_ends():
    bench = Bench()
    record = bench.submit()
    bench.take()
    assert bench.pool.cancel(record.id, Reason.OPERATOR) == "requested"
    assert record.state is JobState.RUNNING
    assert bench.pool.stats().running == 1
    assert record.token.reason is Reason.OPERATOR
    bench.pool.attempt_raised(record, JobInterrupted(Reason.OPERATOR))
    assert (record.state, record.reason, record.error) == (JobState.CANCELLED, Reason.OPERATOR, None)


def test_code_that_returns_after_a_cancel_request_has_succeeded():
    bench = Bench()
    record = bench.submit()
    bench.take()
    bench.pool.cancel(record.id, Reason.USER)
    bench.pool.attempt_returned(record, 5)
    assert (record.state, record.result) == (JobState.SUCCEEDED, 5)


def test_code_that_raises_after_a_cancel_request_is_cancelled_with_its_error_and_not_retried():
    from django_boundedpool.engine.retry import Retry

    bench = Bench()
    record = bench.submit(retry=Retry())
    bench.take()
    bench.pool.cancel(record.id, Reason.USER)
    bench.pool.attempt_raised(record, OSError("closed"))
    assert record.state is JobState.CANCELLED
    assert record.error["message"] == "closed"


def test_the_first_reason_to_stop_is_kept():
    bench = Bench()
    record = bench.submit()
    bench.take()
    for reason in (Reason.USER, Reason.OPERATOR):
        assert bench.pool.cancel(record.id, reason) == "requested"
    assert record.cancel_requested is Reason.USER
    assert sum(event.kind is Kind.CANCEL_REQUESTED for event in bench.events) == 1


def test_a_job_cancelled_before_its_transaction_commits_never_runs():
    bench = Bench()
    record = bench.record()
    bench.pool.reserve(record)
    assert bench.pool.cancel(record.id, Reason.USER) == "requested"
    bench.pool.accept(record)
    assert record.state is JobState.CANCELLED
    assert bench.take() is None


def test_an_unknown_job_is_not_cancelled():
    bench = Bench()
    record = bench.submit()
    bench.run_next()
    assert bench.pool.cancel(record.id, Reason.USER) is None


# Time-outs


def test_a_timed_out_job_is_overdue_and_its_late_result_is_discarded():
    bench = Bench()
    record = bench.submit(timeout=5.0)
    bench.take()
    bench.advance(5)
    assert (record.state, record.overdue, record.token.reason) == (JobState.RUNNING, True, Reason.TIMEOUT)
    assert bench.pool.stats().running == 1
    bench.pool.attempt_returned(record, "late")
    assert (record.state, record.reason, record.result) == (JobState.FAILED, Reason.TIMEOUT, None)


def test_a_job_that_ends_in_time_leaves_no_timer():
    """All running jobs share one timer entry; it may outlive them once, and then finds nothing to do."""
    bench = Bench(workers=5)
    records = [bench.submit(timeout=5.0, start_deadline=5.0) for _ in range(5)]
    for _ in records:
        bench.run_next()
    assert [record.timer for record in records] == [None] * 5
    assert len(bench.timer) <= 1
    bench.advance(5)
    assert len(bench.timer) == 0
    assert {record.state for record in records} == {JobState.SUCCEEDED}


def test_the_time_out_of_one_attempt_does_not_hit_the_next():
    from django_boundedpool.engine.retry import Retry

    bench = Bench()
    record = bench.submit(timeout=5.0, retry=Retry(base=0.1, cap=0.1))
    bench.take()
    bench.advance(4)
    bench.pool.attempt_raised(record, ValueError())
    bench.advance(0.2)
    assert bench.take() is record
    bench.advance(3)
    assert not record.token.fired


def test_a_job_past_its_time_out_is_stuck():
    bench = Bench(stuck_after=60)
    bench.submit(timeout=5.0)
    bench.submit()
    bench.take(), bench.take()
    bench.advance(6)
    assert bench.pool.stats().stuck == 1
    bench.advance(60)
    assert bench.pool.stats().stuck == 2


def test_a_job_that_waits_beyond_its_start_deadline_is_cancelled():
    bench = Bench(workers=1)
    bench.submit()
    bench.take()
    late = bench.submit(start_deadline=3.0)
    bench.advance(3)
    assert (late.state, late.reason) == (JobState.CANCELLED, Reason.START_DEADLINE)


def test_a_start_deadline_does_not_count_once_the_job_has_started():
    from django_boundedpool.engine.retry import Retry

    bench = Bench()
    record = bench.submit(start_deadline=3.0, retry=Retry(base=10, cap=10))
    bench.take()
    bench.pool.attempt_raised(record, ValueError())
    bench.advance(4)
    assert record.state is JobState.QUEUED


# Results


def test_S04_a_result_that_is_no_json_value_fails_the_job_without_another_attempt():
    from django_boundedpool.engine.retry import Retry

    bench = Bench()
    record = bench.submit(object, retry=Retry())
    bench.run_next()
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, Reason.BAD_RESULT, 1)
    assert "the result is a object" in record.error["message"]


def test_S07_a_result_beyond_the_limit_fails_the_job_and_is_not_kept():
    bench = Bench(max_result_bytes=10)
    record = bench.submit(lambda: "é" * 5)
    bench.run_next()
    assert (record.state, record.reason) == (JobState.FAILED, Reason.BAD_RESULT)
    assert "12 bytes" in record.error["message"]
    assert bench.last(record)["result"] is None


def test_a_result_that_is_not_stored_may_be_anything():
    bench = Bench()
    record = bench.submit(object, store_result=False)
    bench.run_next()
    assert (record.state, record.result) == (JobState.SUCCEEDED, None)


def test_a_result_that_breaks_when_it_is_read_fails_its_job():
    class Broken(dict):
        def items(self):
            raise RuntimeError("broken")

    bench = Bench()
    record = bench.submit(Broken)
    bench.run_next()
    assert record.state is JobState.FAILED


# Records


def test_versions_only_grow_and_the_end_is_saved_once():
    bench = Bench()
    record = bench.submit()
    bench.run_next()
    versions = [snapshot.version for snapshot in bench.saved]
    assert versions == sorted(set(versions))
    assert [snapshot.values["state"] for snapshot in bench.saved] == ["running", "succeeded"]
    ended = bench.last(record)
    assert ended["live"] is False
    assert (ended["retain_until"] - ended["finished_at"]).days == 3


def test_a_kind_of_job_may_say_how_long_its_rows_are_kept():
    bench = Bench()
    record = bench.submit(retention=60.0)
    bench.run_next()
    ended = bench.last(record)
    assert (ended["retain_until"] - ended["finished_at"]).total_seconds() == 60


def test_progress_is_stored_a_few_times_a_second_and_in_full_at_the_end():
    bench = Bench()
    record = bench.submit()
    bench.take()
    for step in range(100):
        bench.pool.report_progress(record, step / 100, f"{step}")
        bench.clock.advance(0.01)
    stored = sum(snapshot.values["progress"] is not None for snapshot in bench.saved)
    assert 3 <= stored <= 6
    bench.pool.attempt_returned(record, None)
    assert bench.last(record)["progress"] == 0.99


@pytest.mark.parametrize("method", ["attempt_returned", "attempt_raised"])
def test_the_end_of_an_attempt_that_was_given_up_changes_nothing(method):
    bench = Bench()
    record = bench.submit()
    bench.take()
    bench.pool.give_up()
    getattr(bench.pool, method)(record, ValueError("late"))
    assert (record.state, record.reason) == (JobState.ABANDONED, Reason.DRAIN_DEADLINE)
    assert bench.pool.stats().finished == {"abandoned": 1}


def test_events_tell_each_move_once_with_the_same_fields():
    bench = Bench()
    record = bench.submit()
    bench.advance(2)
    bench.run_next()
    kinds = [event.kind for event in bench.events]
    assert kinds == [Kind.JOB_ACCEPTED, Kind.JOB_STARTED, Kind.JOB_FINISHED]
    assert {event.job_id for event in bench.events} == {record.id}
    assert bench.events[1].waited == 2


def test_a_listener_that_fails_harms_no_job(caplog):
    bench = Bench()

    def broken(events):
        raise RuntimeError("broken listener")

    bench.events_hub.subscribe(broken)
    record = bench.submit()
    bench.run_next()
    assert record.state is JobState.SUCCEEDED
    assert "broken listener" in caplog.text


def test_a_second_terminal_state_is_impossible():
    from django_boundedpool.engine.states import IllegalMove

    bench = Bench()
    record = bench.submit()
    bench.run_next()
    for state in JobState:
        with pytest.raises(IllegalMove):
            record.move(state)


def test_every_order_of_cancel_and_end_gives_one_terminal_state():
    """Both orders of each pair of calls that may race. Without the state check of `attempt_returned` it fails."""
    for first, second in itertools.permutations(["cancel", "return", "raise", "give_up", "timeout"], 2):
        bench = Bench()
        record = bench.submit(timeout=1.0)
        bench.take()
        steps = {
            "cancel": lambda r=record, b=bench: b.pool.cancel(r.id, Reason.USER),
            "return": lambda r=record, b=bench: b.pool.attempt_returned(r, 1),
            "raise": lambda r=record, b=bench: b.pool.attempt_raised(r, ValueError()),
            "give_up": lambda b=bench: b.pool.give_up(),
            "timeout": lambda b=bench: b.advance(1),
        }
        steps[first]()
        steps[second]()
        steps["return"]()
        assert record.state.terminal
        assert sum(bench.pool.stats().finished.values()) == 1
        assert sum(event.kind is Kind.JOB_FINISHED for event in bench.events) == 1


def test_no_job_starts_while_the_process_may_count_as_lost():
    bench = Bench(workers=1)
    record = bench.submit()
    bench.pool.confirm_alive(bench.clock.monotonic() + 5)
    bench.advance(5)
    assert bench.take() is None
    assert record.state is JobState.QUEUED
    bench.pool.confirm_alive(bench.clock.monotonic() + 5)
    assert bench.take() is record


@pytest.mark.parametrize("ends", ["returns", "raises", "cancelled"])
def test_a_job_without_a_row_is_kept_before_its_pool_forgets_it(ends):
    """Else a poll at that moment would find it nowhere."""
    bench = Bench(threaded=True, workers=1)
    seen = []
    bench.pool._saves_live, bench.pool._picture = False, lambda record: record
    bench.pool._save = lambda record: seen.append((record.state.terminal, bench.pool.find(record.id) is record))
    gate = threading.Event()
    if ends == "cancelled":
        bench.admit(gate.wait)
        record = bench.admit()
        assert bench.pool.cancel(record.id, Reason.USER) == "cancelled"
        gate.set()
    else:
        bench.admit(nothing if ends == "returns" else raise_it)
    assert bench.pool.wait_empty(10)
    assert seen == [(True, True)] * (2 if ends == "cancelled" else 1)
    bench.close()


def raise_it():
    raise ValueError("failed")
