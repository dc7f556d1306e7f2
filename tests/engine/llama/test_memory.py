"""What the card says of a model's memory is true of it, and where it cannot be cut, turns are prefilled again and say the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from personae.engine.batch import CopySlot, FetchStash, PauseTurn, PrefillChunk, ResumeTurn, StashSlot, TurnRefilled
from personae.engine.llama.backend import LlamaBackend
from personae.engine.llama.state_form import is_one_sequence
from personae.types import SamplingParams, Slot, Stash, TurnId
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import House, begin_turn, listen, prompt, speak
from tests.engine.llama.recurrent import write_mamba
from tests.tiny import ARCHES, TinyModel
from tests.tiny.models import WINDOW
from tests.tiny.stock import stock_greedy

S0, S1, S2 = map(Slot, range(3))
T1 = TurnId(1)
SEEDED = SamplingParams(temperature=0.9, seed=3, repeat_penalty=1.2)


@pytest.fixture(scope="session")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mamba(tmp_path_factory.mktemp("mamba") / "mamba.gguf")


# --- memories of tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
def test_a_token_takes_as_many_bytes_as_the_card_says(arch: str, models: dict[str, TinyModel], start: Start) -> None:
    """And twelve for its place in each cache."""
    backend = start(models[arch].path)
    n_caches = 2 if arch == "gemma3" else 1
    sizes = []
    for n in (10, WINDOW):
        listen(backend, 0, prompt()[:n])
        sizes.append(len(backend.export(S0)))
    assert backend.card.can_cut
    assert (sizes[1] - sizes[0]) / (WINDOW - 10) == backend.card.kv_token_bytes + 12 * n_caches > 12 * n_caches


@pytest.mark.parametrize("arch", ARCHES)
def test_every_state_of_ours_is_known_for_one_sequence(arch: str, models: dict[str, TinyModel], start: Start) -> None:
    """Whichever stream it was in, after a window has moved on, and after a move."""
    backend = start(models[arch].path)
    for slot, n in ((0, 1), (1, 46), (3, 90)):
        first = listen(backend, slot, (prompt() * 2)[:n])
        speak(backend, {slot: first}, 9)
        backend.copy(Slot(slot), S2)
        for holder in (Slot(slot), S2):
            state = memoryview(backend.export(holder))[4:]
            assert is_one_sequence(state, n + 8)
            assert not is_one_sequence(state, n + 7)
            assert not is_one_sequence(state[:-1], n + 8)
            assert not is_one_sequence(memoryview(bytes(state) + b"\0"), n + 8)


@pytest.mark.parametrize("state", [b"", bytes(8), bytes(12), bytes(11), b"\xff" * 400])
def test_bytes_that_are_no_state_are_no_sequence(state: bytes) -> None:
    assert not is_one_sequence(memoryview(state), 3)


def test_states_changed_anywhere_are_refused_or_harmless(llama: TinyModel, start: Start) -> None:
    """What is not refused was changed in numbers alone: the slot can be spoken from, copied and cut like any other."""
    backend = start(llama.path)
    listen(backend, 0, prompt()[:12])
    blob = backend.export(S0)
    front, n_taken = 4 + 8 + 4 + 4 + 12 * 12 + 60, 0
    for at in [*range(front), *range(front, len(blob), 97)]:
        for byte in (0, 255, blob[at] ^ 128):
            n = backend.restore(S1, blob[:at] + bytes((byte,)) + blob[at + 1 :])
            assert n in (0, 12)
            n_taken += n > 0
            backend.copy(S1, S2)
            assert backend.cut(S1, 0) == 0
    assert n_taken
    assert speak(backend, {1: listen(backend, 1, prompt())}, 9)[0][1] == stock_greedy(llama.path, prompt(), 9)


# --- memories that are one state ----------------------------------------------------------------------------------


def test_the_card_of_a_recurrent_model_says_that_it_cannot_be_cut(mamba: Path, start: Start) -> None:
    backend = start(mamba)
    assert (backend.card.can_cut, backend.card.kv_token_bytes) == (False, 0)
    listen(backend, 0, prompt())
    assert [backend.cut(S0, len(prompt())), backend.cut(S0, len(prompt()) - 1)] == [len(prompt()), 0]


def house_of(backend: LlamaBackend, tokens: Sequence[int], sampling: SamplingParams) -> tuple[House, list[int]]:
    """Turn 1 has prefilled its prompt in slot 0 and drawn its first token."""
    house = House(backend)
    (row,) = house.begin(1, 0, tokens, sampling=sampling, max_tokens=20).rows
    return house, [row.token]


def speak_to_the_end(house: House, said: list[int]) -> list[int]:
    while len(said) < 20:
        said += [row.token for row in house.step(1).rows]
    return said


@pytest.mark.parametrize("way", ["stash", "part"])
def test_a_recurrent_turn_that_was_paused_says_what_it_would_have_said(way: str, mamba: Path, start: Start) -> None:
    wanted = speak_to_the_end(*house_of(start(mamba), prompt(), SEEDED))
    house, said = house_of(start(mamba), prompt(), SEEDED)
    for _ in range(6):
        said += [row.token for row in house.step(1).rows]
    held = (*prompt(), *said)[:-1]
    house.do(PauseTurn(T1))
    if way == "stash":
        house.do(StashSlot(S0, Stash(1)), FetchStash(Stash(1), S1))
        house.results.clear()
        house.do(ResumeTurn(T1, S1, len(held), held))
        assert house.results == []
    else:
        house.do(ResumeTurn(T1, S0, 20, held[:20]))
        assert house.results.pop() == TurnRefilled(T1, 20)
        house.step(prefill=[PrefillChunk(T1, held[20:], last=False)])
    assert speak_to_the_end(house, said) == wanted


def test_a_recurrent_sequence_is_copied_whole_or_prefilled_again(mamba: Path, start: Start) -> None:
    house, said = house_of(start(mamba), prompt(), SEEDED)
    wanted = speak_to_the_end(house, said)
    head = tuple(prompt()[:20])
    listen(house.backend, 2, head)
    for keep, n_refilled in ((20, 0), (12, 12)):
        house.do(CopySlot(S2, S1, keep), begin_turn(1, 1, sampling=SEEDED, keep=keep, history=head[:keep], max_tokens=20))
        assert house.results == [TurnRefilled(T1, n_refilled)] * bool(n_refilled)
        house.results.clear()
        (row,) = house.step(prefill=[PrefillChunk(T1, tuple(prompt()[keep:]), last=True)]).rows
        assert speak_to_the_end(house, [row.token]) == wanted
