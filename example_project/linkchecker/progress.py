"""How far a batch is, read from its links and their jobs together."""

from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, TextChoices

from django_boundedpool import JobState, Rejected, pools
from django_boundedpool.models import Job

from .models import Batch, Link

# Every other state, also one that a newer version of the pool may add, means that the job is not over.
OVER = [state.value for state in JobState if state.stored and state.terminal]


class Status(TextChoices):
    """What the page says about one link. The order is the order of the bar."""

    OK = "ok", "ok"
    BROKEN = "broken", "broken"
    NO_ANSWER = "no-answer", "no answer"
    REFUSED = "refused", "refused"
    CANCELLED = "cancelled", "cancelled"
    LOST = "lost", "given up"
    RUNNING = "running", "running"
    RETRYING = "retrying", "will retry"
    QUEUED = "queued", "queued"
    WAITING = "waiting", "waiting to be fed"


UNFINISHED = (Status.RUNNING, Status.RETRYING, Status.QUEUED, Status.WAITING)
PROBLEMS = (Status.BROKEN, Status.NO_ANSWER, Status.REFUSED, Status.LOST)
WITHOUT_RESULT = (Status.NO_ANSWER, Status.CANCELLED, Status.LOST)

LOST_BECAUSE = {
    "drain_deadline": "server stopped",
    "process_lost": "server process was lost",
    "unadopted": "no server process took it",
    "handover_lost": "lost at hand-over",
}


@dataclass(frozen=True, slots=True)
class JobFacts:
    state: str
    reason: str
    attempt: int
    stopping: bool


def batch_jobs(batch: Batch) -> QuerySet[Job]:
    return Job.objects.filter(batch=batch.label)


def live_jobs(batch: Batch) -> QuerySet[Job]:
    return batch_jobs(batch).filter(live=True)


def judge(link: Link, job: JobFacts | None) -> tuple[Status, str]:
    """Status of a link, and the words behind it."""
    if link.outcome:
        return Status(link.outcome), link.detail
    if link.feeding == Link.Feeding.WAITING:
        return Status.WAITING, ""
    if link.feeding == Link.Feeding.DROPPED:
        return Status.CANCELLED, "before it got a place"
    if job is None:
        return Status.LOST, "the record of its job has expired"
    match job.state:
        case "running":
            return Status.RUNNING, "stopping" if job.stopping else link.detail
        case "queued" if job.attempt:
            return Status.RETRYING, f"{link.detail or 'interrupted'}, after attempt {job.attempt}"
        case "failed":
            attempts = f" ({job.attempt} attempts)" if job.attempt > 1 else ""
            return Status.NO_ANSWER, (link.detail or job.reason.replace("_", " ")) + attempts
        case "cancelled":
            return Status.CANCELLED, "while running" if job.attempt else "while queued"
        case "abandoned":
            return Status.LOST, LOST_BECAUSE.get(job.reason, job.reason)
        case "succeeded":
            return Status.LOST, "checked, but the result was not stored"
    return Status.QUEUED, ""


@dataclass(frozen=True)
class Row:
    link: Link
    status: Status
    detail: str

    def as_dict(self) -> dict[str, Any]:
        link = self.link
        return {
            "id": link.pk,
            "url": link.url,
            "status": self.status.value,
            "label": str(self.status.label),
            "detail": self.detail,
            "time": "" if link.seconds is None else readable_time(link.seconds),
            "size": "" if link.size is None else readable_size(link.size),
            "redirects": link.redirects or None,
            # Only http links may become links on our page: "javascript:" is a URL, too.
            "href": link.url if link.url.startswith(("http://", "https://")) else "",
        }


@dataclass(frozen=True, kw_only=True)
class Progress:
    rows: list[Row]
    counts: Counter[Status]
    # A job is still reading the sitemap, so there will be more links.
    reading: bool
    cancelled: bool
    refusal: Rejected | None

    @property
    def total(self) -> int:
        return len(self.rows)

    @property
    def done(self) -> int:
        return self.total - sum(self.counts[status] for status in UNFINISHED)

    @property
    def finished(self) -> bool:
        return self.done == self.total and not self.reading

    @property
    def problems(self) -> int:
        return sum(self.counts[status] for status in PROBLEMS)

    @property
    def without_result(self) -> int:
        return sum(self.counts[status] for status in WITHOUT_RESULT)

    @property
    def phase(self) -> str:
        """One short sentence that changes rarely: screen readers announce it."""
        if self.reading:
            return "Reading the sitemap."
        if self.finished:
            return "Cancelled." if self.cancelled else "Finished."
        if self.cancelled:
            return "Cancelling: running checks are being stopped."
        if self.refusal is None:
            return "Feeding the pool." if self.counts[Status.WAITING] else "All links are in the pool."
        match self.refusal.code:
            case "queue_full" | "bytes_full":
                return "Pool full."
            case "draining":
                return "The server is stopping."
            case "store_unavailable":
                return "The job store cannot be reached."
            case _:
                return "The pool refuses new jobs."

    @property
    def explanation(self) -> str:
        """What the phase means in numbers, and what happens next."""
        waiting = self.counts[Status.WAITING]
        if self.finished or self.reading or not waiting:
            return ""
        links = "1 link waits" if waiting == 1 else f"{waiting} links wait"
        if self.refusal is None:
            return f"{links} to be fed. Keep this page open: each refresh offers the next ones to the pool."
        return (
            f"{links} to be fed. The pool answered “{self.refusal.code}”. Nothing is lost: "
            f"this page offers them again every {self.poll_after} s, for as long as it is open."
        )

    @property
    def poll_after(self) -> int:
        """Seconds until the next look. A full pool may ask for more patience, up to 3 s."""
        if self.refusal is None or self.refusal.retry_after is None:
            return 1
        return round(min(max(self.refusal.retry_after, 1), 3))

    def bar(self) -> list[dict[str, Any]]:
        """The bar of outcomes: start and width of each part, in percent."""
        parts, start = [], 0.0
        for status in Status:
            width = 100 * self.counts[status] / self.total if self.total else 0
            parts.append(
                {
                    "status": status.value,
                    "label": str(status.label),
                    "count": self.counts[status],
                    "start": f"{start:.3f}",
                    "width": f"{width:.3f}",
                }
            )
            start += width
        return parts

    def select(self, show: str) -> list[Row]:
        return [row for row in self.rows if row.status in PROBLEMS] if show == "problems" else self.rows


def look_at(batch: Batch, refusal: Rejected | None = None) -> Progress:
    """Two queries, whatever the size of the batch."""
    jobs: dict[UUID | None, JobFacts] = {
        pk: JobFacts(state, reason, attempt, requested is not None)
        for pk, state, reason, attempt, requested in batch_jobs(batch).values_list(
            "pk", "state", "reason", "attempt", "cancel_requested_at"
        )
    }
    rows = [Row(link, *judge(link, jobs.get(link.job_id))) for link in batch.links.all()]
    sitemap = jobs.get(batch.sitemap_job)
    return Progress(
        rows=rows,
        counts=Counter(row.status for row in rows),
        reading=sitemap is not None and sitemap.state not in OVER,
        cancelled=batch.cancelled_at is not None,
        refusal=refusal,
    )


def sitemap_failure(batch: Batch) -> str:
    """Why a sitemap batch has no links although its job is over. Empty when there is nothing to say."""
    if batch.sitemap_job is None or batch.sitemap_read_at or batch.note:
        return ""
    job = batch_jobs(batch).filter(pk=batch.sitemap_job).values_list("state", "reason").first()
    if job is None:
        return "The sitemap was not read: its job's record has expired."
    match job:
        case "failed", _:
            return "The sitemap could not be fetched: no answer after several attempts."
        case "abandoned", reason:
            return f"The sitemap was not read: {LOST_BECAUSE.get(reason, reason)}."
        case "cancelled", _:
            return "Cancelled before the sitemap was read."
    return ""


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """The pool of *this* process, all numbers of one moment."""

    queued: int
    running: int
    queue_size: int
    workers: int


def pool_use() -> PoolUse:
    stats = pools["default"].stats()
    return PoolUse(queued=stats.queued, running=stats.running, queue_size=stats.queue_size, workers=stats.workers)


def readable_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def readable_size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    if size < 1024 * 1024:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024 / 1024:.1f} MiB"
