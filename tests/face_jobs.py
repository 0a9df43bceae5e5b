"""Jobs for the tests of what users see."""

import threading
from typing import Any

from django_boundedpool import Retry, job

SECRET = "hunter2-in-the-message"

started = threading.Event()
release = threading.Event()


class PublicError(Exception):
    """Declared as fit for the owner's eyes."""


class MorePublicError(PublicError):
    """So is its subclass."""


@job(timeout=60)
def add(a: int, b: int) -> int:
    return a + b


@job(timeout=60)
def echo(value: Any, password: str = "") -> Any:
    return value


@job(timeout=60, public_errors=(PublicError,))
def fail(kind: str = "private") -> None:
    errors = {"private": ValueError(SECRET), "public": PublicError("no such page"), "more": MorePublicError("gone")}
    raise errors[kind]


@job(timeout=60, retry=Retry(max_attempts=2, base=0.001, cap=0.001))
def fail_twice() -> None:
    raise ConnectionError(SECRET)


@job(timeout=60)
def hold() -> str:
    started.set()
    release.wait(30)
    return "released"
