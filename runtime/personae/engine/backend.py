"""The one real seam: what an engine must be able to do. engine/llama/ does it for real, engine/fake.py for tests.

A backend owns model, KV slots, samplers and adapters, and is used from one thread, the engine loop's. It knows no turns, clients
or time. Everything it is asked is in range and in order, or it raises `OurBug`; what the world does to it is `WorldFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from personae.types import AdapterKey, ModelCard, SamplingParams, Slot, Token, Voice


class Vocabulary(Protocol):
    """Text <-> tokens of one model. Cheap to load: no weights."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def chat_template(self) -> str:
        """The model's own jinja2 chat template; "" when it has none."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[Token]:
        """`special`: parse control tokens. True for scaffold alone, never for what a person or a model wrote. Never adds BOS."""
        ...

    def piece(self, token: Token) -> bytes:
        """The bytes a token stands for, as shown to a reader; b"" for control tokens. May be part of a character."""
        ...

    def token_text(self, name: str) -> str:
        """The text of `bos` or `eos` as the template wants it; "" when the model has none."""
        ...

    def is_end(self, token: Token) -> bool:
        """Whether this is any of the model's end-of-generation tokens."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt must start with BOS when the rendered template does not bring it."""
        ...


class Sampler(Protocol):
    """One turn's own state: random numbers, penalties, grammar."""

    def accept(self, token: Token) -> None:
        """Let the penalties know a token that was not drawn here (the prompt)."""
        ...

    def close(self) -> None: ...


class PreparedAdapter(Protocol):
    """An adapter read, checked and converted, ready to be installed in well under a step."""

    @property
    def bytes_resident(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """What a call of `decode` did below: how many llama_decode calls, and how many different voices the fullest one held."""

    n_decodes: int
    n_voices: int


class Backend(Protocol):
    @property
    def card(self) -> ModelCard: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def threads(self) -> int:
        """On how many the last decode ran."""
        ...

    def prepare_adapter(self, key: AdapterKey, path: str) -> PreparedAdapter:
        """Read and check a file. The only method that may run on another thread, beside a decode. AskedWrong says what is wrong with it."""
        ...

    def install_adapter(self, key: AdapterKey, prepared: PreparedAdapter) -> None:
        """AskedWrong `adapter_limit` when no more fit; nothing that was there is lost."""
        ...

    def free_adapter(self, key: AdapterKey) -> None: ...

    def bind(self, slot: Slot, voice: Voice) -> None:
        """The voice under which the slot's next tokens are decoded. The caller has cut the slot where the voice changed."""
        ...

    def cut(self, slot: Slot, keep: int) -> int:
        """Forget tokens keep.. of the slot; returns how many are left (fewer than asked where the memory cannot be cut there)."""
        ...

    def prefill(self, slot: Slot, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        """Append tokens to the slot in one decode of its own. AskedWrong `context_full` when they do not fit, slot unchanged."""
        ...

    def prefill_alike(self, chunks: Sequence[tuple[Slot, Sequence[Token]]], *, wants_logits: bool) -> None:
        """As `prefill`, for chunks of equal length of several slots, in as few decodes as can be. On AskedWrong all slots are unchanged."""
        ...

    def decode(self, rows: Sequence[tuple[Slot, Token]]) -> DecodeReport:
        """Append one token to each slot, all in as few decodes as the mode allows; logits of each are then ready to be sampled."""
        ...

    def new_sampler(self, params: SamplingParams) -> Sampler:
        """AskedWrong `bad_grammar` when params.grammar cannot be compiled."""
        ...

    def sample(self, slot: Slot, sampler: Sampler) -> Token:
        """Draw from the logits of the slot's last decoded token, and let the sampler accept it.

        AskedWrong `grammar_error` when nothing can be drawn.
        """
        ...

    def n_tokens(self, slot: Slot) -> int: ...

    def copy(self, source: Slot, target: Slot) -> None:
        """All that `source` holds, in place of what `target` holds. What of it is not wanted is cut."""
        ...

    def export(self, slot: Slot) -> bytes:
        """The slot's KV, exact, for `restore` in this engine, or in another where `seal` gives the same."""
        ...

    def seal(self, *parts: bytes) -> bytes:
        """16 bytes that only these very parts give, and only in engines of the same model, context size and build. Any thread may ask."""
        ...

    def restore(self, slot: Slot, blob: bytes) -> int:
        """Put an exported state back in place of what is there; returns the tokens it holds, 0 when it cannot be taken.

        Whether a blob from outside is this engine's is for the caller to find out, by its seal.
        """
        ...

    def warm_up(self) -> None:
        """Pay for the first decode before anybody waits for it."""
        ...

    def statistics(self) -> dict[str, object]: ...

    def close(self) -> None: ...
