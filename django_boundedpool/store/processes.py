"""Signs of life: the row of this process, and the judgement on processes that have none.

A process counts as lost when it was silent for LOST_AFTER by the database's clock *and* the judge saw it unchanged for
two heartbeats of its own monotonic clock, so that neither a skewed clock nor a judge that slept condemns the living;
or at once when, on the same machine, its process id is gone or belongs to a later process.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.db import models, transaction
from django.db.models.functions import Now as SessionNow
from django.utils import timezone

from .. import __version__
from ..engine.config import RETENTION
from ..engine.states import JobState, Reason
from ..models import Job, Process

logger = logging.getLogger("django_boundedpool.store")

#: Rows of stopped and lost processes are kept this long.
KEPT = timedelta(days=7)
#: Rows given up in one transaction.
BATCH = 500


class Now(SessionNow):
    """The database's clock in UTC, as Django stores moments; MariaDB's plain one is in the session's time zone."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return the SQL for MariaDB and MySQL."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


def machine_id() -> str:
    """Return what two processes share exactly when they can see each other's process ids; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_started(pid: int) -> str | None:
    """Return when process `pid` started, in clock ticks since boot; "" if there is none, None if nobody can tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return None  # hidden (hidepid)
    except OSError:
        return None  # no file descriptor left, say: nothing is known
    # The command name, in parentheses, may itself contain spaces and parentheses.
    return stat.rpartition(")")[2].split()[19]


def register(process: UUID, *, server: str, release: str, alias: str) -> None:
    """Insert the row of this process."""
    Process.objects.using(alias).create(
        id=process,
        machine=machine_id(),
        host=socket.gethostname()[:255],
        pid=os.getpid(),
        pid_started=process_started(os.getpid()) or "",
        server=server[:100],
        release=release[:100],
        version=__version__,
        started_at=Now(),
        heartbeat_at=Now(),
    )


def beat(process: UUID, stats: dict[str, Any], alias: str) -> Literal["alive", "lost", "missing"]:
    """Give a sign of life; say whether this process was declared lost, or its row is gone."""
    mine = Process.objects.using(alias).filter(pk=process)
    if mine.filter(lost_at=None).update(heartbeat_at=Now(), stats=stats):
        return "alive"
    return "lost" if mine.exists() else "missing"


def stop(process: UUID, report: dict[str, Any] | None, alias: str) -> bool:
    """Note that this process has ended in good order; False, and no such note, if it leaves a live job behind.

    Without the note the process is soon found lost, and its jobs are given up.
    """
    if Job.objects.using(alias).filter(process=process, live=True).exists():
        Process.objects.using(alias).filter(pk=process).update(drain_report=report)
        return False
    mine = Process.objects.using(alias).filter(pk=process)
    mine.update(stopped_at=Now(), heartbeat_at=Now(), drain_report=report)
    return True


def cancel_requests(process: UUID, alias: str) -> list[tuple[UUID, str]]:
    """Return id and reason of the live jobs of `process` that somebody asked to stop."""
    asked = Job.objects.using(alias).filter(process=process, live=True, cancel_requested_at__isnull=False)
    return list(asked.values_list("id", "cancel_reason"))


@dataclass(frozen=True, slots=True)
class _Sight:
    """When the judge first saw a process at its present heartbeat."""

    heartbeat: datetime
    since: float


class Judge:
    """Finds lost processes and gives their jobs up. One per process; not shared between threads.

    Arguments:
        lost_after: silence in seconds by the database's clock.
        heartbeat: seconds between two signs of life.
        alias: database alias.
        retention: seconds that the row of an abandoned job is kept, by pool.
    """

    def __init__(self, *, lost_after: float, heartbeat: float, alias: str, retention: Mapping[str, float]) -> None:
        self.retention = retention
        self.lost_after = lost_after
        self.heartbeat = heartbeat
        self.alias = alias
        self._sights: dict[UUID, _Sight] = {}
        self._orphans: dict[UUID, float] = {}
        self._look_at = 0.0
        self._machine = machine_id()
        self._looked = float("-inf")

    def reap(self, me: UUID | None = None) -> int:
        """Give up the jobs of every process that is lost by now; return how many jobs that were."""
        running = Process.objects.using(self.alias).filter(stopped_at=None, lost_at=None)
        if me is not None:
            running = running.exclude(pk=me)
        silent_since = Now() - timedelta(seconds=self.lost_after)
        rows = running.annotate(
            silent=models.Case(
                models.When(heartbeat_at__lt=silent_since, then=models.Value(True)),
                default=models.Value(False),
                output_field=models.BooleanField(),
            )
        )
        if time.monotonic() - self._looked > 3 * self.heartbeat:
            self._sights = {}  # the judge slept, or the database was away: nobody could be seen to beat
        sights: dict[UUID, _Sight] = {}
        count = 0
        for row in rows:
            sight = self._sights.get(row.pk)
            if sight is None or sight.heartbeat != row.heartbeat_at:
                sight = _Sight(row.heartbeat_at, time.monotonic())
            sights[row.pk] = sight
            unchanged = time.monotonic() - sight.since >= 2 * self.heartbeat
            if self._gone(row) or (row.silent and unchanged):
                count += give_up(row, self.alias, self.retention)
        self._sights = sights
        self._looked = time.monotonic()
        return count + self._reap_orphans(me)

    def _reap_orphans(self, me: UUID | None) -> int:
        """Give up live jobs whose process is on record as ended, or not at all, and still is after LOST_AFTER.

        A process may be killed before its first sign of life, and a judge in the middle of its work.
        """
        now = time.monotonic()
        if now < self._look_at:
            return 0
        self._look_at = now + self.lost_after / 2
        living = Process.objects.using(self.alias).filter(stopped_at=None, lost_at=None)
        owned = Job.objects.using(self.alias).filter(live=True, process__isnull=False)
        if me is not None:
            owned = owned.exclude(process=me)
        ids = owned.exclude(process__in=living.values("pk")).order_by().values_list("process", flat=True).distinct()
        self._orphans = {process: self._orphans.get(process, now) for process in ids if process is not None}
        count = 0
        for process, since in self._orphans.items():
            if now - since >= self.lost_after:
                abandoned = _abandon_jobs_of(process, self.alias, self.retention)
                logger.warning(
                    "Process %s is not on record as alive; %d of its jobs are abandoned.", process, abandoned
                )
                count += abandoned
        return count

    def _gone(self, row: Process) -> bool:
        """Whether `row` ran on this machine and its process is no more."""
        return bool(
            self._machine
            and row.machine == self._machine
            and row.pid_started
            and (started := process_started(row.pid)) is not None
            and started != row.pid_started
        )


def give_up(process: Process, alias: str, retention: Mapping[str, float]) -> int:
    """Declare `process` lost and abandon its live jobs; return how many. Safe to run in several processes at once."""
    with transaction.atomic(using=alias):
        row = Process.objects.using(alias).select_for_update().filter(pk=process.pk, stopped_at=None, lost_at=None)
        # Compared here, not in SQL: SQLite keeps moments as texts, and its own clock writes fewer digits than Django.
        if row.values_list("heartbeat_at", flat=True).first() != process.heartbeat_at:
            return 0
        row.update(lost_at=Now())
    count = _abandon_jobs_of(process.pk, alias, retention)
    logger.warning("Process %s (%s) is lost; %d of its jobs are abandoned.", process, process.pk, count)
    return count


def _abandon_jobs_of(process: UUID, alias: str, retention: Mapping[str, float]) -> int:
    count = 0
    while True:
        with transaction.atomic(using=alias):
            ids = list(Job.objects.using(alias).filter(process=process, live=True).values_list("pk", flat=True)[:BATCH])
            count += _abandon(ids, process, alias, retention)
        if len(ids) < BATCH:
            return count


def _abandon(ids: list[UUID], process: UUID, alias: str, retention: Mapping[str, float]) -> int:
    now = timezone.now()
    kept = models.Case(
        *[models.When(pool=pool, then=models.Value(now + timedelta(seconds=span))) for pool, span in retention.items()],
        default=models.Value(now + timedelta(seconds=RETENTION[JobState.ABANDONED])),
        output_field=models.DateTimeField(),
    )
    # The higher fence makes every later write of the lost process miss.
    return (
        Job.objects.using(alias)
        .filter(pk__in=ids, process=process, live=True)
        .update(
            state=JobState.ABANDONED.value,
            reason=Reason.PROCESS_LOST.value,
            live=False,
            finished_at=now,
            retain_until=kept,
            fence=models.F("fence") + 1,
            version=models.F("version") + 1,
        )
    )


def prune_processes(alias: str) -> int:
    """Delete the rows of processes that ended long ago and own no job."""
    ended = Process.objects.using(alias).filter(
        models.Q(stopped_at__lt=Now() - KEPT) | models.Q(lost_at__lt=Now() - KEPT)
    )
    return ended.delete()[0]
