"""Cancelling over HTTP."""

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from django_boundedpool import testing
from django_boundedpool.handles import JobHandle
from django_boundedpool.models import Job
from tests import face_jobs
from tests.rows import row


def post(user: Any, job_id: object, **client: Any) -> Any:
    browser = Client(**client)
    if user is not None:
        browser.force_login(user)
    return browser.post(f"/jobs/{job_id}/cancel/")


def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked(
    transactional_db: None, user: Any, held: None, settings: Any
) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1}}
    running = face_jobs.hold.using(owner=user).submit()
    assert face_jobs.started.wait(10)
    waiting = face_jobs.add.using(owner=user).submit(1, 2)

    answer = post(user, waiting.id)
    assert (answer.status_code, answer.json()["answer"]) == (200, "cancelled")
    answer = post(user, running.id)
    assert (answer.status_code, answer.json()["answer"]) == (202, "requested")
    assert answer.json()["links"]["self"] == f"/jobs/{running.id}/"
    assert post(user, running.id).status_code == 202  # asking twice changes nothing

    client = Client()
    client.force_login(user)
    body = client.get(f"/jobs/{running.id}/").json()
    assert (body["state"], body["cancel_requested"], body["terminal"]) == ("running", True, False)
    face_jobs.release.set()
    testing.join()
    assert client.get(f"/jobs/{running.id}/").json()["state"] == "succeeded"
    body = client.get(f"/jobs/{waiting.id}/").json()
    assert (body["state"], body["reason"], body["attempt"]) == ("cancelled", "user", 0)


def test_a_finished_job_is_a_conflict(inline: None, user: Any) -> None:
    handle = face_jobs.add.using(owner=user).submit(1, 2)
    answer = post(user, handle.id)
    assert (answer.status_code, answer.json()["code"]) == (409, "finished")
    assert answer["Content-Type"] == "application/problem+json"


def test_a_job_of_another_process_is_asked_through_its_row(inline: None, user: Any) -> None:
    job = row("queued", owner_key=str(user.pk))
    assert post(user, job.pk).status_code == 202
    job.refresh_from_db()
    assert (job.state, job.cancel_reason, job.cancel_requested_by) == ("queued", "user", str(user.pk))


def test_a_holder_of_the_permission_cancels_as_an_operator(inline: None, user: Any, other_user: Any) -> None:
    job = row("running", owner_key=str(user.pk))
    other_user.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert post(other_user, job.pk).status_code == 404  # looking is not enough
    other_user.user_permissions.add(Permission.objects.get(codename="cancel_job"))
    assert post(other_user, job.pk).status_code == 202
    job.refresh_from_db()
    assert (job.cancel_reason, job.cancel_requested_by) == ("operator", str(other_user.pk))


def test_a_post_without_the_csrf_token_changes_nothing_and_tells_nothing(inline: None, user: Any) -> None:
    job = row("running", owner_key=str(user.pk))
    answers = [post(user, job_id, enforce_csrf_checks=True) for job_id in (job.pk, uuid.uuid4(), "nonsense")]
    assert {a.status_code for a in answers} == {403}
    job.refresh_from_db()
    assert job.cancel_requested_at is None


def test_csrf_is_enforced_without_the_middleware_too(inline: None, user: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "Csrf" not in name]
    job = row("running", owner_key=str(user.pk))
    assert post(user, job.pk, enforce_csrf_checks=True).status_code == 403
    job.refresh_from_db()
    assert job.cancel_requested_at is None


def test_a_job_pruned_while_it_is_being_cancelled_is_a_404(
    inline: None, user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = row("running", owner_key=str(user.pk))
    of_row = JobHandle.of_row

    def prune_first(row: Job) -> JobHandle:
        Job.objects.all().delete()
        return of_row(row)

    monkeypatch.setattr(JobHandle, "of_row", prune_first)
    assert post(user, job.pk).status_code == 404
