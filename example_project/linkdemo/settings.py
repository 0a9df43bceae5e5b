"""Settings of the example. Made for one machine: it listens on loopback and keeps its data in a SQLite file.

Environment: DEMO_VAR (folder for all data), DEMO_DB (database file), DEMO_WORKERS, DEMO_QUEUE, DEMO_DRAIN_TIMEOUT,
DEMO_ALLOWED_TARGET ("address:port" of the downstream server) and DEMO_FETCH_SECONDS.
"""

import os
import secrets
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("DEMO_VAR", BASE_DIR / "var"))
VAR_DIR.mkdir(parents=True, exist_ok=True)


def _secret_key() -> str:
    """A key of this installation's own, made at the first start."""
    path = VAR_DIR / "secret_key"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(50))
    except FileExistsError:
        pass
    return path.read_text()


SECRET_KEY = _secret_key()
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

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
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    # Web servers like gunicorn serve no static files.
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "linkdemo.csp.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # Turns a refused submit into 503 or 429 with Retry-After.
    "django_boundedpool.middleware.OverloadMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "linkdemo.urls"
WSGI_APPLICATION = "linkdemo.wsgi.application"
ASGI_APPLICATION = "linkdemo.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DEMO_DB", VAR_DIR / "demo.sqlite3"),
        # Many threads write: take the write lock at BEGIN instead of failing half-way, and wait for it.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# At most 4 jobs run and at most 100 wait, per process. Everything else is refused at once.
BOUNDED_POOLS = {
    "default": {
        "WORKERS": int(os.environ.get("DEMO_WORKERS", "4")),
        "QUEUE_SIZE": int(os.environ.get("DEMO_QUEUE", "100")),
        "TIMEOUT": 30,
        "DRAIN_TIMEOUT": int(os.environ.get("DEMO_DRAIN_TIMEOUT", "20")),
    }
}

# The checker refuses every address that is not public, except this one.
LINKCHECKER_ALLOWED_TARGET = os.environ.get("DEMO_ALLOWED_TARGET", "")
LINKCHECKER_SECONDS = float(os.environ.get("DEMO_FETCH_SECONDS", "10"))

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "linkchecker:index"
LOGOUT_REDIRECT_URL = "login"

STATIC_URL = "static/"
# No collectstatic needed: files come straight from the apps.
WHITENOISE_USE_FINDERS = True

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"django_boundedpool": {"level": "INFO"}},
}
