"""The library is laid out as the mixer believes; where it is not, that is found, named, and ends in grouped mode."""

from __future__ import annotations

from typing import Any

import pytest

from personae.engine.llama import abi
from personae.errors import WorldFailed
from personae.types import MixMode
from tests.engine.llama.conftest import Start
from tests.tiny import TinyModel

FIELDS = ("type", "ne", "nb", "name", "op", "data", "src0", "src1", "view_src", "custom_fun", "custom_tasks", "custom_user")


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a field of every tensor read as something it is not."""
    probe = abi._mixer.probe

    def move(field: str) -> None:
        def elsewhere(address: int) -> Any:
            seen: Any = probe(address)
            seen[field] = b"elsewhere" if isinstance(seen[field], bytes) else (9, 9, 9, 9) if isinstance(seen[field], tuple) else 0x7777
            return seen

        monkeypatch.setattr(abi._mixer, "probe", elsewhere)

    return move


def test_installed_library_is_laid_out_as_the_mixer_believes() -> None:
    codes = abi.verify()
    assert len(set(codes.as_tuple())) == 9
    assert codes.none == 0
    assert abi.verify() == codes


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_moved_is_found_and_named(field: str, move: Any) -> None:
    move(field)
    with pytest.raises(abi.AbiMismatch, match="expected"):
        abi.verify()


def test_an_operation_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = abi._numbers(abi._ggml())
    monkeypatch.setattr(abi, "_numbers", lambda _ggml: {name: n for name, n in numbers.items() if name != "CUSTOM"})
    with pytest.raises(abi.AbiMismatch, match="no operation CUSTOM"):
        abi.verify()


def test_operations_that_changed_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = abi._numbers(abi._ggml())
    swapped = numbers | {"MUL_MAT": numbers["SCALE"], "SCALE": numbers["MUL_MAT"]}
    monkeypatch.setattr(abi, "_numbers", lambda _ggml: swapped)
    with pytest.raises(abi.AbiMismatch, match="op of mul_mat"):
        abi.verify()


def test_a_mismatch_ends_in_grouped_mode_with_its_reason(llama: TinyModel, start: Start, move: Any) -> None:
    move("nb")
    card = start(llama.path).card
    assert card.mode is MixMode.GROUPED
    assert "nb is (9, 9, 9, 9) where (4, 24, 120, 120) was expected" in card.mode_reason


def test_a_mismatch_is_an_error_where_mixed_mode_is_insisted_on(llama: TinyModel, start: Start, move: Any) -> None:
    move("src1")
    with pytest.raises(WorldFailed, match="second operand") as failed:
        start(llama.path, mode="mixed")
    assert failed.value.code == "engine_failed"
    assert failed.value.hint


def test_layers_on_a_gpu_mean_grouped_mode(llama: TinyModel, start: Start) -> None:
    card = start(llama.path, n_gpu_layers=1).card
    assert (card.mode, "GPU" in card.mode_reason) == (MixMode.GROUPED, True)


def test_mixed_mode_gives_no_reason_and_grouped_mode_that_was_asked_for_says_so(llama: TinyModel, start: Start) -> None:
    assert (start(llama.path).card.mode, start(llama.path).card.mode_reason) == (MixMode.MIXED, "")
    assert start(llama.path, mode="grouped").card.mode_reason == "asked for"
