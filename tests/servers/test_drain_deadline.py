"""What a server's stop leaves of accepted work when the time does not suffice: nothing without a terminal state."""

import signal
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from .harness import GTHREAD, SLACK, Bench, Kind, Request, Server, check_truth, until

pytestmark = pytest.mark.server

DRAIN = 3.0


def fill(server: Server, bench: Bench, short: float, job: str) -> dict[str, list[str]]:
    """Submit 12 jobs to 4 workers: four end in time, four are then begun and take too long, four wait for those."""
    ids = server.submit(4, short, job) + server.submit(8, 8, job)
    until(lambda: len(bench.keys("start")) == 4, "the first jobs run")
    return {"short": ids[:4], "long": ids[4:8], "waiting": ids[8:]}


def check_cut(bench: Bench, ids: dict[str, list[str]]) -> None:
    check_truth(bench, [id for group in ids.values() for id in group])
    assert Counter(bench.keys("start")) == Counter(ids["short"] + ids["long"])
    assert Counter(bench.keys("end")) == Counter(ids["short"])
    assert bench.outcomes() == {"succeeded": 4, "abandoned/drain_deadline": 8}
    (process,) = bench.processes()
    assert process["stopped_at"]
    report = process["drain_report"]
    assert report["flushed"]
    assert report["counts"] == {"succeeded": 4, "abandoned/drain_deadline": 8}
    assert set(report["outcomes"]["abandoned/drain_deadline"]) == set(ids["long"] + ids["waiting"])
    assert report["seconds"] <= DRAIN + 0.5


def test_jobs_that_ignore_the_request_to_stop_are_abandoned_at_the_deadline(bench: Bench, kind: Kind) -> None:
    server = bench.serve(kind.command, drain_timeout=DRAIN)
    ids = fill(server, bench, 1.0, "work")
    server.signal(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == kind.term, server
    check_cut(bench, ids)
    assert not bench.keys("interrupted")


def test_jobs_that_obey_the_request_to_stop_end_at_once_and_are_abandoned(bench: Bench, kind: Kind) -> None:
    """CANCEL_GRACE 2 of DRAIN_TIMEOUT 3: asked to stop after one second, and over then."""
    server = bench.serve(kind.command, drain_timeout=DRAIN, cancel_grace=2)
    ids = fill(server, bench, 0.5, "polite")
    server.signal(signal.SIGTERM)
    assert server.wait(DRAIN + SLACK) == kind.term, server
    check_cut(bench, ids)
    assert Counter(bench.keys("interrupted")) == Counter(ids["long"])
    (process,) = bench.processes()
    assert process["drain_report"]["seconds"] < DRAIN - 1, "it waited although nothing was left"


def test_deadline_counts_from_the_signal_although_the_server_waits_for_a_request_first(bench: Bench) -> None:
    server = bench.serve(GTHREAD, drain_timeout=DRAIN)
    request = Request(server, "/slow/?name=slow&busy=2")
    server.submit(4, 30)
    until(lambda: bench.keys("in_flight") and len(bench.keys("start")) == 4, "request and jobs are under way")
    server.signal(signal.SIGTERM)
    assert request.answer().status == 200
    assert server.wait(DRAIN + SLACK) == 0, server
    assert server.took < DRAIN + 1.5
    assert bench.outcomes() == {"abandoned/drain_deadline": 4}


def test_database_that_cannot_be_written_does_not_hold_up_the_stop(bench: Bench) -> None:
    """The last states are lost with it; the next process finds them unfinished and sets them right."""
    server = bench.serve(GTHREAD, drain_timeout=DRAIN)
    server.submit(8, 1)
    until(lambda: len(bench.keys("start")) == 4, "the first jobs run")
    with closing(sqlite3.connect(bench.database, timeout=20, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        server.signal(signal.SIGTERM)
        assert server.wait(DRAIN + SLACK) == 0, server
        blocker.execute("ROLLBACK")
    (process,) = bench.processes()
    assert process["stopped_at"] is None
    assert "not everything could be written" in server.log
    bench.serve(GTHREAD)
    until(lambda: bench.outcomes() == {"abandoned/process_lost": 8}, "the next process sets them right")
