"""Listing one's own jobs."""

import re
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_boundedpool.http import views
from tests import face_jobs
from tests.rows import row


@pytest.fixture
def client(user: Any) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


def test_own_jobs_come_newest_first(inline: None, user: Any, other_user: Any, client: Client) -> None:
    ids = [str(face_jobs.add.using(owner=user).submit(n, 1).id) for n in range(3)]
    face_jobs.add.using(owner=other_user).submit(1, 1)
    face_jobs.add.submit(1, 1)
    body = client.get("/jobs/").json()
    assert sorted(job["id"] for job in body["results"]) == sorted(ids)
    assert [job["id"] for job in body["results"]] == sorted(ids, reverse=True)
    assert body["next"] is None


def test_following_next_visits_every_job_once(user: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE", 3)
    wanted = {str(row("succeeded", owner_key=str(user.pk), batch="b").pk) for _ in range(7)}
    row("failed", owner_key=str(user.pk), batch="b")
    seen: list[str] = []
    address = "/jobs/?state=succeeded&batch=b"
    pages = 0
    while address:
        answer = client.get(address)
        seen += [job["id"] for job in answer.json()["results"]]
        address = answer.json()["next"]
        row("succeeded", owner_key=str(user.pk), batch="b")  # newcomers push no job onto a page twice
        pages += 1
    assert pages == 3
    assert len(seen) == len(set(seen)) == 7
    assert set(seen) == wanted


def test_a_full_last_page_has_no_next(user: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    for _ in range(2):
        row(owner_key=str(user.pk))
    assert client.get("/jobs/").json()["next"] is None


def test_filters_by_state_batch_and_ids(user: Any, client: Client) -> None:
    a = row("succeeded", owner_key=str(user.pk), batch="a")
    b = row("failed", owner_key=str(user.pk))
    row("failed", batch="a")
    ids = {"a": str(a.pk), "b": str(b.pk)}

    def found(query: str) -> set[str]:
        return {
            name for name, i in ids.items() if i in {j["id"] for j in client.get(f"/jobs/?{query}").json()["results"]}
        }

    assert found("") == {"a", "b"}
    assert found("state=failed") == {"b"}
    assert found("batch=a") == {"a"}
    assert found(f"id={a.pk}&id={uuid.uuid4()}") == {"a"}
    assert found(f"id={uuid.uuid4()}") == found("batch=other") == found("state=running") == found("batch=%00") == set()


@pytest.mark.parametrize(
    "query", ["state=nonsense", "state=rejected", "state=%00", "id=nonsense", "id=", f"id={uuid.UUID(int=1)}&id=zzz"]
)
def test_a_filter_that_can_match_nothing_is_refused(client: Client, query: str) -> None:
    answer = client.get(f"/jobs/?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_filter")
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("cursor", ["nonsense", "%00", "0"])
def test_a_cursor_that_is_none_is_refused(client: Client, cursor: str) -> None:
    answer = client.get(f"/jobs/?before={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_the_number_of_queries_does_not_grow_with_the_list(
    user: Any, client: Client, django_assert_num_queries: Any
) -> None:
    for _ in range(20):
        row("failed", owner_key=str(user.pk), error={"type": "ValueError", "message": "m", "traceback": "t"})
    with django_assert_num_queries(3):  # session, user, jobs
        body = client.get("/jobs/").json()
    assert len(body["results"]) == 20
    assert body["results"][0]["error"] == {"type": "ValueError", "message": "The job failed."}


def test_columns_that_no_answer_shows_are_not_fetched(user: Any, client: Client) -> None:
    row(owner_key=str(user.pk))
    with CaptureQueriesContext(connection) as queries:
        client.get("/jobs/")
    statement = next(q["sql"] for q in queries if "boundedpool_job" in q["sql"])
    for column in ("kwargs", "attempts", "first_error", "carry"):
        assert not re.search(rf"\b{column}\b", statement.split("FROM")[0])
