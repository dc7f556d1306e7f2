"""The check at every start passes where the mixer is right, and finds it out where it is not, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from personae.engine import _mixer
from personae.engine.llama import backend as llama_backend
from personae.engine.llama import selfcheck
from personae.engine.mixer import Sites, tables
from personae.errors import WorldFailed
from personae.packs.lora import Lora, Matrix
from personae.types import MixMode
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import Adapter, listen, load, prompt
from tests.tiny import ARCHES, TinyModel
from tests.tiny.stock import stock_greedy

Spoil = Callable[[Lora], Lora]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("arch", ARCHES)
def test_it_passes_on_every_architecture_with_room_to_spare(
    arch: str, threads: int, models: dict[str, TinyModel], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[selfcheck.SelfCheck] = []

    def watched(*args: Any) -> selfcheck.SelfCheck:
        found.append(selfcheck.self_check(*args))
        return found[-1]

    monkeypatch.setattr(llama_backend, "self_check", watched)
    card = start(models[arch].path, mode="mixed", threads=threads).card
    assert card.mode is MixMode.MIXED
    assert "self_check" in card.details
    assert found[0].error < selfcheck._TIGHT / 8
    assert found[0].error_all < selfcheck._NEARER / 8
    assert found[0].sites == models[arch].targets.keys()


def only(wanted: Callable[[str], bool], change: Callable[[Matrix], Matrix]) -> Spoil:
    """Change some matrices of an adapter on its way into the mixer."""

    def spoil(lora: Lora) -> Lora:
        return replace(lora, matrices={name: change(matrix) if wanted(name) else matrix for name, matrix in lora.matrices.items()})

    return spoil


def without(part: str) -> Spoil:
    """At least one matrix stays: a table without any would prove nothing."""
    return lambda lora: replace(lora, matrices={name: matrix for name, matrix in lora.matrices.items() if part not in name})


def everywhere(name: str) -> bool:
    return True


SABOTAGE: dict[str, Spoil] = {
    "scale_doubled": only(everywhere, lambda matrix: replace(matrix, scale=matrix.scale * 2)),
    "scale_a_fifth_short": only(everywhere, lambda matrix: replace(matrix, scale=matrix.scale * 0.8)),
    "sign_turned": only(everywhere, lambda matrix: replace(matrix, scale=-matrix.scale)),
    "switched_off": only(everywhere, lambda matrix: replace(matrix, scale=0.0)),
    "last_rank_lost": only(everywhere, lambda matrix: replace(matrix, a=matrix.a[:-1], b=matrix.b[:, :-1])),
    "outputs_shifted": only(everywhere, lambda matrix: replace(matrix, b=np.roll(matrix.b, 1, axis=0))),
    "inputs_shifted": only(everywhere, lambda matrix: replace(matrix, a=np.roll(matrix.a, 1, axis=1))),
    **{f"{kind}_left_out": without(kind) for kind in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")},
    "one_doubled_in_the_last_layer": only(
        lambda name: name == "blk.1.ffn_down.weight", lambda matrix: replace(matrix, scale=matrix.scale * 2)
    ),
}


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Spoil every adapter that the self-check hands to the mixer."""

    def sabotage(spoil: Spoil) -> None:
        monkeypatch.setattr(selfcheck, "tables", lambda lora, sites: tables(spoil(lora), sites))

    return sabotage


def assert_grouped(card: Any, reason: str) -> None:
    assert (card.mode, reason in card.mode_reason) == (MixMode.GROUPED, True), card.mode_reason


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("name", SABOTAGE)
def test_a_mixer_that_computes_something_else_is_found_out(
    name: str, arch: str, models: dict[str, TinyModel], start: Start, sabotage: Callable[[Spoil], None]
) -> None:
    sabotage(SABOTAGE[name])
    assert_grouped(start(models[arch].path).card, "logits differ from llama.cpp's own")


def test_another_adapters_b_is_found_out(llama: TinyModel, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second adapter gets the first one's tables: two voices that are one."""
    made: list[_mixer.Adapter] = []

    def confused(lora: Lora, sites: Sites) -> _mixer.Adapter:
        made.append(tables(lora, sites))
        return made[-1] if len(made) % 2 else made[-2]

    monkeypatch.setattr(selfcheck, "tables", confused)
    assert_grouped(start(llama.path).card, "logits differ")


class _Meddler:
    """A mixer that hands on its rows otherwise than they were given."""

    change: Callable[[list[Any], list[bool]], tuple[list[Any], list[bool]]]

    def __init__(self, *args: Any) -> None:
        self._mixer = _mixer.Mixer(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mixer, name)

    def set_rows(self, *rows: Any) -> None:
        self._mixer.set_rows(*type(self).change(*rows))


MEDDLING: dict[str, Any] = {
    "rows_swapped": lambda voices, wants: (voices[::-1], wants),
    "scales_lost": lambda voices, wants: ([tuple((adapter, 0.0) for adapter, _ in voice) for voice in voices], wants),
    "a_row_too_many": lambda voices, wants: ([*voices, ()], [*wants, True]),
    "all_rows_as_the_first": lambda voices, wants: ([voices[0]] * len(voices), wants),
    "every_part_twice": lambda voices, wants: ([voice * 2 for voice in voices], wants),
    "only_the_prompt": lambda voices, wants: (voices if len(voices) > 2 else [()] * len(voices), wants),
    "all_but_the_prompt": lambda voices, wants: (voices if len(voices) <= 2 else [()] * len(voices), wants),
}


@pytest.mark.parametrize("name", MEDDLING)
def test_rows_that_are_mixed_up_are_found_out(name: str, llama: TinyModel, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    meddler = type("Meddler", (_Meddler,), {"change": staticmethod(MEDDLING[name])})
    monkeypatch.setattr(selfcheck, "_mixer", SimpleNamespace(Mixer=meddler, Adapter=_mixer.Adapter))
    card = start(llama.path).card
    assert_grouped(card, "not recognised" if name == "a_row_too_many" else "logits differ")


def test_a_graph_that_is_not_recognised_is_found_out(llama: TinyModel, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of other numbers: the mixer sees no chain, or only half of one."""
    verify = llama_backend.abi.verify
    monkeypatch.setattr(llama_backend.abi, "verify", lambda: replace(verify(), scale=verify().reshape, reshape=verify().scale))
    assert_grouped(start(llama.path).card, "not recognised")


def test_adapters_that_hardly_matter_prove_nothing(llama: TinyModel, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_LEAST_EFFECT", 1e6)
    assert_grouped(start(llama.path).card, "proves nothing")


def test_a_failure_is_an_error_where_mixed_mode_is_insisted_on(llama: TinyModel, start: Start, sabotage: Callable[[Spoil], None]) -> None:
    sabotage(SABOTAGE["scale_doubled"])
    with pytest.raises(WorldFailed, match="logits differ") as failed:
        start(llama.path, mode="mixed")
    assert (failed.value.code, "--mode auto" in failed.value.hint) == ("engine_failed", True)


def test_the_voices_are_right_in_the_mode_it_falls_back_to(
    llama: TinyModel, llama_voices: dict[str, Adapter], start: Start, sabotage: Callable[[Spoil], None]
) -> None:
    sabotage(SABOTAGE["scale_doubled"])
    backend = start(llama.path)
    load(backend, *llama_voices.values())
    for one in llama_voices.values():
        assert [listen(backend, 0, prompt(), one.at())] == stock_greedy(llama.path, prompt(), 1, one.path)
