"""Async callers and async jobs: nothing blocks the loop, nothing is left behind, and no mixture hangs."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, TestCase, override_settings
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from django_boundedpool import (
    JobCancelled,
    JobHandle,
    JobNotFound,
    JobState,
    JobTimedOut,
    QueueFull,
    WaitTimeout,
    accepted,
    job,
    pools,
)
from django_boundedpool.engine.errors import ConfigurationError, WaitingWouldDeadlock
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job
from django_boundedpool.store import writes
from django_boundedpool.testing import join

from . import async_jobs
from . import jobs_for_tests as jobs
from .loops import Ticker, eventually, on_a_loop, until

pytestmark = pytest.mark.django_db(transaction=True)

TINY = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1}}


@job(takes_context=True, timeout=60)
def blocks_when_asked(context: Any) -> None:
    context.on_cancel(lambda: jobs.gate.wait(10))
    jobs.started.release()
    context.sleep(30)


@pytest.fixture(autouse=True)
def _clean(settings: Any) -> Iterator[None]:
    jobs.reset_gate()
    async_jobs.log.clear()
    async_jobs.left.clear()
    yield
    jobs.gate.set()


def fill() -> list[JobHandle]:
    """One job runs, one waits: the tiny pool is full."""
    handles = [jobs.hold.submit("runs")]
    assert jobs.started.acquire(timeout=10)
    return [*handles, jobs.hold.submit("waits")]


def figures() -> tuple[int, int, int, int]:
    stats = pools["default"].stats()
    return stats.running, stats.queued, stats.reserved, stats.waiting


# Y01: an async view


@csrf_exempt
async def start(request: Any, name: str) -> HttpResponse:
    wait = request.GET.get("wait")
    chosen = getattr(jobs, name).using(owner=await request.auser(), wait=None if wait is None else float(wait))
    return accepted(request, await chosen.asubmit())


urlpatterns = [path("start/<str:name>/", start), path("jobs/", include("django_boundedpool.urls"))]


def test_Y01_an_async_view_submits_polls_and_cancels_while_the_loop_goes_on(settings: Any, user: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.BOUNDED_POOLS = TINY

    async def main() -> float:
        client = AsyncClient()
        await client.aforce_login(user)
        assert (
            await client.get("/jobs/")
        ).status_code == 200  # what Django loads for its first request is not measured
        async with Ticker() as ticker:
            first = await client.post("/start/hold/")
            assert first.status_code == 202
            await eventually(lambda: figures()[0] == 1)
            second = await client.post("/start/hold/")
            assert (await client.get(second["Location"])).json()["state"] == "queued"

            began = time.monotonic()
            refused = await client.post("/start/hold/?wait=0.5")
            assert 0.4 < time.monotonic() - began < 1.5
            assert (refused.status_code, refused.json()["code"]) == (503, "wait_timeout")
            assert figures() == (1, 1, 0, 0)

            waiting = asyncio.create_task(client.post("/start/hold/?wait=20"))
            await eventually(lambda: figures()[3] == 1)
            cancelled = await client.post(f"{second['Location']}cancel/")
            assert (cancelled.status_code, cancelled.json()["answer"]) == (200, "cancelled")
            third = await waiting  # it has got the place
            assert third.status_code == 202
            assert figures() == (1, 1, 0, 0)
            assert (await client.post(f"{first['Location']}cancel/")).status_code == 202
        jobs.gate.set()
        return ticker.longest

    assert on_a_loop(main) < 0.1
    join()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["cancelled", "succeeded", "succeeded"]


def test_Y01_a_client_that_goes_away_in_mid_wait_leaves_no_place_taken_and_no_job(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.BOUNDED_POOLS = TINY
    fill()

    async def main() -> float:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/start/hold/", "query_string": b"wait=20", "headers": [(b"host", b"testserver")],
        }  # fmt: skip
        async with Ticker() as ticker:
            client = ApplicationCommunicator(get_asgi_application(), scope)
            await client.send_input({"type": "http.request", "body": b""})
            await eventually(lambda: figures()[3] == 1)
            await client.send_input({"type": "http.disconnect"})
            await eventually(lambda: figures()[3] == 0)
            await client.wait(5)
        return ticker.longest

    assert on_a_loop(main) < 0.1
    assert figures() == (1, 1, 0, 0)
    jobs.gate.set()
    join()
    assert Job.objects.count() == 2


def test_Y01_a_sync_submit_or_wait_on_a_loop_is_a_clear_error() -> None:
    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation, match=r"await add\.asubmit"):
            jobs.add.submit(1)
        with pytest.raises(SynchronousOnlyOperation, match=r"await add\.asubmit"):
            jobs.add.try_submit(1)
        handle = await jobs.add.asubmit(1)
        with pytest.raises(SynchronousOnlyOperation, match="aresult"):
            handle.result(1)
        assert await handle.aresult(10) == 1

    on_a_loop(main)


# Cancelled submits, at every await


def test_a_wait_for_a_place_that_is_cancelled_leaves_nothing(settings: Any) -> None:
    settings.BOUNDED_POOLS = TINY
    fill()

    async def main() -> None:
        task = asyncio.create_task(jobs.add.using(wait=20).asubmit(1))
        await eventually(lambda: figures()[3] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert figures() == (1, 1, 0, 0)

    on_a_loop(main)


def test_a_wait_that_is_cancelled_in_the_moment_it_is_served_leaves_nothing(settings: Any) -> None:
    settings.BOUNDED_POOLS = TINY
    _, queued = fill()

    async def main() -> None:
        task = asyncio.create_task(jobs.add.using(wait=20).asubmit(1))
        await eventually(lambda: figures()[3] == 1)
        await queued.acancel()
        task.cancel()  # the place is reserved, and its news is on the way or has just come
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: figures() == (1, 0, 0, 0))

    on_a_loop(main)
    jobs.gate.set()
    join()
    assert not Job.objects.filter(name__endswith=".add", state="succeeded").exists()


def test_a_submit_cancelled_before_its_thread_begins_leaves_no_job(settings: Any) -> None:
    async def main() -> None:
        busy = threading.Event()
        blocking = asyncio.create_task(sync_to_async(busy.wait)(10))  # the thread of this context
        await asyncio.sleep(0.05)
        task = asyncio.create_task(jobs.add.asubmit(1))
        await eventually(lambda: figures()[2] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert figures() == (0, 0, 0, 0)
        busy.set()
        await blocking

    on_a_loop(main)
    assert Job.objects.count() == 0
    assert pools["default"].stats().accepted == 0


def test_a_submit_cancelled_while_its_row_is_written_ends_as_disconnected_and_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing, go_on, real = threading.Event(), threading.Event(), writes.insert

    def insert(rows: Any, alias: str) -> None:
        writing.set()
        assert go_on.wait(10)
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)

    async def main() -> None:
        task = asyncio.create_task(jobs.hold.asubmit("never"))
        await eventually(writing.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await eventually(lambda: pools["default"].stats().finished.get(JobState.CANCELLED) == 1)

    on_a_loop(main)
    join()
    row = Job.objects.get()
    assert (row.state, row.reason, row.attempt) == ("cancelled", "disconnect", 0)
    assert jobs.log == []
    assert figures() == (0, 0, 0, 0)


def test_a_submit_cancelled_while_its_row_is_refused_leaves_no_job_and_no_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.db import IntegrityError

    writing, go_on = threading.Event(), threading.Event()

    def insert(rows: Any, alias: str) -> None:
        writing.set()
        assert go_on.wait(10)
        raise IntegrityError("not this row")

    monkeypatch.setattr(writes, "insert", insert)

    async def main() -> None:
        task = asyncio.create_task(jobs.add.asubmit(1))
        await eventually(writing.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await eventually(lambda: figures() == (0, 0, 0, 0))
        await asyncio.sleep(0.1)

    on_a_loop(main)
    assert Job.objects.count() == 0


def test_a_loop_that_ends_in_the_midst_of_submits_leaves_no_place_taken(settings: Any) -> None:
    """`asyncio.run` cancels every task at once, those of the submits as well as those below them."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 50}}
    jobs.hold.submit()

    async def scope() -> None:
        async with ThreadSensitiveContext():
            left = [asyncio.create_task(jobs.add.asubmit(n)) for n in range(20)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(left) == 20

    asyncio.run(scope())
    jobs.gate.set()
    join()
    assert figures() == (0, 0, 0, 0)
    assert set(Job.objects.exclude(name__endswith="hold").values_list("state", "reason", "attempt")) <= {
        ("cancelled", "disconnect", 0),
        ("cancelled", "disconnect", 1),
        ("succeeded", "", 1),  # it was faster
    }


@pytest.mark.parametrize("persist", ["commit", "memory"])
def test_submits_that_are_cancelled_at_any_moment_leave_every_place_free(settings: Any, persist: str) -> None:
    """No place stays taken, no job is half there, and whatever was accepted has an end that its row tells."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2, "QUEUE_SIZE": 5, "PERSIST": persist, "WAIT": 0.05}}
    rng = random.Random(7)

    async def main() -> None:
        for _ in range(15):
            tasks = [asyncio.create_task(async_jobs.naps.using(wait=0.02).asubmit(0.002)) for _ in range(12)]
            await asyncio.sleep(rng.random() * 0.02)
            for task in tasks:
                if rng.random() < 0.8:
                    task.cancel()
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)

    on_a_loop(main)
    join()
    assert figures() == (0, 0, 0, 0)
    stats = pools["default"].stats()
    assert stats.accepted == sum(stats.finished.values()) > 0
    if persist == "commit":
        assert not Job.objects.filter(live=True).exists()
        assert Job.objects.exclude(reason="disconnect", attempt=0).count() <= stats.accepted


def test_an_async_submit_needs_no_context_of_a_server() -> None:
    async def main() -> Any:
        handles = await asyncio.gather(*(jobs.add.asubmit(n, 1) for n in range(10)))
        values = await asyncio.gather(*(handle.aresult(10) for handle in handles))
        await sync_to_async(connections.close_all)()
        return values

    assert asyncio.run(main()) == list(range(1, 11))


def test_a_job_that_waits_for_its_retry_has_begun() -> None:
    handle = async_jobs.retried_late.submit()

    async def main() -> None:
        await eventually(lambda: handle.state is JobState.QUEUED and pools["default"].stats().delayed == 1)
        task = asyncio.create_task(handle.aresult(on_disconnect="cancel_if_queued"))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_a_loop(main)
    assert not handle.state.terminal
    assert handle.cancel() == "cancelled"


def test_an_async_submit_says_why_it_was_refused_and_who_answers(settings: Any) -> None:
    settings.BOUNDED_POOLS = TINY
    settings.MIDDLEWARE = []
    fill()

    async def main() -> None:
        with pytest.raises(QueueFull) as caught:
            await jobs.add.asubmit(1)
        assert "OverloadMiddleware" in caught.value.__notes__[0]
        with pytest.raises(WaitTimeout):
            await jobs.add.using(wait=0.05).asubmit(1)

    on_a_loop(main)


# Below a sync caller


def test_an_async_submit_below_a_transaction_starts_its_job_at_the_commit(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {}, "fleeting": {"PERSIST": "memory"}}
    for pool in ("default", "fleeting"):
        with transaction.atomic():
            handle = async_to_sync(jobs.add.using(pool=pool).asubmit)(1)
            assert handle.state is JobState.SUBMITTED
            assert async_to_sync(jobs.add.using(pool=pool, wait=5).asubmit)(2).state is JobState.SUBMITTED
        assert handle.result(10) == 1


def test_an_async_submit_below_a_transaction_never_waits(settings: Any) -> None:
    settings.BOUNDED_POOLS = TINY
    fill()
    began = time.monotonic()
    with transaction.atomic(), pytest.raises(QueueFull):
        async_to_sync(jobs.add.using(wait=20).asubmit)(1)
    assert time.monotonic() - began < 1


@override_settings(BOUNDED_POOL_OPTIONS={"INLINE": True})
class InlineAsync(TestCase):
    async def test_T01_an_async_submit_in_a_test_case_runs_on_the_tests_connection(self):
        from django.contrib.auth import get_user_model

        await get_user_model().objects.acreate(username="of-the-test")
        handle = await jobs.counts_users.asubmit()
        assert (handle.state, await handle.aresult()) == (JobState.SUCCEEDED, 1)
        handle = await async_jobs.async_calls_sync.asubmit()
        assert (await handle.aresult())[0] is True
        assert await get_user_model().objects.acount() == 2
        assert (await JobHandle.aget(handle.id)).state is JobState.SUCCEEDED

    def test_T01_a_sync_submit_runs_an_async_job_on_the_tests_connection(self):
        handle = async_jobs.async_calls_sync.submit()
        assert handle.result()[0] is True
        assert async_jobs.async_there_and_back.submit().result() == 1
        with pytest.raises(ValueError, match="no"):
            async_jobs.boom_async.submit().result()
        async_jobs.log.clear()
        assert async_jobs.flaky_async.submit().result() == 3

    def test_an_async_job_that_is_overdue_is_stopped_inline_too(self):
        began = time.monotonic()
        with pytest.raises(JobTimedOut):
            async_jobs.overdue_async.submit().result()
        assert time.monotonic() - began < 5


class ThreadedAsync(TestCase):
    async def test_T01_threaded_mode_gives_a_hint_to_async_tests_too(self):
        with pytest.raises(ConfigurationError, match="INLINE"):
            await jobs.add.asubmit(1)
        assert pools["default"].stats().reserved == 0


# aresult and its policies


@pytest.mark.parametrize(
    ("policy", "running", "queued"),
    [("detach", "succeeded", "succeeded"), ("cancel", "cancelled", "cancelled"),
     ("cancel_if_queued", "succeeded", "cancelled")],
)  # fmt: skip
def test_what_becomes_of_a_job_whose_waiter_is_cancelled(settings: Any, policy: Any, running: str, queued: str) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 5}}

    async def main() -> list[JobHandle]:
        handles = [await async_jobs.naps.asubmit(0.5), await async_jobs.add_async.asubmit(1)]
        await eventually(lambda: figures()[:2] == (1, 1))
        tasks = [asyncio.create_task(handle.aresult(on_disconnect=policy)) for handle in handles]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))
        await eventually(lambda: all(handle.state.terminal for handle in handles))
        return handles

    first, second = on_a_loop(main)
    join()
    rows = {row.pk: row for row in Job.objects.all()}
    assert (rows[first.id].state, rows[second.id].state) == (running, queued)
    assert {row.reason for row in rows.values() if row.state == "cancelled"} <= {"disconnect"}


def test_a_disconnect_shows_on_a_job_that_goes_on(settings: Any) -> None:
    handle = jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)

    async def main() -> None:
        task = asyncio.create_task(handle.aresult(on_disconnect="cancel"))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_a_loop(main)
    until(lambda: Job.objects.get().cancel_requested)
    assert (Job.objects.get().state, Job.objects.get().cancel_reason) == ("running", "disconnect")
    jobs.gate.set()
    assert handle.result(10) is None


@pytest.mark.parametrize(("policy", "asked"), [("detach", False), ("cancel", True), ("cancel_if_queued", False)])
def test_what_becomes_of_a_job_of_another_process_whose_waiter_is_cancelled(policy: Any, asked: bool) -> None:
    row = Job.objects.create(name="x", pool="default", state="running")

    async def main() -> None:
        handle = await JobHandle.aget(row.pk)
        task = asyncio.create_task(handle.aresult(on_disconnect=policy))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_a_loop(main)
    runtime.current().disconnects.stop()
    row.refresh_from_db()
    assert (row.cancel_requested, row.cancel_reason) == (asked, "disconnect" if asked else "")


def test_a_thousand_clients_that_go_away_at_once_take_one_thread() -> None:
    rows = Job.objects.bulk_create([Job(name="x", pool="default", state="running") for _ in range(50)])
    before = threading.active_count()

    async def main() -> int:
        handles = [JobHandle.of_row(row) for row in rows]
        tasks = [asyncio.create_task(handle.aresult(on_disconnect="cancel")) for handle in handles]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return threading.active_count()

    assert on_a_loop(main) <= before + 3  # the context's own, and the one of the disconnects
    until(lambda: Job.objects.filter(cancel_requested_at__isnull=False).count() == 50)


def test_a_callback_that_blocks_does_not_hold_up_the_loop_of_the_client_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks a job to stop waits for its callbacks a moment: cancelled on the loop, this one would stop it."""
    monkeypatch.setattr("django_boundedpool.engine.places.PATIENCE", 1.0)
    handle = blocks_when_asked.submit()
    assert jobs.started.acquire(timeout=10)

    async def main() -> float:
        async with Ticker() as ticker:
            task = asyncio.create_task(handle.aresult(on_disconnect="cancel"))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.2)
        return ticker.longest

    assert on_a_loop(main) < 0.1
    jobs.gate.set()
    with pytest.raises(JobCancelled):
        handle.result(10)


def test_an_async_wait_has_an_end_and_the_job_goes_on() -> None:
    handle = jobs.hold.submit()

    async def main() -> None:
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            await handle.aresult(0.05)
        with pytest.raises(ValueError, match="on_disconnect"):
            await handle.aresult(on_disconnect="drop")  # type: ignore[arg-type]

    on_a_loop(main)
    jobs.gate.set()
    assert handle.result(10) is None


def test_the_async_twins_do_what_the_others_do(user: Any) -> None:
    async def main() -> None:
        handle = await async_jobs.naps.using(owner=user).asubmit(30)
        await eventually(lambda: handle.state is JobState.RUNNING)
        other = await JobHandle.aget(handle.id)
        assert await other.acancel(by=user) == "requested"
        with pytest.raises(JobCancelled):
            await handle.aresult(10)
        assert await handle.acancel() == "finished"
        await eventually(lambda: pools["default"].stats().running == 0)
        with pytest.raises(JobNotFound):
            await JobHandle.aget("01900000-0000-7000-8000-000000000000")
        row = Job(name="x", pool="default", state="running")
        await row.asave()
        other = await JobHandle.aget(row.pk)
        await Job.objects.filter(pk=row.pk).aupdate(state="succeeded", live=False, result=[1])
        assert (await other.arefresh()).state is JobState.SUCCEEDED
        assert await other.aresult(5) == [1]

    on_a_loop(main)
    assert async_jobs.log == ["cancelled"]


# Y02: async jobs


def test_Y02_an_async_job_again_and_in_parallel_leaves_nothing_and_harms_nothing(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2}}
    for _ in range(2):
        assert async_jobs.messy.submit().result(10) == 1
    assert [handle.result(10) for handle in [async_jobs.messy.submit() for _ in range(2)]] == [1, 1]
    with pytest.raises(ValueError, match="messy"):
        async_jobs.messy.submit("fails").result(10)
    cancelled = async_jobs.messy.submit("waits")
    assert jobs.started.acquire(timeout=10)
    assert cancelled.cancel() == "requested"
    with pytest.raises(JobCancelled):
        cancelled.result(10)
    tasks = [entry for entry in async_jobs.left if isinstance(entry, tuple)]
    assert len(tasks) == 6
    assert all(task.cancelled() for task, _, _ in tasks)
    assert async_jobs.left.count("task ended") == async_jobs.left.count("generator closed") == 6
    assert asyncio._get_running_loop() is None
    assert async_jobs.add_async.submit(1, 2).result(10) == 3
    join()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded", "failed", "cancelled"}


def test_an_async_job_fails_is_retried_and_times_out_as_any_other() -> None:
    with pytest.raises(ValueError, match="no"):
        async_jobs.boom_async.submit().result(10)
    assert async_jobs.flaky_async.submit().result(10) == 3
    with pytest.raises(JobTimedOut):
        async_jobs.overdue_async.submit().result(10)


def test_an_async_job_that_swallows_its_cancellation_succeeds() -> None:
    handle = async_jobs.stubborn.submit()
    assert jobs.started.acquire(timeout=10)
    assert handle.cancel() == "requested"
    assert handle.result(10) == "went on"


@job(timeout=60, takes_context=True)
async def sleeps_the_plain_way(context: Any) -> None:
    context.check()
    context.progress(0.5)
    context.sleep(1)


def test_an_async_job_that_would_block_the_loop_by_its_context_is_told_what_to_await() -> None:
    with pytest.raises(SynchronousOnlyOperation, match=r"await asyncio\.sleep"):
        sleeps_the_plain_way.submit().result(10)


@job(timeout=60)
async def joins(*, in_a_thread: bool) -> bool:
    join_pool = pools["default"].join
    return await sync_to_async(join_pool)(5) if in_a_thread else join_pool(5)


def test_an_async_job_waits_for_the_others_of_its_pool_in_a_thread_and_not_for_itself() -> None:
    other = async_jobs.naps.submit(0.2)
    assert joins.submit(in_a_thread=True).result(10) is True
    assert other.state is JobState.SUCCEEDED
    with pytest.raises(RuntimeError, match="sync_to_async"):
        joins.submit(in_a_thread=False).result(10)


@job(timeout=60, takes_context=True)
async def checks(context: Any) -> None:
    jobs.started.release()
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            context.check()


def test_an_async_job_may_end_by_its_contexts_check() -> None:
    handle = checks.submit()
    assert jobs.started.acquire(timeout=10)
    handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(10)


def test_async_jobs_share_the_workers_with_the_others_and_take_no_thread(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 3, "QUEUE_SIZE": 10}}
    handles = [async_jobs.naps.submit(0.3) for _ in range(2)]
    for _ in handles:
        assert jobs.started.acquire(timeout=10)
    assert pools["default"].stats().threads == 0
    jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    late = jobs.add.submit(1)
    assert figures() == (3, 1, 0, 0)
    assert [handle.result(10) for handle in handles] == ["slept", "slept"]
    assert late.result(10) == 1


# Every mixture


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("other", [{}, {"PERSIST": "memory"}, {"WORKERS": 1}])
def test_every_mixture_of_sync_and_async_ends(settings: Any, workers: int, other: dict[str, Any]) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": workers, "QUEUE_SIZE": 50}, "other": other}
    handles = []
    for _ in range(2):
        handles += [
            async_jobs.sync_calls_async.submit("a"),
            async_jobs.async_calls_sync.submit(),
            async_jobs.async_there_and_back.submit(),
            async_jobs.fans_out.submit("other", 3),
            async_jobs.fans_out_async.submit("other", 3),
            async_jobs.sync_fans_out_async.submit("other", 3),
            async_jobs.sync_awaits_another_pool.submit("other"),
        ]
    values = [handle.result(20) for handle in handles]
    assert [value[0] for value in values[::7]] == ["a", "a"]
    assert all(value[0] is True for value in values[1::7])
    assert values[3::7] == values[4::7] == values[5::7] == [6, 6]
    assert values[6::7] == [2, 2]


def test_async_and_sync_views_submit_sync_and_async_jobs(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2}}

    async def main() -> list[Any]:
        plain = await jobs.add.asubmit(1, 1)
        other = await async_jobs.add_async.asubmit(2, 2)
        from_sync = await sync_to_async(jobs.add.submit)(3, 3)
        waited = await sync_to_async(lambda: async_jobs.add_async.submit(4, 4).result(10))()
        return [*await asyncio.gather(*(handle.aresult(10) for handle in (plain, other, from_sync))), waited]

    assert on_a_loop(main) == [2, 4, 6, 8]
    assert async_to_sync(main)() == [2, 4, 6, 8]
    connection.close()


# O06, from async code


@pytest.mark.parametrize("workers", [1, 2])
def test_O06_async_parents_that_await_a_child_in_their_own_pool_get_an_error(settings: Any, workers: int) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": workers}}
    parents = [async_jobs.awaits_child.submit() for _ in range(workers)]
    for parent in parents:
        with pytest.raises(WaitingWouldDeadlock, match="own pool"):
            parent.result(5)
    jobs.gate.set()
    with pytest.raises(WaitingWouldDeadlock):
        async_jobs.awaits_itself.submit().result(5)
    child = async_jobs.submits_child_async.submit().result(5)
    assert JobHandle.get(child).result(10) == 3


@pytest.mark.parametrize("waits", [async_jobs.awaits_row, async_jobs.waits_for_row])
def test_O06_a_job_of_another_process_in_ones_own_pool_is_not_waited_for_either(settings: Any, waits: Any) -> None:
    """Its process has a pool of that name, too, whose jobs may wait for this one."""
    settings.BOUNDED_POOLS = {"default": {}, "other": {}}
    row = Job.objects.create(name="x", pool="default", state="running")
    with pytest.raises(WaitingWouldDeadlock):
        waits.submit(str(row.pk)).result(5)
    with pytest.raises(TimeoutError):
        waits.using(pool="other").submit(str(row.pk)).result(5)


def test_O06_a_bounded_wait_of_an_async_job_for_its_own_full_pool_is_refused_at_once(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    began = time.monotonic()
    with pytest.raises(QueueFull):
        async_jobs.submits_and_waits_for_a_place.submit(20).result(5)
    assert time.monotonic() - began < 1


def test_a_submit_whose_thread_cannot_be_started_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(function: Any) -> Any:
        async def refuse() -> None:
            raise RuntimeError("can't start new thread")

        return refuse

    monkeypatch.setattr("django_boundedpool.submission.sync_to_async", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        on_a_loop(jobs.add.asubmit, 1, 2)
    stats = pools["default"].stats()
    assert (stats.reserved, stats.queued, stats.running) == (0, 0, 0)
