"""The truth: what stock llama.cpp answers with no adapter, one, or a list of them, through its raw C API. Knows nothing of Personae.

Everything is loaded for one question and freed after it, so no state of one answer can leak into the next. One thread, no repacked
weights, no flash attention: the plainest arithmetic there is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Adapters = Path | str | Mapping[Path, float] | None  # one file, to be used at `scale`, or files with their scales
_say_nothing = llama_cpp.llama_log_callback(lambda _level, _text, _user: None)  # bound to the module: it outlives every call made to it


def stock_logits(model_path: Path | str, tokens: Sequence[int], adapters: Adapters = None, scale: float = 1.0) -> Logits:
    """Logits after each token, (len(tokens), n_vocab), all decoded in one batch."""
    with _context(model_path, len(tokens), adapters, scale) as (context, n_vocab):
        _decode(context, tokens, start=0)
        return np.stack([_row(context, i, n_vocab) for i in range(len(tokens))])


def stock_greedy(model_path: Path | str, tokens: Sequence[int], n: int, adapters: Adapters = None, scale: float = 1.0) -> list[int]:
    """The n likeliest tokens that follow, one by one. Does not stop at the end token: cut there if that is what you compare with."""
    drawn: list[int] = []
    with _context(model_path, len(tokens) + n, adapters, scale) as (context, n_vocab):
        chunk, start = list(tokens), 0
        while len(drawn) < n:
            _decode(context, chunk, start)
            start += len(chunk)
            chunk = [int(_row(context, len(chunk) - 1, n_vocab).argmax())]
            drawn += chunk
    return drawn


def stock_tokens(model_path: Path | str, text: str, *, special: bool = False) -> list[int]:
    """Tokens of a text, without BOS. `special`: control tokens spelled in the text are parsed."""
    encoded = text.encode()
    found = (llama_cpp.llama_token * (len(encoded) + 1))()
    with _model(model_path, vocab_only=True) as model:
        vocab = llama_cpp.llama_model_get_vocab(model)
        n = llama_cpp.llama_tokenize(vocab, encoded, len(encoded), found, len(found), False, special)
    assert n >= 0, f"{text!r} needs {-n} tokens"
    return list(found[:n])


def stock_text(model_path: Path | str, tokens: Sequence[int], *, special: bool = False) -> bytes:
    """The bytes tokens stand for. `special`: spell control tokens out instead of leaving them out."""
    buffer = ctypes.create_string_buffer(64)
    pieces = []
    with _model(model_path, vocab_only=True) as model:
        vocab = llama_cpp.llama_model_get_vocab(model)
        for token in tokens:
            n = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
            assert n >= 0, f"token {token} is longer than {len(buffer)} bytes"
            pieces.append(buffer.raw[:n])
    return b"".join(pieces)


def loads_adapter(model_path: Path | str, adapter_path: Path | str) -> bool:
    """Whether llama.cpp itself accepts the file. Loads it and frees it, decodes nothing."""
    with _model(model_path) as model:
        adapter = llama_cpp.llama_adapter_lora_init(model, str(adapter_path).encode())
        if adapter:
            llama_cpp.llama_adapter_lora_free(adapter)
        return bool(adapter)


def stock_window(model_path: Path | str) -> int:
    """Tokens a sliding-window layer looks back; 0 when the model has none."""
    with _model(model_path) as model:
        return int(llama_cpp.llama_model_n_swa(model))


@cache
def _start_backend() -> None:
    llama_cpp.llama_backend_init()


@contextmanager
def _quiet() -> Iterator[None]:
    """No log meanwhile; whoever listened before listens again afterwards."""
    before, user = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(before), ctypes.byref(user))
    llama_cpp.llama_log_set(_say_nothing, ctypes.c_void_p())
    try:
        yield
    finally:
        llama_cpp.llama_log_set(before, user)


@contextmanager
def _model(path: Path | str, *, vocab_only: bool = False) -> Iterator[Any]:
    with _quiet():
        _start_backend()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = False
        params.n_gpu_layers = 0
        params.vocab_only = vocab_only
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ValueError(f"llama.cpp does not load {path}")
        try:
            yield model
        finally:
            llama_cpp.llama_model_free(model)


@contextmanager
def _context(model_path: Path | str, n_tokens: int, adapters: Adapters, scale: float) -> Iterator[tuple[Any, int]]:
    with ExitStack() as stack:
        model = stack.enter_context(_model(model_path))
        # Before the context: the graph's size is counted from the adapters known when it is made.
        applied = [(_load_adapter(stack, model, path), scale) for path, scale in scales_of(adapters, scale).items()]
        context = llama_cpp.llama_init_from_model(model, _context_params(n_tokens))
        if not context:
            raise ValueError(f"llama.cpp makes no context for {model_path}")
        stack.callback(llama_cpp.llama_free, context)
        if applied:
            _apply(context, applied)
        yield context, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


def _context_params(n_tokens: int) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(n_tokens, 32)
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = 1
    params.kv_unified = False
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.no_perf = True
    return params


def _load_adapter(stack: ExitStack, model: Any, path: Path | str) -> Any:
    adapter = llama_cpp.llama_adapter_lora_init(model, str(path).encode())
    if not adapter:
        raise ValueError(f"llama.cpp does not load adapter {path}")
    stack.callback(llama_cpp.llama_adapter_lora_free, adapter)
    return adapter


def scales_of(adapters: Adapters, scale: float = 1.0) -> Mapping[Path, float]:
    if isinstance(adapters, Mapping):
        return adapters
    return {} if adapters is None else {Path(adapters): scale}


def _apply(context: Any, applied: Sequence[tuple[Any, float]]) -> None:
    n = len(applied)
    handles = (llama_cpp.llama_adapter_lora_p_ctypes * n)(*(adapter for adapter, _ in applied))
    status = llama_cpp.llama_set_adapters_lora(context, handles, n, (ctypes.c_float * n)(*(scale for _, scale in applied)))
    assert status == 0, f"llama_set_adapters_lora answered {status}"


def _decode(context: Any, tokens: Sequence[int], start: int) -> None:
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    try:
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, True
            batch.seq_id[i][0] = 0
        status = llama_cpp.llama_decode(context, batch)
        assert status == 0, f"llama_decode answered {status}"
    finally:
        llama_cpp.llama_batch_free(batch)


def _row(context: Any, i: int, n_vocab: int) -> Logits:
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (n_vocab,)).copy()
