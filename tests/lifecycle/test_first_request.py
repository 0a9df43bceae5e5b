"""The first request of a process starts its housekeeping."""

import threading

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started
from django.db import close_old_connections

from django_boundedpool.lifecycle import runtime


def test_page_is_served_although_the_system_gives_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that needs no job must not fail for the pool's sake."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("boundedpool"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    request_started.disconnect(close_old_connections)
    try:
        request_started.send(sender=WSGIHandler, environ={})
    finally:
        request_started.connect(close_old_connections)
    assert not runtime.current().housekeeper.started
