"""The admin reads and cancels where the pool writes, whatever the routers say about reads."""

from typing import Any

import pytest
from django.db import connections
from django.test import Client, RequestFactory

from django_boundedpool.admin import jobs
from django_boundedpool.models import Job
from tests.rows import row


class ReadsElsewhere:
    """Sends reads of the jobs to a replica that lags for ever."""

    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return "replica" if model._meta.app_label == "boundedpool" else None

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "default" if model._meta.app_label == "boundedpool" else None


@pytest.fixture
def _replica(settings: Any) -> Any:
    connections.settings["replica"] = {**connections.settings["default"], "NAME": "/nowhere/replica.sqlite3"}
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    yield
    del connections.settings["replica"]


@pytest.mark.usefixtures("_replica")
def test_C05_list_page_and_cancel_never_ask_the_replica(inline: None, staff: Any) -> None:
    job = row("running")
    client = Client()
    client.force_login(staff)
    list_page = client.get("/admin/boundedpool/job/")
    assert str(job.pk) in list_page.content.decode()
    assert client.get(f"/admin/boundedpool/job/{job.pk}/change/").status_code == 200
    data = {"action": "cancel_selected", "_selected_action": [str(job.pk)]}
    answer = client.post("/admin/boundedpool/job/", data, follow=True)
    assert "1 asked to stop" in answer.content.decode()
    assert client.get("/admin/boundedpool/process/").status_code == 200


@pytest.mark.fast
def test_the_option_database_decides(settings: Any) -> None:
    from django.contrib import admin

    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "elsewhere", "INLINE": True}
    request = RequestFactory().get("/")
    assert jobs.JobAdmin(Job, admin.site).get_queryset(request).db == "elsewhere"
