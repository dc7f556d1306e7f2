"""What a number format of the base does to the characters' voices: how surprised the model is by what its characters really said.

For a sample of the lines in each pack's lines.jsonl, the negative log likelihood of the reply's tokens, in nats a token, after the very
prompt that the service would build: under the character's own adapters and under none. What they gain is the voice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from personae.cli.bench.figures import rounded
from personae.cli.bench.stage import N_BATCH, Stage
from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Mixed
from personae.engine.llama.vocab import LlamaVocabulary
from personae.packs.character import Character
from personae.packs.loader import load_cast
from personae.prompt import Line, PromptBuilder
from personae.service.roster import persona_of
from personae.types import AdapterUse, Voice, voice_of

LINES_FILE = "lines.jsonl"  # {"user": ..., "reply": ...} a line
N_CTX = 1024
RESERVE = 128


@dataclass(frozen=True, slots=True)
class Saying:
    user: str
    reply: str


@dataclass(frozen=True, slots=True)
class Speaker:
    character: Character
    sayings: tuple[Saying, ...]


def speakers_in(folder: Path, most_lines: int, seed: int = 0) -> list[Speaker]:
    """The folders that have an adapter and lines, with a sample of the lines that is the same at every call."""
    speakers = []
    for character in load_cast(folder).characters.values():
        lines = character.pack / LINES_FILE
        if character.adapters and lines.is_file():
            sayings = [Saying(line["user"], line["reply"]) for line in map(json.loads, lines.read_text("utf-8").splitlines())]
            sample = random.Random(seed).sample(sayings, min(most_lines, len(sayings)))
            speakers.append(Speaker(character, tuple(sample)))
    return speakers


def gain(stage: Stage, speakers: Sequence[Speaker]) -> dict[str, float]:
    """Nats a token over the replies of all speakers. AskedWrong `adapter_*` when an adapter is not for this model."""
    reader = _Reader(stage)
    own, none = [], []
    for speaker in speakers:
        voice = reader.install(speaker.character)
        own += [nll for saying in speaker.sayings for nll in reader.surprise(speaker.character, saying, voice)]
        none += [nll for saying in speaker.sayings for nll in reader.surprise(speaker.character, saying, ())]
    own_nll, none_nll = float(np.mean(own)), float(np.mean(none))
    return {"own_nll": rounded(own_nll), "none_nll": rounded(none_nll), "gain_nats": rounded(none_nll - own_nll)}


class _Reader:
    """One stream that reads prompts and replies. What it holds under the same voice is not read again."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._vocabulary = LlamaVocabulary(stage.model)
        self._builder = PromptBuilder(self._vocabulary, n_ctx=N_CTX)
        self._mixed: Mixed
        self._context: Context
        self._mixed, self._context = stage.mixed(1, N_CTX)
        self._held: list[int] = []
        self._held_under: Voice = ()

    def install(self, character: Character) -> Voice:
        alone = self._stage.install([part.pack / part.file for part in character.adapters], self._mixed)
        return voice_of(AdapterUse(use.key, part.scale) for (use,), part in zip(alone, character.adapters, strict=True))

    def surprise(self, character: Character, saying: Saying, voice: Voice) -> list[float]:
        """-log p of each token of the reply."""
        prompt = list(self._builder.build(persona_of(character), [Line("Player", saying.user, False)], RESERVE).tokens)
        reply = self._vocabulary.tokenize(saying.reply, special=False)[:RESERVE]
        first = len(prompt) - 1  # its logits say what they expect of the reply's first token
        return [_nll(row, token) for row, token in zip(self._read(prompt + reply[:-1], first, voice), reply, strict=True)]

    def _read(self, tokens: list[int], first: int, voice: Voice) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        """Logits of the tokens from `first` on."""
        at = _common(self._held, tokens[:first]) if voice == self._held_under else 0
        self._context.cut(0, at)
        self._held, self._held_under = tokens, voice
        rows = [Row(tokens[i], i, 0, i >= first) for i in range(at, len(tokens))]
        read = []
        for start in range(0, len(rows), N_BATCH):
            part = rows[start : start + N_BATCH]
            _, logits = self._mixed.decode(part, [voice] * len(part))
            read += [row.copy() for row in logits if row is not None]
        return read


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _nll(logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]], token: int) -> float:
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(top + np.log(np.exp(wide - top).sum()) - wide[token])
