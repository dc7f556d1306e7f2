"""What is learnt of a base model from its header."""

from __future__ import annotations

from pathlib import Path

from personae.packs.base import BaseShapes
from personae.packs.gguf import parse_header, read_header
from tests.packs.conftest import base_file
from tests.packs.gguf_writer import gguf, number_array, pair, text_pair


def test_matrices_vectors_and_experts_are_told_apart(base: BaseShapes) -> None:
    assert base.matrices["blk.0.attn_k.weight"] == (32, 16)
    assert base.experts == {"blk.0.ffn_up_exps.weight"}
    assert base.vectors == {"blk.0.attn_norm.weight"}
    assert base.sites == {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}
    assert (base.architecture, base.name, base.file) == ("llama", "Tiny Base", "base.gguf")


def test_model_without_an_output_matrix_is_tied(tmp_path: Path) -> None:
    tied = BaseShapes.of(read_header(base_file(tmp_path)))
    untied = BaseShapes.of(read_header(base_file(tmp_path, tied=False)))
    assert tied.tied
    assert not untied.tied
    assert "output.weight" in untied.sites


def test_sites_are_narrowed_to_matrices_that_exist(base: BaseShapes) -> None:
    assert base.with_sites(["blk.0.attn_q.weight", "blk.9.attn_q.weight"]).sites == {"blk.0.attn_q.weight"}


def test_file_that_names_nothing_is_called_after_itself() -> None:
    base = BaseShapes.of(parse_header(gguf([]), Path("folder/some-model.gguf")))
    assert (base.architecture, base.name, base.matrices) == ("", "some-model", {})


def test_dimensions_are_those_of_the_models_own_section(tmp_path: Path) -> None:
    pairs = [
        text_pair("general.architecture", "llama"),
        pair("llama.block_count", "u32", 3),
        pair("llama.embedding_length", "u64", 32),
        pair("llama.attention.head_count", "u32", 4),
        number_array("llama.attention.head_count_kv", [1, 2, 1]),
        pair("qwen2.block_count", "u32", 99),
    ]
    base = BaseShapes.of(parse_header(gguf(pairs), Path("x.gguf")), ["ab", "cd"])
    assert (base.n_layers, base.n_embd, base.n_heads, base.n_kv_heads) == (3, 32, 4, 0)
    assert base.hashes == {"ab", "cd"}
    assert base.with_sites([]).n_layers == 3


def test_real_base_is_a_tied_llama_with_seven_sites_a_layer(real_base_path: Path) -> None:
    base = BaseShapes.of(read_header(real_base_path))
    assert base.architecture == "llama"
    assert base.tied
    assert len(base.sites) == 30 * 7
    assert (base.n_layers, base.n_embd, base.n_heads, base.n_kv_heads, base.hashes) == (30, 576, 9, 3, frozenset())
    assert base.matrices["blk.29.ffn_down.weight"] == (1536, 576)
