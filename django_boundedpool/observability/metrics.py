"""Prometheus metrics, exported by django-prometheus' /metrics.

Events are noted as they come and counted together, since a counter costs more than all else that is done for a small
job: at every scrape, at every request, every second, and when many are noted. Gauges are set to absolute values then,
so they cannot drift and a queue that stalls shows. Under multiprocess mode additive ones are summed over the living
workers. Label values are the names of pools and registered jobs, and fixed codes.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..engine.errors import ConfigurationError
from ..engine.events import ACCEPTED, FINISHED, STARTED, Kind, RawEvent
from ..engine.pool import Pool
from ..engine.states import SUCCEEDED
from ..lifecycle import runtime

logger = logging.getLogger("django_boundedpool.observability")

PREFIX = "django_boundedpool"
WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
RUN_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

#: Name, the field of `PoolStats` that it shows, what it is, and what several processes come to together.
GAUGES: tuple[tuple[str, str, str, Any], ...] = (
    ("queue_depth", "queued", "Jobs that wait, those for their next attempt included.", "livesum"),
    ("queue_delayed", "delayed", "Jobs that wait for the moment of their next attempt.", "livesum"),
    ("queue_capacity", "queue_size", "Jobs that may wait.", "livesum"),
    ("queue_bytes", "queue_bytes", "Bytes of arguments that waiting and running jobs hold.", "livesum"),
    (
        "queue_oldest_age_seconds",
        "oldest_age",
        "How long the first of the jobs that could start has waited.",
        "livemax",
    ),
    ("workers", "workers", "Jobs that may run at once.", "livesum"),
    ("workers_busy", "busy", "Workers that run a job, one that was given up included.", "livesum"),
    ("workers_stuck", "stuck", "Workers whose job has passed its time-out, or STUCK_AFTER.", "livesum"),
    ("draining", "draining", "1 while a process is stopping and refuses.", "livemax"),
)

LAG = "The longest that a thread of the process has waited for the interpreter's lock in the last ten seconds."

#: So many noted events of a kind are counted at once, by whoever notes the last.
MANY = 512

POOL_CHANGED = Kind.POOL_CHANGED

Item = TypeVar("Item")
Collector = TypeVar("Collector", Counter, Gauge, Histogram)


class _Cell:
    """What was noted of one job of one pool. Lists, since appending to one needs no lock."""

    __slots__ = ("accepted", "cancel_requests", "ends", "rejected", "retries", "runs", "successes", "waits")

    def __init__(self) -> None:
        self.accepted: list[None] = []
        self.rejected: list[str] = []
        self.waits: list[float] = []
        self.runs: list[float] = []
        self.successes: list[None] = []
        self.ends: list[tuple[Any, str]] = []
        self.retries: list[None] = []
        self.cancel_requests: list[None] = []


class Metrics:
    """Every metric of this package, in one registry. Safe from any thread.

    Arguments:
        registry: where they are exported. One that has them already gives its own, so that a module loaded a second
            time counts on.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._gauges = tuple((self._gauge(name, text, mode), field) for name, field, text, mode in GAUGES)
        self._bound: dict[str, list[tuple[Gauge, str]]] = {}
        self._cells: dict[str, dict[str, _Cell]] = {}
        self._counting = threading.Lock()
        counter, histogram = self._counter, self._histogram
        self.submitted = counter(
            "submitted_total", "Submits by outcome; code says why one was refused.", "outcome", "code"
        )
        self.finished = counter("finished_total", "Jobs that ended.", "job_name", "state", "reason")
        self.retries = counter("retries_total", "Attempts that failed and were followed by another.", "job_name")
        self.replaced = counter("workers_replaced_total", "Worker threads that died and were replaced.")
        self.cancel_requests = counter("cancel_requests_total", "Jobs that were asked to stop, waiting or running.")
        self.queue_wait = histogram("queue_wait_seconds", "From eligible to started.", WAIT_BUCKETS, "job_name")
        self.run_time = histogram("run_seconds", "How long an attempt ran.", RUN_BUCKETS, "job_name")
        self.lag = self._gauge("gil_lag_seconds", LAG, "livemax", labels=[])

    def _gauge(self, name: str, text: str, mode: Any, labels: Sequence[str] = ("pool",)) -> Gauge:
        return self._known(Gauge, name) or Gauge(
            f"{PREFIX}_{name}", text, labels, registry=self._registry, multiprocess_mode=mode
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._known(Counter, name) or Counter(
            f"{PREFIX}_{name}", text, ["pool", *labels], registry=self._registry
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return self._known(Histogram, name) or Histogram(
            f"{PREFIX}_{name}", text, ["pool", *labels], registry=self._registry, buckets=buckets
        )

    def _known(self, kind: type[Collector], name: str) -> Collector | None:
        # The library has no public way to ask; without this map a second load raises "duplicated timeseries".
        found = getattr(self._registry, "_names_to_collectors", {}).get(f"{PREFIX}_{name}")
        return found if isinstance(found, kind) else None

    def note(self, events: Sequence[RawEvent]) -> None:
        """Have `events` counted at the next `count`, which this is once there are many."""
        cells = self._cells
        for event in events:
            kind = event[0]
            try:
                cell = cells[event[1]][event[3]]
            except KeyError:
                cell = cells.setdefault(event[1], {}).setdefault(event[3], _Cell())
            if kind is ACCEPTED:
                cell.accepted.append(None)
                if len(cell.accepted) >= MANY:
                    self.count()
            elif kind is STARTED:
                cell.waits.append(event[8])
            elif kind is FINISHED:
                if event[5] is SUCCEEDED:
                    cell.successes.append(None)
                else:
                    cell.ends.append((event[5], event[6]))
                if event[9]:  # a job that ended while it waited ran for no time at all, not for a short one
                    cell.runs.append(event[9])
                if len(cell.successes) >= MANY or len(cell.ends) >= MANY:
                    self.count()
            elif kind is Kind.JOB_REJECTED:
                cell.rejected.append(event[7])
                if len(cell.rejected) >= MANY:
                    self.count()
            elif kind is Kind.JOB_RETRIED:
                cell.retries.append(None)
                cell.runs.append(event[9])
            elif kind is Kind.CANCEL_REQUESTED:
                cell.cancel_requests.append(None)
            elif kind is Kind.WORKER_REPLACED:
                self.replaced.labels(event[1]).inc()

    def count(self) -> None:
        """Count what was noted. Another thread that does so at this moment is not waited for."""
        if self._counting.locked():
            return
        with self._counting:
            for pool, cells in list(self._cells.items()):
                for job_name, cell in list(cells.items()):
                    self._count(pool, job_name, cell)

    def _count(self, pool: str, job_name: str, cell: _Cell) -> None:
        if accepted := len(_taken(cell.accepted)):
            self.submitted.labels(pool, "accepted", "").inc(accepted)
        for code, number in Tally(_taken(cell.rejected)).items():
            self.submitted.labels(pool, "rejected", code).inc(number)
        if successes := len(_taken(cell.successes)):
            self.finished.labels(pool, job_name, SUCCEEDED, "").inc(successes)
        for (state, reason), number in Tally(_taken(cell.ends)).items():
            self.finished.labels(pool, job_name, state, reason).inc(number)
        if retries := len(_taken(cell.retries)):
            self.retries.labels(pool, job_name).inc(retries)
        if requests := len(_taken(cell.cancel_requests)):
            self.cancel_requests.labels(pool).inc(requests)
        if waits := _taken(cell.waits):
            _observe(self.queue_wait.labels(pool, job_name), waits)
        if runs := _taken(cell.runs):
            _observe(self.run_time.labels(pool, job_name), runs)

    def show(self, pool: Pool) -> None:
        """Set the gauges of one pool to what is true now."""
        name = pool.config.name
        bound = self._bound.get(name)
        if bound is None:  # finding the child of a label costs more than setting it
            bound = self._bound[name] = [(gauge.labels(name), field) for gauge, field in self._gauges]
        stats = pool.stats()
        for gauge, field in bound:
            gauge.set(getattr(stats, field))


def _taken(noted: list[Item]) -> list[Item]:
    """Empty a list to which other threads append, and return what was in it."""
    items = noted[:]
    del noted[: len(items)]
    return items


def _observe(child: Any, values: list[float]) -> None:
    """Observe many values at once: bucket by bucket where the library's own fields can be used, else one by one."""
    try:
        bounds, buckets, total = child._upper_bounds, child._buckets, child._sum
    except AttributeError:
        for value in values:
            child.observe(value)
        return
    values.sort()
    seen = 0
    for bound, bucket in zip(bounds, buckets, strict=True):
        below = bisect_right(values, bound)
        if below > seen:
            bucket.inc(below - seen)
            seen = below
            if seen == len(values):
                break
    total.inc(sum(values))


class _AtScrape:
    """Has everything counted before a registry shows it. Registered before the metrics: it is asked first."""

    def describe(self) -> Iterator[Any]:
        """Name nothing: a registry asks when the collector is registered, and there is nothing to count yet."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Show nothing of its own."""
        refresh()
        return iter(())


def _register() -> Metrics:
    known = getattr(REGISTRY, "_names_to_collectors", {})
    if f"{PREFIX}_workers" not in known:  # a module loaded a second time finds the first one's
        REGISTRY.register(_AtScrape())
    return Metrics()


metrics = _register()


def _forked() -> None:
    metrics._counting = threading.Lock()  # another thread of the parent may have had it
    metrics._cells.clear()  # the parent's


os.register_at_fork(after_in_child=_forked)


def on_events(events: Sequence[RawEvent]) -> None:
    """Note events for the next scrape; show everything where the gauges alone have changed, which nobody counts."""
    if events[0][0] is POOL_CHANGED:
        refresh()
    else:
        metrics.note(events)


def refresh() -> None:
    """Count what was noted and set the gauges of every pool of this process, so that one shows before its first job."""
    metrics.count()
    try:
        active = runtime.current()
    except ConfigurationError:
        return  # reported by the check and by every submit
    for pool in active.pools.values():
        metrics.show(pool)
    metrics.lag.set(active.lag.seconds)
