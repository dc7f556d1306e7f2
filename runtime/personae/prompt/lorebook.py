"""What a character knows, ready to be called to mind. Decides which entries a text touches and which of them bring others along.

Knows no talk, no budget and no tokens. Entries go by their place in the writer's list, and a set of entries is an integer with a bit for
each: so that 256 entries which all bring each other along are a few hundred operations and not a hundred thousand.

- An entry without keys, or a constant one, is *always* known; it is in the system text, and brings nothing along.
- A *keyed* one is touched where a key of it is found and, if it has secondary keys, one of those too.
- The text of a touched entry is read for keys like a line of the talk, for so many rounds. An entry is touched or not: no circle goes on.
- A switched-off or blank entry is not there.

Packs come from strangers. Plain keys are looked up, not searched for (keys.py); regular expressions are RE2's, joined so that most texts
are asked about 32 with one search, and bounded in number and in the sum of their programs. What a text touches is remembered, for a prompt
repeats nearly everything the last one said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from personae.patterns import Pattern, compiled, joined
from personae.prompt.keys import KeyIndex
from personae.prompt.parts import Lore
from personae.prompt.talk import clean, paragraph

MOST_CHARS = 4000  # of a text, looked through for keys: as long as an entry may be
MOST_TEXTS = 2048  # remembered of one character: those of the talk, and the entries' own
MOST_BOOKS = 64  # characters whose books are kept ready
MOST_EXPRESSIONS = 256  # of one character, secondary keys included: as many as a pack may have
MOST_INSTRUCTIONS = 12_288  # of their programs together: what a text costs at the worst, in steps of some 10 ns a byte
TOGETHER = 32  # expressions in one search
LABEL_LENGTH = 40  # characters of an entry without a name


@dataclass(frozen=True, slots=True)
class Hits:
    """Sets of entries: those of which a key was found, and those of which a secondary key was."""

    keys: int = 0
    secondary: int = 0

    def __or__(self, other: Hits) -> Hits:
        return Hits(self.keys | other.keys, self.secondary | other.secondary)


NOTHING = Hits()
_Key = tuple[str, int, bool]  # a key, its bit, and whether it tells capital letters from small ones


class Lorebook:
    """One character's lore. `texts`: as they stand in a prompt, "" where there is none; a keyed one's is a single paragraph."""

    def __init__(self, lore: Sequence[Lore]) -> None:
        self.lore = tuple(lore)
        self.labels = tuple(map(_label, self.lore))
        known = [entry.enabled and bool(clean(entry.text)) for entry in self.lore]
        is_keyed = [bool(entry.keys) and not entry.constant for entry in self.lore]
        self.always = tuple(place for place, entry in enumerate(self.lore) if known[place] and not is_keyed[place])
        self.keyed = set_of(place for place in range(len(self.lore)) if known[place] and is_keyed[place])
        self.texts = tuple((paragraph if is_keyed[at] else clean)(entry.text) if known[at] else "" for at, entry in enumerate(self.lore))
        self.n_off = sum(not entry.enabled for entry in self.lore)
        self._with_secondary = set_of(place for place in places_in(self.keyed) if self.lore[place].secondary)
        self._indices = [self._index(case_sensitive) for case_sensitive in (False, True)]
        self._expressions = _Expressions(self._keys(regex=True))
        self._found: OrderedDict[str, Hits] = OrderedDict()
        self._sets: dict[tuple[Hits, int], list[int]] = {}
        self._said: dict[tuple[int, str], str] = {}

    @property
    def too_much(self) -> int:
        """Entries of which some regular expressions are not looked for."""
        return self._split(self._expressions.not_asked)

    def hits(self, text: str) -> Hits:
        """What is found in a text; remembered."""
        if not self.keyed:
            return NOTHING
        known = self._found.get(text)
        if known is None:
            return self._look(text)
        self._found.move_to_end(text)
        return known

    def touched(self, seen: Hits, rounds: int) -> list[int]:
        """Sets of the keyed entries that come to mind where `seen` is found in the talk: those that the talk touches itself, then the
        same with those brought along in a first round, and so on. The last set is all of them.
        """
        sets = self._sets.get((seen, rounds))
        if sets is None:
            if len(self._sets) >= MOST_TEXTS:
                self._sets.clear()
            sets = self._sets[seen, rounds] = self._bring(seen, rounds)
        return sets

    def _bring(self, seen: Hits, rounds: int) -> list[int]:
        touched = new = self._of(seen)
        sets = [touched]
        for _ in range(rounds):
            for place in places_in(new):
                seen |= self.hits(self.texts[place])
            new = self._of(seen) & ~touched
            if not new:
                break
            touched |= new
            sets.append(touched)
        return sets

    def bringer(self, place: int, touched: Sequence[int]) -> int | None:
        """The entry that brought the one at `place` along, of such sets; None where the talk touched it itself, or nothing did."""
        for before, after in pairwise(touched):
            if (after & ~before) >> place & 1:
                return next((by for by in places_in(before) if self._has(self.hits(self.texts[by]), place)), None)
        return None

    def key_in(self, place: int, text: str) -> str:
        """The first key of the entry that is in the text; "" when none is. Remembered: every receipt asks again."""
        key = self._said.get((place, text))
        if key is None:
            if len(self._said) >= MOST_TEXTS:
                self._said.clear()
            key = self._said[place, text] = _key_in(self.lore[place], text[:MOST_CHARS])
        return key

    def _of(self, seen: Hits) -> int:
        return seen.keys & (seen.secondary | ~self._with_secondary)

    def _has(self, hits: Hits, place: int) -> bool:
        return bool((hits.keys | hits.secondary) >> place & 1)

    def _look(self, text: str) -> Hits:
        beginning = text[:MOST_CHARS]
        bits = self._expressions.found(beginning.encode())
        for index in self._indices:
            bits |= index.found(beginning)
        n = len(self.lore)
        hits = Hits(bits & ((1 << n) - 1), bits >> n) if bits else NOTHING
        self._found[text] = hits
        if len(self._found) > MOST_TEXTS:
            self._found.popitem(last=False)
        return hits

    def _index(self, case_sensitive: bool) -> KeyIndex:
        keys = ((key, bit) for key, bit, sensitive in self._keys(regex=False) if sensitive == case_sensitive)
        return KeyIndex(keys, case_sensitive=case_sensitive)

    def _keys(self, *, regex: bool) -> Iterator[_Key]:
        """Every key. The secondary ones' bits stand behind all others."""
        for place in places_in(self.keyed):
            entry = self.lore[place]
            if entry.regex == regex:
                yield from ((key, 1 << place, entry.case_sensitive) for key in entry.keys)
                yield from ((key, 1 << place + len(self.lore), entry.case_sensitive) for key in entry.secondary)

    def _split(self, bits: int) -> int:
        n = len(self.lore)
        return (bits | bits >> n) & ((1 << n) - 1)


class Library:
    """Books, made when they are first needed and kept while they are in use."""

    def __init__(self) -> None:
        self._books: OrderedDict[int, Lorebook] = OrderedDict()

    def of(self, lore: Sequence[Lore]) -> Lorebook:
        """The same tuple has the same book. Any other sequence may have changed since: it is read again."""
        if not isinstance(lore, tuple):
            return Lorebook(lore)
        book = self._books.get(id(lore))
        if book is None or book.lore is not lore:  # the book keeps its tuple alive: no other can have its id meanwhile
            book = self._books[id(lore)] = Lorebook(lore)
        self._books.move_to_end(id(lore))
        if len(self._books) > MOST_BOOKS:
            self._books.popitem(last=False)
        return book


class _Expressions:
    """Regular expressions, each with its bit. Those beyond the bounds are not asked, and their bits are in `not_asked`."""

    def __init__(self, keys: Iterator[_Key]) -> None:
        in_order = list(keys)
        allowed = in_order[:MOST_EXPRESSIONS]
        self._searches: list[_Search] = []
        self._room = MOST_INSTRUCTIONS
        self.not_asked = _bits(in_order[MOST_EXPRESSIONS:])
        for case_sensitive in (False, True):
            alike = [key for key in allowed if key[2] == case_sensitive]
            for start in range(0, len(alike), TOGETHER):
                self._take(alike[start : start + TOGETHER], case_sensitive)

    def found(self, text: bytes) -> int:
        mask = 0
        for search in self._searches:
            mask |= search.found(text)
        return mask

    def _take(self, keys: list[_Key], case_sensitive: bool) -> None:
        """When one finds no room, none behind it is looked at: to find out how large they are would take its time too."""
        for search in _searches(keys, case_sensitive) if self._room else ():
            if search.any.programsize > self._room:
                self._room = 0
                break
            self._room -= search.any.programsize
            self._searches.append(search)
            keys = keys[keys.index(search.keys[-1]) + 1 :]
        if not self._room:
            self.not_asked |= _bits(keys)


@dataclass(frozen=True, slots=True)
class _Search:
    """Expressions that are asked together first, and one by one where any of them matches."""

    keys: list[_Key]
    any: Pattern

    def found(self, text: bytes) -> int:
        if self.any.search(text) is None:
            return 0
        if len(self.keys) == 1:
            return self.keys[0][1]
        return _bits([key for key in self.keys if _matches(key[0], text, key[2])])


def _searches(keys: list[_Key], case_sensitive: bool) -> Iterator[_Search]:
    """As few as it takes: halves of what cannot be joined. What cannot be used at all is left out: such a pack is refused when read."""
    if len(keys) == 1:
        alone = _expression(keys[0][0], case_sensitive)
        yield from [_Search(keys, alone)] if alone else []
    elif together := joined([key for key, _, _ in keys], case_sensitive=case_sensitive):
        yield _Search(keys, together)
    else:
        half = len(keys) // 2
        yield from _searches(keys[:half], case_sensitive)
        yield from _searches(keys[half:], case_sensitive)


def set_of(places: Iterable[int]) -> int:
    bits = 0
    for place in places:
        bits |= 1 << place
    return bits


def places_in(bits: int) -> Iterator[int]:
    """Of a set of entries, rising."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _bits(keys: Sequence[_Key]) -> int:
    mask = 0
    for _, bit, _ in keys:
        mask |= bit
    return mask


def _key_in(entry: Lore, text: str) -> str:
    if entry.regex:
        return next((key for key in entry.keys if _matches(key, text, entry.case_sensitive)), "")
    found = KeyIndex(((key, 1 << place) for place, key in enumerate(entry.keys)), case_sensitive=entry.case_sensitive).found(text)
    return entry.keys[next(places_in(found))] if found else ""


def _matches(key: str, text: str | bytes, case_sensitive: bool) -> bool:
    expression = _expression(key, case_sensitive)
    return expression is not None and expression.search(text) is not None


def _expression(key: str, case_sensitive: bool) -> Pattern | None:
    """None for one that cannot be used."""
    try:
        return compiled(key, case_sensitive=case_sensitive)
    except ValueError:
        return None


def _label(entry: Lore) -> str:
    """What people call it: its name, else its first words."""
    if name := paragraph(entry.name):
        return name
    text = paragraph(entry.text)
    return text if len(text) <= LABEL_LENGTH else text[:LABEL_LENGTH].rsplit(" ", 1)[0] + "…"
