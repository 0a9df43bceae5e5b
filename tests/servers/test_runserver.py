"""The development server, which loads the app in two processes."""

import signal
import sys

import pytest

from .harness import Bench, Server, children, thread_count, until

pytestmark = pytest.mark.server

RUNSERVER = [sys.executable, "manage.py", "runserver", "127.0.0.1:0"]


def pool_threads(server: Server) -> list[str]:
    names: list[str] = server.ask("/state/").body["threads"]
    return sorted(name for name in names if name.startswith("boundedpool"))


def child_of(server: Server) -> int:
    (pid,) = children(server.pid)
    return pid


def test_L06_autoreload_starts_pool_threads_in_the_serving_process_only_and_runs_a_job_once(bench: Bench) -> None:
    bare = bench.serve(RUNSERVER, look=False, without_pool="yes")
    server = bench.serve(RUNSERVER, look=False)
    until(lambda: thread_count(child_of(server)) == thread_count(child_of(bare)), "both children serve")
    parent_threads = thread_count(bare.pid)
    assert thread_count(server.pid) == parent_threads
    child = child_of(server)
    bare.kill()

    assert server.ask("/alive/").pid == child
    until(lambda: len(bench.processes()) == 1, "the housekeeper is at work")
    assert pool_threads(server) == ["boundedpool-housekeeper"], "no recorder and no worker yet"
    assert thread_count(server.pid) == parent_threads

    (id,) = server.submit(1, 0.1)
    until(lambda: bench.outcomes() == {"succeeded": 1}, "the job is over")
    assert any(name.startswith("boundedpool-default") for name in pool_threads(server))
    assert thread_count(server.pid) == parent_threads
    assert [line.pid for line in bench.lines("start")] == [child]
    assert bench.keys("start") == bench.keys("end") == [id]
    assert [row["pid"] for row in bench.processes()] == [child]


def test_sigterm_without_autoreload_finishes_the_jobs(bench: Bench) -> None:
    server = bench.serve([*RUNSERVER, "--noreload"], drain_timeout=10)
    ids = server.submit(20, 0.2)
    until(lambda: bench.keys("end"), "the work is under way")
    server.signal(signal.SIGTERM)
    assert server.wait(13) == 143, server
    assert bench.outcomes() == {"succeeded": len(ids)}
