"""Foreign code that raises what is no Exception, or runs at an unexpected moment, stops nothing but itself."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_boundedpool.engine.cancellation import CancelToken
from django_boundedpool.engine.drain import drain
from django_boundedpool.engine.errors import JobInterrupted
from django_boundedpool.engine.events import Event
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.record import JobRecord
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.engine.timer import Timer

from .builders import REAL, Bench

pytestmark = pytest.mark.fast

ANYTHING = pytest.mark.parametrize(
    "error",
    [JobInterrupted(Reason.USER), SystemExit(1), KeyboardInterrupt(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def build(**config: Any) -> Bench:
        benches.append(Bench(threaded=True, **config))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


def raiser(error: BaseException) -> Callable[..., None]:
    def raises(*_: object) -> None:
        raise error

    return raises


def elsewhere(call: Callable[[], object], timeout: float = 10) -> list[object]:
    """What `call` returns in a thread of its own; an empty list if it does not end or raises."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(timeout)
    return answers


def sleeper(bench: Bench, *callbacks: Callable[[], object], **spec: Any) -> JobRecord:
    """A running job that sleeps until it is asked to stop."""
    started = threading.Event()
    holder: list[JobRecord] = []

    def nap() -> None:
        for callback in callbacks:
            holder[0].token.on_fire(callback)
        started.set()
        holder[0].token.sleep(30)

    record = bench.record(nap, **spec)
    holder.append(record)
    bench.pool.reserve(record)
    bench.pool.accept(record)
    assert started.wait(10)
    return record


# Callbacks and listeners


@ANYTHING
def test_callback_that_raises_anything_keeps_no_other_from_being_called(error: BaseException) -> None:
    token, called = CancelToken(), threading.Event()
    token.on_fire(raiser(error))
    token.on_fire(called.set)
    assert elsewhere(lambda: token.fire(Reason.USER)) == [True]
    assert called.is_set()
    assert elsewhere(lambda: token.on_fire(raiser(error))) == [None]


def test_what_a_signal_handler_raises_in_the_main_thread_goes_its_way() -> None:
    """It may have come in the middle of a callback, and it means the process and not the callback."""
    token = CancelToken()
    token.fire(Reason.USER)
    with pytest.raises(SystemExit):
        token.on_fire(raiser(SystemExit(143)))


def test_cancel_answers_although_a_callback_and_a_listener_raise_an_interruption() -> None:
    """`context.on_cancel(context.check)` is easily written."""
    bench = Bench()
    record = bench.submit()
    bench.take()
    record.token.on_fire(record.token.check)
    bench.events_hub.subscribe(raiser(JobInterrupted(Reason.USER)))
    assert bench.pool.cancel(record.id, Reason.USER) == "requested"


@ANYTHING
def test_timer_outlives_whatever_its_callbacks_raise(error: BaseException) -> None:
    timer, called = Timer(REAL), threading.Event()
    timer.at(REAL.monotonic(), raiser(error))
    timer.at(REAL.monotonic(), called.set)
    assert called.wait(10)
    timer.stop()


def test_time_outs_are_kept_after_a_callback_raised_on_the_timers_thread(make: Callable[..., Bench]) -> None:
    bench = make(workers=1)
    for _ in range(2):
        record = sleeper(bench, raiser(JobInterrupted(Reason.TIMEOUT)), timeout=0.02)
        assert bench.pool.done_event(record).wait(10)
        assert record.reason is Reason.TIMEOUT


def test_callback_that_raises_does_not_hurry_a_drain(make: Callable[..., Bench]) -> None:
    bench = make(workers=2, drain_timeout=10.0, cancel_grace=9.99)
    records = [sleeper(bench, raiser(JobInterrupted(Reason.SHUTDOWN))) for _ in range(2)]
    began = time.monotonic()
    report = drain([bench.pool], reason="test", began=lambda: began, hurry=lambda: False, flush=lambda timeout: True)
    assert not report.hurried
    assert [record.token.reason for record in records] == [Reason.SHUTDOWN] * 2
    attempts = [attempt for record in records for attempt in bench.last(record)["attempts"]]
    assert [attempt["outcome"] for attempt in attempts] == ["abandoned"] * 2


@ANYTHING
def test_workers_outlive_whatever_a_listener_raises(make: Callable[..., Bench], error: BaseException) -> None:
    bench = make(workers=1)

    def listener(events: Sequence[Event]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise error

    bench.events_hub.subscribe(listener)
    for _ in range(3):
        assert bench.pool.done_event(bench.submit()).wait(10)
    (worker,) = bench.pool._workers
    assert worker.is_alive()


# Finalizers


class Client:
    """What a job registers with on_cancel; its end is asked for whenever the last reference goes."""

    def __init__(self, finalizer: Callable[[], object]) -> None:
        self.finalizer = finalizer

    def close(self) -> None:
        """Nothing to close."""

    def __del__(self) -> None:
        self.finalizer()


@pytest.mark.parametrize("retry", [None, Retry(max_attempts=2)], ids=["at the end", "before a retry"])
@pytest.mark.parametrize("asks", ["the pool", "the token"])
def test_finalizer_of_a_callback_may_ask_whatever_it_likes(asks: str, retry: Retry | None) -> None:
    """No lock may be held while callbacks are forgotten."""
    bench = Bench()
    finished: list[object] = []

    def job() -> None:
        token = record.token
        question = bench.pool.stats if asks == "the pool" else lambda: token.on_fire(print)
        token.on_fire(Client(lambda: finished.append(question())).close)
        raise ValueError

    record = bench.submit(job, retry=retry)
    assert elsewhere(bench.run_next, timeout=5) == [record]
    assert len(finished) == 1


# Signals


def test_end_that_a_raising_signal_handler_tore_in_two_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record says cancelled already, but it holds its place and nobody was told."""
    bench = Bench()
    record, other = bench.submit(), bench.submit()
    event = bench.pool.done_event(record)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "_conclude_locked", raiser(SystemExit(143)))
        with pytest.raises(SystemExit):
            bench.pool.cancel(record.id, Reason.USER)
    assert not event.is_set()
    bench.pool.give_up()
    assert (record.state, record.reason) == (JobState.CANCELLED, Reason.USER)
    assert (bench.last(record)["state"], bench.last(record)["live"]) == ("cancelled", False)
    assert bench.last(record)["retain_until"] is not None
    assert event.is_set()
    assert other.state is JobState.ABANDONED
    assert bench.pool.wait_empty(0)


def test_end_that_was_torn_in_two_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    record = bench.submit()
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "_conclude_locked", raiser(SystemExit()))
        with pytest.raises(SystemExit):
            bench.pool.cancel(record.id, Reason.USER)
    bench.pool.begin_drain(None)
    bench.pool.give_up()
    assert bench.pool.stats().finished == {"cancelled": 1}
    assert bench.pool.drain_outcomes() == {"cancelled/user": [record.id]}


def test_callback_that_blocks_holds_up_neither_a_drain_nor_a_time_out(make: Callable[..., Bench]) -> None:
    bench = make(workers=2, drain_timeout=1.5)
    gate = threading.Event()
    blocked = sleeper(bench, lambda: gate.wait(30), timeout=0.05)
    assert bench.pool.done_event(blocked).wait(10)
    other = sleeper(bench, timeout=0.05)
    assert bench.pool.done_event(other).wait(5)
    assert (blocked.reason, other.reason) == (Reason.TIMEOUT, Reason.TIMEOUT)
    last = sleeper(bench, lambda: gate.wait(30))
    began = time.monotonic()
    drain([bench.pool], reason="test", began=lambda: began, hurry=lambda: False, flush=lambda timeout: True)
    assert time.monotonic() - began < 5
    assert last.state is JobState.ABANDONED
    gate.set()
