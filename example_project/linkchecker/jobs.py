"""The work done in the background. django_boundedpool finds this module by its name."""

from typing import Any
from urllib.parse import urljoin
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from django_boundedpool import JobContext, Retry, RetryLater, job

from .fetching import Broken, Fetched, Limits, TooManyRequests, TransientFailure, fetch, status_line
from .models import Batch, Link
from .sources import MAX_LINKS, UnreadableSource, read_source
from .targets import Policy, Refused

MAX_SITEMAPS = 20


@job(timeout=20, takes_context=True, retry=Retry(max_attempts=3, on=(TransientFailure,), base=0.2, cap=2))
def check_link(context: JobContext, link_id: int) -> dict[str, Any]:
    """Fetch one link and write what was found to its row.

    A bad answer is a *result*: the job succeeds. Only what may pass is raised, and the pool decides about retries.
    """
    link = Link.objects.get(pk=link_id)
    try:
        found = _result(_fetch(context, link.url))
    except Refused as error:
        found = {"outcome": Link.Outcome.REFUSED.value, "detail": str(error)}
    except Broken as error:
        found = {"outcome": Link.Outcome.BROKEN.value, "detail": str(error), "status_code": error.status}
    except TooManyRequests as error:
        _record(context, link_id, {"detail": str(error), "status_code": error.status})
        raise RetryLater(after=error.retry_after) from error
    except TransientFailure as error:
        # No outcome: there may be another attempt. Should this be the last one, the page knows it from the job.
        _record(context, link_id, {"detail": str(error), "status_code": error.status})
        raise
    _record(context, link_id, found)
    return {"url": link.url, **found}


@job(timeout=60, takes_context=True, retry=Retry(max_attempts=3, on=(TransientFailure,), base=0.2, cap=2))
def read_sitemap(context: JobContext, batch_id: int) -> dict[str, Any]:
    """Fetch a sitemap (or an index of sitemaps) and store its links, which then wait to be fed like any others."""
    batch = Batch.objects.get(pk=batch_id)
    try:
        urls, note = _read_sitemaps(context, batch.sitemap_url)
    except (Refused, Broken, UnreadableSource) as error:
        Batch.objects.filter(pk=batch_id).update(note=f"The sitemap could not be read: {error}.")
        return {"links": 0}
    with transaction.atomic():
        # Cancelled, or stored by an earlier attempt whose end was lost: then there is nothing to add.
        mine = Batch.objects.filter(
            pk=batch_id, sitemap_job=context.job_id, sitemap_read_at=None, cancelled_at=None
        ).update(sitemap_read_at=timezone.now(), note=note)
        if mine:
            Link.objects.bulk_create((Link(batch_id=batch_id, url=url) for url in urls), batch_size=200)
    return {"links": len(urls) if mine else 0}


def _read_sitemaps(context: JobContext, url: str) -> tuple[list[str], str]:
    todo, done = [url], 0
    links: dict[str, None] = {}
    notes: list[str] = []
    while todo and done < MAX_SITEMAPS and len(links) < MAX_LINKS:
        address = todo.pop(0)
        page = _fetch(context, address, keep_body=True)
        if page.status != 200:
            raise Broken(status_line(page.status), page.status)
        if page.cut:
            raise UnreadableSource("larger than 1 MiB")
        source = read_source(page.body)
        if source.note:
            notes.append(source.note)
        if not source.is_index:
            links.update(dict.fromkeys(source.urls))
        elif done == 0:
            todo = [urljoin(address, entry) for entry in source.urls]
        done += 1
        context.progress(done / (done + len(todo)), f"{len(links)} links found")
    if todo:
        notes.append(f"{len(todo)} more sitemaps were not read.")
    return list(links)[:MAX_LINKS], " ".join(notes)


def _fetch(context: JobContext, url: str, *, keep_body: bool = False) -> Fetched:
    seconds = getattr(settings, "LINKCHECKER_SECONDS", 10.0)
    if (left := context.remaining()) is not None:
        # One second in hand, so that a slow server ends as its own failure and not as the job's time-out.
        seconds = min(seconds, left - 1)
    return fetch(url, policy=_policy(), limits=Limits(seconds=seconds), check=context.check, keep_body=keep_body)


def _policy() -> Policy:
    address, _, port = getattr(settings, "LINKCHECKER_ALLOWED_TARGET", "").rpartition(":")
    return Policy(exempt=frozenset({(address.strip("[]"), int(port))}) if address else frozenset())


def _result(fetched: Fetched) -> dict[str, Any]:
    ok = 200 <= fetched.status < 300
    return {
        "outcome": (Link.Outcome.OK if ok else Link.Outcome.BROKEN).value,
        "detail": status_line(fetched.status) + (", stopped reading at 1 MiB" if fetched.cut else ""),
        "status_code": fetched.status,
        "seconds": round(fetched.seconds, 3),
        "size": fetched.size,
        "redirects": fetched.redirects,
    }


def _record(context: JobContext, link_id: int, found: dict[str, Any]) -> None:
    # A job that was given up, and whose link was handed to another job since, has nothing to say any more.
    if "detail" in found:
        found = {**found, "detail": found["detail"][:300]}
    Link.objects.filter(pk=link_id, job_id=UUID(str(context.job_id))).update(**found)
