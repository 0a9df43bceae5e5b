"""The order of waiting jobs against a list that is sorted anew each time."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_boundedpool.engine.queue import JobQueue
from django_boundedpool.engine.spec import CPU, LOOP, THREAD

from .builders import Bench

pytestmark = pytest.mark.fast

bench = Bench()
KINDS = {THREAD: {}, CPU: {"lane": "cpu"}, LOOP: {"asynchronous": True}}
RUNS_ON = st.sampled_from([THREAD, THREAD, CPU, LOOP])


def job(priority=0, lane=THREAD, attempt=0):
    record = bench.record(priority=priority, **KINDS[lane])
    record.attempt = attempt
    return record


def check(queue, jobs, ageing):
    """`jobs` are those in the queue, with since when, in the order of their coming."""
    assert len(queue) == queue.length == len(jobs)
    assert set(queue) == {record for record, _ in jobs}
    assert queue.oldest() == min((since for _, since in jobs), default=None)
    ranks = {
        record: (since - record.spec.priority * ageing, -record.spec.priority, number)
        for number, (record, since) in enumerate(jobs)
    }
    for without in (None, THREAD, CPU, LOOP):
        left = [record for record, _ in jobs if record.spec.runs_on is not without]
        best = queue.best(without)
        if not left:
            assert best is None
            continue
        # Between lanes of one priority that became eligible in the same moment either may be first.
        first = queue.first(best)
        assert ranks[first][:2] == min(ranks[record][:2] for record in left)
        assert first is min((r for r in left if r.spec.line == first.spec.line), key=ranks.__getitem__)
    for priority in (-2, 0, 3):
        lower = [(r, since) for r, since in jobs if r.spec.priority < priority and not r.attempt]
        found = list(queue.expendable(priority))
        assert set(found) == {record for record, _ in lower}
        since = dict(jobs)
        order = [(record.spec.priority, -since[record]) for record in found]
        assert order == sorted(order)
        for one, other in itertools.combinations(found, 2):
            if one.spec.line == other.spec.line:
                assert ranks[one][2] > ranks[other][2] or one.spec.priority != other.spec.priority
    # What is known of the heads is true of the jobs.
    assert set(queue._heads) == {record.spec.line for record, _ in jobs}
    for key, order in queue._heads.items():
        head = next(since for record, since in jobs if record.spec.line == key)
        assert order is None or order == head - key[0] * queue._ageing


@settings(max_examples=3 * settings.default.max_examples)
@given(
    ageing=st.sampled_from([0, 0.5, 30]),
    steps=st.lists(
        st.tuples(st.just("push"), st.integers(-3, 3), RUNS_ON, st.integers(0, 1), st.sampled_from([0, 0.5, 1, 40]))
        | st.tuples(st.sampled_from(["pop", "remove"]), st.integers(0, 100)),
        max_size=30,
    ),
)
def test_whatever_comes_and_goes_the_order_is_that_of_a_sorted_list(ageing, steps):
    queue, jobs, now = JobQueue(ageing), [], 100.0
    for step in steps:
        if step[0] == "push":
            _, priority, lane, attempt, later = step
            now += later
            record = job(priority, lane, attempt)
            assert not queue.remove(record)
            queue.push(record, now)
            jobs.append((record, now))
        elif step[0] == "pop":
            if (best := queue.best()) is not None:
                first = queue.first(best)
                assert queue.pop(best) is first
                jobs = [entry for entry in jobs if entry[0] is not first]
        elif jobs:
            record = jobs.pop(step[1] % len(jobs))[0]
            assert queue.remove(record) is True
            assert queue.remove(record) is False
        check(queue, jobs, ageing)


@pytest.mark.parametrize("how", ["pop", "remove"])
def test_who_goes_takes_nobody_along(how):
    queue, jobs = JobQueue(30), [job(), job(1), job(), job(1, CPU), job(1)]
    for moment, record in enumerate(jobs):
        queue.push(record, float(moment))
    left = list(jobs)
    while left:
        record = queue.pop(queue.best()) if how == "pop" else left[0]
        assert how == "pop" or queue.remove(record)
        left.remove(record)
        check(queue, [(other, float(jobs.index(other))) for other in left], 30)


def test_on_a_tie_the_higher_priority_is_first_whichever_came_first():
    for order in itertools.permutations([(0, 100.0), (1, 130.0), (-1, 70.0)]):
        queue = JobQueue(30)
        records = {}
        for priority, since in order:
            records[priority] = job(priority)
            queue.push(records[priority], since)
        assert [queue.pop(queue.best()) for _ in range(3)] == [records[1], records[0], records[-1]]


def test_a_lane_that_is_empty_again_costs_no_pop_anything():
    queue = JobQueue(30)
    for priority in range(-100, 101):
        queue.push(job(priority), 1.0)
        queue.pop(queue.best())
    assert not queue._heads
    assert queue.best() is None
    assert queue.oldest() is None
    assert list(queue.expendable(100)) == []
