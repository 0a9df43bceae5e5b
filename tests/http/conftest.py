from collections.abc import Iterator
from typing import Any

import pytest

from tests import face_jobs


@pytest.fixture
def inline(settings: Any, db: None) -> None:
    """Jobs run in the submit, on the test's own connection."""
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}


@pytest.fixture
def held() -> Iterator[None]:
    """`face_jobs.hold` blocks until the test's end, or until the test sets `release`."""
    face_jobs.started.clear()
    face_jobs.release.clear()
    yield
    face_jobs.release.set()
