"""`make` in a fresh clone names what is missing, with the Debian package that has it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed (Debian: apt-get install make)"),
    pytest.mark.skipif(not (ROOT / "Makefile").is_file(), reason="the tests run against an installed wheel"),
]

APT = "apt-get install python3-venv"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def fake_python(folder: Path, condition: str) -> str:
    """A Python whose call fails when the shell condition (on "$*", its arguments) holds."""
    path = folder / "fake-python"
    path.write_text(f'#!/bin/sh\ncase "$*" in {condition}) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def make(clone: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(["make", *args], cwd=clone, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_missing_python_is_named_with_its_package(clone: Path, target: str) -> None:
    done = make(clone, target, "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "no-such-python was not found" in done.stderr
    assert APT in done.stderr


def test_old_python_is_named(clone: Path) -> None:
    done = make(clone, "demo", f"PYTHON={fake_python(clone, '*version_info*')}")
    assert done.returncode != 0
    assert "too old: 3.11 or newer is needed" in done.stderr
    assert APT in done.stderr


@pytest.mark.parametrize("condition", ["*ensurepip*", "*'-m venv'*"])
def test_python_without_venv_is_named_with_its_package(clone: Path, condition: str) -> None:
    done = make(clone, "test", f"PYTHON={fake_python(clone, condition)}")
    assert done.returncode != 0
    assert APT in done.stderr
    assert not (clone / ".venv" / ".created").exists()


def test_help_is_the_default_and_lists_the_two_commands(clone: Path) -> None:
    done = make(clone)
    assert done.returncode == 0
    assert "make demo" in done.stdout
    assert "make test" in done.stdout
