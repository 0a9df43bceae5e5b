"""Metrics, as django-prometheus' /metrics shows them."""

import importlib
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_boundedpool import InvalidArguments, QueueFull, observability, pools, testing
from django_boundedpool.engine.events import Event, Kind
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.lifecycle import runtime
from django_boundedpool.observability import metrics
from tests import face_jobs

PREFIX = "django_boundedpool_"
GAUGES = {
    "queue_depth", "queue_delayed", "queue_capacity", "queue_bytes", "queue_oldest_age_seconds", "workers",
    "workers_busy", "workers_stuck", "draining",
}  # fmt: skip
ADD, HOLD, FAIL, TWICE = (f.spec.name for f in (face_jobs.add, face_jobs.hold, face_jobs.fail, face_jobs.fail_twice))

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape() -> Scrape:
    text = Client().get("/metrics").content.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX) and not sample.name.endswith("_created")
    }


def value(found: Scrape, name: str, **labels: str) -> float:
    return found.get((PREFIX + name, frozenset({"pool": "default", **labels}.items())), 0.0)


@pytest.fixture
def change() -> Callable[..., float]:
    """How much a value has changed since the test began."""
    before = scrape()
    return lambda name, **labels: value(scrape(), name, **labels) - value(before, name, **labels)


def test_gauges_exist_before_the_first_job(transactional_db: None, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 3, "QUEUE_SIZE": 7}, f"fresh_{uuid.uuid4().hex[:8]}": {}}
    found = scrape()
    for pool in settings.BOUNDED_POOLS:
        for name in GAUGES:
            assert (PREFIX + name, frozenset({("pool", pool)})) in found, name
    assert (value(found, "workers"), value(found, "queue_capacity")) == (3, 7)
    assert value(found, "workers_busy") == value(found, "queue_depth") == value(found, "draining") == 0


def test_submit_run_cancel_and_refuse_are_counted(
    transactional_db: None, held: None, settings: Any, change: Callable[..., float]
) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 2}}
    running = face_jobs.hold.submit()
    assert face_jobs.started.wait(10)
    first, second = face_jobs.add.submit(1, 2), face_jobs.add.submit(3, 4)
    with pytest.raises(QueueFull):
        face_jobs.add.submit(5, 6)
    found = scrape()
    assert (value(found, "queue_depth"), value(found, "workers_busy")) == (2, 1)
    assert value(found, "queue_bytes") == pools["default"].stats().queue_bytes > 0
    assert value(found, "queue_oldest_age_seconds") > 0
    assert value(found, "workers_stuck") == 0
    assert change("submitted_total", outcome="accepted", code="") == 3
    assert change("submitted_total", outcome="rejected", code="queue_full") == 1

    assert first.cancel() == "cancelled"
    assert running.cancel() == "requested"
    assert value(scrape(), "queue_depth") == 1
    assert change("cancel_requests_total") == 2
    face_jobs.release.set()
    testing.join()
    assert second.result(10) == 7
    found = scrape()
    assert value(found, "queue_depth") == value(found, "workers_busy") == value(found, "queue_bytes") == 0
    assert value(found, "queue_oldest_age_seconds") == 0
    assert change("finished_total", job_name=HOLD, state="succeeded", reason="") == 1
    assert change("finished_total", job_name=ADD, state="succeeded", reason="") == 1
    assert change("finished_total", job_name=ADD, state="cancelled", reason="user") == 1
    assert change("queue_wait_seconds_count", job_name=ADD) == 1
    # The one that was cancelled while it waited did not run for zero seconds: it did not run.
    assert change("run_seconds_count", job_name=ADD) == 1


def test_a_failure_and_a_retry_are_counted(inline: None, change: Callable[..., float]) -> None:
    face_jobs.fail_twice.submit()
    face_jobs.fail.submit()
    assert change("retries_total", job_name=TWICE) == 1
    assert change("finished_total", job_name=TWICE, state="failed", reason="attempts_exhausted") == 1
    assert change("finished_total", job_name=FAIL, state="failed", reason="error") == 1
    assert change("queue_wait_seconds_count", job_name=TWICE) == 2


def test_a_draining_process_shows(inline: None) -> None:
    pools["default"].draining = True
    assert value(scrape(), "draining") == 1


def test_the_lag_of_the_process_shows_without_a_pool(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scrape()
    assert found[f"{PREFIX}gil_lag_seconds", frozenset()] >= 0
    monkeypatch.setattr(type(runtime.current().lag), "seconds", property(lambda lag: 0.25))
    assert scrape()[f"{PREFIX}gil_lag_seconds", frozenset()] == 0.25


def test_the_gauges_follow_changed_settings(db: None, settings: Any) -> None:
    for workers in (2, 5):
        settings.BOUNDED_POOLS = {"default": {"WORKERS": workers}}
        assert value(scrape(), "workers") == workers


def test_a_wrong_setting_does_not_break_a_page(db: None, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 0}}
    assert Client().get("/metrics").status_code == 200


def test_M04_the_number_of_series_is_constant(inline: None) -> None:
    face_jobs.echo.submit("warm up")
    with pytest.raises(KeyError):
        face_jobs.fail.submit("nonsense").result()
    with pytest.raises(InvalidArguments):
        face_jobs.echo.submit(object())
    before = set(scrape())
    for number in range(60):
        face_jobs.echo.using(owner=number, batch=f"b{number}", correlation_id=f"c{number}", priority=number).submit(
            f"value {number}"
        )
        face_jobs.fail.submit(f"nonsense {number}")
        with pytest.raises(InvalidArguments):
            face_jobs.echo.submit(object())
    assert set(scrape()) == before


def test_M05_reloading_the_module_keeps_counting_once(inline: None, change: Callable[..., float]) -> None:
    importlib.reload(metrics)
    observability.install()
    observability.install()
    face_jobs.add.submit(1, 2)
    assert change("submitted_total", outcome="accepted", code="") == 1
    assert change("finished_total", job_name=ADD, state="succeeded", reason="") == 1


def test_M05_the_module_imported_a_second_time_shares_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    name = metrics.__name__
    monkeypatch.delitem(sys.modules, name)
    again = importlib.import_module(name)
    assert again is not metrics
    assert again.metrics.submitted is metrics.metrics.submitted
    monkeypatch.undo()
    observability.metrics = metrics  # type: ignore[attr-defined]


def test_M05_setting_the_app_up_twice_counts_once(inline: None, change: Callable[..., float]) -> None:
    from django.apps import apps

    listeners = runtime.EVENTS._listeners
    apps.get_app_config("boundedpool").ready()
    try:
        face_jobs.add.submit(1, 2)
        assert change("submitted_total", outcome="accepted", code="") == 1
    finally:
        runtime.EVENTS._listeners = listeners


@pytest.mark.fast
def test_M05_a_second_registry_has_its_own_metrics() -> None:
    registry = CollectorRegistry()
    second = metrics.Metrics(registry)
    second.note([Event(kind=Kind.JOB_ACCEPTED, pool="second")])
    second.count()
    text = generate_latest(registry).decode()
    assert 'django_boundedpool_submitted_total{code="",outcome="accepted",pool="second"} 1.0' in text
    assert 'pool="second"' not in generate_latest().decode()
    assert metrics.Metrics(registry).submitted is second.submitted


@pytest.mark.fast
def test_M05_names_are_unique_after_the_suffix_rules_and_follow_them() -> None:
    registry = CollectorRegistry()
    second = metrics.Metrics(registry)
    finished: dict[str, Any] = {"kind": Kind.JOB_FINISHED, "pool": "p", "job_name": "j", "ran": 1.0}
    for event in (
        *(Event(kind=kind, pool="p", job_name="j") for kind in Kind),
        Event(state=JobState.FAILED, reason=Reason.ERROR, **finished),
    ):
        second.note([event])
    second.count()
    names = [family.name for family in registry.collect()]
    samples = [s.name for f in registry.collect() for s in {s.name: s for s in f.samples}.values()]
    assert len(names) == len(set(names))
    assert len(samples) == len(set(samples))
    for family in registry.collect():
        assert family.name.startswith(PREFIX)
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


@pytest.mark.fast
def test_M05_the_product_works_without_prometheus(python_env: dict[str, str]) -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_boundedpool"], BOUNDED_POOL_OPTIONS={"INLINE": True}, USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.core.signals import request_started
request_started.send(object)
from tests.face_jobs import add
print(add.submit(1, 2).result())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=python_env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


@pytest.mark.fast
def test_a_job_of_a_pool_that_is_gone_is_counted(settings: Any) -> None:
    before = generate_latest().decode().count('pool="gone"')
    metrics.on_events([Event(kind=Kind.JOB_RETRIED, pool="gone", job_name="j")])
    assert generate_latest().decode().count('pool="gone"') > before


@pytest.mark.slow
def test_under_multiprocess_mode_each_process_adds_its_own(
    transactional_db: None, python_env: dict[str, str], tmp_path: Any
) -> None:
    """Two processes, one directory: what either exports is the sum."""
    code = """
import django
django.setup()
from django.core.signals import request_started
request_started.send(object)
from django_boundedpool.engine.events import Event, Kind
from django_boundedpool.lifecycle import runtime
runtime.EVENTS.emit([Event(kind=Kind.JOB_ACCEPTED, pool="default")] * 5)
request_started.send(object)  # the scrape's own
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
print("ready", flush=True)
input()
"""
    env = {**python_env, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    running = []
    try:
        texts = []
        for _ in range(2):
            child = subprocess.Popen(
                [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            running.append(child)
            assert child.stdout is not None
            lines = iter(child.stdout.readline, "ready\n")
            texts.append("".join(lines))
        assert 'django_boundedpool_submitted_total{code="",outcome="accepted",pool="default"} 10.0' in texts[1]
        assert 'django_boundedpool_workers{pool="default"} 4.0' in texts[0]
        assert 'django_boundedpool_workers{pool="default"} 8.0' in texts[1]
        assert 'django_boundedpool_draining{pool="default"} 0.0' in texts[1]
    finally:
        for child in running:
            child.communicate("\n", timeout=30)
