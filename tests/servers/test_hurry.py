"""Signals that cut a drain short: whoever sends them will not wait, so what is left is written down at once."""

import signal
import time

import pytest

from .harness import GTHREAD, SYNC, Bench, until

pytestmark = pytest.mark.server

DRAIN = 25.0


def check_given_up(bench: Bench, jobs: int) -> None:
    assert bench.outcomes() == {"abandoned/drain_deadline": jobs}
    process = bench.processes()[0]
    assert process["stopped_at"]
    assert process["drain_report"]["hurried"]


def test_quick_stop_of_gunicorn_after_a_graceful_one_ends_the_waiting(bench: Bench) -> None:
    """SIGTERM and then SIGINT: the worker gets SIGQUIT, and SIGKILL two seconds later."""
    server = bench.serve(GTHREAD, drain_timeout=DRAIN)
    server.submit(8, 60)
    server.signal(signal.SIGTERM)
    until(lambda: "Drain (" in server.log, "the drain has begun")
    time.sleep(1.3)  # signals closer together count as one
    server.signal(signal.SIGINT)
    assert server.wait(6) == 0, server
    check_given_up(bench, 8)


@pytest.mark.parametrize("command", [SYNC, GTHREAD], ids=["sync", "gthread"])
def test_L04_recycled_worker_that_drains_for_longer_than_the_servers_timeout_writes_before_it_is_killed(
    bench: Bench, command: list[str]
) -> None:
    """gunicorn sends SIGABRT when the heartbeat is missing for --timeout, and SIGKILL a second later."""
    server = bench.serve([*command, "--max-requests", "2", "--timeout", "3"], drain_timeout=DRAIN)
    submitted = server.ask("/submit/?seconds=60")
    until(lambda: server.ask("/alive/").pid != submitted.pid, "another worker answers")
    check_given_up(bench, 1)


def test_second_interrupt_ends_the_waiting_of_a_command(bench: Bench) -> None:
    program = bench.manage("work", "--n", "3", "--seconds", "60", workers=2, drain_timeout=DRAIN)
    until(lambda: "Drain (" in program.log and len(bench.keys("start")) == 2, "the command waits for its jobs")
    time.sleep(1.3)  # signals closer together count as one
    program.signal(signal.SIGINT)
    time.sleep(1.3)
    assert not program.ended
    program.signal(signal.SIGINT)
    program.wait(6)
    check_given_up(bench, 3)
