"""What is in the wheel, and what is not."""

import importlib.util
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "django_boundedpool").is_dir(), reason="the tests run against an installed wheel"),
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_holds_the_package_and_its_metadata_alone(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"django_boundedpool"}


def test_holds_every_source_file(wheel: zipfile.ZipFile) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "django_boundedpool").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= set(wheel.namelist())


def test_ships_the_typing_marker(wheel: zipfile.ZipFile) -> None:
    assert "django_boundedpool/py.typed" in wheel.namelist()


def test_ships_migrations(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "django_boundedpool/migrations/__init__.py" in names
    assert any(name.startswith("django_boundedpool/migrations/0001_") for name in names)


def test_ships_the_licence(wheel: zipfile.ZipFile) -> None:
    assert "BSD 3-Clause License" in metadata(wheel, "licenses/LICENSE")


def test_metadata_states_what_it_needs(wheel: zipfile.ZipFile) -> None:
    fields = Parser().parsestr(metadata(wheel, "METADATA"))
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["License-Expression"] == "BSD-3-Clause"
    hard = {text for text in fields.get_all("Requires-Dist", []) if "extra ==" not in text}
    assert {text.split(">")[0] for text in hard} == {"django", "django-prometheus", "prometheus-client"}
