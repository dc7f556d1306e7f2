"""Scheduler, engine loop and llama.cpp together: what an NPC says depends on its prompt and voice alone, not on what its slot held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from personae.engine.batch import AdapterLoaded, AdapterRefused, Result, StepDone, TurnFaulted
from personae.engine.llama.backend import LlamaBackend
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.packs.lora import adapter_key
from personae.scheduler import Scheduler, SchedulerConfig
from personae.scheduler.actions import Command, EndTurn, FailTurn
from personae.scheduler.events import AdapterReported, EngineStarted, Event, FaultReported, StepReported, TurnAsked, TurnCancelled
from personae.types import AdapterSource, AdapterUse, Limits, NpcId, Priority, ReplyRules, SamplingParams, TurnId, voice_of
from tests.tiny import TinyModel, write_model
from tests.tiny.adapters import draft_adapter
from tests.tiny.stock import Adapters, scales_of, stock_greedy
from tests.tiny.vocabulary import FIRST_BYTE, IM_END

N_SLOTS, N_CTX, N_REPLY = 3, 256, 10


def of(text: str) -> tuple[int, ...]:
    return tuple(FIRST_BYTE + byte for byte in text.encode())


class House:
    """Everything between a request and llama.cpp, on one thread."""

    def __init__(self, model: TinyModel, mode: str) -> None:
        settings = EngineSettings(model=str(model.path), n_slots=N_SLOTS, n_ctx=N_CTX, threads=1, mode=mode, prefill_chunk=16)
        self.backend = LlamaBackend(settings)
        self.results: list[Result] = []
        self.loop = EngineLoop(self.backend, self.results.append, prefill_chunk=16)
        self.scheduler = Scheduler(SchedulerConfig(prefill_chunk=16))
        self.ended: dict[int, EndTurn | FailTurn] = {}
        self.now_ms, self.turn = 0.0, 0
        self.tell(EngineStarted(0.0, N_SLOTS, N_CTX))

    def tell(self, event: Event) -> None:
        for action in self.scheduler.handle(event):
            if isinstance(action, Command):
                self.loop.handle(action.order)
            elif isinstance(action, EndTurn | FailTurn):
                self.ended[int(action.turn)] = action

    def ask(self, npc: str, text: str, voice: Adapters = None, scale: float = 1.0, tail: str = "") -> int:
        return self.ask_tokens(npc, of(text), voice, scale, of(tail))

    def ask_tokens(self, npc: str, prompt: tuple[int, ...], voice: Adapters, scale: float = 1.0, tail: tuple[int, ...] = ()) -> int:
        self.turn += 1
        files = {adapter_key(path): (str(path), scale) for path, scale in scales_of(voice, scale).items()}
        speaking = voice_of(AdapterUse(key, scale) for key, (_, scale) in files.items())
        sources = tuple(AdapterSource(use.key, files[use.key][0]) for use in speaking)
        greedy, limits = SamplingParams(temperature=0), Limits(max_tokens=N_REPLY)
        turn, player = TurnId(self.turn), Priority.PLAYER
        self.tell(TurnAsked(self.now_ms, turn, NpcId(npc), prompt, speaking, sources, greedy, ReplyRules(), limits, player, tail))
        return self.turn

    def cancel(self, turn: int) -> None:
        self.tell(TurnCancelled(self.now_ms, TurnId(turn)))

    def advance(self) -> bool:
        """Tell the scheduler of one thing that has happened; False when nothing has."""
        self.loop.settle(block=not self.results)
        if not self.results:
            return False
        self.now_ms += 1.0
        match self.results.pop(0):
            case StepDone() as step:
                self.tell(StepReported(self.now_ms, step))
            case TurnFaulted() as fault:
                self.tell(FaultReported(self.now_ms, fault))
            case AdapterLoaded() | AdapterRefused() as result:
                self.tell(AdapterReported(self.now_ms, result))
        self.scheduler.validate()
        return True

    def settle(self) -> None:
        while self.advance():
            pass

    def reply(self, turn: int) -> list[int]:
        ended = self.ended[turn]
        assert isinstance(ended, EndTurn), ended
        return list(ended.reply)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture(scope="module")
def voices(model: TinyModel) -> list[Path]:
    paths = [model.path.with_name(f"voice {i}.gguf") for i in range(3)]
    for seed, path in enumerate(paths):
        draft = draft_adapter(model, rank=3 + seed, seed=seed, magnitude=0.5)
        for name, weights in draft.tensors.items():
            draft.tensors[name] = weights.astype(np.float16).astype(np.float32)  # exact in the mixer's tables and in llama.cpp's F32
        draft.write(path, "f32")
    return paths


@pytest.fixture(params=["mixed", "grouped"])
def house(request: pytest.FixtureRequest, model: TinyModel) -> Iterator[House]:
    house = House(model, request.param)
    yield house
    house.loop.close()


def stock(model: TinyModel, text: str, voice: Adapters = None, scale: float = 1.0) -> list[int]:
    return stock_after(model, of(text), voice, scale)


def stock_after(model: TinyModel, prompt: tuple[int, ...], voice: Adapters, scale: float = 1.0) -> list[int]:
    drawn = stock_greedy(model.path, list(prompt), N_REPLY, voice, scale)
    return drawn[: drawn.index(IM_END)] if IM_END in drawn else drawn


TALK = "The cellar door is open, and the lamp is out. "


def test_another_adapter_over_the_same_prefix_is_as_cold(house: House, model: TinyModel, voices: list[Path]) -> None:
    """One NPC, the same words, A then B then A at another scale then none: KV is never taken over from another voice."""
    for voice, scale in ((voices[0], 1.0), (voices[1], 1.0), (voices[0], 0.5), (None, 1.0), (voices[0], 1.0)):
        turn = house.ask("innkeeper", TALK, voice, scale)
        house.settle()
        assert house.reply(turn) == stock(model, TALK, voice, scale)


def test_another_part_or_another_scale_over_the_same_prefix_is_as_cold(house: House, model: TinyModel, voices: list[Path]) -> None:
    """One NPC, the same words; a guest speaks beside it in voices that share adapters with it."""
    one, two, three = voices
    for voice in ({one: 1.0, two: 0.5}, {one: 1.0}, {one: 1.0, two: 0.75}, {one: 1.0, two: 0.75, three: -0.5}, {}, {two: 0.5, one: 1.0}):
        turn, guest = house.ask("innkeeper", TALK, voice), house.ask("guest", TALK[9:], {two: 1.0, three: 1.0})
        house.settle()
        assert house.reply(turn) == stock(model, TALK, voice)
        assert house.reply(guest) == stock(model, TALK[9:], {two: 1.0, three: 1.0})


def test_a_longer_prompt_under_the_same_adapter_reuses_what_is_there(house: House, model: TinyModel, voices: list[Path]) -> None:
    for n in (1, 2, 3):
        turn = house.ask("innkeeper", TALK * n, voices[0])
        house.settle()
        assert house.reply(turn) == stock(model, TALK * n, voices[0])
    ended = house.ended[turn]
    assert isinstance(ended, EndTurn)
    assert ended.usage.reused >= 2 * len(TALK) - 1


@pytest.mark.parametrize("guess", ["", "<end>\nHeard: ", "<end>\nWrong: "])
def test_a_reply_is_the_same_whatever_was_prefilled_before_its_line(guess: str, house: House, model: TinyModel, voices: list[Path]) -> None:
    """No guess, the right one, one that is cut in its middle; while another voice speaks, and in a house that is silent."""
    for voice, others in ((voices[0], True), (None, False)):
        npc = f"innkeeper {others}"
        first = house.ask(npc, TALK, voice, tail=guess)
        if others:
            house.ask("guest", TALK * 2, voices[1])
        house.settle()
        prompt = of(TALK) + tuple(house.reply(first)) + of("<end>\nHeard: ")
        second = house.ask_tokens(npc, prompt + of("Why?"), voice)
        house.settle()
        assert house.reply(second) == stock_after(model, prompt + of("Why?"), voice)
        if guess.endswith("Heard: "):
            ended = house.ended[second]
            assert isinstance(ended, EndTurn)
            assert ended.usage.prefilled == len("Why?")


def test_more_npcs_than_slots_each_say_what_they_would_alone(house: House, model: TinyModel, voices: list[Path]) -> None:
    cast: dict[str, tuple[str, Adapters]]
    cast = {f"npc {i}": (TALK[i:], [*voices, None, {voices[0]: 0.5, voices[2]: 0.5}][i % 5]) for i in range(9)}
    for _ in range(2):
        turns = {npc: house.ask(npc, text, voice) for npc, (text, voice) in cast.items()}
        house.settle()
        for npc, (text, voice) in cast.items():
            assert house.reply(turns[npc]) == stock(model, text, voice), npc


@pytest.mark.parametrize("after", range(1, 9))
def test_a_turn_after_a_cancelled_one_is_as_fresh(after: int, house: House, model: TinyModel, voices: list[Path]) -> None:
    """Cancelled at every point from the first chunk of its prompt on, while another speaks."""
    other = house.ask("guest", TALK, voices[1])
    cancelled = house.ask("innkeeper", TALK + "Somebody is coming up the stairs.", voices[0])
    for _ in range(after):
        house.advance()
    house.cancel(cancelled)
    turn = house.ask("innkeeper", TALK + "Nobody is there.", voices[0])
    house.settle()
    assert house.reply(turn) == stock(model, TALK + "Nobody is there.", voices[0])
    assert house.reply(other) == stock(model, TALK, voices[1])


def test_a_refused_adapter_fails_its_turn_and_nobody_elses(house: House, model: TinyModel, voices: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(voices[0].read_bytes()[:-1000])
    good, failing = house.ask("guest", TALK, voices[1]), house.ask("innkeeper", TALK, bad)
    house.settle()
    failed = house.ended[failing]
    assert isinstance(failed, FailTurn)
    assert (failed.code, "bad.gguf" in failed.message) == ("adapter_truncated", True)
    assert house.reply(good) == stock(model, TALK, voices[1])
