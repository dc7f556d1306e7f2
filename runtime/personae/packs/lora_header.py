"""What an adapter's header must say whatever the base, and the key of its content. Decides nothing about a base (fit.py does).

Needs no numpy: the service reads the headers of all packs when it starts, and their weights never.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from personae.errors import AskedWrong
from personae.packs.gguf import ADAPTER_LIMITS, GgufHeader, open_regular, parse_stream
from personae.types import AdapterKey

MAX_ADAPTER_BYTES = 2 * 1024**3  # the file is held in memory once while it is read
MAX_BEHIND_BYTES = 1024 * 1024  # of a file, behind its weights: padding, and nothing that would have to be held in memory with them
ALPHA = "adapter.lora.alpha"

_HASH_CHUNK = 1024 * 1024


def read_adapter_header(path: Path) -> GgufHeader:
    """The light check, for when no base is at hand: a readable GGUF that says it is a LoRA and has tensors.

    AskedWrong with one of the `adapter_*` codes says what is wrong with it.
    """
    path = Path(path)
    with as_adapter():
        stream, n_bytes = open_regular(path)
    with stream, reading(path):
        return adapter_header(stream, n_bytes, path)


def adapter_header(stream: BinaryIO, n_bytes: int, path: Path) -> GgufHeader:
    """The same of a file that is open at its start; `path` is named in errors. Reads no further than the header."""
    if n_bytes > MAX_ADAPTER_BYTES:
        refuse(path, "unreadable", f"has {n_bytes} bytes, more than {MAX_ADAPTER_BYTES}", "Is it a model rather than an adapter?")
    with as_adapter():
        header = parse_stream(stream, n_bytes, path, ADAPTER_LIMITS)
    check_header(header)
    return header


def adapter_key(path: Path) -> AdapterKey:
    """SHA-256 of a file's content, read in pieces. AskedWrong `adapter_missing`, `adapter_unreadable`."""
    path = Path(path)
    digest = hashlib.sha256()
    with as_adapter():
        stream, _ = open_regular(path)
    with stream, reading(path):
        while piece := stream.read(_HASH_CHUNK):
            digest.update(piece)
    return AdapterKey(digest.hexdigest())


def check_header(header: GgufHeader) -> None:
    """AskedWrong `adapter_not_lora`, `adapter_unsupported`, `adapter_empty`, `adapter_unreadable`."""
    path = header.path
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        said = header.text(key)
        if said != wanted:
            found = f"{key} is {said!r}" if said is not None else f"it has no text {key}"
            refuse(
                path, "not_lora", f"is no LoRA adapter: {found} where {wanted!r} is needed", "Give the GGUF of an adapter, not of a model."
            )
    if "adapter.alora.invocation_tokens" in header.metadata:
        refuse(path, "unsupported", "is an activated LoRA (alora), which works from a certain token on", "Use a plain LoRA.")
    if not header.tensors:
        refuse(path, "empty", "holds no tensors", "Export it again; something went wrong there.")
    behind = header.n_bytes - max(tensor.offset + tensor.n_bytes for tensor in header.tensors.values())
    if behind > MAX_BEHIND_BYTES:
        refuse(path, "unreadable", f"holds {behind} bytes behind its weights, more than {MAX_BEHIND_BYTES}", "Export it again.")


def alpha_of(header: GgufHeader) -> float | None:
    """None where the file states none, so that its matrices are applied as they are. AskedWrong `adapter_alpha`."""
    value = header.metadata.get(ALPHA)
    if value is None:
        return None
    if header.kinds[ALPHA] != "f32" or not isinstance(value, float):
        refuse(header.path, "alpha", f"states {ALPHA} as {header.kinds[ALPHA]} where f32 is needed", "Export it with alpha as f32.")
    if not math.isfinite(value) or value <= 0:
        # llama.cpp takes 0 for "not stated" and applies the adapter at full strength: the opposite of what a writer of 0 means.
        refuse(header.path, "alpha", f"states {ALPHA} = {value}, which is not above zero", "Export it with the alpha it was trained with.")
    return value


@contextmanager
def as_adapter() -> Iterator[None]:
    """Turn the codes of the GGUF reader into those of adapters; what an archive says of itself stays as it is."""
    try:
        yield
    except AskedWrong as fault:
        if not fault.code.startswith("gguf_"):
            raise
        raise AskedWrong(fault.code.replace("gguf_", "adapter_"), f"Adapter {fault.message}", fault.hint) from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the machine may do while a file is read into an `adapter_unreadable`."""
    try:
        yield
    except OSError as fault:  # a network drive gone, a disk that fails
        refuse(path, "unreadable", f"could not be read to its end ({fault.strerror})", "Check the disk or drive it is on.")
    except MemoryError:
        refuse(path, "unreadable", "does not fit into memory", "Free memory, or use a smaller adapter.")


def refuse(path: Path, code: str, what: str, hint: str) -> NoReturn:
    raise AskedWrong(f"adapter_{code}", f"Adapter '{path.name}' {what}.", hint)
