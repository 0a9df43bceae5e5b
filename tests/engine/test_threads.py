"""The pool with real threads."""

import dataclasses
import gc
import threading
import time
import tracemalloc
import weakref

import pytest

from django_boundedpool.engine.errors import QueueFull
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.engine.worker import Worker

from .builders import Bench


@pytest.fixture
def bench(request):
    bench = Bench(threaded=True, **getattr(request, "param", {"workers": 2, "queue_size": 100}))
    yield bench
    bench.close()


def done(bench, record, timeout=10):
    assert bench.pool.done_event(record).wait(timeout), record
    return record


@pytest.mark.parametrize("bench", [{"workers": 1, "queue_size": 2}], indirect=True)
def test_O01_ten_thousand_submits_against_a_blocked_pool(bench):
    release = threading.Event()
    started = threading.Event()
    bench.submit(lambda: (started.set(), release.wait(30)) and None, store_result=False)
    assert started.wait(10)
    accepted, refused, slowest = 1, 0, 0.0
    bench.events_hub._listeners = ()  # the bench keeps every event; the pool itself keeps none
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(10_000):
        began = time.perf_counter()
        try:
            bench.submit()
            accepted += 1
        except QueueFull:
            refused += 1
        slowest = max(slowest, time.perf_counter() - began)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (accepted, refused) == (3, 9_998)
    assert bench.pool.stats().queued == 2
    assert bench.pool.stats().rejected == {"queue_full": 9_998}
    assert after - before < 5_000_000
    assert slowest < 5  # a refusal never waits for the blocked worker
    release.set()
    assert bench.pool.wait_empty(10)


def test_O01_the_pool_runs_on_with_the_threads_that_the_system_gives(bench, monkeypatch):
    real_start = threading.Thread.start
    starts = []

    def start(thread):
        if isinstance(thread, Worker):
            starts.append(thread)
            if len(starts) == 2:
                raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    release = threading.Event()
    runs = []
    records = [bench.submit(lambda n=n: (release.wait(30), runs.append(n)) and None) for n in range(5)]
    release.set()
    for record in records:
        assert done(bench, record).state is JobState.SUCCEEDED
    assert sorted(runs) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bench", [{"workers": 1, "queue_size": 5}], indirect=True)
def test_O01_a_pool_whose_only_thread_could_not_start_tries_again(bench, monkeypatch):
    real_start = threading.Thread.start
    fails = iter([True])

    def start(thread):
        if isinstance(thread, Worker) and next(fails, False):
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert done(bench, bench.submit()).state is JobState.SUCCEEDED


class Own(BaseException):
    pass


RAISED = [
    SystemExit(0),
    SystemExit(None),
    SystemExit("text"),
    KeyboardInterrupt(),
    GeneratorExit(),
    MemoryError(),
    RecursionError("deep"),
    Own("own"),
    ExceptionGroup("group", [ValueError(1), OSError(2)]),
    BaseExceptionGroup("base group", [SystemExit(1)]),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["body", "finally"])
def test_R01_whatever_a_job_raises_it_fails_and_its_worker_lives_on(bench, error, where):
    def in_body():
        raise error

    def in_finally():
        try:
            raise ValueError("first")
        finally:
            raise error

    record = bench.submit(in_body if where == "body" else in_finally)
    done(bench, record)
    assert (record.state, record.reason) == (JobState.FAILED, Reason.ERROR)
    assert record.error["type"].rpartition(".")[2] == type(error).__name__
    assert done(bench, bench.submit()).state is JobState.SUCCEEDED
    assert bench.pool.stats().threads == 1
    assert all(worker.is_alive() for worker in bench.pool._workers)
    bench.pool.begin_drain(None)
    assert bench.pool.wait_empty(5)


def test_R01_an_error_that_cannot_be_printed_is_recorded(bench):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def job():
        raise Mute

    record = done(bench, bench.submit(job))
    assert record.state is JobState.FAILED
    assert record.error["message"] == "<unprintable: str() raised RuntimeError>"


def test_R01_an_endless_recursion_fails_its_job_only(bench):
    def deep():
        return deep()

    assert done(bench, bench.submit(deep)).error["type"] == "RecursionError"
    assert done(bench, bench.submit()).state is JobState.SUCCEEDED


def test_X05_a_time_out_frees_no_worker_before_the_code_ends(bench):
    release, cleanups = threading.Event(), []

    def block():
        try:
            release.wait(30)
            return "late"
        finally:
            cleanups.append(1)

    record = bench.submit(block, timeout=0.1)
    fired = threading.Event()
    record_started = threading.Event()

    def watch():
        while record.state is JobState.QUEUED:
            pass
        record.token.on_fire(fired.set)
        record_started.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert record_started.wait(10)
    assert fired.wait(10)
    watcher.join()
    assert (record.state, record.overdue) == (JobState.RUNNING, True)
    assert bench.pool.stats().running == 1
    release.set()
    done(bench, record)
    assert (record.state, record.reason, record.result) == (JobState.FAILED, Reason.TIMEOUT, None)
    assert cleanups == [1]
    assert bench.pool.stats().running == 0


def test_a_cancelled_sleep_ends_at_once(bench):
    started = threading.Event()
    holder = []

    def nap():
        started.set()
        holder[0].token.sleep(60)

    record = bench.record(nap)
    holder.append(record)
    bench.pool.reserve(record)
    bench.pool.accept(record)
    assert started.wait(10)
    bench.pool.cancel(record.id, Reason.USER)
    assert done(bench, record, 5).state is JobState.CANCELLED


@pytest.mark.parametrize("bench", [{"workers": 4, "queue_size": 50}], indirect=True)
def test_four_producers_and_four_workers_lose_nothing_and_pass_no_bound(bench):
    runs, seen, lock = [], [], threading.Lock()

    def job():
        with lock:
            runs.append(1)
            seen.append(bench.pool.stats().running)

    records = []

    def produce():
        mine = 0
        while mine < 250:
            try:
                record = bench.submit(job)
            except QueueFull:
                continue
            with lock:
                records.append(record)
            mine += 1

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(60)
    assert bench.pool.wait_empty(30)
    assert len(runs) == len(records) == 1000
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert max(seen) <= 4
    assert bench.pool.stats().threads <= 4


def test_an_idle_worker_keeps_nothing_of_its_last_job(bench):
    class Thing:
        pass

    kept = []

    def job():
        thing = Thing()
        kept.append(weakref.ref(thing))
        raise ValueError(thing)

    record = bench.submit(job)
    done(bench, record)
    bench.events.clear()
    del record
    deadline = time.monotonic() + 10
    while kept[0]() is not None and time.monotonic() < deadline:
        gc.collect()
    assert kept[0]() is None


def test_a_worker_starts_from_an_empty_context(bench):
    import contextvars

    var = contextvars.ContextVar("request", default="none")
    var.set("of the submitter")
    seen = []
    done(bench, bench.submit(lambda: seen.append(var.get())))
    assert seen == ["none"]


def test_workers_that_waited_for_a_sign_of_life_start_with_it(bench):
    bench.pool.confirm_alive(bench.clock.monotonic() - 1)
    records = [bench.submit() for _ in range(5)]
    deadline = time.monotonic() + 10
    while not bench.pool._idle:
        assert time.monotonic() < deadline
    assert {record.state for record in records} == {JobState.QUEUED}
    bench.pool.confirm_alive(bench.clock.monotonic() + 60)
    for record in records:
        assert done(bench, record).state is JobState.SUCCEEDED


def test_an_exception_that_refuses_assignment_is_retried_like_any_other(bench):
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        number: int

    def job():
        raise Frozen(5)

    record = done(bench, bench.submit(job, retry=Retry(max_attempts=3, on=(Frozen,), base=0.01, cap=0.01)))
    assert (record.attempt, record.reason) == (3, Reason.ATTEMPTS_EXHAUSTED)
    assert record.error["type"].endswith("Frozen")
