"""The short cuts of `express` do exactly what the general way does, whatever comes before and after.

Every sequence runs against two pools in step, one with the short cuts and one without, with workers that are stepped
by hand.
"""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_boundedpool.engine.admission import Admission
from django_boundedpool.engine.attempts import Attempts
from django_boundedpool.engine.cpu_lane import CpuLane
from django_boundedpool.engine.errors import Rejected
from django_boundedpool.engine.events import Event
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.pool import Pool
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.engine.worker import Worker

from .builders import Bench

pytestmark = pytest.mark.fast


class General(Pool):
    """The pool without short cuts."""

    admit = Admission.admit
    attempt_returned = Attempts.attempt_returned


class Dismissed(Exception):
    """Raised in a puppet that is not needed any more."""


class Puppet(Worker):
    """A worker that is stepped by hand: it looks for jobs in a thread, and the test waits for that."""

    class Parking:
        """Stands for the lock at which an idle worker waits."""

        def __init__(self, puppet):
            self.puppet = puppet
            self.woken = False

        def acquire(self):
            self.puppet.back.release()
            self.puppet.go.acquire()
            if self.puppet.dismissed:
                raise Dismissed

        def release(self):
            self.woken = True

        def locked(self):
            return not self.woken

    def __init__(self, pool, number):
        super().__init__(pool, number)
        self.parked = self.Parking(self)
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.search = None
        self.record = None
        self.left = self.dismissed = False

    @property
    def ident(self):
        """A thread that was started has one."""
        return 1

    def look(self):
        """Go on until it has a job, parks or has left."""
        self.parked.woken = False
        if self.search is None:
            self.search = threading.Thread(target=self._search, daemon=True)
            self.search.start()
        else:
            self.go.release()
        assert self.back.acquire(timeout=10)

    def _search(self):
        try:
            self.record = self.pool.next_job(self)
        except Dismissed:
            return
        self.search = None
        self.left = self.record is None
        self.back.release()

    def end(self, value=None, error=None):
        if error is None:
            self.record = self.pool.attempt_returned(self.record, value, self)
        else:
            self.record = self.pool.attempt_raised(self.record, error, self)
        if self.record is None:
            self.look()

    def dismiss(self):
        if (search := self.search) is not None:
            self.dismissed = True
            self.go.release()
            search.join(10)


class Side:
    """One of the two pools, with everything that happened to it."""

    def __init__(self, kind, workers, config):
        self.bench = Bench(kind=kind, workers=workers, cpu_lane=CpuLane(), **config)
        self.pool = self.bench.pool
        self.jobs, self.answers, self.waiters, self.told, self.puppets = [], [], [], [], []
        for _ in range(workers):
            self.hire()

    def hire(self):
        if len(self.pool._workers) < self.pool.workers:
            puppet = Puppet(self.pool, len(self.puppets))
            self.puppets.append(puppet)
            self.pool._workers.add(puppet)
            puppet.look()

    def dismiss(self):
        for puppet in self.puppets:
            puppet.dismiss()

    def settle(self):
        while woken := [puppet for puppet in self.puppets if puppet.parked.woken and not puppet.left]:
            woken[0].look()

    def job(self, number):
        return self.jobs[number % len(self.jobs)] if self.jobs else None

    def do(self, what, *args):
        try:
            answer = getattr(self, f"do_{what}")(*args)
        except Rejected as refusal:
            answer = (refusal.code, refusal.retry_after, str(refusal))
        self.settle()
        self.answers.append((what, answer))

    def do_admit(self, spec):
        record = self.bench.record(payload="x" * spec.pop("size", 5), **spec)
        self.jobs.append(record)
        self.pool.admit(record)

    def do_line_up(self, priority):
        record = self.bench.record(priority=priority)
        self.jobs.append(record)
        number = len(self.jobs)
        waiter = self.pool.line_up(record, lambda: self.told.append(number))
        self.waiters += [waiter] if waiter else []

    def do_accept(self):
        for record in list(self.pool._reserved):
            self.pool.accept(record)

    def do_desert(self):
        if self.waiters:
            self.pool.desert(self.waiters.pop())

    def do_end(self, number, value, error):
        busy = [puppet for puppet in self.puppets if puppet.record is not None]
        if busy:
            busy[number % len(busy)].end(value, error)

    def do_when_over(self, number):
        if job := self.job(number):
            self.pool.when_over(job, lambda: self.told.append(("over", number)))

    def do_cancel(self, number):
        if job := self.job(number):
            return self.pool.cancel(job.id, Reason.USER)
        return None

    def do_token(self, number):
        """The job registers a cancel callback."""
        job = self.job(number)
        if job and job.state is JobState.RUNNING:
            job.token.on_fire(lambda: self.told.append(("asked", number)))

    def do_advance(self, seconds):
        self.bench.advance(seconds)

    def do_pause(self, refuse):
        self.pool.pause(refuse=refuse)

    def do_resume(self):
        self.pool.resume()

    def do_resize(self, workers):
        self.pool.resize(workers=workers)

    def do_hire(self):
        self.hire()

    def do_confirm(self, seconds):
        self.pool.confirm_alive(self.bench.clock.monotonic() + seconds)

    def do_forfeit(self):
        self.pool.forfeit(uuid7())

    def do_drain(self):
        return self.pool.drain(0).counts()

    def do_begin_drain(self, horizon):
        self.pool.begin_drain(None if horizon is None else self.bench.clock.monotonic() + horizon)

    def do_outcomes(self):
        return {outcome: len(ids) for outcome, ids in self.pool.drain_outcomes().items()}

    def do_interrupt(self):
        self.pool.interrupt()

    def do_give_up(self):
        self.pool.give_up()

    def picture(self):
        """Everything that can be seen, with jobs by their number."""
        numbers = {record.key: number for number, record in enumerate(self.jobs)}
        events = [Event(*event) for event in self.bench.events]
        return {
            "answers": self.answers,
            "states": [
                (r.state, r.reason, r.version, r.attempt, r.failures, r.result, r.payload, r.finished, r.started)
                for r in self.jobs
            ],
            "stats": self.pool.stats(),
            "told": self.told,
            "events": [event._replace(key=numbers.get(event.key), error=repr(event.error)) for event in events],
            "saved": [
                (numbers[s.id.int], s.process, s.fence, s.version, without_text(s.values)) for s in self.bench.saved
            ],
            "owners": dict(self.pool._owners),
            "rate": self.pool.retry_after(),
            "timers": sorted(item[0] for item in self.bench.timer._heap if item[2].callback is not None),
            "busy": [puppet.record and numbers[puppet.record.key] for puppet in self.puppets],
            "idle": [puppet.name for puppet in self.pool._idle],
        }


def without_text(values):
    """Stored values without tracebacks, which name other lines."""
    return {key: value for key, value in values.items() if key not in ("error", "first_error")} | {
        key: values[key] and (values[key]["type"], values[key]["message"]) for key in ("error", "first_error")
    }


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-2, 2),
        "size": st.integers(1, 40),
        "owner": st.sampled_from(["", "ann", "bob"]),
        "timeout": st.sampled_from([1.0, 2.5]),
        "start_deadline": st.sampled_from([1.0, 3.0]),
        "deadline": st.sampled_from([0.0, 2.0, 5.0]),
        "run_after": st.sampled_from([0.0, 1.0, 4.0]),
        "retry": st.just(Retry(max_attempts=2, base=1, cap=1)),
        "lane": st.just("cpu"),
        "store_result": st.just(False),
        "retention": st.just(60.0),
    },
)
PLAIN = st.just({}) | st.fixed_dictionaries({"store_result": st.just(False)})
NUMBERS = st.integers(0, 5)
ENDS = st.tuples(st.just("end"), NUMBERS, st.none(), st.none())
STEPS = st.one_of(
    st.tuples(st.just("admit"), PLAIN),
    st.tuples(st.just("admit"), PLAIN),
    st.tuples(st.just("admit"), SPECS),
    ENDS,
    ENDS,
    st.tuples(st.just("end"), NUMBERS, st.sampled_from([None, 1, "text", object]), st.none()),
    st.tuples(st.just("end"), NUMBERS, st.none(), st.sampled_from([ValueError("no"), SystemExit(0)])),
    st.tuples(st.just("advance"), st.sampled_from([0.25, 1.0, 2.5])),
    st.tuples(st.just("when_over"), NUMBERS),
    st.tuples(st.just("cancel"), NUMBERS),
    st.tuples(st.just("token"), NUMBERS),
    st.tuples(st.just("line_up"), st.integers(-1, 1)),
    st.sampled_from([("accept",), ("desert",), ("resume",), ("hire",), ("outcomes",), ("drain",)]),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("resize"), st.integers(1, 3)),
    st.tuples(st.just("confirm"), st.sampled_from([0.0, 1.0, 100.0])),
    st.sampled_from([("forfeit",), ("interrupt",), ("give_up",), ("begin_drain", None), ("begin_drain", 2.0)]),
)
CONFIGS = st.fixed_dictionaries(
    {"queue_size": st.integers(0, 4)},
    optional={
        "queue_bytes": st.just(60),
        "priority_shares": st.just({-1: 0.5}),
        "shed": st.just(True),
        "owner_limit": st.just(1),
        "stuck_after": st.sampled_from([1.0, 2.0]),
        "on_shutdown": st.sampled_from(["cancel", "abandon"]),
    },
)


@settings(max_examples=3 * settings.default.max_examples)
@given(workers=st.integers(1, 3), config=CONFIGS, steps=st.lists(STEPS, min_size=1, max_size=40))
def test_the_short_cuts_do_what_the_general_way_does(workers, config, steps):
    if "queue_bytes" in config:
        config = {**config, "max_payload_bytes": 60}
    sides = [Side(kind, workers, config) for kind in (Pool, General)]
    try:
        for step in steps:
            for side in sides:
                side.do(*(dict(part) if isinstance(part, dict) else part for part in step))
            express, general = (side.picture() for side in sides)
            for what, seen in general.items():
                assert express[what] == seen, (what, step)
    finally:
        for side in sides:
            side.dismiss()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_short_cuts_are_taken_by_plain_jobs(monkeypatch, workers):
    """Otherwise the comparison would compare nothing."""
    taken = []
    for kind, method in ((Admission, "admit"), (Attempts, "attempt_returned"), (Attempts, "_take_locked")):
        real = getattr(kind, method)

        def general(pool, *args, method=method, real=real, **kwargs):
            taken.append(method)
            return real(pool, *args, **kwargs)

        monkeypatch.setattr(kind, method, general)
    side = Side(Pool, workers, {"queue_size": 5})
    taken.clear()
    for _ in range(workers + 4):
        side.do("admit", {})
    assert taken == []
    side.do("end", 0, None, None)
    side.do("end", 0, None, None)
    side.do("end", 0, None, None)
    assert taken == []
    assert side.pool.stats().finished == {"succeeded": 3}
    side.do("end", 0, 5, None)
    assert taken == ["attempt_returned", "_take_locked"]
    side.dismiss()


@pytest.mark.parametrize(
    "special",
    [{"owner": "ann"}, {"deadline": 5.0}, {"run_after": 0.0}, {"start_deadline": 5.0}, {"lane": "cpu"}],
    ids=lambda special: next(iter(special)),
)
def test_a_job_about_which_something_is_special_takes_the_general_way(monkeypatch, special):
    taken, real = [], Admission.admit

    def general(pool, record):
        taken.append(record)
        return real(pool, record)

    monkeypatch.setattr(Admission, "admit", general)
    side = Side(Pool, 1, {"queue_size": 5})
    side.do("admit", dict(special))
    assert taken == side.jobs
    side.dismiss()
