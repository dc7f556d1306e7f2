"""Reads a GGUF LoRA adapter and checks it against the base it is for. Decides whether it can be applied exactly; applies nothing.

An adapter is a set of pairs A (r, n_in), B (n_out, r), each for one matrix W (n_out, n_in) of the base:
`y = W x + scale * B (A x)` with scale = use * alpha / r, or scale = use where the file states no alpha (llama.cpp's convention).

Rules that always hold
- The whole file is read once; header, weights and content key come from those same bytes, so that a file replaced meanwhile is
  either the old one or the new one, never half of each.
- What llama.cpp would take silently and wrongly (no tensors, alpha 0, NaN, ignored tensors, nothing but zeros) or would abort on
  (token embeddings of a tied model, metadata of an unexpected type) is refused here, by a code of its own.
- The first fault is reported: a wrong base makes every tensor wrong, and a list of 420 helps nobody.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from personae.errors import AskedWrong
from personae.packs.base import EMBEDDING, OUTPUT, BaseShapes
from personae.packs.gguf import ADAPTER_LIMITS, GgufHeader, TensorInfo, open_regular, parse_header, read_header
from personae.types import AdapterKey

MAX_RANK = 256  # what people train is 4 to 128; the mixer's tables are padded to the largest
MAX_ADAPTER_BYTES = 2 * 1024**3  # the file is held in memory once while it is read
ALPHA = "adapter.lora.alpha"

_HALVES = (".lora_a", ".lora_b")
_HASH_CHUNK = 1024 * 1024

Weights = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One pair. Read-only; float16 as stored, everything else as float32."""

    a: Weights  # (r, n_in)
    b: Weights  # (n_out, r)
    scale: float  # alpha / r, or 1 without an alpha; what the pack's scale is multiplied with

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    @property
    def is_inert(self) -> bool:
        return not (self.a.any() and self.b.any())


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter that fits its base."""

    path: Path
    key: AdapterKey
    alpha: float | None  # None: the file states none
    rank: int  # the largest of its matrices
    matrices: dict[str, Matrix]  # tensor name in the base -> pair, in the file's order
    warnings: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of the weights as they are held here."""
        return sum(matrix.a.nbytes + matrix.b.nbytes for matrix in self.matrices.values())


def read_lora(path: Path, base: BaseShapes) -> Lora:
    """Read and check an adapter. AskedWrong with one of the `adapter_*` codes says what is wrong with it."""
    path = Path(path)
    with _reading(path):
        return _read(path, base)


def read_adapter_header(path: Path) -> GgufHeader:
    """The light check, for when no base is at hand: a readable GGUF that says it is a LoRA and has tensors. Raises as `read_lora`."""
    with _as_adapter():
        header = read_header(path, ADAPTER_LIMITS)
    check_header(header)
    return header


def adapter_key(path: Path) -> AdapterKey:
    """SHA-256 of a file's content, read in pieces. AskedWrong `adapter_missing`, `adapter_unreadable`."""
    path = Path(path)
    digest = hashlib.sha256()
    with _as_adapter():
        stream, _ = open_regular(path)
    with stream, _reading(path):
        while piece := stream.read(_HASH_CHUNK):
            digest.update(piece)
    return AdapterKey(digest.hexdigest())


def _read(path: Path, base: BaseShapes) -> Lora:
    content = _whole(path)
    with _as_adapter():
        header = parse_header(content, path, ADAPTER_LIMITS)
    check_header(header)
    _check_architecture(header, base)
    alpha = _alpha(header)
    matrices = {target: _matrix(content, path, target, base, pair, alpha) for target, pair in _pairs(header, base).items()}
    if all(matrix.is_inert for matrix in matrices.values()):
        _refuse(path, "inert", "changes nothing: in every pair one half is all zeros", "Export it after training, not before.")
    return Lora(
        path=path,
        key=AdapterKey(hashlib.sha256(content).hexdigest()),
        alpha=alpha,
        rank=max(matrix.rank for matrix in matrices.values()),
        matrices=matrices,
        warnings=tuple(_warnings(header, base, alpha)),
    )


def check_header(header: GgufHeader) -> None:
    """What an adapter's header must say whatever the base. AskedWrong `adapter_not_lora`, `adapter_unsupported`, `adapter_empty`."""
    path = header.path
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        said = header.text(key)
        if said != wanted:
            found = f"{key} is {said!r}" if said is not None else f"it has no text {key}"
            _refuse(
                path, "not_lora", f"is no LoRA adapter: {found} where {wanted!r} is needed", "Give the GGUF of an adapter, not of a model."
            )
    if "adapter.alora.invocation_tokens" in header.metadata:
        _refuse(path, "unsupported", "is an activated LoRA (alora), which works from a certain token on", "Use a plain LoRA.")
    if not header.tensors:
        _refuse(path, "empty", "holds no tensors", "Export it again; something went wrong there.")


# --- what the file says of itself ---------------------------------------------------------------------------------


def _check_architecture(header: GgufHeader, base: BaseShapes) -> None:
    said = header.text("general.architecture")
    if said != base.architecture:
        _refuse(
            header.path,
            "wrong_architecture",
            f"is for the architecture {said!r} and the base '{base.name}' is {base.architecture!r}{_first_shapes(header, base)}",
            "Use an adapter that was trained on this base, or load the base it was trained on.",
        )


def _first_shapes(header: GgufHeader, base: BaseShapes) -> str:
    """Both shapes of the first matrix that the two have in common: a wrong size looks otherwise than a wrong family."""
    for target, shape in base.matrices.items():
        a, b = (header.tensors.get(target + half) for half in _HALVES)
        if a and b:
            return f"; '{target}' is ({a.dims[0]}, {b.dims[-1]}) in the adapter and {_shown(shape)} in the base"
    return ""


def _alpha(header: GgufHeader) -> float | None:
    value = header.metadata.get(ALPHA)
    if value is None:
        return None
    if header.kinds[ALPHA] != "f32" or not isinstance(value, float):
        _refuse(header.path, "alpha", f"states {ALPHA} as {header.kinds[ALPHA]} where f32 is needed", "Export it with alpha as f32.")
    if not math.isfinite(value) or value <= 0:
        # llama.cpp takes 0 for "not stated" and applies the adapter at full strength: the opposite of what a writer of 0 means.
        _refuse(header.path, "alpha", f"states {ALPHA} = {value}, which is not above zero", "Export it with the alpha it was trained with.")
    return value


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


def _pairs(header: GgufHeader, base: BaseShapes) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """base tensor -> (A, B), each adaptable and complete; shapes are not yet looked at."""
    halves: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in header.tensors.items():
        target, half = name[:-7], name[-7:]
        if half not in _HALVES:
            _refuse_lone(header.path, name)
        if target not in halves:
            _check_target(header.path, target, base)
        halves.setdefault(target, {})[half] = tensor
    for target, found in halves.items():
        for half in _HALVES:
            if half not in found:
                _refuse(header.path, "incomplete_pair", f"lacks '{target}{half}', the other half of a pair", "Export it again.")
    return {target: (found[_HALVES[0]], found[_HALVES[1]]) for target, found in halves.items()}


def _refuse_lone(path: Path, name: str) -> NoReturn:
    """A tensor that is neither half of a pair. llama.cpp ignores norms and would speak with another voice than was trained."""
    if "_norm." in name or name.endswith("_norm"):
        _refuse(path, "unsupported", f"trains the norm '{name}', which llama.cpp ignores", "Train without norms (modules_to_save).")
    _refuse(path, "unknown_tensor", f"holds '{name}', which is neither a lora_a nor a lora_b", "Convert it with a LoRA converter.")


def _check_target(path: Path, target: str, base: BaseShapes) -> None:
    if target in base.sites:
        return
    if base.tied and target in (EMBEDDING, OUTPUT):
        why = f"adapts '{target}', and the base '{base.name}' uses one matrix for embedding and output; llama.cpp aborts on that"
        _refuse(path, "tied_embedding", why, "Train without lm_head and embed_tokens.")
    if target == EMBEDDING:
        _refuse(path, "unsupported", f"adapts the embeddings '{target}'", "Train without embed_tokens.")
    if target in base.experts:
        _refuse(path, "unsupported", f"adapts the expert matrices '{target}'", "Train attention and dense layers only.")
    if target in base.vectors:
        _refuse(path, "unsupported", f"adapts '{target}', which is no matrix in the base", "Train linear layers only.")
    if target in base.matrices:
        why = f"adapts '{target}', which llama.cpp does not adapt in a model of architecture {base.architecture!r}"
        _refuse(path, "unsupported", why, "Train other layers only.")
    known = f"'{base.name}' ({base.architecture}, {len(base.matrices)} matrices)"
    _refuse(
        path, "unknown_tensor", f"adapts '{target}', which the base {known} does not have", "It was trained on another base; load that."
    )


def _matrix(content: bytes, path: Path, target: str, base: BaseShapes, pair: tuple[TensorInfo, TensorInfo], alpha: float | None) -> Matrix:
    rank = _rank(path, target, base, pair)
    a, b = (_weights(content, path, target + half, tensor) for half, tensor in zip(_HALVES, pair, strict=True))
    return Matrix(a, b, 1.0 if alpha is None else alpha / rank)


def _rank(path: Path, target: str, base: BaseShapes, pair: tuple[TensorInfo, TensorInfo]) -> int:
    """The rank of a pair whose shapes fit. Shapes in messages are (inputs, outputs), as GGUF tools print them."""
    n_in, n_out = base.matrices[target]
    a, b = (_two_dims(tensor) for tensor in pair)
    if len(a) != 2 or len(b) != 2 or a[0] != n_in or b[1] != n_out or a[1] != b[0]:
        why = (
            f"has lora_a {_shown(a)} and lora_b {_shown(b)} for '{target}', which is ({n_in}, {n_out}) in the base '{base.name}';"
            f" needed are ({n_in}, r) and (r, {n_out})"
        )
        _refuse(path, "shape", why, "It was trained on a base of another size, or exported transposed.")
    if not 1 <= a[1] <= MAX_RANK:
        _refuse(path, "rank", f"has rank {a[1]} at '{target}'; 1 to {MAX_RANK} are possible", "Train with a smaller rank.")
    return a[1]


def _two_dims(tensor: TensorInfo) -> tuple[int, ...]:
    """ggml pads shapes with ones: (576,), (576, 1) and (576, 1, 1) are the same tensor of rank 1."""
    dims = tensor.dims if len(tensor.dims) > 1 else (*tensor.dims, 1)
    while len(dims) > 2 and dims[-1] == 1:
        dims = dims[:-1]
    return dims


def _weights(content: bytes, path: Path, name: str, tensor: TensorInfo) -> Weights:
    """A tensor as a read-only array, its dimensions in numpy's order."""
    stored = np.frombuffer(content, np.uint8, tensor.n_bytes, tensor.offset)
    # general.alignment may be 1; engines hand pointers to these arrays to C, which wants them aligned.
    decoded = np.require(_decoded(stored, path, name, tensor.dtype), requirements=["A", "C"])
    decoded.flags.writeable = False
    if not np.isfinite(decoded).all():
        _refuse(path, "not_finite", f"holds NaN or infinity in '{name}'", "Its training diverged; train it again with a lower rate.")
    n_columns = _two_dims(tensor)[0]
    return decoded.reshape(-1, n_columns)


def _decoded(stored: NDArray[np.uint8], path: Path, name: str, dtype: str) -> Weights:
    if dtype == "f16":
        return stored.view("<f2")
    if dtype == "f32":
        return stored.view("<f4")
    if dtype == "bf16":
        return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype != "q8_0":
        _refuse(path, "unsupported", f"stores '{name}' as {dtype}", "Export it as f16, f32, bf16 or q8_0.")
    blocks = stored.reshape(-1, 34)  # a float16 scale, then 32 int8
    quants = blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):  # 0 times infinity is NaN, and is refused as such
        return (quants * scales).reshape(-1)


# --- files and errors ---------------------------------------------------------------------------------------------


def _whole(path: Path) -> bytes:
    with _as_adapter():
        stream, n_bytes = open_regular(path)
    with stream:
        if n_bytes > MAX_ADAPTER_BYTES:
            _refuse(path, "unreadable", f"has {n_bytes} bytes, more than {MAX_ADAPTER_BYTES}", "Is it a model rather than an adapter?")
        return stream.read(n_bytes)


@contextmanager
def _as_adapter() -> Iterator[None]:
    """Turn the codes of the GGUF reader into those of adapters."""
    try:
        yield
    except AskedWrong as fault:
        raise AskedWrong(fault.code.replace("gguf_", "adapter_"), f"Adapter {fault.message}", fault.hint) from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:  # a network drive gone, a disk that fails
        _refuse(path, "unreadable", f"could not be read to its end ({fault.strerror})", "Check the disk or drive it is on.")
    except MemoryError:
        _refuse(path, "unreadable", "does not fit into memory", "Free memory, or use a smaller adapter.")


def _refuse(path: Path, code: str, what: str, hint: str) -> NoReturn:
    raise AskedWrong(f"adapter_{code}", f"Adapter '{path.name}' {what}.", hint)


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
