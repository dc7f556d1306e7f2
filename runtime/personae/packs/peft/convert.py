"""Makes a GGUF adapter of a PEFT one, for one base, such that llama.cpp computes what PEFT defines. Refuses where it would not.

PEFT's delta is `scaling * B A`, with a scaling for each module. A GGUF file has one alpha, and llama.cpp scales each pair with alpha
over that pair's own rank. So each module has the alpha at which its scaling comes out (lora_alpha or alpha_pattern; with rsLoRA times
sqrt(r)), and

- the file's alpha is the one that most of the weights in B have. These B are kept as stored, bit for bit, float16 and bfloat16 too;
- the others are multiplied by own alpha / file's alpha. A power of two is exact and leaves the type as it is, if nothing overflows it or
  sinks below it; anything else is one multiplication in float64, rounded once to float32.

A is never changed. So no number is further from PEFT's than one rounding to float32 in B and one in alpha.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from personae.errors import AskedWrong, WorldFailed
from personae.packs.base import BaseShapes
from personae.packs.fit import MAX_RANK
from personae.packs.lora_writer import write_lora
from personae.packs.peft.adapter import Pair, PeftAdapter
from personae.packs.peft.names import is_permuted, target_of
from personae.packs.peft.tensors import Stored, values

BASE_HASH = "personae.base.hash"  # GGUF key: SHA-256 of the base's file, hex


@dataclass(frozen=True, slots=True)
class ConvertedLora:
    """A GGUF adapter before it is written."""

    name: str  # of the PEFT adapter
    architecture: str
    alpha: float  # a float32
    matrices: Mapping[str, tuple[Stored, Stored]]  # base tensor -> A (r, n_in), B (n_out, r), in the base's order
    rank: int  # the largest
    base_name: str  # the model it was trained on, or where it does not say the one it was converted for
    base_hash: str  # of the one it was converted for; "" when unknown


def to_lora(adapter: PeftAdapter, base: BaseShapes) -> ConvertedLora:
    """AskedWrong `peft_architecture`, `peft_unknown_module`, `peft_tied_embedding`, `peft_unsupported`, `peft_shape`, `peft_rank`,
    `peft_not_finite`.
    """
    pairs = _by_target(adapter, base)
    alpha = _commonest_alpha(pairs)
    matrices = {target: (pair.a, _b(adapter, target, pair, base, alpha)) for target, pair in pairs.items()}
    return ConvertedLora(
        name=adapter.name,
        architecture=base.architecture,
        alpha=float(np.float32(alpha)),
        matrices=matrices,
        rank=max(pair.strength.r for pair in pairs.values()),
        base_name=adapter.base_name or base.name,
        base_hash=min(base.hashes, default=""),
    )


def write(converted: ConvertedLora, to: Path) -> None:
    """Write the GGUF file as a whole or not at all; packs/lora.py and llama.cpp read it. WorldFailed `peft_unwritable`."""
    keys: dict[str, str | int] = {"general.base_model.count": 1, "general.base_model.0.name": converted.base_name}
    if converted.base_hash:
        keys[BASE_HASH] = converted.base_hash
    try:
        write_lora(to, converted.architecture, converted.alpha, converted.matrices, keys)
    except OSError as fault:
        what = f"'{to}' cannot be written ({fault.strerror or fault})"
        raise WorldFailed("peft_unwritable", f"{what}.", "Check the folder, its permissions and the room on the disk.") from None


def manifest_tables(converted: ConvertedLora, base: BaseShapes, file: str = "adapter.gguf") -> dict[str, Any]:
    """What a pack's manifest says of it: the tables `adapter` and `base`, without what is not known."""
    said = {
        "architecture": converted.architecture,
        "name": converted.base_name,
        "hash": converted.base_hash,
        "n_layers": base.n_layers,
        "n_embd": base.n_embd,
    }
    return {"adapter": {"file": file, "scale": 1.0}, "base": {key: value for key, value in said.items() if value}}


# --- which matrix -------------------------------------------------------------------------------------------------


def _by_target(adapter: PeftAdapter, base: BaseShapes) -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    for module, pair in adapter.pairs.items():
        target = target_of(module, base, adapter.name)
        if target in found:
            what = f"adapts '{target}' twice, once as {module[:120]!r}"
            raise AskedWrong("peft_unsupported", f"Adapter '{adapter.name}' {what}.", "Save it again.")
        _check_fit(adapter, module, pair, target, base)
        found[target] = pair
    return {target: found[target] for target in base.matrices if target in found}


def _check_fit(adapter: PeftAdapter, module: str, pair: Pair, target: str, base: BaseShapes) -> None:
    own, shape = (pair.a.shape[1], pair.b.shape[0]), base.matrices[target]
    if own != shape:
        at = f"is for {own[0]} inputs and {own[1]} outputs at {module!r}"
        what = f"{at}, and '{target}' of the base '{base.name}' has {shape[0]} and {shape[1]}"
        raise AskedWrong("peft_shape", f"Adapter '{adapter.name}' {what}.", "It was trained on a base of another size; load that.")
    if pair.strength.r > MAX_RANK:
        what = f"has rank {pair.strength.r} at {module!r}; 1 to {MAX_RANK} are possible"
        raise AskedWrong("peft_rank", f"Adapter '{adapter.name}' {what}.", "Train with a smaller rank.")


# --- B ------------------------------------------------------------------------------------------------------------


def _commonest_alpha(pairs: Mapping[str, Pair]) -> float:
    sizes: Counter[float] = Counter()
    for pair in pairs.values():
        sizes[pair.strength.alpha] += pair.b.size
    return sizes.most_common(1)[0][0]  # of equals the first


def _b(adapter: PeftAdapter, target: str, pair: Pair, base: BaseShapes, alpha: float) -> Stored:
    """B with its rows in the base's order, and what the file's alpha does not express."""
    b = _in_order(pair.b, _n_heads(adapter, target, base)) if is_permuted(target, base) else pair.b
    scaled = _scaled(b, pair.strength.alpha, alpha)
    if not np.isfinite(values(scaled)).all():
        what = f"is too large for float32 at '{target}', times its alpha"
        raise AskedWrong("peft_not_finite", f"Adapter '{adapter.name}' {what}.", "Its training diverged; train it with a lower rate.")
    return scaled


def _scaled(b: Stored, own: float, files: float) -> Stored:
    """b * own / files, where `files` is going to be rounded to float32."""
    if own == files:
        return b
    ratio = own / files
    with np.errstate(over="ignore", under="ignore"):
        if math.frexp(ratio)[0] == 0.5:
            exact = values(b) * np.float32(ratio)
            return exact if (kept := _as_type(exact, b.dtype)) is None else kept
        return (values(b).astype(np.float64) * (own / float(np.float32(files)))).astype(np.float32)


def _as_type(wanted: NDArray[np.float32], dtype: np.dtype[Any]) -> Stored | None:
    """The same numbers in another type; None when it cannot hold one of them."""
    kept: Stored = (wanted.view(np.uint32) >> 16).astype(np.uint16) if dtype == np.uint16 else wanted.astype(dtype)
    return kept if np.array_equal(values(kept), wanted) else None


def _in_order(b: Stored, n_heads: int) -> Stored:
    """Rows of each head from two halves to neighbours: 0, h/2, 1, h/2 + 1, ... where h is a head's width."""
    n_out, r = b.shape
    ordered: Stored = b.reshape(n_heads, 2, n_out // n_heads // 2, r).swapaxes(1, 2).reshape(n_out, r)
    return ordered


def _n_heads(adapter: PeftAdapter, target: str, base: BaseShapes) -> int:
    """Of Q or K, as many as have the width that the base's Q heads have: all heads of these models are equally wide."""
    n_rows = base.matrices[target][1]
    n_rows_of_q = base.matrices.get(target.replace("attn_k", "attn_q"), (0, 0))[1]
    width = n_rows_of_q // base.n_heads if base.n_heads else 0
    if not width or width % 2 or n_rows_of_q % base.n_heads or n_rows % width:
        _refuse_heads(adapter, target, base)
    n_heads = n_rows // width
    if base.n_kv_heads and "attn_k" in target and n_heads != base.n_kv_heads:
        _refuse_heads(adapter, target, base)
    return n_heads


def _refuse_heads(adapter: PeftAdapter, target: str, base: BaseShapes) -> NoReturn:
    what = f"cannot be converted at '{target}': the header of the base '{base.name}' does not say how many heads that has"
    raise AskedWrong("peft_unsupported", f"Adapter '{adapter.name}' {what}.", "Use a base converted by llama.cpp's convert_hf_to_gguf.py.")
