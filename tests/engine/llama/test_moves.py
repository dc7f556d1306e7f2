"""A turn that was paused, stashed, fetched, copied or brought from a file says, token by token, what it would have said undisturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from personae.engine.batch import (
    ClearSlot,
    CopySlot,
    DropStash,
    DropTurn,
    FetchStash,
    KvRead,
    KvWritten,
    PauseTurn,
    PrefillChunk,
    ReadKv,
    ResumeTurn,
    SlotStashed,
    StashSlot,
    TurnRefilled,
    WriteKv,
)
from personae.engine.llama.backend import LlamaBackend
from personae.errors import OurBug
from personae.types import AdapterUse, SamplingParams, Slot, Stash, TurnId, Voice
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import GREEDY, Adapter, House, begin_turn, prompt, settings
from tests.tiny import TinyModel, write_model

ARCHES = ("llama", "gemma3", "qwen2")  # gemma3: a window of 32 tokens, less than the prompts here
SAMPLINGS = {
    "greedy": GREEDY,
    "penalties": SamplingParams(temperature=0, repeat_penalty=1.3, repeat_last_n=40, frequency_penalty=0.1),
    "dry": SamplingParams(temperature=0, dry_multiplier=0.8),
    "seeded": SamplingParams(temperature=0.9, seed=7, repeat_penalty=1.2),
}
N_SAID = 24
LINE = tuple(prompt())
T1, T2, T3, S0, S2, S3 = TurnId(1), TurnId(2), TurnId(3), Slot(0), Slot(2), Slot(3)
STASH, NOWHERE = Stash(7), Stash(8)

by_arch = pytest.mark.parametrize("arch", ARCHES)
by_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())


class Stage(House):
    """Turn 1 is the one that is moved about, in voice `wide`; turn 2 speaks beside it in another voice, from slot 1."""

    def __init__(self, backend: LlamaBackend, voices: dict[str, Adapter]) -> None:
        super().__init__(backend)
        self.voice, self.other = voices["wide"].at(), voices["some"].at(0.5)
        self.load(*voices.values())
        self.set()

    def set(self) -> None:
        """As if the engine had just begun."""
        self.do(
            *(DropTurn(turn) for turn in (T1, T2, T3)),
            *(ClearSlot(Slot(slot)) for slot in range(4)),
            *map(DropStash, map(Stash, range(50))),
        )
        self.results.clear()
        self.said: list[int] = []  # by turn 1
        self.begin(2, 1, prompt("And who are you?"), self.other, max_tokens=200)

    def begin_one(self, sampling: SamplingParams, slot: Slot = S0, keep: int = 0) -> None:
        self.do(begin_turn(1, slot, self.voice, sampling=sampling, max_tokens=N_SAID, keep=keep, history=LINE[:keep]))

    def feed(self, tokens: tuple[int, ...], *, last: bool) -> None:
        """A chunk of turn 1, while turn 2 speaks."""
        self.hear(self.step(2, prefill=[PrefillChunk(T1, tokens, last)]))

    def speak(self, n: int) -> list[int]:
        """n more tokens of turn 1, beside turn 2."""
        for _ in range(n):
            self.hear(self.step(1, 2))
        return self.said

    def hear(self, done: object) -> None:
        self.said += [row.token for row in done.rows if row.turn == 1]  # type: ignore[attr-defined]

    def intrude(self) -> None:
        """Somebody else speaks from the slot that turn 1 had."""
        self.begin(3, 0, prompt("Make way! I have the floor now, and I shall keep it for a while."), self.other)
        for _ in range(3):
            self.step(2, 3)
        self.do(DropTurn(T3))

    @property
    def held(self) -> tuple[int, ...]:
        """What of turn 1 was in KV when it was paused: all but the token it drew last."""
        return (LINE + tuple(self.said))[:-1]


@pytest.fixture(scope="module")
def stages(models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]]) -> Iterator[dict[str, Stage]]:
    backends = {arch: LlamaBackend(settings(models[arch].path, n_ctx=256)) for arch in ARCHES}
    yield {arch: Stage(backend, all_voices[arch]) for arch, backend in backends.items()}
    for backend in backends.values():
        backend.close()


@pytest.fixture
def stage(arch: str, stages: dict[str, Stage]) -> Stage:
    stages[arch].set()
    return stages[arch]


def undisturbed(stage: Stage, sampling: SamplingParams) -> list[int]:
    """What turn 1 says when nothing happens to it; turn 2 goes on, and slot 0 is left as found."""
    stage.begin_one(sampling)
    stage.feed(LINE, last=True)
    said = list(stage.speak(N_SAID - 1))
    stage.said = []
    return said


# --- ways back ----------------------------------------------------------------------------------------------------

Back = Callable[[Stage, tuple[int, ...]], None]


def fetched(stage: Stage, held: tuple[int, ...]) -> None:
    stage.do(StashSlot(S0, STASH))
    stashed = stage.results.pop()
    assert isinstance(stashed, SlotStashed)
    assert (stashed.stash, stashed.n_tokens) == (STASH, len(held))
    assert stashed.n_bytes > 0
    stage.intrude()
    stage.do(FetchStash(STASH, S2), ResumeTurn(T1, S2, len(held), held))
    assert stage.results == []


def prefilled_again(stage: Stage, held: tuple[int, ...]) -> None:
    stage.intrude()
    stage.do(ResumeTurn(T1, S3, 0))
    for at in range(0, len(held), 25):
        stage.feed(held[at : at + 25], last=False)


def resumed_on_a_part(stage: Stage, held: tuple[int, ...]) -> None:
    """Another slot holds the head of it: an NPC of the same pack."""
    stage.do(begin_turn(3, 3, stage.voice))
    stage.step(2, prefill=[PrefillChunk(T3, held[:9], last=False)])
    stage.do(DropTurn(T3), ResumeTurn(T1, S3, 9, held[:9]))
    stage.feed(held[9:], last=False)


def lost(stage: Stage, held: tuple[int, ...]) -> None:
    stage.intrude()
    stage.do(FetchStash(NOWHERE, S2), ResumeTurn(T1, S2, len(held), held))
    assert stage.results.pop() == TurnRefilled(T1, len(held))


def never_left(stage: Stage, held: tuple[int, ...]) -> None:
    stage.step(2)
    stage.do(ResumeTurn(T1, S0, len(held), held))
    assert stage.results == []


by_way_back = pytest.mark.parametrize("come_back", [fetched, prefilled_again, resumed_on_a_part, lost, never_left])


@by_arch
@by_sampling
@by_way_back
def test_a_turn_paused_in_mid_reply_goes_on_as_if_nothing_had_been(come_back: Back, sampling: SamplingParams, stage: Stage) -> None:
    wanted = undisturbed(stage, sampling)
    stage.begin_one(sampling)
    stage.feed(LINE, last=True)
    stage.speak(7)
    stage.do(PauseTurn(T1))
    stage.step(2)
    come_back(stage, stage.held)
    assert stage.speak(N_SAID - 8) == wanted


@by_arch
@by_sampling
@by_way_back
def test_a_turn_paused_in_mid_prefill_begins_as_if_nothing_had_been(come_back: Back, sampling: SamplingParams, stage: Stage) -> None:
    wanted = undisturbed(stage, sampling)
    stage.begin_one(sampling)
    stage.feed(LINE[:20], last=False)
    stage.do(PauseTurn(T1))
    come_back(stage, LINE[:20])
    stage.feed(LINE[20:], last=True)
    assert stage.speak(N_SAID - 1) == wanted


@by_arch
def test_a_turn_that_is_paused_again_and_again_says_the_same(stage: Stage) -> None:
    wanted = undisturbed(stage, SAMPLINGS["seeded"])
    stage.begin_one(SAMPLINGS["seeded"])
    stage.feed(LINE, last=True)
    for number in range(N_SAID - 1):
        stage.speak(1)
        slot, stash, held = Slot(2 * (number % 2)), Stash(20 + number), stage.held
        stage.do(PauseTurn(T1), StashSlot(slot, stash), FetchStash(stash, Slot(2 - slot)), ResumeTurn(T1, Slot(2 - slot), len(held), held))
    assert stage.said == wanted


# --- parked NPCs --------------------------------------------------------------------------------------------------


@by_arch
@by_sampling
def test_a_prefix_copied_from_a_turn_at_work_is_as_good_as_a_prefill_of_its_own(sampling: SamplingParams, stage: Stage) -> None:
    wanted = undisturbed(stage, sampling)
    head = LINE[:30]
    stage.begin(3, 3, [*head, *prompt("and so on")], stage.voice)
    stage.step(2, 3)
    stage.do(CopySlot(S3, S0, len(head)))
    stage.begin_one(sampling, keep=len(head))
    refilled = [result for result in stage.results if isinstance(result, TurnRefilled)]  # where a window had moved on
    stage.results.clear()
    assert refilled in ([], [TurnRefilled(T1, len(head))])
    stage.hear(stage.step(2, 3, prefill=[PrefillChunk(T1, LINE[len(head) :], last=True)]))
    for _ in range(N_SAID - 1):
        stage.hear(stage.step(1, 2, 3))
    assert stage.said == wanted


@by_arch
def test_an_npc_put_aside_between_two_turns_goes_on_as_if_it_had_kept_its_slot(stage: Stage) -> None:
    stage.begin_one(GREEDY)
    stage.feed(LINE, last=True)
    stage.speak(N_SAID - 1)
    held, more = stage.held, tuple(prompt(" Tell me more."))
    stage.do(StashSlot(S0, STASH))
    stage.results.clear()
    answers = []
    for slot, orders in ((S0, ()), (S2, (FetchStash(STASH, S2),)), (S3, (FetchStash(STASH, S3),))):
        stage.do(*orders, begin_turn(1, slot, stage.voice, keep=len(held), history=held, max_tokens=N_SAID))
        assert stage.results == []
        stage.said = []
        stage.feed(more, last=True)
        answers.append(list(stage.speak(N_SAID - 1)))
        stage.intrude()
    assert answers[1:] == [answers[0]] * 2


# --- files --------------------------------------------------------------------------------------------------------


def parked(stage: Stage) -> tuple[int, ...]:
    """Turn 1 has spoken and is over; what slot 0 holds."""
    stage.begin_one(GREEDY)
    stage.feed(LINE, last=True)
    stage.speak(N_SAID - 1)
    return stage.held


def written(stage: Stage, path: Path, held: tuple[int, ...], voice: Voice) -> None:
    stage.do(WriteKv(str(path), S0, None, held, voice))
    stage.loop.settle(block=True)
    done = stage.results.pop()
    assert isinstance(done, KvWritten)
    assert (done.n_tokens, done.reason, done.n_bytes) == (len(held), "", path.stat().st_size)


def read(house: House, path: Path) -> KvRead:
    house.do(ReadKv(str(path), STASH))
    house.loop.settle(block=True)
    done = house.results.pop()
    assert isinstance(done, KvRead)
    return done


@by_arch
def test_kv_from_a_file_goes_on_in_a_new_engine_as_if_it_had_never_stopped(
    arch: str, stage: Stage, start: Start, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], tmp_path: Path
) -> None:
    held, more = parked(stage), tuple(prompt(" Tell me more."))
    written(stage, tmp_path / "npc.kv", held, stage.voice)
    later = Stage(start(models[arch].path, n_ctx=256), all_voices[arch])
    assert (kv := read(later, tmp_path / "npc.kv")) == KvRead(kv.path, STASH, held, stage.voice, kv.n_bytes)
    assert kv.n_bytes > 0
    later.do(FetchStash(STASH, S0))
    answers = []
    for house in (stage, later):
        house.said = []
        house.do(begin_turn(1, S0, house.voice, keep=len(held), history=held, max_tokens=N_SAID))
        assert house.results == []
        house.feed(more, last=True)
        answers.append(house.speak(N_SAID - 1))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("arch", ["llama"])
def test_a_file_of_another_model_or_context_is_refused_and_the_talk_goes_on(
    stage: Stage, start: Start, models: dict[str, TinyModel], tmp_path: Path
) -> None:
    written(stage, path := tmp_path / "npc.kv", parked(stage), stage.voice)
    foreign = {
        "another model": House(start(write_model(tmp_path / "same_shapes.gguf", seed=1).path, n_ctx=256)),
        "another context size: 256 tokens": House(start(models["llama"].path, n_ctx=512)),
        "another build": House(start(models["llama"].path, n_ctx=256, flash_attention=True)),
    }
    for why, house in foreign.items():
        assert why in (kv := read(house, path)).reason
        assert kv == KvRead(str(path), STASH, reason=kv.reason)
        house.do(FetchStash(STASH, S0), begin_turn(1, S0, keep=len(LINE), history=LINE))
        assert house.results.pop() == TurnRefilled(T1, len(LINE))
        assert house.step(prefill=[PrefillChunk(T1, tuple(prompt("!")), last=True)]).rows


@pytest.mark.parametrize("arch", ["llama"])
def test_a_file_whose_positions_are_forged_is_not_put_into_a_slot(stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a seal that fits: whoever can read this can make one. llama.cpp would take it, and never let go of some of its cells."""
    held = parked(stage)
    export = stage.backend.export
    # behind our length, llama.cpp's front, the number of streams and the cells of each up to ours
    first_position = 4 + 8 + 4 + 4 * (stage.backend._streams.of[S0] + 1)

    def forged(slot: Slot) -> bytes:
        blob = export(slot)
        return blob[:first_position] + (-5).to_bytes(4, "little", signed=True) + blob[first_position + 4 :]

    monkeypatch.setattr(stage.backend, "export", forged)
    written(stage, tmp_path / "npc.kv", held, stage.voice)
    assert read(stage, tmp_path / "npc.kv").reason == ""
    stage.do(FetchStash(STASH, S2))
    assert stage.backend.n_tokens(S2) == 0


# --- never under another voice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama"])
@pytest.mark.parametrize("way", ["slot", "copy", "stash", "file"])
@pytest.mark.parametrize("voice", ["none", "other", "scale", "more"])
def test_kv_made_under_one_voice_is_never_built_on_under_another(way: str, voice: str, stage: Stage, tmp_path: Path) -> None:
    held = parked(stage)
    if way == "file":
        written(stage, tmp_path / "npc.kv", held, stage.voice)
        read(stage, tmp_path / "npc.kv")
    stage.do(*{"copy": (CopySlot(S0, S2, len(held)),), "stash": (StashSlot(S0, STASH), FetchStash(STASH, S2))}.get(way, ()))
    if way == "file":
        stage.do(FetchStash(STASH, S2))
    others = {"none": (), "other": stage.other, "scale": (AdapterUse(stage.voice[0].key, 0.5),), "more": stage.voice + stage.other}
    with pytest.raises(OurBug, match="another voice"):
        stage.do(begin_turn(1, S0 if way == "slot" else S2, others[voice], keep=len(held), history=held))


@pytest.mark.parametrize("arch", ["llama"])
def test_kv_is_never_written_as_if_another_voice_had_made_it(stage: Stage, tmp_path: Path) -> None:
    held = parked(stage)
    with pytest.raises(OurBug, match="another voice"):
        stage.do(WriteKv(str(tmp_path / "npc.kv"), S0, None, held, stage.other))
