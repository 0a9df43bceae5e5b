"""From submit to the stored end, with real threads and a real database."""

import threading

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction

from django_boundedpool import (
    InvalidArguments,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobState,
    PayloadTooLarge,
    QueueFull,
    StoreUnavailable,
    pools,
)
from django_boundedpool.engine.errors import ConfigurationError, WaitingWouldDeadlock
from django_boundedpool.models import Job
from django_boundedpool.testing import join

from . import jobs_for_tests as jobs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _gate(settings):  # asked for here, so that the gate is open when changed settings are taken back
    jobs.reset_gate()
    yield
    jobs.gate.set()


def row(handle) -> Job:
    join()
    return Job.objects.get(pk=handle.id)


def test_an_accepted_job_runs_and_its_row_tells_the_story(user):
    handle = jobs.add.using(owner=user, batch="b1", correlation_id="c1", priority=7).submit(1, b=2)
    assert handle.result(10) == 3
    job = row(handle)
    assert (job.state, job.result, job.live, job.attempt) == ("succeeded", 3, False, 1)
    assert (job.owner_key, job.batch, job.correlation_id, job.priority) == (str(user.pk), "b1", "c1", 7)
    assert (job.args, job.kwargs, job.args_withheld) == ([1], {"b": 2}, False)
    assert job.submitted_at <= job.started_at <= job.finished_at < job.retain_until
    assert len(job.attempts) == 1


def test_the_row_is_committed_when_submit_returns():
    handle = jobs.hold.submit()
    seen = []

    def look():
        seen.append(Job.objects.get(pk=handle.id).state)
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen[0] in ("queued", "running")


def test_arguments_are_copied_at_submit(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    jobs.hold.submit()
    value = {"list": [1]}
    handle = jobs.echo.submit(value)
    value["list"].append(2)
    jobs.gate.set()
    assert handle.result(10) == {"list": [1]}


def test_every_waiter_gets_a_copy_of_the_result():
    handle = jobs.echo.submit([1])
    handle.result(10).append(2)
    assert handle.result(10) == [1]


def test_a_failed_job_raises_its_own_error_here_and_JobFailed_elsewhere():
    handle = jobs.boom.submit("text")
    with pytest.raises(ValueError, match="text"):
        handle.result(10)
    row(handle)
    with pytest.raises(JobFailed) as caught:
        JobHandle.get(handle.id).result(10)
    assert (caught.value.type, caught.value.message, caught.value.attempts) == ("ValueError", "text", 1)


def test_a_flaky_job_succeeds_at_its_third_attempt():
    handle = jobs.flaky.submit()
    assert handle.result(10) == 3
    job = row(handle)
    assert (job.attempt, job.failures, job.max_attempts) == (3, 2, 3)
    assert job.first_error["type"] == "ConnectionError"


def test_a_running_job_is_cancelled_at_its_next_check(user):
    handle = jobs.obedient.using(owner=user).submit()
    assert jobs.started.acquire(timeout=10)
    assert handle.cancel(by=user) == "requested"
    with pytest.raises(JobCancelled):
        handle.result(10)
    job = row(handle)
    assert (job.state, job.reason, job.cancel_requested_by) == ("cancelled", "user", str(user.pk))
    assert handle.cancel() == "finished"


def test_X01_a_job_that_ignores_its_cancellation_is_running_until_it_returns(user, other_user):
    handle = jobs.hold.using(owner=user).submit()
    assert jobs.started.acquire(timeout=10)
    assert handle.cancel(by=other_user) == "requested"
    job = Job.objects.get(pk=handle.id)
    assert job.cancel_requested
    assert (job.cancel_reason, pools["default"].stats().running) == ("operator", 1)
    jobs.gate.set()
    assert handle.result(10) is None
    assert row(handle).state == "succeeded"


def test_a_queued_job_is_cancelled_at_once_and_its_row_says_so(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    handle = jobs.add.submit(1)
    assert JobHandle.get(handle.id).cancel() == "cancelled"
    jobs.gate.set()
    assert row(handle).state == "cancelled"
    assert row(handle).attempt == 0


def test_a_request_that_the_housekeeper_obeys_first_is_answered_with_what_came_of_it(settings, monkeypatch):
    from django_boundedpool.engine.states import Reason
    from django_boundedpool.store import writes

    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1}}
    jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    handle = jobs.add.submit(1)
    real = writes.request_cancel

    def request_cancel(job_id, reason, by, alias):
        asked = real(job_id, reason, by, alias)
        assert pools["default"].cancel(job_id, Reason.USER) == "cancelled"  # as the housekeeper does
        return asked

    monkeypatch.setattr(writes, "request_cancel", request_cancel)
    assert handle.cancel() == "cancelled"
    jobs.gate.set()


def test_a_full_pool_refuses_before_it_reads_the_arguments(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 1}}
    jobs.hold.submit()
    jobs.hold.submit()
    with pytest.raises(QueueFull):
        jobs.echo.submit(object())
    assert jobs.echo.try_submit(1) is None
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [((), {}, "missing"), ((1, 2, 3), {}, "too many"), ((1,), {"c": 1}, "unexpected"), ((object(),), {}, r"args\[0\]"),
     ((1,), {"b": {1}}, r"kwargs\['b'\]"), (("a\0",), {}, "NUL")],
)  # fmt: skip
def test_S04_arguments_that_cannot_be_taken_leave_no_place_and_no_row(args, kwargs, why):
    with pytest.raises(InvalidArguments, match=why) as caught:
        jobs.add.submit(*args, **kwargs)
    assert isinstance(caught.value, TypeError)
    assert caught.value.code == "invalid_arguments"
    with pytest.raises(InvalidArguments):
        jobs.add.try_submit(*args, **kwargs)
    assert Job.objects.count() == 0
    assert pools["default"].stats().queued == 0


def test_S04_requests_models_and_querysets_are_refused_with_a_remedy(user, rf):
    from django.utils.safestring import mark_safe
    from django.utils.translation import gettext_lazy

    with pytest.raises(InvalidArguments, match="primary key"):
        jobs.echo.submit(user)
    for value in (rf.get("/"), type(user).objects.all(), mark_safe("x"), gettext_lazy("x"), (i for i in "ab")):
        with pytest.raises(InvalidArguments, match=r"args\[0\]"):
            jobs.echo.submit(value)


def test_S07_the_limit_of_arguments_counts_utf8_bytes(settings):
    settings.BOUNDED_POOLS = {"default": {"MAX_PAYLOAD_BYTES": 100}}
    fits = "é" * ((100 - len('[[""],{}]')) // 2)
    assert jobs.echo.submit(fits).result(10) == fits
    with pytest.raises(PayloadTooLarge, match="MAX_PAYLOAD_BYTES"):
        jobs.echo.submit(fits + "é")
    assert Job.objects.count() == 1
    assert pools["default"].stats().queue_bytes == 0


def test_S07_a_result_of_50_megabytes_ends_in_a_row_below_the_limit():
    handle = jobs.big.submit()
    with pytest.raises(JobFailed, match="MAX_RESULT_BYTES"):
        handle.result(60)
    job = row(handle)
    assert (job.state, job.reason, job.result, job.attempt) == ("failed", "bad_result", None, 1)


def test_A03_secrets_are_stored_nowhere(user):
    handle = jobs.login.using(owner=user).submit("ann", "hush-1", api_key="hush-2")
    assert handle.result(10) == "in"
    job = row(handle)
    assert (job.args, job.kwargs, job.args_withheld) == (["ann", "[withheld]"], {"api_key": "[withheld]"}, True)
    assert "hush" not in str(Job.objects.values().get())


def test_a_sync_submit_on_a_running_loop_is_refused():
    async def view():
        jobs.add.submit(1)

    with pytest.raises(SynchronousOnlyOperation, match="event loop"):
        async_to_sync(view)()


def test_a_job_for_an_unknown_pool_names_the_known_ones():
    with pytest.raises(ConfigurationError, match="'default'"):
        jobs.add.using(pool="reports").submit(1)


def test_V06_settings_that_cannot_work_are_an_error_at_the_first_submit(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 0, "QUEU_SIZE": 5}}
    with pytest.raises(ConfigurationError) as caught:
        jobs.add.submit(1)
    assert "WORKERS" in str(caught.value)
    assert "did you mean 'QUEUE_SIZE'" in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_O06_waiting_for_a_child_in_ones_own_pool_is_an_error_and_never_a_hang(settings, workers):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": workers}}
    parents = [jobs.waits_for_child.submit() for _ in range(workers)]
    for parent in parents:
        with pytest.raises(WaitingWouldDeadlock, match="own pool"):
            parent.result(5)
    jobs.gate.set()
    join()
    assert Job.objects.filter(name__endswith="hold", state="succeeded").count() == workers


def test_O06_waiting_for_oneself_is_an_error():
    with pytest.raises(WaitingWouldDeadlock):
        jobs.waits_for_itself.submit().result(5)


def test_O06_submitting_without_waiting_works_from_inside_a_job():
    child = jobs.submits_child.submit().result(5)
    assert JobHandle.get(child).result(10) == 3


def test_O06_a_submit_from_a_worker_to_a_full_pool_is_refused_at_once(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    with pytest.raises(QueueFull):
        jobs.submits_child.submit().result(5)


def test_a_job_of_another_process_is_followed_through_its_row():
    job = Job.objects.create(name="x", pool="default", state="running")
    handle = JobHandle.get(job.pk)
    with pytest.raises(TimeoutError):
        handle.result(0.1)
    assert handle.cancel() == "requested"
    Job.objects.filter(pk=job.pk).update(state="succeeded", live=False, result={"a": 1})
    assert handle.result(5) == {"a": 1}
    assert handle.refresh().state is JobState.SUCCEEDED


def test_a_state_from_a_newer_version_reads_as_not_over():
    job = Job.objects.create(name="x", pool="default", state="suspended")
    handle = JobHandle.get(job.pk)
    assert not handle.state.terminal
    assert not job.terminal


@pytest.mark.parametrize("job_id", ["nonsense", "", "01900000-0000-7000-8000-000000000000"])
def test_an_unknown_job_is_not_found(job_id):
    with pytest.raises(JobNotFound):
        JobHandle.get(job_id)


# Transactions


class Undo(Exception):
    pass


def test_C03_a_job_submitted_inside_atomic_starts_after_the_commit_and_sees_its_data():
    with transaction.atomic():
        from django.contrib.auth import get_user_model

        get_user_model().objects.create_user("fresh")
        handle = jobs.counts_users.submit()
        assert handle.state is JobState.SUBMITTED
        assert pools["default"].stats().reserved == 1
        with pytest.raises(WaitingWouldDeadlock, match="commits"):
            handle.result(1)
    assert handle.result(10) == 1


def test_C03_a_rollback_leaves_no_job_and_gives_the_place_back():
    handle = None
    try:
        with transaction.atomic():
            handle = jobs.hold.submit()
            raise Undo
    except Undo:
        pass
    wait_until(lambda: pools["default"].stats().reserved == 0)
    assert Job.objects.count() == 0
    assert pools["default"].stats().accepted == 0
    with pytest.raises(JobNotFound):
        handle.result(1)


def test_C03_a_rolled_back_savepoint_takes_its_job_along_and_leaves_the_others():
    with transaction.atomic():
        kept = jobs.add.submit(1)
        try:
            with transaction.atomic():
                jobs.add.submit(2)
                raise Undo
        except Undo:
            pass
    assert kept.result(10) == 1
    wait_until(lambda: pools["default"].stats().reserved == 0)
    assert Job.objects.count() == 1


def test_C03_an_earlier_commit_hook_that_raises_loses_no_job():
    def broken():
        raise RuntimeError("hook")

    handle = None
    try:
        with transaction.atomic():
            transaction.on_commit(broken)
            handle = jobs.add.submit(5)
    except RuntimeError as error:
        kept = error  # its traceback keeps the dropped hook alive, as an error report would
        wait_until(lambda: handle.state is not JobState.SUBMITTED)
        assert str(kept) == "hook"
    assert handle.result(10) == 5


def test_a_job_submitted_inside_atomic_holds_a_place(settings):
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    with transaction.atomic():
        jobs.add.submit(1)
        with pytest.raises(QueueFull):
            jobs.add.submit(2)


def test_a_submit_without_any_commit_to_wait_for_is_refused():
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError, match="Autocommit is off"):
            jobs.add.submit(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert pools["default"].stats().reserved == 0


def test_a_submit_outside_a_transaction_uses_no_connection_of_the_caller(django_assert_num_queries):
    with django_assert_num_queries(0):
        handle = jobs.add.submit(1)
    assert handle.result(10) == 1


def test_a_submit_torn_by_a_signal_after_its_commit_leaves_no_live_row(monkeypatch):
    from django_boundedpool.engine.pool import Pool

    def torn(pool, record):
        raise SystemExit(143)

    monkeypatch.setattr(Pool, "accept", torn)
    with pytest.raises(SystemExit):
        jobs.add.submit(1)
    wait_until(lambda: not Job.objects.filter(live=True).exists())
    job = Job.objects.get()
    assert (job.state, job.reason, job.attempt) == ("cancelled", "disconnect", 0)
    assert pools["default"].stats().reserved == 0


def test_a_missing_table_says_run_migrate(settings, caplog):
    from django.db import connection as present

    with present.schema_editor() as editor:
        editor.alter_db_table(Job, "boundedpool_job", "boundedpool_hidden")
    try:
        with pytest.raises(StoreUnavailable, match=r"run manage\.py migrate"):
            jobs.add.submit(1)
        with transaction.atomic(), pytest.raises(StoreUnavailable, match=r"run manage\.py migrate"):
            jobs.add.submit(1)
        assert pools["default"].stats().reserved == 0
        wait_until(lambda: ": run manage.py migrate); trying again" in caplog.text)
    finally:
        with present.schema_editor() as editor:
            editor.alter_db_table(Job, "boundedpool_hidden", "boundedpool_job")


def wait_until(condition, timeout=10.0):
    import time

    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


@pytest.mark.parametrize("option", ["batch", "correlation_id"])
def test_a_text_with_a_line_break_is_refused_since_it_goes_into_headers_and_log_lines(option):
    with pytest.raises(ConfigurationError, match="printable"):
        jobs.add.using(**{option: "a\r\nX-Evil: 1"})


def test_a_job_may_have_an_argument_of_any_name(user):
    assert jobs.takes_self.submit(self=3).result(10) == 3
