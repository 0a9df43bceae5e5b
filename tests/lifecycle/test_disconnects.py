"""Jobs whose client has gone are cancelled by one thread that ends when it has nothing to do."""

import threading
import uuid
from typing import Any

import pytest

from django_boundedpool.lifecycle.disconnects import Disconnects
from django_boundedpool.models import Job
from django_boundedpool.store import writes

pytestmark = pytest.mark.django_db(transaction=True)


def running_here() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "boundedpool-disconnect"]


def test_a_job_of_another_process_is_asked_through_its_row_and_the_thread_ends() -> None:
    row = Job.objects.create(name="x", pool="default", state="running")
    disconnects = Disconnects((), "default")
    disconnects.cancel(row.pk)
    disconnects.cancel(uuid.uuid4())  # there is none
    disconnects.stop()
    assert running_here() == []
    row.refresh_from_db()
    assert (row.cancel_requested, row.cancel_reason, row.cancel_requested_by) == (True, "disconnect", "")


def test_one_that_cannot_be_cancelled_keeps_none_of_the_others_up(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    rows = [Job.objects.create(name="x", pool="default", state="running") for _ in range(3)]
    real = writes.request_cancel

    def request_cancel(job_id: Any, *args: Any) -> bool:
        if job_id == rows[1].pk:
            raise ConnectionError("the database is away")
        return real(job_id, *args)

    monkeypatch.setattr(writes, "request_cancel", request_cancel)
    disconnects = Disconnects((), "default")
    for row in rows:
        disconnects.cancel(row.pk)
    disconnects.stop()
    assert f"Job {rows[1].pk}: its client has gone, but it could not be cancelled" in caplog.text
    assert Job.objects.filter(cancel_requested_at__isnull=False).count() == 2


def test_a_system_without_threads_is_no_error_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    rows = [Job.objects.create(name="x", pool="default", state="running") for _ in range(2)]
    disconnects = Disconnects((), "default")

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        disconnects.cancel(rows[0].pk)
    assert "the next disconnect tries again" in caplog.text
    disconnects.cancel(rows[1].pk)
    disconnects.stop()
    assert Job.objects.filter(cancel_requested_at__isnull=False).count() == 2
