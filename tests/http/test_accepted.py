"""The answer to a submit that was accepted."""

import json
import subprocess
import sys
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import include, path, set_urlconf
from django.urls.resolvers import ResolverMatch

from django_boundedpool import accepted
from django_boundedpool.http import responses
from django_boundedpool.http.serialise import job_url
from tests import face_jobs


class WithoutUrls:
    urlpatterns: list[Any] = []


class Nested:
    urlpatterns = [path("api/", include(([path("jobs/", include("django_boundedpool.urls"))], "api")))]


class Renamed:
    urlpatterns = [path("work/", include("django_boundedpool.urls", namespace="work"))]


@pytest.fixture(autouse=True)
def _restore_urlconf() -> Any:
    yield
    set_urlconf(None)


def answer(request: HttpRequest | None = None) -> HttpResponse:
    return accepted(request or RequestFactory().post("/"), face_jobs.add.submit(1, 2))


def test_it_is_202_with_where_and_when_to_poll(inline: None) -> None:
    response = answer()
    body = json.loads(response.content)
    assert (response.status_code, response["Content-Type"]) == (202, "application/json")
    assert response["Location"] == f"/jobs/{body['id']}/"
    assert "Retry-After" not in response  # it is over
    assert body["poll_after"] is None
    assert set(body) == {"id", "state", "terminal", "created", "poll_after", "links"}
    assert body["links"] == {"self": f"/jobs/{body['id']}/", "cancel": f"/jobs/{body['id']}/cancel/"}
    assert (body["state"], body["terminal"], body["created"]) == ("succeeded", True, True)


def test_the_address_it_gives_can_be_polled(inline: None, user: Any, client: Any) -> None:
    client.force_login(user)
    response = accepted(RequestFactory().post("/"), face_jobs.add.using(owner=user).submit(1, 2))
    assert client.get(response["Location"]).json()["result"] == 3


@pytest.mark.parametrize("urlconf", [WithoutUrls, "no.such.module"])
def test_it_never_raises_where_the_urls_are_missing_or_broken(inline: None, urlconf: Any) -> None:
    set_urlconf(urlconf)
    response = answer()
    assert response.status_code == 202
    assert "Location" not in response
    assert json.loads(response.content)["links"] == {"self": None, "cancel": None}


def test_it_never_raises_for_a_host_that_is_not_allowed(inline: None, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["example.org"]
    response = answer(RequestFactory().post("/", headers={"host": "evil.example"}))
    assert response["Location"].startswith("/jobs/")


def test_it_never_raises_inside_a_transaction(transactional_db: None) -> None:
    with transaction.atomic():
        response = answer()
    body = json.loads(response.content)
    assert (response.status_code, body["state"]) == (202, "submitted")
    assert (response["Retry-After"], body["poll_after"]) == ("1", 1)


def test_missing_urls_are_logged_once(inline: None, caplog: pytest.LogCaptureFixture) -> None:
    responses._warn_without_urls.cache_clear()
    set_urlconf(WithoutUrls)
    answer()
    answer()
    assert [record.levelname for record in caplog.records if "no address" in record.getMessage()] == ["WARNING"]
    assert 'include("django_boundedpool.urls")' in caplog.text


@pytest.mark.fast
def test_an_instance_namespace_of_any_name_is_found() -> None:
    set_urlconf(Renamed)
    assert job_url("x") == "/work/x/"


@pytest.mark.fast
def test_inside_another_namespace_the_views_find_their_own_address() -> None:
    set_urlconf(Nested)
    request = RequestFactory().get("/")
    assert job_url("x", request=request) is None
    request.resolver_match = ResolverMatch(print, (), {}, "job-list", ["api", "boundedpool"], ["api", "boundedpool"])
    assert job_url("x", request=request) == "/api/jobs/x/"


@pytest.mark.fast
def test_the_views_answer_in_a_project_without_authentication(python_env: dict[str, str]) -> None:
    code = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_boundedpool"], ROOT_URLCONF="django_boundedpool.urls", ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused"}},
)
django.setup()
from django.test import Client
client = Client()
for accept in ("*/*", "text/html"):
    for path in ("/", "/x/"):
        print(client.get(path, headers={"accept": accept}).status_code)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=python_env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["401"] * 4), done.stderr
