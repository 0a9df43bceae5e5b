"""Feeding a real pool: its workers fetch from the downstream server."""

import threading
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import connection
from downstream.server import DownstreamServer
from linkchecker import feeder
from linkchecker.models import Batch, Link
from linkchecker.progress import Status, batch_jobs, live_jobs, look_at

from django_boundedpool import JobHandle, QueueFull, testing

WORKERS, QUEUE = 1, 3
BOUND = WORKERS + QUEUE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def small_pool(settings, downstream: DownstreamServer) -> Iterator[None]:
    settings.LINKCHECKER_ALLOWED_TARGET = downstream.url.removeprefix("http://")
    settings.BOUNDED_POOLS = {"default": {"WORKERS": WORKERS, "QUEUE_SIZE": QUEUE}}
    testing.reset()
    yield
    for batch in Batch.objects.all():
        feeder.cancel(batch, by=batch.owner)


@pytest.fixture
def make_batch(user: AbstractBaseUser, downstream: DownstreamServer) -> Callable[..., Batch]:
    def make_batch(*paths: str) -> Batch:
        batch = Batch.objects.create(owner=user, title="test")
        Link.objects.bulk_create(Link(batch=batch, url=downstream.url + path) for path in paths)
        return batch

    return make_batch


def feedings(batch: Batch) -> dict[str, int]:
    found = list(batch.links.values_list("feeding", flat=True))
    return {feeding: found.count(feeding) for feeding in set(found)}


def test_full_pool_takes_what_fits_and_the_rest_waits(small_pool: None, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(*["/hang"] * 10)
    fed = feeder.feed(batch)
    assert fed.accepted == BOUND
    assert isinstance(fed.refusal, QueueFull)
    assert feedings(batch) == {"accepted": BOUND, "waiting": 10 - BOUND}
    assert not batch.links.filter(feeding="waiting").exclude(job_id=None).exists()
    assert batch_jobs(batch).count() == BOUND

    again = feeder.feed(batch)
    assert again.accepted == 0
    batch.refresh_from_db()
    assert batch.refusals == 2


def test_freed_place_is_given_to_the_next_waiting_link(small_pool: None, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(*["/hang"] * 6)
    feeder.feed(batch)
    last = batch.links.filter(feeding="accepted").last()
    assert last is not None
    assert JobHandle.get(last.job_id).cancel(by=batch.owner) == "cancelled"
    assert feeder.feed(batch).accepted == 1


def test_single_link_for_a_full_pool_is_refused_without_a_trace(
    small_pool: None, make_batch: Callable[..., Batch], downstream: DownstreamServer
) -> None:
    batch = make_batch(*["/hang"] * BOUND)
    feeder.feed(batch)
    with pytest.raises(QueueFull):
        feeder.check_one(batch.owner, f"{downstream.url}/fast")
    with pytest.raises(QueueFull):
        feeder.check_sitemap(batch.owner, f"{downstream.url}/sitemap.xml")
    assert list(Batch.objects.all()) == [batch]
    assert batch_jobs(batch).count() == BOUND


def test_two_pollers_never_submit_one_link_twice(settings, small_pool: None, make_batch: Callable[..., Batch]) -> None:
    """Checked by hand: without `feeding=WAITING` in the UPDATE of `submit_link`, links get two jobs."""
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2, "QUEUE_SIZE": 200}}
    testing.reset()
    batch = make_batch(*(f"/fast?id={i}" for i in range(40)))
    barrier = threading.Barrier(4)
    accepted: list[int] = []

    def poll() -> None:
        barrier.wait()
        accepted.append(feeder.feed(batch, seconds=20).accepted)
        connection.close()

    threads = [threading.Thread(target=poll) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(accepted) == 40
    assert batch_jobs(batch).count() == 40
    assert len(set(batch.links.values_list("job_id", flat=True))) == 40


def test_batch_larger_than_the_pool_ends_with_a_result_for_every_link(
    small_pool: None, make_batch: Callable[..., Batch]
) -> None:
    fine = [f"/fast?id={i}" for i in range(12)]
    batch = make_batch(*fine, "/flaky?id=test-feeder", "/missing", "/error500", "/redirect-private")
    while feeder.feed(batch).refusal:
        testing.join(20)
    testing.join(20)
    progress = look_at(batch)
    assert progress.finished
    assert progress.counts == {Status.OK: 13, Status.BROKEN: 1, Status.NO_ANSWER: 1, Status.REFUSED: 1}
    assert progress.select("problems")[1].detail == "HTTP 500 Internal Server Error (3 attempts)"
    assert progress.phase == "Finished."


def test_cancelled_batch_leaves_nothing_waiting_queued_or_running(
    small_pool: None, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(*["/hang"] * 8)
    feeder.feed(batch)
    feeder.cancel(batch, by=batch.owner)
    assert feedings(batch) == {"accepted": BOUND, "dropped": 8 - BOUND}
    testing.join(20)
    batch.refresh_from_db()
    progress = look_at(batch)
    assert progress.counts == {Status.CANCELLED: 8}
    assert progress.phase == "Cancelled."
    assert feeder.feed(batch).accepted == 0


def test_links_without_a_result_are_checked_again(small_pool: None, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch("/fast", "/missing")
    feeder.feed(batch)
    testing.join(20)
    url = batch.links.all()[0].url
    Link.objects.bulk_create(Link(batch=batch, url=url) for _ in range(3))
    feeder.cancel(batch, by=batch.owner)
    assert look_at(batch).without_result == 3

    assert feeder.check_again(batch) == 3
    batch.refresh_from_db()
    assert batch.cancelled_at is None
    assert feeder.feed(batch).accepted == 3
    testing.join(20)
    assert look_at(batch).counts == {Status.OK: 4, Status.BROKEN: 1}


def test_link_with_a_live_job_is_not_checked_again(small_pool: None, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch("/hang", "/hang")
    feeder.feed(batch)
    assert live_jobs(batch).count() == 2
    assert feeder.check_again(batch) == 0
