"""Contents -> tokens, remembered. Decides what is kept and for how long; refuses to know what a text is for.

A prompt repeats nearly everything the last one said, so each text is tokenized once. Never with special tokens: what comes through here
was written by a player, a writer or a model.
"""

from __future__ import annotations

from collections import OrderedDict

from personae.prompt.parts import Tokenizer
from personae.types import Token

MAX_TEXTS = 8192
MAX_TOKENS = 500_000  # about 20 MB of Python integers at the worst


class ContentTokens:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[str, tuple[Token, ...]] = OrderedDict()
        self._n_tokens = 0

    def of(self, text: str) -> tuple[Token, ...]:
        """() for an empty text."""
        known = self._known.get(text)
        if known is None:
            return self._learn(text)
        self._known.move_to_end(text)
        return known

    def _learn(self, text: str) -> tuple[Token, ...]:
        tokens = tuple(self._tokenizer.tokenize(text, special=False)) if text else ()
        self._known[text] = tokens
        self._n_tokens += len(tokens)
        while len(self._known) > MAX_TEXTS or self._n_tokens > MAX_TOKENS:
            _, forgotten = self._known.popitem(last=False)
            self._n_tokens -= len(forgotten)
        return tokens
