"""A deterministic engine that honours the whole `Backend` contract without a model: `--model fake`, and most tests, run on it.

What it says is a function of the voice and the tokens in the slot alone: `[3fa2b1] I heard: <the last user message>.`, where 3fa2b1 is
the head of the adapter's key, ` x0.5` behind it where the scale is not 1. A voice of several adapters is `[3fa2b1+9c01de x0.5]`, one of
none `[base]`. One byte is one token, so characters are torn over tokens as often as they can be. Sampling settings and seeds change
nothing.

It holds its callers to the contract: whatever is out of range or out of order, and above all KV that was made under another voice than
the one bound now, is OurBug. A test that bleeds one voice into another does not pass here.

Trouble to order, by words in the last user message
    fake:say:<text>   says <text> and nothing else (a typed \\n becomes a newline)
    fake:unicode      characters of one to four bytes
    fake:silent       ends at once, without text
    fake:long         counts and never ends by itself
    fake:loop         the same sentence for ever
    fake:fault        three tokens, then the sampler faults (`grammar_error`)
    fake:crash        three tokens, then the process is gone with exit code 70, as after an abort in native code
    fake:bug          three tokens, then OurBug
The words behind `fake:say:` are not looked at for more trouble. A grammar without a rule `root ::=` is refused with `bad_grammar`.

Any file is an adapter, under whatever key it is asked for, but for those that begin with
    BAD               refused
    KILL-LOAD         the process is gone with exit code 70 when it is installed
    KILL-STEP         it is gone at the first decode under a voice with it, a prefill or a row
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from personae.engine.backend import DecodeReport, PreparedAdapter, Sampler
from personae.engine.settings import EngineSettings
from personae.errors import AskedWrong, OurBug
from personae.types import MAX_VOICE_PARTS, AdapterKey, AdapterUse, MixMode, ModelCard, SamplingParams, Slot, Token, Voice

BOS, IM_START, IM_END = 256, 257, 258
_CONTROL = {"<bos>": BOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_CONTROL_TEXT = re.compile("(" + "|".join(map(re.escape, _CONTROL)) + ")")
_N_VOCAB = 256 + len(_CONTROL)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TOKENS_BEFORE_TROUBLE = 3
_KILLS_LOAD, _KILLS_STEP = b"KILL-LOAD", b"KILL-STEP"  # what such an adapter file begins with
_KV_TOKEN = struct.Struct("<q")  # a token in an exported state
_CRASH_EXIT_CODE = 70


class FakeVocabulary:
    """Tokens 0..255 are bytes, 256.. control tokens. `tokenize(a) + tokenize(b) == tokenize(a + b)`."""

    n_vocab = _N_VOCAB
    chat_template = CHAT_TEMPLATE
    adds_bos = False

    def tokenize(self, text: str, *, special: bool) -> list[Token]:
        if not special:
            return list(text.encode())
        tokens: list[Token] = []
        for part in _CONTROL_TEXT.split(text):
            tokens += [_CONTROL[part]] if part in _CONTROL else part.encode()
        return tokens

    def piece(self, token: Token) -> bytes:
        _require(0 <= token < _N_VOCAB, f"There is no token {token}.")
        return bytes((token,)) if token < 256 else b""

    def token_text(self, name: str) -> str:
        return {"bos": "<bos>", "eos": "<|im_end|>"}.get(name, "")

    def is_end(self, token: Token) -> bool:
        return token == IM_END


@dataclass(slots=True)
class FakeSampler:
    """Draws nothing by itself; remembers what it accepted, for tests to look at."""

    params: SamplingParams
    accepted: list[Token] = field(default_factory=list)
    closed: bool = False

    def accept(self, token: Token) -> None:
        _require(not self.closed, "A closed sampler was used.")
        self.accepted.append(token)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True)
class FakeAdapter:
    bytes_resident: int
    rank: int = 0
    warnings: tuple[str, ...] = ()
    kills: bytes = b""  # when it ends the process


@dataclass(slots=True)
class _Sequence:
    """What one slot holds."""

    tokens: list[Token] = field(default_factory=list)
    made_under: Voice = ()  # the voice of `tokens`; meaningless while there are none
    bound: Voice = ()
    has_logits: bool = False  # of the last token


class FakeBackend:
    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._sequences = [_Sequence() for _ in range(settings.n_slots)]
        self._adapters: dict[AdapterKey, PreparedAdapter] = {}
        self._n_decodes = 0
        self._n_prefilled = 0
        self._closed = False
        self.vocabulary = FakeVocabulary()
        self.card = _card(settings)

    # --- adapters -------------------------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return self.card.threads

    def prepare_adapter(self, key: AdapterKey, path: str) -> PreparedAdapter:
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            raise AskedWrong("adapter_missing", f"Adapter '{path}' is not there.") from None
        if content.startswith(b"BAD"):
            raise AskedWrong("adapter_unreadable", f"Adapter '{path}' begins with BAD.", "The fake engine takes any other file.")
        return FakeAdapter(len(content), kills=content[: len(_KILLS_LOAD)])

    def install_adapter(self, key: AdapterKey, prepared: PreparedAdapter) -> None:
        _require(key not in self._adapters, f"Adapter {key} is installed already.")
        limit = self._settings.max_adapters
        if len(self._adapters) >= limit:
            raise AskedWrong("adapter_limit", f"No more than {limit} adapters fit.", "Raise the limit, or use fewer voices at once.")
        self._adapters[key] = prepared
        self._kill_if(prepared, _KILLS_LOAD)

    def free_adapter(self, key: AdapterKey) -> None:
        _require(key in self._adapters, f"Adapter {key} is not installed.")
        del self._adapters[key]

    # --- slots ----------------------------------------------------------------------------------------------------

    def bind(self, slot: Slot, voice: Voice) -> None:
        _require(len(voice) <= MAX_VOICE_PARTS, f"Slot {slot} was bound to {len(voice)} adapters at once.")
        _require(self._has_all_of(voice), f"Slot {slot} was bound to an adapter that is not installed.")
        self._sequence(slot).bound = voice

    def cut(self, slot: Slot, keep: int) -> int:
        sequence = self._sequence(slot)
        _require(0 <= keep <= len(sequence.tokens), f"Slot {slot} holds {len(sequence.tokens)} tokens, not {keep}.")
        if keep < len(sequence.tokens) and not self.card.can_cut:
            keep = 0
        del sequence.tokens[keep:]
        sequence.has_logits = False
        return keep

    def prefill(self, slot: Slot, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        _require(0 < len(tokens) <= self._settings.prefill_chunk, f"A chunk of {len(tokens)} tokens was to be prefilled.")
        sequence = self._sequence(slot)
        if len(sequence.tokens) + len(tokens) > self._settings.n_ctx:
            raise AskedWrong("context_full", f"Slot {slot} has no room for {len(tokens)} more tokens.")
        self._append(slot, tokens)
        sequence.has_logits = wants_logits
        self._n_prefilled += len(tokens)
        self._take_time()

    def prefill_alike(self, chunks: Sequence[tuple[Slot, Sequence[Token]]], *, wants_logits: bool) -> None:
        _require(len({len(tokens) for _, tokens in chunks}) == 1, "Chunks that are prefilled together have one length.")
        _require(len({slot for slot, _ in chunks}) == len(chunks), "A slot has one chunk in a decode.")
        for slot, tokens in chunks:
            if self.n_tokens(slot) + len(tokens) > self._settings.n_ctx:
                raise AskedWrong("context_full", f"Slot {slot} has no room for {len(tokens)} more tokens.")
        for slot, tokens in chunks:
            self.prefill(slot, tokens, wants_logits=wants_logits)

    def decode(self, rows: Sequence[tuple[Slot, Token]]) -> DecodeReport:
        slots = [slot for slot, _ in rows]
        _require(bool(rows) and slots == sorted(set(slots)), f"Rows must ascend by slot, one each: {slots}.")
        for slot, token in rows:
            _require(self.n_tokens(slot) < self._settings.n_ctx, f"Slot {slot} is full.")
            self._append(slot, [token])
            self._sequence(slot).has_logits = True
        n_voices = len({self._sequence(slot).bound for slot in slots})
        n_decodes = n_voices if self.card.mode is MixMode.GROUPED else 1
        self._n_decodes += n_decodes
        self._take_time()
        return DecodeReport(n_decodes, n_voices // n_decodes)

    def n_tokens(self, slot: Slot) -> int:
        return len(self._sequence(slot).tokens)

    def tokens(self, slot: Slot) -> tuple[Token, ...]:
        """What the slot holds. Not of the contract: for tests."""
        return tuple(self._sequence(slot).tokens)

    def copy(self, source: Slot, target: Slot) -> None:
        origin, copied = self._sequence(source), self._sequence(target)
        copied.tokens, copied.made_under, copied.has_logits = list(origin.tokens), origin.made_under, False

    def export(self, slot: Slot) -> bytes:
        sequence = self._sequence(slot)
        head = json.dumps([(use.key, use.scale) for use in sequence.made_under]).encode()
        return b"\n".join((head, b"".join(map(_KV_TOKEN.pack, sequence.tokens))))

    def seal(self, *parts: bytes) -> bytes:
        home = f"fake 1 {self.card.content_hash} {self.card.n_ctx} {list(map(len, parts))}"
        return hashlib.blake2b(b"".join(parts), digest_size=16, key=hashlib.sha256(home.encode()).digest()).digest()

    def restore(self, slot: Slot, blob: bytes) -> int:
        sequence = self._sequence(slot)
        sequence.tokens, sequence.has_logits = [], False
        head, _newline, packed = blob.partition(b"\n")
        try:
            tokens = [token for (token,) in _KV_TOKEN.iter_unpack(packed)]
            made_under = tuple(AdapterUse(AdapterKey(key), scale) for key, scale in json.loads(head))
        except (ValueError, TypeError, LookupError, struct.error):
            return 0
        if len(tokens) <= self._settings.n_ctx:
            sequence.tokens, sequence.made_under = tokens, made_under
        return len(sequence.tokens)

    # --- drawing --------------------------------------------------------------------------------------------------

    def new_sampler(self, params: SamplingParams) -> Sampler:
        if params.grammar is not None and not re.search(r"^\s*root\s*::=", params.grammar, re.MULTILINE):
            raise AskedWrong("bad_grammar", "The grammar has no rule `root`.", "Write GBNF with a rule `root ::= ...`.")
        return FakeSampler(params)

    def sample(self, slot: Slot, sampler: Sampler) -> Token:
        sequence = self._sequence(slot)
        _require(sequence.has_logits, f"Slot {slot} has no logits to draw from.")
        token = _next_token(_name_of(sequence.bound), sequence.tokens)
        sampler.accept(token)
        return token

    # --- the rest -------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        self._take_time()

    def statistics(self) -> dict[str, object]:
        return {
            "decodes": self._n_decodes,
            "prefilled": self._n_prefilled,
            "adapters": len(self._adapters),
            "adapter_bytes": sum(adapter.bytes_resident for adapter in self._adapters.values()),
        }

    def close(self) -> None:
        self._closed = True

    def _sequence(self, slot: Slot) -> _Sequence:
        _require(not self._closed, "The backend is closed.")
        _require(0 <= slot < len(self._sequences), f"There is no slot {slot}.")
        return self._sequences[slot]

    def _append(self, slot: Slot, tokens: Sequence[Token]) -> None:
        sequence = self._sequence(slot)
        bound = sequence.bound
        _require(self._has_all_of(bound), f"Slot {slot} is bound to an adapter that was freed.")
        _require(all(0 <= token < self.card.n_vocab for token in tokens), f"Slot {slot} was given tokens that do not exist.")
        _require(not sequence.tokens or sequence.made_under == bound, f"Slot {slot} holds KV made under another voice.")
        for use in bound:
            self._kill_if(self._adapters[use.key], _KILLS_STEP)
        sequence.made_under = bound
        sequence.tokens += tokens

    def _has_all_of(self, voice: Voice) -> bool:
        return all(use.key in self._adapters for use in voice)

    def _kill_if(self, adapter: PreparedAdapter, when: bytes) -> None:
        if isinstance(adapter, FakeAdapter) and adapter.kills == when:
            os._exit(_CRASH_EXIT_CODE)

    def _take_time(self) -> None:
        if self._settings.fake_step_ms:
            time.sleep(self._settings.fake_step_ms / 1e3)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise OurBug("internal", otherwise)


def _card(settings: EngineSettings) -> ModelCard:
    grouped = settings.mode == MixMode.GROUPED
    return ModelCard(
        name="fake",
        architecture="fake",
        content_hash=hashlib.sha256(b"personae fake model, version 1").hexdigest(),
        n_params=0,
        n_vocab=_N_VOCAB,
        n_ctx=settings.n_ctx,
        n_slots=settings.n_slots,
        mode=MixMode.GROUPED if grouped else MixMode.MIXED,
        mode_reason="grouped mode was asked for" if grouped else "",
        threads=settings.threads or 1,
        can_cut=settings.fake_can_cut,
        kv_token_bytes=_KV_TOKEN.size,
    )


# --- what it says -------------------------------------------------------------------------------------------------


def _name_of(voice: Voice) -> str:
    return "+".join(use.key[:6] + (f" x{use.scale:g}" if use.scale != 1 else "") for use in voice) or "base"


def _next_token(voice: str, tokens: Sequence[Token]) -> Token:
    heard, n_said = _overheard(tokens)
    trouble = re.search(r"fake:(say:|\w+)", heard)
    word = trouble[1] if trouble else ""
    if n_said >= _TOKENS_BEFORE_TROUBLE:
        _make_trouble(word)
    script = _script(voice, heard, word, n_said)
    return script[n_said] if n_said < len(script) else IM_END


def _overheard(tokens: Sequence[Token]) -> tuple[str, int]:
    """(the last user message, how many tokens of the reply have been said)

    In ChatML the reply is what follows the last `<|im_start|>assistant` and its newline. A prompt without scaffold counts as heard up
    to its last newline; the reply to it must not hold one.
    """
    starts = [at for at, token in enumerate(tokens) if token == IM_START]
    if not starts:
        head, _newline, said = _bytes(tokens).rpartition(b"\n")
        return head.decode(errors="replace").strip(), len(said)
    n_said = max(0, len(tokens) - starts[-1] - 1 - len(b"assistant\n"))
    messages = (_bytes(tokens[at + 1 : until]) for at, until in zip(starts[-2::-1], starts[:0:-1], strict=True))
    user = next((message for message in messages if message.startswith(b"user\n")), b"user\n")
    return user[len(b"user\n") :].decode(errors="replace").strip(), n_said


def _bytes(tokens: Sequence[Token]) -> bytes:
    return bytes(token for token in tokens if token < 256)


def _make_trouble(word: str) -> None:
    if word == "crash":
        os._exit(_CRASH_EXIT_CODE)
    if word == "bug":
        raise OurBug("internal", "The fake engine was told to have a bug.")
    if word == "fault":
        raise AskedWrong("grammar_error", "The fake sampler was told to fault.")


def _script(voice: str, heard: str, word: str, n_said: int) -> bytes:
    """The whole reply, or of an endless one at least n_said + 1 bytes."""
    if word == "say:":
        return heard.partition("fake:say:")[2].replace("\\n", "\n").encode()
    if word == "silent":
        return b""
    if word == "unicode":
        return f"[{voice}] Grüße, 旅人! Ünïcödé ‘…’ 🐉🧙‍♀️ é.".encode()
    if word == "long":
        return (f"[{voice}] " + " ".join(map(str, range(1, n_said + 2)))).encode()
    if word == "loop":
        return (f"[{voice}]" + " I have told you before that the bridge is out." * (n_said // 40 + 1)).encode()
    return f"[{voice}] I heard: {heard.rstrip('.!?')}.".encode()
