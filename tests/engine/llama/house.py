"""The real backend on tiny models: adapters, prompts, and the two ways to speak with it, by hand and through the engine loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.engine.batch import BeginTurn, LoadAdapter, Order, PrefillChunk, Result, RunStep, StepDone, TurnFaulted
from personae.engine.llama.backend import LlamaBackend
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.packs.lora import adapter_key
from personae.types import AdapterKey, AdapterUse, Limits, ReplyRules, SamplingParams, Slot, TurnId, Voice, voice_of
from tests.tiny import TinyModel
from tests.tiny.adapters import draft_adapter
from tests.tiny.vocabulary import FIRST_BYTE

CHUNK = 64  # most tokens of one prefill
GREEDY = SamplingParams(temperature=0)
LINE = "Good evening, innkeeper. What is there to eat?"


def settings(path: Path, **more: Any) -> EngineSettings:
    defaults: dict[str, Any] = {"n_slots": 4, "n_ctx": 128, "threads": 1, "prefill_chunk": CHUNK}
    return EngineSettings(model=str(path), **(defaults | more))


@dataclass(frozen=True, slots=True)
class Adapter:
    path: Path
    key: AdapterKey

    def at(self, scale: float = 1.0) -> Voice:
        """The voice of this adapter alone."""
        return (AdapterUse(self.key, scale),)


def sum_of(*voices: Voice) -> Voice:
    return voice_of(use for voice in voices for use in voice)


def an_adapter(path: Path, model: TinyModel, **more: Any) -> Adapter:
    """An F32 file of values that are binary16 numbers.

    The mixer's tables hold these exactly, and llama.cpp multiplies by them in float32. (By F16 weights it multiplies a row that it
    has rounded to F16 first: on these models that alone moves logits by some percent.)
    """
    draft = draft_adapter(model, **({"magnitude": 0.5} | more))
    for name, weights in draft.tensors.items():
        draft.tensors[name] = weights.astype(np.float16).astype(np.float32)
    draft.write(path, "f32")
    return Adapter(path, adapter_key(path))


def write_voices(folder: Path, model: TinyModel) -> dict[str, Adapter]:
    """`wide` and `narrow` touch every matrix, `some` a few of them; the ranks differ, in `wide` between matrices too."""
    some = [name for name in model.targets if "attn_v" in name or "ffn_down" in name]
    return {
        "wide": an_adapter(folder / "wide.gguf", model, rank={next(iter(model.targets)): 33}, seed=1),
        "narrow": an_adapter(folder / "narrow.gguf", model, rank=1, alpha=2.0, seed=2),
        "some": an_adapter(folder / "some.gguf", model, rank=7, only=some, seed=3),
    }


def prompt(text: str = LINE) -> list[int]:
    """Tokens of plain text, a byte each: any tiny model reads them."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def load(backend: LlamaBackend, *adapters: Adapter) -> None:
    for one in adapters:
        backend.install_adapter(one.key, backend.prepare_adapter(one.key, str(one.path)))


def logits_of(backend: LlamaBackend, slot: int) -> NDArray[np.float32]:
    """A copy of the row from which the slot's next token would be drawn."""
    return backend._logits[Slot(slot)].copy()


def listen(backend: LlamaBackend, slot: int, tokens: Sequence[int], voice: Voice = ()) -> int:
    """Prefill a slot from its beginning; the likeliest next token."""
    backend.cut(Slot(slot), 0)
    return listen_on(backend, slot, tokens, voice)


def listen_on(backend: LlamaBackend, slot: int, tokens: Sequence[int], voice: Voice = ()) -> int:
    backend.bind(Slot(slot), voice)
    for at in range(0, len(tokens), CHUNK):
        backend.prefill(Slot(slot), tokens[at : at + CHUNK], wants_logits=at + CHUNK >= len(tokens))
    return int(logits_of(backend, slot).argmax())


def speak(backend: LlamaBackend, firsts: Mapping[int, int], n: int) -> tuple[dict[int, list[int]], dict[int, list[NDArray[np.float32]]]]:
    """n tokens of each slot, greedily, all slots in every step: tokens and the logits they were drawn from (but the first's)."""
    drawn = {slot: [first] for slot, first in firsts.items()}
    seen: dict[int, list[NDArray[np.float32]]] = {slot: [] for slot in firsts}
    for _ in range(n - 1):
        backend.decode([(Slot(slot), tokens[-1]) for slot, tokens in drawn.items()])
        for slot, tokens in drawn.items():
            seen[slot].append(logits_of(backend, slot))
            tokens.append(int(seen[slot][-1].argmax()))
    return drawn, seen


@dataclass
class House:
    """The engine loop around a real backend."""

    backend: LlamaBackend
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = EngineLoop(self.backend, self.results.append)

    def do(self, *orders: Order) -> None:
        for order in orders:
            self.loop.handle(order)

    def load(self, *adapters: Adapter) -> list[Result]:
        """What the loop answered."""
        n = len(self.results)
        self.do(*(LoadAdapter(one.key, str(one.path)) for one in adapters))
        self.loop.settle(block=True)
        answers, self.results[n:] = self.results[n:], []
        return answers

    def step(self, *decode: int, prefill: Sequence[PrefillChunk] = ()) -> StepDone:
        self.do(RunStep(tuple(map(TurnId, decode)), tuple(prefill)))
        done = self.results.pop()
        assert isinstance(done, StepDone)
        return done

    def begin(self, turn: int, slot: int, tokens: Sequence[int], voice: Voice = (), **more: Any) -> StepDone:
        """Begin a turn and prefill all of its prompt in one chunk; the step that drew its first token."""
        self.do(begin_turn(turn, slot, voice, **more))
        if self.results:
            raise AssertionError(self.results.pop())
        return self.step(prefill=(PrefillChunk(TurnId(turn), tuple(tokens), last=True),))

    def fault(self) -> TurnFaulted:
        fault = self.results.pop()
        assert isinstance(fault, TurnFaulted)
        return fault


def begin_turn(
    turn: int,
    slot: int,
    voice: Voice = (),
    *,
    keep: int = 0,
    history: Sequence[int] = (),
    sampling: SamplingParams = GREEDY,
    max_tokens: int = 100,
) -> BeginTurn:
    return BeginTurn(TurnId(turn), Slot(slot), keep, voice, sampling, ReplyRules(), Limits(max_tokens=max_tokens), tuple(history))
