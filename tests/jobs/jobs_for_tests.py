"""Jobs that tests submit, at module level as every job must be."""

import threading

from django_boundedpool import Retry, current_job, job

gate = threading.Event()
started = threading.Semaphore(0)
log: list[object] = []


def reset_gate() -> None:
    gate.clear()
    log.clear()
    while started.acquire(blocking=False):
        pass


@job(timeout=60)
def takes_self(self):
    return self


@job(timeout=60)
def add(a, b=0):
    return a + b


@job(timeout=60)
def echo(value):
    return value


@job(timeout=60)
def hold(label=None):
    """Runs until the gate opens."""
    started.release()
    assert gate.wait(30)
    log.append(label)
    return label


@job(timeout=60, takes_context=True)
def obedient(context):
    started.release()
    context.sleep(30)


@job(timeout=60)
def boom(message="no"):
    raise ValueError(message)


@job(timeout=60, retry=Retry(max_attempts=3, base=0.01, cap=0.02))
def flaky():
    log.append("try")
    if len(log) < 3:
        raise ConnectionError("again")
    return len(log)


@job(timeout=60)
def login(user, password, *, api_key=None):
    return "in"


@job(timeout=60)
def waits_for_child():
    return hold.submit().result(10)


@job(timeout=60)
def submits_child():
    return str(add.submit(1, 2).id)


@job(timeout=60)
def waits_for_itself():
    from django_boundedpool import JobHandle

    return JobHandle.get(current_job().job_id).result(10)


@job(timeout=60)
def counts_users():
    from django.contrib.auth import get_user_model

    return get_user_model().objects.count()


@job(timeout=60)
def makes_user(name):
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user(name).pk


@job(timeout=60)
def big():
    return "x" * 50_000_000
