"""Where this process keeps passing things while a soak runs: a folder of its own, so that what is left there can be counted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType


class PassingFolder:
    """In use between `with` and its end. The service's store of adapters unpacks archives where the system says, which is here then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: str | None = None

    def __enter__(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._before, tempfile.tempdir = tempfile.tempdir, str(self._folder)

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        tempfile.tempdir = self._before

    def n_adapters(self) -> int:
        return sum(1 for _ in self._folder.glob("*/*.gguf"))
