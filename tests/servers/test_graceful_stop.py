"""What a server's stop leaves of accepted work when there is time enough: all of it done."""

import signal

import pytest

from .harness import GTHREAD, KINDS, SLACK, SYNC, UVICORN, Bench, Kind, Request, Visitors, check_truth, until

pytestmark = pytest.mark.server

DRAIN = 10.0


def half_done(bench: Bench, ids: list[str]) -> None:
    until(lambda: len(bench.keys("end")) >= len(ids) // 4, "a quarter of the jobs has ended")
    assert len(bench.keys("start")) < len(ids), "the machine was too slow to see the middle of the batch"


def check_orderly_end(bench: Bench, accepted: list[str]) -> None:
    check_truth(bench, accepted)
    assert bench.outcomes() == {"succeeded": len(bench.jobs())}
    (process,) = bench.processes()
    assert process["stopped_at"]
    assert not process["lost_at"]
    report = process["drain_report"]
    assert report["flushed"]
    assert not report["hurried"]
    # Empty where the last job ended while the server still waited for a slow request.
    assert set(report["counts"]) <= {"succeeded"}


def test_accepted_jobs_and_the_request_in_flight_are_finished_after_sigterm(bench: Bench, kind: Kind) -> None:
    server = bench.serve(kind.command, drain_timeout=DRAIN)
    slow = []
    ids = server.submit(40, 0.2)
    if kind.concurrent:
        slow.append(Request(server, "/slow/?name=raise&busy=1.5&raise=1"))
    slow.append(Request(server, "/slow/?name=tell&busy=1.5"))
    until(lambda: len(bench.keys("in_flight")) == len(slow), "the slow requests are in flight")
    visitors = Visitors(server) if kind.concurrent else None
    until(lambda: len(bench.keys("end")) >= 3 and (visitors is None or visitors.ids), "the work is under way")
    assert len(bench.keys("start")) < 40

    server.signal(signal.SIGTERM)

    told = slow[-1].answer()
    assert told.status == 200
    assert told.body["code"] == ("draining" if kind.closes_early else "accepted")
    if kind.concurrent:
        raised = slow[0].answer()
        if kind.closes_early:
            assert (raised.status, raised.body["code"]) == (503, "draining")
            assert "retry_after" not in raised.body
        else:
            assert raised.status == 200
            ids.append(raised.body["id"])
    if told.body["id"]:
        ids.append(told.body["id"])
    assert server.wait(DRAIN + SLACK) == kind.term, server
    if visitors is not None:
        heard = visitors.leave()
        assert set(heard) <= {"accepted", "draining", "no answer"}
        late = heard[heard.index("draining") :] if "draining" in heard else []
        assert "accepted" not in late
        ids += visitors.ids
    assert "Traceback" not in server.log
    check_orderly_end(bench, ids)


def test_second_sigterm_hurries_nothing(bench: Bench, kind: Kind) -> None:
    server = bench.serve(kind.command, drain_timeout=DRAIN)
    ids = server.submit(40, 0.15)
    half_done(bench, ids)
    server.signal(signal.SIGTERM)
    until(lambda: "Drain (" in server.log, "the drain has begun")
    server.signal(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == kind.term, server
    check_orderly_end(bench, ids)


def test_sigterm_to_the_whole_group_is_one_signal(bench: Bench, kind: Kind) -> None:
    server = bench.serve(kind.command, drain_timeout=DRAIN)
    ids = server.submit(40, 0.1)
    half_done(bench, ids)
    server.signal_group(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == kind.term, server
    check_orderly_end(bench, ids)


@pytest.mark.parametrize("name", ["gthread", "sync", "uvicorn", "lifespan"])
@pytest.mark.parametrize("whole_group", [False, True], ids=["main", "group"])
def test_sigint_drains_too(bench: Bench, name: str, whole_group: bool) -> None:
    """gunicorn passes SIGINT on as SIGQUIT; Ctrl-C in a terminal reaches every process of the group."""
    kind = KINDS[name]
    server = bench.serve(kind.command, drain_timeout=DRAIN)
    ids = server.submit(40, 0.1)
    half_done(bench, ids)
    (server.signal_group if whole_group else server.signal)(signal.SIGINT)
    code = server.wait(DRAIN + SLACK)
    check_orderly_end(bench, ids)
    assert code == kind.interrupt, server


def test_worker_that_was_forked_after_loading_the_app_runs_and_drains_its_jobs(bench: Bench) -> None:
    server = bench.serve([*GTHREAD, "--preload"], drain_timeout=DRAIN)
    ids = server.submit(24, 0.1)
    half_done(bench, ids)
    assert {line.pid for line in bench.lines("start")} == {server.serving_pid()}
    assert server.serving_pid() != server.pid
    server.signal(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == 0, server
    check_orderly_end(bench, ids)


@pytest.mark.parametrize("command", [SYNC, GTHREAD], ids=["sync", "gthread"])
@pytest.mark.parametrize(
    ("drain", "outcome"), [(10.0, "succeeded"), (0.5, "abandoned/drain_deadline")], ids=["enough", "too_little"]
)
def test_L04_job_of_a_recycled_worker_is_concluded(
    bench: Bench, command: list[str], drain: float, outcome: str
) -> None:
    server = bench.serve([*command, "--max-requests", "3"], look=False, drain_timeout=drain)
    assert {server.ask("/alive/").status for _ in range(2)} == {200}
    submitted = server.ask("/submit/?seconds=2")
    assert submitted.status == 202
    later = []

    def replaced() -> bool:
        later.append(server.ask("/alive/"))  # gthread may take one more request; then they wait for the next worker
        return len(later) >= 3 and later[-1].pid != submitted.pid

    until(replaced, "another worker answers")
    assert {answer.status for answer in later} == {200}
    assert bench.keys("start") == [submitted.body["id"]]
    assert bench.outcomes() == {outcome: 1}
    server.signal(signal.SIGTERM)
    server.wait()


def test_sigterm_to_the_supervisor_of_uvicorn_workers_drains_each_of_them(bench: Bench) -> None:
    server = bench.serve([*UVICORN, "bench.asgi_plain:application", "--workers", "2"], drain_timeout=DRAIN)
    ids = server.submit(24, 0.15)
    half_done(bench, ids)
    server.signal(signal.SIGTERM)
    server.wait(DRAIN + SLACK)
    check_truth(bench, ids)
    assert bench.outcomes() == {"succeeded": 24}
    assert all(process["stopped_at"] for process in bench.processes())


def test_reload_lets_the_old_worker_finish_while_the_new_one_serves(bench: Bench) -> None:
    server = bench.serve(GTHREAD, drain_timeout=DRAIN)
    ids = server.submit(12, 0.5)
    old = server.serving_pid()
    until(lambda: bench.keys("start"), "the work is under way")
    server.signal(signal.SIGHUP)
    until(lambda: server.serving_pid() != old, "the new worker serves")
    assert bench.outcomes()["succeeded"] < 12
    ids += server.submit(4, 0.1)
    until(lambda: bench.outcomes() == {"succeeded": 16}, "both workers are done")
    check_truth(bench, ids)
    assert [process["lost_at"] for process in bench.processes()] == [None, None]


def test_killed_gunicorn_master_lets_its_worker_finish(bench: Bench) -> None:
    """The worker sees within half its --timeout that its parent has changed, and stops in good order."""
    server = bench.serve([*SYNC, "--timeout", "4"], drain_timeout=DRAIN)
    ids = server.submit(24, 0.2)
    half_done(bench, ids)
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    until(lambda: bench.outcomes() == {"succeeded": 24}, "the worker has finished")
    until(lambda: bench.processes()[0]["stopped_at"], "the worker has stopped", within=10)
    check_orderly_end(bench, ids)


def test_every_worker_drains_its_own_jobs(bench: Bench) -> None:
    server = bench.serve([*SYNC, "-w", "2"], drain_timeout=DRAIN)
    ids: list[str] = []

    def both_work() -> bool:
        ids.extend(server.submit(4, 0.3))
        return len({line.pid for line in bench.lines("start")}) == 2

    until(both_work, "both workers run jobs")
    server.signal(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == 0, server
    check_truth(bench, ids)
    assert bench.outcomes() == {"succeeded": len(ids)}
    assert [bool(process["stopped_at"]) for process in bench.processes()] == [True, True]
