"""Who is retried, when, and how often."""

import random
from itertools import pairwise

import pytest

from django_boundedpool.engine.errors import ConfigurationError, JobTimedOut
from django_boundedpool.engine.retry import Retry, RetryBudget, RetryLater
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench

pytestmark = pytest.mark.fast


def fail() -> None:
    raise ValueError("no")


def later() -> None:
    raise RetryLater(after=30)


def run_to_the_end(bench: Bench, record, limit: int = 50) -> int:
    runs = 0
    while not record.state.terminal:
        if bench.run_next() is None:
            bench.advance(1)
        else:
            runs += 1
        limit -= 1
        assert limit, record
    return runs


@pytest.mark.parametrize("most", [1, 2, 3])
def test_R06_code_that_fails_runs_exactly_max_attempts_times(most):
    bench = Bench()
    record = bench.submit(fail, retry=Retry(max_attempts=most, base=0.5, cap=1))
    assert run_to_the_end(bench, record) == most
    assert (record.state, record.reason) == (JobState.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert (record.attempt, record.failures, len(record.attempts)) == (most, most, most)
    assert bench.last(record)["attempt"] == most


@pytest.mark.parametrize("most", [1, 2, 3])
def test_R06_code_that_times_out_runs_exactly_max_attempts_times(most):
    bench = Bench()

    def slow() -> None:
        bench.advance(2)

    record = bench.submit(slow, timeout=1.0, retry=Retry(max_attempts=most, base=0.5, cap=1))
    assert run_to_the_end(bench, record) == most
    assert record.state is JobState.FAILED
    assert record.failures == most
    assert record.error["type"].endswith("JobTimedOut")


def test_R06_delays_stay_between_0_and_the_cap_for_2000_attempts_and_are_spread():
    policy = Retry(max_attempts=1000, base=0.5, cap=30)
    rng = random.Random(1)
    delays = [policy.delay(failures, rng) for failures in range(1, 2001)]
    assert all(0 <= delay <= 30 for delay in delays)
    assert len(set(delays)) == len(delays)
    late = delays[10:]
    assert min(late) < 3
    assert max(late) > 27


def test_R06_the_upper_bound_of_a_delay_doubles_with_each_failure():
    class Highest(random.Random):
        def uniform(self, a, b):
            return b

    policy = Retry(base=0.5, cap=30)
    bounds = [policy.delay(failures, Highest()) for failures in range(1, 9)]
    assert bounds == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_retry_holds_a_place_and_no_worker():
    bench = Bench(workers=1, queue_size=0)
    record = bench.submit(fail, retry=Retry(base=10, cap=10))
    bench.run_next()
    stats = bench.pool.stats()
    assert record.state is JobState.QUEUED
    assert (stats.running, stats.queued, stats.delayed) == (0, 1, 1)
    assert bench.last(record)["run_after"] is not None


def test_an_error_outside_the_policy_is_not_retried():
    bench = Bench()
    record = bench.submit(fail, retry=Retry(on=(ConnectionError,)))
    bench.run_next()
    assert (record.state, record.reason, record.attempt) == (JobState.FAILED, Reason.ERROR, 1)


def test_never_wins_over_on():
    assert Retry(on=(Exception,), never=(ValueError,)).verdict(ValueError()) == "fail"


def test_a_time_out_counts_as_a_TimeoutError():
    assert Retry(on=(TimeoutError,)).verdict(JobTimedOut("late")) == "retry"


def test_retry_later_names_its_own_delay_beyond_the_cap():
    bench = Bench()
    record = bench.submit(later, retry=Retry(max_attempts=2, cap=1, base=1))
    bench.run_next()
    bench.advance(29)
    assert bench.run_next() is None
    bench.advance(1)
    assert bench.run_next() is record


def test_classify_decides_alone():
    bench = Bench()
    record = bench.submit(fail, retry=Retry(on=(), classify=lambda error: 3.0))
    bench.run_next()
    assert record.state is JobState.QUEUED
    assert record.due == bench.clock.monotonic() + 3


def test_a_broken_classify_fails_the_job_and_harms_nobody(caplog):
    def broken(error):
        raise RuntimeError("classify is broken")

    bench = Bench()
    record = bench.submit(fail, retry=Retry(classify=broken))
    bench.run_next()
    assert (record.state, record.error["message"]) == (JobState.FAILED, "no")
    assert "classify" in caplog.text


def test_the_budget_stops_a_storm_but_lets_ten_a_minute_through():
    bench = Bench(workers=1, queue_size=1000)
    records = [bench.submit(fail, retry=Retry(budget=0, base=0.1, cap=0.1)) for _ in range(30)]
    for _ in records:
        bench.run_next()
    assert sum(record.state is JobState.QUEUED for record in records) == 10
    assert {record.reason for record in records if record.state.terminal} == {Reason.RETRY_BUDGET}


def test_fresh_starts_earn_retries():
    budget = RetryBudget(now=0)
    while budget.take(0):
        pass
    for _ in range(5):
        budget.started(0.2, 0)
    assert budget.take(0)
    assert not budget.take(0)
    assert budget.take(6)  # ten a minute


def test_jobs_waiting_for_a_retry_hold_at_most_their_share():
    bench = Bench(workers=2, queue_size=8, retry_share=0.3)
    records = [bench.submit(fail, retry=Retry(budget=1, base=5, cap=5)) for _ in range(10)]
    for _ in records:
        bench.run_next()
    assert bench.pool.stats().delayed == 3
    assert sum(record.reason is Reason.RETRY_BUDGET for record in records) == 7


def test_first_and_last_error_and_every_attempt_are_kept():
    errors = iter([ValueError("first"), KeyError("second"), OSError("third")])

    def job() -> None:
        raise next(errors)

    bench = Bench()
    record = bench.submit(job, retry=Retry(max_attempts=3, base=0.1, cap=0.1))
    run_to_the_end(bench, record)
    kept = bench.last(record)
    assert kept["first_error"]["type"] == "ValueError"
    assert kept["error"]["type"] == "OSError"
    assert [entry["error"]["type"] for entry in kept["attempts"]] == ["ValueError", "KeyError", "OSError"]
    assert [one["attempt"] + 1 == two["attempt"] for one, two in pairwise(kept["attempts"])] == [True, True]


def test_a_job_waiting_for_its_retry_can_be_cancelled():
    bench = Bench()
    record = bench.submit(fail, retry=Retry(base=5, cap=5))
    bench.run_next()
    assert bench.pool.cancel(record.id, Reason.USER) == "cancelled"
    bench.advance(60)
    assert bench.run_next() is None
    assert bench.pool.stats().queued == 0


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1.5}, {"on": Exception}, {"on": ("x",)}, {"base": 0},
     {"base": -1}, {"cap": float("inf")}, {"base": 5, "cap": 1}, {"budget": -1}, {"budget": 2}, {"classify": 3}],
)  # fmt: skip
def test_a_policy_that_cannot_work_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Retry(**options)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), None, True, "5"])
def test_retry_later_refuses_an_impossible_delay(after):
    with pytest.raises(ValueError, match="after="):
        RetryLater(after=after)


def test_a_job_that_succeeds_at_last_has_no_error_but_its_first():
    errors = iter([ValueError("once")])

    def job() -> None:
        if error := next(errors, None):
            raise error

    bench = Bench()
    record = bench.submit(job, retry=Retry(base=0.1, cap=0.1))
    run_to_the_end(bench, record)
    kept = bench.last(record)
    assert (kept["state"], kept["error"], kept["first_error"]["message"]) == ("succeeded", None, "once")
    assert ["error" in attempt for attempt in kept["attempts"]] == [True, False]
