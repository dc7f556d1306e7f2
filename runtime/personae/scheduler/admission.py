"""Which waiting turns begin or go on now, and who gives a slot for that. Keeps no state beyond one walk.

One walk down the line, first to go first. A turn whose voice is not all resident is passed over, never waited for; what it lacks is
ordered on the way, as far as there is room (making_room.py). What a turn further ahead needs is not taken away for one behind it.

Where no slot is free, a turn of a lower class that has not risen to the newcomer's is paused. So a turn that is paused again and again
rises by the time it waits, and then is paused no more; and no two turns ever pause each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from personae.engine.batch import BeginTurn, FreeAdapter, LoadAdapter, Order, ResumeTurn
from personae.scheduler.actions import FailTurn
from personae.scheduler.adapters import AdapterTable
from personae.scheduler.ledger import Ledger
from personae.scheduler.making_room import STAY, MakingRoom
from personae.scheduler.seating import Seating
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.scheduler.slots import SlotTable
from personae.scheduler.waiting import WaitingLine
from personae.types import AdapterKey, Limits


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
        in_use, line = self.in_use(), self._line.in_order(now_ms)
        yield from self._free_retired(in_use)
        room = MakingRoom(self._adapters, in_use, line, now_ms, self._ageing_ms)
        yield from self._free(room.excess())
        for turn in line:
            if not room.is_ready(turn):
                yield from self._seek(turn, room)
            elif may_begin:
                yield from self._pause_for(turn, now_ms)
                if self._slots.has_room:
                    yield from self._begin(turn, now_ms, n_ctx)
                    room.note_begun(turn)
            room.note_passed(turn)

    def validate(self, *, is_idle: bool, is_up: bool) -> None:
        """`is_idle`: no step is under way."""
        if not (is_up and is_idle):
            return
        for turn in self._line:
            assert turn.keys, f"turn {turn.turn} could begin and does not"
            assert self._adapters.loading, f"turn {turn.turn} waits for adapters and nothing is under way"

    def in_use(self) -> set[AdapterKey]:
        return {key for turn in self._slots.busy() for key in turn.keys}

    def _seek(self, turn: Sequence, room: MakingRoom) -> Iterator[Order]:
        moves = room.seek(turn)
        if moves is STAY:
            return
        yield from self._free(moves.free)
        for source in turn.asked.sources:
            if source.key in moves.load:
                self._adapters.note_ordered(source)
                yield LoadAdapter(source.key, source.path)

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
        self._adapters.note_use(use.key for use in turn.voice)
        self._ledger.note_seated(turn)
        if is_new:
            self._ledger.note_begun(turn, now_ms)
            yield _begin_order(turn, n_ctx)
        else:
            yield _resume_order(turn)

    def _free_retired(self, in_use: set[AdapterKey]) -> Iterator[Order]:
        if self._adapters.retired:
            yield from self._free(self._adapters.retired_and_unused(in_use | self._line.wanted()))

    def _free(self, keys: Iterable[AdapterKey]) -> Iterator[Order]:
        for key in keys:
            self._adapters.note_freed(key)
            self._slots.note_freed(key)
            self._line.note_freed(key)
            yield FreeAdapter(key)


def _begin_order(turn: Sequence, n_ctx: int) -> BeginTurn:
    asked, place, keep = turn.asked, turn.place, turn.computed
    assert place is not None
    limits = _within(asked.limits, turn.room_in(n_ctx))
    return BeginTurn(turn.turn, place.slot, keep, asked.voice, asked.sampling, asked.rules, limits, asked.prompt[:keep])


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
    if len(turn.keys) > config.max_adapters:
        n, most = len(turn.keys), config.max_adapters
        message = f"NPC '{turn.npc}' speaks with {n} adapter{'s' * (n > 1)} at once, and this service holds {most or 'none'}."
        return FailTurn(turn.turn, "adapter_limit", message, "Start the service with a larger adapter limit.")
    return None
