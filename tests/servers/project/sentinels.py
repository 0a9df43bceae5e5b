"""A program with signal handlers of its own, which submits its first job from another thread.

Writes what it saw into the file BENCH_SPY, as JSON.
"""

import json
import os
import signal
import threading
import time
import traceback
from pathlib import Path

called = []
alarms = []
set_handler = signal.signal


def sentinel(signum, frame):
    called.append(signal.Signals(signum).name)


signal.signal(signal.SIGTERM, sentinel)
signal.signal(signal.SIGINT, sentinel)


def spied_signal(signum, handler):
    if signum == signal.SIGALRM:
        alarms.append("signal")
    return set_handler(signum, handler)


signal.signal = spied_signal
signal.alarm = lambda *_: alarms.append("alarm")
signal.setitimer = lambda *_: alarms.append("setitimer")

import django  # noqa: E402 - the sentinels come first

django.setup()

from bench.jobs import polite  # noqa: E402 - needs the apps

from django_boundedpool import JobTimedOut  # noqa: E402 - needs the apps

outcome = []


def first_submit():
    try:
        polite.using(timeout=0.2).submit(30).result(timeout=20)
    except JobTimedOut:
        outcome.append("timed out")
    except BaseException:
        outcome.append(traceback.format_exc())


thread = threading.Thread(target=first_submit)
thread.start()
thread.join(25)

for signum in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), signum)
    deadline = time.monotonic() + 5
    while signal.Signals(signum).name not in called and time.monotonic() < deadline:
        time.sleep(0.01)
Path(os.environ["BENCH_SPY"]).write_text(json.dumps({"outcome": outcome, "called": called, "alarms": alarms}))
