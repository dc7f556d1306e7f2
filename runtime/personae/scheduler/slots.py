"""Whose each slot is, and which one a turn gets. Knows owners and what slots hold; refuses to know priorities, host memory and orders.

An NPC keeps its slot between turns (it is *parked*), so that a new line costs only its own tokens. The choice: the NPC's own slot,
else an empty one, else that of the NPC that has been silent longest.
"""

from __future__ import annotations

from collections.abc import Iterator

from personae.scheduler.sequence import Place, Sequence
from personae.types import AdapterKey, KvSource, NpcId, Slot, Token


class SlotTable:
    def __init__(self) -> None:
        self._places: list[Place] = []
        self._of_npc: dict[NpcId, Place] = {}
        self._uses = 0
        self.evictions = 0

    def reset(self, n_slots: int) -> None:
        """A new engine, its slots all empty; or none."""
        self._places = [Place(Slot(slot)) for slot in range(n_slots)]
        self._of_npc.clear()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        """In order of slots."""
        return iter(self._places)

    def busy(self) -> list[Sequence]:
        """The turns at work, in order of slots: the order of rows in a decode. Among them those that ended while a step was under way."""
        return [place.turn for place in self._places if place.turn is not None]

    def adapters_owed(self) -> set[AdapterKey]:
        """Those that are needed to extend slots."""
        return {use.key for place in self._places if place.owed for use in place.voice}

    def of(self, npc: NpcId) -> Place | None:
        return self._of_npc.get(npc)

    @property
    def has_room(self) -> bool:
        """Whether a slot is empty or parked. Between steps that goes for every NPC that waits: its own slot, if any, is parked."""
        return any(place.turn is None for place in self._places)

    def choose(self, npc: NpcId) -> Place:
        """The slot for a turn of this NPC, while there is room."""
        own = self._of_npc.get(npc)
        if own is not None:
            assert own.turn is None, f"{npc} speaks already"
            return own
        free = (place for place in self._places if place.turn is None)
        return min(free, key=lambda place: (place.npc is not None, place.used))

    def own(self, place: Place, npc: NpcId) -> None:
        """The slot is this NPC's from now on; whose it was has none."""
        if place.npc is not None and place.npc != npc:
            self.evictions += 1
            del self._of_npc[place.npc]
        place.npc, place.owed = npc, ()
        self._of_npc[npc] = place
        self._touch(place)

    def seat(self, turn: Sequence, place: Place, source: KvSource, now_ms: float) -> None:
        """The turn is at work in its NPC's slot. What `place` knows is what it keeps."""
        assert place.npc == turn.npc, f"slot {place.slot} is not {turn.npc}'s"
        place.voice, place.turn = turn.voice, turn
        turn.begin(place, len(place.known), source, now_ms)

    def unseat(self, turn: Sequence) -> Place:
        """The turn is paused: its slot is nobody's, and what it holds is still known."""
        place = turn.place
        assert place is not None, f"turn {turn.turn} holds no slot"
        del self._of_npc[turn.npc]
        place.npc, place.turn = None, None
        return place

    def park(self, turn: Sequence) -> None:
        """The turn has left its slot; the KV stays with its NPC, if that is still there."""
        place = turn.place
        assert place is not None, f"turn {turn.turn} holds no slot"
        assert place.turn is turn, f"turn {turn.turn} is not in slot {place.slot}"
        place.turn = None
        self._touch(place)
        if place.npc is None:
            place.forget()

    def owe(self, place: Place, tokens: tuple[Token, ...], n_ctx: int) -> None:
        """Note how a parked slot may be extended. All or nothing: past the context's end the history will have been cut."""
        if place.is_parked and len(place.known) + len(tokens) <= n_ctx:
            place.owed = tokens

    def owed(self) -> list[Place]:
        """Slots to be extended, the one used last first: it is the likeliest to be spoken to."""
        return sorted((place for place in self._places if place.owed), key=lambda place: -place.used)

    def note_freed(self, key: AdapterKey) -> None:
        """KV made under the adapter stays true and grows no more."""
        for place in self._places:
            if any(use.key == key for use in place.voice):
                place.owed = ()

    def disown(self, npc: NpcId) -> Place | None:
        """The NPC is gone; returns the slot whose KV is to be cleared. A turn under way there still has to be parked."""
        place = self._of_npc.pop(npc, None)
        if place is not None:
            place.npc = None
            if place.turn is None:
                place.forget()
        return place

    def validate(self, n_ctx: int) -> None:
        owners = [place.npc for place in self._places if place.npc is not None]
        assert len(owners) == len(set(owners)), f"an NPC holds two slots: {owners}"
        assert self._of_npc == {place.npc: place for place in self._places if place.npc is not None}, "slots and their index disagree"
        for place in self._places:
            n_known, n_owed = len(place.known), len(place.owed)
            assert n_known + n_owed <= n_ctx, f"slot {place.slot} knows {n_known} tokens of {n_ctx} and is owed {n_owed}"
            assert place.is_parked or not place.owed, f"slot {place.slot} is to be extended and not parked"
            if place.turn is None:
                assert place.npc is not None or not place.known, f"slot {place.slot} is empty and knows tokens"
            else:
                _validate_seat(place, place.turn)

    def _touch(self, place: Place) -> None:
        self._uses += 1
        place.used = self._uses


def _validate_seat(place: Place, turn: Sequence) -> None:
    assert turn.place is place, f"turn {turn.turn} sits in slot {place.slot} and does not know"
    assert place.npc == turn.npc or (place.npc is None and turn.ended), f"slot {place.slot} is {place.npc}'s, its turn {turn.npc}'s"
    assert place.voice == turn.voice, f"slot {place.slot} holds KV of another voice than its turn"
    fed = len(turn.drawn) - (turn.pending is not None)
    held = turn.asked.prompt + tuple(turn.drawn[:fed])
    assert tuple(place.known) == held[: len(place.known)], f"slot {place.slot} knows other tokens than turn {turn.turn} computed"
