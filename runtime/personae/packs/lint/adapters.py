"""The weights of a pack's adapters, all of them: what a header cannot tell. Reads megabytes; never done at the start of a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from personae.errors import PersonaeError
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile, Character, PackProblem, Severity
from personae.packs.lora import Lora, read_lora
from personae.packs.lora_header import ALPHA, adapter_header
from personae.packs.pack_files import open_pack
from personae.packs.store import AdapterStore


def lint_adapters(character: Character, base: BaseShapes | None, store: AdapterStore) -> Iterator[PackProblem]:
    """`base` None: the header alone. With a base, what the headers tell of the two was said when the pack was examined.

    Errors are what would keep the character from speaking.
    """
    for part in character.all_adapters():
        try:
            yield from _with_base(character.id, part, base, store) if base else _by_header(character.id, part)
        except PersonaeError as fault:
            yield PackProblem(character.id, part.file, "", fault.message, fault.hint)


def _with_base(pack: str, part: AdapterFile, base: BaseShapes, store: AdapterStore) -> Iterator[PackProblem]:
    path = Path(store.source(part).path)
    try:
        lora = read_lora(path, base)
    except PersonaeError as fault:  # one that was unpacked has another name there
        yield PackProblem(pack, part.file, "", fault.message.replace(path.name, _short(part)), fault.hint)
        return
    yield from _of_weights(pack, part, lora)


def _of_weights(pack: str, part: AdapterFile, lora: Lora) -> Iterator[PackProblem]:
    silent = [name for name, matrix in lora.matrices.items() if matrix.is_inert]
    if silent:
        problem = f"changes nothing in {len(silent)} of its {len(lora.matrices)} matrices ('{silent[0]}' is all zeros)."
        yield _warning(pack, part, problem, "Harmless; train without them to make the file smaller.")


def _by_header(pack: str, part: AdapterFile) -> Iterator[PackProblem]:
    with open_pack(part.pack) as files:
        stream, n_bytes = files.open(part.file)
        with stream:
            header = adapter_header(stream, n_bytes, Path(part.file))
    if ALPHA not in header.metadata:
        problem = f"states no {ALPHA}: its matrices are applied as they are, not times alpha / rank."
        yield _warning(pack, part, problem, "Export it with the alpha it was trained with.")


def _short(part: AdapterFile) -> str:
    return part.file.rpartition("/")[2]


def _warning(pack: str, part: AdapterFile, problem: str, remedy: str) -> PackProblem:
    return PackProblem(pack, part.file, "", problem, remedy, Severity.WARNING)
