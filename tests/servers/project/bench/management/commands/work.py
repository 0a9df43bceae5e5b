import time

from django.core.management.base import BaseCommand

from bench.jobs import JOBS
from bench.ledger import note


class Command(BaseCommand):
    """Submits jobs and returns, or waits for a signal."""

    def add_arguments(self, parser):
        parser.add_argument("--n", type=int, default=0)
        parser.add_argument("--seconds", type=float, default=0.1)
        parser.add_argument("--job", default="work")
        parser.add_argument("--stay", action="store_true", help="do not return before a signal comes")
        parser.add_argument("--for-ever", action="store_true", help="submit without end")

    def handle(self, **options):
        job = JOBS[options["job"]]
        for _ in range(options["n"]):
            job.submit(options["seconds"])
        note("submitted")
        deadline = time.monotonic() + 60
        while options["for_ever"] and time.monotonic() < deadline:
            job.try_submit(options["seconds"])
        if options["stay"]:
            time.sleep(60)
        note("returned")
