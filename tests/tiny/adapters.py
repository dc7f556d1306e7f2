"""LoRA adapters for tiny models, as GGUF files. Decides factors and their storage; checks nothing: whatever is asked for is written.

A file is a `Draft` (keys and pairs) until it is written, so that the bad ones in bad.py can spoil one thing and leave the rest as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from tests.tiny.models import GAIN, TinyModel, finish

Factor = NDArray[np.float32]
Factors = dict[str, tuple[Factor, Factor]]  # base tensor -> A (r, n_in), B (n_out, r)

DTYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}
LORA_KEYS = {"general.type": ("adapter", GGUFValueType.STRING), "adapter.type": ("lora", GGUFValueType.STRING)}
BLOCK = 32  # values in a block of q8_0 and q4_0


@dataclass(slots=True)
class Draft:
    """An adapter file before it is written."""

    architecture: str
    keys: dict[str, tuple[Any, *tuple[GGUFValueType, ...]]] = field(default_factory=lambda: dict(LORA_KEYS))  # key -> value, its types
    tensors: dict[str, Factor] = field(default_factory=dict)  # file's tensor name -> array in NumPy order

    def add_pair(self, name: str, a: Factor, b: Factor) -> None:
        self.tensors[f"{name}.lora_a"] = a
        self.tensors[f"{name}.lora_b"] = b

    def write(self, path: Path, dtype: str = "f16") -> None:
        writer = GGUFWriter(path, self.architecture)
        for key, (value, *kinds) in self.keys.items():
            writer.add_key_value(key, value, *kinds)
        for name, array in self.tensors.items():
            stored, kind = _stored(array, dtype)
            writer.add_tensor(name, stored, raw_dtype=kind)
        finish(writer)


def draft_adapter(
    model: TinyModel,
    *,
    rank: int | dict[str, int] = 4,
    alpha: float | None = None,
    seed: int = 0,
    only: Collection[str] | None = None,
    magnitude: float = 1.0,
) -> Draft:
    draft = Draft(model.architecture)
    if alpha is not None:
        draft.keys["adapter.lora.alpha"] = alpha, GGUFValueType.FLOAT32
    for name in model.targets if only is None else only:
        n_in, n_out = model.targets[name]
        r = rank if isinstance(rank, int) else rank.get(name, 4)
        draft.add_pair(name, *_factors(name, (n_in, n_out), r, 1.0 if alpha is None else alpha / r, seed, magnitude))
    return draft


def write_adapter(
    path: Path,
    model: TinyModel,
    *,
    rank: int | dict[str, int] = 4,
    alpha: float | None = None,
    dtype: str = "f16",
    seed: int = 0,
    only: Collection[str] | None = None,
    magnitude: float = 1.0,
) -> Factors:
    """Write an adapter for `only` these of the model's targets (None: all) and return its factors as they are read back from the file.

    `rank`: of all, or by target (others 4). `alpha` None leaves the key out, which means scale 1. `magnitude` is the size of (alpha / r) BA
    beside the base matrix whatever alpha and rank are; 1 changes greedy text within a few tokens, even through a single matrix.
    `dtype` "q8_0" stores those factors whose rows are whole blocks of 32, the others as f16, as converters do.
    """
    draft = draft_adapter(model, rank=rank, alpha=alpha, seed=seed, only=only, magnitude=magnitude)
    draft.write(path, dtype)
    read_back = {name: _read_back(array, dtype) for name, array in draft.tensors.items()}
    names = [name.removesuffix(".lora_a") for name in read_back if name.endswith(".lora_a")]
    return {name: (read_back[f"{name}.lora_a"], read_back[f"{name}.lora_b"]) for name in names}


def _factors(name: str, dims: tuple[int, int], rank: int, scale: float, seed: int, magnitude: float) -> tuple[Factor, Factor]:
    n_in, n_out = dims
    random = np.random.default_rng([seed, crc32(name.encode())])
    a = random.standard_normal((rank, n_in)) / n_in**0.5
    b = random.standard_normal((n_out, rank)) * (GAIN * magnitude / (scale * rank**0.5))
    return a.astype(np.float32), b.astype(np.float32)


def _stored(array: Factor, dtype: str) -> tuple[NDArray[np.generic], GGMLQuantizationType]:
    kind = DTYPES[dtype]
    if kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0) and array.shape[-1] % BLOCK:
        kind = GGMLQuantizationType.F16
    return quantize(array, kind), kind


def _read_back(array: Factor, dtype: str) -> Factor:
    values: Factor = dequantize(*_stored(array, dtype)).astype(np.float32)
    return values
