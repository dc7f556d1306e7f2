"""One turn on its way from asked to ended, as counters. Decides nothing but what its own numbers say; knows no slot table, queue or clock.

There are no phases. Where a turn stands follows from what it has: no `place`: it waits, or is paused if it has begun; prompt left: it
is being prefilled; a `pending` token: it speaks. A token that was drawn is *pending* until the next decode feeds it; only then is it in
the KV. After a pause its `goal` is all it has ever fed: as much of it as does not come back is prefilled again, and nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from personae.engine.batch import PrefillChunk, RowDone
from personae.scheduler.events import TurnAsked
from personae.types import AdapterKey, FinishReason, KvSource, NpcId, Priority, Slot, Token, TurnId, Usage, Voice

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
    n_moved: int = 0  # of `known`, the first so many, that came from another slot or a stash
    voice: Voice = ()  # under which every token of `known` was computed
    turn: Sequence | None = None  # None: parked, or empty
    used: int = 0  # rises with each use; the smallest was used longest ago
    owed: tuple[Token, ...] = ()  # what the next prompt will probably have after `known`; only while parked

    @property
    def is_parked(self) -> bool:
        return self.turn is None and self.npc is not None

    def forget(self) -> None:
        self.npc, self.voice, self.n_moved = None, (), 0
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
    place: Place | None = None  # None: it waits, perhaps paused
    goal: tuple[Token, ...] = ()  # what its KV holds before it speaks: the prompt; after a pause with all it has drawn and fed
    begun_ms: float = -1.0  # when it first got a slot
    first_ms: float = -1.0  # when its first token was reported
    heard_ms: float = -1.0  # when its last one was
    since_ms: float = -1.0  # it waits in line, or unserved in its slot, since then
    waited_ms: float = 0.0  # before that: in line, and unserved when it was paused
    n_pauses: int = 0
    paused_ms: float = 0.0
    source: KvSource = KvSource.NONE
    reached: int = 0  # prompt tokens that were in its KV at some time
    reused: int = 0  # of these, found there or brought
    brought: int = 0  # of these, when it was seated last
    drawn: list[Token] = field(default_factory=list)
    pending: Token | None = None  # drawn and not yet fed
    keys: frozenset[AdapterKey] = frozenset()  # the adapters of its voice
    invited: bool = False  # its voice became complete while it waited: it may begin though one of these makes room for another turn
    ended: bool = False

    def __post_init__(self) -> None:
        self.goal, self.since_ms = self.asked.prompt, self.asked.at_ms
        self.keys = frozenset(use.key for use in self.asked.voice)

    @property
    def turn(self) -> TurnId:
        return self.asked.turn

    @property
    def npc(self) -> NpcId:
        return self.asked.npc

    @property
    def voice(self) -> Voice:
        return self.asked.voice

    # --- where it stands ------------------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether it has ever had a slot, and the engine has heard of it."""
        return self.begun_ms >= 0

    @property
    def is_paused(self) -> bool:
        return self.place is None and self.has_begun

    @property
    def computed(self) -> int:
        """Tokens of its own sequence that are in its slot's KV."""
        return len(self.place.known) if self.place else 0

    @property
    def prompt_left(self) -> int:
        """Tokens to be prefilled before it speaks, or goes on to speak."""
        return max(0, len(self.goal) - self.computed)

    @property
    def speaks(self) -> bool:
        """Whether a decode advances it."""
        return self.pending is not None and self.prompt_left == 0

    @property
    def draws_next(self) -> bool:
        """Whether its last chunk draws its first token. Else a chunk draws nothing: it is a warm turn, or goes on after a pause."""
        return self.asked.draws and not self.drawn

    @property
    def most_kept(self) -> int:
        """How much of `goal` may be there before it is seated. Where the last chunk draws, it needs a token: logits are not kept."""
        return len(self.goal) - self.draws_next

    @property
    def is_warm(self) -> bool:
        """Whether all is done that was to be done: it says nothing, and its prompt is there."""
        return not self.asked.draws and self.place is not None and self.prompt_left == 0

    # --- who goes first -------------------------------------------------------------------------------------------------

    @property
    def native_class(self) -> int:
        """0: player, 1: scene, 2: ambient. A warm turn stands one below its own: it says nothing, and nobody is to wait for it."""
        return CLASSES[self.asked.priority] + (not self.asked.draws)

    def class_at(self, now_ms: float, ageing_ms: float) -> int:
        """The priority class it has risen to by waiting, in line and unserved in its slot; 0 goes first."""
        return max(0, self.native_class - int((self.waited_ms + now_ms - self.since_ms) / ageing_ms))

    # --- what happens to it ---------------------------------------------------------------------------------------------

    def begin(self, place: Place, keep: int, source: KvSource, now_ms: float) -> None:
        """Seated, for the first time or after a pause. `place` knows the tokens kept."""
        before, self.reached = self.reached, max(self.reached, min(keep, len(self.asked.prompt)))
        self.place, self.brought = place, self.reached - before
        self.reused += self.brought
        if not self.has_begun:
            self.begun_ms, self.source = now_ms, source
        else:
            self.paused_ms += now_ms - self.since_ms
        self.waited_ms += now_ms - self.since_ms
        self.since_ms, self.invited = now_ms, False

    def pause(self, now_ms: float) -> None:
        """Out of its slot. It goes on from the same tokens: a token that was drawn and not fed stays pending."""
        n_fed = len(self.drawn) - (self.pending is not None)
        self.goal = self.asked.prompt + tuple(self.drawn[:n_fed])
        self.waited_ms += now_ms - self.since_ms
        self.place, self.since_ms = None, now_ms
        self.n_pauses += 1

    def note_caught_up(self, source: KvSource) -> None:
        """More of its prompt was brought into its slot."""
        before, self.reached = self.reached, max(self.reached, min(self.computed, len(self.asked.prompt)))
        self.brought, self.source = self.reached - before, source
        self.reused += self.brought

    def paused_at(self, now_ms: float) -> float:
        """How long it has been paused altogether."""
        return self.paused_ms + (now_ms - self.since_ms if self.is_paused else 0.0)

    def chunk(self, start: int, n_tokens: int) -> PrefillChunk:
        """What is to be prefilled, from token `start` on."""
        stop = start + n_tokens
        return PrefillChunk(self.turn, self.goal[start:stop], last=self.draws_next and stop == len(self.goal))

    def note_served(self, now_ms: float) -> None:
        """A step had a row or a chunk of it."""
        self.since_ms = now_ms

    def note_prepared(self) -> None:
        """Its NPC's slot holds all of its prompt already; it need not begin."""
        self.reused = self.reached = len(self.asked.prompt)
        self.source = KvSource.SLOT

    def note_refilled(self, n_tokens: int) -> int:
        """The engine did not find so many of the last tokens it was to keep. Returns how many of them had been counted as reused."""
        missed = min(n_tokens, self.brought)
        self.brought -= missed
        self.reused -= missed
        return missed

    def note_prefilled(self, n_tokens: int) -> None:
        assert self.place is not None
        assert n_tokens <= self.prompt_left, f"turn {self.turn} has more prefilled than asked"
        start = self.computed
        self.place.known.extend(self.goal[start : start + n_tokens])
        self.reached = max(self.reached, min(self.computed, len(self.asked.prompt)))

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

    def space_in(self, n_ctx: int) -> int:
        """Tokens of prompt and reply that it may hold in a slot of so many."""
        return min(n_ctx, self.asked.limits.max_kv or n_ctx)

    def room_in(self, n_ctx: int) -> int:
        """Tokens it can draw before that is full. The last of them need not be fed."""
        return self.space_in(n_ctx) - len(self.asked.prompt) + 1

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
        source = self.source if self.reused else KvSource.NONE
        return Usage(prompt=self.reached, reused=self.reused, prefilled=self.reached - self.reused, reply=n_reply, source=source)


def common_prefix(known: list[Token] | tuple[Token, ...], prompt: tuple[Token, ...]) -> int:
    """Length of what both begin with. Compares in pieces at C speed: prompts are thousands of tokens and mostly equal."""
    n = min(len(known), len(prompt))
    piece = 128
    for start in range(0, n, piece):
        stop = min(start + piece, n)
        if tuple(known[start:stop]) != prompt[start:stop]:
            return next(i for i in range(start, stop) if known[i] != prompt[i])
    return n
