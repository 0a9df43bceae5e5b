"""Waiting for a place: who is served, in what order, and what is left of those who are not.

Tried by hand, each makes a test here fail: serving the line in another order than by priority and arrival, going on
behind the first of a priority that does not fit, the bound of the line, the check of the line in `_objection_locked`,
`withdraw` in `desert` and in `_notify`, each call of `_place_freed_locked`.
"""

import asyncio
import contextlib
import threading
import time

import pytest

from django_boundedpool.engine.errors import (
    BytesFull,
    Draining,
    Expired,
    OwnerLimit,
    Paused,
    QueueFull,
    Rejected,
    WaitTimeout,
)
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench, until

pytestmark = pytest.mark.fast


class Full(Bench):
    """A pool without a free place, and a line before it."""

    def __init__(self, *, workers=1, queue_size=3, **config):
        super().__init__(workers=workers, queue_size=queue_size, **config)
        self.holders = [self.submit() for _ in range(workers + queue_size)]
        self.told = []

    def line_up(self, name="", **spec):
        """A waiter that writes its name down when it is told."""
        return self.pool.line_up(self.record(**spec), lambda: self.told.append(name))

    def free(self, count=1):
        for _ in range(count):
            assert self.pool.cancel(self.holders.pop().id, Reason.USER) == "cancelled"

    def outcome(self, waiter):
        """What leaving the line comes to now."""
        try:
            self.pool.leave(waiter)
        except Rejected as refusal:
            return refusal.code
        return "served"


# Order


def test_first_come_first_served_within_a_priority_and_higher_priorities_first():
    bench = Full(queue_size=5)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -5), ("e", 5)):
        bench.line_up(name, priority=priority)
    for _ in range(5):
        bench.free()
    assert bench.told == ["b", "e", "a", "c", "d"]


def test_who_is_served_holds_a_place_before_he_wakes_and_nobody_else_can_have_it():
    bench = Full()
    waiter = bench.line_up("a")
    bench.free()
    assert waiter.served
    with pytest.raises(QueueFull):
        bench.submit()
    stats = bench.pool.stats()
    assert (stats.reserved, stats.waiting, stats.accepted) == (1, 0, 4)
    bench.pool.leave(waiter)
    bench.pool.accept(waiter.record)
    assert waiter.record.state is JobState.QUEUED


def test_nobody_waits_while_there_is_room():
    bench = Bench(workers=1, queue_size=1)
    record = bench.record()
    assert bench.pool.line_up(record, lambda: None) is None
    assert record in bench.pool._reserved
    assert bench.pool.stats().waiting == 0


def test_a_big_one_at_the_head_is_overtaken_by_no_small_newcomer_of_its_priority_or_below():
    bench = Full(queue_size=9, queue_bytes=110, max_payload_bytes=100)  # ten jobs of 7 bytes
    big = bench.line_up("big", payload="x" * 60)
    bench.free(2)
    assert not big.served
    for priority in (0, -1):
        with pytest.raises(QueueFull):
            bench.submit(payload="x", priority=priority)
    small = bench.line_up("small", payload="x" * 5)
    assert small is not None
    assert bench.told == []
    bench.free()
    assert bench.told == ["big"]
    bench.free()
    assert bench.told == ["big", "small"]


def test_a_more_important_one_passes_a_big_one_at_the_head():
    bench = Full(queue_size=9, queue_bytes=110, max_payload_bytes=100)
    big = bench.line_up("big", payload="x" * 100)
    bench.free(3)
    bench.submit(payload="x", priority=1)
    assert not big.served
    urgent = bench.line_up("urgent", payload="x" * 100, priority=1)
    assert urgent is not None


def test_a_less_important_waiter_that_would_fit_does_not_pass_a_big_one():
    """Else a stream of small unimportant jobs would keep a big important one waiting."""
    bench = Full(queue_size=9, queue_bytes=110, max_payload_bytes=100)
    bench.line_up("big", payload="x" * 100, priority=1)
    bench.line_up("low", payload="x" * 5)
    bench.free()
    assert bench.told == []


def test_a_low_priority_waits_for_its_share_of_the_queue():
    bench = Full(queue_size=4, priority_shares={-1: 0.5})
    bench.line_up("low", priority=-1)
    bench.free()
    bench.free()
    assert bench.told == []
    bench.free()
    assert bench.told == ["low"]


def test_several_are_served_by_one_big_job_that_goes():
    bench = Bench(workers=1, queue_size=9, queue_bytes=30, max_payload_bytes=30)
    big = bench.submit(payload="x" * 30)
    told = []
    for name in "abcd":
        bench.pool.line_up(bench.record(payload="x" * 10), lambda name=name: told.append(name))
    bench.pool.cancel(big.id, Reason.USER)
    assert told == ["a", "b", "c"]
    assert bench.pool.stats().waiting == 1


# Bounds


@pytest.mark.parametrize("queue_size", [0, 1, 3])
def test_as_many_wait_as_the_queue_has_places(queue_size):
    bench = Full(queue_size=queue_size)
    waiters = [bench.line_up() for _ in range(queue_size)]
    with pytest.raises(QueueFull) as caught:
        bench.line_up()
    assert ("wait for a place" in str(caught.value)) == bool(queue_size)
    stats = bench.pool.stats()
    assert (stats.waiting, stats.rejected) == (queue_size, {"queue_full": 1})
    for waiter in waiters[:1]:
        bench.outcome(waiter)
        bench.line_up()


def test_waiting_is_refused_where_it_could_not_help():
    bench = Full(owner_limit=1)
    bench.free()
    bench.submit(owner="ann")
    for kind, spec in ((OwnerLimit, {"owner": "ann"}), (Expired, {"deadline": 0.0})):
        with pytest.raises(kind):
            bench.line_up(**spec)
    assert bench.pool.stats().waiting == 0
    bench.pool.pause(refuse=True)
    with pytest.raises(Paused):
        bench.line_up()
    bench.pool.draining = True
    with pytest.raises(Draining):
        bench.line_up()
    assert bench.pool.stats().waiting == 0


def test_who_waits_because_of_its_size_waits_too():
    bench = Bench(queue_bytes=20, max_payload_bytes=20)
    first = bench.submit(payload="x" * 15)
    waiter = bench.pool.line_up(bench.record(payload="x" * 15), lambda: None)
    bench.pool.cancel(first.id, Reason.USER)
    assert waiter.served


# The end of a wait


def test_a_wait_that_times_out_leaves_nothing_queued():
    bench = Full()
    waiter = bench.line_up("late")
    with pytest.raises(WaitTimeout) as caught:
        bench.pool.leave(waiter)
    assert (caught.value.code, caught.value.pool) == ("wait_timeout", "default")
    bench.free(2)
    assert (waiter.served, bench.told) == (False, [])
    bench.pool.accept(waiter.record)
    assert waiter.record.state is JobState.SUBMITTED
    stats = bench.pool.stats()
    assert (stats.waiting, stats.reserved, stats.queued, stats.rejected) == (0, 0, 2, {"wait_timeout": 1})
    assert bench.pool._line == {}
    rejections = [event for event in bench.events if event.kind is Kind.JOB_REJECTED]
    assert [(event.code, event.key) for event in rejections] == [("wait_timeout", None)]


def test_a_place_that_came_in_the_last_moment_is_taken():
    bench = Full()
    waiter = bench.line_up()
    bench.free()
    assert bench.outcome(waiter) == "served"
    assert bench.outcome(waiter) == "served"
    assert bench.pool.stats().rejected == {}


@pytest.mark.parametrize("granted", [False, True], ids=["while it waits", "in the moment of its place"])
def test_a_caller_that_is_gone_leaves_its_place_to_the_next(granted):
    bench = Full()
    gone, following = bench.line_up("gone"), bench.line_up("next")
    if granted:
        bench.free()
        assert gone.served
    bench.pool.desert(gone)
    if not granted:
        bench.free()
    assert following.served
    assert not gone.served or gone.record.state is JobState.REJECTED
    stats = bench.pool.stats()
    assert (stats.reserved, stats.waiting, stats.rejected) == (1, 0, {})
    bench.pool.desert(gone)
    assert bench.pool.stats().reserved == 1


@pytest.mark.parametrize(
    ("shut", "code"),
    [
        (lambda bench: bench.pool.begin_drain(None), "draining"),
        (lambda bench: bench.pool.begin_drain(bench.clock.monotonic()), "draining"),
        (lambda bench: bench.pool.drain(0), "draining"),
        (lambda bench: bench.pool.pause(refuse=True), "paused"),
    ],
    ids=["begin_drain", "begin_drain with a horizon", "drain", "pause"],
)
def test_a_pool_that_closes_tells_everybody_who_waits_at_once(shut, code):
    bench = Full(queue_size=5)
    waiters = [bench.line_up(str(number), priority=number % 2) for number in range(5)]
    shut(bench)
    assert sorted(bench.told) == ["0", "1", "2", "3", "4"]
    assert [bench.outcome(waiter) for waiter in waiters] == [code] * 5
    assert bench.pool.stats().waiting == 0
    assert bench.pool.stats().rejected == {code: 5}


def test_a_pause_that_refuses_nobody_lets_the_line_stand():
    bench = Full()
    waiter = bench.line_up()
    bench.pool.pause()
    assert bench.told == []
    bench.free()
    assert waiter.served


@pytest.mark.parametrize("how", ["resize", "withdraw", "finish", "fail", "start deadline", "forfeit", "shed"])
def test_every_way_a_place_frees_serves_the_line(how):
    bench = Bench(workers=1, queue_size=2, shed=True)
    running = bench.submit(priority=5)
    bench.take()
    queued = bench.submit(start_deadline=5.0, priority=5, payload="x" * 50)
    reserved = bench.record(priority=5)
    bench.pool.reserve(reserved)
    told = []
    waiter = bench.pool.line_up(bench.record(priority=1), lambda: told.append(1))
    assert not waiter.served
    {
        "resize": lambda: bench.pool.resize(workers=2),
        "withdraw": lambda: bench.pool.withdraw(reserved),
        "finish": lambda: bench.pool.attempt_returned(running, None),
        "fail": lambda: bench.pool.attempt_raised(running, ValueError()),
        "start deadline": lambda: bench.advance(5),
        "forfeit": lambda: bench.pool.forfeit(uuid7()),
        "shed": lambda: bench.pool.cancel(queued.id, Reason.SHED),
    }[how]()
    assert waiter.served
    assert told == [1]


def test_a_deadline_that_passes_while_one_waits_is_answered_with_expired():
    bench = Full()
    expired, patient = bench.line_up("expired", deadline=5.0), bench.line_up("patient")
    bench.advance(6)
    bench.free()
    assert (expired.served, patient.served) == (False, True)
    assert bench.outcome(expired) == "expired"


def test_an_owner_over_its_limit_when_its_turn_comes_is_refused_and_the_next_one_served():
    bench = Full(owner_limit=1)
    waiters = [bench.line_up(name, owner="ann") for name in "ab"]
    other = bench.line_up("c", owner="bob")
    bench.free()
    assert waiters[0].served
    bench.free()
    assert (waiters[1].served, other.served) == (False, True)
    assert bench.told == ["a", "b", "c"]
    assert [bench.outcome(waiter) for waiter in (*waiters, other)] == ["served", "owner_limit", "served"]
    assert bench.pool._owners == {"ann": 1, "bob": 1}


def test_an_owner_who_waits_twice_is_told_as_soon_as_the_first_place_is_his_share():
    bench = Full(owner_limit=1)
    first, second = bench.line_up("a", owner="ann"), bench.line_up("b", owner="ann")
    bench.free()
    assert bench.told == ["a", "b"]
    assert [bench.outcome(first), bench.outcome(second)] == ["served", "owner_limit"]
    assert bench.pool._owners == {"ann": 1}


@pytest.mark.parametrize("end", ["leave", "desert"])
@pytest.mark.parametrize("priority", [0, -1])
def test_who_gives_up_at_the_head_lets_those_behind_have_what_is_free(end, priority):
    bench = Full(queue_size=9, queue_bytes=110, max_payload_bytes=100)
    big = bench.line_up("big", payload="x" * 100)
    small = bench.line_up("small", payload="x" * 5, priority=priority)
    bench.free()
    assert bench.told == []
    with contextlib.suppress(WaitTimeout):
        getattr(bench.pool, end)(big)
    assert (big.served, small.served, bench.told) == (False, True, ["small"])


# Threads


@pytest.fixture
def busy():
    """A pool of one worker and no queue but one place, both taken until the gate opens."""
    bench = Bench(threaded=True, workers=1, queue_size=1)
    bench.gate = threading.Event()
    started = threading.Event()
    bench.submit(lambda: (started.set(), bench.gate.wait(30)) and None)
    assert started.wait(10)
    bench.submit()
    yield bench
    bench.gate.set()
    bench.close()


def waiting(bench, count):
    until(lambda: bench.pool.stats().waiting == count)


def test_a_thread_waits_no_longer_than_it_said(busy):
    began = time.monotonic()
    record = busy.record()
    with pytest.raises(WaitTimeout):
        busy.pool.reserve_within(record, 0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert busy.pool.stats().waiting == busy.pool.stats().reserved == 0
    assert record.state is JobState.SUBMITTED


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_wait_without_time_is_over_at_once(busy, seconds):
    with pytest.raises(WaitTimeout):
        busy.pool.reserve_within(busy.record(), seconds)
    with pytest.raises(WaitTimeout):
        run_async(busy.pool.areserve_within)(busy.record(), seconds)
    assert busy.pool.stats().waiting == 0


def test_a_thread_that_waits_longer_than_the_system_can_count_is_served(busy):
    threading.Timer(0.05, busy.gate.set).start()
    busy.pool.reserve_within(busy.record(), 1e300)


def test_a_waiting_thread_gets_the_place_that_frees(busy):
    record = busy.record()
    thread = threading.Thread(target=busy.pool.reserve_within, args=(record, 30))
    thread.start()
    waiting(busy, 1)
    busy.gate.set()
    thread.join(10)
    assert not thread.is_alive()
    busy.pool.accept(record)
    assert busy.pool.done_event(record).wait(10)


def test_what_a_signal_handler_raises_in_a_wait_leaves_nothing(busy, monkeypatch):
    class Gate:
        """A lock whose second acquire, the wait, is interrupted."""

        def __init__(self):
            self.acquired = 0

        def acquire(self, timeout=None):
            self.acquired += 1
            if self.acquired == 2:
                raise KeyboardInterrupt

        def release(self):
            """Nobody waits."""

    monkeypatch.setattr("django_boundedpool.engine.waiting.threading.Lock", Gate)
    with pytest.raises(KeyboardInterrupt):
        busy.pool.reserve_within(busy.record(), 30)
    monkeypatch.undo()
    assert busy.pool.stats().waiting == busy.pool.stats().reserved == 0


def test_O05_twenty_wait_while_one_place_frees_at_a_time_and_five_give_up():
    """First come first served; whenever a job ends, whoever waits first has its place by then: none is left idle."""
    bench = Bench(threaded=True, workers=1, queue_size=20)
    turn = threading.Semaphore(0)
    jobs = [bench.submit(lambda: turn.acquire(timeout=30) and None) for _ in range(21)]
    served, refused, threads = [], [], []

    def caller(number):
        record = bench.record(lambda: turn.acquire(timeout=30) and None)
        try:
            bench.pool.reserve_within(record, 0.05 if number % 4 == 3 else 30)
        except WaitTimeout:
            refused.append(number)
        else:
            served.append(number)
            bench.pool.accept(record)

    for number in range(20):
        threads.append(threading.Thread(target=caller, args=(number,)))
        threads[-1].start()
        if number % 4 == 3:
            threads[-1].join(10)  # gives up before any place frees
        else:
            waiting(bench, number + 1 - (number + 1) // 4)
    assert refused == [3, 7, 11, 15, 19]
    for expected in range(1, 16):
        turn.release()
        assert bench.pool.done_event(jobs[expected - 1]).wait(10)
        stats = bench.pool.stats()
        assert len(bench.pool._live) == 21  # the place of the job that ended is taken again already
        assert stats.waiting == 15 - expected
        until(lambda so_many=expected: len(served) >= so_many)
    assert served == [number for number in range(20) if number % 4 != 3]
    for _ in range(40):
        turn.release()
    for thread in threads:
        thread.join(10)
    assert bench.pool.wait_empty(20)
    assert bench.pool.stats().rejected == {"wait_timeout": 5}
    bench.close()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
@pytest.mark.parametrize("way", ["thread", "asyncio"])
def test_O05_a_jump_of_the_wall_clock_changes_no_wait(busy, monkeypatch, jump, way):
    real = time.time
    timer = threading.Timer(0.1, lambda: monkeypatch.setattr(time, "time", lambda: real() + jump))
    timer.start()
    began = time.monotonic()
    wait = busy.pool.reserve_within if way == "thread" else run_async(busy.pool.areserve_within)
    with pytest.raises(WaitTimeout):
        wait(busy.record(), 0.4)
    assert 0.4 <= time.monotonic() - began < 5
    timer.join()
    monkeypatch.undo()


# asyncio


def run_async(function):
    return lambda *args: asyncio.run(function(*args))


async def stands_in_line(bench):
    """Let the tasks of this loop run until one of them waits."""
    for _ in range(1000):
        if bench.pool.stats().waiting:
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody waits")


def pass_time(seconds):
    """Let real time pass, unseen by a running loop."""
    time.sleep(seconds)


def test_a_waiting_coroutine_gets_the_place_that_frees_and_blocks_no_loop(busy):
    async def main():
        record = busy.record()
        task = asyncio.create_task(busy.pool.areserve_within(record, 30))
        ticks = 0
        await stands_in_line(busy)
        for _ in range(50):
            await asyncio.sleep(0)
            ticks += 1
        busy.gate.set()
        await asyncio.wait_for(task, 10)
        return record, ticks

    record, ticks = asyncio.run(main())
    assert ticks == 50
    assert record in busy.pool._reserved
    busy.pool.accept(record)


def test_a_cancelled_wait_leaves_nothing(busy):
    async def main():
        task = asyncio.create_task(busy.pool.areserve_within(busy.record(), 30))
        await stands_in_line(busy)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    stats = busy.pool.stats()
    assert (stats.waiting, stats.reserved, stats.rejected) == (0, 0, {})


@pytest.mark.parametrize("order", ["granted first", "cancelled first"])
def test_a_wait_cancelled_in_the_moment_of_its_place_gives_it_to_the_next(order):
    bench = Full()

    async def main():
        record = bench.record()
        task = asyncio.create_task(bench.pool.areserve_within(record, 30))
        await asyncio.sleep(0)
        assert bench.pool.stats().waiting == 1
        following = bench.line_up("next")
        # Both before the task runs again.
        for step in (bench.free, task.cancel) if order == "granted first" else (task.cancel, bench.free):
            step()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        return following

    following = asyncio.run(main())
    assert following.served
    stats = bench.pool.stats()
    assert (stats.waiting, stats.reserved) == (0, 1)


def test_a_wait_that_times_out_in_the_moment_of_its_place_has_it():
    bench = Full()

    async def main():
        task = asyncio.create_task(bench.pool.areserve_within(bench.record(), 0.001))
        await asyncio.sleep(0)
        pass_time(0.01)
        bench.free()
        await task

    asyncio.run(main())
    assert bench.pool.stats().reserved == 1


@pytest.mark.parametrize(("shut", "kind"), [("drain", Draining), ("pause", Paused)])
def test_a_closing_pool_ends_every_coroutines_wait_at_once(shut, kind):
    bench = Full(queue_size=5)

    async def main():
        tasks = [asyncio.create_task(bench.pool.areserve_within(bench.record(), 30)) for _ in range(5)]
        await asyncio.sleep(0)
        bench.pool.begin_drain(None) if shut == "drain" else bench.pool.pause(refuse=True)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(main())] == [kind] * 5


def test_a_loop_that_was_closed_under_a_waiter_gives_the_place_to_the_next():
    bench = Full()
    loop = asyncio.new_event_loop()
    task = loop.create_task(bench.pool.areserve_within(bench.record(), 30))
    loop.run_until_complete(asyncio.sleep(0))
    assert bench.pool.stats().waiting == 1
    following = bench.line_up("next")
    loop.close()
    bench.free()
    assert following.served
    assert (bench.pool.stats().waiting, bench.pool.stats().reserved) == (0, 1)
    # What asyncio would say of a task that was never finished is not what this is about.
    task._log_destroy_pending = False
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()


def test_ten_coroutines_and_ten_threads_share_one_line(busy):
    """Whoever waits longest is served, whatever it is; nobody is forgotten."""
    bench = Bench(threaded=True, workers=1, queue_size=20)
    gate = threading.Event()
    for _ in range(21):
        bench.submit(lambda: gate.wait(30) and None)
    records = [bench.record() for _ in range(20)]

    def by_thread(record):
        bench.pool.reserve_within(record, 30)
        bench.pool.accept(record)

    async def by_loop(record):
        await bench.pool.areserve_within(record, 30)
        bench.pool.accept(record)

    async def main():
        await asyncio.gather(*map(by_loop, records[:10]))

    threads = [threading.Thread(target=by_thread, args=(record,)) for record in records[10:]]
    threads.append(threading.Thread(target=lambda: asyncio.run(main())))
    for thread in threads:
        thread.start()
    waiting(bench, 20)
    gate.set()
    for thread in threads:
        thread.join(20)
    assert bench.pool.wait_empty(20)
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert bench.pool.stats().rejected == {}
    bench.close()


def test_bytes_full_is_what_a_wait_of_no_room_for_waiters_says():
    bench = Bench(workers=1, queue_size=0, queue_bytes=20, max_payload_bytes=20)
    bench.submit(payload="x" * 20)
    bench.pool.resize(workers=2)
    with pytest.raises(BytesFull):
        bench.pool.line_up(bench.record(payload="x"), lambda: None)
