"""One llama_context and its batch: decodes rows, keeps, cuts and moves the KV of streams. Knows no slot, turn or adapter policy.

`kv_unified` is off: a KV stream for each sequence, so that attention reads an NPC's own tokens and nobody can fill another's context.
Every call here is made by the thread that owns the context, and never beside another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from personae.engine import _mixer
from personae.engine.llama import api
from personae.engine.llama.model import Model
from personae.errors import OurBug, WorldFailed
from personae.types import Token

_FLASH_OFF, _FLASH_ON = 0, 1  # enum llama_flash_attn_type
_DECODED, _NO_ROOM, _ABORTED = 0, 1, 2  # what llama_decode returns


@dataclass(frozen=True, slots=True)
class Row:
    token: Token
    position: int
    stream: int
    wants_logits: bool


class Context:
    def __init__(
        self,
        model: Model,
        *,
        n_streams: int,
        n_ctx: int,
        n_batch: int,
        threads: int,
        flash: bool = False,
        mixer: _mixer.Mixer | None = None,
    ) -> None:
        """`n_ctx`: tokens of one stream; llama.cpp rounds it up. `n_batch`: most rows of one decode. `mixer` must outlive the context."""
        params = api.lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx * n_streams, n_streams
        params.n_batch = params.n_ubatch = max(n_batch, n_streams)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified, params.swa_full, params.no_perf = False, True, True
        params.flash_attn_type = _FLASH_ON if flash else _FLASH_OFF
        if mixer:
            params.cb_eval = ctypes.cast(ctypes.c_void_p(mixer.callback), api.lib.ggml_backend_sched_eval_callback)
            params.cb_eval_user_data = mixer.user_data
        self.mixer, self._model, self.n_vocab = mixer, model, model.n_vocab
        api.forget_errors()
        self.handle: Any = api.lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise WorldFailed(
                "engine_failed",
                f"No context for {n_streams} slots of {n_ctx} tokens: {api.why('llama.cpp gave no reason')}.",
                "Use fewer slots or a smaller --ctx; the KV of all slots must fit into memory.",
            )
        self.n_ctx = int(api.lib.llama_n_ctx_seq(self.handle))
        self._memory = api.lib.llama_get_memory(self.handle)
        self._take_batch(int(params.n_batch), n_streams)

    def _take_batch(self, n: int, n_streams: int) -> None:
        """llama.cpp's own batch, with numpy views on its arrays: filling it costs a few slices."""
        self._batch = api.lib.llama_batch_init(n, 0, 1)
        self._tokens, self._positions = (np.ctypeslib.as_array(field, (n,)) for field in (self._batch.token, self._batch.pos))
        self._logits = np.ctypeslib.as_array(self._batch.logits, (n,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        self._seq_ids = [self._batch.seq_id[i] for i in range(n)]
        self._rooms: list[Any] = [(ctypes.c_uint8 * 0)(), (ctypes.c_uint8 * 0)()]

    # --- decoding -------------------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> None:
        """One llama_decode. Rows of several streams: stream by stream, ascending without a gap, equally many each. OurBug when it fails."""
        n = len(rows)
        self._tokens[:n] = [row.token for row in rows]
        self._positions[:n] = [row.position for row in rows]
        self._logits[:n] = [row.wants_logits for row in rows]
        for seq_id, row in zip(self._seq_ids, rows, strict=False):
            seq_id[0] = row.stream
        self._batch.n_tokens = n
        status = api.lib.llama_decode(self.handle, self._batch)
        if status != _DECODED:
            reason = {_NO_ROOM: "no room in the KV cache", _ABORTED: "aborted"}.get(status, api.why(f"status {status}"))
            raise OurBug("internal", f"llama_decode of {n} rows failed: {reason}.")

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """(n_vocab,) of a row of the last decode; a view, good until the next one."""
        return np.ctypeslib.as_array(api.lib.llama_get_logits_ith(self.handle, row), (self.n_vocab,))

    def synchronize(self) -> None:
        api.lib.llama_synchronize(self.handle)

    def set_threads(self, n: int) -> None:
        api.lib.llama_set_n_threads(self.handle, n, n)

    def use_adapters(self, *adapters: tuple[Any, float]) -> None:
        """llama.cpp's own adapters, for every row of every decode from now on. llama.cpp reserves its graph anew: grouped mode only."""
        n = len(adapters)
        handles = (api.lib.llama_adapter_lora_p_ctypes * max(n, 1))(*(adapter for adapter, _ in adapters))
        scales = (ctypes.c_float * max(n, 1))(*(scale for _, scale in adapters))
        if api.lib.llama_set_adapters_lora(self.handle, handles, n, scales):
            raise OurBug("internal", f"llama.cpp would not use {n} adapters: {api.why('no reason given')}.")

    # --- KV of a stream -------------------------------------------------------------------------------------------

    def cut(self, stream: int, keep: int) -> bool:
        """Forget positions keep.. of a stream. False when this memory cannot be cut there.

        A recurrent memory cannot be; nor can one with sliding windows that came from elsewhere, further than one token back: an exported
        state holds what its own next token sees of them, and not what an earlier one would.
        """
        return bool(api.lib.llama_memory_seq_rm(self._memory, stream, keep, -1)) and self._sees_enough(stream, keep)

    def _sees_enough(self, stream: int, position: int) -> bool:
        """Whether all that a token at this position looks back on is there, in the layers with a window too."""
        if not self._model.window or not position:
            return True
        return int(api.lib.llama_memory_seq_pos_min(self._memory, stream)) <= max(0, position - self._model.window + 1)

    def copy(self, source: int, target: int) -> None:
        """The whole stream; what the target held is gone.

        Not by llama.cpp's seq_cp: between streams it copies the books at once and the contents at the next decode, so that an
        export or a swap before that one would move what the target held earlier.
        """
        self._place(target, *self._exported(source, 0))

    def exported(self, stream: int) -> memoryview:
        """The stream's state, exact, good until the next call. llama.cpp's format: of this build, model, context size and KV types."""
        state, n = self._exported(stream, 0)
        return memoryview(state).cast("B")[:n]

    def _exported(self, stream: int, room: int) -> tuple[Any, int]:
        """(buffer, bytes used) in one of two buffers of our own; fresh memory would cost more than the copy."""
        size = int(api.lib.llama_state_seq_get_size(self.handle, stream))
        if size > len(self._rooms[room]):
            self._rooms[room] = (ctypes.c_uint8 * (size + size // 4))()
        n = int(api.lib.llama_state_seq_get_data(self.handle, self._rooms[room], size, stream))
        if not n:
            raise OurBug("internal", f"The state of stream {stream} could not be exported: {api.why('no reason given')}.")
        return self._rooms[room], n

    def restore(self, stream: int, state: memoryview, n_tokens: int) -> bool:
        """False when llama.cpp does not take it, all of it and up to position n_tokens - 1; the stream is empty then."""
        address = np.frombuffer(state, np.uint8).ctypes.data  # the bytes are copied once, by llama.cpp
        source = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
        self.cut(stream, 0)
        taken = int(api.lib.llama_state_seq_set_data(self.handle, source, len(state), stream))
        if taken == len(state) and api.lib.llama_memory_seq_pos_max(self._memory, stream) == n_tokens - 1:
            return True
        self.cut(stream, 0)
        return False

    def swap(self, a: int, b: int, *, b_is_empty: bool) -> None:
        """Exchange what two streams hold."""
        of_a = self._exported(a, 0)
        of_b = None if b_is_empty else self._exported(b, 1)
        self._place(b, *of_a)
        self.cut(a, 0)
        if of_b:
            self._place(a, *of_b)

    def _place(self, stream: int, state: Any, n: int) -> None:
        self.cut(stream, 0)
        if not api.lib.llama_state_seq_set_data(self.handle, state, n, stream):
            raise OurBug("internal", f"Stream {stream} did not take the state of another: {api.why('no reason given')}.")

    def close(self) -> None:
        api.lib.llama_batch_free(self._batch)
        api.lib.llama_free(self.handle)
        self.handle = None
