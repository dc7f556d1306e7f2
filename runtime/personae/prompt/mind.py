"""Which lore is in a prompt, and at which beat of the talk. Decides that from the talk and from what each entry costs; knows no tokens.

What is always known stands in the system text. The rest comes to mind at the beat that touches it and stands there, before what was heard,
for as long as that beat is in the prompt: so a prompt goes on to begin with the one before it, and the model reads an entry right before
the line that asks for it. A beat is touched by the newest lines up to it, its own heard line being the last; its reply is not among them,
for it was drawn after. Lines that were cut from the prompt still count there: what is in mind at a beat depends on the talk alone.

Where lore has no room for all of it, its rank decides: the higher priority, then what is always known, then what was touched last. The
talk is gone through from its first beat in the prompt to the newest, as it was played, with what was in mind then. That, and not a choice
made anew for each prompt, is what keeps entries in their places: something leaves only when something of a higher rank needs its room,
and then room to spare is made (budget.py), so that the next ones need not make any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from personae.prompt.budget import each_that_fits, each_that_stays
from personae.prompt.lorebook import NOTHING, Hits, Lorebook, Touched, places_in, set_of
from personae.prompt.parts import LoreRules
from personae.prompt.talk import Beat

MOST_LINES = 256  # looked back at, whatever the rules say
MOST_ROUNDS = 16


class Attention:
    """One talk as one character hears it: what each beat touches. Beats are counted from the first of the talk."""

    def __init__(self, book: Lorebook, rules: LoreRules, beats: Sequence[Beat]) -> None:
        self.book = book
        self.n_beats = len(beats)
        self._n_scanned = min(max(rules.scan_lines, 0), MOST_LINES)
        self._rounds = min(max(rules.recursion, 0), MOST_ROUNDS)
        self._lines: list[str] = []
        self._ends: list[int] = []  # of each beat: where the lines up to its heard one end
        self._touched: dict[int, Touched] = {}
        for beat in beats if book.keyed else ():
            said = beat.said
            self._ends.append(len(self._lines) + len(said) - (beat.reply is not None))
            self._lines += said

    def touched(self, beat: int) -> int:
        """The keyed entries that come to mind there, as a set."""
        return self._sets(beat).all if self.book.keyed else 0

    def beyond(self, beat: int) -> int:
        """Those that are touched there too, and are more than come to mind at once."""
        return self._sets(beat).beyond if self.book.keyed else 0

    def window(self, beat: int) -> range:
        """Lines that are looked through at that beat."""
        return range(max(0, self._ends[beat] - self._n_scanned), self._ends[beat])

    @property
    def n_lines(self) -> int:
        """Of the talk; 0 where nobody listens for keys."""
        return len(self._lines)

    def new_lines(self, beat: int) -> range:
        """Those of them that the beat before had not."""
        window = self.window(beat)
        return range(max(window.start, self._ends[beat - 1] if beat else 0), window.stop)

    def keys_in(self, line: int) -> int:
        """The entries of which a key is in that line, as a set."""
        return self.book.hits(self._lines[line]).keys

    def spoken(self, place: int, beat: int) -> tuple[str, str]:
        """The key of an entry that was said in the window of that beat, and the newest line with it. ("", "") where none was."""
        for line in reversed(self.window(beat)):
            if self.keys_in(line) >> place & 1:
                return self.book.key_in(place, self._lines[line]), self._lines[line]
        return "", ""

    def bringer(self, place: int, beat: int) -> int | None:
        return self.book.bringer(place, self._sets(beat))

    def _sets(self, beat: int) -> Touched:
        known = self._touched.get(beat)
        if known is None:
            known = self._touched[beat] = self.book.touched(self._seen(beat), self._rounds)
        return known

    def _seen(self, beat: int) -> Hits:
        seen = NOTHING
        for line in self.window(beat):
            if (hits := self.book.hits(self._lines[line])) is not NOTHING:
                seen |= hits
        return seen


@dataclass(frozen=True, slots=True)
class Mind:
    """The lore of one prompt. Entries are named by their place in the writer's list."""

    ranked: tuple[int, ...]  # all of it, the one that stays longest first
    beats: dict[int, int]  # of what came to mind: the beat where it stands
    touched: int  # all that the beats of the prompt touch, whether it found room or not, as a set
    beyond: int  # of those the ones that nowhere came to mind, for at each beat others went first
    n_tokens: int  # the most that all of it took together, at any beat


@dataclass(slots=True)
class Recall:
    """Goes through a talk and says what of the lore is in mind at its end.

    `cost`: tokens by which an entry makes the prompt longer. `always`: what stands in the system text whatever is said. `eligible`: None
    for all, else the only entries there may be, as a set.
    """

    attention: Attention
    cost: Callable[[int], int]
    room: int
    always: Sequence[int]
    eligible: int | None = None
    _costs: dict[int, int] = field(default_factory=dict, init=False)
    _present: int = field(default=0, init=False)
    _used: int = field(default=0, init=False)  # tokens of what is present
    _refused: int = field(default=0, init=False)  # what had no room when it was last asked
    _last: dict[int, int] = field(default_factory=dict, init=False)  # of each entry that was touched: the newest line that did it
    _brought: tuple[int, int] = field(default=(0, 0), init=False)  # what other entries bring along now, and since which line
    _beats: dict[int, int] = field(default_factory=dict, init=False)

    def since(self, start: int) -> Mind:
        """What is in mind at the last beat, when the prompt begins with the beat `start`."""
        self._refused, self._last, self._beats, self._brought = 0, {}, {}, (0, 0)
        self._hold(self._among(set_of(self.always)))
        most = 0 if start < self.attention.n_beats else self._used
        touched = beyond = 0
        for beat in range(start, self.attention.n_beats):
            now = self.attention.touched(beat)
            touched |= now
            beyond |= self.attention.beyond(beat)
            if now:
                self._hear(beat, self._among(now), first=beat == start)
            most = max(most, self._used)
        self._note_brought()
        ranked = sorted(places_in(self._present), key=self._rank)
        return Mind(
            tuple(ranked),
            {place: self._beats[place] for place in ranked if place in self._beats},
            touched | beyond,
            beyond & ~touched,
            most,
        )

    def _hear(self, beat: int, now: int, *, first: bool) -> None:
        is_news = self._note(beat, now, first=first)
        missing = now & ~self._present
        if missing and (is_news or missing & ~self._refused):
            before = self._present
            self._hold(self._with(missing, now))
            self._refused = now & ~self._present
            for place in places_in(before & ~self._present):
                self._beats.pop(place, None)
            for place in places_in(self._present & ~before):
                self._beats[place] = beat

    def _note(self, beat: int, now: int, *, first: bool) -> bool:
        """Remembers which lines touched what; whether those that are new at this beat have a key in them."""
        window = self.attention.window(beat)
        told = 0
        for line in window:
            told |= self.attention.keys_in(line)
        new = window if first else self.attention.new_lines(beat)
        for line in new:
            for place in places_in(self.attention.keys_in(line)):
                self._last[place] = line
        self._bring(now & ~told, window.start)
        return any(map(self.attention.keys_in, new))

    def _bring(self, places: int, line: int) -> None:
        """What is brought along counts as touched by the oldest line. It seldom changes from beat to beat, so it is noted when it has."""
        if places != self._brought[0]:
            self._note_brought()
        self._brought = (places, line)

    def _note_brought(self) -> None:
        places, line = self._brought
        for place in places_in(places):
            self._last[place] = max(self._last.get(place, -1), line - 1)

    def _with(self, missing: int, now: int) -> int:
        """What is there when room was found for what is missing, as far as that goes. `now`: all that the beat touches."""
        if self._used + self._total(missing) <= self.room:
            return self._present | missing
        self._note_brought()
        pool = sorted(places_in(self._present | missing), key=self._rank)
        costs = [self._cost(place) for place in pool]
        kept = each_that_fits(costs, self.room)
        if self._present & ~set_of(pool[index] for index in kept):
            must = [bool(now >> place & 1) or place not in self._beats for place in pool]
            kept = each_that_stays(costs, must, self.room)
        return set_of(pool[index] for index in kept)

    def _hold(self, places: int) -> None:
        self._present, self._used = places, self._total(places)

    def _rank(self, place: int) -> tuple[int, int, int, int]:
        """Smaller stays longer. What is always known counts as touched by a line that is yet to come."""
        entry = self.attention.book.lore[place]
        if self.attention.book.keyed >> place & 1:
            return -entry.priority, -self._last.get(place, -1), entry.order, place
        return -entry.priority, -self.attention.n_lines, entry.order, place

    def _total(self, places: int) -> int:
        return sum(map(self._cost, places_in(places)))

    def _cost(self, place: int) -> int:
        cost = self._costs.get(place)
        if cost is None:
            cost = self._costs[place] = self.cost(place)
        return cost

    def _among(self, places: int) -> int:
        return places if self.eligible is None else places & self.eligible
