"""manage.py that writes down what the app did behind the command's back, as JSON into the file BENCH_SPY.

Threads that are left at the end, and for every new database connection whether our code asked for it.
"""

import json
import os
import sys
import threading
import traceback
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")

from django.core.management import execute_from_command_line
from django.db.backends.base.base import BaseDatabaseWrapper

PACKAGE = f"{os.sep}django_boundedpool{os.sep}"
connections = []
connect = BaseDatabaseWrapper.connect


def spied(self):
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()]
    connections.append([frame for frame in frames if PACKAGE in frame])
    return connect(self)


BaseDatabaseWrapper.connect = spied
try:
    execute_from_command_line(sys.argv)
finally:
    found = {
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        "connections": len(connections),
        "ours": [frames for frames in connections if frames],
    }
    Path(os.environ["BENCH_SPY"]).write_text(json.dumps(found))
