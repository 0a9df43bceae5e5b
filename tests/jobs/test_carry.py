"""What travels from the submit to the job, and how it is put away afterwards."""

import contextvars
import datetime
import importlib
import sys
import threading
import types
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone, translation

from django_boundedpool import carry
from django_boundedpool.engine.payload import NotJson

HERE = "tests.jobs.test_carry"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

log: list[object] = []
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="")


class Noted:
    """A carrier that notes what is asked of it."""

    def __init__(self, name: str, value: object = "") -> None:
        self.name = name
        self.value = value or name

    def capture(self) -> object:
        log.append(f"capture {self.name}")
        return self.value

    def restore(self, value: object) -> Callable[[], object]:
        log.append(f"restore {value}")
        return lambda: log.append(f"undo {self.name}")


class Tenant:
    """A carrier as a project would write it."""

    def capture(self) -> str | None:
        return tenant.get() or None

    def restore(self, value: str) -> Callable[[], object]:
        token = tenant.set(value)
        return lambda: tenant.reset(token)


class Broken:
    def capture(self) -> object:
        raise LookupError("no capture")

    def restore(self, value: object) -> None:
        raise LookupError("no restore")


class Grudging:
    def capture(self) -> object:
        return "grudging"

    def restore(self, value: object) -> Callable[[], object]:
        def undo() -> None:
            raise LookupError("no undo")

        return undo


class Halting(Noted):
    def restore(self, value: object) -> Callable[[], object]:
        raise KeyboardInterrupt


class Sloppy(Noted):
    def restore(self, value: object) -> Any:
        return "not a callable"


class Greedy(Noted):
    def restore(self, value: object) -> Any:
        log.append(value)
        return value.clear  # type: ignore[attr-defined]


class ByClass:
    @classmethod
    def capture(cls) -> object:
        return None

    @staticmethod
    def restore(value: object) -> None:
        pass


class NeedsInstance:
    def capture(self) -> object: ...

    def restore(self, value: object) -> None: ...


class Async:
    async def capture(self) -> object: ...

    def restore(self, value: object) -> None: ...


first, second, third = Noted("first"), Noted("second"), Noted("third")
of_tenant, broken, grudging, halting, sloppy = Tenant(), Broken(), Grudging(), Halting("halting"), Sloppy("sloppy")
listed = Greedy("listed", ["a"])
dated = Noted("dated", datetime.date(2024, 1, 1))
huge = Noted("huge", "x" * 5000)
is_async = Async()
no_restore = types.SimpleNamespace(capture=lambda: None)


def paths(*names: str) -> tuple[str, ...]:
    return tuple(f"{HERE}.{name}" for name in names)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    log.clear()
    yield
    translation.deactivate()
    timezone.deactivate()


def there(taken: dict[str, Any] | None, carriers: tuple[str, ...], look: Callable[[], Any] = lambda: None) -> Any:
    """What `look` sees between restore and undo, in another thread and its empty context."""
    seen: list[Any] = []

    def run() -> None:
        undos = carry.restore(taken, carriers)
        try:
            seen.append(look())
        finally:
            carry.undo(undos)

    thread = threading.Thread(target=contextvars.Context().run, args=(run,))
    thread.start()
    thread.join()
    return seen[0]


def surroundings() -> tuple[str, str]:
    return translation.get_language(), timezone.get_current_timezone_name()


def test_nothing_to_carry_is_none() -> None:
    assert carry.capture(()) is None


def test_the_default_language_and_time_zone_are_not_carried(settings) -> None:
    translation.activate(settings.LANGUAGE_CODE)
    timezone.activate(settings.TIME_ZONE)
    assert carry.capture(()) is None


def test_what_was_activated_and_deactivated_is_not_carried() -> None:
    translation.activate("de")
    timezone.activate("Europe/Berlin")
    translation.deactivate()
    timezone.deactivate()
    assert carry.capture(()) is None


def test_no_language_at_all_is_not_carried() -> None:
    with translation.override(None):
        assert carry.capture(()) is None


def test_language_and_time_zone_arrive_in_another_thread() -> None:
    with translation.override("de"), timezone.override("Europe/Berlin"):
        taken = carry.capture(())
    assert taken == {"language": "de", "time_zone": "Europe/Berlin"}
    assert there(taken, (), surroundings) == ("de", "Europe/Berlin")


def test_language_and_time_zone_are_reset_to_what_was_active_before() -> None:
    undos = carry.restore({"language": "de", "time_zone": "Europe/Berlin"}, ())
    carry.undo(undos)
    assert carry.capture(()) is None
    with translation.override("fr"), timezone.override("Asia/Tokyo"):
        carry.undo(carry.restore({"language": "de", "time_zone": "Europe/Berlin"}, ()))
        assert surroundings() == ("fr", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (timezone.get_fixed_timezone(120), "+02:00"),
        (timezone.get_fixed_timezone(-210), "-03:30"),
        (datetime.timezone(datetime.timedelta(hours=5, seconds=7)), "+05:00:07"),
    ],
)
def test_a_zone_without_a_name_is_carried_as_its_offset(zone: datetime.timezone, text: str) -> None:
    with timezone.override(zone):
        taken = carry.capture(())
    assert taken == {"time_zone": text}
    moment = datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC)
    assert there(taken, (), lambda: timezone.localtime(moment).utcoffset()) == zone.utcoffset(None)


def test_a_zone_that_no_text_would_give_back_is_left_out() -> None:
    with open(next(iter(zone_files())), "rb") as file:
        nameless = zoneinfo.ZoneInfo.from_file(file)
    with timezone.override(nameless):
        assert carry.capture(()) is None


def zone_files() -> Iterator[str]:
    for folder in zoneinfo.TZPATH:
        try:
            open(f"{folder}/Europe/Berlin").close()
        except OSError:
            continue
        yield f"{folder}/Europe/Berlin"
    pytest.skip("this machine has no zone files")


def test_a_zone_that_the_other_process_does_not_know_is_logged_and_left_out(caplog) -> None:
    assert there({"time_zone": "Mars/Olympus", "language": "de"}, (), surroundings) == ("de", "UTC")
    assert "Restoring the time zone for a job failed" in caplog.text


@pytest.mark.parametrize("spoilt", [{"language": 5}, {"time_zone": 5}, {"time_zone": "+99"}, {"carriers": 5}])
def test_a_spoilt_stored_value_harms_no_job(spoilt: dict[str, Any], caplog) -> None:
    assert there(spoilt, paths("first"), lambda: "ran") == "ran"


def test_carriers_are_called_in_order_and_undone_in_reverse() -> None:
    carriers = paths("first", "second", "third")
    taken = carry.capture(carriers)
    assert taken is not None
    assert list(taken["carriers"]) == list(carriers)
    there(taken, carriers, lambda: log.append("the job"))
    assert log == [
        *("capture first", "capture second", "capture third"),
        *("restore first", "restore second", "restore third"),
        "the job",
        *("undo third", "undo second", "undo first"),
    ]


def test_a_context_variable_reaches_the_job_through_a_carrier() -> None:
    token = tenant.set("acme")
    taken = carry.capture(paths("of_tenant"))
    tenant.reset(token)
    assert there(taken, paths("of_tenant"), tenant.get) == "acme"


def test_a_carrier_that_has_nothing_is_not_carried_and_not_restored() -> None:
    assert carry.capture(paths("of_tenant")) is None


def test_a_carrier_that_fails_to_capture_is_logged_and_left_out(caplog) -> None:
    taken = carry.capture(("no.such.module", *paths("broken", "first")))
    assert taken == {"carriers": {f"{HERE}.first": "first"}}
    assert f"{HERE}.broken could not capture" in caplog.text
    assert "no.such.module could not capture" in caplog.text


def test_a_carrier_that_fails_to_restore_is_logged_and_harms_nothing(caplog) -> None:
    carriers = paths("first", "broken", "second")
    there({"carriers": {path: "value" for path in carriers}}, carriers, lambda: log.append("the job"))
    assert log == ["restore value", "restore value", "the job", "undo second", "undo first"]
    assert f"Restoring {HERE}.broken for a job failed" in caplog.text


def test_an_undo_that_fails_is_logged_and_the_others_follow(caplog) -> None:
    carriers = paths("first", "grudging", "second")
    there(carry.capture(carriers), carriers)
    assert log[-2:] == ["undo second", "undo first"]
    assert "Undoing what a job carried failed" in caplog.text


def test_a_restore_that_is_interrupted_undoes_what_was_restored() -> None:
    carriers = paths("first", "halting")
    with pytest.raises(KeyboardInterrupt):
        carry.restore(carry.capture(carriers), carriers)
    assert log[-1] == "undo first"


def test_a_restore_that_returns_no_callable_is_logged(caplog) -> None:
    there(carry.capture(paths("sloppy")), paths("sloppy"))
    assert "restore() returned a str" in caplog.text


def test_a_carriers_value_must_be_json(caplog) -> None:
    assert carry.capture(paths("dated")) is None
    assert caplog.records[0].exc_info[0] is NotJson  # type: ignore[index]
    assert f"{HERE}.dated.capture() is a datetime.date" in caplog.text


def test_a_carriers_value_is_bounded_and_does_not_appear_in_the_log(caplog) -> None:
    assert carry.capture(paths("huge")) is None
    assert "5002 bytes as JSON; at most 4096" in caplog.text
    assert "xxx" not in caplog.text


def test_a_carriers_value_is_a_copy() -> None:
    taken = carry.capture(paths("listed"))
    assert taken is not None
    assert taken["carriers"][f"{HERE}.listed"] is not listed.value


def test_each_attempt_restores_what_was_captured_whatever_the_one_before_did_with_it() -> None:
    taken = carry.capture(paths("listed"))
    log.clear()
    seen = []
    for _ in range(2):
        undos = carry.restore(taken, paths("listed"))
        seen.append(list(log.pop()))  # type: ignore[call-overload]
        carry.undo(undos)
    assert seen == [["a"], ["a"]]


def test_a_stored_path_that_is_not_in_the_setting_imports_nothing() -> None:
    there({"carriers": {f"{HERE}.first": 1, "tests.checks.raises_at_import.x": 1}}, paths("second"))
    assert log == []
    assert "tests.checks.raises_at_import" not in sys.modules


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no.such.module", "'no.such.module' cannot be imported (ModuleNotFoundError: No module named 'no'); give the"),
        (f"{HERE}.nobody", "cannot be imported (ImportError"),
        ("tests.checks.raises_at_import.x", "cannot be imported"),
        (f"{HERE}.no_restore", "has no method restore; give the dotted path of an object with capture() and restore("),
        (f"{HERE}.NeedsInstance", "is a class whose capture needs an instance; give the path of an instance."),
        (f"{HERE}.is_async", "has an async capture; make it a plain method"),
    ],
)
def test_the_check_names_the_path_and_the_remedy(path: str, said: str) -> None:
    (fault,) = carry.check([path])
    assert repr(path) in fault
    assert said in fault


def test_the_check_is_content_with_instances_and_with_class_methods() -> None:
    assert carry.check(paths("first", "of_tenant", "ByClass")) == []


@pytest.fixture
def span(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A current OpenTelemetry span; returns its trace parent. Without the real package, the little that is used."""
    try:
        from opentelemetry import trace  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        tracecontext: Any = types.ModuleType("opentelemetry.trace.propagation.tracecontext")

        class TraceContextTextMapPropagator:
            def inject(self, carrier: dict[str, str]) -> None:
                carrier["traceparent"] = PARENT

        tracecontext.TraceContextTextMapPropagator = TraceContextTextMapPropagator
        for name in ("opentelemetry", "opentelemetry.trace", "opentelemetry.trace.propagation"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, tracecontext.__name__, tracecontext)
        yield PARENT
        return
    context = trace.SpanContext(int(PARENT[3:35], 16), int(PARENT[36:52], 16), False, trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield PARENT


def test_the_trace_parent_of_the_current_span_is_carried(span: str) -> None:
    assert carry.capture(()) == {"traceparent": span}


def test_a_propagator_that_fails_does_not_refuse_the_submit(span: str, monkeypatch, caplog) -> None:
    tracecontext = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    monkeypatch.delattr(tracecontext, "TraceContextTextMapPropagator")
    assert carry.capture(()) is None
    assert "The trace parent of a job could not be captured" in caplog.text


def test_opentelemetry_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert carry.capture(()) is None
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]
