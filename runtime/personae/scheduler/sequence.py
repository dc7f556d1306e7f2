"""One turn on its way from asked to ended, as counters. Decides nothing but what its own numbers say; knows no slot table, queue or clock.

There are no phases. Where a turn stands follows from what it has: no `place`: it waits; prompt left: it is being prefilled;
a `pending` token: it speaks. A token that was drawn is *pending* until the next decode feeds it; only then is it in the KV.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from personae.engine.batch import PrefillChunk, RowDone
from personae.scheduler.events import TurnAsked
from personae.types import AdapterKey, AdapterUse, FinishReason, NpcId, Priority, Slot, Token, TurnId, Usage

CLASSES = {Priority.PLAYER: 0, Priority.SCENE: 1, Priority.AMBIENT: 2}
KEPT_AS_DRAWN = (FinishReason.END, FinishReason.LENGTH)


@dataclass(slots=True)
class Place:
    """One slot: whose KV it holds and exactly which tokens, and the turn that is at work in it.

    `known` is always a prefix of the sequence the engine holds there, and all of it as long as no turn faulted: BeginTurn cuts the rest.
    """

    slot: Slot
    npc: NpcId | None = None  # None: empty
    known: list[Token] = field(default_factory=list)
    adapter: AdapterUse | None = None  # under which every token of `known` was computed
    turn: Sequence | None = None  # None: parked, or empty
    used: int = 0  # rises with each use; the smallest was used longest ago
    owed: tuple[Token, ...] = ()  # what the next prompt will probably have after `known`; only while parked

    @property
    def is_parked(self) -> bool:
        return self.turn is None and self.npc is not None

    def forget(self) -> None:
        self.npc, self.adapter = None, None
        self.known.clear()
        self.owed = ()

    def take_owed(self, most: int) -> tuple[Token, ...]:
        """The next tokens to extend it by; they are no longer owed."""
        taken, self.owed = self.owed[:most], self.owed[most:]
        return taken

    def note_extended(self, tokens: tuple[Token, ...], n_done: int) -> None:
        """The report of an order to append `tokens`. What was not possible once is not tried again."""
        if n_done < len(tokens):
            self.owed = ()
        if self.npc is not None:  # else it was cleared while the step was under way
            self.known.extend(tokens[:n_done])


@dataclass(slots=True, eq=False)
class Sequence:
    """A turn. Compared by identity."""

    asked: TurnAsked
    number: int  # order of arrival
    place: Place | None = None  # None: it waits
    begun_ms: float = -1.0
    first_ms: float = -1.0  # when its first token was reported
    heard_ms: float = -1.0  # when its last one was
    reused: int = 0
    prefilled: int = 0
    drawn: list[Token] = field(default_factory=list)
    pending: Token | None = None  # drawn and not yet fed
    ended: bool = False

    @property
    def turn(self) -> TurnId:
        return self.asked.turn

    @property
    def npc(self) -> NpcId:
        return self.asked.npc

    @property
    def adapter(self) -> AdapterUse | None:
        return self.asked.adapter

    @property
    def key(self) -> AdapterKey | None:
        return self.asked.adapter.key if self.asked.adapter else None

    @property
    def deadline_ms(self) -> float:
        return self.asked.at_ms + self.asked.limits.max_seconds * 1000.0

    @property
    def computed(self) -> int:
        """Prompt tokens that are in the KV."""
        return self.reused + self.prefilled

    @property
    def prompt_left(self) -> int:
        return len(self.asked.prompt) - self.computed

    @property
    def native_class(self) -> int:
        """0: player, 1: scene, 2: ambient."""
        return CLASSES[self.asked.priority]

    def class_at(self, now_ms: float, ageing_ms: float) -> int:
        """The priority class it has risen to by waiting; 0 goes first."""
        return max(0, self.native_class - int((now_ms - self.asked.at_ms) / ageing_ms))

    def begin(self, place: Place, keep: int, now_ms: float) -> None:
        self.place, self.reused, self.begun_ms = place, keep, now_ms

    def chunk(self, start: int, n_tokens: int) -> PrefillChunk:
        """The prompt from token `start` on."""
        prompt = self.asked.prompt
        return PrefillChunk(self.turn, prompt[start : start + n_tokens], last=start + n_tokens == len(prompt))

    def note_prefilled(self, n_tokens: int) -> None:
        assert self.place is not None
        assert n_tokens <= self.prompt_left, f"turn {self.turn} has more prefilled than asked"
        start = self.computed
        self.place.known.extend(self.asked.prompt[start : start + n_tokens])
        self.prefilled += n_tokens

    def note_fed(self) -> None:
        """The decode that drew a row fed the token drawn before it."""
        if self.pending is not None:
            assert self.place is not None
            self.place.known.append(self.pending)
            self.pending = None

    def note_drawn(self, row: RowDone, now_ms: float) -> bool:
        """Whether this was the turn's first token."""
        assert self.place is not None
        self.drawn.append(row.token)
        self.heard_ms = now_ms
        if row.in_kv:
            self.place.known.append(row.token)
        else:
            self.pending = row.token
        return len(self.drawn) == 1

    def room_in(self, n_ctx: int) -> int:
        """Tokens it can draw before the context is full. The last of them need not be fed."""
        return n_ctx - len(self.asked.prompt) + 1

    def finish_of(self, row: RowDone, n_ctx: int) -> FinishReason | None:
        """Why this row ends the turn, or None. The engine counts to max_tokens or to the end of the context, whichever comes first, so that
        it lets go of the text it holds back; which of the two it was is told apart here. Past its word both limits hold all the same."""
        is_full = len(self.drawn) >= self.room_in(n_ctx)
        is_long = len(self.drawn) >= self.asked.limits.max_tokens
        if row.finish is FinishReason.LENGTH and is_full and not is_long:
            return FinishReason.CONTEXT
        if row.finish is not None:
            return row.finish
        if is_long:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if is_full else None

    def reply(self, finish: FinishReason) -> tuple[Token, ...]:
        """What was drawn; the end token left out."""
        return tuple(self.drawn[:-1] if finish is FinishReason.END else self.drawn)

    def next_up(self, finish: FinishReason) -> tuple[Token, ...]:
        """What the NPC's next prompt will have after the tokens now in the slot; () when that cannot be known.

        After other ends than these the reply goes into the history as text, or not at all, and is not what was drawn.
        """
        reply = self.reply(finish)
        if finish not in KEPT_AS_DRAWN or not reply or not self.asked.tail:
            return ()
        assert self.place is not None
        n_fed, ahead = len(self.place.known) - len(self.asked.prompt), reply + self.asked.tail
        return ahead[n_fed:] if ahead[:n_fed] == tuple(self.drawn[:n_fed]) else ()  # an end token that was fed need not be the tail's

    def usage(self, n_reply: int) -> Usage:
        return Usage(prompt=self.computed, reused=self.reused, prefilled=self.prefilled, reply=n_reply)


def common_prefix(known: list[Token], prompt: tuple[Token, ...]) -> int:
    """Length of what both begin with. Compares in pieces at C speed: prompts are thousands of tokens and mostly equal."""
    n = min(len(known), len(prompt))
    piece = 128
    for start in range(0, n, piece):
        stop = min(start + piece, n)
        if tuple(known[start:stop]) != prompt[start:stop]:
            return next(i for i in range(start, stop) if known[i] != prompt[i])
    return n
