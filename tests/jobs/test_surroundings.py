"""What a job finds around it and what it leaves, in a worker thread, on an event loop and inline."""

import asyncio
import contextvars
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.db import connections, transaction
from django.test import TestCase, override_settings
from django.utils import timezone, translation

from django_boundedpool import JobContext, JobInterrupted, context, current_job, job
from django_boundedpool.engine.states import Reason
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job
from tests.engine.builders import Bench

from . import jobs_for_tests as jobs
from . import test_carry as carriers

INLINE = {"INLINE": True}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TENANT = "tests.jobs.test_carry.of_tenant"

mark: contextvars.ContextVar[str | None] = contextvars.ContextVar("mark", default=None)
seen: list[Any] = []
closed: list[object] = []


class Counted(LocMemCache):
    def close(self, **kwargs: Any) -> None:
        closed.append(self)


class Slow(Counted):
    def close(self, **kwargs: Any) -> None:
        raise ConnectionError("the cache is gone")


CACHES = {
    "default": {"BACKEND": "tests.jobs.test_surroundings.Counted", "LOCATION": "a"},
    "other": {"BACKEND": "tests.jobs.test_surroundings.Counted", "LOCATION": "b"},
}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    seen.clear()
    closed.clear()
    jobs.reset_gate()
    yield
    jobs.gate.set()


def record_of(function: Callable[..., Any], carry: dict[str, Any] | None = None, **given: Any) -> Any:
    record = Bench().record(function, **given)
    record.carry = carry
    record.attempt = 1
    return record


def sync(*records: Any) -> list[Any]:
    """Run jobs one after another in one new thread, as a worker does; return their values or errors."""
    results: list[Any] = []

    def work() -> None:
        for record in records:
            try:
                results.append(context.run(record))
            except BaseException as error:
                results.append(error)

    thread = threading.Thread(target=contextvars.Context().run, args=(work,))
    thread.start()
    thread.join(30)
    return results


def on_loop(*records: Any) -> list[Any]:
    """Run async jobs one after another on the event loop of a new thread."""

    async def work() -> list[Any]:
        loop, results = asyncio.get_running_loop(), []
        for record in records:
            task = loop.create_task(context.arun(record), context=contextvars.Context())
            results += await asyncio.gather(task, return_exceptions=True)
        return results

    return in_thread(lambda: asyncio.run(work()))


def in_thread(code: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=contextvars.Context().run, args=(lambda: results.append(code()),))
    thread.start()
    thread.join(30)
    return results[0]


def run_each(kind: str, *functions: Callable[[], Any], carry: dict[str, Any] | None = None) -> list[Any]:
    """Run plain functions as jobs: as they are, or as the code of async jobs."""
    if kind == "sync":
        return sync(*(record_of(function, carry) for function in functions))
    return on_loop(*(record_of(as_async(function), carry) for function in functions))


def as_async(function: Callable[[], Any]) -> Callable[[], Any]:
    async def code() -> Any:
        await asyncio.sleep(0)
        return function()

    return code


both = pytest.mark.parametrize("kind", ["sync", "async"])


# Context variables


def marks(value: str) -> Callable[[], object]:
    def code() -> object:
        before = mark.get()
        mark.set(value)
        return before

    return code


@both
def test_a_context_variable_of_one_job_is_not_seen_by_the_next(kind: str) -> None:
    assert run_each(kind, marks("a"), marks("b"), marks("c")) == [None, None, None]


@both
def test_what_a_job_leaves_in_a_context_variable_is_not_kept(kind: str) -> None:
    class Large:
        pass

    left: list[weakref.ref[Large]] = []
    holder: contextvars.ContextVar[Large] = contextvars.ContextVar("holder")

    def leaves() -> None:
        large = Large()
        holder.set(large)
        left.append(weakref.ref(large))

    def looks() -> bool:
        gc.collect()
        return left[0]() is None

    assert run_each(kind, leaves, looks) == [None, True]


@both
def test_language_and_time_zone_of_one_job_are_not_seen_by_the_next(kind: str) -> None:
    def activates() -> None:
        translation.activate("de")
        timezone.activate("Europe/Berlin")

    def looks() -> tuple[str, str]:
        return translation.get_language(), timezone.get_current_timezone_name()

    assert run_each(kind, activates, looks) == [None, ("en-us", "UTC")]


@both
def test_what_is_carried_is_there_during_the_job_and_gone_after_it(kind: str, settings) -> None:
    settings.BOUNDED_POOLS = {"default": {"CARRY": (TENANT,)}}
    taken = {"language": "de", "time_zone": "Europe/Berlin", "carriers": {TENANT: "acme"}}

    def looks() -> tuple[str, str, str]:
        return translation.get_language(), timezone.get_current_timezone_name(), carriers.tenant.get()

    during, after = run_each(kind, looks, carry=taken), run_each(kind, looks)
    assert during == [("de", "Europe/Berlin", "acme")]
    assert after == [("en-us", "UTC", "")]


@both
@pytest.mark.parametrize("end", ["returns", "raises"])
def test_carriers_are_undone_in_reverse_however_the_job_ends(kind: str, end: str, settings) -> None:
    paths = carriers.paths("first", "broken", "second")
    settings.BOUNDED_POOLS = {"default": {"CARRY": paths}}
    carriers.log.clear()

    def code() -> None:
        carriers.log.append("the job")
        if end == "raises":
            raise LookupError

    (result,) = run_each(kind, code, carry={"carriers": {path: path[-1] for path in paths}})
    assert isinstance(result, LookupError if end == "raises" else type(None))
    assert carriers.log == ["restore t", "restore d", "the job", "undo second", "undo first"]


def test_jobs_through_a_pool_do_not_see_each_others_context_variables(settings, transactional_db) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    assert [reads_mark.submit().result(10) for _ in range(3)] == [None, None, None]


@job(timeout=60)
def reads_mark() -> object:
    return marks("left behind")()


# Caches


@both
def test_five_jobs_use_one_cache_object_and_close_it_after_each(kind: str, settings) -> None:
    settings.CACHES = CACHES

    def uses() -> None:
        caches["default"].get("x")
        seen.append(caches["default"])
        mark.set("left behind")

    assert run_each(kind, *[uses] * 5) == [None] * 5
    assert len(set(map(id, seen))) == 1
    assert closed == seen


@both
def test_a_second_cache_is_kept_beside_the_first(kind: str, settings) -> None:
    settings.CACHES = CACHES
    names = ["default", "other", "default", "other"]
    assert len(run_each(kind, *(lambda name=name: seen.append(caches[name]) for name in names))) == 4
    assert seen[:2] == seen[2:]
    assert len({id(cache) for cache in seen}) == 2


@both
def test_a_cache_that_was_opened_under_other_settings_does_not_come_back(kind: str) -> None:
    def uses() -> None:
        seen.append(caches["default"])

    def both_settings() -> None:
        for location in ("a", "z"):
            setting = {"default": {"BACKEND": CACHES["default"]["BACKEND"], "LOCATION": location}}
            with override_settings(CACHES=setting):
                record = record_of(uses if kind == "sync" else as_async(uses))
                if kind == "sync":
                    context.run(record)
                else:
                    asyncio.run(context.arun(record))

    in_thread(both_settings)
    assert len({id(cache) for cache in seen}) == 2


def test_async_jobs_that_run_together_do_not_share_a_cache_object(settings) -> None:
    """Some cache clients serve one user at a time. Those that come later take over what these have opened."""
    settings.CACHES = CACHES

    async def uses() -> None:
        mine = caches["default"]
        seen.append(mine)
        await asyncio.sleep(0.01)
        assert caches["default"] is mine

    async def together() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await asyncio.gather(
                *(loop.create_task(context.arun(record_of(uses)), context=contextvars.Context()) for _ in range(2))
            )

    in_thread(lambda: asyncio.run(together()))
    assert [len({*map(id, seen[first : first + 2])}) for first in (0, 2, 4)] == [2, 2, 2]
    assert len({*map(id, seen)}) == 2


@both
def test_a_cache_that_cannot_be_closed_does_not_change_the_outcome(kind: str, settings, caplog) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "tests.jobs.test_surroundings.Slow"},
        "other": CACHES["other"],
    }
    assert run_each(kind, lambda: [caches["default"].get("x"), caches["other"].get("x")]) == [[None, None]]
    assert "Tidying up after a job failed" in caplog.text
    assert len(closed) == 1


def test_task_backends_are_kept_too(settings) -> None:
    tasks = pytest.importorskip("django.tasks")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    sync(*[record_of(lambda: seen.append(tasks.task_backends["default"])) for _ in range(3)])
    assert len(seen) == 3
    assert len(set(map(id, seen))) == 1


# Database connections


def count_and_keep() -> int:
    seen.append(connections["default"])
    return Job.objects.count()


def open_transaction() -> None:
    seen.append(connections["default"])
    transaction.atomic().__enter__()
    Job.objects.count()


def test_a_job_keeps_djangos_connection_rules(transactional_db) -> None:
    """CONN_MAX_AGE is 0 here: one connection object of the thread, closed after each job."""
    states: list[Any] = []

    def uses() -> int:
        states.append(connections["default"].connection)
        return count_and_keep()

    assert sync(record_of(uses), record_of(uses)) == [0, 0]
    assert states == [None, None]
    assert seen[0] is seen[1]
    assert seen[0].connection is None


def test_a_persistent_connection_serves_the_next_job(transactional_db, monkeypatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)

    def uses() -> object:
        count_and_keep()
        return connections["default"].connection

    def closes() -> None:
        connections["default"].close()

    first, second, _ = sync(record_of(uses), record_of(uses), record_of(closes))
    assert first is second
    assert first is not None


def test_the_queries_of_the_job_before_are_forgotten(transactional_db, settings) -> None:
    settings.DEBUG = True

    def uses() -> int:
        Job.objects.count()
        return sum("COUNT" in query["sql"] for query in connections["default"].queries)

    assert sync(record_of(uses), record_of(uses)) == [1, 1]


def test_a_transaction_left_open_is_rolled_back_and_fails_the_job(transactional_db, caplog) -> None:
    left, after = sync(record_of(open_transaction), record_of(count_and_keep))
    assert isinstance(left, RuntimeError)
    assert str(left) == "The job returned with a transaction open on database default; it was rolled back."
    assert after == 0
    assert seen[0].closed_in_transaction
    assert "A job left a transaction open on database 'default'; it is rolled back." in caplog.text


def test_a_transaction_that_an_async_job_left_open_is_rolled_back_and_fails_the_job(transactional_db, caplog) -> None:
    async def code() -> None:
        await sync_to_async(open_transaction)()

    (left,) = on_loop(record_of(code))
    assert str(left) == "The job returned with a transaction open on database default; it was rolled back."
    assert seen[0].closed_in_transaction


@pytest.mark.parametrize("max_age", [0, None])
def test_the_database_connection_of_an_async_job_is_closed(transactional_db, monkeypatch, max_age: int | None) -> None:
    """Also a persistent one: its thread ends with the job. Without the tidying it stays open until it is collected."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", max_age)

    async def code() -> bool:
        return await sync_to_async(count_and_keep)() == 0 and await Job.objects.acount() == 0

    assert on_loop(record_of(code)) == [True]
    assert seen[0].connection is None


def test_the_connection_of_a_cancelled_async_job_is_closed_when_its_thread_is_done(transactional_db) -> None:
    """The thread cannot be stopped: until it is done, the job is not over."""
    order: list[str] = []

    def blocks() -> None:
        count_and_keep()
        jobs.started.release()
        assert jobs.gate.wait(30)
        order.append("code")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(context.arun(record_of(sync_to_async(blocks))), context=contextvars.Context())
        await asyncio.to_thread(jobs.started.acquire)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        jobs.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        order.append("over")

    in_thread(lambda: asyncio.run(main()))
    assert order == ["code", "over"]
    assert seen[0].connection is None


def test_a_cancellation_during_the_tidying_does_not_take_the_value_away(settings) -> None:
    tidying = threading.Event()

    class Late(Counted):
        def close(self, **kwargs: Any) -> None:
            tidying.set()
            assert jobs.gate.wait(30)

    async def code() -> str:
        caches["default"] = Late("c", {})
        await sync_to_async(int)()
        return "value"

    async def main() -> str:
        task = asyncio.create_task(context.arun(record_of(code)), context=contextvars.Context())
        await asyncio.to_thread(tidying.wait)
        task.cancel()
        await asyncio.sleep(0.01)
        jobs.gate.set()
        return await task

    settings.CACHES = CACHES
    assert in_thread(lambda: asyncio.run(main())) == "value"


def test_an_async_job_leaves_no_connection_open_on_the_loops_own_thread(transactional_db, monkeypatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def code() -> int:
        return count_and_keep()

    assert on_loop(record_of(code)) == [0]
    assert seen[0].connection is None


def test_the_sync_parts_of_two_async_jobs_run_in_threads_of_their_own() -> None:
    async def code() -> None:
        seen.append(await sync_to_async(threading.current_thread)())
        seen.append(await sync_to_async(threading.current_thread)())

    on_loop(record_of(code), record_of(code))
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    assert seen[0] is not seen[2]


def test_the_thread_of_an_async_job_ends_with_it() -> None:
    async def code() -> None:
        seen.append(await sync_to_async(threading.current_thread)())

    on_loop(record_of(code))
    seen[0].join(10)
    assert not seen[0].is_alive()


def test_async_jobs_without_a_database_start_no_thread() -> None:
    started: set[int] = set()

    async def code() -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        threading.setprofile(lambda *_: started.add(threading.get_ident()))  # called in every thread that starts
        try:
            loop = asyncio.get_running_loop()
            flights = [
                loop.create_task(context.arun(record_of(code)), context=contextvars.Context()) for _ in range(1000)
            ]
            await asyncio.gather(*flights)
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    in_thread(lambda: asyncio.run(main()))
    assert started == set()


# Forks


def test_the_child_that_a_job_forks_leaves_the_connections_of_its_parent_alone(transactional_db, settings) -> None:
    """And undoes nothing of what was carried."""
    settings.BOUNDED_POOLS = {"default": {"CARRY": carriers.paths("first")}}
    carriers.log.clear()
    read, write = os.pipe()
    parent = os.getpid()

    def forks() -> int:
        count_and_keep()
        return os.fork()

    def work() -> int:
        child = 1
        try:
            child = context.run(record_of(forks, {"carriers": {carriers.paths("first")[0]: "x"}}))
        finally:
            if os.getpid() != parent:
                untouched = seen[0].connection is not None and "undo first" not in carriers.log
                os.write(write, b"untouched" if untouched else b"closed")
                os._exit(0)
        os.waitpid(child, 0)
        return child

    assert in_thread(work) > 0
    assert os.read(read, 20) == b"untouched"
    os.close(read)
    os.close(write)
    assert seen[0].connection is None
    assert carriers.log[-1] == "undo first"


# The job's view


@both
def test_the_current_job_is_known_in_the_job_and_in_what_it_starts(kind: str) -> None:
    def plain() -> list[JobContext | None]:
        return [current_job(), async_to_sync(here)()]

    async def here() -> JobContext | None:
        return await sync_to_async(current_job)()

    async def flight() -> list[JobContext | None]:
        inner = await asyncio.gather(here(), asyncio.create_task(here()), asyncio.to_thread(current_job))
        return [current_job(), *inner]

    record = record_of(plain if kind == "sync" else flight)
    (found,) = sync(record) if kind == "sync" else on_loop(record)
    assert {type(each) for each in found} == {JobContext}
    assert len(set(map(id, found))) == 1
    assert found[0].job_id == record.id
    assert current_job() is None


@both
def test_a_job_that_takes_its_context_gets_the_current_one_and_its_arguments(kind: str) -> None:
    def plain(this: JobContext, a: int, b: int = 0) -> bool:
        return this is current_job() and (a, b) == (1, 2)

    async def flight(this: JobContext, a: int, b: int = 0) -> bool:
        return plain(this, a, b)

    record = record_of(plain if kind == "sync" else flight, payload='[[1],{"b":2}]', takes_context=True)
    assert (sync(record) if kind == "sync" else on_loop(record)) == [True]


@both
def test_a_job_that_was_given_up_before_its_code_began_does_not_run(kind: str) -> None:
    record = record_of((lambda: seen.append(1)) if kind == "sync" else as_async(lambda: seen.append(1)))
    record.payload = None
    (error,) = sync(record) if kind == "sync" else on_loop(record)
    assert isinstance(error, JobInterrupted)
    assert seen == []


def view(record: Any) -> JobContext:
    return JobContext(record, runtime.current().pools["default"])


def test_what_is_left_is_counted_to_the_end_of_the_attempt() -> None:
    record = record_of(int)
    assert (view(record).remaining(), view(record).deadline) == (None, None)
    record.ends_mono = time.monotonic() + 100
    left = view(record).remaining()
    assert left is not None
    assert 99 < left <= 100
    deadline = view(record).deadline
    assert deadline is not None
    assert 99 < (deadline - timezone.now()).total_seconds() <= 100
    record.ends_mono = time.monotonic() - 1
    assert view(record).remaining() == 0


def test_the_headers_name_the_trace_parent_that_was_carried() -> None:
    record = record_of(int)
    assert view(record).headers() == {"X-Job-Id": str(record.id), "X-Job-Attempt": "1"}
    record.carry = {"language": "de", "traceparent": PARENT}
    assert view(record).headers()["traceparent"] == PARENT


def test_a_context_stays_with_its_attempt() -> None:
    record = record_of(int)
    kept, token = view(record), record.token
    record.attempt = 2
    record.made_token = type(token)()
    record.token.fire(Reason.USER)
    assert kept.attempt == 1
    assert not kept.cancelled


# Inline


@override_settings(BOUNDED_POOL_OPTIONS=INLINE)
class Inline(TestCase):
    def test_a_context_variable_that_an_inline_job_sets_does_not_reach_the_caller(self):
        token = mark.set("caller")
        try:
            assert context.run(record_of(marks("job"))) == "caller"
            assert mark.get() == "caller"
        finally:
            mark.reset(token)

    def test_an_inline_job_sees_the_language_of_its_caller_and_leaves_it(self):
        def code() -> str:
            before = translation.get_language()
            with translation.override("fr"):
                return before

        with translation.override("de"):
            assert context.run(record_of(code)) == "de"
            assert translation.get_language() == "de"

    def test_an_inline_job_runs_on_the_connections_of_its_caller(self):
        Job.objects.count()
        assert context.run(record_of(lambda: connections["default"])) is connections["default"]
        assert connections["default"].connection is not None

    def test_a_cache_that_an_inline_job_opens_is_the_callers(self):
        with override_settings(CACHES=CACHES):
            opened = context.run(record_of(lambda: caches["default"]))
            assert caches["default"] is opened
            assert context.run(record_of(lambda: caches["default"])) is opened
            assert closed == []

    def test_an_inline_job_finds_what_it_carries_even_when_the_caller_has_moved_on(self):
        assert context.run(record_of(translation.get_language, {"language": "de"})) == "de"
        assert translation.get_language() == "en-us"

    def test_an_async_job_inline_runs_on_the_connections_of_its_caller(self):
        async def code() -> object:
            return await sync_to_async(lambda: connections["default"])()

        assert context.run(record_of(code)) is connections["default"]

    def test_an_async_job_inline_on_the_callers_loop_leaves_no_context_variable(self):
        async def code() -> str | None:
            before = mark.get()
            mark.set("job")
            return before

        async def main() -> tuple[str | None, str | None]:
            mark.set("caller")
            return await context.arun(record_of(code)), mark.get()

        assert async_to_sync(main)() == ("caller", "caller")
