"""How a turn gets into a slot and out of it again: where its KV comes from, and what becomes of the KV that was there. Knows no priorities.

What is reused is the common prefix of a sequence that is held somewhere and of what the turn has to compute, if the same voice made that KV
(the same adapters at the same scales), and nothing otherwise: KV computed under one voice is wrong under another, and nobody would notice
(llama.cpp #26207). Whose words they were does not matter: equal tokens give equal KV.

The turn's own comes first: what is in its slot, or what was put aside for it. Another sequence that shares clearly more with it (the
same persona, as a rule) is copied instead; so the second guard of a village costs a copy and its own words. Where the engine's memory
cannot be cut, or not once a sequence was moved, only one that the turn goes on from altogether is of use.

Whoever loses a slot to somebody else is put aside in host memory, where that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from personae.engine.batch import CopySlot, DropStash, FetchStash, Order, PauseTurn, ResumeTurn, StashSlot
from personae.scheduler.host import HostMemory, Stashed
from personae.scheduler.sequence import Place, Sequence, common_prefix
from personae.scheduler.slots import SlotTable
from personae.types import KvSource, Token, Voice

CLEARLY = 16  # tokens that another sequence must share beyond the turn's own; a copy moves a whole sequence, which fewer are not worth


@dataclass(frozen=True, slots=True)
class _Find:
    """A sequence that shares `shared` tokens with what the turn has to compute. In a slot, in a stash, or nowhere."""

    shared: int = 0
    kind: KvSource = KvSource.NONE
    place: Place | None = None
    stashed: Stashed | None = None


class Seating:
    def __init__(self, slots: SlotTable, host: HostMemory) -> None:
        self._slots = slots
        self._host = host
        self.can_cut = True  # whether the engine's memory can forget a tail
        self.can_cut_moved = True  # also of a sequence that was copied or put aside
        self.copies = 0

    def seat(self, turn: Sequence, now_ms: float) -> Iterator[Order]:
        """Seat a turn while there is room: what has to be moved before it begins. Its slot's `known` then says how much it keeps."""
        place = self._slots.choose(turn.npc)
        find = self._find(turn, place)
        own = self._host.of_turn(turn)
        if own is not None:  # it is in the slot from now on, or out of date; its room may be taken by whoever has to go
            self._host.take(own)
        yield from self._evict(turn, place, find.stashed)
        yield from self._bring(find, place, turn.goal)
        if own is not None:
            yield DropStash(own.stash)
        self._slots.own(place, turn.npc)
        self._slots.seat(turn, place, find.kind, now_ms)

    def pause(self, turn: Sequence, newcomer: Sequence, now_ms: float) -> Iterator[Order]:
        """Take a turn out of its slot, which is free for the newcomer then."""
        yield PauseTurn(turn.turn)
        place = self._slots.unseat(turn)
        turn.pause(now_ms)
        stashed, drops = self._host.keep(turn.npc, place.known, turn.voice, turn=turn.turn, but=self._host.of_turn(newcomer))
        yield from drops
        if stashed is not None:
            yield StashSlot(place.slot, stashed.stash)

    def catch_up(self, turn: Sequence) -> Iterator[Order]:
        """Give a turn that still reads its prompt what another has read since it was seated: of three guards that are spoken to at once one
        reads their persona, and the others copy it. Not from one that is still reading: it would be copied piece by piece."""
        place = turn.place
        assert place is not None, f"turn {turn.turn} holds no slot"
        readers = [other for other in self._slots if other.turn is None or other.turn.prompt_left == 0]
        find = self._longest_in(readers, turn, _Find(turn.computed, turn.source, place))
        if find.place is place:
            return
        yield PauseTurn(turn.turn)
        yield from self._bring(find, place, turn.goal)
        turn.note_caught_up(find.kind)
        yield ResumeTurn(turn.turn, place.slot, turn.computed, turn.goal[: turn.computed])

    def is_prepared(self, turn: Sequence) -> bool:
        """Whether the NPC's own slot holds all that a warm turn is to prefill."""
        place = self._slots.of(turn.npc)
        if turn.asked.draws or place is None or place.turn is not None or place.voice != turn.voice:
            return False
        return common_prefix(place.known, turn.goal) == len(turn.goal)

    # --- where its KV comes from --------------------------------------------------------------------------------------

    def _find(self, turn: Sequence, place: Place) -> _Find:
        """The best there is; what is in the slot already where nothing is better."""
        kind = KvSource.SLOT if place.npc == turn.npc else KvSource.COPY
        best = _Find(self._there(place, turn), kind, place)
        own = self._host.of_turn(turn)
        if own is not None and (shared := self._shared(own.tokens, own.voice, turn, self.can_cut_moved)) > best.shared:
            best = _Find(shared, KvSource.SAVED if own.is_saved else KvSource.HOST, stashed=own)
        found = self._longest_in(self._slots, turn, best)
        at_least = best.shared + CLEARLY if found is best else found.shared + 1
        stashed, shared = self._host.longest(turn.voice, turn.goal[: turn.most_kept], whole=not self.can_cut_moved)
        if stashed is not None and shared >= at_least:
            found = _Find(shared, KvSource.COPY, stashed=stashed)
        return found

    def _longest_in(self, places: Iterable[Place], turn: Sequence, best: _Find) -> _Find:
        """The slot that shares most with the turn, where that is clearly more than the best so far."""
        at_least = best.shared + CLEARLY
        for other in places:
            if self._may_share(other, turn, at_least) and (shared := self._moved_here(other, turn)) >= at_least:
                best, at_least = _Find(shared, KvSource.COPY, other), shared + 1
        return best

    def _there(self, place: Place, turn: Sequence) -> int:
        """How many tokens of the slot as it is the turn can keep. What was appended to a sequence after it was moved can be cut."""
        shared = self._shared(place.known, place.voice, turn, self.can_cut)
        return shared if self.can_cut_moved or shared >= place.n_moved else 0

    def _may_share(self, place: Place, turn: Sequence, n_tokens: int) -> bool:
        """A quick look: whether the slot may begin with so many of the turn's tokens."""
        known, goal = place.known, turn.goal
        return min(len(known), turn.most_kept) >= n_tokens and known[n_tokens - 1] == goal[n_tokens - 1]

    def _moved_here(self, other: Place, turn: Sequence) -> int:
        return self._shared(other.known, other.voice, turn, self.can_cut_moved)

    def _shared(self, known: list[Token] | tuple[Token, ...], voice: Voice, turn: Sequence, can_cut: bool) -> int:
        """How many of these tokens the turn can keep."""
        if voice != turn.voice:
            return 0
        shared = min(common_prefix(known, turn.goal), turn.most_kept)
        return shared if can_cut or shared == len(known) else 0

    # --- what is moved ------------------------------------------------------------------------------------------------

    def _evict(self, turn: Sequence, place: Place, but: Stashed | None) -> Iterator[Order]:
        """Put aside what another NPC has in the slot. What was read from a file for it meanwhile is newer, and stays."""
        if place.npc is None or place.npc == turn.npc or self._host.of_npc(place.npc) is not None:
            return
        stashed, drops = self._host.keep(place.npc, place.known, place.voice, but=but)
        yield from drops
        if stashed is not None:
            yield StashSlot(place.slot, stashed.stash)

    def _bring(self, find: _Find, place: Place, goal: tuple[Token, ...]) -> Iterator[Order]:
        """Let the slot begin with what was found."""
        if find.stashed is not None:
            self._host.note_use(find.stashed)
            self.copies += find.kind is KvSource.COPY
            yield FetchStash(find.stashed.stash, place.slot)
        elif find.place is not None and find.place is not place:
            self.copies += 1
            yield CopySlot(find.place.slot, place.slot, find.shared)
        is_moved = find.place is not place and find.shared > 0
        place.n_moved = find.shared if is_moved else min(place.n_moved, find.shared)
        place.known[:] = goal[: find.shared]
