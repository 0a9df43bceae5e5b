"""What `import django_boundedpool` gives, and what it needs."""

import subprocess
import sys

import pytest

import django_boundedpool

pytestmark = pytest.mark.fast

FACE = {
    "BytesFull",
    "Draining",
    "Expired",
    "GlobalLimit",
    "IdempotencyConflict",
    "InvalidArguments",
    "JobAbandoned",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobInterrupted",
    "JobNotFound",
    "JobState",
    "JobTimedOut",
    "OwnerLimit",
    "Paused",
    "PayloadTooLarge",
    "QueueFull",
    "RateLimited",
    "Rejected",
    "Retry",
    "RetryLater",
    "Shed",
    "StoreUnavailable",
    "WaitTimeout",
    "accepted",
    "current_job",
    "get_job_or_404",
    "job",
    "overload_responses",
    "pools",
    "submit_many",
}

# None in sys.modules makes an import of that name fail, and of everything below it.
IMPORT_WITH_DJANGO_ALONE = """
import sys
for name in "prometheus_client django_prometheus redis opentelemetry psycopg pymysql gunicorn uvicorn".split():
    sys.modules[name] = None
import django_boundedpool
assert set(django_boundedpool.__all__) <= set(dir(django_boundedpool)), "dir() hides public names"
from django.conf import settings
assert not settings.configured, "settings were read at import"
"""

# A settings file may name error classes and retry rules; the rest needs loaded models, as everything that stores does.
FACE_AROUND_SETUP = """
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_boundedpool"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
from django_boundedpool import JobInterrupted, JobState, QueueFull, Rejected, Retry, RetryLater
import threading
import django
django.setup()
from django_boundedpool import accepted, job
@job
def add(a, b):
    return a + b
assert add(1, 2) == 3
assert threading.active_count() == 1, threading.enumerate()
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_public_names_are_frozen() -> None:
    assert set(django_boundedpool.__all__) == FACE


def test_every_public_name_resolves() -> None:
    assert [name for name in django_boundedpool.__all__ if not hasattr(django_boundedpool, name)] == []


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in django_boundedpool.__all__ if not getattr(django_boundedpool, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        django_boundedpool.no_such_name  # noqa: B018


def test_every_rejection_is_public_and_has_its_own_code() -> None:
    def below(cls: type) -> list[type]:
        return [cls, *(found for sub in cls.__subclasses__() for found in below(sub))]

    own = [c for c in below(django_boundedpool.Rejected)[1:] if c.__module__.split(".")[0] == "django_boundedpool"]
    assert {c.__name__ for c in own} <= FACE
    codes = [c.code for c in own]
    assert len(set(codes)) == len(codes)


def test_import_needs_django_alone_and_no_settings() -> None:
    run(IMPORT_WITH_DJANGO_ALONE)


def test_plain_names_work_before_setup_and_setup_starts_no_thread() -> None:
    run(FACE_AROUND_SETUP)
