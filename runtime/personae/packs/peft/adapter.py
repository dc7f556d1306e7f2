"""A PEFT adapter as its two files say it: for each module A, B and how strong they are. Knows no base and no GGUF.

Rules that always hold
- Every tensor of the file is one half of a pair. Anything else (norms, biases, whole embeddings, magnitudes) is refused by its name: left
  out, the adapter would still speak, in a voice that nobody trained.
- A pickle is refused by its file's name and never opened: opening one is running it.
- The rank of a pair is the one that adapter_config.json gives that module. So a pattern that was understood otherwise here than by the
  PEFT that trained it comes to light as a wrong rank, at least where ranks differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from personae.errors import AskedWrong
from personae.packs.gguf import open_regular
from personae.packs.peft.config import CONFIG, MAX_CONFIG_BYTES, PeftConfig, Strength, read_config, strengths
from personae.packs.peft.tensors import MAX_FILE_BYTES, Stored, read_tensors, values

WEIGHTS = "adapter_model.safetensors"
MAX_NAME_CHARS = 400  # of a tensor
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

_HALF = re.compile(r"(?:base_model\.model\.)?(?P<module>[^\n]+)\.lora_(?P<half>[AB])(?:\.(?P<name>[^.\n]+))?\.weight")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,5})\.")
# What else PEFT stores, in the order in which it is told apart: pattern -> what it is, what to do.
_OTHERS = (
    (r"lora_magnitude_vector", "a magnitude of DoRA", "Train without use_dora."),
    (r"lora_[AB](\.[^.]+)?\.bias$", "a bias of B (lora_bias)", "Train without lora_bias."),
    (r"lora_embedding_|trainable_tokens|embed_tokens", "trained embeddings", "Train without embed_tokens and without new tokens."),
    (r"modules_to_save", "a whole module (modules_to_save)", "Train without modules_to_save."),
    (r"norm", "a trained norm", "Train linear layers only, without modules_to_save."),
    (r"\.bias$", "a trained bias", "Train with bias = 'none'."),
    (r"(^|\.)(lm_head|score|classifier)\.", "a whole output matrix (modules_to_save)", "Train without modules_to_save."),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEFT's delta at one module is `strength.alpha / strength.r * B A`. Both halves as stored, finite."""

    a: Stored  # (r, n_in)
    b: Stored  # (n_out, r)
    strength: Strength


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """A plain LoRA. Whether it fits a base is found out by `to_lora`."""

    name: str  # for people: the folder's
    base_name: str  # of the model it was trained on; "" when it does not say
    pairs: Mapping[str, Pair]  # module in the Hugging Face model, e.g. "model.layers.0.self_attn.q_proj" -> pair, in order of names


def read_peft(path: Path) -> PeftAdapter:
    """`path` is the folder that PEFT saved, or one of the two files in it.

    AskedWrong `peft_missing`, `peft_pickle`, `peft_unreadable`, `peft_truncated` and all of `peft_from_bytes`.
    """
    path = Path(path)
    with _as_peft(path):
        return _read_peft(path)


def peft_from_bytes(config: bytes, tensors: bytes, name: str = "adapter") -> PeftAdapter:
    """The same from the content of adapter_config.json and adapter_model.safetensors. Raises AskedWrong and nothing else:

    `peft_unreadable`, `peft_truncated`, `peft_config`, `peft_unsupported`, `peft_incomplete_pair`, `peft_shape`, `peft_empty`,
    `peft_not_finite`, `peft_inert`.
    """
    said = read_config(config, name)
    halves = _halves(read_tensors(tensors, name), name)
    if not halves:
        raise AskedWrong("peft_empty", f"Adapter '{name}' holds no tensors.", "Save it again; something went wrong there.")
    _check_layers(said, halves, name)
    found = strengths(said, list(halves), name)
    pairs = {module: _pair(module, both, found[module], name) for module, both in halves.items()}
    if not any(values(pair.a).any() and values(pair.b).any() for pair in pairs.values()):
        what = "changes nothing: in every pair one half is all zeros"
        raise AskedWrong("peft_inert", f"Adapter '{name}' {what}.", "Save it after training, not before.")
    return PeftAdapter(name, said.base_name, pairs)


# --- files --------------------------------------------------------------------------------------------------------


def _read_peft(path: Path) -> PeftAdapter:
    weights = _weights_at(path)
    folder = weights.parent
    if not weights.exists():
        _refuse_missing(folder, weights)
    config = _read(folder / CONFIG, MAX_CONFIG_BYTES)
    return peft_from_bytes(config, _read(weights, MAX_FILE_BYTES), _printable(folder))


def _weights_at(path: Path) -> Path:
    """The safetensors file that is meant, there or not. Never one of another folder: a mistyped name must not import its neighbour."""
    if path.is_dir():
        return path / WEIGHTS
    _refuse_pickle(path)
    if path.suffix.lower() == ".safetensors":
        return path
    if path.name == CONFIG:
        return path.with_name(WEIGHTS)
    what = "is neither a folder nor one of these files" if path.exists() else "does not exist"
    raise AskedWrong("peft_missing", f"'{path}' {what}.", f"Give the folder that PEFT saved, with {CONFIG} and {WEIGHTS} in it.")


def _refuse_pickle(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        what = f"'{path.name}' is a pickle, which can run any program when it is opened, and was not opened"
        raise AskedWrong("peft_pickle", f"{what}.", "Save it as safetensors: save_pretrained(..., safe_serialization=True).")


def _refuse_missing(folder: Path, weights: Path) -> NoReturn:
    for suffix in PICKLES:
        if (pickled := weights.with_suffix(suffix)).exists():
            _refuse_pickle(pickled)
    where = f"'{folder.absolute().name}' holds no {weights.name}"
    raise AskedWrong("peft_missing", f"{where}.", f"Give the folder that PEFT saved, with {CONFIG} and {WEIGHTS} in it.")


def _printable(folder: Path) -> str:
    """Its name, also where that is no UTF-8."""
    return folder.absolute().name.encode("utf-8", "replace").decode()


def _read(path: Path, most: int) -> bytes:
    stream, n_bytes = open_regular(path)
    with stream:
        if n_bytes > most:
            what = f"'{path.name}' has {n_bytes} bytes, more than {most}"
            raise AskedWrong("peft_unreadable", f"{what}.", "Is it a model rather than an adapter?")
        return stream.read(n_bytes)


@contextmanager
def _as_peft(path: Path) -> Iterator[None]:
    """Turn what opening and reading files may raise into codes of ours."""
    try:
        yield
    except AskedWrong as fault:
        if fault.code == "gguf_missing":
            raise AskedWrong("peft_missing", fault.message, f"An adapter of PEFT is {CONFIG} and {WEIGHTS}.") from None
        raise AskedWrong(fault.code.replace("gguf_", "peft_"), fault.message, fault.hint) from None
    except (OSError, MemoryError) as fault:
        why = f"'{path.name}' could not be read to its end ({fault})"
        raise AskedWrong("peft_unreadable", f"{why}.", "Check the disk it is on, and the memory that is free.") from None


# --- tensors ------------------------------------------------------------------------------------------------------


def _halves(tensors: Mapping[str, Stored], adapter: str) -> dict[str, dict[str, Stored]]:
    """Module -> {"A": ..., "B": ...}; one of them may be missing yet."""
    halves: dict[str, dict[str, Stored]] = {}
    names: set[str] = set()
    for full, tensor in tensors.items():
        if len(full) > MAX_NAME_CHARS:
            what = f"holds a name of {len(full)} characters, {_short(full)}"
            raise AskedWrong("peft_unreadable", f"Adapter '{adapter}' {what}.", f"At most {MAX_NAME_CHARS} are possible.")
        found = _HALF.fullmatch(full)
        if found is None:
            _refuse_other(full, adapter)
        names.add(found["name"] or "")
        module = halves.setdefault(found["module"], {})
        if found["half"] in module or len(names) > 1:
            what = f"holds {_short(full)} of a second adapter beside the first"
            raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what}.", "Save each adapter alone.")
        module[found["half"]] = tensor
    return halves


def _refuse_other(full: str, adapter: str) -> NoReturn:
    for pattern, what, hint in _OTHERS:
        if re.search(pattern, full):
            raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' holds {what}: {_short(full)}.", hint)
    what = f"holds {_short(full)}, which is neither a lora_A nor a lora_B"
    raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what}.", "Save a plain LoRA with PEFT's save_pretrained.")


def _check_layers(said: PeftConfig, halves: Mapping[str, object], adapter: str) -> None:
    for module in halves:
        found = _LAYER.search(module)
        if said.layers is not None and found and int(found[1]) not in said.layers:
            what = f"adapts {_short(module)}, a layer that layers_to_transform in {CONFIG} leaves out"
            raise AskedWrong("peft_config", f"Adapter '{adapter}' {what}.", "Save it again; its two files are not of one training.")


def _pair(module: str, halves: Mapping[str, Stored], strength: Strength, adapter: str) -> Pair:
    for half in "AB":
        if half not in halves:
            what = f"lacks lora_{half} of {_short(module)}, the other half of a pair"
            raise AskedWrong("peft_incomplete_pair", f"Adapter '{adapter}' {what}.", "Save it again.")
    a, b = halves["A"], halves["B"]
    _check_shapes(module, a, b, strength.r, adapter)
    for half, tensor in halves.items():
        if not np.isfinite(values(tensor)).all():
            what = f"holds NaN or infinity in lora_{half} of {_short(module)}"
            raise AskedWrong("peft_not_finite", f"Adapter '{adapter}' {what}.", "Its training diverged; train it with a lower rate.")
    return Pair(a, b, strength)


def _check_shapes(module: str, a: Stored, b: Stored, r: int, adapter: str) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or not a.size or not b.size:
        what = f"has lora_A {a.shape[:8]} and lora_B {b.shape[:8]} at {_short(module)}; needed are (r, n_in) and (n_out, r)"
        raise AskedWrong("peft_shape", f"Adapter '{adapter}' {what}.", "Only linear layers can be imported.")
    if a.shape[0] != r:
        what = f"has rank {a.shape[0]} at {_short(module)}, and {CONFIG} says {r}"
        raise AskedWrong("peft_shape", f"Adapter '{adapter}' {what}.", "Take both files from the same training (r, rank_pattern).")


def _short(name: str) -> str:
    return repr(name if len(name) <= 120 else name[:117] + "...")
