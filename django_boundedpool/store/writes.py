"""The three ways a row is written: inserted once, updated under its guard, or settled after an unknown commit."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import models, router
from django.utils import timezone

from ..engine.record import Snapshot
from ..engine.states import JobState, Reason
from ..models import Job

logger = logging.getLogger("django_boundedpool.store")


def alias_for_write(configured: str | None) -> str:
    """Return the database alias of the jobs: reads that lead to writes go there as well."""
    return configured or router.db_for_write(Job)


def insert(rows: Iterable[Snapshot], alias: str) -> None:
    """INSERT every row; the caller holds the transaction, if there is to be one."""
    Job.objects.using(alias).bulk_create(
        [
            Job(
                id=row.id,
                process=row.process,
                fence=row.fence,
                version=row.version,
                **row.values,
            )
            for row in rows
        ]
    )


def update(snapshot: Snapshot, alias: str) -> bool:
    """Write one newer version; False if the row is no longer this owner's, is newer, or is gone.

    Never touches the cancel-request columns, which anybody may write, and never re-creates a deleted row.
    """
    owned = _rows(alias).filter(pk=snapshot.id, process=snapshot.process, fence=snapshot.fence)
    values: dict[str, Any] = dict(snapshot.values)
    return bool(owned.filter(version__lt=snapshot.version).update(version=snapshot.version, **values))


def touch(snapshot: Snapshot, alias: str) -> None:
    """Write to the row without changing it: raises where nothing can be written."""
    _rows(alias).filter(pk=snapshot.id).update(version=models.F("version"))


def cancel_unwanted(job_id: UUID, process: UUID, alias: str) -> None:
    """End a row whose INSERT was confirmed only after its submit had been refused: it must never run."""
    now = timezone.now()
    _rows(alias).filter(pk=job_id, process=process, state=JobState.QUEUED.value).update(
        state=JobState.CANCELLED.value,
        reason=Reason.DISCONNECT.value,
        live=False,
        finished_at=now,
        retain_until=now + timedelta(days=3),
        version=models.F("version") + 1,
    )


def request_cancel(job_id: UUID, reason: Reason, by: str, alias: str) -> bool:
    """Note on a live row that somebody wants the job to stop; False if it is over or already asked."""
    asked = _rows(alias).filter(pk=job_id, live=True, cancel_requested_at=None)
    return bool(
        asked.update(cancel_requested_at=timezone.now(), cancel_requested_by=by[:191], cancel_reason=reason.value)
    )


def exists(job_id: UUID, alias: str) -> bool:
    """Whether the row is there, seen from outside any other connection's transaction."""
    return _rows(alias).filter(pk=job_id).exists()


def _rows(alias: str) -> models.QuerySet[Job]:
    return Job.objects.using(alias)
