"""Whether an adapter can be applied to a base, from the two headers alone. Reads no weights; lora.py does, after this.

The first fault is reported: a wrong base makes every tensor wrong, and a list of 420 helps nobody. What llama.cpp would take silently
and wrongly (ignored tensors) or would abort on (token embeddings of a tied model) is refused here, by a code of its own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from personae.packs.base import EMBEDDING, OUTPUT, BaseShapes
from personae.packs.gguf import GgufHeader, TensorInfo
from personae.packs.lora_header import ALPHA, alpha_of, refuse

MAX_RANK = 256  # what people train is 4 to 128; the mixer's tables are padded to the largest
HALVES = (".lora_a", ".lora_b")
DTYPES = ("f16", "f32", "bf16", "q8_0")  # in which weights can be read


@dataclass(frozen=True, slots=True)
class FitPair:
    """A (r, n_in) and B (n_out, r) of one matrix of the base, where they lie in the file."""

    a: TensorInfo
    b: TensorInfo
    rank: int


@dataclass(frozen=True, slots=True)
class Fit:
    """An adapter whose every tensor has its place in the base."""

    alpha: float | None  # None: the file states none
    pairs: dict[str, FitPair]  # tensor name in the base -> its pair, in the file's order
    warnings: tuple[str, ...]


def fit(header: GgufHeader, base: BaseShapes) -> Fit:
    """AskedWrong with one of the `adapter_*` codes when it does not fit. The header has passed `check_header`."""
    _check_architecture(header, base)
    alpha = alpha_of(header)
    return Fit(alpha, _pairs(header, base), tuple(_warnings(header, base, alpha)))


def columns(tensor: TensorInfo) -> int:
    """Of a half as a numpy matrix."""
    return _two_dims(tensor)[0]


# --- what the file says of itself ---------------------------------------------------------------------------------


def _check_architecture(header: GgufHeader, base: BaseShapes) -> None:
    said = header.text("general.architecture")
    if said != base.architecture:
        refuse(
            header.path,
            "wrong_architecture",
            f"is for the architecture {said!r} and the base '{base.name}' is {base.architecture!r}{_first_shapes(header, base)}",
            "Use an adapter that was trained on this base, or load the base it was trained on.",
        )


def _first_shapes(header: GgufHeader, base: BaseShapes) -> str:
    """Both shapes of the first matrix that the two have in common: a wrong size looks otherwise than a wrong family."""
    for target, shape in base.matrices.items():
        a, b = (header.tensors.get(target + half) for half in HALVES)
        if a and b:
            return f"; '{target}' is ({a.dims[0]}, {b.dims[-1]}) in the adapter and {_shown(shape)} in the base"
    return ""


def _warnings(header: GgufHeader, base: BaseShapes, alpha: float | None) -> Iterator[str]:
    name = header.path.name
    if alpha is None:
        yield f"adapter '{name}' states no {ALPHA}: its matrices are applied as they are, not times alpha / rank."
    trained_on = header.text("general.base_model.0.name")
    if trained_on and not (_is_like(trained_on, base.name) or _is_like(trained_on, base.file)):
        yield f"adapter '{name}' says it was trained on '{trained_on}', and the base is '{base.name}' ('{base.file}')."


def _is_like(one: str, other: str) -> bool:
    """Whether two names of a model may mean the same: "SmolLM2 135M Instruct" and "SmolLM2-135M-Instruct.Q4_1.gguf"."""
    first, second = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (one, other))
    return first in second or second in first


# --- tensors ------------------------------------------------------------------------------------------------------


# A table of tensors that many adapters share (gguf.py) is held against a base once: (tensors, base, pairs), the first two by identity.
_FITTING: deque[tuple[dict[str, TensorInfo], BaseShapes, dict[str, FitPair]]] = deque(maxlen=16)


def _pairs(header: GgufHeader, base: BaseShapes) -> dict[str, FitPair]:
    for tensors, same_base, pairs in tuple(_FITTING):
        if tensors is header.tensors and same_base is base:
            return pairs
    halves = _paired(header, base)
    pairs = {target: FitPair(*pair, _rank(header.path, target, base, pair)) for target, pair in halves.items()}
    _FITTING.append((header.tensors, base, pairs))
    return pairs


def _paired(header: GgufHeader, base: BaseShapes) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """base tensor -> (A, B), each adaptable and complete; shapes are not yet looked at."""
    halves: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in header.tensors.items():
        target, half = name[:-7], name[-7:]
        if half not in HALVES:
            _refuse_lone(header.path, name)
        if target not in halves:
            _check_target(header.path, target, base)
        if tensor.dtype not in DTYPES:
            refuse(header.path, "unsupported", f"stores '{name}' as {tensor.dtype}", "Export it as f16, f32, bf16 or q8_0.")
        halves.setdefault(target, {})[half] = tensor
    for target, found in halves.items():
        for half in HALVES:
            if half not in found:
                refuse(header.path, "incomplete_pair", f"lacks '{target}{half}', the other half of a pair", "Export it again.")
    return {target: (found[HALVES[0]], found[HALVES[1]]) for target, found in halves.items()}


def _refuse_lone(path: Path, name: str) -> NoReturn:
    """A tensor that is neither half of a pair. llama.cpp ignores norms and would speak with another voice than was trained."""
    if "_norm." in name or name.endswith("_norm"):
        refuse(path, "unsupported", f"trains the norm '{name}', which llama.cpp ignores", "Train without norms (modules_to_save).")
    refuse(path, "unknown_tensor", f"holds '{name}', which is neither a lora_a nor a lora_b", "Convert it with a LoRA converter.")


def _check_target(path: Path, target: str, base: BaseShapes) -> None:
    if target in base.sites:
        return
    if base.tied and target in (EMBEDDING, OUTPUT):
        why = f"adapts '{target}', and the base '{base.name}' uses one matrix for embedding and output; llama.cpp aborts on that"
        refuse(path, "tied_embedding", why, "Train without lm_head and embed_tokens.")
    if target == EMBEDDING:
        refuse(path, "unsupported", f"adapts the embeddings '{target}'", "Train without embed_tokens.")
    if target in base.experts:
        refuse(path, "unsupported", f"adapts the expert matrices '{target}'", "Train attention and dense layers only.")
    if target in base.vectors:
        refuse(path, "unsupported", f"adapts '{target}', which is no matrix in the base", "Train linear layers only.")
    if target in base.matrices:
        why = f"adapts '{target}', which llama.cpp does not adapt in a model of architecture {base.architecture!r}"
        refuse(path, "unsupported", why, "Train other layers only.")
    known = f"'{base.name}' ({base.architecture}, {len(base.matrices)} matrices)"
    refuse(path, "unknown_tensor", f"adapts '{target}', which the base {known} does not have", "It was trained on another base; load that.")


def _rank(path: Path, target: str, base: BaseShapes, pair: tuple[TensorInfo, TensorInfo]) -> int:
    """The rank of a pair whose shapes fit. Shapes in messages are (inputs, outputs), as GGUF tools print them."""
    n_in, n_out = base.matrices[target]
    a, b = _two_dims(pair[0]), _two_dims(pair[1])
    if len(a) != 2 or len(b) != 2 or a[0] != n_in or b[1] != n_out or a[1] != b[0]:
        why = (
            f"has lora_a {_shown(a)} and lora_b {_shown(b)} for '{target}', which is ({n_in}, {n_out}) in the base '{base.name}';"
            f" needed are ({n_in}, r) and (r, {n_out})"
        )
        refuse(path, "shape", why, "It was trained on a base of another size, or exported transposed.")
    if not 1 <= a[1] <= MAX_RANK:
        refuse(path, "rank", f"has rank {a[1]} at '{target}'; 1 to {MAX_RANK} are possible", "Train with a smaller rank.")
    return a[1]


def _two_dims(tensor: TensorInfo) -> tuple[int, ...]:
    """ggml pads shapes with ones: (576,), (576, 1) and (576, 1, 1) are the same tensor of rank 1."""
    dims = tensor.dims
    if len(dims) < 2:
        dims = (*dims, 1)
    while len(dims) > 2 and dims[-1] == 1:
        dims = dims[:-1]
    return dims


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
