"""What is to be done, in the imperative: all that the scheduler ever answers.

Orders go to the engine as they are; the rest is for the service, which tells clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from personae.engine.batch import Order
from personae.types import AdapterKey, FinishReason, NpcId, Piece, Token, TurnId, Usage


@dataclass(frozen=True, slots=True)
class Command:
    """Send this order to the engine."""

    order: Order


@dataclass(frozen=True, slots=True)
class Speak:
    """Decided text of a turn. `first` marks the turn's first token, whether or not it has text yet."""

    turn: TurnId
    pieces: tuple[Piece, ...]
    first: bool = False


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The turn's one terminal message: it ended as turns do. `reply` is what the model drew, end token left out."""

    turn: TurnId
    finish: FinishReason
    usage: Usage
    reply: tuple[Token, ...]
    queued_ms: float  # asked -> first prefill
    ttft_ms: float  # asked -> first token; -1 when there was none
    total_ms: float
    n_pauses: int = 0  # how often it gave its slot to somebody of a higher class
    paused_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FailTurn:
    """The turn's one terminal message: it could not be done."""

    turn: TurnId
    code: str
    message: str
    hint: str = ""
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """An adapter has killed the engine twice: turns that want it fail with `adapter_set_aside` from now on."""

    key: AdapterKey
    path: str


@dataclass(frozen=True, slots=True)
class KvSaved:
    """`reason`: why nothing was written ("nothing is held of it"); "" when it was."""

    npc: NpcId
    path: str
    n_tokens: int
    n_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KvLoaded:
    """`n_tokens` are at hand for the NPC's next turn; how many of them it can use, its usage tells. `reason`: why there are none."""

    npc: NpcId
    path: str
    n_tokens: int
    reason: str = ""


Action = Command | Speak | EndTurn | FailTurn | SetAside | KvSaved | KvLoaded
