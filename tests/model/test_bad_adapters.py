"""Every bad adapter is refused by its own code before llama.cpp sees it, the good ones are read as written, and nothing slips between."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from personae.errors import PersonaeError
from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.packs.lora import read_lora
from tests.tiny import ARCHES, TinyModel, bad_adapters, write_adapter, write_model
from tests.tiny.bad import EXPERTS, bad_kinds, whole_adapter

KINDS = [(arch, kind, code) for arch, tied in (("llama", False), ("llama-tied", True)) for kind, code in bad_kinds(tied).items()]
N_MUTANTS = 600


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    folder = tmp_path_factory.mktemp("models")
    return {arch: write_model(folder / f"{arch}.gguf", arch) for arch in ARCHES}


@pytest.fixture(scope="module")
def bad(models: dict[str, TinyModel]) -> dict[tuple[str, str], Path]:
    """(arch, kind) -> file."""
    tried = {arch: bad_adapters(models[arch].path.parent / f"bad {arch}", models[arch]) for arch in ("llama", "llama-tied")}
    return {(arch, path.stem): path for arch, files in tried.items() for path, _ in files}


def shapes(model: TinyModel) -> BaseShapes:
    return BaseShapes.of(read_header(model.path))


def refusal_code(path: Path, base: BaseShapes) -> str | None:
    try:
        read_lora(path, base)
    except PersonaeError as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize(("arch", "kind", "code"), KINDS)
def test_a_bad_adapter_is_refused_by_its_own_code(
    arch: str, kind: str, code: str, models: dict[str, TinyModel], bad: dict[tuple[str, str], Path]
) -> None:
    with pytest.raises(PersonaeError) as refusal:
        read_lora(bad[arch, kind], shapes(models[arch]))
    assert refusal.value.code == code, str(refusal.value)
    assert bad[arch, kind].name in refusal.value.message
    assert refusal.value.hint


def test_an_adapter_of_experts_is_unsupported_where_the_base_has_them(
    models: dict[str, TinyModel], bad: dict[tuple[str, str], Path]
) -> None:
    base = replace(shapes(models["llama"]), experts=frozenset({EXPERTS}))
    assert refusal_code(bad["llama", "expert_tensor"], base) == "adapter_unsupported"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_good_adapter_is_read_as_it_was_written(arch: str, dtype: str, models: dict[str, TinyModel], tmp_path: Path) -> None:
    model, path = models[arch], tmp_path / "Ænne's voice.gguf"
    factors = write_adapter(path, model, dtype=dtype, rank={"blk.0.attn_q.weight": 32}, alpha=16.0)
    lora = read_lora(path, shapes(model))
    assert lora.matrices.keys() == model.targets.keys()
    for name, (a, b) in factors.items():
        matrix = lora.matrices[name]
        assert np.array_equal(matrix.a, a)
        assert np.array_equal(matrix.b, b)
        assert matrix.scale == 16.0 / len(a)


@pytest.mark.parametrize("arch", ["qwen2", "gemma3"])
def test_an_adapter_of_another_base_is_refused(arch: str, models: dict[str, TinyModel], tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    write_adapter(path, models["llama"])
    assert refusal_code(path, shapes(models[arch])) == "adapter_wrong_architecture"


def test_an_adapter_of_another_size_is_refused(models: dict[str, TinyModel], tmp_path: Path) -> None:
    """llama and llama-tied are of one architecture; K and V are wider in the second."""
    path = tmp_path / "wide.gguf"
    write_adapter(path, models["llama-tied"])
    assert refusal_code(path, shapes(models["llama"])) == "adapter_shape"


def test_a_file_cut_anywhere_is_truncated(models: dict[str, TinyModel], tmp_path: Path) -> None:
    path, base = whole_adapter(tmp_path / "a.gguf", models["llama"]), shapes(models["llama"])
    raw = path.read_bytes()
    for length in range(0, len(raw), 31):
        path.write_bytes(raw[:length])
        assert refusal_code(path, base) == "adapter_truncated", length


def test_whatever_is_let_through_llama_cpp_loads_and_decodes(models: dict[str, TinyModel], tmp_path: Path) -> None:
    """One byte of the header is wrong in each mutant. Refused or accepted, it must not reach llama.cpp and end the process there."""
    model = models["llama-tied"]
    accepted = _accepted_mutants(tmp_path, model)
    script = (
        "import sys\nfrom tests.tiny.stock import stock_logits\nfor path in sys.argv[2:]:\n"
        "    print(path, flush=True)\n    stock_logits(sys.argv[1], [3, 4], path)\n"
    )
    command = [sys.executable, "-c", script, str(model.path), *map(str, accepted)]
    decoded = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False)
    assert decoded.returncode == 0, decoded.stdout.splitlines()[-1:] + decoded.stderr.splitlines()
    assert decoded.stdout.split() == list(map(str, accepted))


def _accepted_mutants(folder: Path, model: TinyModel) -> list[Path]:
    base = shapes(model)
    path = whole_adapter(folder / "whole.gguf", model)
    raw, n_header = path.read_bytes(), read_header(path).data_offset
    random = np.random.default_rng(0)
    accepted = [path]
    for i in range(N_MUTANTS):
        mutant = bytearray(raw)
        place = int(random.integers(n_header))
        mutant[place] ^= 1 << int(random.integers(8))
        path = folder / f"{i}.gguf"
        path.write_bytes(mutant)
        if refusal_code(path, base) is None:
            accepted.append(path)
    assert 1 < len(accepted) < N_MUTANTS
    return accepted
