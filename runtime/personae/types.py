"""The words every floor shares: ids, sampling settings, why a turn ended, what it cost. Frozen, slotted; no behaviour but `voice_of`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

NpcId = NewType("NpcId", str)
TurnId = NewType("TurnId", int)  # unique in one run of the service, never reused
Slot = NewType("Slot", int)  # 0 .. n_slots-1: a place for one sequence's KV
Stash = NewType("Stash", int)  # a sequence's KV in the engine's host memory; named by the scheduler, never reused in one life of an engine
Token = int
AdapterKey = NewType("AdapterKey", str)  # SHA-256 of the adapter file's content, hex; never a name or a path


class FinishReason(StrEnum):
    """Why a turn ended. The values are part of the wire and never change their meaning."""

    END = "end"  # the model ended its reply itself
    STOP = "stop"  # a stop string of the request or of the pack
    SPEAKER = "speaker"  # it began to speak for another participant; cut before that cue
    REPETITION = "repetition"  # it went round in circles
    LENGTH = "length"  # max_tokens
    TIME = "time"  # max_seconds
    CONTEXT = "context"  # the slot's context is full
    CANCELLED = "cancelled"  # the client asked, or its connection is gone
    INTERRUPTED = "interrupted"  # somebody spoke to the NPC in the middle of it
    DEADLINE = "deadline"  # a deadline of the request passed: the pack's fallback line was spoken, where it has one
    WARM = "warm"  # there was nothing to say: the NPC was prepared for its next turn


class Priority(StrEnum):
    """Who goes first when a step has not room for all."""

    PLAYER = "player"
    SCENE = "scene"
    AMBIENT = "ambient"


class KvSource(StrEnum):
    """Where the KV came from that a turn did not have to compute. The values are part of the wire."""

    NONE = "none"
    SLOT = "slot"  # the NPC's own slot, as it left it
    HOST = "host"  # its own, put aside in host memory meanwhile
    COPY = "copy"  # another sequence that begins with the same tokens under the same adapter
    SAVED = "saved"  # a file beside a save


class MixMode(StrEnum):
    """How rows with different adapters are decoded."""

    MIXED = "mixed"  # all rows in one llama_decode
    GROUPED = "grouped"  # one llama_decode for each adapter, in rotation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of one turn is drawn. A value that switches its stage off is named beside it."""

    temperature: float = 0.8  # 0: greedy
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    repeat_penalty: float = 1.0  # 1: off
    repeat_last_n: int = 64  # tokens looked back by the penalties; 0: off
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = -1  # -1: the whole context
    seed: int | None = None  # None: drawn by the service, reported in `done`
    logit_bias: tuple[tuple[Token, float], ...] = ()
    grammar: str | None = None  # GBNF with root rule `root`


@dataclass(frozen=True, slots=True)
class Limits:
    """What one turn may use at the most."""

    max_tokens: int = 160
    max_seconds: float = 60.0
    max_kv: int = 0  # tokens of prompt and reply together; 0: all that a slot holds


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What was promised to whoever waits, in ms from the request; None: nothing. Passing one is a miss, passing `Limits` is an end."""

    first_ms: float | None = None  # until the first token
    end_ms: float | None = None


NO_DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What ends a reply apart from the model itself. Strings are matched in the visible text, across tokens."""

    stop: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # names of other participants: a line that starts with "Name:" is cut


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """One adapter at work. `scale` multiplies alpha / rank of the file."""

    key: AdapterKey
    scale: float = 1.0


Voice = tuple[AdapterUse, ...]
"""The adapters under which one sequence is computed, their effects added up. () is the base model alone.

Canonical, so that equal voices are equal values: in order of keys, each key once (voice_of makes one).
"""

MAX_VOICE_PARTS = 4


def voice_of(uses: Iterable[AdapterUse]) -> Voice:
    """The voice that these adapters add up to: one that is named twice counts with both scales."""
    scales: dict[AdapterKey, float] = {}
    for use in uses:
        scales[use.key] = scales.get(use.key, 0.0) + use.scale
    return tuple(AdapterUse(key, scales[key]) for key in sorted(scales))


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Where an adapter comes from when it is not in memory."""

    key: AdapterKey
    path: str  # of a GGUF file with that content; the engine finds out if it is another by now
    n_bytes: int = 0  # about what it will take in memory, from the file's header; the engine reports the truth


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. prompt = reused + prefilled."""

    prompt: int = 0
    reused: int = 0  # found in the slot's KV
    prefilled: int = 0
    reply: int = 0
    source: KvSource = KvSource.NONE  # of what was reused


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of visible text of one kind. Pieces joined are the reply, byte for byte."""

    text: str
    kind: str = "speech"  # "speech" or "narration" (what stands between asterisks, asterisks included)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the rest of the service knows of the loaded base model, whichever engine holds it."""

    name: str  # file name without folder
    architecture: str  # GGUF general.architecture
    content_hash: str  # SHA-256 of the file, hex
    n_params: int
    n_vocab: int
    n_ctx: int  # tokens of one slot
    n_slots: int
    mode: MixMode
    mode_reason: str = ""  # why it is grouped; empty when mixed
    threads: int = 1
    can_cut: bool = True  # the memory can forget a tail of a sequence without forgetting its head
    can_cut_moved: bool = True  # also of one that was stashed or copied; False where only part of it comes along (sliding windows)
    kv_token_bytes: int = 0  # of one token's KV when put into host memory; 0: not known before it is measured
    details: dict[str, str] = field(default_factory=dict)  # for people: build, kernels, quantization
