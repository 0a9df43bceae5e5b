"""Fixtures for every test.

A test that needs PostgreSQL, MariaDB, Redis or Chromium asks for the fixture `postgresql`, `mariadb`, `redis_server` or
`chromium` (`page` includes it). On a user's machine it then skips and says what is missing; with the variable CI set it
fails, so that no such test is left out unseen.
"""

import glob
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from django.conf import settings
from hypothesis import settings as hypothesis_settings

ROOT = Path(__file__).resolve().parent.parent
TESTS = Path(__file__).resolve().parent
WITHOUT_POOLS = (TESTS / "engine", TESTS / "packaging")  # nothing there uses the process's own pools
DATABASE_FIXTURES = {
    "db",
    "transactional_db",
    "live_server",
    "django_db_reset_sequences",
    "django_db_serialized_rollback",
}
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# No deadline per example: a machine that is busy with something else must not fail a property.
hypothesis_settings.register_profile("default", deadline=None, max_examples=100)
hypothesis_settings.register_profile("nightly", deadline=None, max_examples=5000)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def unavailable(reason: str) -> NoReturn:
    """Skip the running test for what this machine lacks; fail it under CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (tests may skip for this on a user's machine, never in CI)", pytrace=False)
    pytest.skip(reason)


def listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def _connect_postgresql() -> None:
    import psycopg

    psycopg.connect(
        host=os.environ.get("PGHOST", "127.0.0.1"),
        port=int(os.environ.get("PGPORT", "5432")),
        user=os.environ.get("PGUSER", "postgres"),
        password=os.environ.get("PGPASSWORD", ""),
        dbname="postgres",
        connect_timeout=5,
    ).close()


def _connect_mysql() -> None:
    import pymysql

    pymysql.connect(
        host=os.environ.get("MYSQL_HOST", "127.0.0.1"),
        port=int(os.environ.get("MYSQL_PORT", "3306")),
        user=os.environ.get("MYSQL_USER", "root"),
        password=os.environ.get("MYSQL_PASSWORD", ""),
        connect_timeout=5,
    ).close()


CONNECT: dict[str, Callable[[], None]] = {"postgresql": _connect_postgresql, "mysql": _connect_mysql}


def why_not(database: str) -> str | None:
    """What keeps this database server from being used, or None."""
    try:
        CONNECT[database]()
    except Exception as exc:
        return f"{database} is not usable here: {exc}".strip()
    return None


def _touches_database(item: pytest.Item) -> bool:
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(
        getattr(item, "fixturenames", ())
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what can be repeated on another database (`-m database`)."""
    for item in items:
        if _touches_database(item) and not any(item.get_closest_marker(name) for name in ("browser", "server", "slow")):
            item.add_marker("database")


def pytest_configure(config: pytest.Config) -> None:
    chosen = os.environ.get("TEST_DB", "sqlite")
    if chosen != "sqlite" and (reason := why_not(chosen)):
        pytest.exit(f"TEST_DB={chosen}: {reason}", returncode=3)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A connection that a thread left open keeps SQLite's side files after the test database is gone."""
    if not settings.configured:
        return
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        for left in glob.glob(glob.escape(str(database["TEST"]["NAME"])) + "*"):
            os.unlink(left)


@pytest.fixture(autouse=True)
def _reset_pools(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop what a test started, before its database is torn down: no job may outlive its test."""
    if any(request.path.is_relative_to(folder) for folder in WITHOUT_POOLS):
        yield
        return
    # Asked for here, the database fixture outlives the reset below.
    for name in ("transactional_db", "db"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
            break
    yield
    from django_boundedpool import testing

    testing.reset()


@pytest.fixture
def postgresql() -> None:
    """Needs the PostgreSQL server."""
    if reason := why_not("postgresql"):
        unavailable(reason)


@pytest.fixture
def mariadb() -> None:
    """Needs the MariaDB or MySQL server."""
    if reason := why_not("mysql"):
        unavailable(reason)


@pytest.fixture
def redis_server() -> tuple[str, int]:
    """Host and port of the Redis server."""
    host, port = os.environ.get("REDIS_HOST", "127.0.0.1"), int(os.environ.get("REDIS_PORT", "6379"))
    if not listens(host, port):
        unavailable(f"no Redis server on {host}:{port}")
    return host, port


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium (variable CHROMIUM, or the first found on PATH)."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        unavailable("no Chromium on PATH (Debian: apt-get install chromium)")
    return found


# One browser per module, not per session: Playwright's sync interface keeps an event loop running in the main thread
# for as long as it is open, and the tests of other modules must not see it.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A headless Chromium (playwright.sync_api.Browser); the ORM may be used beside it."""
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
            yield browser
            browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A fresh browser page without cookies (playwright.sync_api.Page)."""
    context = browser.new_context()
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def user(db: None) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user("ann", password="ann")


@pytest.fixture
def other_user(db: None) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user("bob", password="bob")


@pytest.fixture
def staff(db: None) -> Any:
    """A member of staff who holds every permission of this package and no other."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    user = get_user_model().objects.create_user("sue", password="sue", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="boundedpool"))
    return user


@pytest.fixture
def python_env() -> dict[str, str]:
    """The environment for a Python started by a test: this tree's packages, and the test settings."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "example_project"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHON": sys.executable}
