"""What happens to the jobs of a process that was killed."""

import os
import signal
import time

import pytest

from .harness import GTHREAD, KINDS, SYNC, Bench, Kind, check_truth, until

pytestmark = pytest.mark.server


def test_jobs_of_a_killed_process_are_abandoned_by_the_next_one(bench: Bench, kind: Kind) -> None:
    server = bench.serve(kind.command, workers=2)
    done = server.submit(2, 0.1)
    until(lambda: bench.outcomes()["succeeded"] == 2, "the first jobs are over")
    lost = server.submit(6, 60)
    until(lambda: len(bench.keys("start")) == 4, "two more jobs run")
    victim = server.serving_pid()
    os.kill(victim, signal.SIGKILL)
    if victim == server.pid:
        assert server.wait() == -signal.SIGKILL
        server = bench.serve(kind.command, workers=2)
    else:
        until(lambda: server.serving_pid() != victim, "gunicorn has started another worker")
    until(lambda: bench.outcomes() == {"succeeded": 2, "abandoned/process_lost": 6}, "the jobs are given up", within=15)
    check_truth(bench, done + lost)
    dead, living = bench.processes()
    assert (dead["pid"], bool(dead["lost_at"]), dead["stopped_at"]) == (victim, True, None)
    assert (living["lost_at"], living["stopped_at"]) == (None, None)
    assert server.submit(1, 0.1)
    until(lambda: bench.outcomes()["succeeded"] == 3, "the new process runs jobs")


def test_killed_process_that_nobody_has_waited_for_counts_as_lost(bench: Bench) -> None:
    """As in a container whose first process never reaps: the id is still there, as a zombie's, but nothing runs."""
    server = bench.serve(KINDS["uvicorn"].command, workers=2)
    server.submit(3, 60)
    until(lambda: len(bench.keys("start")) == 2, "two jobs run")
    os.kill(server.pid, signal.SIGKILL)  # and `wait` is not called: it stays a zombie
    bench.serve(KINDS["uvicorn"].command, workers=2)
    until(lambda: bench.outcomes() == {"abandoned/process_lost": 3}, "the jobs are given up", within=15)


def test_process_that_comes_back_after_it_was_declared_lost_drops_its_jobs_and_goes_on(bench: Bench) -> None:
    """Stopped for longer than LOST_AFTER, as a suspended machine is: what it does later must not count."""
    command = KINDS["uvicorn"].command
    server = bench.serve(command, workers=2)
    ids = server.submit(6, 1)
    until(lambda: len(bench.keys("start")) == 2, "two jobs run")
    server.send(signal.SIGSTOP)
    bench.serve(command, workers=2)
    until(lambda: bench.outcomes() == {"abandoned/process_lost": 6}, "the jobs are given up", within=15)
    server.send(signal.SIGCONT)
    until(lambda: len(bench.processes()) == 3, "it goes on under a new id", within=10)
    ids += server.submit(2, 0.1)
    until(lambda: bench.outcomes() == {"abandoned/process_lost": 6, "succeeded": 2}, "it runs new jobs", within=10)
    server.signal(signal.SIGTERM)
    assert server.wait() == 143, server
    assert bench.outcomes() == {"abandoned/process_lost": 6, "succeeded": 2}
    assert set(bench.jobs()) == set(ids)
    assert len(bench.keys("start")) == len(set(bench.keys("start")))
    first, _, third = bench.processes()
    assert first["lost_at"]
    assert (third["pid"], third["lost_at"], bool(third["stopped_at"])) == (server.pid, None, True)


@pytest.mark.parametrize("command", [SYNC, GTHREAD], ids=["sync", "gthread"])
def test_cancel_request_to_one_worker_stops_a_job_in_the_other(bench: Bench, command: list[str]) -> None:
    server = bench.serve([*command, "-w", "2"])
    (id,) = server.submit(1, 60, "polite")
    (start,) = until(lambda: bench.lines("start"), "the job runs")
    token = "a" * 32

    def asked() -> bool:
        answer = server.ask(
            f"/jobs/{id}/cancel/", "POST", X_Not_Pid=str(start.pid), Cookie=f"csrftoken={token}", X_CSRFToken=token
        )
        assert answer.status in (202, 421), answer
        return answer.status == 202 and answer.body["answer"] == "requested"

    until(asked, "the other worker answers")
    until(lambda: bench.keys("interrupted") == [id], "the job was told", within=3)
    until(lambda: bench.outcomes() == {"cancelled/user": 1}, "it is written down", within=3)


def test_R05_a_job_longer_than_every_interval_runs_once_in_the_process_that_has_it(bench: Bench) -> None:
    """It holds its thread in a blocking call; its process gives signs of life meanwhile, and nobody hands it out."""
    command = KINDS["uvicorn"].command
    intervals = {"heartbeat": 0.5, "lost_after": 1}
    server = bench.serve(command, workers=2, **intervals)
    bench.serve(command, workers=2, **intervals)
    ids = server.submit(2, 3)
    until(lambda: sorted(bench.keys("start")) == sorted(ids), "both jobs run")
    beats = set()
    while len(bench.keys("end")) < 2:
        beats.update(bench._query(f"SELECT heartbeat_at FROM boundedpool_process WHERE pid = {server.pid}"))
        assert [row.outcome for row in bench.jobs().values()].count("abandoned/process_lost") == 0
        time.sleep(0.05)
    assert len(beats) >= 4
    until(lambda: bench.outcomes() == {"succeeded": 2}, "their ends are written")
    assert sorted(bench.keys("start")) == sorted(ids)
    assert {row.attempt for row in bench.jobs().values()} == {1}
    check_truth(bench, ids)
