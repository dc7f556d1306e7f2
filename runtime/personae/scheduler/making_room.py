"""Which adapters come and which make room for them, for one turn after the other along one walk down the line. Orders nothing itself.

A voice needs all its adapters here. Those that are missing come together, once there is room for all of them: out of what is free, or of
the adapters used longest ago that no slot at work uses and no turn further ahead wants; those that nobody in line wants go first. Where
that is not enough, adapters in use are *closing* for the turn: nobody further behind begins under them, so that they come free when those
that speak with them have ended. Without that, steady traffic of resident adapters would keep a new one out for ever. What is promised to
a turn that way, turns behind it do not take: neither the room nor what will become room. Where even that is not enough, the turn is
passed over and nothing is reserved: it waits for those ahead of it. A voice larger than all room comes when nothing else is left here.

What a voice was loaded for once should serve all who wait for it by then. They are *invited*: they may begin under an adapter that is
closing, and it does not go before they have, unless for a turn of a higher class. Whoever asks later is not.

Why nobody waits for ever, whatever the voices share. Take the first turn in line that lacks an adapter. Nobody ahead of it lacks any, so
those need a slot and nothing else, and slots come free. Then nothing is wanted ahead of it, and whatever does not belong to its own voice
may go for it: what is idle, at once; what is on its way, when it has come; what slots at work use, or is held for invited turns, when
those have ended, which all turns do, and no other begins under it meanwhile. So no turn ever waits for one behind it but for those at
work, which wait for nobody's adapters; a circle of turns that hold what the others need cannot close, for who only waits holds nothing
that the first may not take. The first has its voice in the end, and then there is another first; the line sees to it that each
turn gets there (waiting.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from personae.scheduler.adapters import AdapterTable, Load
from personae.scheduler.sequence import Sequence
from personae.types import AdapterKey


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now for one turn: first free, then load."""

    free: tuple[AdapterKey, ...] = ()
    load: tuple[AdapterKey, ...] = ()


STAY = Moves()


class MakingRoom:
    """The adapters, as turns of one walk see them. Whoever walks carries out what is decided before it asks for the next turn."""

    def __init__(self, table: AdapterTable, in_use: AbstractSet[AdapterKey], line: list[Sequence], now_ms: float, ageing_ms: float) -> None:
        """`in_use`: by slots at work. `line`: all that wait, first to go first."""
        self._table = table
        self._in_use = set(in_use)
        self._line = line
        self._now_ms, self._ageing_ms = now_ms, ageing_ms
        self._wanted = {key for turn in line for key in turn.keys}
        self._ahead: set[AdapterKey] = set()  # wanted by turns already passed
        self._closing: dict[AdapterKey, int] = {}  # and the class of the turn that each closes for
        self._coming: dict[AdapterKey, int] = {}  # promised to turns already passed, and not ordered yet; in bytes
        self._left: Load | None = None  # the most that anybody further behind can have; None: nobody was refused yet

    def _class(self, turn: Sequence) -> int:
        return turn.class_at(self._now_ms, self._ageing_ms)

    def is_ready(self, turn: Sequence) -> bool:
        return self._table.are_here(turn.keys) and not any(self._is_closed(key, turn) for key in turn.keys & self._closing.keys())

    def _is_closed(self, key: AdapterKey, turn: Sequence) -> bool:
        return not turn.invited or self._class(turn) > self._closing[key]

    def note_begun(self, turn: Sequence) -> None:
        self._in_use |= turn.keys

    def note_passed(self, turn: Sequence) -> None:
        """The walk goes on to those behind it."""
        self._ahead |= turn.keys - self._closing.keys()

    # --- for a turn that lacks adapters -------------------------------------------------------------------------------

    def seek(self, turn: Sequence) -> Moves:
        """What to do now so that it gets what it lacks."""
        if self._is_full or not self._closing.keys().isdisjoint(turn.keys):
            return STAY  # what closes must come free first
        need = {key: n_bytes for key, n_bytes in self._table.missing(turn.asked.sources).items() if key not in self._coming}
        suspects = sorted(self._table.suspects.among(need.keys()))
        if not need or (suspects and self._on_trial()):
            return STAY
        free = self._room_for(turn, need, self._untried(turn) if suspects else [])
        if free is None:
            return STAY
        load = tuple(key for key in need if key not in suspects[1:])
        self._coming |= {key: need[key] for key in suspects[1:]}
        return Moves(free, load)

    def _room_for(self, turn: Sequence, need: dict[AdapterKey, int], must_go: list[AdapterKey]) -> tuple[AdapterKey, ...] | None:
        """What to free so that all of it fits now; () is nothing, None: it does not fit yet. Then what is to close is noted."""
        more = Load(len(need), sum(need.values()))
        if self._left is not None and not self._left.holds(more):
            return None
        spare = [*must_go, *(key for key in self._spare(turn) if key not in must_go)]
        n_free = self._how_many_go(spare, more, at_least=len(must_go))
        if n_free is not None:
            return tuple(spare[:n_free])
        if self._is_alone(turn, spare):
            self._table.note_alone(turn.keys)
            return tuple(spare)
        self._close_for(turn, need, more, spare)
        return None

    def _how_many_go(self, spare: list[AdapterKey], more: Load, at_least: int) -> int | None:
        """Of these, until `more` fits beside all that is here, and beside what is promised as well. None: all are not enough."""
        now, later = self._table.load + more, self._later() + more
        for n, key in enumerate([*spare, None]):
            if n >= at_least and self._table.fits(now) and self._table.fits(later):
                return n
            gone = self._table.load_of([key] if key is not None else [])
            now, later = now - gone, later - gone
        return None

    def _later(self) -> Load:
        """What will be here when all is as it was promised to turns already passed."""
        return self._table.load - self._table.load_of(self._closing) + Load(len(self._coming), sum(self._coming.values()))

    @property
    def _is_full(self) -> bool:
        return self._left is not None and (self._left.n <= 0 or self._left.n_bytes <= 0)

    def _is_alone(self, turn: Sequence, gone: Iterable[AdapterKey]) -> bool:
        """Whether its own are all that is left or promised when these are gone."""
        others = (self._table.resident | self._table.loading | self._coming.keys()) - turn.keys
        return others <= set(gone)

    def _spare(self, turn: Sequence) -> list[AdapterKey]:
        """What may go for it now, first to go first: those that nobody in line wants, and at the end those that could not come back."""
        its_class = self._class(turn)
        invited = {key for other in self._line if other.invited and self._class(other) <= its_class for key in other.keys}
        needed = self._in_use | self._ahead | self._closing.keys() | turn.keys | invited
        spare = [key for key in self._table.resident if key not in needed]
        return sorted(spare, key=lambda key: (key in self._wanted) + (key in self._wanted and key in self._table.retired))

    def _close_for(self, turn: Sequence, need: dict[AdapterKey, int], more: Load, spare: list[AdapterKey]) -> None:
        """As few adapters as will do, those first that are in nobody's use, then those used longest ago; none if all were not enough."""
        kept = self._ahead | self._closing.keys() | turn.keys
        rest = [*self._table.resident, *self._table.loading]
        may_close = [key for key in dict.fromkeys([*spare, *rest]) if key not in kept]
        later, n_close = self._later() + more, 0
        while n_close < len(may_close) and not self._table.fits(later):
            later -= self._table.load_of([may_close[n_close]])
            n_close += 1
        if self._table.fits(later) or self._is_alone(turn, {*may_close, *self._closing}):
            self._closing |= dict.fromkeys(may_close[:n_close], self._class(turn))
            self._coming |= need
        else:
            self._left = self._table.room_beside(later - more)

    # --- those that may have killed the engine ------------------------------------------------------------------------

    def _on_trial(self) -> set[AdapterKey]:
        """Suspects that somebody is about to clear."""
        table = self._table
        return table.suspects.among(table.loading | self._in_use | (self._ahead & table.resident))

    def _untried(self, turn: Sequence) -> list[AdapterKey]:
        """Suspects that are here and that nobody is about to clear: they go before another comes."""
        others = self._table.resident - turn.keys - self._in_use - self._ahead - self._closing.keys()
        return sorted(self._table.suspects.among(others))

    # --- when more came than was promised -----------------------------------------------------------------------------

    def excess(self) -> tuple[AdapterKey, ...]:
        """What to free at once since what came was larger than its file had said. What slots use stays, and of what turns wait for as much
        as fits, in the order of the line."""
        table = self._table
        if not table.take_excess():
            return ()
        kept, load, gone = self._kept(), table.load, list[AdapterKey]()
        for key in table.resident:
            if key not in kept and not table.fits(Load(0, load.n_bytes)):
                gone.append(key)
                load -= table.load_of([key])
        return tuple(gone)

    def _kept(self) -> set[AdapterKey]:
        """By the same rule as `seek` goes by, so that nothing is freed here that would be ordered again at once."""
        table, kept = self._table, set(self._in_use)
        table.note_alone(frozenset(kept))
        for turn in self._line:
            with_it = kept | (turn.keys & (table.resident | table.loading))
            is_alone = kept <= turn.keys and not table.fits(table.load_of(with_it))
            if is_alone:
                table.note_alone(turn.keys)
            if is_alone or table.fits(table.load_of(with_it)):
                kept = with_it
        return kept
