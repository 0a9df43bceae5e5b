"""Prometheus metrics, exported by django-prometheus' /metrics.

Gauges are set to absolute values when something happens and at every request, so they cannot drift and a queue that
stalls shows. Under multiprocess mode additive ones are summed over the living workers. Label values are the names of
pools and registered jobs, and fixed codes.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..engine.errors import ConfigurationError
from ..engine.events import Event, Kind
from ..engine.pool import Pool
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
    ("workers_busy", "running", "Workers that run a job.", "livesum"),
    ("workers_stuck", "stuck", "Workers whose job has passed its time-out, or STUCK_AFTER.", "livesum"),
    ("draining", "draining", "1 while a process is stopping and refuses.", "livemax"),
)

Collector = TypeVar("Collector", Counter, Gauge, Histogram)


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
        counter, histogram = self._counter, self._histogram
        self.submitted = counter(
            "submitted_total", "Submits by outcome; code says why one was refused.", "outcome", "code"
        )
        self.finished = counter("finished_total", "Jobs that ended.", "job_name", "state", "reason")
        self.retries = counter("retries_total", "Attempts that failed and were followed by another.", "job_name")
        self.cancel_requests = counter("cancel_requests_total", "Jobs that were asked to stop, waiting or running.")
        self.queue_wait = histogram("queue_wait_seconds", "From eligible to started.", WAIT_BUCKETS, "job_name")
        self.run_time = histogram("run_seconds", "How long an attempt ran.", RUN_BUCKETS, "job_name")

    def _gauge(self, name: str, text: str, mode: Any) -> Gauge:
        return self._known(Gauge, name) or Gauge(
            f"{PREFIX}_{name}", text, ["pool"], registry=self._registry, multiprocess_mode=mode
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

    def count(self, event: Event) -> None:
        """Count one event."""
        if event.kind is Kind.JOB_ACCEPTED:
            self.submitted.labels(event.pool, "accepted", "").inc()
        elif event.kind is Kind.JOB_REJECTED:
            self.submitted.labels(event.pool, "rejected", event.code).inc()
        elif event.kind is Kind.JOB_STARTED:
            self.queue_wait.labels(event.pool, event.job_name).observe(event.waited)
        elif event.kind is Kind.JOB_RETRIED:
            self.retries.labels(event.pool, event.job_name).inc()
            self.run_time.labels(event.pool, event.job_name).observe(event.ran)
        elif event.kind is Kind.CANCEL_REQUESTED:
            self.cancel_requests.labels(event.pool).inc()
        elif event.kind is Kind.JOB_FINISHED and event.state is not None:
            self.finished.labels(event.pool, event.job_name, event.state.value, event.reason.value).inc()
            if event.ran:  # a job that ended while it waited ran for no time at all, not for a short one
                self.run_time.labels(event.pool, event.job_name).observe(event.ran)

    def show(self, pool: Pool) -> None:
        """Set the gauges of one pool to what is true now."""
        name = pool.config.name
        bound = self._bound.get(name)
        if bound is None:  # finding the child of a label costs more than setting it
            bound = self._bound[name] = [(gauge.labels(name), field) for gauge, field in self._gauges]
        stats = pool.stats()
        for gauge, field in bound:
            gauge.set(getattr(stats, field))


metrics = Metrics()


def on_event(event: Event) -> None:
    """Count one event and set the gauges of its pool."""
    metrics.count(event)
    active = runtime.peek()
    pool = active.pools.get(event.pool) if active is not None else None
    if pool is not None:
        metrics.show(pool)


def refresh() -> None:
    """Set the gauges of every pool of this process, so that a pool shows before its first job."""
    try:
        pools = runtime.current().pools
    except ConfigurationError:
        return  # reported by the check and by every submit
    for pool in pools.values():
        metrics.show(pool)
