import time

from django_boundedpool import JobInterrupted, job

from .ledger import note


@job(takes_context=True)
def work(context, seconds):
    """Ignores every request to stop."""
    note("start", context.job_id)
    time.sleep(seconds)
    note("end", context.job_id)


@job(takes_context=True)
def polite(context, seconds):
    """Stops when it is asked to."""
    note("start", context.job_id)
    try:
        context.sleep(seconds)
    except JobInterrupted:
        note("interrupted", context.job_id)
        raise
    note("end", context.job_id)


JOBS = {"work": work, "polite": polite}
