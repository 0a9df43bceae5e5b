"""Durations beyond what dates and waits can hold are shortened or refused; they stop nothing."""

import threading
from datetime import timedelta

import pytest

from django_boundedpool.engine.clock import Clock
from django_boundedpool.engine.config import LONGEST, read_pools, seconds
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.engine.retry import MAX_DELAY, Retry, RetryLater
from django_boundedpool.engine.states import JobState
from django_boundedpool.engine.timer import Timer

from .builders import REAL, Bench

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("delay", [1e10, 1e14, 1e300])
@pytest.mark.parametrize("says", ["RetryLater", "classify"])
def test_job_that_asks_for_an_endless_delay_waits_for_a_year(says: str, delay: float) -> None:
    bench = Bench()

    def fail() -> None:
        raise RetryLater(after=delay) if says == "RetryLater" else ValueError

    record = bench.submit(fail, retry=Retry(max_attempts=2, classify=None if says == "RetryLater" else lambda _: delay))
    bench.run_next()
    assert record.state is JobState.QUEUED
    assert record.run_after == bench.clock.time() + MAX_DELAY
    assert bench.pool.stats().delayed == 1
    bench.advance(MAX_DELAY)
    bench.run_next()
    assert record.state is JobState.FAILED


def test_timer_with_an_entry_beyond_the_longest_wait_still_serves_the_others() -> None:
    class Watched(Clock):
        """Tells when the timer computes how long to wait: it holds its lock then, until it waits."""

        def __init__(self) -> None:
            super().__init__()
            self.looks = 0
            self.waits = threading.Event()
            self.monotonic = self.look

        def look(self) -> float:
            self.looks += 1
            if self.looks >= 2:
                self.waits.set()
            return REAL.monotonic()

    clock, called = Watched(), threading.Event()
    timer = Timer(clock)
    timer.at(1e12, print)
    assert clock.waits.wait(10)
    timer.at(0, called.set)
    assert called.wait(10)
    timer.stop()


def test_number_that_no_float_can_hold_is_no_duration() -> None:
    with pytest.raises(ValueError, match="float"):
        seconds(10**400)


def test_setting_that_no_float_can_hold_is_a_fault_like_any_other() -> None:
    _, faults = read_pools({"default": {"TIMEOUT": 10**400}})
    assert len(faults) == 1


@pytest.mark.parametrize("value", [1e12, 10**400, timedelta.max, LONGEST + 1])
def test_retention_beyond_a_year_is_a_fault_of_the_settings(value: object) -> None:
    _, faults = read_pools({"default": {"RETENTION": {"failed": value}}})
    assert len(faults) == 1
    assert "366 days" in str(faults[0])


def test_longest_retention_is_taken() -> None:
    configs, faults = read_pools({"default": {"RETENTION": {"failed": timedelta(days=366)}}})
    assert not faults
    assert configs["default"].retention[JobState.FAILED] == LONGEST


@pytest.mark.parametrize("values", [{"cap": 1e14}, {"base": 1e14, "cap": 1e14}, {"cap": float("inf")}])
def test_policy_whose_delay_no_date_can_hold_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="366 days"):
        Retry(**values)


def test_delay_that_no_float_can_hold_is_a_year() -> None:
    assert RetryLater(after=10**400).after == MAX_DELAY
