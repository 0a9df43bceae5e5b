"""The threads that keep a process in order: when they start, and what they outlive."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError

from django_boundedpool import JobCancelled, JobContext, JobHandle, job
from django_boundedpool.engine.errors import JobInterrupted
from django_boundedpool.engine.states import Reason
from django_boundedpool.lifecycle import runtime
from django_boundedpool.lifecycle.runtime import Runtime
from django_boundedpool.models import Process
from django_boundedpool.store import processes, writes

pytestmark = pytest.mark.django_db(transaction=True)

started = threading.Semaphore(0)
errors: list[BaseException] = []


@job(takes_context=True)
def stubborn(context: JobContext) -> None:
    """Sleeps until it is asked to stop, and its callback raises then."""
    for error in errors:
        context.on_cancel(lambda error=error: throw(error))
    context.on_cancel(context.check)
    started.release()
    context.sleep(30)


@job
def plain() -> int:
    return 1


def throw(error: BaseException) -> None:
    raise error


@pytest.fixture(autouse=True)
def _errors() -> Iterator[None]:
    errors.clear()
    while started.acquire(blocking=False):
        pass
    yield
    errors.clear()


@pytest.fixture
def _brisk(settings: Any) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"HEARTBEAT": 0.1, "LOST_AFTER": 60}


def asked_to_stop_by_another_process(handle: JobHandle) -> None:
    assert started.acquire(timeout=10)
    assert writes.request_cancel(handle.id, Reason.USER, "", "default")
    with pytest.raises(JobCancelled):
        handle.result(10)


@pytest.mark.usefixtures("_brisk")
@pytest.mark.parametrize("error", [JobInterrupted(Reason.USER), SystemExit(1)], ids=lambda error: type(error).__name__)
def test_housekeeper_outlives_a_cancel_callback_that_raises(error: BaseException) -> None:
    errors.append(error)
    for _ in range(2):
        asked_to_stop_by_another_process(stubborn.submit())
    thread = runtime.current().housekeeper._thread
    assert thread is not None
    assert thread.is_alive()


def test_cancel_answers_its_caller_although_the_callback_raises() -> None:
    handle = stubborn.submit()
    assert started.acquire(timeout=10)
    assert handle.cancel() == "requested"
    with pytest.raises(JobCancelled):
        handle.result(10)


@pytest.mark.usefixtures("_brisk")
def test_housekeeper_outlives_a_sweep_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signs of life must go on, or this process counts as lost."""
    real, fails = Runtime.sweep, iter([True, True])

    def sweep(active: Runtime) -> None:
        if next(fails, False):
            raise RuntimeError("no")
        real(active)

    monkeypatch.setattr(Runtime, "sweep", sweep)
    assert plain.submit().result(10) == 1
    deadline = time.monotonic() + 10
    while not Process.objects.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_timer_thread_is_there_before_anything_needs_it() -> None:
    """A job that is to be retried while the interpreter ends could start it no more on Python 3.12.0 to 3.12.2."""
    assert plain.submit().result(10) == 1
    thread = runtime.current().timer._thread
    assert thread is not None
    assert thread.is_alive()


def test_process_whose_registration_was_stored_without_an_answer_goes_on_living(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"HEARTBEAT": 0.1, "LOST_AFTER": 30}
    real = processes.register
    lost = iter([True])

    def register(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if next(lost, False):
            raise OperationalError("the connection broke")

    monkeypatch.setattr(processes, "register", register)
    assert plain.submit().result(10) == 1
    mine = Process.objects.filter(pk=runtime.current().process)
    deadline = time.monotonic() + 10
    while not mine.exclude(stats={}).exists():  # written by a heartbeat only
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert Process.objects.count() == 1
