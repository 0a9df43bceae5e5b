"""Every test that touches the database passes on each supported server too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("fixture", "database"), [("postgresql", "postgresql"), ("mariadb", "mysql")])
def test_database_tests_pass_on(fixture: str, database: str, request: pytest.FixtureRequest) -> None:
    if os.environ.get("TEST_DB", "sqlite") != "sqlite":
        pytest.skip("this run is itself one on another database")
    request.getfixturevalue(fixture)
    command = [sys.executable, "-m", "pytest", "-m", "database", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "TEST_DB": database}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1180)
    assert done.returncode == 0, (
        f"{' '.join(command)} with TEST_DB={database}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    )
