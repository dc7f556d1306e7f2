"""One GGUF model in memory: weights once, for everybody. Knows no context, slot or adapter.

Two traps are decided here. A native build on a CPU with AMX has code that dies with SIGILL at the first decode: its extra buffer
types stay off, which costs the repacked kernels and keeps the process. And llama.cpp gives the loader's reason only to its log.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from personae.engine.llama import api
from personae.errors import AskedWrong, OurBug, WorldFailed
from personae.packs.base import BaseShapes
from personae.packs.gguf import GgufHeader, read_header

_HASH_CHUNK = 1 << 20


def file_hash(path: Path) -> str:
    """SHA-256 of the content, hex. About a second a gigabyte, once for each version of a file."""
    seen = path.stat()
    return _hash_as_of(path, (seen.st_ino, seen.st_size, seen.st_mtime_ns))


@lru_cache(maxsize=16)
def _hash_as_of(path: Path, version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _header(path: Path) -> GgufHeader:
    try:
        return read_header(path)
    except AskedWrong as error:
        code = "model_missing" if error.code.endswith("_missing") else "model_unreadable"
        reason = error.message.replace(f"'{path.name}'", f"'{path}'", 1)  # which of the machine's many models is half the finding
        raise WorldFailed(code, f"Model {reason}", "Give the path of a whole GGUF model file.") from error


class Model:
    """A loaded model. `handle` and `vocab` are llama.cpp's pointers, good until `close`."""

    def __init__(self, path: str, *, vocab_only: bool = False, n_gpu_layers: int = 0) -> None:
        """WorldFailed `model_missing` or `model_unreadable`, with the path and llama.cpp's reason."""
        api.start()
        self.path = Path(path)
        self.header = _header(self.path)
        self.base = BaseShapes.of(self.header)
        params = api.lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = self.uses_extra_buffers = not api.has_amx()
        api.forget_errors()
        self.handle: Any = api.lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self.handle:
            reason = api.why("llama.cpp gave no reason")
            hint = "Is the file whole, and of an architecture this llama.cpp knows?"
            raise WorldFailed("model_unreadable", f"Model '{self.path}' cannot be loaded: {reason}.", hint)
        self.vocab: Any = api.lib.llama_model_get_vocab(self.handle)

    @property
    def architecture(self) -> str:
        return self.base.architecture

    @property
    def n_vocab(self) -> int:
        return int(api.lib.llama_vocab_n_tokens(self.vocab))

    @property
    def n_params(self) -> int:
        return int(api.lib.llama_model_n_params(self.handle))

    @property
    def n_layer(self) -> int:
        return int(api.lib.llama_model_n_layer(self.handle))

    @property
    def window(self) -> int:
        """Tokens that layers with a sliding window look back on; 0 without such layers."""
        return int(api.lib.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Wholly or in some layers: what such a layer remembers of a sequence is one state, which cannot be taken apart by tokens."""
        return bool(api.lib.llama_model_is_recurrent(self.handle) or api.lib.llama_model_is_hybrid(self.handle))

    @property
    def n_ctx_train(self) -> int:
        return int(api.lib.llama_model_n_ctx_train(self.handle))

    @property
    def description(self) -> str:
        """llama.cpp's own words, e.g. 'llama 135M Q4_1'."""
        buffer = ctypes.create_string_buffer(256)
        api.lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def load_adapter(self, path: Path) -> Any:
        """A pointer to an adapter of llama.cpp's own. Only for files packs/lora.py has read: others may abort the process."""
        api.forget_errors()
        adapter = api.lib.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise AskedWrong("adapter_unreadable", f"Adapter '{path.name}' was refused by llama.cpp: {api.why('no reason given')}.")
        return adapter

    def free_adapter(self, adapter: Any) -> None:
        """No context may use it any more."""
        api.lib.llama_adapter_lora_free(adapter)

    def close(self) -> None:
        if self.handle is None:
            raise OurBug("internal", f"Model '{self.path.name}' was closed twice.")
        api.lib.llama_model_free(self.handle)
        self.handle = self.vocab = None
