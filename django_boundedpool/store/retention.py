"""Deleting rows whose time is over, in small transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django.db import transaction
from django.utils import timezone

from ..models import Job

#: Rows deleted in one transaction: bounds how long the database's write lock is held.
BATCH = 1000


def expired(alias: str) -> int:
    """Return how many rows a prune would delete now."""
    return Job.objects.using(alias).filter(live=False, retain_until__lte=timezone.now()).count()


def prune(alias: str, *, budget: float | None = None, batch: int = BATCH) -> Iterator[int]:
    """Delete expired rows, oldest first, yielding the number deleted by each transaction.

    A live row is never deleted. Several prunes at once are safe.

    Arguments:
        alias: database alias.
        budget: seconds after which no further transaction is begun; None ends only when nothing is left.
        batch: rows per transaction (>= 1).
    """
    began = time.monotonic()
    now = timezone.now()
    while budget is None or time.monotonic() - began < budget:
        with transaction.atomic(using=alias):
            rows = Job.objects.using(alias).filter(live=False, retain_until__lte=now)
            moments = list(rows.order_by("retain_until").values_list("retain_until", flat=True)[:batch])
            if not moments:
                return
            # By cut-off range, not by ids: one statement off the index. Rows that share the last moment go along.
            _, deleted = rows.filter(retain_until__lte=moments[-1]).delete()
        yield deleted.get(Job._meta.label, 0)
