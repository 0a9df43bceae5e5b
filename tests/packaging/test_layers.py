"""Imports inside the package point down only, and the engine knows no Django."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_boundedpool

pytestmark = pytest.mark.fast

PACKAGE = Path(django_boundedpool.__file__).parent
NAME = "django_boundedpool"

# A module may import from its own unit and from the rows above its own: not from the rows below, not from its own row.
# A unit is a module or a folder right below the package; "" is the package face (__init__.py).
LAYERS = (
    ("engine",),
    ("conf",),
    ("models", "migrations"),
    ("store",),
    ("limits",),
    ("lifecycle",),
    ("surroundings",),
    ("carry",),
    ("context", "signals", "submission"),
    ("handles",),
    ("jobs",),
    ("backend", "handover", "http", "admin", "observability"),
    ("checks", "health", "middleware", "urls"),
    ("testing", "management"),
    ("apps", ""),
)
RANK = {unit: rank for rank, row in enumerate(LAYERS) for unit in row}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join((NAME, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def unit_of(module: str) -> str:
    return [*module.split("."), ""][1]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports below node, those inside functions included; not those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif is_type_checking(child):
            for other in child.orelse:
                yield from import_statements(ast.Module([other], []))
        else:
            yield from import_statements(child)


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(module: str, source: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute name of the imported module) of one file."""
    for node in import_statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
            continue
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_package]
            base = ".".join([*parts, *filter(None, [node.module])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner == f"{NAME}.__version__":
                continue  # a constant at the head of the face, there before anything else is imported
            yield node.lineno, inner if base.split(".")[0] == NAME and is_module(inner) else base


def faults(module: str, source: str, *, is_package: bool) -> list[str]:
    own = unit_of(module)
    found = []
    for line, name in imports(module, source, is_package=is_package):
        if name.split(".")[0] != NAME:
            continue
        other = unit_of(name)
        if other == own:
            continue
        if other not in RANK:
            found.append(f"{module}:{line} imports {name}: {other!r} is in no row of LAYERS")
        elif RANK[other] >= RANK[own]:
            found.append(f"{module}:{line} imports {name}: {own or 'the face'} may not import {other or 'the face'}")
    return found


def test_every_unit_has_its_row() -> None:
    assert {unit_of(dotted(path)) for path in modules()} <= set(RANK)


def test_imports_point_down_only() -> None:
    found = []
    for path in modules():
        found += faults(dotted(path), path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    assert found == []


def test_engine_imports_the_standard_library_alone() -> None:
    found = []
    for path in (PACKAGE / "engine").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for line, name in imports(dotted(path), source, is_package=path.name == "__init__.py"):
            if name.split(".")[0] not in sys.stdlib_module_names and unit_of(name) != "engine":
                found.append(f"{path.name}:{line} imports {name}")
    assert found == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("django_boundedpool.engine.pool", "from ..store import recorder"),
        ("django_boundedpool.engine.pool", "def f():\n    from django_boundedpool.jobs import job"),
        ("django_boundedpool.store.recorder", "from django_boundedpool import job"),
        ("django_boundedpool.http.views", "import django_boundedpool.admin"),
        ("django_boundedpool.jobs", "from . import apps"),
    ],
)
def test_an_upward_import_is_found(module: str, line: str) -> None:
    assert len(faults(module, line, is_package=False)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("django_boundedpool.store.recorder", "from ..engine.states import JobState"),
        ("django_boundedpool.http.views", "from ..http import responses"),
        ("django_boundedpool.jobs", "from .lifecycle import runtime"),
        ("django_boundedpool.engine.pool", "if TYPE_CHECKING:\n    from ..store import recorder"),
    ],
)
def test_a_downward_import_is_allowed(module: str, line: str) -> None:
    assert faults(module, line, is_package=False) == []
