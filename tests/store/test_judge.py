"""A judge condemns nobody whom it could not have seen alive."""

import errno
import os
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import connection
from django.utils import timezone

from django_boundedpool.models import Job, Process
from django_boundedpool.store import processes
from django_boundedpool.store.processes import Judge

pytestmark = pytest.mark.django_db

ALIAS = "default"


class Time:
    """The judge's monotonic clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: self.now))


def judge() -> Judge:
    return Judge(lost_after=30, heartbeat=5, alias=ALIAS, retention={})


def sibling(**values: object) -> Process:
    """A process with a running job; silent for a minute and on another machine, unless told otherwise."""
    given = {
        "machine": "elsewhere",
        "pid": 1,
        "pid_started": "1",
        "heartbeat_at": timezone.now() - timedelta(seconds=60),
        **values,
    }
    process = Process.objects.create(id=uuid.uuid4(), **given)
    Job.objects.create(name="x", pool="default", process=process.pk, state="running")
    return process


def test_after_an_outage_the_first_process_back_condemns_none_of_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database was away nobody could give a sign of life, nor could the judge have seen one."""
    time, court = Time(monkeypatch), judge()
    back, dead = sibling(), sibling()
    assert court.reap() == 0
    time.now += 100  # every look in between has failed
    assert court.reap() == 0
    assert processes.beat(back.pk, {}, ALIAS) == "alive"
    looks = 0
    while not court.reap():
        time.now += court.heartbeat
        looks += 1
        assert looks <= 2
    assert list(Process.objects.filter(lost_at=None)) == [back]
    assert set(Job.objects.filter(live=True).values_list("process", flat=True)) == {back.pk}
    assert Process.objects.get(pk=dead.pk).lost_at is not None


def test_looks_that_come_late_but_come_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge under load must still find who is lost."""
    time, court = Time(monkeypatch), judge()
    sibling()
    assert court.reap() == 0
    time.now += 2.5 * court.heartbeat
    assert court.reap() == 1


def test_judge_that_can_open_no_file_calls_nobody_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(path: Path, *args: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    court = judge()
    sibling(
        machine=processes.machine_id() or "here",
        pid=os.getpid(),
        pid_started=processes.process_started(os.getpid()),
        heartbeat_at=timezone.now(),
    )
    monkeypatch.setattr(court, "_machine", Process.objects.get().machine)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", exhausted)
        assert processes.process_started(os.getpid()) is None
        assert court.reap() == 0
    assert Job.objects.get().live


def test_judge_from_whom_processes_are_hidden_calls_only_those_gone_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid the files of others' processes look as if there were none."""

    def hidden(path: Path, *args: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    court = judge()
    sibling(machine="here", pid=child.pid, heartbeat_at=timezone.now())
    monkeypatch.setattr(court, "_machine", "here")
    monkeypatch.setattr(Path, "read_text", hidden)
    assert processes.process_started(child.pid) is None
    assert court.reap() == 0
    child.communicate(b"\n")
    assert processes.process_started(child.pid) == ""
    assert court.reap() == 1


def test_process_of_another_user_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(path: Path, *args: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    def forbidden(pid: int, signum: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", forbidden)
    assert processes.process_started(12345) is None


def test_signs_of_life_are_in_utc_whatever_the_zone_of_the_session() -> None:
    """MariaDB's NOW() is in the session's zone, which a server's configuration may set; Django's column is not."""
    statements = {
        "mysql": ("SELECT @@session.time_zone", "SET time_zone = %s", "+05:00"),
        "postgresql": ("SHOW TIME ZONE", "SELECT set_config('TimeZone', %s, false)", "Asia/Karachi"),
    }
    me = uuid.uuid4()
    with connection.cursor() as cursor:
        if connection.vendor in statements:  # SQLite has no session zone
            ask, change, zone = statements[connection.vendor]
            cursor.execute(ask)
            (usual,) = cursor.fetchone()
            cursor.execute(change, [zone])
        try:
            processes.register(me, server="", release="", alias=ALIAS)
            processes.beat(me, {}, ALIAS)
            processes.stop(me, None, ALIAS)
        finally:
            if connection.vendor in statements:
                cursor.execute(change, [usual])
    row = Process.objects.get(pk=me)
    for moment in (row.heartbeat_at, row.stopped_at):
        assert abs((timezone.now() - moment).total_seconds()) < 60
