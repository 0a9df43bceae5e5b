"""The blocks of the README and of the documentation run as they are pasted into a fresh project."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the tests run against an installed wheel"),
]

#: A Python block that says in its first line which file it belongs to.
BLOCK = re.compile(r"^```python\n# (\S+\.py)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

VISIT = """
import django, time
django.setup()
from django.contrib.auth import get_user_model
from django.test import Client
get_user_model().objects.create_user("ann", password="ann")
anonymous, client = Client(headers={"host": "localhost"}), Client(headers={"host": "localhost"})
assert anonymous.post("/reports/2020/")["Location"].startswith("/accounts/login/")
client.login(username="ann", password="ann")
assert client.get("/reports/2020/").status_code == 405
answer = client.post("/reports/2020/")
assert answer.status_code == 202, answer
assert anonymous.get(answer["Location"]).status_code == 401
for _ in range(200):
    job = client.get(answer["Location"]).json()
    if job["terminal"]:
        break
    time.sleep(0.05)
assert job["state"] == "succeeded" and job["result"]["year"] == 2020, job
assert b"django_boundedpool_finished_total" in client.get("/metrics").content
import mysite.asgi
"""


def paste(project: Path, page: str) -> None:
    for name, code in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = project / (name if "/" in name else f"mysite/{name}")
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{code}")


def run(project: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{project}", "DJANGO_SETTINGS_MODULE": "mysite.settings"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `startproject` and `startapp` make."""
    run(tmp_path, "-m", "django", "startproject", "--settings=", "mysite", ".")
    run(tmp_path, "manage.py", "startapp", "reports")
    (tmp_path / "reports" / "tests.py").unlink()
    return tmp_path


def test_project_of_the_readme_answers(project: Path) -> None:
    paste(project, "README.md")
    run(project, "manage.py", "check", "--fail-level", "WARNING")
    run(project, "manage.py", "migrate", "--verbosity", "0")
    run(project, "-c", VISIT)


def test_project_of_the_quickstart_answers_and_passes_the_tests_of_the_page_on_testing(project: Path) -> None:
    paste(project, "docs/testing.md")  # its database first: the other pages leave the default one
    paste(project, "docs/quickstart.md")
    (project / "reports" / "tests" / "__init__.py").touch()
    run(project, "manage.py", "check", "--fail-level", "WARNING")
    run(project, "manage.py", "migrate", "--verbosity", "0")
    run(project, "-c", VISIT)
    assert "Ran 4 tests" in run(project, "manage.py", "test")
    pytest_files = (project / "reports" / "tests").glob("test_*_pytest.py")
    assert "2 passed" in run(project, "-m", "pytest", "-q", "-p", "no:randomly", *map(str, pytest_files))
