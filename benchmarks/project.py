"""A Django project in one file; importing it sets Django up, as a script of a project would.

Its pools write no rows (PERSIST="memory"), have a time-out for every job, and bounds that the sections choose from.
"""

from __future__ import annotations

import django
from django.conf import settings

W = 8
#: Places of the pool that is meant to be full.
Q = 1000

_POOL = {"WORKERS": W, "PERSIST": "memory", "TIMEOUT": 60, "QUEUE_BYTES": 1 << 30}

if not settings.configured:
    settings.configure(
        SECRET_KEY="for-benchmarks-only",  # noqa: S106 - nothing is signed
        # The pools write no rows; this is here because a project has a database.
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django_prometheus", "django_boundedpool"],
        MIDDLEWARE=["django_boundedpool.middleware.OverloadMiddleware"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        BOUNDED_POOLS={
            "default": {**_POOL, "QUEUE_SIZE": 1_000_000},
            "small": {**_POOL, "QUEUE_SIZE": Q},
            "coroutines": {**_POOL, "WORKERS": 1000, "QUEUE_SIZE": 100_000},
        },
    )
    django.setup()
