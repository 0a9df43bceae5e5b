"""How links get into the pool, and out of it again.

A pool that is full refuses. The caller has to keep what was refused and offer it again, and this module shows how:

* A link that has no job yet is a row that says so (`feeding = "waiting"`). Nothing is held in memory.
* `feed` offers waiting links until the pool refuses one, then stops. It never waits and starts no thread.
* Whoever watches the batch calls `feed` again: each poll of the page's script, each reload of the page.

Claiming the link, storing its job and writing the job's id are one transaction. A crash between them leaves the link
waiting or with a job, never with a claim that nobody holds; and because the claim is an UPDATE that names the state it
expects, two callers never submit the same link twice.
"""

import time
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from django_boundedpool import JobHandle, Rejected

from .jobs import check_link, read_sitemap
from .models import Batch, Link
from .progress import live_jobs


@dataclass(frozen=True, kw_only=True)
class Feeding:
    accepted: int
    # The pool's answer to the first link it did not take.
    refusal: Rejected | None = None


def feed(batch: Batch, *, seconds: float = 1.0) -> Feeding:
    """Offer the batch's waiting links to the pool until it refuses one, or `seconds` have passed."""
    stop_at = time.monotonic() + seconds
    accepted = 0
    waiting = batch.links.filter(feeding=Link.Feeding.WAITING).values_list("pk", flat=True)
    for link_id in list(waiting):
        if time.monotonic() > stop_at:
            break
        try:
            accepted += submit_link(batch, link_id)
        except Rejected as refusal:
            Batch.objects.filter(pk=batch.pk).update(refusals=F("refusals") + 1)
            return Feeding(accepted=accepted, refusal=refusal)
    return Feeding(accepted=accepted)


def submit_link(batch: Batch, link_id: int) -> bool:
    """Give one waiting link its job. False when somebody else did so first, or the batch was cancelled.

    Raises Rejected when the pool does not take it; the link then waits as before.
    """
    with transaction.atomic():
        if not Link.objects.filter(pk=link_id, feeding=Link.Feeding.WAITING).update(feeding=Link.Feeding.ACCEPTED):
            return False
        # The job's row becomes part of this transaction, and the job starts when it commits.
        handle = check_link.using(owner=batch.owner, batch=batch.label).submit(link_id)
        Link.objects.filter(pk=link_id).update(job_id=handle.id)
    return True


def check_one(owner: User, url: str) -> tuple[Batch, JobHandle]:
    """Check a single link. When the pool is full nothing is stored and the refusal goes to the caller."""
    with transaction.atomic():
        batch = Batch.objects.create(owner=owner, title=url[:200])
        link = Link.objects.create(batch=batch, url=url, feeding=Link.Feeding.ACCEPTED)
        handle = check_link.using(owner=owner, batch=batch.label).submit(link.pk)
        Link.objects.filter(pk=link.pk).update(job_id=handle.id)
    return batch, handle


def check_sitemap(owner: User, url: str) -> Batch:
    """Store a batch whose links a job reads from `url`. Raises Rejected, and stores nothing, when the pool is full."""
    with transaction.atomic():
        batch = Batch.objects.create(owner=owner, title=url[:200], sitemap_url=url)
        handle = read_sitemap.using(owner=owner, batch=batch.label).submit(batch.pk)
        batch.sitemap_job = handle.id
        batch.save(update_fields=["sitemap_job"])
    return batch


def cancel(batch: Batch, by: User) -> None:
    """Stop everything: waiting links get no job, queued jobs never run, running jobs stop at their next check."""
    Batch.objects.filter(pk=batch.pk, cancelled_at=None).update(cancelled_at=timezone.now())
    # First the rows: a feeder that comes later finds nothing to claim, one that came before has made a job by now.
    batch.links.filter(feeding=Link.Feeding.WAITING).update(feeding=Link.Feeding.DROPPED)
    for job_id in live_jobs(batch).values_list("pk", flat=True):
        JobHandle.get(job_id).cancel(by=by)


def check_again(batch: Batch) -> int:
    """Put links that ended without a result back among the waiting ones. Returns how many."""
    live = live_jobs(batch).values("pk")
    without_result = Q(feeding=Link.Feeding.DROPPED) | Q(feeding=Link.Feeding.ACCEPTED, outcome="")
    with transaction.atomic():
        count = (
            batch.links.filter(without_result)
            .exclude(job_id__in=live)
            .update(feeding=Link.Feeding.WAITING, job_id=None, detail="", status_code=None)
        )
        if count:
            Batch.objects.filter(pk=batch.pk).update(cancelled_at=None)
    return count
