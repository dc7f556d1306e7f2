"""Who goes first among the turns that wait for a slot. Decides order and who yields; knows no slots, adapters or engine.

Order: priority class, then arrival. A waiting turn rises one class for each `ageing_ms`. A turn that has risen to the players' class
still lets players pass, but never more than `players_in_a_row` of them while it waits. So nobody starves, and what a player waits
does not grow with the number of others: at most one risen turn goes ahead of each few players. One that has let its players pass and
waits for its adapter stays first, whoever begins meanwhile; else the adapter it needs would be wanted ahead of it again and again.

The line is bounded. When it is full the newest turn of the lowest class yields to one of a higher class; else the newcomer is refused.
Paused turns stand in it too, at their old place. They have spoken already: they take no room from others, and never yield their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, TurnId


class WaitingLine:
    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._turns: dict[TurnId, Sequence] = {}
        self._passed = 0  # players that went ahead of the oldest risen turn

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._turns.values())

    def __contains__(self, turn: TurnId) -> bool:
        return turn in self._turns

    @property
    def n_paused(self) -> int:
        return sum(turn.is_paused for turn in self._turns.values())

    @property
    def n_new(self) -> int:
        """Turns that have not begun."""
        return len(self._turns) - self.n_paused

    @property
    def is_full(self) -> bool:
        return self.n_new >= self._config.max_waiting

    def join(self, turn: Sequence) -> None:
        assert turn.place is None, f"turn {turn.turn} holds a slot"
        self._turns[turn.turn] = turn

    def leave(self, turn: Sequence) -> None:
        del self._turns[turn.turn]

    def who_yields(self, newcomer: Sequence) -> Sequence:
        """The turn that a full line does without: the newest of the lowest class, perhaps the newcomer itself."""
        waiting = (turn for turn in self._turns.values() if not turn.is_paused)
        return max((*waiting, newcomer), key=lambda turn: (turn.native_class, turn.number))

    def in_order(self, now_ms: float) -> list[Sequence]:
        """First to go first."""
        by_rank: tuple[list[Sequence], ...] = ([], [], [], [], [])
        for turn in sorted(self._turns.values(), key=lambda turn: turn.number):
            by_rank[self._rank(turn, now_ms)].append(turn)
        players, risen, scene, ambient, warm = by_rank
        return [*self._interleave(players, risen), *scene, *ambient, *warm]

    def note_begun(self, turn: Sequence, now_ms: float) -> None:
        """Call it when the turn has left the line for a slot."""
        risen = [other for other in self._turns.values() if self._rank(other, now_ms) == 1]
        if turn.native_class == 0:
            self._passed += bool(risen)
        elif self._rank(turn, now_ms) == 1 and all(turn.number < other.number for other in risen):
            self._passed = 0

    def wanted(self) -> set[AdapterKey]:
        return {key for turn in self._turns.values() for key in turn.keys}

    def note_complete(self, key: AdapterKey, here: AbstractSet[AdapterKey]) -> None:
        """The adapter has come: whose voice is all here by that, is invited."""
        for turn in self._turns.values():
            turn.invited |= key in turn.keys and turn.keys <= here

    def note_freed(self, key: AdapterKey) -> None:
        for turn in self._turns.values():
            turn.invited &= key not in turn.keys

    def validate(self) -> None:
        assert self.n_new <= self._config.max_waiting, f"{self.n_new} turns wait"
        for turn in self._turns.values():
            assert turn.place is None, f"turn {turn.turn} waits and holds slot {turn.place and turn.place.slot}"
            assert not turn.ended, f"turn {turn.turn} has ended and waits"

    def _rank(self, turn: Sequence, now_ms: float) -> int:
        """0 player, 1 risen to that class, 2 scene or risen to it, 3 ambient, 4 ambient and nothing to say."""
        if turn.native_class == 0:
            return 0
        return 1 + turn.class_at(now_ms, self._config.ageing_ms)

    def _interleave(self, players: list[Sequence], risen: list[Sequence]) -> Iterator[Sequence]:
        passed, next_player = self._passed, 0
        for turn in risen:
            n_first = max(0, self._config.players_in_a_row - passed)
            yield from players[next_player : next_player + n_first]
            yield turn
            next_player, passed = next_player + n_first, 0
        yield from players[next_player:]
