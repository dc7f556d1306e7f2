"""Which waiting turns begin or go on now, who gives a slot for that, and which adapters have to come or go. Keeps no state beyond one walk.

One walk down the line, first to go first. A turn whose adapter is not resident is passed over, never waited for; what it needs is
ordered on the way. What a turn further ahead needs is not taken away for one behind it.

Where no slot is free, a turn of a lower class that has not risen to the newcomer's is paused. So a turn that is paused again and again
rises by the time it waits, and then is paused no more; and no two turns ever pause each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from personae.engine.batch import BeginTurn, FreeAdapter, LoadAdapter, Order, ResumeTurn
from personae.scheduler.actions import FailTurn
from personae.scheduler.adapters import AdapterTable, Outlook
from personae.scheduler.ledger import Ledger
from personae.scheduler.seating import Seating
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.scheduler.slots import SlotTable
from personae.scheduler.waiting import WaitingLine
from personae.types import AdapterKey, Limits


@dataclass(slots=True)
class _Walk:
    in_use: set[AdapterKey]  # by slots at work
    ahead: set[AdapterKey] = field(default_factory=set)  # wanted by turns already passed
    closing: set[AdapterKey] = field(default_factory=set)  # nobody further behind begins under these


class Admission:
    def __init__(
        self, config: SchedulerConfig, line: WaitingLine, slots: SlotTable, seating: Seating, adapters: AdapterTable, ledger: Ledger
    ) -> None:
        self._ageing_ms = config.ageing_ms
        self._line = line
        self._slots = slots
        self._seating = seating
        self._adapters = adapters
        self._ledger = ledger

    def walk(self, now_ms: float, n_ctx: int, *, may_begin: bool) -> Iterator[Order]:
        """Orders to be sent, in this order. `may_begin` is false while a step is under way: then adapters are seen to and nothing else."""
        walk = _Walk(self.in_use())
        yield from self._free_retired(walk)
        for turn in self._line.in_order(now_ms):
            if turn.key is not None and not self._is_ready(turn.key, walk):
                yield from self._seek(turn, turn.key, walk)
            elif may_begin:
                yield from self._pause_for(turn, now_ms)
                if self._slots.has_room:
                    yield from self._begin(turn, now_ms, n_ctx)
            if turn.key is not None and turn.key not in walk.closing:
                walk.ahead.add(turn.key)

    def validate(self, *, is_idle: bool, is_up: bool) -> None:
        if not is_up:
            return
        for turn in self._line:
            outlook = Outlook.HERE if turn.key is None else self._outlook(turn.key)
            assert not (is_idle and outlook is Outlook.HERE), f"turn {turn.turn} could begin and does not"
            assert outlook is not Outlook.ROOM, f"turn {turn.turn} waits for an adapter that nobody ordered"

    def in_use(self) -> set[AdapterKey]:
        return {turn.key for turn in self._slots.busy() if turn.key is not None}

    def _is_ready(self, key: AdapterKey, walk: _Walk) -> bool:
        return key not in walk.closing and self._adapters.outlook(key) is Outlook.HERE

    def _outlook(self, key: AdapterKey) -> Outlook:
        outlook = self._adapters.outlook(key)
        may_load = outlook in (Outlook.ROOM, Outlook.FULL)
        return Outlook.HELD if may_load and self._adapters.is_held(key, self._line.wanted() | self.in_use()) else outlook

    def _seek(self, turn: Sequence, key: AdapterKey, walk: _Walk) -> Iterator[Order]:
        """Order the adapter if it may be and there is room or room can be made; else have one close for it."""
        if key in walk.ahead or key in walk.closing:
            return  # somebody ahead has seen to it, or it must come free first
        outlook = self._outlook(key)
        if outlook in (Outlook.COMING, Outlook.HELD):
            return
        if outlook is Outlook.FULL:
            needed = walk.ahead | walk.in_use | walk.closing
            spare = self._adapters.spare(needed | self._line.paused_with()) or self._adapters.spare(needed)
            if spare is None:
                self._close_one(walk)
                return
            yield self._free(spare)
        self._adapters.note_ordered(key, turn.asked.adapter_path)
        yield LoadAdapter(key, turn.asked.adapter_path)

    def _close_one(self, walk: _Walk) -> None:
        closing = self._adapters.spare(walk.ahead | walk.closing)
        if closing is not None:
            walk.closing.add(closing)

    def _pause_for(self, turn: Sequence, now_ms: float) -> Iterator[Order]:
        """Make room for a turn where there is none and somebody has to yield to it."""
        if self._slots.has_room:
            return
        below = [
            other
            for other in self._slots.busy()
            if min(other.native_class, other.class_at(now_ms, self._ageing_ms)) > turn.native_class and not other.ended
        ]
        if not below:
            return
        yielding = max(below, key=lambda other: (not other.asked.draws, other.class_at(now_ms, self._ageing_ms), other.number))
        yield from self._seating.pause(yielding, turn, now_ms)
        self._line.join(yielding)
        self._ledger.pauses += 1

    def _begin(self, turn: Sequence, now_ms: float, n_ctx: int) -> Iterator[Order]:
        """Into a slot, for the first time or again."""
        is_new = not turn.has_begun
        self._line.leave(turn)
        self._line.note_begun(turn, now_ms)
        yield from self._seating.seat(turn, now_ms)
        if turn.key is not None:
            self._adapters.note_use(turn.key)
        self._ledger.note_seated(turn)
        if is_new:
            self._ledger.note_begun(turn, now_ms)
            yield _begin_order(turn, n_ctx)
        else:
            yield _resume_order(turn)

    def _free_retired(self, walk: _Walk) -> Iterator[Order]:
        if not self._adapters.has_retired:
            return
        for key in self._adapters.retired_and_unused(walk.in_use | self._line.wanted()):
            yield self._free(key)

    def _free(self, key: AdapterKey) -> Order:
        self._adapters.note_freed(key)
        self._slots.note_freed(key)
        return FreeAdapter(key)


def _begin_order(turn: Sequence, n_ctx: int) -> BeginTurn:
    asked, place, keep = turn.asked, turn.place, turn.computed
    assert place is not None
    limits = _within(asked.limits, turn.room_in(n_ctx))
    return BeginTurn(turn.turn, place.slot, keep, asked.adapter, asked.sampling, asked.rules, limits, asked.prompt[:keep])


def _resume_order(turn: Sequence) -> ResumeTurn:
    assert turn.place is not None
    return ResumeTurn(turn.turn, turn.place.slot, turn.computed, turn.goal[: turn.computed])


def _within(limits: Limits, room: int) -> Limits:
    """What the engine is told: it stops at the end of the context as it stops at max_tokens, with all its text let go."""
    return limits if limits.max_tokens <= room else replace(limits, max_tokens=room)


def refusal(turn: Sequence, n_ctx: int | None, config: SchedulerConfig) -> FailTurn | None:
    """Why a turn can never be done, however long it waits; None when it can. `n_ctx` is None while the engine is down: any size may fit."""
    n_prompt = len(turn.asked.prompt)
    if n_prompt == 0:
        return FailTurn(turn.turn, "internal", f"The prompt of NPC '{turn.npc}' is empty.", "Report how this came about.")
    n_needed, most = n_prompt + turn.asked.draws, turn.asked.limits.max_kv
    if n_ctx is not None and n_needed > n_ctx:
        message = f"The prompt of NPC '{turn.npc}' has {n_prompt} tokens; a slot holds {n_ctx}, one of them for the reply."
        return FailTurn(turn.turn, "context_full", message, "Shorten persona or history, or start the service with a larger context.")
    if most and n_needed > most:
        message = f"The prompt of NPC '{turn.npc}' has {n_prompt} tokens; this turn may hold {most}, one of them for the reply."
        return FailTurn(turn.turn, "context_full", message, "Shorten persona or history, or raise the turn's limit max_kv.")
    if turn.key is not None and config.max_adapters == 0:
        message = f"NPC '{turn.npc}' has an adapter and this service holds none."
        return FailTurn(turn.turn, "adapter_limit", message, "Start the service with a larger adapter limit.")
    return None
