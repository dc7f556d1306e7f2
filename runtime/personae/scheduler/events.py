"""What has happened, in the past tense: the only way anything reaches the scheduler.

Time arrives here too, in milliseconds of one steady clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from personae.engine.batch import AdapterLoaded, AdapterRefused, KvResult, StepDone, TurnFaulted
from personae.types import (
    NO_DEADLINES,
    AdapterKey,
    AdapterSource,
    Deadlines,
    FinishReason,
    Limits,
    MixMode,
    NpcId,
    Priority,
    ReplyRules,
    SamplingParams,
    Token,
    TurnId,
    Voice,
)


@dataclass(frozen=True, slots=True)
class TurnAsked:
    """An NPC is to answer. `prompt` is the whole rendered prompt; what the slot already holds of it is found by comparing tokens.

    `tail`: what will follow the reply in the NPC's next prompt, () when nobody knows. It is prefilled when nobody waits for anything; a
    wrong guess is cut when the next turn begins.
    """

    at_ms: float
    turn: TurnId
    npc: NpcId
    prompt: tuple[Token, ...]
    voice: Voice
    sources: tuple[AdapterSource, ...]  # of each adapter of the voice, in its order
    sampling: SamplingParams
    rules: ReplyRules
    limits: Limits
    priority: Priority = Priority.PLAYER
    tail: tuple[Token, ...] = ()
    deadlines: Deadlines = NO_DEADLINES
    draws: bool = True  # False: prefill the prompt and end with WARM; the NPC is prepared, nothing is said


@dataclass(frozen=True, slots=True)
class TurnCancelled:
    at_ms: float
    turn: TurnId
    finish: FinishReason = FinishReason.CANCELLED  # or INTERRUPTED


@dataclass(frozen=True, slots=True)
class NpcGone:
    """The NPC was despawned: its turn ends, its slot is free."""

    at_ms: float
    npc: NpcId


@dataclass(frozen=True, slots=True)
class AdapterRetired:
    """No pack names this adapter any more: free it when nobody speaks with it."""

    at_ms: float
    key: AdapterKey


@dataclass(frozen=True, slots=True)
class StepReported:
    at_ms: float
    step: StepDone


@dataclass(frozen=True, slots=True)
class FaultReported:
    """A turn that the engine gave up outside a step (its grammar did not compile at BeginTurn). Faults of a step arrive in its StepDone."""

    at_ms: float
    fault: TurnFaulted


@dataclass(frozen=True, slots=True)
class AdapterReported:
    at_ms: float
    result: AdapterLoaded | AdapterRefused


@dataclass(frozen=True, slots=True)
class KvReported:
    """What became of a slot's KV that was moved, written or read."""

    at_ms: float
    result: KvResult


@dataclass(frozen=True, slots=True)
class KvSaveAsked:
    """Write what is held of an NPC's KV to a file. Answered by one KvSaved."""

    at_ms: float
    npc: NpcId
    path: str


@dataclass(frozen=True, slots=True)
class KvLoadAsked:
    """Read an NPC's KV from a file and keep it until its next turn. Answered by one KvLoaded."""

    at_ms: float
    npc: NpcId
    path: str


@dataclass(frozen=True, slots=True)
class EngineStarted:
    at_ms: float
    n_slots: int
    n_ctx: int  # tokens a slot can hold
    can_cut: bool = True  # as in ModelCard
    mode: MixMode = MixMode.MIXED
    kv_token_bytes: int = 0  # as in ModelCard
    can_cut_moved: bool = True  # as in ModelCard


@dataclass(frozen=True, slots=True)
class EngineGone:
    """The engine process died. Its KV and adapters went with it."""

    at_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; deadlines may be due."""

    at_ms: float


Event = (
    TurnAsked
    | TurnCancelled
    | NpcGone
    | AdapterRetired
    | StepReported
    | FaultReported
    | AdapterReported
    | KvReported
    | KvSaveAsked
    | KvLoadAsked
    | EngineStarted
    | EngineGone
    | Tick
)
