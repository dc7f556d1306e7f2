"""What a model will see of a pack, as figures: stretches with their text and tokens, the budget, the lore, the adapters. Draws nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.cli.pack.fitting import reserve_of, room_of
from personae.cli.pack.measure import Measure
from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong
from personae.packs.character import AdapterFile, Character, Mood
from personae.packs.lora_header import adapter_header
from personae.packs.pack_files import open_pack
from personae.prompt import Line, Receipt
from personae.service.roster import persona_of
from personae.types import Token

SPEAKER = "Player"
_CONTROL = re.compile(r"<[|｜]?[^<>\s]{1,40}[|｜]?>|\[/?[A-Z_]{2,20}\]")  # how templates spell control tokens


@dataclass(frozen=True, slots=True)
class Shown:
    """A stretch of the prompt that stands for one thing."""

    part: str
    name: str
    tokens: tuple[Token, ...]
    pieces: tuple[str, ...]  # one a token, as a reader would see it

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "name": self.name,
            "n_tokens": len(self.tokens),
            "tokens": list(self.tokens),
            "pieces": list(self.pieces),
        }


@dataclass(frozen=True, slots=True)
class AdapterShown:
    file: str
    scale: float
    rank: int  # the largest
    n_bytes: int
    trained_on: str  # what the file says: a model's name, else an architecture


@dataclass(frozen=True, slots=True)
class Sheet:
    character: Character
    mood: str  # "": none
    stretches: tuple[Shown, ...]
    receipt: Receipt
    n_ctx: int
    adapters: tuple[AdapterShown, ...]
    template_note: str


def sheet_of(character: Character, mood: Mood | None, said: Sequence[str], measure: Measure) -> Sheet:
    """The prompt for a reply to the last of `said`. AskedWrong `persona_too_long`, `text_too_long`."""
    builder, vocabulary = measure.builder, measure.vocabulary
    assert builder is not None
    assert vocabulary is not None
    lines = [Line(character.name, character.greeting, True)] if character.greeting else []
    lines += [Line(SPEAKER, text, False) for text in said]
    persona = persona_of(character, mood=mood)
    reserve, room = reserve_of(character, measure.n_ctx), room_of(character, measure.n_ctx)
    receipt = builder.build(persona, lines, reserve, room=room).receipt
    spelled = _Spelling(vocabulary)
    stretches = tuple(
        Shown(stretch.part, stretch.name, stretch.tokens, spelled.of(stretch.tokens))
        for stretch in builder.annotated(persona, lines, reserve, room=room)
    )
    parts = character.adapters if mood is None or mood.adapters is None else mood.adapters
    adapters = tuple(_adapter(part) for part in parts)
    return Sheet(character, mood.name if mood else "", stretches, receipt, measure.n_ctx, adapters, builder.template_note)


def mood_of(character: Character, name: str | None) -> Mood | None:
    """AskedWrong `unknown_mood`."""
    if name is None:
        return None
    try:
        return character.moods[name]
    except KeyError:
        known = ", ".join(character.moods) or "none"
        raise AskedWrong("unknown_mood", f"{character.name} has no mood {name!r}.", f"Known are: {known}.") from None


class _Spelling:
    """Tokens as people read them: characters that two tokens share stand at the first, control tokens by their names."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._names = _control_names(vocabulary)

    def of(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        pieces: list[str] = []
        held, at = b"", 0  # bytes of a character that is not whole yet, and where it began
        for token in tokens:
            piece = self._vocabulary.piece(token)
            pieces.append("" if piece else self._names.get(token, f"<{token}>"))
            if not piece:
                continue
            at = at if held else len(pieces) - 1
            held += piece
            try:
                pieces[at], held = held.decode(), b""
            except UnicodeDecodeError:
                pieces[at] = held.decode(errors="replace")
                held = held if len(held) < 4 else b""
        return tuple(pieces)


def _control_names(vocabulary: Vocabulary) -> Mapping[Token, str]:
    """Of those that the template may write, found by asking the vocabulary."""
    texts = {*_CONTROL.findall(vocabulary.chat_template), vocabulary.token_text("bos"), vocabulary.token_text("eos")} - {""}
    texts |= {"<|im_start|>", "<|im_end|>"}
    tokens = {text: vocabulary.tokenize(text, special=True) for text in texts}
    return {ids[0]: text for text, ids in tokens.items() if len(ids) == 1 and not vocabulary.piece(ids[0])}


def _adapter(part: AdapterFile) -> AdapterShown:
    with open_pack(part.pack) as files:
        stream, n_bytes = files.open(part.file)
        with stream:
            header = adapter_header(stream, n_bytes, Path(part.file))
    rank = max((tensor.dims[-1] for name, tensor in header.tensors.items() if name.endswith(".lora_a")), default=0)
    trained_on = header.text("general.base_model.0.name") or header.text("general.architecture") or ""
    return AdapterShown(part.file, part.scale, rank, part.n_bytes, trained_on)
