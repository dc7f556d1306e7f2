"""How one turn draws its tokens: a chain of llama.cpp's samplers, with the vocabulary cut down before it where that changes nothing.

The order of the chain: grammar, logit bias, penalties, DRY, top-k, top-p, min-p, temperature, draw.

Most of the cost of a draw is walking 49,000 (or 262,000) candidates through that chain. Penalties lower the tokens they
look back on, so the k best of all are among the k + look-back best before them: we hand the chain those and leave out the rest.
A logit bias or a negative penalty may lift any token and a grammar may forbid any number of the best: then the chain sees them all.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from personae.engine.llama import api
from personae.engine.llama.model import Model
from personae.errors import AskedWrong, WorldFailed
from personae.types import SamplingParams, Token

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_BREAKERS = (b"\n", b":", b'"', b"*")  # where DRY starts over: the defaults of its author
_GROUP = 64  # logits of which only the largest is looked at first
_MAX_GROUPS = 4000  # opening parentheses of a grammar: llama.cpp's parser recurses, and 20,000 of them overflow its stack
_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: llama.cpp takes it for "draw one by chance"
_DRY_ROOM = 256  # tokens DRY may lower in one step that we make room for; it lowers one for each earlier repeat


class Candidates:
    """Room for the candidates of one draw, reused by all draws of a backend."""

    def __init__(self, n_vocab: int) -> None:
        self._all = np.zeros(n_vocab, _CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._array = api.lib.llama_token_data_array()

    def fill(self, logits: npt.NDArray[np.float32], most: int) -> Any:
        """At least the `most` likeliest tokens (0: all) as llama.cpp wants them, in order of token id."""
        best = _likeliest(logits, most)
        if best is None:
            entries = self._all
            entries["id"], entries["logit"] = self._ids, logits
        else:
            entries = self._all[: len(best)]
            entries["id"], entries["logit"] = best, logits[best]
        self._array.data = ctypes.cast(entries.ctypes.data, api.lib.llama_token_data_p)
        self._array.size, self._array.selected, self._array.sorted = len(entries), -1, False
        return self._array


def _likeliest(logits: npt.NDArray[np.float32], most: int) -> npt.NDArray[np.intp] | None:
    """Ids of a few more than the `most` likeliest tokens; None for all.

    The `most`-th largest of some groups' maxima is no larger than the `most`-th largest logit: what reaches it holds all we want.
    """
    n_groups = len(logits) // _GROUP
    if not 0 < most < n_groups:
        return None
    peaks = logits[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0)  # strided groups: numpy goes through them at full width
    return np.flatnonzero(logits >= np.partition(peaks, -most)[-most])


class LlamaSampler:
    """One turn's chain. `accept` tells the penalties of tokens that were not drawn here; the grammar never hears of those."""

    def __init__(self, model: Model, params: SamplingParams, candidates: Candidates) -> None:
        """AskedWrong `bad_grammar` when the grammar cannot be compiled."""
        self._candidates = candidates
        self._lib = api.lib
        self._chain: Any = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        self._looks_back: list[Any] = []
        self._most = 0
        try:
            self._build(model, params)
        except BaseException:
            self.close()
            raise

    def _build(self, model: Model, params: SamplingParams) -> None:
        if params.grammar is not None:
            self._add(_grammar(model, params.grammar))
        if params.logit_bias:
            self._add(_bias(model, params.logit_bias))
        reach = self._add_penalties(model, params)
        greedy = params.temperature <= 0
        if not _may_lift(params) and (greedy or params.top_k > 0):
            self._most = (1 if greedy else params.top_k) + reach
        if greedy:
            self._add(self._lib.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(self._lib.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1:
            self._add(self._lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            self._add(self._lib.llama_sampler_init_min_p(params.min_p, 1))
        self._add(self._lib.llama_sampler_init_temp(params.temperature))
        self._add(self._lib.llama_sampler_init_dist(_seed(params)))

    def _add_penalties(self, model: Model, params: SamplingParams) -> int:
        """Returns how many tokens they may lower."""
        reach = 0
        if params.repeat_last_n and (params.repeat_penalty != 1 or params.frequency_penalty or params.presence_penalty):
            last_n = params.repeat_last_n if params.repeat_last_n > 0 else model.n_ctx_train
            penalties = self._lib.llama_sampler_init_penalties(
                model.n_vocab, last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty
            )
            self._looks_back.append(penalties)
            reach += last_n
        if params.dry_multiplier > 0 and params.dry_last_n:
            breakers = (ctypes.c_char_p * len(_BREAKERS))(*_BREAKERS)
            last_n = params.dry_last_n if params.dry_last_n > 0 else model.n_ctx_train
            dry = self._lib.llama_sampler_init_dry(
                model.vocab, params.dry_multiplier, params.dry_base, params.dry_allowed_length, last_n, breakers, len(_BREAKERS)
            )
            self._looks_back.append(dry)
            reach += _DRY_ROOM if params.dry_allowed_length > 1 else last_n
        for sampler in self._looks_back:
            self._add(sampler)
        return reach

    def _add(self, sampler: Any) -> None:
        self._lib.llama_sampler_chain_add(self._chain, sampler)

    def accept(self, token: Token) -> None:
        for sampler in self._looks_back:
            self._lib.llama_sampler_accept(sampler, token)

    def draw(self, logits: npt.NDArray[np.float32]) -> Token:
        """The next token, accepted. AskedWrong `grammar_error` when the grammar leaves nothing; WorldFailed when logits are no numbers."""
        array = self._candidates.fill(logits, self._most)
        if not array.size:
            raise _nothing_to_draw(logits)
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        chosen = array.data[array.selected] if 0 <= array.selected < array.size else None
        if chosen is None or math.isnan(chosen.logit) or math.isinf(chosen.logit):
            raise _nothing_to_draw(logits)
        token = int(chosen.id)
        self._lib.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Frees the chain and all in it. A second call is harmless."""
        if self._chain is not None:
            self._lib.llama_sampler_free(self._chain)
        self._chain, self._looks_back = None, []


def _may_lift(params: SamplingParams) -> bool:
    """Whether a token may end up higher among the others than its logit says."""
    rewards = params.repeat_penalty < 1 or params.frequency_penalty < 0 or params.presence_penalty < 0
    return params.grammar is not None or bool(params.logit_bias) or rewards


def _seed(params: SamplingParams) -> int:
    seed = (params.seed or 0) & 0xFFFFFFFF
    return seed if seed != _RANDOM_SEED else 0


def _grammar(model: Model, text: str) -> Any:
    if not text:  # llama.cpp takes it for "no grammar"
        raise AskedWrong("bad_grammar", "The grammar is empty.", "Write GBNF with a rule `root`, or leave it out.")
    if text.count("(") > _MAX_GROUPS:
        raise AskedWrong("bad_grammar", f"The grammar has more than {_MAX_GROUPS} groups.", "Name its parts in rules of their own.")
    api.forget_errors()
    sampler = api.lib.llama_sampler_init_grammar(model.vocab, text.encode("utf-8", "replace"), b"root")
    if not sampler:
        raise AskedWrong(
            "bad_grammar", f"The grammar cannot be compiled: {api.why('it has no rule root')}.", "Write GBNF with a rule `root`."
        )
    return sampler


def _bias(model: Model, bias: tuple[tuple[Token, float], ...]) -> Any:
    entries = (api.lib.llama_logit_bias * len(bias))(*bias)
    return api.lib.llama_sampler_init_logit_bias(model.n_vocab, len(bias), entries)


def _nothing_to_draw(logits: npt.NDArray[np.float32]) -> AskedWrong | WorldFailed:
    if np.isfinite(logits).all():
        return AskedWrong("grammar_error", "The grammar allows no token here.", "Let every rule have a way to its end.")
    return WorldFailed("engine_failed", "The model's logits are not numbers.", "The adapter or the model file is damaged; check both.")
