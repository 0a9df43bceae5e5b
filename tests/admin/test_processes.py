"""The list of processes and the page of one."""

import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_boundedpool import testing
from tests import face_jobs
from tests.rows import EVIL, process

LIST = "/admin/boundedpool/process/"


@pytest.fixture
def client(staff: Any) -> Client:
    browser = Client()
    browser.force_login(staff)
    return browser


def test_each_process_says_how_it_is(client: Client) -> None:
    now = timezone.now()
    process(host="a")
    process(host="b", heartbeat_at=now - timedelta(hours=1))
    process(host="c", stopped_at=now, drain_report={"reason": "SIGTERM"})
    process(host="d", lost_at=now)
    html = client.get(LIST).content.decode()
    found = dict(re.findall(r">([abcd]):4711</a>.*?bp-badge [\w-]+\">(\w+)<", html, re.DOTALL))
    assert found == {"a": "alive", "b": "silent", "c": "stopped", "d": "lost"}
    assert "default: 2 of 4 busy, 31 of 100 queued" in html


@pytest.mark.parametrize("stats", [{}, [], None, 7, {"default": None}, {"default": {}}, {EVIL: {"running": EVIL}}])
def test_figures_of_an_unexpected_shape_are_shown(client: Client, stats: Any) -> None:
    job = process(stats={} if stats is None else stats, host=EVIL, server=EVIL[:100], release=EVIL[:100])
    for address in (LIST, f"{LIST}{job.pk}/change/", f"{LIST}{job.pk}/history/"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.content.decode()


def test_nothing_can_be_changed(admin_client: Client) -> None:
    row = process()
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/change/", {"host": "x"}).status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_real_process_is_listed(transactional_db: None, admin_client: Client) -> None:
    face_jobs.add.submit(1, 2)
    testing.join()
    for _ in range(100):
        if "bp-badge" in (html := admin_client.get(LIST).content.decode()):
            break
        time.sleep(0.05)  # its row is written by another thread
    assert ">alive<" in html
