"""The tiny models are what the other tests take them for: llama.cpp loads, decodes and adapts them, and their text wanders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import ARCHES, TinyModel, write_adapter, write_model
from tests.tiny.bad import draft_embedding
from tests.tiny.models import N_CTX, WINDOW
from tests.tiny.stock import stock_greedy, stock_logits, stock_text, stock_tokens, stock_window
from tests.tiny.vocabulary import IM_END, IM_START, N_VOCAB

LINE = "Good evening, innkeeper. What is there to eat?"
TEXTS = ["", "the thing and you", LINE, "Grüß Gott, señor – 你好 🍺\n\ttabs\r\nand\0zero", "<|im_end|>"]


def test_every_architecture_loads_and_decodes_to_well_spread_logits(model: TinyModel) -> None:
    logits = stock_logits(model.path, stock_tokens(model.path, LINE))
    assert logits.shape[1] == N_VOCAB
    assert np.isfinite(logits).all()
    assert 1.5 < logits.std(axis=1).mean() < 5


def test_greedy_text_does_not_go_round_in_circles(model: TinyModel) -> None:
    drawn = stock_greedy(model.path, stock_tokens(model.path, LINE), 60)
    assert len(set(drawn)) >= 15
    assert IM_END not in drawn


def test_greedy_steps_agree_with_one_batch(model: TinyModel) -> None:
    prompt = stock_tokens(model.path, LINE)
    drawn = stock_greedy(model.path, prompt, 30)
    logits = stock_logits(model.path, prompt + drawn)
    assert logits[len(prompt) - 1 : -1].argmax(axis=1).tolist() == drawn


def test_the_whole_context_can_be_decoded(model: TinyModel) -> None:
    tokens = (stock_tokens(model.path, LINE) * N_CTX)[:N_CTX]
    assert np.isfinite(stock_logits(model.path, tokens)).all()


def test_the_seed_decides_every_byte(model: TinyModel, models: dict[str, TinyModel], tmp_path: Path) -> None:
    arch = next(arch for arch, known in models.items() if known is model)
    again = write_model(tmp_path / "again.gguf", arch)
    other = write_model(tmp_path / "other.gguf", arch, seed=1)
    tokens = stock_tokens(model.path, LINE)
    assert again.path.read_bytes() == model.path.read_bytes()
    assert stock_greedy(other.path, tokens, 8) != stock_greedy(model.path, tokens, 8)


def test_only_gemma_has_window_layers(models: dict[str, TinyModel]) -> None:
    assert {arch: stock_window(known.path) for arch, known in models.items()} == dict.fromkeys(ARCHES, 0) | {"gemma3": WINDOW}


def test_gemma_has_a_full_layer_too(models: dict[str, TinyModel]) -> None:
    """Three window layers would carry a token three windows far; past that only a full layer still sees it."""
    path = models["gemma3"].path
    tokens = (stock_tokens(path, LINE) * 8)[: 4 * WINDOW]
    changed = [IM_START, *tokens[1:]]
    assert np.abs(stock_logits(path, tokens)[-1] - stock_logits(path, changed)[-1]).max() > 1e-3


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(models: dict[str, TinyModel], text: str) -> None:
    path = models["llama"].path
    assert stock_text(path, stock_tokens(path, text), special=True) == text.encode()


def test_merges_make_tokens_longer_than_a_byte(models: dict[str, TinyModel]) -> None:
    path = models["llama"].path
    assert len(stock_tokens(path, "the thing and you")) < len("the thing and you") / 2


def test_control_tokens_are_parsed_only_on_request_and_not_shown(models: dict[str, TinyModel]) -> None:
    path = models["llama"].path
    typed = stock_tokens(path, "<|im_end|>")
    assert stock_tokens(path, "<|im_start|><|im_end|>", special=True) == [IM_START, IM_END]
    assert IM_END not in typed
    assert len(typed) > 5
    assert stock_text(path, [IM_START, IM_END]) == b""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
def test_an_adapter_of_every_dtype_changes_the_greedy_text(model: TinyModel, dtype: str, tmp_path: Path) -> None:
    adapter = tmp_path / "a.gguf"
    write_adapter(adapter, model, dtype=dtype, rank=32, seed=7)
    tokens = stock_tokens(model.path, LINE)
    assert stock_greedy(model.path, tokens, 12, adapter) != stock_greedy(model.path, tokens, 12)


def test_each_target_alone_changes_the_logits(model: TinyModel, tmp_path: Path) -> None:
    tokens = stock_tokens(model.path, LINE)
    base = stock_logits(model.path, tokens)
    for i, name in enumerate(model.targets):
        adapter = tmp_path / f"{i}.gguf"
        write_adapter(adapter, model, only=[name])
        assert np.abs(stock_logits(model.path, tokens, adapter) - base).max() > 1, name


def test_targets_are_every_matrix_of_the_file_but_the_embedding(model: TinyModel) -> None:
    from gguf import GGUFReader

    matrices = {tensor.name: tuple(int(n) for n in tensor.shape) for tensor in GGUFReader(model.path).tensors if len(tensor.shape) == 2}
    del matrices["token_embd.weight"]
    assert matrices == model.targets


def test_ranks_may_differ_and_alpha_scales_nothing_away(model: TinyModel, tmp_path: Path) -> None:
    first, *others = model.targets
    factors = write_adapter(tmp_path / "a.gguf", model, rank={first: 8}, alpha=2.0, dtype="f32")
    plain = write_adapter(tmp_path / "plain.gguf", model, rank={first: 8}, dtype="f32")
    assert factors[first][0].shape == (8, model.targets[first][0])
    assert factors[others[0]][1].shape == (model.targets[others[0]][1], 4)
    tokens = stock_tokens(model.path, LINE)
    scaled, unscaled = (stock_logits(model.path, tokens, tmp_path / name) for name in ("a.gguf", "plain.gguf"))
    assert np.allclose(scaled, unscaled, atol=1e-3)
    assert np.allclose(factors[first][1] * 2.0 / 8, plain[first][1])


def test_scale_zero_is_the_base_model(model: TinyModel, tmp_path: Path) -> None:
    adapter = tmp_path / "a.gguf"
    write_adapter(adapter, model)
    tokens = stock_tokens(model.path, LINE)
    assert np.array_equal(stock_logits(model.path, tokens, adapter, scale=0.0), stock_logits(model.path, tokens))


def test_an_untied_model_applies_an_embedding_adapter(models: dict[str, TinyModel], tmp_path: Path) -> None:
    model, adapter = models["llama"], tmp_path / "embedding.gguf"
    draft_embedding(model).write(adapter)
    tokens = stock_tokens(model.path, LINE)
    assert np.abs(stock_logits(model.path, tokens, adapter) - stock_logits(model.path, tokens)).max() > 1
