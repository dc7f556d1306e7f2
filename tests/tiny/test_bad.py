"""The bad adapters are bad in the way they say: the file they start from is good, and llama.cpp's own opinion of each is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import TinyModel, bad_adapters
from tests.tiny.bad import bad_kinds, whole_adapter
from tests.tiny.stock import loads_adapter

# Why a reader of ours stands in front: llama.cpp loads these and says nothing,
ACCEPTED = {
    *("nan_in_a", "nan_in_b", "infinity", "all_of_a_zero", "all_of_b_zero", "no_tensors", "alpha_zero", "alpha_nan", "alpha_infinite"),
    *("rank_over_256", "norm_tensor", "invocation_tokens", "dtype_q4_0"),  # well-formed, but more or other than we represent
}
# and these end the process: no error code, no exception, an abort at loading or at the first decode.
ABORTS_AT_LOADING = {"alpha_is_a_text", "type_is_a_number"}
ABORTS_AT_DECODE = {"rank_zero", "embedding_of_tied"}


def test_nothing_is_wrong_before_it_is_spoiled(model: TinyModel, tmp_path: Path) -> None:
    assert loads_adapter(model.path, whole_adapter(tmp_path / "whole.gguf", model))


def test_llama_cpp_accepts_some_of_the_bad_ones(model: TinyModel, tmp_path: Path) -> None:
    safe = [path for path, _ in bad_adapters(tmp_path, model) if path.stem not in ABORTS_AT_LOADING]
    accepted = {path.stem for path in safe if loads_adapter(model.path, path)}
    assert accepted - ABORTS_AT_DECODE == ACCEPTED | (set() if model.tied else {"embedding_of_untied"})
    assert accepted & ABORTS_AT_DECODE == ABORTS_AT_DECODE & bad_kinds(model.tied).keys()


@pytest.mark.skipif(os.name == "nt", reason="an abort is told from an error by its signal")
@pytest.mark.parametrize(
    ("arch", "kind"), [("gemma3", "embedding_of_tied"), *(("llama-tied", kind) for kind in sorted(ABORTS_AT_LOADING | ABORTS_AT_DECODE))]
)
def test_llama_cpp_aborts_on_some_of_the_bad_ones(arch: str, kind: str, models: dict[str, TinyModel], tmp_path: Path) -> None:
    paths = {path.stem: path for path, _ in bad_adapters(tmp_path, models[arch])}
    died = _decode_in_a_process_of_its_own(models[arch].path, paths[kind])
    assert died.stdout == "before\n"
    assert died.returncode < 0, died.stderr


def _decode_in_a_process_of_its_own(model_path: Path, adapter_path: Path) -> subprocess.CompletedProcess[str]:
    script = [
        "import resource",
        "from tests.tiny.stock import stock_logits",
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "print('before', flush=True)",
        f"stock_logits({str(model_path)!r}, [3, 4], {str(adapter_path)!r})",
        "print('after', flush=True)",
    ]
    root = Path(__file__).parents[2]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", "\n".join(script)]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_every_bad_file_has_a_kind_and_all_but_one_exist(model: TinyModel, tmp_path: Path) -> None:
    written = bad_adapters(tmp_path, model)
    assert {path.stem: code for path, code in written} == bad_kinds(model.tied)
    assert [path.stem for path, _ in written if not path.exists()] == ["nowhere"]
