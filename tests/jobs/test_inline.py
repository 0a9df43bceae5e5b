"""INLINE: a host project's tests run jobs on their own connection, with the same checks and errors."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import TestCase, override_settings

from django_boundedpool import Expired, InvalidArguments, JobState, JobTimedOut, PayloadTooLarge, QueueFull, job, pools
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.models import Job
from django_boundedpool.testing import reset

from . import jobs_for_tests as jobs


def doubles(number):
    return number * 2


INLINE = override_settings(BOUNDED_POOL_OPTIONS={"INLINE": True})


@INLINE
class InlineInTestCase(TestCase):
    def setUp(self):
        jobs.reset_gate()

    def test_T01_a_job_sees_the_rows_of_its_test_and_writes_on_its_connection(self):
        get_user_model().objects.create_user("of-the-test")
        assert jobs.counts_users.submit().result() == 1
        pk = jobs.makes_user.submit("made").result()
        assert get_user_model().objects.get(pk=pk).username == "made"

    def test_no_thread_is_started_but_the_timer_of_time_outs(self):
        jobs.add.submit(1)
        assert ours() <= {"boundedpool-timer"}

    def test_the_row_tells_the_same_story_as_in_a_pool(self):
        handle = jobs.add.submit(1, b=2)
        job = Job.objects.get(pk=handle.id)
        assert (job.state, job.result, job.attempt, job.live) == ("succeeded", 3, 1, False)
        assert handle.state is JobState.SUCCEEDED

    def test_a_failing_job_is_recorded_and_raises_only_from_result(self):
        handle = jobs.boom.submit("x")
        with pytest.raises(ValueError, match="x"):
            handle.result()
        assert Job.objects.get(pk=handle.id).error["type"] == "ValueError"

    def test_a_deferred_start_is_not_waited_for_and_a_deadline_is_kept(self):
        assert jobs.add.using(run_after=60, deadline=120).submit(1).result() == 1
        with pytest.raises(Expired):
            jobs.add.using(deadline=0).submit(1)
        with pytest.raises(JobTimedOut):
            jobs.obedient.using(deadline=0.1).submit().result()

    def test_a_job_of_the_cpu_lane_runs_here_as_any_other(self):
        assert jobs.add.using(wait=5).submit(1).result() == 1
        assert job(lane="cpu", name="tests.inline.computes")(doubles).submit(2).result() == 4

    def test_retries_follow_at_once(self):
        handle = jobs.flaky.submit()
        assert handle.result() == 3
        assert Job.objects.get(pk=handle.id).attempt == 3

    def test_T01_the_same_arguments_are_refused(self):
        with pytest.raises(InvalidArguments):
            jobs.echo.submit(object())
        with pytest.raises(PayloadTooLarge):
            jobs.echo.submit("x" * 70_000)
        assert Job.objects.count() == 0

    def test_T01_arguments_and_results_are_copies(self):
        value = [1]
        result = jobs.echo.submit(value).result()
        value.append(2)
        assert result == [1]

    def test_T03_inside_the_callers_transaction_the_job_waits_for_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            with transaction.atomic():
                handle = jobs.counts_users.submit()
                assert handle.state is JobState.SUBMITTED
                get_user_model().objects.create_user("later")
        assert len(callbacks) == 1
        assert handle.result() == 1

    def test_T03_without_the_capture_helper_it_does_not_run(self):
        with transaction.atomic():
            handle = jobs.add.submit(1)
        assert handle.state is JobState.SUBMITTED

    def test_T03_the_places_of_the_last_test_are_free_again(self):
        with override_settings(BOUNDED_POOLS={"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}):
            with transaction.atomic():
                jobs.add.submit(1)
                with pytest.raises(QueueFull):
                    jobs.add.submit(1)
            reset()
            assert jobs.add.submit(1).result() == 1

    def test_a_rolled_back_submit_gives_its_place_back(self):
        with override_settings(BOUNDED_POOLS={"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}):
            transaction_of_a_view()
            assert jobs.add.submit(1).result() == 1
            assert pools["default"].stats().accepted == 1

    def test_a_job_may_wait_for_a_job_that_it_submits(self):
        jobs.gate.set()
        assert jobs.waits_for_child.submit().result() is None


class Undo(Exception):
    pass


def transaction_of_a_view():
    try:
        with transaction.atomic():
            jobs.add.submit(1)
            raise Undo
    except Undo:
        pass


class ThreadedInTestCase(TestCase):
    def test_T01_threaded_mode_gives_a_hint_and_not_a_hang(self):
        with pytest.raises(ConfigurationError, match="INLINE"):
            jobs.add.submit(1)
        with transaction.atomic(), pytest.raises(ConfigurationError, match="INLINE"):
            jobs.add.submit(1)
        assert pools["default"].stats().reserved == 0
        assert not {name for name in ours() if "housekeeper" in name or "recorder" in name}


def ours():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("boundedpool")}


@pytest.mark.django_db(transaction=True)
def test_reset_joins_every_thread():
    jobs.add.using(timeout=5).submit(1).result(10)
    assert {name.split("-")[1] for name in ours()} >= {"default", "recorder", "housekeeper", "timer"}
    reset()
    assert not ours()


@pytest.mark.django_db(transaction=True)
def test_reset_says_when_a_job_will_not_end(monkeypatch):
    jobs.reset_gate()
    jobs.hold.submit()
    assert jobs.started.acquire(timeout=10)
    from django_boundedpool.engine.pool import Pool

    real = Pool.close
    monkeypatch.setattr(Pool, "close", lambda pool: real(pool, 0.1))
    try:
        with pytest.raises(RuntimeError, match="still run"):
            reset()
    finally:
        jobs.gate.set()


@pytest.mark.django_db(transaction=True)
def test_the_next_submit_after_a_reset_builds_new_pools():
    jobs.add.submit(1).result(10)
    reset()
    assert jobs.add.submit(2).result(10) == 2
    assert pools["default"].stats().accepted == 1
