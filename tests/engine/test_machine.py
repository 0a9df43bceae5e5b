"""The pool against a model: whatever happens in whatever order, no place is lost and every job ends once.

The model is a plain dictionary of states. Removing `_release_place_locked`, the state check of `attempt_returned` or
the capacity check of `reserve` makes this fail (tried by hand).
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from django_boundedpool.engine.errors import BytesFull, Draining, JobInterrupted, QueueFull
from django_boundedpool.engine.events import Kind
from django_boundedpool.engine.retry import Retry
from django_boundedpool.engine.states import MOVES, JobState, Reason

from .builders import Bench


class PoolMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")
    reserved = Bundle("reserved")

    @initialize(
        workers=st.integers(1, 3), queue=st.integers(0, 4), policy=st.sampled_from(["run", "cancel", "abandon"])
    )
    def build(self, workers, queue, policy):
        self.bench = Bench(
            workers=workers,
            queue_size=queue,
            queue_bytes=200,
            max_payload_bytes=100,
            on_shutdown=policy,
            retry_share=0.5,
        )
        self.pool = self.bench.pool
        self.capacity = workers + queue
        self.states = {}
        self.refused = 0
        self.over = False

    @rule(
        target=reserved,
        priority=st.integers(-2, 2),
        size=st.integers(8, 90),
        retry=st.booleans(),
        timeout=st.none() | st.floats(0.5, 3),
        start=st.none() | st.floats(0.5, 3),
    )
    def reserve(self, priority, size, retry, timeout, start):
        record = self.bench.record(
            payload="x" * size,
            priority=priority,
            timeout=timeout,
            start_deadline=start,
            retry=Retry(max_attempts=3, base=1, cap=2) if retry else None,
        )
        held = [r for r in self.states if not r.state.terminal]
        room = len(held) < self.capacity and sum(r.payload_bytes for r in held) + size <= 200
        try:
            self.pool.reserve(record)
        except (QueueFull, BytesFull, Draining):
            self.refused += 1
            assert self.pool.draining or not room
            return multiple()
        assert room
        assert not self.pool.draining
        self.states[record] = JobState.SUBMITTED
        return record

    @rule(target=jobs, record=consumes(reserved))
    def accept(self, record):
        self.pool.accept(record)
        assert record.state is not JobState.SUBMITTED
        return record

    @rule(record=consumes(reserved))
    def roll_back(self, record):
        self.pool.withdraw(record)
        del self.states[record]

    @rule()
    def take(self):
        if len(self.pool._running) < self.pool.config.workers:
            self.bench.take()

    @rule(record=jobs, reason=st.sampled_from([Reason.USER, Reason.OPERATOR]))
    def cancel(self, record, reason):
        before = record.state
        answer = self.pool.cancel(record.id, reason)
        expected = {JobState.QUEUED: "cancelled", JobState.RUNNING: "requested"}.get(before)
        assert answer == expected

    @rule(record=jobs, value=st.sampled_from([1, "text", object()]))
    def end_well(self, record, value):
        if record.state is JobState.RUNNING:
            self.pool.attempt_returned(record, value)
            assert record.state is not JobState.RUNNING

    @rule(record=jobs, error=st.sampled_from([ValueError("x"), SystemExit(0), KeyboardInterrupt(), None]))
    def end_badly(self, record, error):
        if record.state is JobState.RUNNING:
            reason = record.token.reason or Reason.USER
            self.pool.attempt_raised(record, error or JobInterrupted(reason))
            assert record.state is not JobState.RUNNING

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds):
        self.bench.advance(seconds)

    @rule(horizon=st.none() | st.floats(0, 5))
    def begin_drain(self, horizon):
        self.pool.begin_drain(None if horizon is None else self.bench.clock.monotonic() + horizon)

    @rule()
    def interrupt(self):
        self.pool.draining = True
        self.pool.interrupt()
        self.over = True

    @rule()
    def give_up(self):
        self.pool.draining = True
        self.pool.give_up()
        self.over = True
        assert not [r for r in self.states if r.state in (JobState.QUEUED, JobState.RUNNING)]

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        live = [r for r in self.states if not r.state.terminal]
        accepted = [r for r in self.states if r.state is not JobState.SUBMITTED]
        assert len(live) == len(self.pool._live) <= self.capacity
        assert stats.queued + stats.running <= self.capacity
        assert stats.accepted == len(accepted) == stats.queued + stats.running + sum(stats.finished.values())
        assert stats.queue_bytes == sum(r.payload_bytes for r in live)
        assert sum(stats.rejected.values()) == self.refused
        for record, before in self.states.items():
            if record.state is not before:
                assert record.state in reachable(before), (before, record.state)
                self.states[record] = record.state
            if record.state.terminal:
                ends = [e for e in self.bench.events if e.job_id == record.id and e.kind is Kind.JOB_FINISHED]
                assert len(ends) == 1
                assert self.bench.last(record)["state"] == record.state.value
                assert record.payload is None
        if self.over:
            assert stats.queued == 0

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.give_up()


def reachable(state):
    """Every state that may follow, over any number of moves within one step."""
    seen, todo = set(), [state]
    while todo:
        for following in MOVES[todo.pop()]:
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


PoolMachine.TestCase.settings = settings(
    deadline=None, max_examples=settings.default.max_examples, stateful_step_count=50
)
TestPoolMachine = pytest.mark.timeout(600)(PoolMachine.TestCase)
