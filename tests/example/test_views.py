import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from linkchecker import feeder
from linkchecker.models import Batch, Link

from django_boundedpool import JobHandle, testing

INDEX = "/links/"


@pytest.fixture
def owner(client: Client, user: AbstractBaseUser) -> Client:
    client.force_login(user)
    return client


@pytest.fixture
def batch(user: AbstractBaseUser) -> Batch:
    """A finished batch: nothing in it waits to be fed."""
    batch = Batch.objects.create(owner=user, title="Mine")
    for url, outcome in (
        ("https://a.example/<b>", "ok"),
        ("https://b.example/", "broken"),
        ("javascript:x", "refused"),
    ):
        Link.objects.create(batch=batch, url=url, feeding=Link.Feeding.ACCEPTED, outcome=outcome)
    return batch


@pytest.fixture
def full_pool(transactional_db: None, settings, user: AbstractBaseUser, downstream) -> None:
    settings.LINKCHECKER_ALLOWED_TARGET = downstream.url.removeprefix("http://")
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 2}}
    testing.reset()
    batch = Batch.objects.create(owner=user, title="Fills the pool")
    Link.objects.bulk_create(Link(batch=batch, url=f"{downstream.url}/hang") for _ in range(3))
    assert feeder.feed(batch).refusal is None


def urls_of(batch: Batch) -> list[str]:
    return [reverse(f"linkchecker:{name}", args=[batch.pk]) for name in ("batch", "progress", "cancel", "check-again")]


@pytest.mark.django_db
def test_every_page_needs_a_login(client: Client, batch: Batch) -> None:
    for url in (INDEX, reverse("linkchecker:check-one"), *urls_of(batch)):
        for answer in (client.get(url), client.post(url)):
            assert answer.status_code == 302
            assert "login" in answer["Location"]


def test_batch_of_another_user_does_not_exist(client: Client, batch: Batch, other_user: AbstractBaseUser) -> None:
    client.force_login(other_user)
    page, progress, cancel, again = urls_of(batch)
    assert [client.get(page).status_code, client.get(progress).status_code] == [404, 404]
    assert [client.post(cancel).status_code, client.post(again).status_code] == [404, 404]
    assert "Mine" not in client.get(INDEX).content.decode()


def test_cancel_and_check_again_want_a_post_with_a_token(batch: Batch, user: AbstractBaseUser) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    for url in urls_of(batch)[2:]:
        assert client.get(url).status_code == 405
        assert client.post(url).status_code == 403
    batch.refresh_from_db()
    assert batch.cancelled_at is None


def test_page_shows_results_escaped_and_links_only_to_http(owner: Client, batch: Batch) -> None:
    page = owner.get(urls_of(batch)[0]).content.decode()
    assert "https://a.example/&lt;b&gt;" in page
    assert 'href="javascript:' not in page
    assert "javascript:x" in page
    assert "3</span> of <span" in page


def test_page_has_no_inline_code_and_no_foreign_address(owner: Client, batch: Batch) -> None:
    Link.objects.all().delete()
    for url in (INDEX, urls_of(batch)[0]):
        page = owner.get(url).content.decode()
        assert " style=" not in page
        assert " onclick=" not in page
        assert "<style" not in page
        assert 'src="http' not in page
        assert page.count("<script") == page.count('<script type="module" src="/static/')


def test_progress_is_told_as_json(owner: Client, batch: Batch) -> None:
    answer = owner.get(urls_of(batch)[1])
    data = answer.json()
    assert "no-store" in answer["Cache-Control"]
    assert (data["total"], data["done"], data["finished"], data["problems"]) == (3, 3, True, 2)
    assert [row["status"] for row in data["rows"]] == ["ok", "broken", "refused"]
    assert data["pool"]["queued"] == data["pool"]["running"] == 0
    assert {part["status"]: part["count"] for part in data["bar"] if part["count"]} == {
        "ok": 1,
        "broken": 1,
        "refused": 1,
    }
    problems = owner.get(urls_of(batch)[1], {"show": "problems"}).json()
    assert [row["status"] for row in problems["rows"]] == ["broken", "refused"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "exactly one"),
        ({"text": "https://a.example/", "sitemap": "https://a.example/sitemap.xml"}, "exactly one"),
        ({"text": "<!DOCTYPE x><urlset/>"}, "document type"),
        ({"text": "# nothing"}, "no links"),
        ({"text": "<sitemapindex><sitemap><loc>https://a/</loc></sitemap></sitemapindex>"}, "index of sitemaps"),
        ({"text": "https://a.example/\x00"}, "Null characters"),
    ],
)
def test_form_says_what_is_wrong(owner: Client, fields: dict[str, str], words: str) -> None:
    answer = owner.post(INDEX, fields)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not Batch.objects.exists()


def test_upload_that_is_too_large_is_refused(owner: Client) -> None:
    file = SimpleUploadedFile("links.txt", b"https://a.example/\n" * 60_000)
    answer = owner.post(INDEX, {"file": file})
    assert "larger than 1 MiB" in answer.content.decode()


def test_list_given_to_a_full_pool_is_stored_and_waits(full_pool: None, owner: Client) -> None:
    answer = owner.post(INDEX, {"file": SimpleUploadedFile("links.txt", b"https://a.example/\nhttps://b.example/\n")})
    batch = Batch.objects.get(title="links.txt")
    assert answer["Location"] == urls_of(batch)[0]
    assert batch.links.filter(feeding="waiting").count() == 2
    page = owner.get(answer["Location"]).content.decode()
    assert "Pool full." in page
    assert "2 links wait to be fed" in page
    assert '<noscript><meta http-equiv="refresh"' in page
    data = owner.get(urls_of(batch)[1]).json()
    assert data["refusal"] == "queue_full"
    assert 1 <= data["poll_after"] <= 3


@pytest.mark.parametrize(
    ("url", "fields"),
    [("/links/one/", {"url": "https://a.example/"}), (INDEX, {"sitemap": "https://a.example/sitemap.xml"})],
)
def test_single_job_for_a_full_pool_is_answered_with_503(
    full_pool: None, owner: Client, url: str, fields: dict[str, str]
) -> None:
    answer = owner.post(url, fields)
    assert answer.status_code == 503
    assert Batch.objects.count() == 1


@pytest.mark.parametrize(("accept", "status"), [("text/html,*/*;q=0.8", 302), ("application/json", 202), ("*/*", 202)])
def test_single_link_becomes_a_job(
    transactional_db: None, owner: Client, settings, downstream, accept: str, status: int
) -> None:
    settings.LINKCHECKER_ALLOWED_TARGET = downstream.url.removeprefix("http://")
    answer = owner.post("/links/one/", {"url": f"{downstream.url}/fast"}, headers={"Accept": accept})
    testing.join(20)
    link = Link.objects.get()
    assert answer.status_code == status
    assert answer["Location"] == (urls_of(link.batch)[0] if status == 302 else f"/jobs/{link.job_id}/")
    assert link.outcome == "ok"
    assert JobHandle.get(link.job_id).result()["url"] == link.url


def test_cancel_button_cancels(full_pool: None, owner: Client) -> None:
    batch = Batch.objects.get()
    answer = owner.post(urls_of(batch)[2])
    assert answer["Location"] == urls_of(batch)[0]
    batch.refresh_from_db()
    assert batch.cancelled_at is not None
