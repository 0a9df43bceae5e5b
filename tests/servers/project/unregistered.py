"""A program whose first sign of life does not get through, as on a database that is slow to answer."""

import threading
import time

import django

django.setup()

from bench.jobs import work  # noqa: E402 - needs the apps

from django_boundedpool.store import processes  # noqa: E402 - needs the apps

processes.register = lambda *_, **__: threading.Event().wait(60)
work.submit(60)
time.sleep(60)
