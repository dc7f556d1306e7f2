"""A tokenizer whose every decision can be read: a token per UTF-8 byte, and one per control word, but only where those are asked for."""

from __future__ import annotations

import re

CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)
FIRST_CONTROL = 256
_SPLIT = re.compile("(" + "|".join(map(re.escape, CONTROL)) + ")")


class ByteTokenizer:
    def __init__(self, template: str = "", *, bos: str = "<s>", eos: str = "</s>", adds_bos: bool = False) -> None:
        self.chat_template = template
        self.adds_bos = adds_bos
        self.n_vocab = FIRST_CONTROL + len(CONTROL)
        self.n_calls = 0
        self._texts = {"bos": bos, "eos": eos}

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        self.n_calls += 1
        if not special:
            return list(text.encode())
        return [token for part in _SPLIT.split(text) for token in self._of_part(part)]

    def token_text(self, name: str) -> str:
        return self._texts[name]

    def show(self, tokens: tuple[int, ...]) -> str:
        """Control tokens in braces, so that a typed look-alike is told from the real one."""
        return b"".join(bytes([t]) if t < FIRST_CONTROL else b"{" + CONTROL[t - FIRST_CONTROL].encode() + b"}" for t in tokens).decode()

    @staticmethod
    def _of_part(part: str) -> list[int]:
        return [FIRST_CONTROL + CONTROL.index(part)] if part in CONTROL else list(part.encode())
