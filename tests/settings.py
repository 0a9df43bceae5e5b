"""Settings of the package's own test suite.

TEST_DB=sqlite (default) | postgresql | mysql chooses the database. The servers are expected on 127.0.0.1 (PostgreSQL:
user postgres, trusted; MariaDB: user root, empty password); PGHOST, PGPORT, PGUSER, PGPASSWORD and MYSQL_HOST,
MYSQL_PORT, MYSQL_USER, MYSQL_PASSWORD say otherwise. TEST_DB_NAME names an existing database, for a server that a test
starts in another process.
"""

import os
import tempfile
from pathlib import Path

SECRET_KEY = "for-tests-only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
LOGIN_URL = "/accounts/login/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_prometheus",
    "django_boundedpool",
    "linkchecker",
    "tests",
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_boundedpool.middleware.OverloadMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parent / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

TEST_DB = os.environ.get("TEST_DB", "sqlite")
_RUN = f"boundedpool_test_{os.getpid()}"  # two runs on one machine must not share a test database
_NAME = os.environ.get("TEST_DB_NAME")

if TEST_DB == "sqlite":
    # A file also in tests: threads that share an in-memory database fail with "table is locked", and no time-out helps.
    _DATABASE = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _NAME or str(Path(tempfile.gettempdir()) / "boundedpool_checks.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"},
        "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"{_RUN}.sqlite3")},
    }
elif TEST_DB == "postgresql":
    _DATABASE = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _NAME or "postgres",
        "HOST": os.environ.get("PGHOST", "127.0.0.1"),
        "PORT": os.environ.get("PGPORT", "5432"),
        "USER": os.environ.get("PGUSER", "postgres"),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "OPTIONS": {"connect_timeout": 5},
        "TEST": {"NAME": _RUN},
    }
elif TEST_DB == "mysql":
    import pymysql

    pymysql.install_as_MySQLdb()
    _DATABASE = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": _NAME or "mysql",
        "HOST": os.environ.get("MYSQL_HOST", "127.0.0.1"),
        "PORT": os.environ.get("MYSQL_PORT", "3306"),
        "USER": os.environ.get("MYSQL_USER", "root"),
        "PASSWORD": os.environ.get("MYSQL_PASSWORD", ""),
        "OPTIONS": {"charset": "utf8mb4", "connect_timeout": 5},
        "TEST": {"NAME": _RUN, "CHARSET": "utf8mb4"},
    }
else:
    raise ValueError(f"TEST_DB must be sqlite, postgresql or mysql, not {TEST_DB!r}")

DATABASES = {"default": _DATABASE}
