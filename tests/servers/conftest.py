from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import KINDS, Bench, Kind, make_template, new_bench


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database."""
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def bench(tmp_path: Path, template: Path) -> Iterator[Bench]:
    yield from new_bench(tmp_path, template)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each way to serve the project."""
    return KINDS[request.param]
