"""Async jobs that tests submit."""

import asyncio
import threading
from collections.abc import AsyncIterator

from asgiref.sync import async_to_sync, sync_to_async

from django_boundedpool import JobHandle, Retry, current_job, job

from . import jobs_for_tests as jobs

log: list[object] = []
left: list[object] = []
executors = threading.Event()


@job(timeout=60)
async def add_async(a, b=0):
    await asyncio.sleep(0)
    return a + b


@job(timeout=60)
async def naps(seconds=30):
    """Sleeps, and says so when it is cancelled."""
    jobs.started.release()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
    return "slept"


@job(timeout=60)
async def stubborn():
    """Swallows its cancellation."""
    jobs.started.release()
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "went on"


@job(timeout=60)
async def boom_async(message="no"):
    await asyncio.sleep(0)
    raise ValueError(message)


@job(timeout=60, retry=Retry(max_attempts=3, base=0.01, cap=0.02))
async def flaky_async():
    log.append("try")
    if len(log) < 3:
        raise ConnectionError("again")
    return len(log)


@job(timeout=60, retry=Retry(max_attempts=2, classify=lambda error: 30.0))
async def retried_late():
    raise ConnectionError("later")


@job(timeout=0.2)
async def overdue_async():
    await asyncio.sleep(30)


async def numbers() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        left.append("generator closed")


async def pending() -> None:
    try:
        await asyncio.sleep(30)
    finally:
        left.append("task ended")


@job(timeout=60, takes_context=True)
async def messy(context, how="returns"):
    """Leaves a pending task, an async generator and a call in an executor behind."""
    task = asyncio.create_task(pending())
    generator = numbers()
    assert await anext(generator) == 1
    call = asyncio.get_running_loop().run_in_executor(None, executors.wait, 0.05)
    left.append((task, generator, call))
    await asyncio.sleep(0.01)
    if how == "fails":
        raise ValueError("messy")
    if how == "waits":
        jobs.started.release()
        await asyncio.sleep(30)
    return context.attempt


# One calling the other


@job(timeout=60)
def sync_calls_async(text):
    """A plain job that runs a coroutine, which itself comes back for the ORM."""

    async def inner():
        await asyncio.sleep(0)
        return await sync_to_async(count_users)()

    return [text, async_to_sync(inner)()]


def count_users():
    from django.contrib.auth import get_user_model

    return get_user_model().objects.count()


@job(timeout=60)
async def async_calls_sync():
    """An async job that uses the ORM both ways."""
    from django.contrib.auth import get_user_model

    first = await sync_to_async(count_users)()
    await get_user_model().objects.acreate(username=f"made by {current_job().job_id}")
    return [first < await get_user_model().objects.acount(), current_job().name]


@job(timeout=60)
async def async_there_and_back():
    """Async, then sync, then async, then sync again."""

    async def innermost():
        return await sync_to_async(count_users)()

    return await sync_to_async(lambda: async_to_sync(innermost)())()


@job(timeout=60)
async def fans_out(pool, number):
    """Submits plain jobs to another pool and awaits them."""
    handles = [await jobs.add.using(pool=pool).asubmit(n, 1) for n in range(number)]
    return sum(await asyncio.gather(*(handle.aresult(10) for handle in handles)))


@job(timeout=60)
async def fans_out_async(pool, number):
    handles = [await add_async.using(pool=pool).asubmit(n, 1) for n in range(number)]
    return sum(await asyncio.gather(*(handle.aresult(10) for handle in handles)))


@job(timeout=60)
def sync_fans_out_async(pool, number):
    handles = [add_async.using(pool=pool).submit(n, 1) for n in range(number)]
    return sum(handle.result(10) for handle in handles)


@job(timeout=60)
def sync_awaits_another_pool(pool):
    async def inner():
        handle = await add_async.using(pool=pool).asubmit(1, 1)
        return await handle.aresult(10)

    return async_to_sync(inner)()


@job(timeout=60)
async def awaits_child():
    return await (await jobs.hold.asubmit()).aresult(10)


@job(timeout=60)
async def awaits_itself():
    return await (await JobHandle.aget(current_job().job_id)).aresult(10)


@job(timeout=60)
async def awaits_row(job_id):
    return await (await JobHandle.aget(job_id)).aresult(0.2)


@job(timeout=60)
def waits_for_row(job_id):
    return JobHandle.get(job_id).result(0.2)


@job(timeout=60)
async def submits_and_waits_for_a_place(seconds):
    """A bounded wait from inside a job of the same pool."""
    await jobs.add.using(wait=seconds).asubmit(1)


@job(timeout=60)
async def submits_child_async():
    return str((await add_async.asubmit(1, 2)).id)
