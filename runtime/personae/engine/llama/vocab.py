"""Text <-> tokens through llama.cpp's vocabulary of a model, with or without its weights."""

from __future__ import annotations

import ctypes
from functools import cached_property

from personae.engine.llama import api
from personae.engine.llama.model import Model
from personae.errors import AskedWrong
from personae.types import Token

_NO_TOKEN = -1  # LLAMA_TOKEN_NULL


class LlamaVocabulary:
    """Satisfies engine.backend.Vocabulary. Holds its model open; one that came with weights is the backend's to close."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._vocab = model.vocab
        self._pieces: dict[Token, bytes] = {}

    @classmethod
    def load(cls, path: str) -> LlamaVocabulary:
        """The vocabulary alone: no weights are read. Raises as `Model` does."""
        return cls(Model(path, vocab_only=True))

    @cached_property
    def n_vocab(self) -> int:
        return self._model.n_vocab

    @cached_property
    def chat_template(self) -> str:
        template = api.lib.llama_model_chat_template(self._model.handle, None)
        return template.decode("utf-8", "replace") if template else ""

    def tokenize(self, text: str, *, special: bool) -> list[Token]:
        raw = text.encode("utf-8", "replace")  # lone surrogates have no UTF-8
        room = len(raw) + 2
        tokens = (api.lib.llama_token * room)()
        n = api.lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, False, special)
        if n < 0:
            raise AskedWrong("text_too_long", f"A text of {len(raw)} bytes cannot be tokenized.", "Send less text at once.")
        return list(tokens[:n])

    def piece(self, token: Token) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: Token) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = api.lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = api.lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(n, 0)]

    def token_text(self, name: str) -> str:
        token = {"bos": api.lib.llama_vocab_bos, "eos": api.lib.llama_vocab_eos}[name](self._vocab)
        if token == _NO_TOKEN:
            return ""
        return str(api.lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))

    @cached_property
    def _ends(self) -> frozenset[Token]:
        return frozenset(token for token in range(self.n_vocab) if api.lib.llama_vocab_is_eog(self._vocab, token))

    def is_end(self, token: Token) -> bool:
        return token in self._ends

    @cached_property
    def adds_bos(self) -> bool:
        return bool(api.lib.llama_vocab_get_add_bos(self._vocab))
