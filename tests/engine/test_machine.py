"""The pool against a model: whatever happens in whatever order, no place is lost and every job ends once.

The model is a plain dictionary of states and the rules of design 4 and 5 in their simplest form. By default it is
small; `HYPOTHESIS_PROFILE=nightly` runs 500 sequences of 100 steps.

Tried by hand, each makes this fail: removing `_give_back_locked`, the state check of `attempt_returned`, the capacity
check of `_full_for`, the call of `_place_freed_locked` in `_give_back_locked`, the owner's count, `leave` of the CPU
lane, `_unqueue_locked` in `cancel_key`, the timer of a deadline.
"""

import os
import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_boundedpool.engine.errors import JobInterrupted, Rejected
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.ids import uuid7
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import MOVES, JobState, Reason

from .builders import ME, Bench

BYTES = 150
SPECS = {
    "priority": st.integers(-2, 2),
    "size": st.sampled_from([8, 8, 20, 60, 90]),
    "owner": st.sampled_from(["", "", "ann", "bob"]),
    "retry": st.booleans(),
    "timeout": st.none() | st.sampled_from([0.5, 1.0, 2.0]),
    "start": st.none() | st.sampled_from([0.5, 1.0, 2.0]),
    "deadline": st.sampled_from([None, None, None, None, None, 0.0, 0.5, 2.0, 4.0]),
    "run_after": st.sampled_from([None, None, None, None, 0.0, 1.0, 3.0]),
    "cpu": st.booleans(),
}
#: Several at once: the interesting things happen where there is no room.
BURSTS = st.lists(st.fixed_dictionaries(SPECS), min_size=1, max_size=4)
ANY = st.integers(0, 1000)
SOMEBODY = uuid7()


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        workers=st.integers(1, 3),
        queue=st.sampled_from([4, 2, 6, 1, 0]),
        policy=st.sampled_from(["run", "cancel", "abandon"]),
        shares=st.sampled_from([{}, {}, {-1: 0.5}, {0: 0.5, -2: 0.0}]),
        shed=st.booleans(),
        owner_limit=st.none() | st.integers(1, 3),
    )
    def build(self, workers, queue, policy, shares, shed, owner_limit):
        self.bench = Bench(
            workers=workers,
            queue_size=queue,
            queue_bytes=BYTES,
            max_payload_bytes=100,
            on_shutdown=policy,
            retry_share=0.5,
            priority_shares=shares,
            shed=shed,
            owner_limit=owner_limit,
            stuck_after=3.0,
        )
        self.pool = self.bench.pool
        self.worker = threading.Thread()  # never started: its stack, which reports would show, is not known
        self.workers, self.queue_size = workers, queue
        self.shares, self.shed, self.owner_limit = shares, shed, owner_limit
        self.states = {}  # of every record that ever held a place
        self.accepted = set()
        self.reservations = []
        self.waiters = []  # in line, or told and not gone yet
        self.told = Counter()
        self.refused = Counter()
        self.ghosts = []
        self.paused = self.drains = self.over = False
        self.shut = None  # "paused" or "draining"
        self.bound = self.slots = None
        self.seen = self.looked = 0  # events and pictures looked at
        self.stored = {}  # newest version and state by job
        self.counted = Counter()  # events by kind and job

    # The model ---------------------------------------------------------------------------------------------------

    @property
    def now(self):
        return self.bench.clock.monotonic()

    def live(self):
        self.told_places()
        return [record for record in self.states if not record.state.terminal]

    def limit(self, priority):
        share = min((part for highest, part in self.shares.items() if priority <= highest), default=1.0)
        return self.workers + int(self.queue_size * share)

    def room(self, record):
        """ "", or why there is no room for it."""
        live = self.live()
        if len(live) >= self.workers + self.queue_size:
            return "queue_full"
        if len(live) >= self.limit(record.spec.priority):
            return "shed"
        if sum(other.payload_bytes for other in live) + record.payload_bytes > BYTES:
            return "bytes_full"
        return ""

    def standing(self):
        return [waiter for waiter in self.waiters if not self.told[waiter.record]]

    def outranked(self, record):
        return any(waiter.record.spec.priority >= record.spec.priority for waiter in self.standing())

    def expected(self, record):
        """The code of the refusal, or ""; and whether an eviction may make room."""
        if self.drains:
            return "draining"
        if self.shut:
            return self.shut
        if record.deadline_mono is not None and record.deadline_mono <= self.now:
            return "expired"
        held = sum(other.owner_key == record.owner_key for other in self.live())
        if record.owner_key and self.owner_limit is not None and held >= self.owner_limit:
            return "owner_limit"
        if self.outranked(record):
            return self.room(record) or "queue_full"
        code = self.room(record)
        if code in ("queue_full", "bytes_full") and self.shed:
            victims = [
                other
                for other in self.live()
                if other in self.accepted
                and other.state is JobState.QUEUED
                and not other.attempt
                and other.spec.priority < record.spec.priority
            ]
            bytes_left = sum(r.payload_bytes for r in self.live()) - sum(r.payload_bytes for r in victims)
            if victims and bytes_left + record.payload_bytes <= BYTES:
                return ""
        return code

    def record(self, *, priority, size, owner, retry, timeout, start, deadline, run_after, cpu):
        return self.bench.record(
            payload="x" * size,
            priority=priority,
            owner=owner,
            timeout=timeout,
            start_deadline=start,
            deadline=deadline,
            run_after=run_after,
            lane="cpu" if cpu else "io",
            retry=Retry(max_attempts=3, base=1, cap=2) if retry else None,
        )

    def code(self, call, *args):
        """The code with which a call was refused, counted; or "" and what it returned."""
        try:
            return "", call(*args)
        except Rejected as refusal:
            self.refused[refusal.code] += 1
            return refusal.code, None

    def pick(self, things, number):
        return things[number % len(things)] if things else None

    def told_places(self):
        """Places that waiters were given."""
        for waiter in self.waiters:
            if waiter.served and waiter.record not in self.states:
                self.states[waiter.record] = JobState.SUBMITTED

    # Admission ---------------------------------------------------------------------------------------------------

    @rule(specs=BURSTS)
    def reserve(self, specs):
        for spec in specs:
            self.reserve_one(spec)

    def reserve_one(self, spec):
        record = self.record(**spec)
        expected = self.expected(record)
        code, _ = self.code(self.pool.reserve, record)
        assert code == expected
        if not code:
            self.states[record] = JobState.SUBMITTED
            self.reservations.append(record)

    @rule(specs=BURSTS)
    def admit(self, specs):
        for spec in specs:
            self.admit_one(spec)

    def admit_one(self, spec):
        record = self.record(**spec)
        expected = self.expected(record)
        code, _ = self.code(self.pool.admit, record)
        assert code == expected
        if not code:
            self.states[record] = JobState.SUBMITTED
            self.accepted.add(record)

    @precondition(lambda self: self.reservations)
    @rule(number=ANY)
    def accept(self, number):
        if record := self.pick(self.reservations, number):
            self.reservations.remove(record)
            self.pool.accept(record)
            self.pool.accept(record)
            assert record.state is not JobState.SUBMITTED
            self.accepted.add(record)

    @precondition(lambda self: self.reservations)
    @rule(number=ANY)
    def roll_back(self, number):
        if record := self.pick(self.reservations, number):
            self.reservations.remove(record)
            del self.states[record]
            assert self.pool.withdraw(record)
            assert not self.pool.withdraw(record)

    @rule(specs=BURSTS)
    def line_up(self, specs):
        for spec in specs:
            self.line_up_one(spec)

    def line_up_one(self, spec):
        record = self.record(**spec)
        expected = self.expected(record)
        may_wait = expected in ("queue_full", "bytes_full", "shed") and len(self.standing()) < self.queue_size
        code, waiter = self.code(self.pool.line_up, record, lambda: self.told.update([record]))
        assert code == ("" if may_wait else expected)
        assert (waiter is not None) == may_wait
        if waiter is not None:
            self.waiters.append(waiter)
        elif not code:
            self.states[record] = JobState.SUBMITTED
            self.reservations.append(record)

    @precondition(lambda self: self.waiters)
    @rule(number=ANY)
    def leave(self, number):
        if waiter := self.pick(self.waiters, number):
            self.live()
            self.waiters.remove(waiter)
            code, _ = self.code(self.pool.leave, waiter)
            assert bool(code) != waiter.served
            assert (code == "wait_timeout") == (not self.told[waiter.record])
            if not code:
                self.reservations.append(waiter.record)

    @precondition(lambda self: self.waiters)
    @rule(number=ANY)
    def desert(self, number):
        if waiter := self.pick(self.waiters, number):
            self.waiters.remove(waiter)
            self.states.pop(waiter.record, None)
            self.pool.desert(waiter)
            assert waiter.record not in self.pool._reserved

    # Work --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pool._queue)
    @rule()
    def take(self):
        busy = len(self.pool._running) + len(self.ghosts)
        ready = [r for r in self.pool._queue]
        cpu = any(r.spec.lane == "cpu" for r in (*self.pool._running, *self.ghosts))
        startable = [r for r in ready if not (cpu and r.spec.lane == "cpu")]
        record = self.pool.take(self.worker)
        if record is None:
            assert self.paused or self.over or busy >= self.workers or not startable
        else:
            assert record in startable
            assert busy < self.workers
            assert not self.paused
            assert not self.over
            key = record.queued_mono - record.spec.priority * 30
            assert all(key <= r.queued_mono - r.spec.priority * 30 for r in startable)

    @precondition(lambda self: self.states)
    @rule(number=ANY, reason=st.sampled_from([Reason.USER, Reason.OPERATOR]))
    def cancel(self, number, reason):
        if record := self.pick(list(self.states), number):
            before = record.state
            answer = self.pool.cancel(record.id, reason)
            assert answer == {
                JobState.QUEUED: "cancelled",
                JobState.RUNNING: "requested",
                JobState.SUBMITTED: "requested",
            }.get(before)

    @precondition(lambda self: self.pool._running or self.ghosts)
    @rule(number=ANY, value=st.sampled_from([None, 1, "text", object()]))
    def end_well(self, number, value):
        if record := self.pick([*self.pool._running, *self.ghosts], number):
            self.end(record, lambda: self.pool.attempt_returned(record, value))

    @precondition(lambda self: self.pool._running or self.ghosts)
    @rule(number=ANY, error=st.sampled_from([ValueError("x"), SystemExit(0), KeyboardInterrupt(), None]))
    def end_badly(self, number, error):
        if record := self.pick([*self.pool._running, *self.ghosts], number):
            reason = record.token.reason or Reason.USER
            self.end(record, lambda: self.pool.attempt_raised(record, error or JobInterrupted(reason)))

    def end(self, record, call):
        before = record.state
        assert call() is None
        assert record.state is not JobState.RUNNING
        if record in self.ghosts:
            self.ghosts.remove(record)
            assert record.state is before

    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0]))
    def wait(self, seconds):
        self.bench.advance(seconds)

    # At run time -------------------------------------------------------------------------------------------------

    # What closes or empties the pool is one rule of many: most steps should find it open.

    @rule(how=st.sampled_from(["resume", "resume", "resume", "pause", "refuse", "drain"]))
    def open_or_shut(self, how):
        if how == "resume":
            self.pool.resume()
            self.paused, self.shut = False, None
        elif how == "drain":
            before = {record for record in self.states if record.state.terminal}
            report = self.pool.drain(0)
            self.shut = "draining"
            assert report.hurried == bool(self.live())
            assert self.drains or not report.counts()
            assert before == {record for record in self.states if record.state.terminal}
        else:
            self.pool.pause(refuse=how == "refuse")
            self.paused = True
            if how == "refuse" and self.shut is None:
                self.shut = "paused"

    @rule(workers=st.integers(1, 4))
    def resize(self, workers):
        self.workers = workers
        self.pool.resize(workers=workers)

    @rule(owner=st.sampled_from([ME, SOMEBODY]))
    def forfeit(self, owner):
        before, running = [record.state for record in self.states], list(self.pool._running)
        self.pool.forfeit(owner)
        if owner is ME:
            assert before == [record.state for record in self.states]
            return
        self.ghosts += running
        assert not self.pool._running
        assert all(record.state is not JobState.QUEUED for record in self.states)
        assert all(record.token.fired for record in running)

    # The drain of a process that stops -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.states) > 12)
    @rule(horizon=st.none() | st.sampled_from([0.0, 1.0, 3.0]))
    def begin_drain(self, horizon):
        self.pool.begin_drain(None if horizon is None else self.now + horizon)
        self.drains = True

    @precondition(lambda self: self.drains)
    @rule()
    def interrupt(self):
        self.pool.interrupt()
        self.over = True
        assert all(record.token.fired for record in self.pool._running)

    @precondition(lambda self: self.drains)
    @rule()
    def give_up(self):
        running = list(self.pool._running)
        self.pool.give_up()
        self.ghosts += running
        self.over = True
        assert not [r for r in self.states if r.state in (JobState.QUEUED, JobState.RUNNING)]

    # What always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "pool"):
            return
        stats, live = self.pool.stats(), self.live()
        assert set(live) == set(self.pool._live.values())
        assert stats.accepted == len(self.accepted) == stats.queued + stats.running + sum(stats.finished.values())
        assert stats.queued + stats.running + stats.reserved == len(live)
        assert stats.queue_bytes == sum(r.payload_bytes for r in live) <= BYTES
        assert dict(self.pool._owners) == Counter(r.owner_key for r in live if r.owner_key)
        assert stats.rejected == {code: count for code, count in self.refused.items() if count}
        assert stats.given_up == len(self.ghosts)
        assert stats.waiting == len(self.standing())
        if self.over:
            assert stats.queued == 0

    @invariant()
    def no_bound_is_passed(self):
        if not hasattr(self, "pool"):
            return
        capacity, live = self.workers + self.queue_size, len(self.live())
        # Fewer workers let what there is run out.
        assert live <= max(capacity, self.bound or 0)
        if live <= capacity:
            self.bound = capacity
        busy = len(self.pool._running) + len(self.ghosts)
        assert busy <= max(self.workers, self.slots or 0)
        if busy <= self.workers:
            self.slots = self.workers
        assert sum(record.spec.lane == "cpu" for record in (*self.pool._running, *self.ghosts)) <= 1
        if self.owner_limit is not None:
            assert all(count <= self.owner_limit for count in self.pool._owners.values())

    @invariant()
    def nobody_waits_for_a_place_that_is_free(self):
        if not hasattr(self, "pool"):
            return
        standing = self.standing()
        if standing:  # the most important, then the first
            assert self.room(max((waiter.record for waiter in standing), key=lambda record: record.spec.priority))
        if self.drains or self.shut:
            assert not standing
        for waiter in self.waiters:
            assert self.told[waiter.record] == (waiter.served or waiter.refusal is not None)
        assert all(count == 1 for count in self.told.values())

    @invariant()
    def time_counts(self):
        if not hasattr(self, "pool"):
            return
        for record in self.states:
            if record.state is JobState.QUEUED:
                assert record.deadline_mono is None or record.deadline_mono > self.now
            elif record.state is JobState.RUNNING and record.ends_mono is not None and record.ends_mono <= self.now:
                assert record.overdue
                assert record.token.fired
            if record.state is not JobState.QUEUED:
                assert record.timer is None
        assert len(self.bench.timer) <= 1 + sum(record.timer is not None for record in self.states)

    @invariant()
    def every_move_is_legal_and_told_once(self):
        if not hasattr(self, "pool"):
            return
        for event in self.bench.events[self.seen :]:
            self.counted[event.kind, event.key] += 1
        self.seen = len(self.bench.events)
        for snapshot in self.bench.saved[self.looked :]:
            assert snapshot.version > self.stored.get(snapshot.id.int, (0, ""))[0]
            self.stored[snapshot.id.int] = snapshot.version, snapshot.values["state"]
        self.looked = len(self.bench.saved)
        for record, before in self.states.items():
            if record.state is not before:
                assert record.state in reachable(before), (before, record.state)
                self.states[record] = record.state
            assert self.counted[Kind.JOB_ACCEPTED, record.key] == (record in self.accepted)
            assert self.counted[Kind.JOB_STARTED, record.key] == record.attempt
            assert self.counted[Kind.JOB_FINISHED, record.key] == (record.state.terminal and record in self.accepted)
            assert self.counted[Kind.CANCEL_REQUESTED, record.key] == (record.cancel_requested is not None)
            if record.state.terminal:
                assert record.state is JobState.REJECTED or self.stored[record.key][1] == record.state.value
                assert record.payload is None
        assert sum(self.refused.values()) == self.counted[Kind.JOB_REJECTED, None]

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.begin_drain(self.now)
            self.pool.give_up()
            for record in self.reservations:
                self.pool.accept(record)
            for waiter in self.waiters:
                self.pool.desert(waiter)
            assert self.pool._live == {}
            assert self.pool.wait_empty(0)


def reachable(state):
    """Every state that may follow, over any number of moves within one step."""
    seen, todo = set(), [state]
    while todo:
        for following in MOVES[todo.pop()]:
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PoolMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=500 if NIGHTLY else settings.default.max_examples,
    stateful_step_count=100 if NIGHTLY else 50,
)
TestPoolMachine = pytest.mark.timeout(1800 if NIGHTLY else 600)(PoolMachine.TestCase)
