"""The recorder writes every state once, in order, and tells the truth when it cannot."""

import threading
import time
import uuid
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, connection, connections

from django_boundedpool.engine.record import Snapshot
from django_boundedpool.engine.states import Reason
from django_boundedpool.models import Job
from django_boundedpool.store import recorder as recorder_module
from django_boundedpool.store import writes
from django_boundedpool.store.recorder import DirectRecorder, Recorder, StoreError

pytestmark = pytest.mark.django_db(transaction=True)

ME, OTHER = uuid.uuid4(), uuid.uuid4()


def first(job_id=None, **values):
    given = {"name": "x", "pool": "default", "state": "queued", "submitted_at": datetime.now(UTC), **values}
    return Snapshot(job_id or uuid.uuid4(), ME, 1, 1, given)


def later(snapshot, version, **values):
    return Snapshot(snapshot.id, ME, snapshot.fence, version, values)


@pytest.fixture
def settled():
    return []


@pytest.fixture
def recorder(settled):
    recorder = Recorder("default", ME, lambda job_id, exists: settled.append((job_id, exists)))
    yield recorder
    recorder.stop()


@pytest.fixture(params=["thread", "direct"])
def either(request, recorder):
    return recorder if request.param == "thread" else DirectRecorder("default", ME)


# The contract, in both forms


def test_an_insert_is_durable_when_it_returns(either):
    snapshot = first(batch="b")
    either.insert(snapshot, 5)
    job = Job.objects.get(pk=snapshot.id)
    assert (job.process, job.batch, job.version, job.live) == (ME, "b", 1, True)


def test_the_newest_version_wins_whatever_the_order(either):
    snapshot = first()
    either.insert(snapshot, 5)
    either.save(later(snapshot, 3, state="succeeded", live=False))
    either.save(later(snapshot, 2, state="running"))
    assert either.flush(5)
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.version) == ("succeeded", 3)


@pytest.mark.parametrize(
    "change",
    [{"process": OTHER}, {"fence": 2}, {"version": 9}],
    ids=["another process owns it", "its fence rose", "it is newer"],
)
def test_a_late_writer_loses(either, change):
    snapshot = first()
    either.insert(snapshot, 5)
    Job.objects.filter(pk=snapshot.id).update(state="abandoned", **change)
    either.save(later(snapshot, 2, state="succeeded"))
    assert either.flush(5)
    assert Job.objects.get(pk=snapshot.id).state == "abandoned"


def test_a_deleted_row_is_never_made_again(either):
    snapshot = first()
    either.insert(snapshot, 5)
    Job.objects.all().delete()
    either.save(later(snapshot, 2, state="succeeded"))
    assert either.flush(5)
    assert Job.objects.count() == 0


def test_the_columns_of_a_cancel_request_are_left_alone(either):
    snapshot = first()
    either.insert(snapshot, 5)
    assert writes.request_cancel(snapshot.id, Reason.USER, "ann", "default")
    assert not writes.request_cancel(snapshot.id, Reason.OPERATOR, "bob", "default")
    either.save(later(snapshot, 2, state="running"))
    assert either.flush(5)
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.cancel_requested_by, job.cancel_reason) == ("running", "ann", "user")


def test_the_same_row_twice_is_refused(either):
    snapshot = first()
    either.insert(snapshot, 5)
    if isinstance(either, DirectRecorder):
        with pytest.raises(StoreError):
            either.insert(snapshot, 5)
    else:
        either.insert(snapshot, 5)  # as after a commit whose answer was lost: the row is there, and that is what counts
    assert Job.objects.count() == 1


# The thread


def test_many_submitters_share_commits(recorder, monkeypatch):
    flushes = []
    real = writes.insert

    def insert(rows, alias):
        rows = list(rows)
        flushes.append(len(rows))
        if len(flushes) == 1:
            begun.set()
            assert full.wait(10)  # while the first commit is under way, the others gather
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    begun, full = threading.Event(), threading.Event()
    threads = [threading.Thread(target=lambda: recorder.insert(first(), 20)) for _ in range(20)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 10
    while recorder.pending < 20:
        assert time.monotonic() < deadline
    full.set()
    for thread in threads:
        thread.join(20)
    assert Job.objects.count() == 20
    assert flushes == [1, 19]


def test_a_row_that_the_database_refuses_fails_alone(recorder):
    good, bad, other = first(), first(), first()
    for snapshot in (good, bad, other):
        recorder.insert(snapshot, 5)
    recorder.save(later(good, 2, state="succeeded", live=False))
    recorder.save(later(bad, 2, state="succeeded", live=False, result=object()))
    recorder.save(later(other, 2, state="failed", live=False))
    assert recorder.flush(10)
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {good.id: "succeeded", bad.id: "failed", other.id: "failed"}


def test_a_row_that_can_be_written_in_no_way_holds_up_nobody(recorder):
    bad, other = first(), first()
    for snapshot in (bad, other):
        recorder.insert(snapshot, 5)
    recorder.save(later(bad, 2, state="succeeded", live=False, attempt=2**70))
    recorder.save(later(other, 2, state="failed", live=False))
    assert recorder.flush(10)
    assert Job.objects.get(pk=other.id).state == "failed"


def test_an_insert_that_the_database_refuses_fails_alone_and_says_so(recorder):
    gate = threading.Event()
    outcomes = {}

    def submit(name, snapshot):
        gate.wait(10)
        try:
            recorder.insert(snapshot, 10)
            outcomes[name] = "stored"
        except StoreError as error:
            outcomes[name] = f"refused, unknown={error.unknown}"

    jobs = {"good": first(), "bad": first(attempt=2**70), "other": first()}
    threads = [threading.Thread(target=submit, args=item) for item in jobs.items()]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(20)
    assert outcomes == {"good": "stored", "other": "stored", "bad": "refused, unknown=False"}


class Away:
    """The database refuses every write until `back` is called."""

    def __init__(self, monkeypatch):
        self.tries = 0
        self.away = True
        real = writes.insert

        def insert(rows, alias):
            self.tries += 1
            if self.away:
                raise OperationalError("the database is away")
            real(rows, alias)

        monkeypatch.setattr(writes, "insert", insert)

    def back(self):
        self.away = False


def test_while_the_database_is_away_a_submit_is_refused_in_time_and_nothing_is_stored_later(recorder, monkeypatch):
    away = Away(monkeypatch)
    began = time.monotonic()
    with pytest.raises(StoreError):
        recorder.insert(first(), 0.5)
    assert time.monotonic() - began < 5
    away.back()
    snapshot = first()
    recorder.insert(snapshot, 10)
    assert list(Job.objects.values_list("pk", flat=True)) == [snapshot.id]


def test_states_survive_an_outage_of_the_database(recorder, monkeypatch):
    snapshot = first()
    recorder.insert(snapshot, 5)
    real, fails = writes.update, iter([True, True, True])

    def update(row, alias):
        if next(fails, False):
            raise OperationalError("the database is away")
        return real(row, alias)

    monkeypatch.setattr(writes, "update", update)
    recorder.save(later(snapshot, 2, state="succeeded", live=False))
    assert recorder.flush(20)
    assert Job.objects.get(pk=snapshot.id).state == "succeeded"


def test_a_commit_that_comes_after_its_submit_was_refused_is_cancelled(recorder, monkeypatch):
    real, slow = writes.insert, threading.Event()

    def insert(rows, alias):
        assert slow.wait(20)
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    snapshot = first()
    with pytest.raises(StoreError) as caught:
        recorder.insert(snapshot, 0.3)
    assert caught.value.unknown
    slow.set()
    recorder.stop()
    job = Job.objects.get(pk=snapshot.id)
    assert (job.state, job.reason, job.live) == ("cancelled", "disconnect", False)


def test_a_commit_whose_answer_was_lost_counts(recorder, monkeypatch):
    real, first_time = writes.insert, iter([True])

    def insert(rows, alias):
        rows = list(rows)
        if next(first_time, False):
            other = threading.Thread(target=lambda: (real(rows, alias), connections.close_all()))
            other.start()
            other.join()
            raise OperationalError("the connection broke")
        real(rows, alias)

    monkeypatch.setattr(writes, "insert", insert)
    if connection.vendor == "sqlite":
        # The write from another thread needs the lock that this transaction would hold.
        monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    snapshot = first()
    recorder.insert(snapshot, 10)
    assert Job.objects.filter(pk=snapshot.id).count() == 1


def test_a_job_whose_transaction_ended_without_a_word_is_settled_by_its_row(recorder, settled):
    there, gone = first(), uuid.uuid4()
    recorder.insert(there, 5)
    recorder.settle(there.id)
    recorder.settle(gone)
    recorder.stop()
    assert settled == [(there.id, True), (gone, False)]


def test_a_stopped_recorder_refuses(recorder):
    recorder.insert(first(), 5)
    recorder.stop()
    with pytest.raises(StoreError, match="stopped"):
        recorder.insert(first(), 5)


def test_a_full_map_refuses_before_it_grows(recorder, monkeypatch):
    monkeypatch.setattr(recorder_module, "MAX_PENDING", 0)
    with pytest.raises(StoreError, match="waiting to be written"):
        recorder.insert(first(), 5)


def test_a_system_without_threads_is_a_store_error(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(StoreError, match="could not be started"):
        Recorder("default", ME, print).insert(first(), 1)


def test_updates_are_guarded_in_one_statement(django_assert_num_queries):
    snapshot = first()
    DirectRecorder("default", ME).insert(snapshot, 5)
    with django_assert_num_queries(1):
        assert writes.update(later(snapshot, 2, state="running"), "default")
