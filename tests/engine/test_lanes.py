"""On what a job's code runs: the one CPU lane of a process, and the event loop.

Tried by hand, each makes a test here fail: `enter` that always admits, leaving out `leave` in `_go_on_locked`, not
passing over a blocked CPU job, not counting async jobs against W, the state check of `attempt_returned`.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading

import pytest

from django_boundedpool.engine.cpu_lane import CpuLane
from django_boundedpool.engine.errors import QueueFull
from django_boundedpool.engine.event_loop import EventLoop
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.engine.worker import Worker, forks_so_far

from .builders import Bench, until

# The CPU lane


def two(**config):
    lane = CpuLane()
    return Bench(cpu_lane=lane, **config), Bench(cpu_lane=lane, **config)


def test_one_cpu_job_runs_at_a_time_in_a_pool():
    bench = Bench(workers=4)
    first, second = bench.submit(lane="cpu"), bench.submit(lane="cpu")
    assert bench.take() is first
    assert bench.take() is None
    bench.pool.attempt_returned(first, None)
    assert bench.take() is second


def test_one_cpu_job_runs_at_a_time_in_two_pools():
    one, other = two(workers=2)
    first, second = one.submit(lane="cpu"), other.submit(lane="cpu")
    assert one.take() is first
    assert other.take() is None
    assert other.pool.stats().running == 0
    one.pool.attempt_returned(first, None)
    assert other.take() is second


def test_jobs_of_the_io_lane_pass_a_cpu_job_that_waits_for_its_lane_and_it_keeps_its_place():
    one, other = two(workers=4)
    holder = one.submit(lane="cpu")
    one.take()
    urgent, behind = other.submit(lane="cpu", priority=50), other.submit(lane="cpu")
    plain = [other.submit() for _ in range(2)]
    assert [other.take() for _ in range(3)] == [*plain, None]
    one.pool.attempt_returned(holder, None)
    assert other.take() is urgent
    assert other.take() is None
    other.pool.attempt_returned(urgent, None)
    assert other.take() is behind


def test_a_cpu_job_in_a_pool_without_a_free_worker_holds_no_lane():
    one, other = two(workers=1)
    one.submit()
    one.take()
    one.submit(lane="cpu")
    assert one.take() is None
    job = other.submit(lane="cpu")
    assert other.take() is job


CPU_ENDS = {
    "succeeded": lambda bench, record: bench.pool.attempt_returned(record, None),
    "bad result": lambda bench, record: bench.pool.attempt_returned(record, object()),
    "failed": lambda bench, record: bench.pool.attempt_raised(record, ValueError()),
    "retried": lambda bench, record: bench.pool.attempt_raised(record, OSError()),
    "cancelled": lambda bench, record: (
        bench.pool.cancel(record.id, Reason.USER), bench.pool.attempt_raised(record, SystemExit())
    ),
    "timed out": lambda bench, record: (bench.advance(5), bench.pool.attempt_returned(record, 1)),
    "broken": lambda bench, record: bench.pool.attempt_broke(record),
    "forfeited, then ended": lambda bench, record: (
        bench.pool.forfeit(uuid7()), bench.pool.attempt_returned(record, None)
    ),
    "given up, then failed": lambda bench, record: (
        bench.pool.give_up(), bench.pool.attempt_raised(record, ValueError())
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", CPU_ENDS)
def test_however_a_cpu_job_ends_the_lane_is_free_again(end):
    one, other = two(workers=1)
    record = one.submit(lane="cpu", timeout=5.0, retry=Retry(on=(OSError,), base=60, cap=60))
    assert one.take() is record
    job = other.submit(lane="cpu")
    assert other.take() is None
    CPU_ENDS[end](one, record)
    assert other.take() is job


@pytest.mark.parametrize("way", ["forfeit", "give_up"])
def test_a_cpu_job_that_was_given_up_holds_the_lane_as_long_as_its_code_runs(way):
    one, other = two(workers=1)
    record = one.submit(lane="cpu")
    one.take()
    job = other.submit(lane="cpu")
    one.pool.forfeit(uuid7()) if way == "forfeit" else one.pool.give_up()
    assert record.state is JobState.ABANDONED
    assert other.take() is None
    one.pool.attempt_returned(record, None)
    assert other.take() is job


def test_a_worker_that_dies_with_a_cpu_job_frees_the_lane():
    one, other = two(workers=1)
    record = one.submit(lane="cpu")
    worker = Worker(one.pool, 1)
    assert one.pool.take(worker) is record
    job = other.submit(lane="cpu")
    assert other.take() is None
    one.pool.worker_died(worker)
    assert record.state is JobState.FAILED
    assert other.take() is job


def test_a_worker_that_dies_with_a_cpu_job_given_up_frees_the_lane():
    one, other = two(workers=1)
    record = one.submit(lane="cpu")
    worker = Worker(one.pool, 1)
    assert one.pool.take(worker) is record
    one.pool.forfeit(uuid7())
    job = other.submit(lane="cpu")
    one.pool.worker_died(worker)
    assert other.take() is job


def test_a_lane_is_left_by_its_holder_only_and_wakes_each_waiter_once():
    lane, calls = CpuLane(), []
    waiter = calls.append
    assert lane.enter("a", print)
    assert not lane.enter("b", waiter)
    assert not lane.enter("c", waiter)
    assert lane.leave("b") == []
    assert lane.leave("a") == [waiter]
    assert lane.leave("a") == []
    assert lane.enter("b", waiter)
    assert lane.leave("b") == []


def test_twenty_cpu_jobs_of_two_pools_with_real_threads_never_run_together():
    lane = CpuLane()
    benches = [Bench(threaded=True, workers=3, cpu_lane=lane) for _ in range(2)]
    lock, most, now = threading.Lock(), [0], [0]

    def job():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        for _ in range(2000):
            pass
        with lock:
            now[0] -= 1

    records = [(bench, bench.submit(job, lane="cpu")) for _ in range(10) for bench in benches]
    for bench, record in records:
        assert bench.pool.done_event(record).wait(20), record
    assert most == [1]
    for bench in benches:
        bench.close()


# The event loop


@pytest.fixture
def loop():
    loop = EventLoop()
    yield loop
    assert loop.stop(10)
    assert len(loop) == 0


@pytest.fixture
def make(loop):
    benches = []

    def build(**config):
        benches.append(Bench(loop=loop, **{"threaded": True, **config}))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


class Gate:
    """An asynchronous job that says that it runs and waits until it is let go."""

    def __init__(self):
        self.runs = 0
        self.started = threading.Event()
        self._event = None
        self._loop = None
        self.open = False

    async def __call__(self):
        self.runs += 1
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        self.started.set()
        if not self.open:
            await self._event.wait()
        return "late"

    def let_go(self):
        self.open = True
        if self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)


def over(bench, record):
    assert bench.pool.done_event(record).wait(15), record
    return record


def settled(loop):
    """Wait until the loop has done what was asked of it before."""
    done = threading.Event()

    async def nothing():
        """Nothing."""

    loop.launch(nothing, lambda value, error: done.set())
    assert done.wait(10)


def test_an_async_job_uses_a_slot_and_no_thread(make):
    bench = make(workers=2, queue_size=0)
    gate = Gate()
    record = bench.submit(gate, asynchronous=True)
    assert gate.started.wait(10)
    stats = bench.pool.stats()
    assert (stats.running, stats.threads, stats.queued) == (1, 0, 0)
    gate.let_go()
    assert over(bench, record).result == "late"
    assert bench.pool.stats().threads == 0


def test_sync_and_async_jobs_count_together_against_w(make):
    bench = make(workers=2, queue_size=1)
    gate, release, started = Gate(), threading.Event(), threading.Event()
    asynchronous = bench.submit(gate, asynchronous=True)
    sync = bench.submit(lambda: (started.set(), release.wait(20)) and None)
    assert gate.started.wait(10)
    assert started.wait(10)
    third = Gate()
    waits = bench.submit(third, asynchronous=True)
    with pytest.raises(QueueFull):
        bench.submit(third, asynchronous=True)
    assert (bench.pool.stats().running, third.runs) == (2, 0)
    release.set()
    over(bench, sync)
    assert third.started.wait(10)
    for one in (gate, third):
        one.let_go()
    assert {over(bench, record).state for record in (asynchronous, waits)} == {JobState.SUCCEEDED}


def test_an_async_job_that_ends_lets_a_thread_job_start_and_the_other_way_round(make):
    bench = make(workers=1, queue_size=10)
    order = []

    async def on_loop():
        order.append("loop")

    records = [bench.submit(on_loop, asynchronous=True) if n % 2 else bench.submit(lambda: order.append("thread"))
               for n in range(8)]  # fmt: skip
    for record in records:
        over(bench, record)
    assert order == ["thread", "loop"] * 4


def test_mixed_priorities_keep_their_order_over_both_lanes(make):
    bench = make(workers=1, queue_size=20, ageing=1000)
    bench.pool.pause()
    order = []

    def sync(name):
        return lambda: order.append(name)

    def asynchronous(name):
        async def job():
            order.append(name)

        return job

    records = []
    for number, priority in enumerate([0, 5, -5, 5, 0, -5, 10, 0]):
        name = (priority, number)
        if number % 2:
            records.append(bench.submit(asynchronous(name), asynchronous=True, priority=priority))
        else:
            records.append(bench.submit(sync(name), priority=priority))
    bench.pool.resume()
    for record in records:
        over(bench, record)
    assert order == sorted(order, key=lambda name: (-name[0], name[1]))


def test_a_cancelled_async_job_stops_at_its_next_await(make):
    bench = make(workers=1)
    gate, cleaned = Gate(), []

    async def job():
        try:
            await gate()
        finally:
            cleaned.append(1)

    record = bench.submit(job, asynchronous=True)
    assert gate.started.wait(10)
    assert bench.pool.cancel(record.id, Reason.USER) == "requested"
    over(bench, record)
    assert (record.state, record.reason, cleaned) == (JobState.CANCELLED, Reason.USER, [1])
    assert record.error is None
    assert bench.pool.stats().running == 0


def test_X01_an_async_job_that_swallows_its_cancellation_runs_until_it_returns(make):
    bench = make(workers=1)
    first, second = Gate(), Gate()

    async def deaf():
        with contextlib.suppress(asyncio.CancelledError):
            await first()
        await second()
        return "done"

    record = bench.submit(deaf, asynchronous=True)
    assert first.started.wait(10)
    bench.pool.cancel(record.id, Reason.USER)
    assert second.started.wait(10)
    assert (record.state, bench.pool.stats().running) == (JobState.RUNNING, 1)
    second.let_go()
    over(bench, record)
    assert (record.state, record.result) == (JobState.SUCCEEDED, "done")


def test_a_cancelled_async_job_in_the_queue_is_never_begun(make, loop):
    bench = make(workers=1)
    gate, never = Gate(), Gate()
    running = bench.submit(gate, asynchronous=True)
    assert gate.started.wait(10)
    queued = bench.submit(never, asynchronous=True)
    assert bench.pool.cancel(queued.id, Reason.USER) == "cancelled"
    gate.let_go()
    over(bench, running)
    settled(loop)
    assert never.runs == 0


def test_an_async_job_past_its_time_out_is_cancelled_and_has_timed_out(make):
    bench = make(workers=1)
    gate = Gate()
    record = over(bench, bench.submit(gate, asynchronous=True, timeout=0.05))
    assert (record.state, record.reason, record.overdue) == (JobState.FAILED, Reason.TIMEOUT, True)
    assert record.error["type"].endswith("JobTimedOut")


def test_X05_an_async_job_that_ignores_its_time_out_keeps_its_slot_and_loses_its_result(make):
    bench = make(workers=1)
    first, second = Gate(), Gate()

    async def deaf():
        with contextlib.suppress(asyncio.CancelledError):
            await first()
        return await second()

    record = bench.submit(deaf, asynchronous=True, timeout=0.05)
    assert second.started.wait(10)
    assert (record.state, record.overdue, bench.pool.stats().running) == (JobState.RUNNING, True, 1)
    second.let_go()
    over(bench, record)
    assert (record.state, record.reason, record.result) == (JobState.FAILED, Reason.TIMEOUT, None)


def test_an_async_job_is_retried_like_any_other(make):
    bench = make(workers=1)
    runs = []

    async def job():
        runs.append(1)
        if len(runs) < 3:
            raise OSError("not yet")
        return len(runs)

    record = over(bench, bench.submit(job, asynchronous=True, retry=Retry(base=0.01, cap=0.01)))
    assert (record.state, record.result, record.attempt, record.failures) == (JobState.SUCCEEDED, 3, 3, 2)


def test_an_async_job_that_times_out_is_retried_like_any_other(make):
    bench = make(workers=1)
    runs = []

    async def job():
        runs.append(1)
        if len(runs) == 1:
            await asyncio.sleep(30)
        return "second"

    record = over(bench, bench.submit(job, asynchronous=True, timeout=0.1, retry=Retry(base=0.01, cap=0.01)))
    assert (record.state, record.result, record.attempt) == (JobState.SUCCEEDED, "second", 2)


class Own(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), SystemExit("text"), KeyboardInterrupt(), GeneratorExit(), MemoryError(), Own("own"),
     ExceptionGroup("group", [ValueError(1)]), BaseExceptionGroup("group", [SystemExit(1)])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_R01_whatever_an_async_job_raises_it_fails_and_the_loop_lives_on(make, error):
    bench = make(workers=2)

    async def job():
        raise error

    async def good():
        return 1

    beside = Gate()
    other = bench.submit(beside, asynchronous=True)
    assert beside.started.wait(10)
    record = over(bench, bench.submit(job, asynchronous=True))
    assert (record.state, record.reason) == (JobState.FAILED, Reason.ERROR)
    assert record.error["type"].rpartition(".")[2] == type(error).__name__
    assert over(bench, bench.submit(good, asynchronous=True)).state is JobState.SUCCEEDED
    beside.let_go()
    assert over(bench, other).state is JobState.SUCCEEDED


def test_a_job_that_cancels_itself_has_failed_and_was_not_cancelled_by_anybody(make):
    bench = make(workers=1)

    async def job():
        raise asyncio.CancelledError

    record = over(bench, bench.submit(job, asynchronous=True))
    assert record.state is JobState.FAILED


@pytest.mark.parametrize("way", ["give_up", "forfeit"])
def test_the_late_result_of_an_async_job_that_was_given_up_is_discarded(make, loop, way):
    bench = make(workers=1)
    first, second = Gate(), Gate()

    async def deaf():
        with contextlib.suppress(asyncio.CancelledError):
            await first()
        return await second()

    record = bench.submit(deaf, asynchronous=True)
    assert first.started.wait(10)
    bench.pool.give_up() if way == "give_up" else bench.pool.forfeit(uuid7())
    assert record.state is JobState.ABANDONED
    told = second.started.wait(5)
    assert bench.pool.stats().given_up == 1
    first.let_go()
    second.let_go()
    until(lambda: not bench.pool.stats().given_up)
    assert told  # by the CancelledError that its first await got
    assert (record.state, record.result) == (JobState.ABANDONED, None)
    assert bench.pool.stats().finished == {"abandoned": 1}


def test_the_late_end_of_an_attempt_says_nothing_about_the_next_one():
    """A flight that reports after its job was given up belongs to no attempt any more."""
    bench = Bench(workers=1)
    record = bench.submit(timeout=1.0)
    bench.take()
    bench.pool.forfeit(uuid7())
    bench.pool._landed(record, forks_so_far(), "late", None)
    bench.pool._landed(record, forks_so_far(), None, ValueError("late"))
    assert (record.state, record.result, record.error) == (JobState.ABANDONED, None, None)
    assert sum(event.kind is Kind.JOB_FINISHED for event in bench.events) == 1


def test_a_thousand_async_jobs_are_in_flight_at_once_on_one_thread(make):
    bench = make(workers=1000, queue_size=0)
    lock, together = threading.Lock(), [0]
    all_run = threading.Event()
    gates = [Gate() for _ in range(1000)]

    def counted(gate):
        async def job():
            with lock:
                together[0] += 1
                if together[0] == 1000:
                    all_run.set()
            return await gate()

        return job

    records = [bench.submit(counted(gate), asynchronous=True) for gate in gates]
    assert all_run.wait(20)
    stats = bench.pool.stats()
    assert (stats.running, stats.threads) == (1000, 0)
    with pytest.raises(QueueFull):
        bench.submit()
    for gate in gates:
        gate.let_go()
    for record in records:
        assert over(bench, record).state is JobState.SUCCEEDED


class BrokenLoop:
    """An event loop whose thread the system refuses as often as told, then a real one."""

    def __init__(self, loop, fails):
        self.loop, self.fails, self.starts = loop, fails, 0

    @property
    def thread(self):
        return self.loop.thread

    def start(self):
        self.starts += 1
        if self.starts <= self.fails:
            raise RuntimeError("can't start new thread")
        self.loop.start()

    def launch(self, begin, done):
        return self.loop.launch(begin, done)


def test_a_loop_that_cannot_start_is_tried_again_and_nothing_is_lost(loop, caplog):
    broken = BrokenLoop(loop, fails=1)
    bench = Bench(loop=broken, workers=1)

    async def job():
        return "ran"

    record = bench.submit(job, asynchronous=True)
    assert (record.state, broken.starts) == (JobState.QUEUED, 1)
    assert "could not start the event loop" in caplog.text
    bench.advance(1)
    assert over(bench, record).result == "ran"
    assert (broken.starts, record.attempt) == (2, 1)


def test_jobs_of_threads_go_on_while_the_loop_cannot_start(loop):
    broken = BrokenLoop(loop, fails=3)
    bench = Bench(loop=broken, threaded=True, workers=1)

    async def job():
        """Nothing."""

    waits = bench.submit(job, asynchronous=True)
    other = bench.submit()
    assert over(bench, waits).state is JobState.SUCCEEDED
    assert over(bench, other).state is JobState.SUCCEEDED
    bench.close()


def test_an_async_job_in_a_pool_without_a_loop_waits_and_says_why(caplog):
    bench = Bench()

    async def job():
        """Never called."""

    record = bench.submit(job, asynchronous=True)
    assert record.state is JobState.QUEUED
    assert "has no event loop" in caplog.text
    bench.pool.give_up()
    assert record.state is JobState.ABANDONED


def test_a_loop_that_was_stopped_ends_an_async_job_and_gives_its_place_back(caplog):
    """`launch` raises then; the job must not stay running for ever."""
    loop = EventLoop()
    loop.start()
    assert loop.stop(10)
    bench = Bench(loop=loop, threaded=True, workers=1)

    async def job():
        """Never called."""

    record = bench.record(job, asynchronous=True)
    with contextlib.suppress(RuntimeError):
        bench.pool.admit(record)
    assert record.state is not JobState.RUNNING
    bench.close()
    assert record.state.terminal


def test_an_async_job_behind_one_that_a_worker_comes_for_does_not_wait_for_it(make):
    """Reverted by hand (nobody looking at the queue after a worker has taken its job): it waits for the whole run."""
    bench = make(workers=4)

    async def warm():
        """Start the loop."""

    bench.submit(warm, asynchronous=True)
    bench.submit()
    until(lambda: bench.pool._idle and not bench.pool._live)
    for submit in (bench.submit, bench.admit):
        gate, ran = threading.Event(), threading.Event()

        async def quick(ran=ran):
            ran.set()

        submit(gate.wait)
        submit(quick, asynchronous=True)
        assert ran.wait(10)
        gate.set()
        until(lambda: bench.pool._idle and not bench.pool._live)


def test_an_async_job_behind_a_cpu_job_that_waits_for_its_lane_does_not_wait_for_it(make):
    bench = make(workers=4)

    async def warm():
        """Start the loop."""

    bench.submit(warm, asynchronous=True)
    until(lambda: not bench.pool._live)
    for submit in (bench.submit, bench.admit):
        gate, ran, begun = threading.Event(), threading.Event(), threading.Event()

        async def quick(ran=ran):
            ran.set()

        def compute(gate=gate, begun=begun):
            begun.set()
            gate.wait()

        submit(compute, lane="cpu")
        assert begun.wait(10)
        submit(gate.wait, lane="cpu")
        until(lambda: len(bench.pool._queue) == 1 and bench.pool._idle)
        submit(quick, asynchronous=True)
        assert ran.wait(10)
        gate.set()
        until(lambda: not bench.pool._live)


FORK_ON_LOOP = """
import asyncio, json, os, time
from tests.engine.builders import Bench
from django_boundedpool.engine.event_loop import EventLoop

bench = Bench(threaded=True, workers=1, loop=EventLoop())
read, write = os.pipe()
children = []

async def forks():
    child = os.fork()
    if child:
        children.append(child)

async def other():
    os.write(write, b"x")

bench.submit(forks, asynchronous=True)
bench.submit(other, asynchronous=True)
bench.pool.wait_empty(20)
deadline = time.monotonic() + 10
while (ended := os.waitpid(children[0], os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(children[0], 9)
print(json.dumps([os.read(read, 100).decode(), ended != (0, 0)]))
"""


def test_a_child_that_an_async_job_forked_and_forgot_does_not_work_through_the_queue(python_env):
    done = subprocess.run(
        [sys.executable, "-c", FORK_ON_LOOP], capture_output=True, text=True, timeout=60, env=python_env, check=True
    )
    assert json.loads(done.stdout) == ["x", True]
