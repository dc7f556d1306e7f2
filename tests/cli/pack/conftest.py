"""`personae pack` in this process, in an empty folder, with what it wrote to either stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from personae.cli import main as cli
from tests.tiny import TinyModel, write_model

GOOD = """\
manifest = 1
name = "Marta"
persona = "You are Marta, the innkeeper."
greeting = "Come in."
description = "An innkeeper."
author = "us"
licence = "MIT"
fallback = ["One moment."]
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    error: str

    @property
    def words(self) -> str:
        """What was shown, however it was folded into lines."""
        return " ".join(self.out.split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Pack = Callable[..., Ended]
Write = Callable[..., Path]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pack(here: Path, capsys: pytest.CaptureFixture[str]) -> Pack:
    def run(*arguments: str | Path) -> Ended:
        capsys.readouterr()
        try:
            code = cli.main(["pack", *map(str, arguments)])
        except SystemExit as exit:  # argparse
            code = int(exit.code or 0)
        shown = capsys.readouterr()
        return Ended(code, shown.out, shown.err)

    return run


@pytest.fixture
def write(here: Path) -> Write:
    """A pack in ./characters: `more` behind a manifest of which there is nothing to say, and its files."""

    def write(more: str = "", *, name: str = "marta", head: str = GOOD, files: dict[str, bytes] | None = None) -> Path:
        folder = Path("characters") / name
        folder.mkdir(parents=True)
        (folder / "character.toml").write_text(head + more, encoding="utf-8")
        for file, content in (files or {}).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        return folder

    return write


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A real vocabulary and real shapes, with a template that knows the system role."""
    pytest.importorskip("llama_cpp")
    return write_model(tmp_path_factory.mktemp("pack") / "tiny.gguf", "llama")
