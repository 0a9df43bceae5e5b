"""Sets Django up and prints how long that took and how many connections were tried, as JSON."""

import json
import sys
import threading
import time

import django
from django.db.backends.base.base import BaseDatabaseWrapper

tried = []
BaseDatabaseWrapper.connect = lambda self: tried.append(self.alias)
began = time.monotonic()
django.setup()
seconds = time.monotonic() - began
json.dump({"seconds": seconds, "tried": tried, "threads": threading.active_count()}, sys.stdout)
