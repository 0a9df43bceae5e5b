"""Expired rows go, in small transactions; live rows never do."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_boundedpool.models import Job
from django_boundedpool.store import retention

pytestmark = pytest.mark.django_db


def rows(count, *, ago=None, **values):
    until = None if ago is None else timezone.now() - ago
    Job.objects.bulk_create(
        Job(name="x", pool="default", retain_until=until and until - timedelta(seconds=n), **values)
        for n in range(count)
    )


def test_expired_rows_are_deleted_oldest_first_in_batches():
    rows(25, ago=timedelta(minutes=1), state="succeeded", live=False)
    rows(5, ago=timedelta(minutes=-5), state="succeeded", live=False)
    assert retention.expired("default") == 25
    assert list(retention.prune("default", batch=10)) == [10, 10, 5]
    assert Job.objects.count() == 5


def test_a_live_row_is_never_deleted():
    rows(3, state="running")
    rows(1, state="queued", ago=timedelta(minutes=1))
    assert list(retention.prune("default")) == []
    assert Job.objects.count() == 4


def test_rows_that_expire_at_one_moment_go_together():
    moment = timezone.now() - timedelta(minutes=1)
    Job.objects.bulk_create(
        Job(name="x", pool="default", state="failed", live=False, retain_until=moment) for _ in range(7)
    )
    assert list(retention.prune("default", batch=3)) == [7]


def test_a_budget_that_is_used_up_begins_no_further_batch(monkeypatch):
    rows(30, ago=timedelta(minutes=1), state="succeeded", live=False)
    moments = iter([0.0, 0.0, 0.5, 1.5, 9.0])
    monkeypatch.setattr(retention.time, "monotonic", lambda: next(moments))
    assert list(retention.prune("default", batch=10, budget=1.0)) == [10, 10]
    assert Job.objects.count() == 10


def test_the_search_for_expired_rows_uses_an_index():
    with connection.cursor() as cursor:
        indexes = connection.introspection.get_constraints(cursor, Job._meta.db_table)
    assert indexes["boundedpool_retain"]["columns"] == ["retain_until"]
    if connection.vendor != "sqlite":
        return  # other planners scan a table as small as this one
    plan = Job.objects.filter(retain_until__lte=timezone.now()).order_by("retain_until").explain()
    assert "boundedpool_retain" in plan
    assert "TEMP B-TREE" not in plan
