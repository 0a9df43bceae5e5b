"""Whatever ends a process, none of its jobs stays live for ever."""

import time
import uuid
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from django_boundedpool.models import Job, Process
from django_boundedpool.store import processes
from django_boundedpool.store.processes import Judge

pytestmark = pytest.mark.django_db

ALIAS = "default"


def judge() -> Judge:
    return Judge(lost_after=0.5, heartbeat=0.1, alias=ALIAS, retention={})


def job_of(process: uuid.UUID, state: str = "running") -> Job:
    return Job.objects.create(name="x", pool="default", process=process, state=state)


def registered() -> uuid.UUID:
    """A process that has written its own signs of life, by the database's clock, and is gone now."""
    process = uuid.uuid4()
    processes.register(process, server="", release="", alias=ALIAS)
    assert processes.beat(process, {}, ALIAS) == "alive"
    Process.objects.filter(pk=process).update(pid_started="1")
    return process


def reap_until_nothing_is_live(court: Judge) -> int:
    deadline = time.monotonic() + 10
    count = 0
    while Job.objects.filter(live=True).exists() and time.monotonic() < deadline:
        count += court.reap(uuid.uuid4())
        time.sleep(0.02)
    return count


@pytest.mark.parametrize("attempt", range(3))  # moments differ in how many digits they have
def test_process_that_is_gone_is_given_up_at_the_first_look(attempt: int) -> None:
    process = registered()
    job = job_of(process)
    assert judge().reap() == 1
    job.refresh_from_db()
    assert (job.state, job.reason) == ("abandoned", "process_lost")
    assert Process.objects.get(pk=process).lost_at is not None


def test_last_sign_of_life_on_the_full_second_is_no_exception() -> None:
    """On SQLite the database's clock writes 12:00:00.000 and Django 12:00:00; as texts they differ."""
    process = registered()
    job_of(process)
    moment = RawSQL("strftime('%%Y-%%m-%%d %%H:%%M:%%f', '2026-01-01 12:00:00')", [])
    full = moment if connection.vendor == "sqlite" else datetime(2026, 1, 1, 12, tzinfo=UTC)
    Process.objects.filter(pk=process).update(heartbeat_at=full)
    assert judge().reap() == 1


def test_sign_of_life_after_the_look_saves_a_process() -> None:
    process = registered()
    seen = Process.objects.get(pk=process)
    job_of(process)
    Process.objects.filter(pk=process).update(heartbeat_at=Now())
    while Process.objects.get(pk=process).heartbeat_at == seen.heartbeat_at:
        assert processes.beat(process, {}, ALIAS) == "alive"
    assert processes.give_up(seen, ALIAS, {}) == 0
    assert Job.objects.get().live


def test_jobs_of_a_process_that_never_gave_a_sign_of_life_are_given_up() -> None:
    """It was killed between its first commit and its registration."""
    job_of(uuid.uuid4())
    assert reap_until_nothing_is_live(judge()) == 1


def test_jobs_that_a_killed_judge_left_over_are_given_up() -> None:
    """A process is marked lost first, and its jobs follow in batches: the judge may die in between."""
    process = registered()
    job_of(process)
    Process.objects.filter(pk=process).update(lost_at=Now())
    assert reap_until_nothing_is_live(judge()) == 1


def test_new_process_is_not_an_orphan_before_its_first_sign_of_life() -> None:
    process = uuid.uuid4()
    job_of(process)
    court = judge()
    assert court.reap() == 0
    processes.register(process, server="", release="", alias=ALIAS)
    for _ in range(3):
        assert court.reap() == 0


def test_own_jobs_are_not_orphans() -> None:
    """Nobody gives up its own jobs, even where its row is missing."""
    process = uuid.uuid4()
    job_of(process)
    court = judge()
    deadline = time.monotonic() + 1.2  # more than twice LOST_AFTER
    while time.monotonic() < deadline:
        assert court.reap(process) == 0
        time.sleep(0.05)
