"""What a job leaves behind: no locals, no timers, no second process that works."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState

from .builders import Bench

pytestmark = pytest.mark.fast


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Large:
    """Stands for what a job had loaded."""


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(
    ("spec", "state"),
    [({}, JobState.FAILED), ({"retry": Retry(max_attempts=2)}, JobState.QUEUED)],
    ids=["failed", "to be retried"],
)
def test_locals_of_a_failed_attempt_are_gone_at_once(spec: dict[str, Retry], state: JobState) -> None:
    """Without the garbage collector, and although the record and its error are kept."""
    bench = Bench()
    kept: list[weakref.ref[Large]] = []

    def deeper(large: Large) -> None:
        raise ValueError("no")

    def job() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        deeper(large)

    record = bench.submit(job, **spec)
    bench.run_next()
    assert record.state is state
    assert kept[0]() is None
    assert "deeper" in bench.last(record)["error"]["traceback"]


FORK = """
import json, os, sys, threading, time
from tests.engine.builders import Bench

bench = Bench(threaded=True, workers=1)
read, write = os.pipe()
gate, children = threading.Event(), []

def forks():
    gate.wait(30)
    child = os.fork()
    if child:
        children.append(child)

bench.submit(forks)
bench.submit(lambda: os.write(write, b"x") and None)
gate.set()
bench.pool.wait_empty(20)
deadline = time.monotonic() + 10
while (ended := os.waitpid(children[0], os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(children[0], 9)
print(json.dumps([os.read(read, 100).decode(), ended != (0, 0)]))
"""


def test_child_that_a_job_forked_and_forgot_does_not_work_through_the_queue(python_env: dict[str, str]) -> None:
    """In a process of its own: a fork beside the threads of the test run is nothing to try."""
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], env=python_env, capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == ["x", True]


@pytest.mark.usefixtures("_no_collector")
def test_failed_job_that_nobody_holds_leaves_no_cycle() -> None:
    class Marked(ValueError):
        pass

    bench = Bench(threaded=True)
    kept: list[weakref.ref[Marked]] = []

    def work() -> None:
        error = Marked()
        kept.append(weakref.ref(error))
        raise error

    record = bench.submit(work)
    assert bench.pool.done_event(record).wait(10)
    del record
    bench.close()
    bench.events.clear()
    assert kept[0]() is None


def test_the_causes_of_a_failure_keep_no_locals() -> None:
    class Large:
        """What a job works with."""

    kept: list[weakref.ref[Large]] = []

    def inner() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise KeyError("inner")

    def group() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError("member")

    def job() -> None:
        members = []
        try:
            group()
        except ValueError as member:
            members.append(member)  # raised in no context of the group
        try:
            inner()
        except KeyError as cause:
            raise ExceptionGroup("both", members) from cause

    bench = Bench()
    record = bench.submit(job)
    bench.run_next()
    assert record.state is JobState.FAILED
    assert [reference() for reference in kept] == [None, None]


FORK_UNDER_A_LOCK = """
import os
from django_boundedpool.engine import cancellation, record
with cancellation._lock, record._making:
    child = os.fork()
    if child == 0:
        cancellation.CancelToken().sleep(0)
        os._exit(0)
deadline = 200
import time
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and deadline:
    deadline -= 1
    time.sleep(0.05)
if ended == (0, 0):
    os.kill(child, 9)
print(ended != (0, 0) and ended[1] == 0)
"""


def test_a_child_forked_while_another_thread_held_a_lock_of_the_tokens_can_use_tokens(
    python_env: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_UNDER_A_LOCK],
        capture_output=True,
        text=True,
        timeout=60,
        env=python_env,
        check=True,
    )
    assert done.stdout.strip() == "True"


def test_the_run_time_of_a_success_does_not_follow_the_wall_clock() -> None:
    bench = Bench()
    record = bench.submit()
    bench.take()
    bench.advance(2)
    bench.pool._time = lambda: bench.clock.monotonic() - 3600
    bench.pool.attempt_returned(record, None)
    assert bench.last(record)["attempts"][0]["ran"] == 2
