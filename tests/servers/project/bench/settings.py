"""Settings of the project under test. Each test chooses its figures by variables."""

import os


def seconds(name, default):
    return float(os.environ.get(f"BENCH_{name}", default))


SECRET_KEY = "for-tests-only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
STATIC_ROOT = os.environ.get("BENCH_STATIC_ROOT")
WSGI_APPLICATION = "bench.wsgi.application"

WITH_POOL = "BENCH_WITHOUT_POOL" not in os.environ
ROOT_URLCONF = "bench.urls" if WITH_POOL else "bench.urls_without_pool"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.staticfiles"]
MIDDLEWARE = []
if WITH_POOL:
    INSTALLED_APPS += ["django_boundedpool", "bench"]
    MIDDLEWARE += [
        "bench.views.only_another_process",
        "django_boundedpool.middleware.OverloadMiddleware",
    ]

if os.environ.get("BENCH_POSTGRESQL_PORT"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "bench",
            "HOST": "127.0.0.1",
            "PORT": os.environ["BENCH_POSTGRESQL_PORT"],
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["BENCH_DB"],
            "TEST": {"NAME": f"{os.environ['BENCH_DB']}.test"},  # a file: threads cannot share a database in memory
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            },
        }
    }

BOUNDED_POOLS = {
    "default": {
        "WORKERS": int(os.environ.get("BENCH_WORKERS", "4")),
        "QUEUE_SIZE": int(os.environ.get("BENCH_QUEUE_SIZE", "100")),
        "DRAIN_TIMEOUT": seconds("DRAIN_TIMEOUT", "20"),
        "CANCEL_GRACE": seconds("CANCEL_GRACE", "0") or None,
        "TIMEOUT": 3600,
    }
}
BOUNDED_POOL_OPTIONS = {
    "HEARTBEAT": seconds("HEARTBEAT", "0.5"),
    "LOST_AFTER": seconds("LOST_AFTER", "2"),
    "AUTHORIZE": "bench.views.anyone",
    "START_AT": os.environ.get("BENCH_START_AT", "first_request"),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"}},
    "handlers": {"log": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_boundedpool": {"handlers": ["log"], "level": "INFO"}},
}
