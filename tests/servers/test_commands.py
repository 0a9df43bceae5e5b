"""Management commands and scripts: those that use no job must not notice the app, the others must not lose work."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from .harness import SLACK, Bench, check_truth, until

pytestmark = pytest.mark.server

COMMANDS = {
    "check": ["check"],
    "makemigrations": ["makemigrations", "--check"],
    "migrate": ["migrate"],
    "showmigrations": ["showmigrations"],
    "collectstatic": ["collectstatic", "--noinput"],
    "shell": ["shell", "-c", "import bench.jobs"],
    "test": ["test", "bench"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_L07_command_on_an_empty_database_starts_no_thread_and_opens_no_connection_for_us(
    tmp_path: Path, name: str
) -> None:
    bench = Bench(tmp_path)
    spy = tmp_path / "spy.json"
    command = [sys.executable, "-W", "error::RuntimeWarning", "spied_manage.py", *COMMANDS[name]]
    try:
        program = bench.start(command, spy=spy, static_root=tmp_path / "static")
        assert program.wait() == 0, program
    finally:
        bench.stop_all()
    found = json.loads(spy.read_text())
    assert found["threads"] == []
    assert found["ours"] == []
    if name in ("check", "collectstatic", "shell"):
        assert found["connections"] == 0


def test_L07_setup_does_not_try_to_reach_the_database(bench: Bench) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")

    def seconds() -> float:
        program = bench.start([sys.executable, "unreachable.py"], postgresql_port=1)
        assert program.wait() == 0, program
        found = json.loads(program.log)
        assert found["tried"] == []
        assert found["threads"] == 1
        return float(found["seconds"])

    # On a machine busy with something else one of several is the honest measure.
    assert any(seconds() < 1 for _ in range(5))


def test_L09_handlers_of_the_program_stay_in_charge_when_a_thread_submits_the_first_job(bench: Bench) -> None:
    spy = bench.folder / "spy.json"
    program = bench.start([sys.executable, "sentinels.py"], drain_timeout=5, spy=spy)
    assert program.wait() == 0, program
    found = json.loads(spy.read_text())
    assert found == {"outcome": ["timed out"], "called": ["SIGTERM", "SIGINT"], "alarms": []}
    assert "ValueError" not in program.log
    assert bench.outcomes() == {"failed/timeout": 1}


def test_command_ends_when_its_jobs_have_ended(bench: Bench) -> None:
    """Without a deadline: DRAIN_TIMEOUT is for signals."""
    program = bench.manage("work", "--n", "8", "--seconds", "0.5", workers=2, drain_timeout=0.5)
    assert program.wait() == 0, program
    assert bench.keys("returned")
    assert bench.outcomes() == {"succeeded": 8}
    check_truth(bench, list(bench.jobs()))
    (process,) = bench.processes()
    assert process["stopped_at"]
    assert process["drain_report"]["deadline"] is None


def test_sigterm_lets_a_command_finish_its_jobs(bench: Bench) -> None:
    program = bench.manage("work", "--n", "8", "--seconds", "0.3", "--stay", workers=2, drain_timeout=10)
    until(lambda: bench.keys("submitted") and bench.keys("start"), "the command is under way")
    program.signal(signal.SIGTERM)
    assert program.wait(10 + SLACK) == 143, program
    assert bench.outcomes() == {"succeeded": 8}
    assert not bench.keys("returned")


def test_sigterm_cuts_a_command_at_the_deadline(bench: Bench) -> None:
    program = bench.manage("work", "--n", "8", "--seconds", "30", "--stay", workers=2, drain_timeout=2)
    until(lambda: bench.keys("submitted") and len(bench.keys("start")) == 2, "the command is under way")
    program.signal(signal.SIGTERM)
    assert program.wait(2 + SLACK) == 143, program
    assert bench.outcomes() == {"abandoned/drain_deadline": 8}
    (process,) = bench.processes()
    assert process["stopped_at"]


def test_signal_gives_a_command_that_already_waits_the_whole_deadline(bench: Bench) -> None:
    """DRAIN_TIMEOUT counts from the signal, not from the end of the command's own code."""
    program = bench.manage("work", "--n", "5", "--seconds", "1", workers=1, drain_timeout=3)
    until(lambda: len(bench.keys("end")) == 4, "the command has waited for longer than DRAIN_TIMEOUT")
    program.signal(signal.SIGTERM)
    program.wait(3 + SLACK)
    assert bench.outcomes() == {"succeeded": 5}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", range(4))
def test_signal_in_the_middle_of_a_submit_leaves_no_job_behind(
    bench: Bench, signum: signal.Signals, after: int
) -> None:
    """The handler's exception may come while the submit waits for its commit."""
    program = bench.manage("work", "--for-ever", "--seconds", "0.001", drain_timeout=5)
    until(lambda: len(bench.keys("start")) > 20 * (after + 1), "jobs are submitted")
    program.signal(signum)
    program.wait(5 + SLACK)
    check_truth(bench, [])


def test_command_without_a_job_dies_of_sigterm_as_if_the_app_was_absent(bench: Bench) -> None:
    program = bench.manage("work", "--stay")
    until(lambda: bench.keys("submitted"), "the command is under way")
    program.signal(signal.SIGTERM)
    assert program.wait() == -signal.SIGTERM, program
    assert program.log == ""
    assert bench.processes() == []


def test_killed_command_that_was_not_yet_registered_leaves_no_live_job(bench: Bench) -> None:
    """Its first job was stored before its first sign of life: nothing but the job's row tells of it."""
    program = bench.start([sys.executable, "unregistered.py"], start_at="first_job")
    until(lambda: bench.keys("start"), "its job runs")
    assert bench.processes() == []
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    other = bench.manage("work", "--n", "1", "--seconds", "6")
    until(lambda: bench.outcomes()["abandoned/process_lost"] == 1, "the job is given up", within=12)
    assert other.wait() == 0
