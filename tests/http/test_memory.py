"""Jobs without rows over HTTP: polled and cancelled as any other, but not listed."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from django_boundedpool import JobHandle, accepted, get_job_or_404, pools, testing
from django_boundedpool.lifecycle import runtime
from django_boundedpool.models import Job
from tests import face_jobs
from tests.http.test_poll import KEYS


@pytest.fixture(autouse=True)
def _memory(settings: Any, transactional_db: None) -> None:
    settings.BOUNDED_POOLS = {"default": {"PERSIST": "memory", "WORKERS": 1, "QUEUE_SIZE": 5}}


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_job_is_polled_from_its_queue_to_its_result(user: Any, held: None) -> None:
    client = signed_in(user)
    first = face_jobs.hold.using(owner=user).submit()
    assert face_jobs.started.wait(10)
    second = face_jobs.add.using(owner=user, batch="b", priority=3).submit(1, 2)
    body = client.get(f"/jobs/{second.id}/").json()
    assert set(body) == KEYS
    assert (body["state"], body["batch"], body["priority"], body["durability"]) == ("queued", "b", 3, "memory")
    assert client.get(f"/jobs/{first.id}/").json()["state"] == "running"
    face_jobs.release.set()
    testing.join()
    body = client.get(f"/jobs/{second.id}/").json()
    assert (body["state"], body["result"], body["terminal"], body["poll_after"]) == ("succeeded", 3, True, None)
    assert body["retain_until"] is not None
    assert Job.objects.count() == 0


def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked(user: Any, held: None) -> None:
    client = signed_in(user)
    running = face_jobs.hold.using(owner=user).submit()
    assert face_jobs.started.wait(10)
    waiting = face_jobs.add.using(owner=user).submit(1, 2)
    answer = client.post(f"/jobs/{waiting.id}/cancel/")
    assert (answer.status_code, answer.json()["answer"]) == (200, "cancelled")
    answer = client.post(f"/jobs/{running.id}/cancel/")
    assert (answer.status_code, answer.json()["answer"]) == (202, "requested")
    body = client.get(f"/jobs/{running.id}/").json()
    assert (body["state"], body["cancel_requested"]) == ("running", True)
    assert client.post(f"/jobs/{waiting.id}/cancel/").status_code == 409
    body = client.get(f"/jobs/{waiting.id}/").json()
    assert (body["state"], body["reason"], body["cancel_requested"]) == ("cancelled", "user", False)


def test_A01_nobody_else_sees_it(user: Any, other_user: Any, rf: Any) -> None:
    handle = face_jobs.add.using(owner=user).submit(1, 2)
    handle.result(10)
    strangers, unknown = (
        signed_in(other_user).get(f"/jobs/{job_id}/") for job_id in (handle.id, "01900000-0000-7000-8000-000000000000")
    )
    assert strangers.status_code == unknown.status_code == 404
    assert strangers.content == unknown.content
    assert Client().get(f"/jobs/{handle.id}/").status_code == 401
    other_user.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert signed_in(other_user).get(f"/jobs/{handle.id}/").json()["result"] == 3
    request = rf.get("/")
    request.user = user
    found = get_job_or_404(request, handle.id)
    assert isinstance(found, JobHandle)
    assert found.result(1) == 3


def test_an_error_is_told_to_its_owner_as_that_of_any_job(user: Any) -> None:
    handle = face_jobs.fail.using(owner=user).submit("secret")
    with pytest.raises(KeyError):
        handle.result(10)
    error = signed_in(user).get(f"/jobs/{handle.id}/").json()["error"]
    assert error == {"type": "KeyError", "message": "The job failed."}


def test_the_list_shows_rows_only(user: Any) -> None:
    face_jobs.add.using(owner=user).submit(1, 2).result(10)
    assert signed_in(user).get("/jobs/").json() == {"results": [], "next": None}


def test_it_is_gone_when_its_retention_has_passed(user: Any, rf: Any) -> None:
    handle = face_jobs.add.using(owner=user, retention=0.01).submit(1, 2)
    answer = accepted(rf.get("/"), handle)
    assert answer.status_code == 202
    assert handle.result(10) == 3
    testing.join()
    client = signed_in(user)
    runtime.current().sweep()
    while len(runtime.current().memories["default"]):
        runtime.current().sweep()
    assert client.get(answer["Location"]).status_code == 404
    assert client.post(f"{answer['Location']}cancel/").status_code == 404
    assert pools["default"].stats().accepted == 1
