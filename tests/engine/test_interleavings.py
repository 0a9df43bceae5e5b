"""Every order in which two threads can take the pool's lock, for the pairs of calls that are dangerous together.

Nothing is left to chance: the lock of the pool hands control back before it is taken, and all orders are tried, depth
first. What a thread does between two locked sections it does alone, so that a step is: from one wish for the lock to
the next one.

Tried by hand, each makes a test here fail: removing the lock of `cancel_key` or of `reserve`, the state check of
`attempt_returned`, of `_start_deadline_passed`, of `cancel_key`, of `_retry_due` or of `_due`, the second look at
`draining` under the lock, the look at `_paused`, `waiter.served` in `leave`.
"""

import itertools
import logging
import threading

import pytest

from django_boundedpool.engine.errors import JobInterrupted, Rejected
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.queue import JobQueue
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason

from .builders import Bench

pytestmark = pytest.mark.fast


class Stepper:
    """Runs calls in threads of their own, of which one goes on at a time, as a list of choices says."""

    def __init__(self, choices):
        self.choices = choices  # which of the threads that can go on does, step by step; then always the first
        self.widths = []  # how many could, step by step
        self.turns = {}
        self.wishes = threading.Semaphore(0)
        self.owner = None
        self.errors = []

    def run(self, *calls):
        threads = []
        for call in calls:
            thread = threading.Thread(target=self._call, args=(call,), daemon=True)
            self.turns[thread] = threading.Semaphore(0)
            threads.append(thread)
        for thread in threads:
            thread.start()
        alive = list(threads)
        while alive:
            step = len(self.widths)
            self.widths.append(len(alive))
            chosen = alive[self.choices[step] if step < len(self.choices) else 0]
            self.turns[chosen].release()
            assert self.wishes.acquire(timeout=10), "a step did not end"
            if self.turns[chosen] is None:
                alive.remove(chosen)
        for thread in threads:
            thread.join(10)
        if self.errors:
            raise self.errors[0]

    def _call(self, call):
        me = threading.current_thread()
        self.turns[me].acquire()
        try:
            call()
        except Rejected:
            """An answer like any other."""
        except BaseException as error:
            self.errors.append(error)
        self.turns[me] = None
        self.wishes.release()

    def wish(self):
        """Let others go on before the calling thread takes the lock."""
        if (turn := self.turns.get(threading.current_thread())) is not None:
            self.wishes.release()
            turn.acquire()


class SteppedLock:
    """The pool's lock, which asks a stepper before it is taken. Whoever has it keeps it until its step is over."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stepper = None
        self.holder = None

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exc):
        self.release()

    def acquire(self, blocking=True, timeout=-1):
        if self.stepper is not None:
            self.stepper.wish()
        assert self.lock.acquire(timeout=10), "the lock is held while another thread goes on"
        self.holder = threading.current_thread()
        return True

    def release(self):
        self.holder = None
        self.lock.release()

    def check(self):
        assert self.holder is threading.current_thread(), "changed without the lock"

    def locked(self):
        return self.lock.locked()


def guarded(pool, lock):
    """Have what the lock protects say so when it is changed without it: no order of steps would show that."""

    def guard(kind, *methods):
        def method(name):
            def call(*args, **kwargs):
                lock.check()
                return getattr(kind, name)(*args, **kwargs)

            return call

        return type("Guarded", (kind,), {name: method(name) for name in methods})

    changes = guard(dict, "__setitem__", "__delitem__", "pop", "popitem", "clear", "update", "setdefault")
    for name in ("_live", "_reserved", "_delayed", "_running", "_ghosts", "_line"):
        setattr(pool, name, changes())
    queue = guard(JobQueue, "push", "pop", "remove")
    pool._queue, pool._deferred = queue(pool.config.ageing), queue(pool.config.ageing)


def all_orders(scene, limit=4000):
    """Run `scene(stepper)` once for every order; return how many there were."""
    choices, count = [], 0
    while True:
        stepper = Stepper(choices)
        scene(stepper)
        count += 1
        assert count < limit, "too many orders"
        taken = [*choices, *[0] * (len(stepper.widths) - len(choices))]
        while taken and taken[-1] + 1 >= stepper.widths[len(taken) - 1]:
            taken.pop()
        if not taken:
            return count
        taken[-1] += 1
        choices = taken


def check(bench, records):
    """What must hold after every order."""
    stats = bench.pool.stats()
    live = [record for record in records if not record.state.terminal and record.key in bench.pool._live]
    assert len(bench.pool._live) == len(live)
    assert stats.queue_bytes == sum(record.payload_bytes for record in live)
    assert stats.accepted == stats.queued + stats.running + sum(stats.finished.values())
    assert len(live) <= bench.pool.capacity or bench.shrunk
    assert dict(bench.pool._owners) == {}
    for record in records:
        kinds = [event.kind for event in bench.events if event.key == record.key]
        ended = record.state.terminal and record.state is not JobState.REJECTED
        assert kinds.count(Kind.JOB_FINISHED) == ended
        assert kinds.count(Kind.JOB_ACCEPTED) <= 1
        assert kinds.count(Kind.JOB_STARTED) == record.attempt
        assert kinds.count(Kind.CANCEL_REQUESTED) <= 1
        assert (record.key in bench.pool._live) == (record in live)
        if ended:
            assert bench.last(record)["state"] == record.state.value
            assert record.payload is None
            assert record.timer is None
        homes = [
            bench.pool._reserved,
            bench.pool._running,
            bench.pool._delayed,
            bench.pool._queue,
            bench.pool._deferred,
        ]
        assert sum(record in list(home) for home in homes) == (record in live)


class Scene:
    """A pool whose lock is stepped, jobs in it, and what two threads do to them."""

    def __init__(self, **config):
        self.config = {"workers": 1, "queue_size": 1, **config}
        self.outcomes = set()

    def __call__(self, stepper):
        bench = self.bench = Bench(**self.config)
        bench.shrunk = False
        lock = bench.pool._lock = SteppedLock()
        guarded(bench.pool, lock)
        self.records = []
        calls = self.arrange()
        lock.stepper = stepper
        stepper.run(*calls)
        lock.stepper = None
        self.settle()
        check(bench, self.records)
        self.outcomes.add(self.judge())

    def job(self, **spec):
        record = self.bench.record(**spec)
        self.records.append(record)
        return record

    def queued(self, **spec):
        record = self.job(**spec)
        self.bench.pool.reserve(record)
        self.bench.pool.accept(record)
        return record

    def running(self, **spec):
        record = self.queued(**spec)
        assert self.bench.take() is record
        return record

    def submit(self, record):
        """In two steps, as with a row."""

        def call():
            self.bench.pool.reserve(record)
            self.bench.pool.accept(record)

        return call

    def work(self):
        """What a worker does: take the next job, run it, report."""
        record = self.bench.pool.take(threading.current_thread())
        if record is not None:
            self.bench.pool.attempt_returned(record, None)

    def arrange(self):
        raise NotImplementedError

    def settle(self):
        """What comes after."""

    def judge(self):
        return tuple((record.state.value, record.reason.value, record.attempt) for record in self.records)


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_unseen(caplog):
    """The timer logs what its callbacks raise."""
    yield
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []


def explore(kind, **config):
    """Try every order of a scene; return the set of outcomes."""
    scene = kind(**config)
    assert all_orders(scene) > 1
    return scene.outcomes


def test_the_stepper_tries_every_order_of_two_threads_with_two_steps_each():
    """Each thread has three parts, of which the lock parts the last two: 20 orders, 6 of the locked parts."""
    seen, lock = [], SteppedLock()

    def scene(stepper):
        lock.stepper, trace = stepper, []

        def call(name):
            for number in (1, 2):
                with lock:
                    trace.append((name, number))

        stepper.run(lambda: call("a"), lambda: call("b"))
        seen.append(tuple(trace))

    assert all_orders(scene) == len(list(itertools.combinations(range(6), 3)))
    assert len(set(seen)) == len(list(itertools.combinations(range(4), 2)))


def test_a_check_outside_the_lock_is_found_out():
    """The tests here can fail: two threads that look before they take the lock both find the last place free."""

    def scene(stepper):
        lock, taken, places = SteppedLock(), [], 1
        lock.stepper = stepper

        def call():
            if len(taken) < places:
                with lock:
                    taken.append(1)

        stepper.run(call, call)
        most.append(len(taken))

    most = []
    all_orders(scene)
    assert max(most) == 2


class CancelAndStart(Scene):
    def arrange(self):
        record = self.queued()
        return self.work, lambda: self.bench.pool.cancel(record.id, Reason.USER)


def test_cancel_against_start():
    assert explore(CancelAndStart) == {
        (("cancelled", "user", 0),),  # cancelled first
        (("succeeded", "", 1),),  # asked to stop while it ran, or too late
    }


class CancelAndRaise(Scene):
    def arrange(self):
        record = self.running()

        def end():
            # Code that looks at its token, and stops only if it was asked to.
            reason = record.token.reason
            if reason is None:
                self.bench.pool.attempt_returned(record, 1)
            else:
                self.bench.pool.attempt_raised(record, JobInterrupted(reason))

        return end, lambda: self.bench.pool.cancel(record.id, Reason.USER)


def test_cancel_against_the_end_of_a_run():
    assert explore(CancelAndRaise) == {(("succeeded", "", 1),), (("cancelled", "user", 1),)}


class CancelAndRetry(Scene):
    def arrange(self):
        record = self.running(retry=Retry(base=1, cap=1))
        return (
            lambda: self.bench.pool.attempt_raised(record, ValueError("no")),
            lambda: self.bench.pool.cancel(record.id, Reason.USER),
        )

    def settle(self):
        self.bench.advance(60)


def test_cancel_against_a_failure_that_would_be_retried():
    assert explore(CancelAndRetry) == {(("cancelled", "user", 1),)}


class CancelAndRetryDue(Scene):
    def arrange(self):
        record = self.running(retry=Retry(base=1, cap=1))
        self.bench.pool.attempt_raised(record, ValueError("no"))
        return lambda: self.bench.advance(1), lambda: self.bench.pool.cancel(record.id, Reason.USER)

    def settle(self):
        self.bench.run_next()


def test_cancel_against_a_retry_that_falls_due():
    assert explore(CancelAndRetryDue) == {(("cancelled", "user", 1),)}


class TwoCancels(Scene):
    def arrange(self):
        record = self.running()
        return tuple(
            lambda reason=reason: self.bench.pool.cancel(record.id, reason) for reason in (Reason.USER, Reason.OPERATOR)
        )

    def settle(self):
        (record,) = self.records
        assert record.token.reason is record.cancel_requested
        self.bench.pool.attempt_raised(record, JobInterrupted(record.token.reason))


def test_two_cancellations_keep_one_reason():
    assert explore(TwoCancels) == {(("cancelled", "user", 1),), (("cancelled", "operator", 1),)}


class TimeOutAndFinish(Scene):
    how = staticmethod(lambda pool, record: pool.attempt_returned(record, 5))

    def arrange(self):
        record = self.running(timeout=1.0, retry=Retry(base=1, cap=1))
        self.bench.clock.advance(1)
        return lambda: self.how(self.bench.pool, record), self.bench.timer.run_due


class TimeOutAndRaise(TimeOutAndFinish):
    how = staticmethod(lambda pool, record: pool.attempt_raised(record, ValueError("no")))


def test_time_out_against_a_result():
    """Too late is decided by the token: what was fired before the report keeps no result."""
    outcomes = explore(TimeOutAndFinish)
    assert outcomes == {(("succeeded", "", 1),), (("queued", "", 1),)}


def test_time_out_against_an_error():
    assert explore(TimeOutAndRaise) == {(("queued", "", 1),)}


class TimeOutAndTwoAttempts(Scene):
    """The watch of the first attempt comes when the second one runs already."""

    def arrange(self):
        record = self.running(timeout=1.0, retry=Retry(classify=lambda error: 0))
        self.bench.clock.advance(1)

        def again():
            self.bench.pool.attempt_raised(record, ValueError("no"))
            self.bench.timer.run_due()
            self.bench.pool.take(threading.current_thread())

        return again, self.bench.timer.run_due

    def settle(self):
        (record,) = self.records
        if record.attempt == 2 and record.state is JobState.RUNNING:
            assert not record.token.fired
            assert not record.overdue


def test_the_time_out_of_one_attempt_never_hits_the_next():
    assert {outcome[0][0] for outcome in explore(TimeOutAndTwoAttempts)} <= {"running", "queued"}


class GiveUpAndFinish(Scene):
    way = "give_up"

    def arrange(self):
        record = self.running()
        give_up = self.bench.pool.give_up if self.way == "give_up" else lambda: self.bench.pool.forfeit(uuid7())
        return lambda: self.bench.pool.attempt_returned(record, 5), give_up

    def settle(self):
        assert self.bench.pool.stats().given_up == 0
        if self.records[0].state is JobState.ABANDONED:
            assert self.records[0].result is None


class ForfeitAndFinish(GiveUpAndFinish):
    way = "forfeit"


@pytest.mark.parametrize(("kind", "reason"), [(GiveUpAndFinish, "drain_deadline"), (ForfeitAndFinish, "process_lost")])
def test_giving_up_against_the_end_of_a_run(kind, reason):
    assert explore(kind) == {(("succeeded", "", 1),), (("abandoned", reason, 1),)}


class DrainAndSubmit(Scene):
    policy = "run"

    def arrange(self):
        pool = self.bench.pool

        def drain():
            pool.begin_drain(self.bench.clock.monotonic() + 5)
            pool.interrupt()
            pool.give_up()

        return self.submit(self.job()), drain


@pytest.mark.parametrize(
    ("policy", "end"),
    [("run", ("abandoned", "drain_deadline", 0)), ("cancel", ("cancelled", "shutdown", 0)),
     ("abandon", ("abandoned", "drain_deadline", 0))],
)  # fmt: skip
def test_a_drain_against_a_submit_loses_nothing(policy, end):
    """Refused, or accepted and given up: never queued for ever."""
    assert explore(DrainAndSubmit, on_shutdown=policy) == {(("submitted", "", 0),), (end,)}


class DrainAndAdmit(DrainAndSubmit):
    def submit(self, record):
        return lambda: self.bench.pool.admit(record)


def test_a_drain_against_a_submit_in_one_step_loses_nothing():
    assert explore(DrainAndAdmit) == {(("submitted", "", 0),), (("abandoned", "drain_deadline", 0),)}


class DrainAndWork(Scene):
    def arrange(self):
        self.queued()
        pool = self.bench.pool

        def drain():
            pool.begin_drain(None)
            pool.interrupt()
            pool.give_up()

        return self.work, drain


def test_a_drain_against_a_start():
    assert explore(DrainAndWork) == {
        (("succeeded", "", 1),),
        (("abandoned", "drain_deadline", 0),),
        (("abandoned", "drain_deadline", 1),),  # given up while it ran
    }


class ShedAndStart(Scene):
    def arrange(self):
        self.running(priority=5)
        self.queued(priority=-5)
        newcomer = self.job()

        def work():
            self.bench.pool.attempt_returned(self.records[0], None)
            self.work()

        return work, self.submit(newcomer)


def test_shed_against_start():
    assert {(low, newcomer[0]) for _, low, newcomer in explore(ShedAndStart, shed=True)} == {
        (("cancelled", "shed", 0), "queued"),  # evicted; the worker came before the newcomer was accepted
        (("cancelled", "shed", 0), "succeeded"),
        (("succeeded", "", 1), "queued"),  # the worker was faster, and the newcomer had a free place
        (("queued", "", 0), "succeeded"),  # a place was free, and the newcomer more important
    }


class GrantAndTimeOut(Scene):
    """A place frees while the one who waits for it gives up."""

    end = "leave"

    def arrange(self):
        self.running()
        self.queued()
        self.queued()
        self.waiter = self.bench.pool.line_up(self.job(), lambda: None)
        self.following = self.bench.pool.line_up(self.job(), lambda: None)
        self.left = None

        def leave():
            try:
                getattr(self.bench.pool, self.end)(self.waiter)
            except Rejected as refusal:
                self.left = refusal.code

        return leave, lambda: self.bench.pool.cancel(self.records[1].id, Reason.USER)

    def judge(self):
        assert self.waiter.served != self.following.served or self.end == "desert"
        assert self.following.served == (not self.waiter.served or self.end == "desert")
        if self.end == "leave":
            assert (self.left == "wait_timeout") == (not self.waiter.served)
            assert (self.waiter.record in self.bench.pool._reserved) == self.waiter.served
        else:
            assert self.waiter.record not in self.bench.pool._reserved
        assert self.bench.pool.stats().reserved == 1
        return self.left, self.waiter.served


class GrantAndDesert(GrantAndTimeOut):
    end = "desert"


def test_a_place_against_the_end_of_the_wait_for_it():
    assert explore(GrantAndTimeOut, queue_size=2) == {(None, True), ("wait_timeout", False)}


def test_a_place_against_a_caller_that_is_gone():
    assert explore(GrantAndDesert, queue_size=2) == {(None, True), (None, False)}


class GrantAndDrain(Scene):
    def arrange(self):
        self.running()
        self.queued()
        self.waiter = self.bench.pool.line_up(self.job(), lambda: None)
        pool = self.bench.pool
        return lambda: pool.cancel(self.records[1].id, Reason.USER), lambda: pool.begin_drain(None)

    def judge(self):
        assert self.waiter.served != (self.waiter.refusal is not None)
        return self.waiter.served


def test_a_place_against_a_drain():
    assert explore(GrantAndDrain) == {True, False}


class ResizeAndFinish(Scene):
    def arrange(self):
        self.running()
        self.running()
        self.queued()
        self.bench.shrunk = True
        return lambda: self.bench.pool.attempt_returned(self.records[0], None), lambda: self.bench.pool.resize(
            workers=1
        )

    def settle(self):
        assert self.bench.take() is None  # one still runs
        self.bench.pool.attempt_returned(self.records[1], None)
        assert self.bench.take() is self.records[2]


def test_resize_against_the_end_of_a_run():
    assert explore(ResizeAndFinish, workers=2, queue_size=1) == {
        (("succeeded", "", 1), ("succeeded", "", 1), ("running", "", 1))
    }


class ResizeAndSubmit(Scene):
    def arrange(self):
        self.running()
        self.queued()
        return self.submit(self.job()), lambda: self.bench.pool.resize(workers=2)


def test_resize_against_a_submit():
    outcomes = explore(ResizeAndSubmit)
    assert {outcome[2][0] for outcome in outcomes} == {"submitted", "queued"}


class PauseAndStart(Scene):
    def arrange(self):
        self.queued()

        def pause():
            self.bench.pool.pause()
            self.after = self.records[0].attempt

        return self.work, pause

    def settle(self):
        assert self.records[0].attempt == self.after
        assert self.bench.take() is None
        self.bench.pool.resume()
        self.bench.run_next()


def test_pause_against_start():
    """What had not started when `pause` returned does not before `resume`."""
    assert explore(PauseAndStart) == {(("succeeded", "", 1),)}


class TwoSubmits(Scene):
    def arrange(self):
        self.running()
        return self.submit(self.job()), self.submit(self.job())


class TwoAdmits(TwoSubmits):
    def submit(self, record):
        return lambda: self.bench.pool.admit(record)


@pytest.mark.parametrize("kind", [TwoSubmits, TwoAdmits])
def test_two_submits_never_share_the_last_place(kind):
    for outcome in explore(kind):
        assert sorted(state for state, _, _ in outcome[1:]) == ["queued", "submitted"]


class TwoWorkers(Scene):
    def arrange(self):
        self.queued()
        return self.work, self.work


def test_two_workers_never_take_one_job():
    assert explore(TwoWorkers, workers=2) == {(("succeeded", "", 1),)}


class DeadlineAndStart(Scene):
    def arrange(self):
        self.queued(start_deadline=1.0)
        self.bench.clock.advance(1)
        return self.work, self.bench.timer.run_due


def test_a_start_deadline_against_start():
    assert explore(DeadlineAndStart) == {(("cancelled", "start_deadline", 0),), (("succeeded", "", 1),)}


class DeadlineAndCancel(Scene):
    def arrange(self):
        record = self.queued(start_deadline=1.0)
        self.bench.clock.advance(1)
        return lambda: self.bench.pool.cancel(record.id, Reason.USER), self.bench.timer.run_due


def test_a_start_deadline_against_cancel():
    assert explore(DeadlineAndCancel) == {(("cancelled", "start_deadline", 0),), (("cancelled", "user", 0),)}


class DueAndCancel(Scene):
    def arrange(self):
        record = self.queued(run_after=1.0)
        self.bench.clock.advance(1)
        return self.bench.timer.run_due, lambda: self.bench.pool.cancel(record.id, Reason.USER)


def test_a_deferred_start_against_cancel():
    assert explore(DueAndCancel) == {(("cancelled", "user", 0),)}


class CommitAndRollBack(Scene):
    def arrange(self):
        record = self.job()
        self.bench.pool.reserve(record)
        return lambda: self.bench.pool.accept(record), lambda: self.bench.pool.withdraw(record)


def test_a_commit_against_a_roll_back_and_against_itself():
    assert explore(CommitAndRollBack) == {(("queued", "", 0),), (("rejected", "", 0),)}
