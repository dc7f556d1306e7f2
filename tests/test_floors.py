"""The house stands: imports only go down, each heavy dependency has one door, and the files stay rooms one can see across."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "runtime" / "personae"
FLOORS = {
    "errors": 0,
    "types": 0,
    "patterns": 0,
    "wire": 1,
    "packs": 1,
    "prompt": 1,
    "engine": 2,
    "training": 2,
    "scheduler": 3,
    "service": 4,
    "config": 4,
    "cli": 5,
}
DOORS = {
    "llama_cpp": ("engine/llama/api.py",),
    "zmq": ("service/transport.py",),
    "jinja2": ("prompt/",),
    "re2": ("patterns.py",),
    "watchfiles": ("service/watch.py",),
    "safetensors": ("packs/peft/",),
    "tomlkit": ("packs/toml_text.py",),
    "threadpoolctl": ("training/threads.py",),
    "PIL": ("cli/bench/voices/",),
    "gguf": ("training/base.py",),  # to dequantize; headers the runtime reads itself
}
MOST_LINES = 420
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which floor they go to"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_go_down(path: Path) -> None:
    here = part(path)
    for name in imports(path):
        if not name.startswith("personae.") or here in ("__init__", "__main__"):
            continue
        there = name.split(".")[1]
        if there == "__version__":
            continue
        assert there in FLOORS, f"{name}: which floor is that?"
        assert here == there or FLOORS[there] < FLOORS[here] or {here, there} == {"config", "service"}, f"{here} may not import {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_heavy_dependency_has_one_door(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    for name in imports(path):
        doors = DOORS.get(name.split(".")[0])
        assert doors is None or any(place.startswith(door) for door in doors), f"{place} imports {name}"


def test_the_scheduler_sees_only_the_data_of_the_engine() -> None:
    for path in (PACKAGE / "scheduler").rglob("*.py"):
        for name in imports(path):
            assert not name.startswith("personae.engine") or name.startswith("personae.engine.batch"), f"{path.name} imports {name}"


def test_the_scheduler_reads_no_clock_and_no_world() -> None:
    for path in (PACKAGE / "scheduler").rglob("*.py"):
        outside = {"time", "random", "os", "socket", "threading", "pathlib", "datetime"} & {name.split(".")[0] for name in imports(path)}
        assert not outside, f"{path.name} imports {outside}"


def test_the_client_knows_nothing_of_the_runtime() -> None:
    for path in (ROOT / "bindings" / "python").rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "personae"], path.name


def test_no_file_is_longer_than_a_room() -> None:
    files = [*FILES, *(ROOT / "bindings" / "python").rglob("*.py")]
    assert not [f"{path.name}: {n}" for path in files if (n := len(path.read_text("utf-8").splitlines())) > MOST_LINES]
