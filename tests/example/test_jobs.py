"""The job functions, called here and now without a pool."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.utils import timezone
from downstream.server import DownstreamServer
from linkchecker.fetching import TransientFailure
from linkchecker.jobs import check_link, read_sitemap
from linkchecker.models import Batch, Link

from django_boundedpool import RetryLater


@dataclass
class Context:
    """As much of a JobContext as the jobs use."""

    job_id: UUID = field(default_factory=uuid4)

    def check(self) -> None:
        pass

    def remaining(self) -> float:
        return 10

    def progress(self, fraction: float, message: str = "") -> None:
        pass


@pytest.fixture(autouse=True)
def _allow_downstream(settings, downstream: DownstreamServer) -> None:
    settings.LINKCHECKER_ALLOWED_TARGET = downstream.url.removeprefix("http://")


@pytest.fixture
def check(user: AbstractBaseUser, downstream: DownstreamServer) -> Callable[[str], Link]:
    """Checks one path of the downstream server, or a whole URL, and gives the link as stored afterwards."""

    def check(target: str) -> Link:
        context = Context()
        batch = Batch.objects.create(owner=user)
        url = downstream.url + target if target.startswith("/") else target
        link = Link.objects.create(batch=batch, url=url, feeding=Link.Feeding.ACCEPTED, job_id=context.job_id)
        try:
            check_link(context, link.pk)
        finally:
            link.refresh_from_db()
        return link

    return check


@pytest.mark.parametrize(
    ("target", "outcome", "detail", "redirects"),
    [
        ("/fast", "ok", "HTTP 200 OK", 0),
        ("/redirect?n=3", "ok", "HTTP 200 OK", 3),
        ("/huge", "ok", "HTTP 200 OK, stopped reading at 1 MiB", 0),
        ("/missing", "broken", "HTTP 404 Not Found", 0),
        ("/loop", "broken", "redirects in a loop", 0),
        ("/redirect-private?to=metadata", "refused", "link-local address (169.254.169.254)", 0),
        ("http://127.0.0.1/", "refused", "loopback address (127.0.0.1)", 0),
        ("no link at all", "refused", "contains a space, backslash or control character", 0),
    ],
)
def test_answer_is_stored_with_the_link(
    check: Callable[[str], Link], target: str, outcome: str, detail: str, redirects: int
) -> None:
    link = check(target)
    assert (link.outcome, link.detail, link.redirects) == (outcome, detail, redirects)


@pytest.mark.parametrize(("path", "detail"), [("/error500", "HTTP 500"), ("/break-off", "the answer broke off")])
def test_failure_that_may_pass_is_raised_and_noted_without_an_outcome(
    check: Callable[[str], Link], path: str, detail: str
) -> None:
    with pytest.raises(TransientFailure):
        check(path)
    link = Link.objects.get()
    assert link.outcome == ""
    assert link.detail.startswith(detail)


def test_request_to_slow_down_becomes_a_retry_at_the_named_time(check: Callable[[str], Link]) -> None:
    with pytest.raises(RetryLater) as caught:
        check("/limited?rate=0")
    assert caught.value.after == 1


def test_job_writes_nothing_to_a_link_that_belongs_to_another_job(
    user: AbstractBaseUser, downstream: DownstreamServer
) -> None:
    """Checked by hand: without `job_id` in the UPDATE of `_record`, this fails."""
    batch = Batch.objects.create(owner=user)
    link = Link.objects.create(batch=batch, url=f"{downstream.url}/fast", feeding="accepted", job_id=uuid4())
    check_link(Context(), link.pk)
    link.refresh_from_db()
    assert link.outcome == ""


@pytest.fixture
def sitemap(user: AbstractBaseUser, downstream: DownstreamServer) -> tuple[Batch, Context]:
    context = Context()
    url = f"{downstream.url}/sitemap.xml?n=12"
    return Batch.objects.create(owner=user, sitemap_url=url, sitemap_job=context.job_id), context


def test_sitemap_becomes_waiting_links_once(sitemap: tuple[Batch, Context]) -> None:
    batch, context = sitemap
    assert read_sitemap(context, batch.pk) == {"links": 12}
    assert read_sitemap(context, batch.pk) == {"links": 0}
    assert batch.links.filter(feeding=Link.Feeding.WAITING, job_id=None).count() == 12


def test_sitemap_of_a_cancelled_batch_adds_nothing(sitemap: tuple[Batch, Context]) -> None:
    batch, context = sitemap
    Batch.objects.update(cancelled_at=timezone.now())
    assert read_sitemap(context, batch.pk) == {"links": 0}
    assert not batch.links.exists()


@pytest.mark.parametrize(
    ("path", "note"),
    [
        ("/missing", "HTTP 404 Not Found"),
        ("/huge", "larger than 1 MiB"),
        ("/redirect-private", "port 22 is not allowed"),
    ],
)
def test_sitemap_that_cannot_be_read_leaves_a_note(
    sitemap: tuple[Batch, Context], downstream: DownstreamServer, path: str, note: str
) -> None:
    batch, context = sitemap
    Batch.objects.update(sitemap_url=downstream.url + path)
    read_sitemap(context, batch.pk)
    batch.refresh_from_db()
    assert batch.note.startswith(f"The sitemap could not be read: {note}")
