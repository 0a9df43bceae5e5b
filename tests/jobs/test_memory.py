"""PERSIST="memory": jobs without rows."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TestCase, override_settings

from django_boundedpool import (
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobState,
    Retry,
    StoreUnavailable,
    job,
    pools,
)
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job, Process
from django_boundedpool.store import memory
from django_boundedpool.testing import join

from . import async_jobs
from . import jobs_for_tests as jobs
from .loops import on_a_loop, until

pytestmark = pytest.mark.django_db(transaction=True)


def row_of(handle: JobHandle) -> Job:
    record = pools["default"].find(handle.id)
    assert record is not None
    return memory.row(record, *pools["default"].locked(record, memory.pictures))


@pytest.fixture(autouse=True)
def _clean(settings: Any) -> Iterator[None]:
    jobs.reset_gate()
    settings.BOUNDED_POOLS = {"default": {"PERSIST": "memory", "WORKERS": 2, "QUEUE_SIZE": 2000}}
    yield
    jobs.gate.set()


@job(retention=0.2, timeout=60)
def forgotten_soon() -> int:
    return 1


@job(retry=Retry(max_attempts=2, base=0.01, cap=0.01), timeout=60)
def fails_twice() -> None:
    raise ValueError("always")


def test_a_job_runs_and_no_row_is_ever_written(django_assert_num_queries: Any, user: Any) -> None:
    with django_assert_num_queries(0):
        handle = jobs.add.using(owner=user).submit(1, b=2)
        assert handle.result(10) == 3
    join()
    assert Job.objects.count() == Process.objects.count() == 0
    assert "boundedpool-recorder-default" not in {thread.name for thread in threading.enumerate()}


def test_a_finished_job_is_found_by_its_id_until_its_retention_has_passed(settings: Any) -> None:
    handle = forgotten_soon.submit()
    assert handle.result(10) == 1
    found = JobHandle.get(handle.id)
    assert (found.state, found.result(1), found.cancel()) == (JobState.SUCCEEDED, 1, "finished")
    until(lambda: not known(handle))
    assert len(runtime.current().memories["default"]) == 0


def test_the_oldest_go_with_their_retention_though_nobody_asks_for_them() -> None:
    handles = [forgotten_soon.submit() for _ in range(5)]
    assert [handle.result(10) for handle in handles] == [1] * 5
    kept = runtime.current().memories["default"]
    assert len(kept) == 5
    until(lambda: len(kept) == 0)  # the housekeeper lets them go


def known(handle: JobHandle) -> bool:
    try:
        JobHandle.get(handle.id)
    except JobNotFound:
        return False
    return True


def test_of_more_than_a_thousand_the_oldest_are_gone() -> None:
    handles = [jobs.add.submit(n) for n in range(memory.LIMIT + 5)]
    join()
    assert len(runtime.current().memories["default"]) == memory.LIMIT
    assert sum(known(handle) for handle in handles) == memory.LIMIT
    assert known(handles[-1])


def test_every_waiter_gets_a_copy_of_a_kept_result_and_the_jobs_own_error() -> None:
    handle = jobs.echo.submit([1])
    handle.result(10)
    JobHandle.get(handle.id).result(1).append(2)
    assert JobHandle.get(handle.id).result(1) == [1]
    failed = jobs.boom.submit("text")
    with pytest.raises(ValueError, match="text"):
        failed.result(10)
    with pytest.raises(ValueError, match="text"):
        JobHandle.get(failed.id).result(1)
    again = fails_twice.submit()
    with pytest.raises(ValueError, match="always"):
        again.result(10)
    assert JobHandle.get(again.id).refresh().state is JobState.FAILED


def test_a_queued_and_a_running_job_are_cancelled_through_handles_that_were_looked_up(
    settings: Any, django_assert_num_queries: Any
) -> None:
    settings.BOUNDED_POOLS = {"default": {"PERSIST": "memory", "WORKERS": 1}}
    running = jobs.obedient.submit()
    assert jobs.started.acquire(timeout=10)
    queued = jobs.add.submit(1)
    with django_assert_num_queries(0):
        assert JobHandle.get(queued.id).cancel() == "cancelled"
        assert JobHandle.get(running.id).cancel() == "requested"
    for handle in (running, queued):
        with pytest.raises(JobCancelled):
            handle.result(10)
        assert handle.cancel() == "finished"


def test_a_job_that_ignores_its_cancellation_shows_the_request() -> None:
    handle = jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    handle.cancel()
    row = row_of(handle)
    assert (row.state, row.cancel_requested, row.cancel_reason) == ("running", True, "user")
    jobs.gate.set()
    handle.result(10)


@pytest.mark.parametrize("use_tz", [True, False])
def test_its_picture_is_that_of_a_row_with_and_without_time_zones(settings: Any, use_tz: bool) -> None:
    from django_boundedpool.http.serialise import as_json

    settings.USE_TZ = use_tz
    handle = jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    answer = as_json(row_of(handle))
    assert (answer["state"], answer["overdue"], answer["durability"]) == ("running", False, "memory")
    assert answer["started_at"].tzinfo is not None
    jobs.gate.set()


# Transactions


def test_a_job_submitted_inside_atomic_starts_at_the_commit_and_sees_its_data() -> None:
    from django.contrib.auth import get_user_model

    with transaction.atomic():
        get_user_model().objects.create_user("fresh")
        handle = jobs.counts_users.submit()
        assert handle.state is handle.refresh().state is JobState.SUBMITTED
        with pytest.raises(JobNotFound):
            JobHandle.get(handle.id)  # nobody else may see it yet
    assert handle.result(10) == 1


def test_a_rollback_gives_the_place_back_and_the_job_never_was() -> None:
    handle = None
    try:
        with transaction.atomic():
            handle = jobs.hold.submit()
            assert pools["default"].stats().reserved == 1
            raise LookupError
    except LookupError:
        pass
    until(lambda: pools["default"].stats().reserved == 0)
    assert pools["default"].stats().accepted == 0
    assert handle is not None
    for ask in (handle.result, handle.cancel, handle.refresh):
        with pytest.raises(JobNotFound):
            ask()


def test_one_that_is_cancelled_inside_its_transaction_never_runs() -> None:
    with transaction.atomic():
        handle = jobs.hold.submit()
        assert handle.cancel() == "requested"
    with pytest.raises(JobCancelled):
        handle.result(10)
    assert not jobs.started.acquire(timeout=0.1)


def test_a_job_behind_a_slow_commit_hook_is_not_lost() -> None:
    """While an earlier hook runs, the connection has forgotten the later ones, and whoever sweeps cannot know why."""

    def slow() -> None:
        runtime.current().sweep()
        runtime.current().give_back_dropped()
        assert pools["default"].stats().reserved == 0

    with transaction.atomic():
        transaction.on_commit(slow)
        handle = jobs.add.submit(2)
    assert handle.result(10) == 2


def test_no_thread_is_an_error_of_the_store_and_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_boundedpool.store.recorder import StoreError

    def start() -> None:
        raise StoreError("the system gives no thread")

    monkeypatch.setattr(runtime.current(), "start", start)
    with pytest.raises(StoreUnavailable, match="no thread"):
        jobs.add.submit(1)
    with transaction.atomic(), pytest.raises(StoreUnavailable, match="no thread"):
        jobs.add.submit(1)

    async def main() -> None:
        with pytest.raises(StoreUnavailable, match="no thread"):
            await jobs.add.asubmit(1)

    on_a_loop(main)
    assert pools["default"].stats().reserved == 0


# Async, and in tests


def test_async_callers_need_no_thread_and_no_connection() -> None:
    async def main() -> None:
        before = {thread.name for thread in threading.enumerate()}
        handle = await async_jobs.add_async.asubmit(1, 2)
        assert await handle.aresult(10) == 3
        started = {thread.name for thread in threading.enumerate()} - before
        assert all(name.startswith("boundedpool-") for name in started)
        assert await (await JobHandle.aget(handle.id)).aresult(1) == 3
        assert await handle.acancel() == "finished"

    on_a_loop(main)


@override_settings(BOUNDED_POOL_OPTIONS={"INLINE": True}, BOUNDED_POOLS={"default": {"PERSIST": "memory"}})
class InlineMemory(TestCase):
    def test_T01_a_job_runs_on_the_tests_connection_and_leaves_no_row(self):
        connections["default"].ensure_connection()
        assert jobs.makes_user.submit("x").result() > 0
        assert jobs.counts_users.submit().result() == 1
        assert async_jobs.async_calls_sync.submit().result()[0] is True
        with pytest.raises(ValueError, match="no"):
            jobs.boom.submit().result()
        assert Job.objects.count() == 0

    async def test_T01_an_async_test_does_so_too(self):
        assert await (await jobs.makes_user.asubmit("x")).aresult() > 0
        assert await (await jobs.counts_users.asubmit()).aresult() == 1

    def test_T03_inside_a_transaction_it_waits_for_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            handle = jobs.add.submit(1)
            assert handle.state is JobState.SUBMITTED
        assert handle.result() == 1


def test_a_kept_failure_of_another_kind_is_told_as_elsewhere() -> None:
    handle = jobs.big.submit()
    with pytest.raises(JobFailed, match="MAX_RESULT_BYTES"):
        handle.result(60)
    with pytest.raises(JobFailed, match="MAX_RESULT_BYTES"):
        JobHandle.get(handle.id).result(1)
