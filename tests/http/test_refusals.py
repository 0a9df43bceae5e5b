"""What a refused submit becomes: OverloadMiddleware and @overload_responses."""

import asyncio
import json
import logging
import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_boundedpool import (
    InvalidArguments,
    QueueFull,
    Rejected,
    StoreUnavailable,
    accepted,
    overload_responses,
    pools,
)
from django_boundedpool.engine.errors import REJECTIONS
from django_boundedpool.http.problems import answer_refusal, refusal
from tests import face_jobs

#: The table of the documentation.
TABLE = {
    "draining": 503,
    "paused": 503,
    "expired": 503,
    "invalid_arguments": None,
    "payload_too_large": 413,
    "idempotency_conflict": 422,
    "owner_limit": 429,
    "rate_limit": 429,
    "global_limit": 503,
    "shed": 503,
    "queue_full": 503,
    "bytes_full": 503,
    "wait_timeout": 503,
    "store_unavailable": 503,
}

raised: Exception = QueueFull("full", pool="default")


def full(**values: Any) -> QueueFull:
    return QueueFull("Pool 'default' is full.", pool="default", **values)


def plain(request: HttpRequest) -> HttpResponse:
    raise raised


async def awaited(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    raise raised


@method_decorator(overload_responses, name="dispatch")
class AsyncView(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        raise raised


class Methods(View):
    @overload_responses
    def get(self, request: HttpRequest) -> HttpResponse:
        raise raised

    @overload_responses
    async def get_async(self, request: HttpRequest) -> HttpResponse:
        raise raised


@overload_responses
def write_then_submit(request: HttpRequest) -> HttpResponse:
    get_user_model().objects.create_user("half-done")
    raise raised


def submit(request: HttpRequest) -> HttpResponse:
    return accepted(request, face_jobs.add.submit(1, 2))


urlpatterns = [
    path("plain/", plain),
    path("awaited/", awaited),
    path("decorated/", overload_responses(plain)),
    path("decorated-awaited/", overload_responses(awaited)),
    path("class/", AsyncView.as_view()),
    path("method/", Methods.as_view()),
    path("write/", write_then_submit),
    path("submit/", submit),
]


@pytest.fixture(autouse=True)
def _urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say what the views of this module raise."""
    return lambda error: monkeypatch.setitem(globals(), "raised", error)


@pytest.mark.fast
def test_the_table_has_every_code() -> None:
    assert {kind.code for kind in REJECTIONS} == set(TABLE)


@pytest.mark.fast
@pytest.mark.parametrize("kind", REJECTIONS, ids=lambda kind: kind.code)
def test_each_code_has_its_status(kind: type[Rejected]) -> None:
    response = refusal(kind("why", pool="reports", retry_after=1.2))
    if TABLE[kind.code] is None:
        assert response is None
        return
    assert response is not None
    body = json.loads(response.content)
    assert response.status_code == body["status"] == TABLE[kind.code]
    assert (body["code"], body["pool"], body["retry_after"], body["type"]) == (kind.code, "reports", 2, "about:blank")
    assert body["title"] == response.reason_phrase
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "2"
    assert response["Cache-Control"] == "no-store"


@pytest.mark.fast
@pytest.mark.parametrize(("given", "header"), [(None, None), (0.0, "1"), (0.4, "1"), (1, "1"), (119.01, "120")])
def test_retry_after_is_a_whole_number_and_only_where_known(given: float | None, header: str | None) -> None:
    response = refusal(full(retry_after=given))
    assert response is not None
    assert response.get("Retry-After") == header
    assert ("retry_after" in json.loads(response.content)) == (header is not None)


@pytest.mark.fast
def test_a_code_of_a_later_version_is_still_an_overload() -> None:
    class New(Rejected):
        code = "new_code"

    response = refusal(New("why", pool="default"))
    assert response is not None
    assert response.status_code == 503


@pytest.mark.fast
def test_the_database_is_not_described_to_users() -> None:
    error = StoreUnavailable('connection to server at "10.0.0.7", user "shop" failed', pool="default")
    response = refusal(error)
    assert response is not None
    assert "10.0.0.7" not in response.content.decode()


ADDRESSES = ["plain", "awaited", "decorated", "decorated-awaited", "class", "method"]


@pytest.mark.fast
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("middleware", [True, False])
def test_sync_and_async_views_answer_with_the_middleware_or_the_decorator(
    settings: Any, refuse: Any, address: str, middleware: bool
) -> None:
    if not middleware:
        settings.MIDDLEWARE = []
        if address in ("plain", "awaited"):
            with pytest.raises(QueueFull):
                Client().get(f"/{address}/")
            return
    else:
        settings.MIDDLEWARE = ["django_boundedpool.middleware.OverloadMiddleware"]
    refuse(full(retry_after=3))
    response = Client().get(f"/{address}/")
    assert (response.status_code, response.json()["code"], response["Retry-After"]) == (503, "queue_full", "3")


@pytest.mark.fast
@pytest.mark.parametrize("address", ["awaited", "decorated-awaited", "class"])
def test_an_asynchronous_server_gets_the_same_answer(settings: Any, refuse: Any, address: str) -> None:
    settings.MIDDLEWARE = ["django_boundedpool.middleware.OverloadMiddleware"]
    refuse(full(retry_after=3))

    async def ask() -> Any:
        return await AsyncClient().get(f"/{address}/")

    response = asyncio.run(ask())
    assert (response.status_code, response.json()["code"], response["Retry-After"]) == (503, "queue_full", "3")


@pytest.mark.fast
@pytest.mark.parametrize("address", ADDRESSES)
def test_invalid_arguments_and_other_errors_pass_through_to_django(settings: Any, refuse: Any, address: str) -> None:
    settings.MIDDLEWARE = ["django_boundedpool.middleware.OverloadMiddleware"]
    for error in (InvalidArguments("args[0] is a User", pool="default"), KeyError("x")):
        refuse(error)
        with pytest.raises(type(error)):
            Client().get(f"/{address}/")
        client = Client(raise_request_exception=False)
        assert client.get(f"/{address}/").status_code == 500


@pytest.mark.fast
def test_a_request_of_another_class_is_answered_too() -> None:
    class Wrapped:
        META: dict[str, str] = {}
        path = "/x/"

    assert overload_responses(plain)(Wrapped()).status_code == 503  # type: ignore[arg-type]


@pytest.mark.fast
def test_an_overload_is_a_warning_and_no_error_to_the_administrators(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.MIDDLEWARE = ["django_boundedpool.middleware.OverloadMiddleware"]
    with caplog.at_level(logging.DEBUG, logger="django.request"):
        Client().get("/plain/")
        Client().get("/decorated/")
    assert [r.levelname for r in caplog.records if r.name == "django.request"] == ["WARNING", "WARNING"]


def test_a_refusal_that_is_answered_undoes_the_request_under_atomic_requests(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert Client().get("/write/").status_code == 503
    assert not get_user_model().objects.filter(username="half-done").exists()


def test_without_atomic_requests_no_transaction_is_touched(db: None) -> None:
    with transaction.atomic():
        assert overload_responses(write_then_submit)(RequestFactory().get("/")).status_code == 503
    assert get_user_model().objects.filter(username="half-done").exists()


def test_a_full_pool_answers_503_with_its_code(
    transactional_db: None, held: None, settings: Any, client: Client
) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    handle = face_jobs.hold.submit()
    assert face_jobs.started.wait(10)
    response = client.post("/submit/")
    assert (response.status_code, response.json()["code"]) == (503, "queue_full")
    assert "Retry-After" not in response  # nothing has ended yet, so no rate is known
    face_jobs.release.set()
    assert handle.result(10) == "released"
    assert client.post("/submit/").status_code == 202


def test_a_stopping_pool_answers_503_without_retry_after(inline: None, client: Client) -> None:
    pools["default"].draining = True
    response = client.post("/submit/")
    assert (response.status_code, response.json()["code"]) == (503, "draining")
    assert "Retry-After" not in response


def test_a_browser_gets_a_page_that_says_when_to_try_again(rf: RequestFactory) -> None:
    request = rf.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    answer = refusal(full(retry_after=6.2), request)
    assert answer is not None
    assert (answer.status_code, answer["Content-Type"]) == (503, "text/html; charset=utf-8")
    assert answer["Retry-After"] == "7"
    assert "Accept" in answer["Vary"]
    page = answer.content.decode()
    text = " ".join(page.split())
    assert "The site is busy and did not start your request. Go back and try again in 7 seconds." in text
    assert "full" not in page  # numbers of workers are for programs
    assert '<link rel="stylesheet" href="/static/django_boundedpool/refused.css">' in page


def html(rf: RequestFactory, error: Rejected, method: str = "get", **headers: str) -> str:
    request = getattr(rf, method)("/start/?a=1", headers={"Accept": "text/html", **headers})
    answer = refusal(error, request)
    assert answer is not None
    return " ".join(answer.content.decode().split())


@pytest.mark.parametrize("kind", [kind for kind in REJECTIONS if TABLE[kind.code]], ids=lambda kind: kind.code)
def test_the_page_says_of_every_code_that_nothing_was_started(rf: RequestFactory, kind: type[Rejected]) -> None:
    page = html(rf, kind("17 of 4 workers", pool="default"))
    assert re.search(r"not start|not started", page)
    assert "17 of 4" not in page
    assert ("try again." in page) == (kind.code not in ("payload_too_large", "idempotency_conflict"))


def test_the_page_leads_back_within_the_site_only(rf: RequestFactory, settings: Any) -> None:
    assert '<a href="http://testserver/form/">' in html(rf, full(), "post", Referer="http://testserver/form/")
    assert "<a" not in html(rf, full(), "post")
    assert "<a" not in html(rf, full(), "post", Referer="https://evil.example/")
    assert "<a" not in html(rf, full(), "post", Referer="javascript:alert(1)")
    assert '<a href="/start/?a=1">Try again</a>' in html(rf, full())
    settings.ALLOWED_HOSTS = ["example.org"]
    assert "<a" not in html(rf, full(), "post", Host="evil.example", Referer="http://evil.example/")


def test_the_page_does_without_a_style_sheet_that_the_project_does_not_serve(rf: RequestFactory, settings: Any) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"},
    }
    settings.STATIC_ROOT = "/nowhere"
    assert "stylesheet" not in html(rf, full())
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "django.contrib.staticfiles"]
    assert "stylesheet" not in html(rf, full())


def test_a_store_that_cannot_be_written_is_an_error_with_its_reason_in_the_log(
    rf: RequestFactory, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_refusal(rf.get("/start/7/"), StoreUnavailable("no table: run manage.py migrate", pool="default"))
    assert answer is not None
    assert b"migrate" not in answer.content
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == "Refused (store_unavailable): /start/7/: no table: run manage.py migrate"


def test_with_debug_the_developer_reads_the_reason_in_the_answer(rf: RequestFactory, settings: Any) -> None:
    settings.DEBUG = True
    error = StoreUnavailable("no table: run manage.py migrate", pool="default")
    answer = refusal(error, rf.get("/"))
    assert answer is not None
    assert json.loads(answer.content)["detail"].endswith("was not accepted. no table: run manage.py migrate")
    assert "DEBUG: store_unavailable" in html(rf, error)


def test_a_program_gets_problem_details_whatever_else_it_takes(rf: RequestFactory) -> None:
    for header in ("*/*", "application/json, text/html;q=0.9", "", "nonsense"):
        answer = refusal(full(), rf.get("/", headers={"Accept": header}))
        assert answer is not None
        assert answer["Content-Type"] == "application/problem+json"


def test_a_project_without_templates_answers_browsers_with_problem_details(rf: RequestFactory, settings: Any) -> None:
    settings.TEMPLATES = []
    answer = refusal(full(), rf.get("/", headers={"Accept": "text/html"}))
    assert answer is not None
    assert (answer.status_code, answer["Content-Type"]) == (503, "application/problem+json")


def test_the_middleware_answers_a_browser_with_the_page(settings: Any, client: Client) -> None:
    settings.ROOT_URLCONF = __name__
    global raised
    before, raised = raised, full()
    try:
        answer = client.get("/plain/", headers={"Accept": "text/html"})
    finally:
        raised = before
    assert answer.status_code == 503
    assert b"<h1>Please try again</h1>" in answer.content


def _broken(request: HttpRequest) -> dict[str, Any]:
    raise RuntimeError("the database is away")


def test_a_context_processor_that_fails_does_not_turn_a_refusal_into_an_error(
    rf: RequestFactory, settings: Any
) -> None:
    template = {**settings.TEMPLATES[0], "OPTIONS": {"context_processors": [f"{__name__}._broken"]}}
    settings.TEMPLATES = [template]
    answer = refusal(full(), rf.get("/", headers={"Accept": "text/html"}))
    assert answer is not None
    assert (answer.status_code, answer["Content-Type"]) == (503, "application/problem+json")
