"""The event loop on which async jobs run."""

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_boundedpool.engine.event_loop import EventLoop, Flight

LOGGER = "django_boundedpool.engine"
variable = contextvars.ContextVar("variable", default="unset")


class Landing:
    """Takes what a flight reports."""

    def __init__(self):
        self.calls = []
        self.thread = None
        self.over = threading.Event()

    def __call__(self, value, error):
        self.calls.append((value, error))
        self.thread = threading.current_thread()
        self.over.set()

    @property
    def value(self):
        value, error = self._only()
        assert error is None, repr(error)
        return value

    @property
    def error(self):
        value, error = self._only()
        assert value is None
        return error

    def _only(self):
        assert self.over.wait(20)
        [call] = self.calls
        return call


class Own(BaseException):
    pass


class Box:
    """Something that a weak reference can follow."""


@pytest.fixture
def loop(caplog):
    loop = EventLoop()
    yield loop
    assert loop.stop(20)
    assert len(loop) == 0
    assert not [record for record in caplog.records if record.name == "asyncio"]


def launch(loop, begin):
    landing = Landing()
    landing.flight = loop.launch(begin, landing)
    return landing


async def forever():
    await asyncio.get_running_loop().create_future()


async def give(value):
    return value


async def fail(error):
    raise error


def settle(loop):
    """Wait until the loop has done what was asked of it before."""
    assert launch(loop, lambda: give("settled")).value == "settled"


def warnings_of(caplog):
    return [record for record in caplog.records if record.name == LOGGER]


# Launching


def test_a_flight_reports_the_value_of_its_coroutine_on_the_loops_thread(loop):
    landing = launch(loop, lambda: give(3))
    assert landing.value == 3
    assert landing.thread is loop.thread
    assert loop.thread.daemon
    assert loop.thread.name == "boundedpool-loop"


def test_the_first_launch_starts_the_thread_and_later_starts_change_nothing():
    loop = EventLoop("named")
    assert loop.thread is None
    assert launch(loop, lambda: give(1)).value == 1
    thread = loop.thread
    loop.start()
    assert loop.thread is thread
    assert thread.name == "named"
    assert loop.stop(20)
    assert not thread.is_alive()


def test_many_threads_that_start_at_once_get_one_thread():
    for _ in range(20):
        loop = EventLoop()
        gate = threading.Barrier(4)

        def begin(loop=loop, gate=gate):
            gate.wait(10)
            return launch(loop, lambda: give(threading.current_thread()))

        with ThreadPoolExecutor(4) as callers:
            landings = [future.result(20) for future in [callers.submit(begin) for _ in range(4)]]
        assert {landing.value for landing in landings} == {loop.thread}
        assert loop.stop(20)


def test_a_system_without_threads_is_reported_and_the_next_launch_tries_again(loop, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.start()
        landing = Landing()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.launch(lambda: give(1), landing)
    assert (loop.thread, len(loop), landing.calls) == (None, 0, [])
    assert launch(loop, lambda: give(2)).value == 2
    assert landing.calls == []


def test_a_start_interrupted_by_a_signal_handler_keeps_its_thread(loop, monkeypatch):
    real = threading.Thread.start

    def start(thread):
        real(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            loop.start()
    assert launch(loop, lambda: give(threading.current_thread())).value is loop.thread


def test_a_wake_up_interrupted_by_a_signal_handler_is_made_up_for_by_the_next(loop, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    loop.start()
    first = Landing()
    with monkeypatch.context() as patch:
        patch.setattr(loop._loop, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.launch(lambda: give(1), first)
    assert launch(loop, lambda: give(2)).value == 2
    assert first.value == 1


def test_a_system_without_descriptors_is_reported_as_a_runtime_error(loop, monkeypatch):
    def refuse(*args):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("django_boundedpool.engine.event_loop._Loop", refuse)
        with pytest.raises(RuntimeError, match="Too many open files"):
            loop.start()
    assert launch(loop, lambda: give(2)).value == 2


def test_launches_from_many_threads_and_from_flights_are_each_done_once(loop):
    count = 500
    landings = []

    async def parent(number):
        landings.append(launch(loop, lambda: give(-number)))
        await asyncio.sleep(0)
        return number

    def many(start):
        landings.extend(launch(loop, lambda number=number: parent(number)) for number in range(start, start + count))

    threads = [threading.Thread(target=many, args=(part * count + 1,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {sign * number for number in range(1, 4 * count + 1) for sign in (1, -1)}
    settle(loop)
    assert sorted(landing.value for landing in landings) == sorted(expected)


def test_a_burst_wakes_the_loop_once(loop, monkeypatch):
    """Checked by hand: without the flag `_awake` this counts 1,000."""
    held, release = threading.Event(), threading.Event()

    async def hold():
        held.set()
        release.wait(20)  # blocks the whole loop

    wakes = []
    first = launch(loop, hold)
    assert held.wait(20)
    real = loop._loop.call_soon_threadsafe
    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", lambda *args, **kw: (wakes.append(1), real(*args, **kw)))
    landings = [launch(loop, lambda number=number: give(number)) for number in range(1000)]
    assert len(loop) == 1001
    assert len(wakes) == 1
    release.set()
    assert first.value is None
    assert [landing.value for landing in landings] == list(range(1000))


# Contexts


def test_neither_thread_nor_flight_sees_the_context_of_the_launcher_or_of_another_flight(loop):
    variable.set("launcher's")
    seen = []

    async def job():
        seen.append(variable.get())
        variable.set("a job's")
        await asyncio.sleep(0)
        return variable.get()

    def done(value, error):
        seen.append(variable.get())
        landing(value, error)

    for _ in range(2):
        landing = Landing()
        loop.launch(job, done)
        assert landing.value == "a job's"
    assert seen == ["unset"] * 4


def test_begin_runs_inside_the_task_and_the_context_of_its_flight(loop):
    seen = {}

    def begin():
        variable.set("from begin")
        seen["task"] = asyncio.current_task()
        seen["thread"] = threading.current_thread()
        return job()

    async def job():
        assert asyncio.current_task() is seen["task"]
        return variable.get()

    assert launch(loop, begin).value == "from begin"
    assert seen["thread"] is loop.thread


# Errors


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        MemoryError(),
        Own(),
        asyncio.CancelledError(),
        BaseExceptionGroup("group", [SystemExit(1), ValueError("x")]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["begin", "first step", "later step", "child", "task group"])
def test_whatever_a_job_raises_is_its_error_and_the_loop_goes_on(loop, error, place):
    async def later():
        await asyncio.sleep(0)
        raise error

    async def parent():
        await asyncio.create_task(later())

    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(later())
            await forever()

    def begin():
        if place == "begin":
            raise error
        return {"first step": lambda: fail(error), "later step": later, "child": parent, "task group": group}[place]()

    cancelled = isinstance(error, asyncio.CancelledError)
    landing = Landing()
    flight = loop.launch(begin, landing)
    if place == "task group" and cancelled:
        flight.cancel()  # a child's own cancellation is none of the group's
    reported = landing.error
    if place == "task group" and not isinstance(error, SystemExit | KeyboardInterrupt | asyncio.CancelledError):
        assert reported.exceptions == (error,)
    elif cancelled:
        assert isinstance(reported, asyncio.CancelledError)
    else:
        assert reported is error
    assert launch(loop, lambda: give("on")).value == "on"
    assert loop.thread.is_alive()


def test_the_traceback_of_an_error_begins_in_the_jobs_code(loop):
    for error in (ValueError("x"), SystemExit(1)):
        trace = launch(loop, lambda error=error: fail(error)).error.__traceback__
        assert trace.tb_frame.f_code is fail.__code__


def test_an_error_that_refuses_assignments_is_reported_all_the_same(loop):
    class Frozen(Exception):
        def __setattr__(self, name, value):
            raise AttributeError(name)

    assert isinstance(launch(loop, lambda: fail(Frozen())).error, Frozen)


def test_what_is_no_coroutine_is_an_error(loop):
    assert isinstance(launch(loop, lambda: 3).error, TypeError)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), Own()], ids=repr)
def test_a_report_that_raises_is_logged_and_harms_nothing(loop, caplog, error):
    called = threading.Event()

    def done(value, raised):
        called.set()
        raise error

    loop.launch(lambda: give(1), done)
    assert called.wait(20)
    settle(loop)
    [record] = warnings_of(caplog)
    assert record.levelno == logging.ERROR
    assert record.exc_info[1] is error
    assert len(loop) == 0


def test_a_callback_that_raises_system_exit_does_not_end_the_loop(loop):
    def leave():
        raise SystemExit(1)

    async def job():
        asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "on"

    assert launch(loop, job).value == "on"


def test_jobs_that_stop_or_close_the_loop_do_not_end_it(loop):
    async def stopping():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "on"

    async def closing():
        asyncio.get_running_loop().close()

    waiting = launch(loop, lambda: asyncio.sleep(0.05, "waited"))
    assert launch(loop, stopping).value == "on"
    assert isinstance(launch(loop, closing).error, RuntimeError)
    assert waiting.value == "waited"


def test_a_job_that_cancels_every_task_of_the_loop_leaves_no_flight_unreported(loop):
    """Checked by hand: without the look at `_begin` in `_landed`, `unbegun` is reported as a success."""
    landings = {}

    async def vandal():
        # Launched within one burst: their tasks have not made their first step.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def hold():
        held.set()
        release.wait(20)

    held, release = threading.Event(), threading.Event()
    launch(loop, hold)
    assert held.wait(20)
    landings["vandal"] = launch(loop, vandal)
    landings["unbegun"] = launch(loop, lambda: pytest.fail("must not begin"))
    release.set()
    assert landings["vandal"].value is None
    assert isinstance(landings["unbegun"].error, asyncio.CancelledError)


# Cancellation


def test_a_cancelled_flight_sees_it_at_its_next_await(loop):
    waiting = threading.Event()
    seen = []

    async def job():
        try:
            waiting.set()
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    landing = launch(loop, job)
    assert waiting.wait(20)
    landing.flight.cancel()
    assert isinstance(landing.error, asyncio.CancelledError)
    assert seen == ["cancelled"]


def test_a_flight_cancelled_before_it_has_begun_never_begins(loop):
    held, release = threading.Event(), threading.Event()

    async def hold():
        held.set()
        release.wait(20)

    launch(loop, hold)
    assert held.wait(20)
    begun, seen = [], []
    landing = Landing()
    variable.set("launcher's")
    flight = loop.launch(
        lambda: begun.append(1) or give(1), lambda value, error: (seen.append(variable.get()), landing(value, error))
    )
    flight.cancel()
    release.set()
    assert isinstance(landing.error, asyncio.CancelledError)
    assert begun == []
    assert seen == ["unset"]


def test_a_flight_cancelled_between_its_task_and_its_first_step_never_begins(loop):
    begun = []
    landing = Landing()

    async def first():
        # The loop makes both tasks in one go, so the second one waits for its first step now.
        second.flight._cancelled = True

    held, release = threading.Event(), threading.Event()

    async def hold():
        held.set()
        release.wait(20)

    launch(loop, hold)
    assert held.wait(20)
    launch(loop, first)
    second = Landing()
    second.flight = loop.launch(lambda: begun.append(1) or give(1), second)
    release.set()
    assert isinstance(second.error, asyncio.CancelledError)
    assert begun == landing.calls == []


def test_cancelling_again_or_afterwards_is_harmless(loop):
    waiting = threading.Event()
    seen = []

    async def stubborn():
        waiting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        try:
            await asyncio.sleep(0.05)  # time for a second cancellation, which must not come
        except asyncio.CancelledError:
            seen.append("twice")
        return "value"

    landing = launch(loop, stubborn)
    assert waiting.wait(20)
    for _ in range(3):
        landing.flight.cancel()
    settle(loop)
    landing.flight.cancel()
    assert landing.value == "value"  # swallowed: its later value counts
    landing.flight.cancel()
    settle(loop)
    assert seen == []
    assert len(landing.calls) == 1


def test_cancelling_from_many_threads_while_flights_begin_and_end_reports_each_once(loop):
    landings = [launch(loop, lambda: asyncio.sleep(0.001, "value")) for _ in range(300)]

    def cancel(flights):
        for flight in flights:
            flight.cancel()

    flights = [landing.flight for landing in landings]
    threads = [threading.Thread(target=cancel, args=(flights[part::2],)) for part in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for landing in landings:
        assert landing.over.wait(20)
        [(value, error)] = landing.calls
        assert value == "value" or isinstance(error, asyncio.CancelledError)


# What a flight leaves


def test_tasks_left_pending_are_cancelled_and_awaited_before_the_flight_is_done(loop):
    events = []
    loops = []

    async def child(name, start=None):
        if start is not None:
            loops.append(start())
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            events.append(name)

    async def job():
        running = asyncio.get_running_loop()
        loops.append(asyncio.create_task(child("plain", lambda: asyncio.create_task(child("grandchild")))))
        loops.append(asyncio.ensure_future(child("ensured")))
        loops.append(running.create_task(child("loop's")))
        loops.append(asyncio.create_task(child("own context"), context=contextvars.Context()))
        grouped = asyncio.create_task(group())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loops.append(grouped)

    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child("grouped"))

    landing = Landing()
    loop.launch(job, lambda value, error: (events.append("done"), landing(value, error)))
    assert landing.value is None
    assert events[-1] == "done"
    assert sorted(events[:-1]) == ["ensured", "grandchild", "grouped", "loop's", "own context", "plain"]
    assert all(task.cancelled() for task in loops)


def test_a_task_with_a_foreign_context_and_its_children_belong_to_their_flight(loop):
    shared = contextvars.Context()
    ended = []

    async def grandchild(name):
        try:
            await forever()
        finally:
            ended.append(name)

    async def child(name):
        kept.append(asyncio.create_task(grandchild(name)))
        await forever()

    async def job(name, until):
        kept.append(asyncio.create_task(child(name), context=shared))
        started[name].set()
        await until.wait()

    kept = []
    started = {"one": threading.Event(), "two": threading.Event()}
    gates = {}

    async def one():
        gates["one"] = asyncio.Event()
        await job("one", gates["one"])

    async def two():
        await job("two", asyncio.Event())

    first, second = launch(loop, one), launch(loop, two)
    assert all(event.wait(20) for event in started.values())
    settle(loop)
    loop._loop.call_soon_threadsafe(gates["one"].set)
    assert first.value is None
    assert ended == ["one"]  # the other flight's, in the same context, goes on
    second.flight.cancel()
    assert isinstance(second.error, asyncio.CancelledError)
    assert ended == ["one", "two"]


def test_a_task_started_by_a_callback_belongs_to_the_flight_of_the_callback(loop):
    ended = []

    async def child():
        try:
            await forever()
        finally:
            ended.append("child")

    async def job():
        running = asyncio.get_running_loop()
        running.call_soon(lambda: kept.append(running.create_task(child())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    kept = []
    assert launch(loop, job).value is None
    assert ended == ["child"]


def test_what_left_tasks_start_while_cleaning_up_may_finish_and_is_else_cancelled_in_later_rounds(loop):
    events = []

    async def cleanup():
        await asyncio.sleep(0.01)
        events.append("cleaned")

    async def deep(level):
        try:
            await forever()
        finally:
            events.append(level)
            if level:
                kept.append(asyncio.create_task(deep(level - 1)))

    async def child():
        try:
            await forever()
        finally:
            await asyncio.create_task(cleanup())
            kept.append(asyncio.create_task(deep(3)))
            await asyncio.sleep(0)

    async def job():
        kept.append(asyncio.create_task(forever()))  # ends at once, which must not start a new round
        kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)

    kept = []
    assert launch(loop, job).value is None
    assert events[0] == "cleaned"
    assert all(task.done() for task in kept)


def test_a_left_task_that_refuses_to_end_keeps_the_flight_open(loop):
    refusing = threading.Event()
    gate = {}

    async def child():
        gate["open"] = asyncio.Event()
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        refusing.set()
        await gate["open"].wait()

    async def job():
        kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)
        return "value"

    kept = []
    landing = launch(loop, job)
    assert refusing.wait(20)
    settle(loop)
    assert (landing.calls, len(loop)) == ([], 1)
    loop._loop.call_soon_threadsafe(gate["open"].set)
    assert landing.value == "value"


def test_cancelling_a_flight_whose_code_is_over_cancels_what_refuses_to_end(loop):
    refusing = threading.Event()

    async def child():
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        refusing.set()
        await forever()

    async def job():
        kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)
        return "value"

    kept = []
    landing = launch(loop, job)
    assert refusing.wait(20)
    landing.flight.cancel()
    assert landing.value == "value"


def test_a_left_task_that_fails_is_logged_once(loop, caplog):
    error = ValueError("while cleaning up")

    async def child():
        try:
            await forever()
        finally:
            raise error

    async def waits(task):
        await task  # has taken the error, so only this one is logged

    async def job():
        kept.append(asyncio.create_task(waits(asyncio.create_task(child()))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "value"

    kept = []
    assert launch(loop, job).value == "value"
    kept.clear()
    gc.collect()
    [record] = warnings_of(caplog)
    assert record.levelno == logging.WARNING
    assert record.exc_info[1] is error


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Own()], ids=repr)
def test_a_left_task_that_ends_with_system_exit_or_its_kin_does_not_end_the_loop(loop, caplog, error):
    async def child():
        try:
            await forever()
        finally:
            raise error

    async def job():
        kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)
        return "value"

    kept = []
    assert launch(loop, job).value == "value"
    settle(loop)
    [record] = warnings_of(caplog)
    assert record.exc_info[1] is error


def test_the_error_of_a_task_that_failed_unseen_while_the_job_ran_is_reported_by_asyncio(caplog):
    loop = EventLoop()

    async def job():
        asyncio.create_task(fail(ValueError("unseen")))  # noqa: RUF006
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "value"

    assert launch(loop, job).value == "value"
    assert loop.stop(20)
    gc.collect()
    [record] = caplog.records
    assert (record.name, record.exc_info[1].args) == ("asyncio", ("unseen",))


@pytest.mark.parametrize("how", ["kept", "dropped at the end", "dropped before", "unwound by an error"])
def test_async_generators_left_suspended_are_closed_before_the_flight_is_done(loop, how):
    events = []

    async def generator():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.01)  # not interrupted: the flight waits for it
            events.append((how, variable.get(), threading.current_thread() is loop.thread))

    async def job():
        variable.set("the job's")
        numbers = generator()
        if how == "kept":
            kept.append(numbers)
        async for _ in numbers:
            if how == "unwound by an error":
                raise ValueError
            break
        if how == "dropped before":
            del numbers
            await asyncio.sleep(0)

    kept = []
    landing = Landing()
    loop.launch(job, lambda value, error: (events.append("done"), landing(value, error)))
    assert landing.over.wait(20)
    assert events == [(how, "the job's", True), "done"]


def test_async_generators_are_tracked_after_the_loop_was_left_and_entered_again(loop):
    closed = []

    async def generator():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(1)

    async def job():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        kept.append(generator())
        await anext(kept[-1])

    kept = []
    for count in (1, 2):
        assert launch(loop, job).value is None
        assert len(closed) == count


def test_generators_that_iterate_each_other_are_closed_from_the_outside_in(loop, caplog):
    closed = []

    async def inner():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("inner")

    async def outer():
        async with contextlib.aclosing(inner()) as numbers:
            try:
                async for number in numbers:
                    yield number
            finally:
                closed.append("outer")

    async def job():
        kept.append(outer())
        await anext(kept[0])

    kept = []
    assert launch(loop, job).value is None
    assert closed == ["outer", "inner"]
    assert warnings_of(caplog) == []


def test_async_generators_that_fail_or_refuse_to_close_are_logged(loop, caplog):
    async def failing():
        try:
            yield 1
        finally:
            raise SystemExit(1)

    async def refusing():
        while True:
            try:
                yield 1
            except GeneratorExit:
                if not refuse:
                    raise

    async def job():
        for kind in (failing, refusing):
            kept.append(kind())
            await anext(kept[-1])
        return "value"

    refuse, kept = [True], []
    assert launch(loop, job).value == "value"
    assert [record.levelno for record in warnings_of(caplog)] == [logging.WARNING] * 2
    # Dropped while it would not refuse again: Python complains about that itself.
    refuse.clear()
    caplog.clear()
    kept.clear()


def test_a_generator_that_a_left_task_runs_is_closed_after_the_task(loop, caplog):
    events = []

    async def generator():
        try:
            while True:
                await asyncio.sleep(0)
                yield 1
        finally:
            events.append("closed")

    async def child():
        async for _ in numbers:
            pass

    async def job():
        tasks.append(asyncio.create_task(child()))
        await asyncio.sleep(0.01)

    numbers, tasks = generator(), []
    assert launch(loop, job).value is None
    assert events == ["closed"]
    assert warnings_of(caplog) == []


def test_exhausted_generators_do_not_pile_up_in_a_long_flight(loop):
    async def numbers():
        yield 1

    async def job():
        for _ in range(100):
            async for _ in numbers():
                pass
            async for _ in numbers():
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        [flight] = loop._flights
        return len(flight._left._generators), len(flight._left._tasks)

    assert launch(loop, job).value == (0, 0)


@pytest.mark.parametrize("variant", ["succeeds", "fails", "cancelled"])
def test_Y02_async_jobs_again_and_in_parallel_that_leave_things_behind(loop, caplog, variant):
    """A pending task, a suspended generator and a running call in the executor; twice in a row, twice in parallel."""

    def run():
        events, kept = [], []
        waiting, called = threading.Event(), threading.Event()

        async def task():
            try:
                await forever()
            finally:
                await asyncio.sleep(0.01)
                events.append("task")

        async def generator():
            try:
                yield 1
            finally:
                await asyncio.sleep(0.01)
                events.append("generator")

        async def job():
            kept.append(asyncio.create_task(task()))
            kept.append(generator())
            await anext(kept[-1])
            kept.append(asyncio.get_running_loop().run_in_executor(None, called.wait, 20))
            await asyncio.sleep(0)
            waiting.set()
            if variant == "cancelled":
                try:
                    await forever()
                except asyncio.CancelledError:
                    events.append("seen")
                    raise
            if variant == "fails":
                raise ValueError
            return "value"

        landing = launch(loop, job)
        assert waiting.wait(20)
        landing.flight.cancel() if variant == "cancelled" else None
        return landing, events, called, kept

    def check(landing, events, called, kept):
        assert landing.over.wait(20)
        if variant == "succeeds":
            assert landing.value == "value"
        else:
            assert isinstance(landing.error, ValueError if variant == "fails" else asyncio.CancelledError)
        assert events == ["seen"] * (variant == "cancelled") + ["task", "generator"]
        assert kept[0].cancelled()
        called.set()

    check(*run())
    check(*run())
    first, second = run(), run()
    check(*first)
    check(*second)
    assert loop.stop(20)  # waits for the calls
    gc.collect()
    assert caplog.records == []


# Memory


@pytest.mark.parametrize("how", ["value", "error", "no begin", "exit", "cancelled", "unbegun", "child exits", "left"])
def test_nothing_of_a_finished_flight_remains_even_without_the_cycle_collector(loop, how):
    """Checked by hand: without `del begin, self` "no begin" fails, from Python 3.12 on "error" as well."""
    references, errors = [], []
    waiting = threading.Event()

    def box():
        references.append(weakref.ref(thing := Box()))
        return thing

    async def generator(thing):
        yield thing

    async def exits(thing):
        raise SystemExit(thing is None)

    async def waits(thing):
        await forever()

    async def job(thing):
        references.append(weakref.ref(asyncio.current_task()))
        if how == "error":
            raise ValueError
        if how == "exit":
            raise SystemExit
        if how == "child exits":
            await asyncio.create_task(exits(box()))
        if how == "left":
            task = asyncio.create_task(waits(box()))
            references.append(weakref.ref(task))
            await anext(generator(box()))
        if how == "cancelled":
            waiting.set()
            await forever()
        return box()

    def begin(thing):
        if how == "no begin":
            raise ValueError
        return job(thing)

    over = threading.Event()

    def done(value, error):
        if how in ("error", "no begin"):
            errors.append(error)
            traceback.clear_frames(error.__traceback__)  # as a pool does: the lines stay, the locals do not
        over.set()

    def start():
        thing = box()
        # No lambda: a traceback keeps the functions of its frames, and they what they enclose.
        flight = loop.launch(functools.partial(begin, thing), done)
        references.append(weakref.ref(flight))
        if how == "unbegun":
            flight.cancel()
        if how == "cancelled":
            assert waiting.wait(20)
            flight.cancel()

    settle(loop)
    gc.collect()
    gc.disable()
    try:
        if how == "unbegun":
            held, release = threading.Event(), threading.Event()

            async def hold():
                held.set()
                release.wait(20)

            launch(loop, hold)
            assert held.wait(20)
        start()
        if how == "unbegun":
            release.set()
        assert over.wait(20)
        settle(loop)
        settle(loop)
        assert len(references) >= 2
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


def test_a_task_that_ends_with_system_exit_unseen_is_in_no_cycle(caplog):
    """Checked by hand: without `_cut_loose` the task is found by the cycle collector only."""
    loop = EventLoop()
    references = []

    async def job():
        references.append(weakref.ref(asyncio.create_task(fail(SystemExit(1)))))
        for _ in range(3):
            await asyncio.sleep(0)

    settle(loop)
    gc.collect()
    gc.disable()
    try:
        assert launch(loop, job).value is None
        settle(loop)
        assert references[0]() is None
    finally:
        gc.enable()
    assert [record.name for record in caplog.records] == ["asyncio"]  # "never retrieved"
    assert loop.stop(20)


def test_ten_thousand_flights_leave_no_objects_behind(loop):
    async def job(number):
        if number % 10 == 0:
            asyncio.create_task(forever())  # noqa: RUF006
        if number % 10 == 1:
            raise ValueError
        await asyncio.sleep(0)

    def fly(count):
        landings = [launch(loop, lambda number=number: job(number)) for number in range(count)]
        for landing in landings:
            assert landing.over.wait(20)
        del landings
        settle(loop)
        gc.collect()
        return len(gc.get_objects())

    before = fly(100)
    assert fly(10_000) - before < 100
    assert not loop._loop.owners


# Stopping


def test_stop_cancels_what_runs_and_what_has_not_begun_and_ends_the_thread():
    loop = EventLoop()
    waiting = threading.Event()
    ended = []

    async def job():
        try:
            waiting.set()
            await forever()
        finally:
            await asyncio.sleep(0.01)
            ended.append(1)

    running = [launch(loop, job) for _ in range(3)]
    assert waiting.wait(20)
    assert loop.stop(20)
    assert loop.stop(20)
    assert not loop.thread.is_alive()
    assert len(ended) == 3
    assert all(isinstance(landing.error, asyncio.CancelledError) for landing in running)
    assert loop._loop.is_closed()


def test_a_stopped_loop_refuses_launches_and_starts():
    for started in (False, True):
        loop = EventLoop()
        if started:
            loop.start()
        assert loop.stop(20)
        landing = Landing()
        with pytest.raises(RuntimeError, match="was stopped"):
            loop.launch(lambda: give(1), landing)
        with pytest.raises(RuntimeError, match="was stopped"):
            loop.start()
        assert (landing.calls, len(loop)) == ([], 0)


def test_every_launch_that_races_with_stop_is_either_refused_or_done():
    """Checked by hand: without the look at `_sealed` in `launch`, flights are lost."""
    for _ in range(8):
        loop = EventLoop()
        loop.start()
        accepted, refused, begun = [], [], threading.Event()

        def many(loop=loop, accepted=accepted, refused=refused, begun=begun):
            while not refused:
                try:
                    accepted.append(launch(loop, lambda: give(1)))
                except RuntimeError as error:
                    refused.append(error)
                begun.set()

        threads = [threading.Thread(target=many) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert begun.wait(20)
        assert loop.stop(20)
        for thread in threads:
            thread.join()
        for landing in accepted:
            assert landing.over.wait(20)
            assert len(landing.calls) == 1
        assert len(loop) == 0


def test_a_launch_overtaken_by_stop_is_taken_back(monkeypatch):
    loop = EventLoop()
    loop.start()

    def late(*args):
        assert loop.stop(20)
        return Flight(*args)

    landing = Landing()
    monkeypatch.setattr("django_boundedpool.engine.event_loop.Flight", late)
    with pytest.raises(RuntimeError, match="was stopped"):
        loop.launch(lambda: give(1), landing)
    assert (landing.calls, len(loop), len(loop._inbox)) == ([], 0, 0)


def test_stop_reports_a_flight_that_goes_on_and_a_second_call_cancels_it_again():
    loop = EventLoop()
    waiting, refused = threading.Event(), threading.Event()

    async def stubborn():
        waiting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        refused.set()
        await forever()

    landing = launch(loop, stubborn)
    assert waiting.wait(20)
    assert not loop.stop(0)
    assert refused.wait(20)
    assert not loop.stop(0) or landing.over.is_set()
    assert loop.stop(20)
    assert isinstance(landing.error, asyncio.CancelledError)


def test_stop_from_the_loops_own_thread_asks_only():
    loop = EventLoop()

    async def job():
        answers.append(loop.stop())
        await forever()

    answers = []
    landing = launch(loop, job)
    assert isinstance(landing.error, asyncio.CancelledError)
    assert answers == [False]
    assert loop.stop(20)


def test_stop_waits_for_calls_in_the_executor_and_ends_tasks_of_no_flight(caplog):
    loop = EventLoop()
    calling, release = threading.Event(), threading.Event()
    ended, orphans = [], []

    async def orphan():
        try:
            await forever()
        finally:
            ended.append("orphan")

    async def job():
        running = asyncio.get_running_loop()
        running.run_in_executor(None, lambda: (calling.set(), release.wait(20), ended.append("call")))

    assert launch(loop, job).value is None
    assert calling.wait(20)
    loop._loop.call_soon_threadsafe(lambda: orphans.append(loop._loop.create_task(orphan())))
    settle(loop)
    assert not loop.stop(0.05)
    release.set()
    assert loop.stop(20)
    assert ended == ["orphan", "call"]
    assert caplog.records == []


# The process


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("stops", [True, False])
def test_a_process_ends_with_a_clean_error_output(debug, stops):
    code = f"""
import asyncio, threading
from django_boundedpool.engine.event_loop import EventLoop

async def forever():
    await asyncio.Event().wait()

async def numbers():
    try:
        yield 1
    finally:
        await asyncio.sleep(0)

async def job(leave):
    asyncio.create_task(forever())
    async for _ in numbers():
        break
    if leave:
        raise SystemExit(1)
    await (forever() if {stops} is None else asyncio.sleep(0.01))

loop = EventLoop()
ends = []
for number in range(20):
    ends.append(threading.Event())
    loop.launch(lambda leave=number % 2: job(leave), lambda value, error, end=ends[-1]: end.set())
assert all(end.wait(20) for end in ends)
unfinished = loop.launch(forever, lambda value, error: None)
cancelled = loop.launch(forever, lambda value, error: None)
cancelled.cancel()
assert not {stops} or loop.stop(20)
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONASYNCIODEBUG": "1"} if debug else {}
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code] if debug else [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_thousand_sleeping_flights_sleep_side_by_side(loop):
    began = time.monotonic()
    landings = [launch(loop, lambda: asyncio.sleep(0.2, "value")) for _ in range(1000)]
    assert all(landing.value == "value" for landing in landings)
    assert time.monotonic() - began < 20  # 200 seconds one after another
