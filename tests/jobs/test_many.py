"""submit_many: one commit, one outcome for each call."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_boundedpool import (
    Draining,
    Expired,
    InvalidArguments,
    JobHandle,
    JobNotFound,
    JobState,
    PayloadTooLarge,
    QueueFull,
    Rejected,
    StoreUnavailable,
    pools,
    submit_many,
)
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.models import Job
from django_boundedpool.store import writes
from django_boundedpool.testing import join

from . import async_jobs
from . import jobs_for_tests as jobs
from .loops import until

pytestmark = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    pass


@pytest.fixture(autouse=True)
def _clean(settings: Any) -> Iterator[None]:
    jobs.reset_gate()
    yield
    jobs.gate.set()


def kinds(outcomes: list[JobHandle | Rejected]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def values(outcomes: list[JobHandle | Rejected]) -> list[Any]:
    return [outcome.result(10) if isinstance(outcome, JobHandle) else outcome.code for outcome in outcomes]


def test_many_jobs_are_committed_together(monkeypatch: pytest.MonkeyPatch, user: Any) -> None:
    batches, real = [], writes.insert

    def insert(rows: Any, alias: str) -> None:
        batches.append(len(rows))
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    mine = jobs.add.using(owner=user, batch="b")
    outcomes = submit_many([(mine, (n,), {"b": 1}) for n in range(50)] + [(async_jobs.add_async, [1, 1])])
    assert values(outcomes) == [n + 1 for n in range(50)] + [2]
    assert batches == [51]
    assert Job.objects.filter(batch="b", owner_key=str(user.pk)).count() == 50


def test_nothing_is_submitted_by_no_calls() -> None:
    assert submit_many([]) == []
    assert submit_many(iter(())) == []


def test_one_that_is_refused_keeps_none_of_the_others_out(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 3, "MAX_PAYLOAD_BYTES": 100}, "shut": {}}
    pools["shut"].drain()
    outcomes = submit_many(
        [
            (jobs.echo, ("first",)),
            (jobs.echo, (object(),)),
            (jobs.echo, ()),
            (jobs.echo, ("x" * 200,)),
            (jobs.echo.using(deadline=0), (1,)),
            (jobs.echo.using(pool="shut"), (1,)),
            *[(jobs.echo, (n,)) for n in range(3)],
            (jobs.echo, ("one too many",)),
        ]
    )
    assert kinds(outcomes) == [
        JobHandle, InvalidArguments, InvalidArguments, PayloadTooLarge, Expired, Draining,
        JobHandle, JobHandle, JobHandle, QueueFull,
    ]  # fmt: skip
    assert [value for value in values(outcomes) if value in ("first", 0, 1, 2)] == ["first", 0, 1, 2]
    join()
    assert Job.objects.count() == 4
    assert pools["default"].stats().reserved == 0


def test_a_row_that_the_database_refuses_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = writes.insert

    def insert(rows: Any, alias: str) -> None:
        if any(row.values["args"] == [13] for row in rows):
            raise IntegrityError("unlucky")
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    outcomes = submit_many([(jobs.echo, (n,)) for n in (12, 13, 14)])
    assert kinds(outcomes) == [JobHandle, StoreUnavailable, JobHandle]
    with transaction.atomic():
        outcomes += submit_many([(jobs.echo, (n,)) for n in (12, 13, 14)])
    assert kinds(outcomes[3:]) == [JobHandle, StoreUnavailable, JobHandle]
    assert values(outcomes) == [12, "store_unavailable", 14] * 2
    assert Job.objects.count() == 4
    assert pools["default"].stats().reserved == 0


def test_inside_a_transaction_they_start_at_its_commit_and_cost_one_insert() -> None:
    with transaction.atomic():
        with CaptureQueriesContext(
            connection,
        ) as captured:
            outcomes = submit_many([(jobs.add, (n,)) for n in range(20)])
        assert len([query for query in captured if "INSERT" in query["sql"]]) == 1
        assert {handle.state for handle in outcomes if isinstance(handle, JobHandle)} == {JobState.SUBMITTED}
    assert values(outcomes) == list(range(20))


def test_a_rollback_leaves_none_and_gives_every_place_back(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"QUEUE_SIZE": 20}, "fleeting": {"PERSIST": "memory", "QUEUE_SIZE": 20}}
    outcomes: list[Any] = []
    try:
        with transaction.atomic():
            for pool in ("default", "fleeting"):
                outcomes += submit_many([(jobs.add.using(pool=pool), (n,)) for n in range(20)])
            assert [pools[name].stats().reserved for name in pools] == [20, 20]
            raise Undo
    except Undo:
        pass
    for name in pools:
        until(lambda name=name: pools[name].stats().reserved == 0)  # type: ignore[misc]
        assert pools[name].stats().accepted == 0
    assert Job.objects.count() == 0
    for handle in outcomes[::7]:
        with pytest.raises(JobNotFound):
            handle.result(1)
        with pytest.raises(JobNotFound):
            handle.cancel()


@pytest.mark.parametrize("atomic", [False, True])
def test_pools_with_and_without_rows_together(settings: Any, atomic: bool) -> None:
    settings.BOUNDED_POOLS = {"default": {}, "other": {}, "fleeting": {"PERSIST": "memory"}}
    calls = [(jobs.add.using(pool=pool), (n,)) for n, pool in enumerate(["default", "fleeting", "other"] * 3)]
    if atomic:
        with transaction.atomic():
            outcomes = submit_many(calls)
            time.sleep(0.05)
            assert {handle.state for handle in outcomes if isinstance(handle, JobHandle)} == {JobState.SUBMITTED}
    else:
        outcomes = submit_many(calls)
    assert values(outcomes) == list(range(9))
    join()
    assert sorted(Job.objects.values_list("pool", flat=True)) == ["default"] * 3 + ["other"] * 3


@pytest.mark.parametrize(
    "call", [jobs.add, (jobs.add,), (jobs.add, 1), (jobs.add, "ab"), (jobs.add, (1,), [2]), ("add", (1,)), None]
)
def test_what_is_no_call_is_named_and_nothing_is_submitted(call: Any) -> None:
    with pytest.raises(TypeError, match=r"calls\[1\] is .*give \(job, args\) or \(job, args, kwargs\)"):
        submit_many([(jobs.add, (1,)), call])
    assert Job.objects.count() == 0


def test_a_pool_that_is_not_there_submits_nothing(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {}, "fleeting": {"PERSIST": "memory"}}
    with pytest.raises(ConfigurationError, match="no pool 'nowhere'"):
        submit_many([(jobs.add, (1,)), (jobs.add.using(pool="fleeting"), (1,)), (jobs.add.using(pool="nowhere"), (1,))])
    assert [pools[name].stats().reserved for name in pools] == [0, 0]
    assert [pools[name].stats().accepted for name in pools] == [0, 0]


def test_autocommit_that_is_off_submits_nothing_not_even_without_rows(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {}, "fleeting": {"PERSIST": "memory"}}
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError, match="Autocommit is off"):
            submit_many([(jobs.add.using(pool="fleeting"), (1,)), (jobs.add, (1,))])
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert [pools[name].stats().accepted for name in pools] == [0, 0]
    assert [pools[name].stats().reserved for name in pools] == [0, 0]


@override_settings(BOUNDED_POOL_OPTIONS={"INLINE": True}, BOUNDED_POOLS={"default": {"WORKERS": 1, "QUEUE_SIZE": 2}})
class InlineMany(TestCase):
    def test_T01_they_run_one_after_the_other_on_the_tests_connection(self):
        outcomes = submit_many([(jobs.counts_users, ()), (jobs.makes_user, ("x",)), (jobs.counts_users, ())])
        assert [handle.result() for handle in outcomes[::2] if isinstance(handle, JobHandle)] == [0, 1]
        assert kinds(submit_many([(jobs.add, (n,)) for n in range(4)]))[3] is QueueFull
