"""Polling one job."""

import json
import uuid
from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.http import Http404
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from django_boundedpool import JobTimedOut, get_job_or_404
from django_boundedpool.engine.errors import WaitingWouldDeadlock
from django_boundedpool.engine.record import describe_error
from django_boundedpool.http import permissions, serialise
from django_boundedpool.http.serialise import as_json
from django_boundedpool.http.views import job_list
from django_boundedpool.models import Job
from tests import face_jobs
from tests.rows import row

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
KEYS = {
    "id", "name", "pool", "batch", "state", "reason", "terminal", "cancel_requested", "overdue", "priority", "attempt",
    "max_attempts", "progress", "result", "error", "submitted_at", "started_at", "finished_at", "retain_until",
    "durability", "poll_after", "links",
}  # fmt: skip
MALFORMED = [
    "nonsense", "0", "-", "{{x}}", "01890000-0000-7000-8000-00000000000", "\0", "%00", "a" * 5000, "..", "null", "1_2",
]  # fmt: skip


def get(user: Any, job_id: object, **headers: str) -> Any:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client.get(f"/jobs/{job_id}/", headers=headers or None)


def grant(user: Any, *names: str) -> Any:
    user.user_permissions.add(*Permission.objects.filter(content_type__app_label="boundedpool", codename__in=names))
    return type(user).objects.get(pk=user.pk)


def test_the_owner_reads_every_key_of_the_contract(inline: None, user: Any) -> None:
    handle = face_jobs.add.using(owner=user, batch="b1", priority=7).submit(1, 2)
    answer = get(user, handle.id)
    body = answer.json()
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    assert set(body) == KEYS
    assert (body["id"], body["state"], body["terminal"], body["result"]) == (str(handle.id), "succeeded", True, 3)
    assert (body["batch"], body["priority"], body["durability"]) == ("b1", 7, "commit")
    assert body["links"] == {"self": f"/jobs/{handle.id}/", "cancel": f"/jobs/{handle.id}/cancel/"}
    assert datetime.fromisoformat(body["finished_at"]).utcoffset() is not None
    assert body["poll_after"] is None
    assert "Retry-After" not in answer
    assert answer["Cache-Control"] == "private, no-cache"
    assert {"Accept", "Cookie"} <= set(answer["Vary"].split(", "))


@pytest.mark.parametrize(("state", "seconds"), [("queued", 2), ("running", 1), ("postponed", 2), ("handed_over", 2)])
def test_a_job_that_is_not_over_says_when_to_ask_again(user: Any, state: str, seconds: int) -> None:
    answer = get(user, row(state, owner_key=str(user.pk)).pk)
    assert (answer["Retry-After"], answer.json()["poll_after"]) == (str(seconds), seconds)
    assert answer.json()["state"] == state
    assert answer.json()["terminal"] is False


def test_progress_is_a_fraction_and_a_message(user: Any) -> None:
    job = row("running", owner_key=str(user.pk), progress=0.25, progress_message="a quarter")
    assert get(user, job.pk).json()["progress"] == {"fraction": 0.25, "message": "a quarter"}


def test_an_overdue_and_cancelled_job_is_still_running(user: Any) -> None:
    job = row("running", owner_key=str(user.pk), timeout=1)
    Job.objects.update(cancel_requested_at=job.submitted_at)
    body = get(user, job.pk).json()
    assert (body["state"], body["overdue"], body["cancel_requested"]) == ("running", True, True)


def test_a_holder_of_the_permission_reads_any_job(user: Any, other_user: Any) -> None:
    job = row(owner_key=str(user.pk))
    assert get(other_user, job.pk).status_code == 404
    assert get(grant(other_user, "view_job"), job.pk).status_code == 200


def test_A01_strangers_jobs_and_ids_that_are_none_are_told_apart_by_nothing(user: Any, other_user: Any) -> None:
    theirs = row(owner_key=str(user.pk))
    nobodys = row()
    pruned = row(owner_key=str(other_user.pk))
    pruned_id = pruned.pk
    pruned.delete()
    staff = type(user).objects.create_user("stan", is_staff=True)
    before = list(Job.objects.order_by("pk").values())
    for who in (other_user, staff):
        client = Client()
        client.force_login(who)
        seen = set()
        ids = [theirs.pk, str(theirs.pk).upper(), nobodys.pk, pruned_id, uuid.uuid4(), uuid.UUID(int=0), *MALFORMED]
        for job_id in ids:
            for method, path in (("get", f"/jobs/{job_id}/"), ("post", f"/jobs/{job_id}/cancel/")):
                with CaptureQueriesContext(
                    connection,
                ) as queries:
                    answer = getattr(client, method)(path)
                headers = frozenset((k, v) for k, v in answer.items() if k.lower() != "x-request-id")
                seen.add((answer.status_code, answer.content, headers, len(queries)))
        assert len(seen) == 1, seen
        status, content, _, _ = seen.pop()
        assert status == 404
        assert json.loads(content)["code"] == "not_found"
        assert client.get("/jobs/").json() == {"results": [], "next": None}
    assert list(Job.objects.order_by("pk").values()) == before


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "nonsense", ";;;q=x", "image/png"])
def test_A01_anonymous_programs_get_401_for_every_id_alike(db: None, accept: str) -> None:
    known = row(owner_key="1").pk
    answers = [
        get(None, job_id, **({"accept": accept} if accept else {})) for job_id in (known, uuid.uuid4(), *MALFORMED)
    ]
    assert {a.status_code for a in answers} == {401}
    assert len({a.content for a in answers}) == 1
    assert answers[0]["Content-Type"] == "application/problem+json"
    assert answers[0].json()["code"] == "authentication_required"
    assert Client().get("/jobs/").status_code == 401
    assert Client().post(f"/jobs/{known}/cancel/").status_code == 401


def test_A01_anonymous_browsers_are_sent_to_the_login_for_every_id_alike(db: None) -> None:
    known = row(owner_key="1").pk
    for job_id in (known, uuid.uuid4(), "nonsense"):
        answer = get(None, job_id, accept=HTML)
        assert (answer.status_code, answer["Location"]) == (302, f"/accounts/login/?next=/jobs/{job_id}/")
        assert "Accept" in answer["Vary"]
        # The login page sends people on by GET, which the cancel address does not know.
        answer = Client().post(f"/jobs/{job_id}/cancel/", headers={"accept": HTML})
        assert answer["Location"] == f"/accounts/login/?next=/jobs/{job_id}/"


def test_A01_asking_anonymously_looks_nothing_up(db: None, django_assert_num_queries: Any) -> None:
    known = row(owner_key="1").pk
    with django_assert_num_queries(0):
        get(None, known)


def test_A01_safe_methods_change_nothing(user: Any) -> None:
    job = row("running", owner_key=str(user.pk))
    client = Client()
    client.force_login(user)
    before = list(Job.objects.values())
    assert client.get(f"/jobs/{job.pk}/").status_code == 200
    assert client.head(f"/jobs/{job.pk}/").status_code == 200
    assert client.get("/jobs/").status_code == 200
    assert client.get(f"/jobs/{job.pk}/cancel/").status_code == 405
    assert client.head(f"/jobs/{job.pk}/cancel/").status_code == 405
    assert client.post(f"/jobs/{job.pk}/").status_code == 405
    assert client.delete(f"/jobs/{job.pk}/").status_code == 405
    assert list(Job.objects.values()) == before


def test_an_inactive_user_sees_nothing(user: Any, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.AllowAllUsersModelBackend"]
    job = row("queued", owner_key=str(user.pk))
    user.is_active = False
    user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    assert client.get(f"/jobs/{job.pk}/").status_code == 404
    assert client.post(f"/jobs/{job.pk}/cancel/").status_code == 404
    assert client.get("/jobs/").json()["results"] == []
    job.refresh_from_db()
    assert job.cancel_requested_at is None


class Somebody:
    """A user model of one's own: no permissions, any primary key."""

    is_authenticated = is_active = True
    is_anonymous = False
    _meta: Any = object()

    def __init__(self, pk: Any) -> None:
        self.pk = pk


@pytest.mark.parametrize("pk", [0, "0", uuid.UUID(int=7), "ann@example.org", "ünï", "0" * 191])
def test_any_kind_of_primary_key_owns_its_jobs_and_no_others(inline: None, pk: Any) -> None:
    owner, other = Somebody(pk), Somebody("1" if pk != "1" else "2")
    handle = face_jobs.add.using(owner=owner).submit(1, 2)
    request = RequestFactory().get("/")
    request.user = owner  # type: ignore[assignment]
    assert get_job_or_404(request, handle.id).id == handle.id
    request.user = other  # type: ignore[assignment]
    with pytest.raises(Http404):
        get_job_or_404(request, handle.id)


@pytest.mark.parametrize("pk", ["", "x" * 500])
def test_a_key_that_can_own_nothing_is_no_error(db: None, pk: str) -> None:
    request = RequestFactory().get("/")
    request.user = Somebody(pk)  # type: ignore[assignment]
    with pytest.raises(Http404):
        get_job_or_404(request, row(owner_key="").pk)


class Operator(Somebody):
    """May look at every job; the list is of own jobs all the same."""

    def has_perm(self, name: str) -> bool:
        return True


def test_keys_that_differ_in_case_are_two_owners(db: None) -> None:
    """On MariaDB the database itself takes the two keys for one."""
    mine, theirs = row(owner_key="ann"), row(owner_key="Ann")
    for who in (Somebody("ann"), Operator("ann")):
        request = RequestFactory().get("/jobs/")
        request.user = who  # type: ignore[assignment]
        results = json.loads(job_list(request).content)["results"]
        assert [r["id"] for r in results] == [str(mine.pk)]
    request.user = Somebody("ann")  # type: ignore[assignment]
    with pytest.raises(Http404):
        get_job_or_404(request, theirs.pk)


def test_the_owner_reads_no_message_unless_its_class_is_public(inline: None, user: Any) -> None:
    bodies = {
        kind: get(user, face_jobs.fail.using(owner=user).submit(kind).id).json()["error"]
        for kind in ("private", "public", "more")
    }
    assert bodies["private"] == {"type": "ValueError", "message": "The job failed."}
    assert bodies["public"]["message"] == "no such page"
    assert bodies["more"] == {"type": "tests.face_jobs.MorePublicError", "message": "gone"}


def test_only_permitted_staff_reads_the_traceback(inline: None, user: Any, other_user: Any, staff: Any) -> None:
    handle = face_jobs.fail.using(owner=user).submit()
    permitted = grant(other_user, "view_job")
    for who in (user, permitted):
        content = get(who, handle.id).content.decode()
        assert face_jobs.SECRET not in content
        assert "Traceback" not in content
    error = get(staff, handle.id).json()["error"]
    assert face_jobs.SECRET in error["message"]
    assert "Traceback" in error["traceback"]


@pytest.mark.fast
@pytest.mark.parametrize(
    "kind", ["", "x", ".", "nowhere.Gone", "builtins.print", "tests.face_jobs.add", "a.<locals>.E", "os.path"]
)
def test_a_stored_type_that_is_no_loaded_class_is_not_public(kind: str) -> None:
    job = Job(name=face_jobs.fail.spec.name, error={"type": kind, "message": "secret"})
    assert as_json(job)["error"] == {"type": kind, "message": "The job failed."}


@pytest.mark.fast
def test_V04_times_have_an_offset_also_without_time_zone_support(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    body = as_json(Job(state="queued", submitted_at=datetime(2026, 7, 1, 12)))
    assert body["submitted_at"].isoformat() == "2026-07-01T12:00:00+02:00"


def test_the_owner_pays_for_no_permission_query(user: Any, django_assert_num_queries: Any) -> None:
    job = row("running", owner_key=str(user.pk))
    client = Client()
    client.force_login(user)
    with django_assert_num_queries(3):  # session, user, job
        assert client.get(f"/jobs/{job.pk}/").status_code == 200


def refuse_all(request: Any, job: Job, action: str) -> bool:
    raise permissions.PermissionDenied


def only_batch_b(request: Any, job: Job, action: str) -> bool:
    return job.batch == "b" and action == "view"


async def too_async(request: Any, job: Job, action: str) -> bool:
    return False


def use_rule(settings: Any, rule: str) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True, "AUTHORIZE": f"{__name__}.{rule}"}


def test_authorize_replaces_the_rule(user: Any, staff: Any, settings: Any) -> None:
    a, b = row("queued", owner_key=str(user.pk), batch="a"), row("queued", batch="b")
    use_rule(settings, "only_batch_b")
    for who in (user, staff):
        assert get(who, a.pk).status_code == 404
        assert get(who, b.pk).status_code == 200
        client = Client()
        client.force_login(who)
        assert client.post(f"/jobs/{b.pk}/cancel/").status_code == 404
    client = Client()
    client.force_login(user)
    assert client.get("/jobs/").json()["results"] == []  # the owner's own job, which the rule denies


def test_authorize_may_know_anonymous_clients_and_the_denied_ones_are_asked_to_sign_in(db: None, settings: Any) -> None:
    a, b = row(batch="a"), row(batch="b")
    use_rule(settings, "only_batch_b")
    assert get(None, b.pk).status_code == 200
    answers = [get(None, job_id) for job_id in (a.pk, uuid.uuid4(), "nonsense")]
    assert {(x.status_code, x.content) for x in answers} == {(401, answers[0].content)}


def test_authorize_that_raises_permission_denied_hides_the_job(user: Any, settings: Any) -> None:
    use_rule(settings, "refuse_all")
    assert get(user, row(owner_key=str(user.pk)).pk).status_code == 404


def test_an_async_authorize_never_says_yes(user: Any, settings: Any) -> None:
    use_rule(settings, "too_async")
    job = row(owner_key=str(user.pk))
    with pytest.raises(Exception, match="async"):
        get(user, job.pk)


def test_U05_a_poll_answer_has_a_json_content_type(inline: None, user: Any) -> None:
    handle = face_jobs.echo.using(owner=user).submit("<script>alert(1)</script>")
    for accept in ("*/*", HTML):
        answer = get(user, handle.id, accept=accept)
        assert answer["Content-Type"] == "application/json"
        assert answer["X-Content-Type-Options"] == "nosniff"


def test_it_answers_by_itself_under_login_required_middleware(user: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    job = row(owner_key=str(user.pk))
    assert get(None, job.pk).status_code == 401
    assert Client().get("/jobs/").status_code == 401
    assert Client().post(f"/jobs/{job.pk}/cancel/").status_code == 401
    assert get(None, job.pk, accept=HTML).status_code == 302
    assert get(user, job.pk).status_code == 200


@pytest.mark.parametrize("kind", ["django_boundedpool.JobTimedOut", "ValueError"])  # at the time-out, or after it
def test_the_owner_of_a_job_that_ran_too_long_reads_so(db: None, kind: str) -> None:
    job = row("failed", reason="timeout", error={"type": kind, "message": "still running after 5 s", "traceback": "t"})
    assert as_json(job)["error"] == {"type": kind, "message": "It ran longer than its time-out."}


@pytest.mark.fast
@pytest.mark.parametrize("kind", [JobTimedOut, WaitingWouldDeadlock])
def test_the_class_of_each_of_our_own_errors_is_found_by_its_stored_name(kind: type[Exception]) -> None:
    assert serialise._loaded_class(describe_error(kind("why"))["type"]) is kind
