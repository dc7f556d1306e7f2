"""What a file or folder given to `personae pack import` is, by its content and not by its name. Reads a few bytes of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from personae.errors import AskedWrong
from personae.packs.manifest import FILE
from personae.packs.pack_files import SUFFIX, open_pack
from personae.packs.peft.adapter import PICKLES
from personae.packs.peft.config import CONFIG


class Kind(StrEnum):
    """The values are what people call it."""

    CARD = "character card"
    ARCHIVE = "pack archive"
    PEFT = "PEFT adapter"
    GGUF = "GGUF adapter"

    @property
    def is_adapter(self) -> bool:
        return self in (Kind.PEFT, Kind.GGUF)


def kind_of(source: Path) -> Kind:
    """AskedWrong `bad_arguments` when it is nothing that can be imported. What only looks like a card, the reader of cards refuses."""
    if not source.exists():
        raise AskedWrong(
            "bad_arguments", f"There is nothing at {source}.", "Give a card, a PEFT folder, a .persona archive or a GGUF adapter."
        )
    if source.is_dir():
        return _of_folder(source)
    if source.name == CONFIG or source.suffix in (".safetensors", *PICKLES):
        return Kind.PEFT
    head = _head(source)
    if head == b"GGUF":
        return Kind.GGUF
    return Kind.ARCHIVE if head.startswith(b"PK") and _is_pack(source) else Kind.CARD


def _of_folder(source: Path) -> Kind:
    if (source / CONFIG).exists():
        return Kind.PEFT
    if (source / FILE).exists():
        raise AskedWrong("bad_arguments", f"{source} is a pack already.", "Copy it into the folder of packs; that is all.")
    raise AskedWrong("bad_arguments", f"{source} holds no {CONFIG}: it is no PEFT adapter.", "Give the folder that PEFT saved, or a file.")


def _head(source: Path) -> bytes:
    try:
        with source.open("rb") as file:
            return file.read(4)
    except OSError as fault:
        raise AskedWrong("bad_arguments", f"{source} cannot be read ({fault.strerror}).", "Look at its permissions.") from fault


def _is_pack(source: Path) -> bool:
    """A CHARX card is a zip archive too. What calls itself a pack is taken for one, so that its faults are told."""
    if source.suffix.lower() == SUFFIX:
        return True
    try:
        with open_pack(source) as files:
            return FILE in files.names()
    except AskedWrong:
        return False
