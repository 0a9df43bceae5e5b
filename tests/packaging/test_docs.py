"""The documentation says what the code says."""

import re
import runpy
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from django_boundedpool.engine.config import PoolConfig, ProcessOptions
from django_boundedpool.engine.errors import REJECTIONS
from django_boundedpool.engine.states import Reason

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the tests run against an installed wheel")

ROW = re.compile(r"^\| `([A-Z_]+)` \| `(.+?)` \| .+ \|$", re.MULTILINE)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def documented(section: str) -> dict[str, object]:
    """Key and default of every row of one settings table."""
    text = page("settings.md").split(f"<!-- settings:{section}:begin")[1].split(f"<!-- settings:{section}:end")[0]
    return {
        key: plain(eval(re.sub(r"(\d+) days", r"timedelta(days=\1)", default))) for key, default in ROW.findall(text)
    }


def plain(value: object) -> object:
    """A default in a form that can be compared: seconds for timedeltas, a dict of plain keys for mappings."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def test_state_table_is_the_one_in_the_code() -> None:
    module = runpy.run_path(str(DOCS / "states_table.py"))
    assert page("states.md") == module["with_table"](page("states.md")), "run: .venv/bin/python docs/states_table.py"


def test_every_reason_is_explained() -> None:
    assert [reason for reason in Reason if reason and f"| `{reason}` |" not in page("states.md")] == []


def test_every_refusal_code_has_its_row() -> None:
    text = page("http.md")
    assert [cls for cls in REJECTIONS if f"| `{cls.code}` | `{cls.__name__}` |" not in text] == []


@pytest.mark.parametrize(("section", "record"), [("pool", PoolConfig()), ("options", ProcessOptions())])
def test_documented_defaults_are_those_of_the_code(section: str, record: object) -> None:
    for key, default in documented(section).items():
        assert plain(getattr(record, key.lower())) == default, key


@pytest.mark.parametrize("kind", [PoolConfig, ProcessOptions])
def test_every_setting_is_documented(kind: type) -> None:
    text = page("settings.md")
    keys = [field.name.upper() for field in fields(kind) if field.name != "name"]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_every_check_has_its_row() -> None:
    source = (DOCS.parent / "django_boundedpool" / "checks.py").read_text(encoding="utf-8")
    ids = set(re.findall(r"boundedpool\.[EW]\d{3}", source))
    assert ids
    assert ids == set(re.findall(r"^\| `(boundedpool\.[EW]\d{3})` \|", page("settings.md"), re.MULTILINE))


def test_every_option_of_a_job_is_documented() -> None:
    from django_boundedpool.engine.options import CALL_OPTIONS, JOB_OPTIONS

    text = page("quickstart.md")
    assert [option for option in JOB_OPTIONS if f"| `{option}` |" not in text] == []
    assert [option for option in CALL_OPTIONS if f"`{option}`" not in text] == []


def test_every_member_of_a_context_and_of_a_handle_is_documented() -> None:
    from django_boundedpool import JobContext, JobHandle

    text = page("quickstart.md")
    for cls in (JobContext, JobHandle):
        attributes = re.findall(r"^ {8}(\w+):", str(cls.__doc__), re.MULTILINE)
        names = {*attributes, *(name for name in vars(cls) if not name.startswith("_"))} - {"of_row"}
        assert len(names) > len(attributes)
        assert [
            name for name in names if not re.search(rf"^\|.*`(JobHandle\.)?{name}[`(].*\|", text, re.MULTILINE)
        ] == []


def test_every_member_of_a_job_in_json_is_documented() -> None:
    from django_boundedpool.http.serialise import as_json
    from django_boundedpool.models import Job

    table = page("http.md").split("<!-- members:begin")[1].split("<!-- members:end")[0]
    documented = [
        name for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"\w+", cell)
    ]
    assert documented == list(as_json(Job()))


def test_every_error_of_the_endpoints_has_its_row() -> None:
    source = (DOCS.parent / "django_boundedpool" / "http" / "views.py").read_text(encoding="utf-8")
    problems = set(re.findall(r'problem\((\d{3}), "(\w+)"', source))
    assert problems
    text = page("http.md").split("### Errors of the endpoints")[1].split("\n## ")[0]
    assert problems == {(status, code) for code, status in re.findall(r"^\| `(\w+)` \| (\d{3}) \|", text, re.MULTILINE)}


def test_metrics_and_their_labels_are_those_of_the_code() -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    from django_boundedpool.observability.metrics import PREFIX, Metrics

    registry = CollectorRegistry()
    Metrics(registry)
    real = {}
    for collector in registry._collector_to_names:
        assert isinstance(collector, Counter | Gauge | Histogram)
        total = "_total" if isinstance(collector, Counter) else ""
        name = collector._name.removeprefix(f"{PREFIX}_") + total
        real[name] = (type(collector).__name__.lower(), list(collector._labelnames))
    table = page("http.md").split("<!-- metrics:begin")[1].split("<!-- metrics:end")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+?) \|", table, re.MULTILINE)
    assert {name: (kind, re.findall(r"\w+", labels)) for name, kind, labels in rows} == real


def test_every_event_is_documented_in_the_order_of_the_code() -> None:
    from django_boundedpool.engine import events

    table = page("events.md").split("<!-- events:begin")[1].split("<!-- events:end")[0]
    rows = re.findall(r"^\| `(\w+)` \| .+? \| (.*?) ?\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [kind.value for kind in events.Kind]
    named = {name for _, fields in rows for name in re.findall(r"`(\w+)`", fields)}
    assert named - {"job_id"} <= set(events.Event._fields)
    assert re.findall(r"^(\w+)  +[a-z]", str(events.__doc__), re.MULTILINE)[1:] == [kind.value for kind in events.Kind]


def test_every_refusal_that_can_happen_is_explained() -> None:
    from django_boundedpool import GlobalLimit, IdempotencyConflict, RateLimited

    text = page("admission.md")
    later = (IdempotencyConflict, RateLimited, GlobalLimit)
    explained = {cls for cls in REJECTIONS if f"| `{cls.code}` | `{cls.__name__}` |" in text}
    assert explained == set(REJECTIONS) - set(later)


def test_every_call_of_a_pool_at_run_time_is_documented() -> None:
    from django_boundedpool.engine.pool import Pool

    calls = re.findall(r"^\| `pools\[\"default\"\]\.(\w+)\(", page("admission.md"), re.MULTILINE)
    assert calls == ["pause", "resume", "resize", "join", "drain", "stats"]
    assert all(hasattr(Pool, name) for name in calls)
