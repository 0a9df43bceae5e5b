"""Each system check: triggered, and silent when all is well."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core import mail
from django.core.checks import CheckMessage
from django.db import connections
from django.urls import clear_url_caches, include, path

from django_boundedpool import checks, job, jobs
from django_boundedpool.engine.config import OPTION_KEYS, POOL_KEYS
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.middleware import OverloadMiddleware
from tests import face_jobs

pytestmark = pytest.mark.fast

Run = Callable[[], list[CheckMessage]]


def run() -> list[CheckMessage]:
    """What `manage.py check --tag boundedpool` reports."""
    return django_checks.run_checks(tags=["boundedpool"])


def ids() -> set[str]:
    return {str(message.id) for message in run()}


def messages(which: str) -> list[CheckMessage]:
    return [message for message in run() if message.id == which]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one well-behaved job is declared, whatever other tests declare."""
    monkeypatch.setattr(jobs, "_registry", {face_jobs.add.spec.name: face_jobs.add})


def test_nothing_is_reported_when_all_is_well(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 2}, "reports": {"QUEUE_SIZE": 0, "TIMEOUT": timedelta(minutes=1)}}
    settings.BOUNDED_POOL_OPTIONS = {"AUTHORIZE": f"{__name__}.allow", "RELEASE": "2026.11"}
    assert run() == []


def test_nothing_is_reported_without_any_setting() -> None:
    assert run() == []


def test_a_check_has_a_hint_that_says_what_to_do(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 0}, "x": {"RETENTION": {"failed": 1}}}
    settings.MIDDLEWARE = []
    for message in run():
        assert message.hint
        assert str(message.hint)[0].isupper() or str(message.hint)[0] in "@"


def test_checks_are_registered_once_however_often_the_app_is_set_up() -> None:
    before = len(django_checks.registry.registry.registered_checks)
    checks.register_all()
    assert len(django_checks.registry.registry.registered_checks) == before


def allow(request: Any, job: Any, action: str) -> bool:
    return True


async def allow_async(request: Any, job: Any, action: str) -> bool:
    return True


class AllowAsync:
    async def __call__(self, request: Any, job: Any, action: str) -> bool:
        return True


allow_async_object = AllowAsync()
not_callable = 7

# E001 ----------------------------------------------------------------------------------------------------------------

IMPOSSIBLE = [0, -1, None, True, 1.5, "10"]


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_V06_workers_that_cannot_be_are_an_error(settings: Any, value: object) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": value}}
    (message,) = messages("boundedpool.E001")
    assert "WORKERS" in message.msg
    assert repr(value) in message.msg
    assert "from 1 to" in str(message.hint)


@pytest.mark.parametrize("value", IMPOSSIBLE[1:])
def test_V06_a_bound_that_cannot_be_is_an_error(settings: Any, value: object) -> None:
    settings.BOUNDED_POOLS = {"default": {"QUEUE_SIZE": value}}
    (message,) = messages("boundedpool.E001")
    assert "QUEUE_SIZE" in message.msg


@pytest.mark.parametrize("key", ["WORKERS", "QUEUE_SIZE"])
@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_V06_the_first_submit_refuses_what_the_check_reports(db: None, settings: Any, key: str, value: object) -> None:
    settings.BOUNDED_POOLS = {"default": {key: value}}
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}
    if (key, value) == ("QUEUE_SIZE", 0) and type(value) is int:
        assert face_jobs.add.submit(1, 2).result() == 3
        return
    with pytest.raises(ConfigurationError, match=key):
        face_jobs.add.submit(1, 2)


def test_V06_a_bound_of_zero_means_that_nothing_waits(transactional_db: None, held: None, settings: Any) -> None:
    from django_boundedpool import QueueFull

    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    assert run() == []
    handle = face_jobs.hold.submit()
    assert face_jobs.started.wait(10)
    with pytest.raises(QueueFull):
        face_jobs.add.submit(1, 2)
    face_jobs.release.set()
    assert handle.result(10) == "released"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("WORKER", "WORKERS"), ("workers", "WORKERS"), ("QUEUE_LENGTH", "QUEUE_SIZE"), ("TIMEOUTS", "TIMEOUT")],
)
def test_V06_an_unknown_key_names_the_one_that_was_meant(settings: Any, given: str, meant: str) -> None:
    settings.BOUNDED_POOLS = {"default": {given: 1}}
    (message,) = messages("boundedpool.E001")
    assert given in message.msg
    if given != "QUEUE_LENGTH":
        assert f"id you mean {meant!r}?" in str(message.hint)


def test_V06_a_key_like_no_other_lists_them_all(settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"XYZ": 1}}
    settings.BOUNDED_POOL_OPTIONS = {"XYZ": 1}
    pool, options = messages("boundedpool.E001")
    later = {"ADOPT_WITHIN", "LINGER", "HAND_OVER_TO", "OVERFLOW"}
    assert [key for key in POOL_KEYS if key not in str(pool.hint)] == [key for key in POOL_KEYS if key in later]
    assert all(key in str(options.hint) for key in OPTION_KEYS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("BOUNDED_POOL", "BOUNDED_POOLS"), ("BOUNDEDPOOLS", "BOUNDED_POOLS"),
     ("BOUNDED_POOLS_OPTIONS", "BOUNDED_POOL_OPTIONS"), ("BOUNDED_POOL_SETTINGS", "BOUNDED_POOL_OPTIONS")],
)  # fmt: skip
def test_a_setting_named_almost_as_ours_is_reported(settings: Any, name: str, meant: str) -> None:
    setattr(settings, name, {})
    (message,) = messages("boundedpool.W009")
    assert message.msg == f"The setting {name} is not read."
    assert message.hint == f"Did you mean {meant!r}?"


def test_a_setting_named_otherwise_is_none_of_ours(settings: Any) -> None:
    settings.BOUNDED_SIZE = settings.BOUNDED_CONTEXT = settings.POOL_OPTIONS = 1
    assert "boundedpool.W009" not in ids()


def test_V06_every_fault_is_reported_at_once(db: None, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 0, "NOPE": 1}, "not a name": {}, "x": 7}
    settings.BOUNDED_POOL_OPTIONS = {"HEARTBEAT": "5", "LOST_AFTER": -1}
    assert len(messages("boundedpool.E001")) == 6
    with pytest.raises(ConfigurationError) as caught:
        face_jobs.add.submit(1, 2)
    for word in ("WORKERS", "NOPE", "not a name", "'x'", "HEARTBEAT", "LOST_AFTER"):
        assert word in str(caught.value)


@pytest.mark.parametrize("setting", ["BOUNDED_POOLS", "BOUNDED_POOL_OPTIONS"])
@pytest.mark.parametrize("value", [None, [], "default", 4, {1: {}}])
def test_V06_a_setting_that_is_no_such_dictionary_is_an_error(settings: Any, setting: str, value: object) -> None:
    setattr(settings, setting, value)
    assert ids() == {"boundedpool.E001"}


@pytest.mark.parametrize(
    "values",
    [
        {"DRAIN_TIMEOUT": 5, "CANCEL_GRACE": 5},
        {"MAX_PAYLOAD_BYTES": 10, "QUEUE_BYTES": 9},
        {"RETENTION": {"running": 60}},
        {"RETENTION": {"failed": 0}},
        {"TIMEOUT": 0},
        {"ON_SHUTDOWN": "panic"},
        {"PERSIST": "behind"},  # not built yet
        {"PERSIST": "never"},
        {"CARRY": "project.carriers.tenant"},
        {"CARRY": ("tenant",)},
        {"PRIORITY_SHARES": {101: 0.5}},
        {"PRIORITY_SHARES": {-1: 1.5}},
        {"SHED": 1},
        {"WAIT": -1},
        {"OWNER_LIMIT": 0},
        {"MAX_DEFER": "1h"},
    ],
)
def test_V06_contradictions_are_errors(settings: Any, values: dict[str, Any]) -> None:
    settings.BOUNDED_POOLS = {"default": values}
    assert ids() == {"boundedpool.E001"}


@pytest.mark.parametrize("inline", [True, False])
def test_a_database_that_is_not_there_is_an_error(settings: Any, inline: bool) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "jobs", "INLINE": inline}
    (message,) = messages("boundedpool.E001")
    assert "'jobs'" in message.msg
    assert "'default'" in str(message.hint)


# E002, W003 ----------------------------------------------------------------------------------------------------------


@job(pool="reports", timeout=1)
def in_reports() -> None: ...


@job
def without_timeout() -> None: ...


def declared(monkeypatch: pytest.MonkeyPatch, *which: Any) -> None:
    monkeypatch.setattr(jobs, "_registry", {f.spec.name: f for f in which})


def test_a_job_of_a_pool_that_is_not_there_is_an_error(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declared(monkeypatch, in_reports)
    (message,) = messages("boundedpool.E002")
    assert in_reports.spec.name in message.msg
    assert "'default'" in str(message.hint)
    settings.BOUNDED_POOLS = {"reports": {}}
    assert run() == []


@pytest.mark.parametrize("pools", [{"reports": {"WORKERS": 0}}, {"reports": 7}, None])
def test_a_pool_with_wrong_settings_is_not_called_missing(
    settings: Any, monkeypatch: pytest.MonkeyPatch, pools: object
) -> None:
    declared(monkeypatch, in_reports)
    settings.BOUNDED_POOLS = pools
    assert ids() == {"boundedpool.E001"}


def test_a_job_without_any_time_out_is_a_warning(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declared(monkeypatch, without_timeout)
    (message,) = messages("boundedpool.W003")
    assert without_timeout.spec.name in message.msg
    settings.BOUNDED_POOLS = {"default": {"TIMEOUT": 60}}
    assert run() == []


# E003 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["nodots", "no.such.module", f"{__name__}.missing", f"{__name__}.not_callable", "tests.checks.raises_at_import.x",
     f"{__name__}.allow_async", f"{__name__}.allow_async_object"],
)  # fmt: skip
def test_a_rule_that_cannot_be_used_is_an_error(settings: Any, name: str) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"AUTHORIZE": name}
    (message,) = messages("boundedpool.E003")
    assert name in message.msg


# E004, W004, W005 ----------------------------------------------------------------------------------------------------


def database(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, Any]) -> None:
    monkeypatch.setitem(connections.settings, "jobs", {**connections.settings["default"], **values})


SQLITE = "django.db.backends.sqlite3"


@pytest.fixture
def elsewhere(settings: Any) -> Any:
    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "jobs"}
    yield
    if hasattr(connections._connections, "jobs"):
        del connections["jobs"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_sqlite_in_memory_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options = {"transaction_mode": "IMMEDIATE"}
    database(monkeypatch, {"ENGINE": SQLITE, "NAME": name, "OPTIONS": options})
    assert ids() == {"boundedpool.W008"}  # in a test run Django itself puts the database into memory
    monkeypatch.setattr(checks, "_under_test", lambda: False)
    assert ids() == {"boundedpool.E004"}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("options", [{}, {"transaction_mode": "DEFERRED"}, {"transaction_mode": None}])
def test_sqlite_without_immediate_transactions_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    database(monkeypatch, {"ENGINE": SQLITE, "NAME": "x.sqlite3", "OPTIONS": options})
    assert ids() == {"boundedpool.W004"}


@pytest.mark.usefixtures("elsewhere")
def test_sqlite_with_immediate_transactions_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    database(monkeypatch, {"ENGINE": SQLITE, "NAME": "x.sqlite3", "OPTIONS": {"transaction_mode": "immediate"}})
    assert run() == []


def test_inline_jobs_need_no_database_of_their_own(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "jobs", "INLINE": True}
    database(monkeypatch, {"ENGINE": SQLITE, "NAME": ":memory:", "OPTIONS": {}})
    assert run() == []


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("pool", "enough"),
    [
        (None, True),
        (False, True),
        (True, False),  # psycopg's own default: 4
        ({}, True),  # Django reads it as no pool
        ({"max_size": 5}, False),
        ({"max_size": 6}, True),
        ({"min_size": 6}, True),
        ({"min_size": 2, "max_size": None}, False),
        ({"max_size": "many"}, True),
    ],
)
def test_a_connection_pool_smaller_than_the_workers_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, pool: object, enough: bool
) -> None:
    pytest.importorskip("psycopg")
    values = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "OPTIONS": {"pool": pool}}
    database(monkeypatch, values)
    assert ids() == (set() if enough else {"boundedpool.W005"})


# W001 ----------------------------------------------------------------------------------------------------------------


class Renamed(OverloadMiddleware):
    pass


class OverloadMiddlewareOfSomebodyElse:
    pass


def function_middleware(get_response: Any) -> Any:
    return get_response


@pytest.mark.parametrize("name", ["django_boundedpool.middleware.OverloadMiddleware", f"{__name__}.Renamed"])
def test_the_middleware_or_a_subclass_is_fine(settings: Any, name: str) -> None:
    settings.MIDDLEWARE = ["no.such.Middleware", f"{__name__}.function_middleware", name]
    assert run() == []


@pytest.mark.parametrize(
    "middleware",
    [
        [],
        [f"{__name__}.OverloadMiddlewareOfSomebodyElse"],
        [f"{__name__}.function_middleware"],
        ["no.such.OverloadMiddleware"],
        ["tests.checks.raises_at_import.OverloadMiddleware"],
    ],
)
def test_a_project_without_the_middleware_is_warned(settings: Any, middleware: list[str]) -> None:
    settings.MIDDLEWARE = middleware
    assert ids() == {"boundedpool.W001"}


# W002 ----------------------------------------------------------------------------------------------------------------


class Without:
    urlpatterns: list[Any] = []


class Nested:
    urlpatterns = [path("api/", include(([path("jobs/", include("django_boundedpool.urls"))], "api")))]


class Instance:
    urlpatterns = [path("work/", include("django_boundedpool.urls", namespace="work"))]


@pytest.fixture
def urlconf(settings: Any) -> Any:
    def use(value: object) -> None:
        settings.ROOT_URLCONF = value
        clear_url_caches()

    yield use
    clear_url_caches()


@pytest.mark.parametrize("module", [Without, Nested])
def test_urls_that_cannot_be_found_are_a_warning(urlconf: Any, module: Any) -> None:
    urlconf(module)
    assert ids() == {"boundedpool.W002"}


def test_urls_under_another_instance_name_are_found(urlconf: Any) -> None:
    urlconf(Instance)
    assert run() == []


@pytest.mark.parametrize("language", ["en", "de", None])
@pytest.mark.parametrize("use_i18n", [True, False])
def test_urls_with_a_language_prefix_are_found(settings: Any, urlconf: Any, language: str, use_i18n: bool) -> None:
    from django.utils import translation

    settings.USE_I18N = use_i18n
    urlconf("tests.checks.i18n_urls")
    with translation.override(language):
        assert run() == []


@pytest.mark.parametrize(
    "broken", ["no.such.module", "tests.checks.raises_at_import", None, "django_boundedpool.states"]
)
def test_a_urlconf_that_cannot_be_loaded_is_left_to_django(urlconf: Any, broken: str | None) -> None:
    urlconf(broken)
    assert ids() <= {"boundedpool.W002"}


def test_a_project_without_a_urlconf_is_no_error(settings: Any) -> None:
    del settings.ROOT_URLCONF
    assert ids() <= {"boundedpool.W002"}


# W006, W007 ----------------------------------------------------------------------------------------------------------


def test_inline_jobs_outside_tests_and_debug_are_a_warning(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}
    assert run() == []  # under test
    monkeypatch.delattr(mail, "outbox")
    assert ids() == {"boundedpool.W006"}
    settings.DEBUG = True
    assert run() == []


@pytest.mark.parametrize(("kept", "reported"), [(59, True), (timedelta(seconds=1), True), (60, False)])
def test_rows_that_vanish_before_anybody_polls_are_a_warning(settings: Any, kept: object, reported: bool) -> None:
    settings.BOUNDED_POOLS = {"default": {"RETENTION": {"failed": kept}}}
    assert ids() == ({"boundedpool.W007"} if reported else set())
    if reported:
        assert "failed" in messages("boundedpool.W007")[0].msg


# E005, W010, and pools without rows ----------------------------------------------------------------------------------


class Tenant:
    def capture(self) -> object: ...

    def restore(self, value: object) -> None: ...


class AsyncCarrier:
    async def capture(self) -> object: ...

    def restore(self, value: object) -> None: ...


tenant, async_carrier = Tenant(), AsyncCarrier()


@pytest.mark.parametrize(
    ("name", "why"),
    [("no.such.module", "cannot be imported"), ("tests.checks.raises_at_import.x", "cannot be imported"),
     (f"{__name__}.missing", "cannot be imported"), (f"{__name__}.not_callable", "no method capture"),
     (f"{__name__}.async_carrier", "async capture"), (f"{__name__}.Tenant", "needs an instance")],
)  # fmt: skip
def test_what_is_no_carrier_is_an_error(settings: Any, name: str, why: str) -> None:
    settings.BOUNDED_POOLS = {
        "default": {"CARRY": (f"{__name__}.tenant", name)},
        "x": {"CARRY": [f"{__name__}.tenant"]},
    }
    (message,) = run()
    assert message.id == "boundedpool.E005"
    assert repr(name) in message.msg
    assert why in message.msg
    assert "BOUNDED_POOLS['default']['CARRY']" in message.msg


@pytest.mark.parametrize(("wait", "atomic", "reported"), [(0, True, False), (5, False, False), (5, True, True)])
def test_a_wait_that_has_no_effect_in_views_is_a_warning(
    settings: Any, monkeypatch: pytest.MonkeyPatch, wait: float, atomic: bool, reported: bool
) -> None:
    settings.BOUNDED_POOLS = {"default": {"WAIT": wait}, "x": {}}
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    assert ids() == ({"boundedpool.W010"} if reported else set())
    if reported:
        (message,) = run()
        assert "WAIT of pool 'default'" in message.msg
        assert "non_atomic_requests" in str(message.hint)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("other", "stored"), [("memory", False), ("commit", True)])
def test_jobs_that_are_stored_nowhere_need_no_database(
    monkeypatch: pytest.MonkeyPatch, settings: Any, other: str, stored: bool
) -> None:
    settings.BOUNDED_POOLS = {"default": {"PERSIST": "memory"}, "other": {"PERSIST": other}}
    database(monkeypatch, {"ENGINE": SQLITE, "NAME": ":memory:", "OPTIONS": {}})
    assert ids() == ({"boundedpool.W004", "boundedpool.W008"} if stored else set())
    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "nowhere"}  # where ids that nobody knows are looked up
    assert ids() == {"boundedpool.E001"}


# The documentation ---------------------------------------------------------------------------------------------------


def test_every_id_is_explained_at_the_head_of_the_module() -> None:
    import inspect
    import re

    source = inspect.getsource(checks)
    used = set(re.findall(r'id="(boundedpool\.[EW]\d{3})"', source))
    assert used == set(re.findall(r"^(boundedpool\.[EW]\d{3}) ", checks.__doc__ or "", re.MULTILINE))
