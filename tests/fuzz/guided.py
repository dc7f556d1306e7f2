"""One target under atheris, in a process of its own: `python -m tests.fuzz.guided NAME CORPUS [options of libFuzzer]`."""

from __future__ import annotations

import importlib
import sys

import atheris

READERS = ("manifest", "loader", "gguf", "lora", "cards", "peft", "toml_text")  # of personae.packs, so that their branches are counted

with atheris.instrument_imports(include=["personae", "tomllib", "zipfile", "json"]):
    from tests.fuzz.targets import TARGETS, run

    for reader in READERS:
        importlib.import_module(f"personae.packs.{reader}")


def main() -> None:
    name = sys.argv.pop(1)
    target = TARGETS[name]
    atheris.Setup(sys.argv, lambda content: run(target, content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
