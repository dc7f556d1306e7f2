"""The two ways to decode rows under different voices: `Mixed`, all in one llama_decode through the mixer, and `Grouped`, one
llama_decode for each voice through llama.cpp's own list of adapters. Same results; the backend picks one at start and says which.

Knows rows and adapters. Slots, streams and why a mode was chosen are the backend's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from personae.engine import _mixer
from personae.engine.backend import DecodeReport
from personae.engine.llama.context import Context, Row
from personae.engine.llama.model import Model
from personae.engine.mixer import Sites, tables
from personae.errors import AskedWrong, OurBug
from personae.packs.lora import Lora, adapter_key
from personae.packs.lora_writer import write_lora, zero_pairs
from personae.types import AdapterKey, Voice

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An adapter read and checked. `tables`: what mixed mode uses; in grouped mode llama.cpp reads the file itself at install."""

    lora_path: Path
    bytes_resident: int
    rank: int
    warnings: tuple[str, ...]
    tables: _mixer.Adapter | None


class Mixing(Protocol):
    def prepare(self, lora: Lora) -> Prepared: ...

    def install(self, key: AdapterKey, prepared: Prepared) -> None: ...

    def free(self, key: AdapterKey) -> None: ...

    def decode(self, rows: Sequence[Row], voices: Sequence[Voice]) -> tuple[DecodeReport, list[Logits | None]]:
        """Rows of one llama_decode's worth, or one sequence's chunk. Logits (views, until the next decode) of the rows that want them."""
        ...


def load_template(model: Model, sites: Sites) -> Any:
    """Load the rank-1 all-zero adapter that makes llama.cpp lay out a LoRA chain at every site.

    It must be loaded before a context is made: the room for graphs is counted from the adapters known then. Grouped mode needs that
    room just as well.
    """
    with tempfile.TemporaryDirectory(prefix="personae-") as folder:
        path = Path(folder) / "template.gguf"
        write_lora(path, model.architecture, 1.0, zero_pairs(sites.shapes))
        return model.load_adapter(path)


class Mixed:
    def __init__(self, context: Context, template: Any, sites: Sites) -> None:
        if context.mixer is None:
            raise OurBug("internal", "A mixed context was made without a mixer.")
        self._context, self._mixer, self._sites = context, context.mixer, sites
        self._tables: dict[AdapterKey, _mixer.Adapter] = {}
        context.use_adapters((template, 1.0))

    def prepare(self, lora: Lora) -> Prepared:
        made = tables(lora, self._sites)
        return Prepared(lora.path, made.n_bytes, lora.rank, lora.warnings, made)

    def install(self, key: AdapterKey, prepared: Prepared) -> None:
        if prepared.tables is None:
            raise OurBug("internal", "An adapter prepared for grouped mode reached the mixer.")
        self._tables[key] = prepared.tables

    def free(self, key: AdapterKey) -> None:
        self._tables.pop(key, None)

    def decode(self, rows: Sequence[Row], voices: Sequence[Voice]) -> tuple[DecodeReport, list[Logits | None]]:
        parts = {voice: self._parts(voice) for voice in set(voices)}
        self._mixer.set_rows([parts[voice] for voice in voices], [row.wants_logits for row in rows])
        self._context.decode(rows)
        self._check()
        logits = [self._context.logits(i) if row.wants_logits else None for i, row in enumerate(rows)]
        return DecodeReport(1, len(parts)), logits

    def _parts(self, voice: Voice) -> _mixer.Parts:
        return tuple((self._tables[use.key], use.scale) for use in voice)

    def _check(self) -> None:
        """A chain that was not recognised, or rows that did not fit, mean that somebody spoke without an adapter."""
        counts = self._mixer.counts()
        if counts["broken"] or counts["misfits"]:
            raise OurBug("internal", f"The mixer did not recognise llama.cpp's graph: {counts}.", "Start with --mode grouped.")


@dataclass(slots=True)
class _Group:
    voice: Voice
    rows: list[int]


class Grouped:
    """One decode for each voice in use. Which group goes first rotates, so that nobody's token is always the last of a step."""

    def __init__(self, model: Model, context: Context) -> None:
        self._model, self._context = model, context
        self._adapters: dict[AdapterKey, Any] = {}
        self._in_use: Voice = ()
        self._turn = 0
        context.use_adapters()

    def prepare(self, lora: Lora) -> Prepared:
        return Prepared(lora.path, lora.n_bytes, lora.rank, lora.warnings, None)

    def install(self, key: AdapterKey, prepared: Prepared) -> None:
        if key not in self._adapters:
            self._check_unchanged(key, prepared.lora_path)
            self._adapters[key] = self._model.load_adapter(prepared.lora_path)

    def _check_unchanged(self, key: AdapterKey, path: Path) -> None:
        """llama.cpp reads the file again, and aborts on some that read_lora would refuse."""
        if adapter_key(path) != key:
            raise AskedWrong("adapter_changed", f"Adapter '{path.name}' changed on disk while it was loaded.", "Ask again.")

    def free(self, key: AdapterKey) -> None:
        adapter = self._adapters.pop(key, None)
        if adapter is None:
            return
        if any(use.key == key for use in self._in_use):
            self._switch(())
        self._model.free_adapter(adapter)

    def decode(self, rows: Sequence[Row], voices: Sequence[Voice]) -> tuple[DecodeReport, list[Logits | None]]:
        groups = self._groups(voices)
        logits: list[Logits | None] = [None] * len(rows)
        for group in groups:
            self._switch(group.voice)
            self._context.decode([rows[i] for i in group.rows])
            for at, i in enumerate(group.rows):
                if rows[i].wants_logits:
                    logits[i] = self._context.logits(at).copy()  # the next group's decode overwrites them
        return DecodeReport(len(groups), 1), logits

    def _groups(self, voices: Sequence[Voice]) -> list[_Group]:
        by_voice: dict[Voice, _Group] = {}
        for i, voice in enumerate(voices):
            by_voice.setdefault(voice, _Group(voice, [])).rows.append(i)
        groups = list(by_voice.values())
        self._turn = (self._turn + 1) % len(groups)
        return groups[self._turn :] + groups[: self._turn]

    def _switch(self, voice: Voice) -> None:
        if voice != self._in_use:
            self._context.use_adapters(*((self._adapters[use.key], use.scale) for use in voice))
            self._in_use = voice
