"""What crosses the seam between scheduler and engine: orders one way, results the other. Data only, no behaviour.

The scheduler sees nothing else of the engine. In production these objects cross a pipe to the engine process (engine/pipe.py
turns them into msgpack and back); in tests they are handed over as they are.

Rules that always hold
- A *turn* is one reply of one NPC. Between `BeginTurn` and its end the engine holds its sampler, its text state, its slot, its
  last token. A turn ends when a `RowDone` carries `finish`, when `DropTurn` names it, or when `TurnFaulted` names it.
- A slot holds the KV of one sequence: tokens 0 .. n-1. It outlives turns; the scheduler keeps the list of tokens it holds.
- A *stash* is a copy of such a KV in the engine's host memory. It is exact, and gone with the engine.
- A turn may be *paused*: it then has no slot, and keeps its sampler, its text state and the last token it drew until it is resumed.
- KV that could not be brought (a stash that is not there, a memory that cannot be cut) is never a fault: BeginTurn and ResumeTurn find
  fewer tokens than they were promised, prefill the rest from `history`, and say so with TurnRefilled.
- The engine never runs a step it was not told to run, and answers each `RunStep` with exactly one `StepDone`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from personae.types import (
    AdapterKey,
    FinishReason,
    Limits,
    ModelCard,
    Piece,
    ReplyRules,
    SamplingParams,
    Slot,
    Stash,
    Token,
    TurnId,
    Voice,
)

# --- orders: imperative -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Read, check and convert a GGUF LoRA off the loop, then install it between steps. Answered by AdapterLoaded or AdapterRefused."""

    key: AdapterKey
    path: str


@dataclass(frozen=True, slots=True)
class FreeAdapter:
    """Give an adapter's memory back. The scheduler sends it only when no turn in flight uses the key; unknown keys are harmless."""

    key: AdapterKey


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Bind a turn to a slot with its voice, whose adapters are all resident, and make its sampler and text state.

    The slot is cut to `keep` tokens first.
    """

    turn: TurnId
    slot: Slot
    keep: int  # tokens of the slot's KV that the new prompt shares with it
    voice: Voice
    sampling: SamplingParams
    rules: ReplyRules
    limits: Limits
    # the tokens kept: penalties and DRY see the whole prompt, and what the memory could not keep after all is prefilled again
    history: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens of one turn, next in order. `last` asks for logits and draws the first token of the reply."""

    turn: TurnId
    tokens: tuple[Token, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class ExtendSlot:
    """Tokens that the next prompt will bring, appended to a slot where no turn is open, under the voice of its last one. No logits."""

    slot: Slot
    held: int  # tokens the slot holds before; if it holds another number, nothing is appended
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step: `decode` advances each named turn by one token in one llama_decode (mixed mode), then the chunks are prefilled.

    Last of all, when everything that somebody waits for is done, slots are extended.
    """

    decode: tuple[TurnId, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    extend: tuple[ExtendSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget a turn's sampler and text. Its slot keeps the KV it has. Unknown turns are harmless."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class PauseTurn:
    """Take a turn out of its slot, which keeps its KV; what of the last step's tokens is there was reported. Unknown turns are harmless."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ResumeTurn:
    """Put a paused turn into a slot, which is cut to `keep` tokens first. Unknown turns are harmless.

    What is missing of what it had said follows in chunks that draw nothing; then it is decoded as if nothing had been.
    """

    turn: TurnId
    slot: Slot
    keep: int
    history: tuple[Token, ...] = ()  # the tokens kept


@dataclass(frozen=True, slots=True)
class StashSlot:
    """Copy what a slot holds into host memory. The slot stays as it is. Answered by SlotStashed."""

    slot: Slot
    stash: Stash


@dataclass(frozen=True, slots=True)
class FetchStash:
    """Put a copy of a stash into a slot where no turn is open, in place of what is there. An unknown stash leaves the slot empty."""

    stash: Stash
    slot: Slot


@dataclass(frozen=True, slots=True)
class DropStash:
    """Give a stash's memory back. Unknown ones are harmless."""

    stash: Stash


@dataclass(frozen=True, slots=True)
class CopySlot:
    """The first `keep` tokens of `source` become what `target`, where no turn is open, holds. The source may be at work."""

    source: Slot
    target: Slot
    keep: int


@dataclass(frozen=True, slots=True)
class WriteKv:
    """Write the KV of a slot (`stash` None) or of a stash to a file, in one atomic replacement. Answered by KvWritten.

    `tokens`: what it holds, `voice`: under which it was made. They go into the file, so that whoever reads it knows.
    """

    path: str
    slot: Slot | None
    stash: Stash | None
    tokens: tuple[Token, ...]
    voice: Voice


@dataclass(frozen=True, slots=True)
class ReadKv:
    """Make a stash of a file that WriteKv wrote. Answered by KvRead."""

    path: str
    stash: Stash


@dataclass(frozen=True, slots=True)
class ClearSlot:
    """Forget the KV of a slot: its NPC is gone."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Quit:
    """End the engine process after the orders before it."""


Order = (
    LoadAdapter
    | FreeAdapter
    | BeginTurn
    | RunStep
    | DropTurn
    | PauseTurn
    | ResumeTurn
    | StashSlot
    | FetchStash
    | DropStash
    | CopySlot
    | WriteKv
    | ReadKv
    | ClearSlot
    | Quit
)

# --- results: past tense ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The model is loaded and the first order may be sent. `EngineWarm` follows when the first decode has been paid for."""

    card: ModelCard


@dataclass(frozen=True, slots=True)
class EngineWarm:
    ms: float


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine could not start, or found its own state broken; its process ends after this. Only an engine process sends it."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    key: AdapterKey
    bytes_resident: int
    rank: int  # the largest of its matrices
    load_ms: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterRefused:
    key: AdapterKey
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RowDone:
    """One turn has one more token. `pieces` is text that is decided: valid UTF-8, no held-back stop string, no think block."""

    turn: TurnId
    token: Token
    pieces: tuple[Piece, ...] = ()
    finish: FinishReason | None = None
    in_kv: bool = False  # whether `token` itself is in the slot's KV (it is not, until the next decode feeds it)


@dataclass(frozen=True, slots=True)
class TurnFaulted:
    """This turn cannot go on (bad grammar, sampler fault, slot full in mid-prefill); the others were not disturbed.

    What was reported to be in its slot is still there; what may be there besides is cut by the next BeginTurn.
    """

    turn: TurnId
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TurnRefilled:
    """BeginTurn or ResumeTurn found `n_tokens` fewer than it was promised, and has prefilled them there and then."""

    turn: TurnId
    n_tokens: int


@dataclass(frozen=True, slots=True)
class SlotStashed:
    """`n_bytes` 0: it could not be put aside, and there is no such stash."""

    stash: Stash
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class KvWritten:
    """`reason`: why nothing was written; "" when it was."""

    path: str
    n_tokens: int
    n_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KvRead:
    """What a file held, now a stash. `reason`: why there is none (another model, context or build, a damaged file); then it is empty."""

    path: str
    stash: Stash
    tokens: tuple[Token, ...] = ()
    voice: Voice = ()
    n_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one RunStep did. `prefilled` holds the turns whose chunks are now in KV, in order."""

    rows: tuple[RowDone, ...] = ()
    prefilled: tuple[tuple[TurnId, int], ...] = ()  # (turn, tokens of its chunk)
    faults: tuple[TurnFaulted, ...] = ()
    decode_ms: float = 0.0  # the rows: llama_decode and sampling
    prefill_ms: float = 0.0
    n_decodes: int = 0  # calls of llama_decode for the rows (1 in mixed mode)
    n_voices: int = 0  # different voices among the rows, "none" counted as one when present
    threads: int = 0  # on how many it ran
    extended: tuple[tuple[Slot, int], ...] = ()  # (slot, tokens appended): all that were ordered, or 0 where that was not possible
    extend_ms: float = 0.0
    moved_ms: float = 0.0  # since the step before: stashing, fetching, copying, cutting and refilling of slots


KvResult = SlotStashed | TurnRefilled | KvWritten | KvRead
Result = EngineReady | EngineWarm | EngineFailed | AdapterLoaded | AdapterRefused | StepDone | TurnFaulted | KvResult


@dataclass(slots=True)
class EngineCounters:
    """Running totals of what steps did. `stats` shows them."""

    decodes: int = 0
    rows: int = 0
    mixed_decodes: int = 0  # decodes whose rows had more than one voice
    prefill_tokens: int = 0
    idle_prefill_tokens: int = 0  # of slots extended while nobody was at work; not among prefill_tokens
    decode_ms: float = 0.0
    prefill_ms: float = 0.0
    idle_prefill_ms: float = 0.0
    moved_ms: float = 0.0
    threads: int = 0  # of the last step
    by_rows: dict[int, int] = field(default_factory=dict)  # rows in a decode -> how often
    by_ms: dict[int, int] = field(default_factory=dict)  # length of a step with what was moved before it, rounded up to 5 ms -> how often
