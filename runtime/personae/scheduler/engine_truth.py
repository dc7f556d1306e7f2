"""What an engine holds, kept from outside: the tokens of every slot and stash, who speaks in which, what is resident. Judges each order.

It is told every order and every result, and refuses to know how the scheduler came to an order. AssertionError is a sentence that says
which order could not be obeyed, or whose words would be in whose mouth.

The idea: orders that are given while a step is under way are obeyed after it. So they wait here too, until its report has been entered.
What an engine may fail at (a stash it had no room for) is believed to have worked until it says otherwise, as the scheduler believes it:
an engine that holds less than was promised fills it up itself, from the history it is given.

Rules that always hold
- One step is under way at the most. Turns begin, pause and resume only between steps.
- Kept tokens are there, are the head of the turn's own sequence, and were made under its own voice: the same adapters and scales.
- Every token that is added to a slot is the next one of the NPC it belongs to.
- All adapters of a voice are resident while anybody speaks with it or is extended with it. Who is paused needs them again afterwards.
- What else is to be said of adapters stands in adapter_truth.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from personae.engine import batch
from personae.engine.batch import ExtendSlot, Order, PrefillChunk, RowDone, RunStep, StepDone
from personae.scheduler import events as ev
from personae.scheduler.adapter_truth import AdapterTruth
from personae.scheduler.settings import SchedulerConfig
from personae.types import NpcId, Slot, Stash, Token, TurnId, Voice


@dataclass(slots=True)
class Kv:
    """What a slot or a stash holds."""

    tokens: list[Token] = field(default_factory=list)
    voice: Voice = ()  # under which all of it was made
    npc: NpcId | None = None  # whose talk it is
    turn: TurnId | None = None  # that was seated in it last
    comes: tuple[Token, ...] = ()  # all that its NPC's next prompt will begin with, as far as that turn told
    n_bytes: int = 0  # of a stash; 0: not reported yet

    def copy(self, keep: int | None = None) -> Kv:
        return Kv(self.tokens[:keep], self.voice, self.npc)

    def cut(self, keep: int) -> None:
        del self.tokens[keep:]
        self.comes = ()


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that was asked, as client and engine see it."""

    asked: ev.TurnAsked
    slot: Slot | None = None  # None: it waits, or is paused
    drawn: list[Token] = field(default_factory=list)
    pending: Token | None = None  # drawn and not yet fed
    has_spoken: bool = False
    has_ended: bool = False  # for its client; the engine may not know yet

    @property
    def due(self) -> tuple[Token, ...]:
        """What must be in its slot before its next token is drawn: all but the one that is pending."""
        return self.asked.prompt + tuple(self.drawn if self.pending is None else self.drawn[:-1])


class EngineTruth:
    """One service's engines, one life after the other."""

    def __init__(
        self, asked: Mapping[TurnId, Turn], who_asked: Callable[[str, str], list[NpcId]], config: SchedulerConfig | None = None
    ) -> None:
        """`asked`: the open turns. `who_asked(kind, path)`: of which NPCs a KV file is wanted. `config` None: no limits are judged."""
        self._asked = asked
        self._who_asked = who_asked
        self.adapters = AdapterTruth(lambda: [turn.asked for turn in asked.values()], config)
        self.n_orders = self.n_steps = 0
        self.forget()
        self._work: dict[type, Callable[[Any], None]] = {
            batch.LoadAdapter: self._load,
            batch.FreeAdapter: self._free,
            batch.BeginTurn: self._begin,
            batch.RunStep: self._run,
            batch.DropTurn: self._drop,
            batch.PauseTurn: self._pause,
            batch.ResumeTurn: self._resume,
            batch.StashSlot: self._stash,
            batch.FetchStash: self._fetch,
            batch.DropStash: self._drop_stash,
            batch.CopySlot: self._copy,
            batch.WriteKv: self._write,
            batch.ReadKv: self._read,
            batch.ClearSlot: self._clear,
        }

    # --- the engine's life ----------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The engine is gone, and all it held."""
        self._is_up, self._n_ctx, self._can_cut = False, 0, True
        self._slots: list[Kv] = []
        self._stashes: dict[Stash, Kv] = {}
        self._last_stash = -1
        self._reading: dict[Stash, NpcId] = {}
        self._turns: dict[TurnId, Turn] = {}  # that it has begun
        self.adapters.forget()
        self._flight: RunStep | None = None
        self._behind: list[Order] = []  # orders given while it is under way

    def start(self, event: ev.EngineStarted) -> None:
        self.forget()
        self._is_up, self._n_ctx, self._can_cut = True, event.n_ctx, event.can_cut
        self._slots = [Kv() for _ in range(event.n_slots)]

    def take(self, order: Order) -> None:
        """An order is obeyed at once, or after the step that is under way. What concerns neither slot nor turn does not wait for it."""
        self.n_orders += 1
        assert self._is_up, f"{order} goes to an engine that is down"
        if self._flight is None or isinstance(order, batch.LoadAdapter | batch.FreeAdapter | batch.ReadKv):
            self._work[type(order)](order)
            return
        assert not isinstance(order, RunStep), "a second step is ordered while one is under way"
        assert not isinstance(order, batch.BeginTurn | batch.PauseTurn | batch.ResumeTurn), f"{order} is ordered in the middle of a step"
        self._behind.append(order)

    # --- what the referee asks ------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """No step is under way: every order given was obeyed."""
        return self._flight is None

    def not_told(self) -> list[TurnId]:
        """Turns that have ended for their client, go on in the engine, and will not be dropped."""
        dropped = self._dropped()
        return [turn for turn, each in self._turns.items() if each.has_ended and turn not in dropped]

    def owners(self) -> Iterator[tuple[str, NpcId]]:
        """Where something is held, and whose it is."""
        yield from ((f"slot {slot}", kv.npc) for slot, kv in enumerate(self._slots) if kv.npc and kv.tokens)
        yield from ((f"stash {stash}", kv.npc) for stash, kv in self._stashes.items() if kv.npc)

    def stash_bytes(self) -> int:
        """Of those that were reported."""
        return sum(kv.n_bytes for kv in self._stashes.values())

    def note_next(self, turn: TurnId, comes: tuple[Token, ...]) -> None:
        """The turn has ended: the next prompt of its NPC will probably begin so."""
        for kv in self._slots:
            if kv.turn == turn:
                kv.comes = comes

    # --- adapters -------------------------------------------------------------------------------------------------------

    def _load(self, order: batch.LoadAdapter) -> None:
        self.adapters.load(order)

    def _free(self, order: batch.FreeAdapter) -> None:
        dropped = self._dropped()
        seated = [each.asked for turn, each in self._turns.items() if each.slot is not None and turn not in dropped]
        users = [asked.turn for asked in seated if any(use.key == order.key for use in asked.voice)]
        assert not users, f"adapter {order.key} is freed while turn {users[0]} speaks with it"
        self.adapters.free(order)

    # --- turns in slots -------------------------------------------------------------------------------------------------

    def _begin(self, order: batch.BeginTurn) -> None:
        who, turn = f"turn {order.turn}", self._asked.get(order.turn)
        assert turn is not None, f"{who} begins and was not asked, or has ended"
        assert order.turn not in self._turns, f"{who} begins twice"
        others = [other for other, each in self._turns.items() if each.asked.npc == turn.asked.npc]
        assert not others, f"{who} begins while turn {others[0]} of the same NPC is open"
        assert order.voice == turn.asked.voice, f"{who} begins with another voice than its NPC's"
        assert order.keep < len(turn.asked.prompt) + (not turn.asked.draws), f"{who} has nothing left to draw a first token from"
        self._seat(turn, order, who)
        self._turns[order.turn] = turn

    def _resume(self, order: batch.ResumeTurn) -> None:
        who, turn = f"turn {order.turn}", self._turns.get(order.turn)
        assert turn is not None, f"{who} is resumed and not open"
        assert turn.slot is None, f"{who} is resumed and not paused"
        self._seat(turn, order, who)

    def _seat(self, turn: Turn, order: batch.BeginTurn | batch.ResumeTurn, who: str) -> None:
        slot, keep, voice = order.slot, order.keep, turn.asked.voice
        kv = self._free_slot(slot, who)
        assert self.adapters.are_there(voice), f"an adapter of {who} is not resident"
        assert keep <= len(kv.tokens), f"{who} keeps {keep} tokens of slot {slot}, which holds {len(kv.tokens)}"
        assert tuple(kv.tokens[:keep]) == order.history, f"{who} keeps other tokens than slot {slot} holds"
        assert order.history == turn.due[:keep], f"{who} keeps tokens that are not its NPC's own: they were of NPC '{kv.npc}'"
        assert keep == 0 or kv.voice == voice, f"{who} keeps KV that was made under another adapter or scale"
        assert self._can_cut or keep in (0, len(kv.tokens)), f"{who} cuts slot {slot} in a memory that cannot be cut"
        kv.cut(keep)
        kv.npc, kv.turn, kv.voice, turn.slot = turn.asked.npc, turn.asked.turn, voice, slot

    def _pause(self, order: batch.PauseTurn) -> None:
        turn = self._turns.get(order.turn)
        assert turn is not None, f"turn {order.turn} is paused and not open"
        assert turn.slot is not None, f"turn {order.turn} is paused twice"
        turn.slot = None

    def _drop(self, order: batch.DropTurn) -> None:
        self.end_turn(order.turn)

    def end_turn(self, turn: TurnId) -> None:
        """What its slot held stays: a fault adds nothing to what was reported."""
        self._turns.pop(turn, None)

    def _dropped(self) -> set[TurnId]:
        """Turns that are gone when the step under way is."""
        return {order.turn for order in self._behind if isinstance(order, batch.DropTurn)}

    def _free_slot(self, slot: Slot, why: str) -> Kv:
        assert 0 <= slot < len(self._slots), f"{why}: there is no slot {slot}"
        users = [turn for turn, each in self._turns.items() if each.slot == slot]
        assert not users, f"{why}: turn {users[0]} is open in slot {slot}"
        return self._slots[slot]

    # --- KV that moves --------------------------------------------------------------------------------------------------

    def _clear(self, order: batch.ClearSlot) -> None:
        kv = self._free_slot(order.slot, "a slot is cleared")
        kv.cut(0)
        kv.npc = kv.turn = None

    def _stash(self, order: batch.StashSlot) -> None:
        assert self._slots[order.slot].tokens, f"slot {order.slot} is stashed and empty"
        self._name_stash(order.stash)
        self._stashes[order.stash] = self._slots[order.slot].copy()

    def _name_stash(self, stash: Stash) -> None:
        assert stash > self._last_stash, f"the name of stash {stash} is used again"
        self._last_stash = stash

    def _fetch(self, order: batch.FetchStash) -> None:
        self._free_slot(order.slot, "a stash is fetched")
        assert order.stash in self._stashes, f"stash {order.stash} is fetched and not there"
        self._slots[order.slot] = self._stashes[order.stash].copy()

    def _drop_stash(self, order: batch.DropStash) -> None:
        self._stashes.pop(order.stash, None)

    def _copy(self, order: batch.CopySlot) -> None:
        self._free_slot(order.target, "a slot is copied into")
        source = self._slots[order.source]
        assert order.source != order.target, f"slot {order.source} is copied into itself"
        assert 0 < order.keep <= len(source.tokens), f"{order.keep} tokens of slot {order.source} are copied; it holds {len(source.tokens)}"
        assert self._can_cut or order.keep == len(source.tokens), f"a part of slot {order.source} is copied, in a memory that cannot be cut"
        self._slots[order.target] = source.copy(order.keep)

    def _write(self, order: batch.WriteKv) -> None:
        kv = self._slots[order.slot] if order.slot is not None else self._stashes.get(order.stash or Stash(0))
        assert kv is not None, f"{order.path} is to be written of nothing that is there"
        assert tuple(kv.tokens) == order.tokens, f"{order.path} is to be written of other tokens than are held"
        assert kv.voice == order.voice, f"{order.path} is to be written as KV of another voice"
        assert kv.npc in self._who_asked("save", order.path), f"{order.path} is to be written of NPC '{kv.npc}', for which nobody asked"

    def _read(self, order: batch.ReadKv) -> None:
        owners = self._who_asked("load", order.path)
        assert owners, f"{order.path} is read and nobody asked"
        self._name_stash(order.stash)
        self._reading[order.stash] = owners[-1]  # it is ordered as soon as it is asked

    def kv_reported(self, result: batch.KvResult) -> None:
        match result:
            case batch.SlotStashed(stash, _, n_bytes) if stash in self._stashes:
                self._stashes[stash].n_bytes = n_bytes
                if n_bytes == 0:
                    del self._stashes[stash]
            case batch.KvRead(stash=stash) if stash in self._reading:
                owner = self._reading.pop(stash)
                if not result.reason:
                    self._stashes[stash] = Kv(list(result.tokens), result.voice, owner, n_bytes=result.n_bytes)

    # --- a step ---------------------------------------------------------------------------------------------------------

    def _run(self, step: RunStep) -> None:
        assert step.decode or step.prefill or step.extend, "an empty step is ordered"
        self._check_rows(step.decode)
        ahead = dict.fromkeys((chunk.turn for chunk in step.prefill), 0)
        for chunk in step.prefill:
            self._check_chunk(chunk, ahead[chunk.turn])
            ahead[chunk.turn] += len(chunk.tokens)
        for order in step.extend:
            self._check_extension(order)
        assert not ahead.keys() & set(step.decode), "a turn speaks and is prefilled in one step"
        self._flight = step
        self.n_steps += 1

    def _at_work(self, turn_id: TurnId) -> tuple[Turn, Kv]:
        turn, kv = self._seated(turn_id)
        assert self.adapters.are_there(turn.asked.voice), f"an adapter of turn {turn_id} is not resident"
        return turn, kv

    def _seated(self, turn_id: TurnId) -> tuple[Turn, Kv]:
        turn = self._turns.get(turn_id)
        assert turn is not None, f"turn {turn_id} is in a step and not open"
        assert turn.slot is not None, f"turn {turn_id} is in a step and paused"
        return turn, self._slots[turn.slot]

    def _check_rows(self, turns: Sequence[TurnId]) -> None:
        slots: list[Slot | None] = []
        for turn_id in turns:
            turn, kv = self._at_work(turn_id)
            assert turn.slot not in slots, f"turn {turn_id} is decoded twice in one step"
            assert turn.pending is not None, f"turn {turn_id} is decoded and has no token to feed"
            assert tuple(kv.tokens) == turn.due, f"turn {turn_id} is decoded on other tokens than its own"
            assert len(kv.tokens) < self._n_ctx, f"turn {turn_id} is decoded in a slot that is full"
            slots.append(turn.slot)
        assert slots == sorted(slots, key=lambda slot: slot or 0), f"rows are not in order of slots: {slots}"

    def _check_chunk(self, chunk: PrefillChunk, ahead: int) -> None:
        """`ahead`: tokens that the same step prefills of the turn before it."""
        turn, kv = self._at_work(chunk.turn)
        due, start = turn.due, len(kv.tokens) + ahead
        end = start + len(chunk.tokens)
        assert chunk.tokens, f"turn {chunk.turn} is to prefill nothing"
        assert due[start:end] == chunk.tokens, f"turn {chunk.turn} is to prefill other tokens than its next"
        assert end <= self._n_ctx, f"turn {chunk.turn} is to prefill more than a slot holds"
        draws = turn.asked.draws and not turn.drawn and end == len(due)
        assert chunk.last == draws, f"the chunk of turn {chunk.turn} {'does not draw' if draws else 'draws'}"

    def _check_extension(self, order: ExtendSlot) -> None:
        kv = self._free_slot(order.slot, "a slot is extended")
        assert order.tokens, f"slot {order.slot} is extended by nothing"
        assert order.held == len(kv.tokens), f"slot {order.slot} is extended at {order.held}; it holds {len(kv.tokens)} tokens"
        end = order.held + len(order.tokens)
        assert kv.comes[:end] == (*kv.tokens, *order.tokens), f"slot {order.slot} is extended by what NPC '{kv.npc}' will not say or hear"
        assert self.adapters.are_there(kv.voice), f"slot {order.slot} is extended under an adapter that is not resident"
        assert end <= self._n_ctx, f"slot {order.slot} is extended beyond its end"

    def step_done(self, step: StepDone) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return  # the last word of an engine that is gone
        chunks = list(flight.prefill)
        for turn, n_tokens in step.prefilled:
            self._prefilled(chunks, turn, n_tokens)
        decoded = set(flight.decode)
        for row in step.rows:
            self._drew(row, row.turn in decoded)
        for order, (slot, n_done) in zip(flight.extend, step.extended, strict=True):
            assert slot == order.slot, f"the engine reports slot {slot} extended instead of {order.slot}"
            self._slots[slot].tokens.extend(order.tokens[:n_done])
        for fault in step.faults:
            self.end_turn(fault.turn)
        behind, self._behind = self._behind, []
        for order_behind in behind:
            self._work[type(order_behind)](order_behind)

    def _prefilled(self, chunks: list[PrefillChunk], turn: TurnId, n_tokens: int) -> None:
        """`chunks`: those of the step that were not reported yet."""
        chunk = next((each for each in chunks if each.turn == turn), None)
        assert chunk is not None, f"the engine prefilled turn {turn}, which it was not told"
        assert len(chunk.tokens) == n_tokens, f"the engine prefilled {n_tokens} tokens of turn {turn} instead of {len(chunk.tokens)}"
        chunks.remove(chunk)
        _, kv = self._seated(turn)
        kv.tokens.extend(chunk.tokens)

    def _drew(self, row: RowDone, was_fed: bool) -> None:
        turn, kv = self._seated(row.turn)
        if was_fed:
            assert turn.pending is not None
            kv.tokens.append(turn.pending)
        turn.drawn.append(row.token)
        turn.pending = None if row.in_kv else row.token
        if row.in_kv:
            kv.tokens.append(row.token)
        if row.finish is not None:
            self.end_turn(row.turn)
