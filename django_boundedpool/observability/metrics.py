"""Prometheus metrics, exported by django-prometheus' /metrics.

Gauges are set to absolute values when something happens, so they cannot drift. Under multiprocess mode additive ones
are summed over the living workers. Label values are registered names and fixed codes only.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from ..engine.events import Event, Kind
from ..lifecycle import runtime

PREFIX = "django_boundedpool"
WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
RUN_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

queue_depth = Gauge(f"{PREFIX}_queue_depth", "Jobs that wait.", ["pool"], multiprocess_mode="livesum")
queue_capacity = Gauge(f"{PREFIX}_queue_capacity", "Jobs that may wait.", ["pool"], multiprocess_mode="livesum")
queue_bytes = Gauge(
    f"{PREFIX}_queue_bytes", "Bytes of arguments that live jobs hold.", ["pool"], multiprocess_mode="livesum"
)
workers = Gauge(f"{PREFIX}_workers", "Jobs that may run at once.", ["pool"], multiprocess_mode="livesum")
workers_busy = Gauge(f"{PREFIX}_workers_busy", "Workers that run a job.", ["pool"], multiprocess_mode="livesum")
draining = Gauge(
    f"{PREFIX}_draining", "1 while a process is stopping and refuses.", ["pool"], multiprocess_mode="livemax"
)
submitted = Counter(
    f"{PREFIX}_submitted_total", "Submits by outcome; code says why one was refused.", ["pool", "outcome", "code"]
)
finished = Counter(f"{PREFIX}_finished_total", "Jobs that ended.", ["pool", "job_name", "state", "reason"])
retries = Counter(f"{PREFIX}_retries_total", "Attempts that failed and were followed by another.", ["pool", "job_name"])
cancel_requests = Counter(f"{PREFIX}_cancel_requests_total", "Running jobs that were asked to stop.", ["pool"])
queue_wait = Histogram(
    f"{PREFIX}_queue_wait_seconds", "Time from eligible to started.", ["pool", "job_name"], buckets=WAIT_BUCKETS
)
run_time = Histogram(
    f"{PREFIX}_run_seconds", "Time that the last attempt of a job ran.", ["pool", "job_name"], buckets=RUN_BUCKETS
)

_shown: set[tuple[int, str]] = set()


def on_event(event: Event) -> None:
    """Count one event and set the gauges of its pool."""
    if event.kind is Kind.JOB_ACCEPTED:
        submitted.labels(event.pool, "accepted", "").inc()
    elif event.kind is Kind.JOB_REJECTED:
        submitted.labels(event.pool, "rejected", event.code).inc()
    elif event.kind is Kind.JOB_STARTED:
        queue_wait.labels(event.pool, event.job_name).observe(event.waited)
    elif event.kind is Kind.JOB_RETRIED:
        retries.labels(event.pool, event.job_name).inc()
    elif event.kind is Kind.CANCEL_REQUESTED:
        cancel_requests.labels(event.pool).inc()
    elif event.kind is Kind.JOB_FINISHED and event.state is not None:
        finished.labels(event.pool, event.job_name, event.state.value, event.reason.value).inc()
        run_time.labels(event.pool, event.job_name).observe(event.ran)
    show(event.pool)


def show(pool_name: str) -> None:
    """Set the gauges of one pool to what is true now."""
    active = runtime.peek()
    pool = active.pools.get(pool_name) if active is not None else None
    if active is None or pool is None:
        return
    queued, running, size = pool.gauges()
    queue_depth.labels(pool_name).set(queued)
    workers_busy.labels(pool_name).set(running)
    queue_bytes.labels(pool_name).set(size)
    draining.labels(pool_name).set(int(pool.draining))
    if (active.pid, pool_name) not in _shown:
        _shown.add((active.pid, pool_name))
        workers.labels(pool_name).set(pool.config.workers)
        queue_capacity.labels(pool_name).set(pool.config.queue_size)
