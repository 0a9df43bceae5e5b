"""Signs of life, and who counts as lost."""

import os
import subprocess
import sys
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from django_boundedpool.models import Job, Process
from django_boundedpool.store import processes
from django_boundedpool.store.processes import Judge

pytestmark = pytest.mark.django_db

ALIAS = "default"


def another(**values):
    """A process on another machine, so that only its silence can tell."""
    given = {"id": uuid.uuid4(), "machine": "elsewhere", "pid": 1, "pid_started": "1", **values}
    return Process.objects.create(**given)


def job_of(process, **values):
    return Job.objects.create(name="x", pool="default", process=process.pk, **{"state": "running", **values})


def judge(**options):
    return Judge(**{"lost_after": 30, "heartbeat": 5, "alias": ALIAS, "retention": {}, **options})


def silent(process, seconds=60):
    Process.objects.filter(pk=process.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=seconds))


def sights_are_old(court, seconds=60):
    """As if the judge had been looking for that long."""
    court._sights = {
        key: processes._Sight(sight.heartbeat, sight.since - seconds) for key, sight in court._sights.items()
    }


def test_a_process_registers_beats_and_stops():
    me = uuid.uuid4()
    processes.register(me, server="gunicorn", release="r1", alias=ALIAS)
    row = Process.objects.get(pk=me)
    assert (row.pid, row.server, row.release) == (os.getpid(), "gunicorn", "r1")
    assert row.pid_started == processes.process_started(os.getpid())
    assert processes.beat(me, {"default": {}}, ALIAS) == "alive"
    assert processes.stop(me, {"counts": {}}, ALIAS)
    row.refresh_from_db()
    assert row.stopped_at is not None
    assert row.drain_report == {"counts": {}}


def test_a_process_that_leaves_a_live_job_has_not_stopped_in_good_order():
    me = uuid.uuid4()
    processes.register(me, server="", release="", alias=ALIAS)
    Job.objects.create(name="x", pool="default", state="queued", process=me)
    assert not processes.stop(me, {"counts": {}}, ALIAS)
    assert Process.objects.get(pk=me).stopped_at is None


def test_a_process_learns_that_it_was_declared_lost():
    process = another(lost_at=timezone.now())
    assert processes.beat(process.pk, {}, ALIAS) == "lost"
    assert processes.beat(uuid.uuid4(), {}, ALIAS) == "missing"


def test_the_heartbeat_that_a_process_writes_itself_lets_it_be_given_up():
    me = uuid.uuid4()
    processes.register(me, server="", release="", alias=ALIAS)
    job_of(Process.objects.get(pk=me))
    processes.beat(me, {}, ALIAS)
    assert processes.give_up(Process.objects.get(pk=me), ALIAS, {}) == 1


def test_a_silent_process_is_lost_only_after_the_judge_has_watched_it():
    process = another()
    queued, running = job_of(process, state="queued"), job_of(process)
    silent(process)
    court = judge()
    assert court.reap() == 0
    sights_are_old(court)
    assert court.reap() == 2
    for job in (queued, running):
        job.refresh_from_db()
        assert (job.state, job.reason, job.live) == ("abandoned", "process_lost", False)
        assert (job.fence, job.version) == (2, 2)
        assert job.retain_until > timezone.now() + timedelta(days=29)
    process.refresh_from_db()
    assert process.lost_at is not None
    assert court.reap() == 0


def test_a_heartbeat_seen_by_the_judge_saves_a_process_with_a_wrong_clock():
    process = another()
    silent(process, 120)
    court = judge()
    court.reap()
    sights_are_old(court)
    silent(process, 60)  # it beat in between, however old its clock makes that look
    assert court.reap() == 0


def test_a_judge_that_slept_condemns_nobody_at_once():
    process = another()
    job_of(process)
    court = judge()
    court.reap()
    sights_are_old(court)
    assert court.reap() == 0  # unchanged for long, but not silent by the database's clock


def test_a_dead_process_of_this_machine_is_lost_at_once():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = another(machine=processes.machine_id(), pid=child.pid, pid_started=processes.process_started(child.pid))
    job_of(process)
    assert judge().reap() == 0
    child.kill()
    child.wait()
    child.stdin.close()
    assert judge().reap() == 1


def test_a_process_id_that_was_used_again_is_another_process():
    process = another(machine=processes.machine_id(), pid=os.getpid(), pid_started="1")
    job_of(process)
    assert judge().reap() == 1


def test_rows_are_kept_as_long_as_their_pool_says():
    process = another()
    short, usual = job_of(process), Job.objects.create(name="x", pool="other", process=process.pk, state="queued")
    assert processes.give_up(process, ALIAS, {"default": 60.0}) == 2
    for job, seconds in ((short, 60), (usual, 30 * 86400)):
        job.refresh_from_db()
        assert (job.retain_until - job.finished_at).total_seconds() == pytest.approx(seconds)


def test_finished_jobs_of_a_lost_process_keep_their_state():
    process = another()
    done = job_of(process, state="succeeded", live=False)
    assert processes.give_up(process, ALIAS, {}) == 0
    done.refresh_from_db()
    assert done.state == "succeeded"


def test_two_judges_give_up_a_process_once():
    process = another()
    job_of(process)
    stale = Process.objects.get(pk=process.pk)
    assert processes.give_up(process, ALIAS, {}) == 1
    assert processes.give_up(stale, ALIAS, {}) == 0


def test_a_process_that_beat_again_is_not_given_up():
    process = another()
    job_of(process)
    stale = Process.objects.get(pk=process.pk)
    processes.beat(process.pk, {}, ALIAS)
    assert processes.give_up(stale, ALIAS, {}) == 0


def test_many_jobs_are_given_up_in_batches(monkeypatch):
    monkeypatch.setattr(processes, "BATCH", 3)
    process = another()
    for _ in range(10):
        job_of(process)
    assert processes.give_up(process, ALIAS, {}) == 10


def test_cancel_requests_are_found_for_live_jobs_of_the_process_only():
    process = another()
    asked = job_of(process, cancel_requested_at=timezone.now(), cancel_reason="user")
    job_of(process)
    job_of(process, state="cancelled", live=False, cancel_requested_at=timezone.now())
    assert processes.cancel_requests(process.pk, ALIAS) == [(asked.pk, "user")]


def test_rows_of_long_ended_processes_are_pruned():
    old = timezone.now() - timedelta(days=8)
    another(stopped_at=old)
    another(lost_at=old)
    kept = [another(), another(stopped_at=timezone.now())]
    assert processes.prune_processes(ALIAS) == 2
    assert {row.pk for row in Process.objects.all()} == {row.pk for row in kept}
