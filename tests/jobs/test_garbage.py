"""What a job leaves in memory: nothing, without the help of the garbage collector, while its workers idle."""

import asyncio
import contextvars
import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_boundedpool import JobHandle, Rejected, Retry, current_job, job, pools
from django_boundedpool.testing import join

from . import jobs_for_tests as jobs
from .loops import no_collector, until

pytestmark = pytest.mark.django_db(transaction=True)


class Thing:
    """Something that a job holds on to."""


mark: contextvars.ContextVar[object] = contextvars.ContextVar("mark")
alive: "weakref.WeakSet[Any]" = weakref.WeakSet()


def remember(thing: Any) -> Any:
    alive.add(thing)
    return thing


class OwnError(Exception):
    pass


def hold_on() -> tuple[object, ...]:
    """What lives in a frame, in a context variable and in the job's own context."""
    thing = remember(Thing())
    mark.set(remember(Thing()))
    context = remember(current_job())
    context.on_cancel(lambda: thing)
    return thing, context


@job(timeout=60, retry=Retry(max_attempts=2, on=(ConnectionError,), base=0.01, cap=0.01))
def plain(how: str, argument: Any) -> Any:
    held = hold_on()
    if how == "raises":
        raise OwnError(remember(Thing()))
    if how == "fails":
        raise ConnectionError("again")
    if how == "waits":
        jobs.started.release()
        held[1].sleep(30)  # type: ignore[attr-defined]
    return argument


@job(timeout=60, retry=Retry(max_attempts=2, on=(ConnectionError,), base=0.01, cap=0.01))
async def asynchronous(how: str, argument: Any) -> Any:
    held = hold_on()
    await sync_to_async(hold_on)()
    await asyncio.sleep(0)
    if how == "raises":
        raise OwnError(remember(Thing()))
    if how == "fails":
        raise ConnectionError("again")
    if how == "waits":
        jobs.started.release()
        await asyncio.sleep(30)
    del held
    return argument


@pytest.fixture(autouse=True)
def _clean(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    jobs.reset_gate()
    alive.clear()
    # pytest keeps every record that is logged, with the error in it.
    monkeypatch.setattr(logging.getLogger("django_boundedpool.jobs"), "disabled", True)
    yield
    jobs.gate.set()


@pytest.mark.parametrize("persist", ["commit", "memory"])
@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("how", ["returns", "raises", "fails", "waits"])
@pytest.mark.parametrize("function", [plain, asynchronous])
def test_nothing_of_a_finished_job_stays(settings: Any, function: Any, how: str, waited: bool, persist: str) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2, "PERSIST": persist}}
    jobs.add.submit(1).result(10)
    if persist == "memory":
        function = function.using(retention=0.05)
    with no_collector():
        finish(function, how, waited=waited)
        join()
        until(lambda: pools["default"].stats().running == 0)
        # What is kept without a row goes with its retention: the housekeeper looks every second.
        try:
            until(lambda: not alive, 5)
        except AssertionError:
            held = {repr(thing): [type(r).__name__ for r in gc.get_referrers(thing)] for thing in alive}
            raise AssertionError(held) from None


def finish(function: Any, how: str, *, waited: bool) -> None:
    handles = [function.submit(how, ["argument"])]
    if how == "waits":
        assert jobs.started.acquire(timeout=10)
        assert handles[0].cancel() == "requested"
    if waited:
        outcome(handles)


def outcome(handles: list[JobHandle]) -> None:
    """Wait, and keep no handle: an error that was raised here knows these frames, and the handle knows the error."""
    try:
        handles.pop().result(10)
    except Exception:
        pass


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_nothing_stays_of_what_an_async_caller_has_waited_for(how: str) -> None:
    async def main() -> None:
        handle = await asynchronous.asubmit(how, ["argument"])
        try:
            await handle.aresult(10)
        except OwnError:
            pass
        finally:
            del handle

    with no_collector():
        asyncio.run(main())
        join()
        until(lambda: not alive, 5)


def test_a_refused_async_submit_leaves_no_cycle(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)

    async def main() -> None:
        thing = remember(Thing())
        for chosen in (jobs.add, jobs.add.using(wait=0.01)):
            try:
                await chosen.asubmit(1)
            except Rejected:
                pass
        del thing

    with no_collector():
        asyncio.run(main())
        until(lambda: not alive, 5)
