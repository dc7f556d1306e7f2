"""What a character knows, ready to be called to mind. Decides which entries a text touches and which of them bring others along.

Knows no talk, no budget and no tokens. Entries go by their place in the writer's list, and a set of entries is an integer with a bit for
each: so that 256 entries which all bring each other along are a few hundred operations and not a hundred thousand.

- An entry without keys, or a constant one, is *always* known; it is in the system text, and brings nothing along.
- A *keyed* one is touched where a key of it is found and, if it has secondary keys, one of those too.
- The text of a touched entry is read for keys like a line of the talk, for so many rounds. An entry is touched or not: no circle goes on.
- A switched-off or blank entry is not there.

Packs come from strangers, and while a text is looked through nobody speaks: so all that a book may ask of a line
is bounded. Plain keys are looked up, not searched for (keys.py), and are bounded in number and length; regular expressions are
RE2's, joined so that most texts are asked about 32 with one search, and bounded in number and in the sum of their programs. What is beyond
is not asked, in the writer's order, and known by name. Of what a text touches no more comes to mind at once than a prompt may want. All
that is remembered, for a prompt repeats nearly everything the last one said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from personae.patterns import Pattern, compiled, joined
from personae.prompt.keys import KeyIndex
from personae.prompt.parts import Lore
from personae.prompt.talk import clean, paragraph

MOST_CHARS = 1000  # of a text, looked through for keys; bytes of it for regular expressions
MOST_AT_ONCE = 32  # entries that one place of the talk calls to mind
MOST_READ = 16  # of those, the ones whose texts are looked through for what they bring along
MOST_TEXTS = 2048  # remembered of one character: those of the talk, and the entries' own
MOST_BOOKS = 64  # characters whose books are kept ready
MOST_ALWAYS_BYTES = 1 << 16  # of all that is always known: what is tokenized to see how much of it has room
MOST_KEYED_BYTES = 1 << 19  # of all that has keys: fewer tokens than are remembered (tokens.py)
MOST_KEYS = 4096  # plain ones of one character, secondary ones included
MOST_KEY_CHARS = 1 << 16  # of those together
MOST_EXPRESSIONS = 256  # of one character, secondary keys included: as many as a pack may have
MOST_INSTRUCTIONS = 2048  # of their programs together: some 90 short words. What a text costs at the worst, 4 to 10 ns a byte each
MOST_MISSED = 8  # expressions too large for what room is left, before none is looked at any more
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


@dataclass(frozen=True, slots=True)
class Touched:
    """Sets of the keyed entries that are touched in one place: `rounds`, what comes to mind, first what the talk touches itself, then the
    same with those brought along in a first round, and so on; `beyond`, what would too if it were not so many.
    """

    rounds: tuple[int, ...]
    beyond: int = 0

    @property
    def all(self) -> int:
        return self.rounds[-1]


_Key = tuple[str, int, bool]  # a key, its bit, and whether it tells capital letters from small ones


class Lorebook:
    """One character's lore. `texts`: as they stand in a prompt, "" where there is none; a keyed one's is a single paragraph.

    `too_long`: entries beyond what a book may hold; `too_many_keys`: those of which some keys are not looked for.
    """

    def __init__(self, lore: Sequence[Lore]) -> None:
        self.lore = tuple(lore)
        self.labels = tuple(map(_label, self.lore))
        is_keyed = [bool(entry.keys) and not entry.constant for entry in self.lore]
        texts = [(paragraph if is_keyed[at] else clean)(entry.text) if entry.enabled else "" for at, entry in enumerate(self.lore)]
        foremost = sorted((at for at, text in enumerate(texts) if text), key=lambda at: (-self.lore[at].priority, self.lore[at].order, at))
        always = _first_within(MOST_ALWAYS_BYTES, [at for at in foremost if not is_keyed[at]], texts)
        self._foremost = _first_within(MOST_KEYED_BYTES, [at for at in foremost if is_keyed[at]], texts)
        self.always = tuple(sorted(always))
        self.keyed = set_of(self._foremost)
        self.too_long = set_of(foremost) & ~self.keyed & ~set_of(always)
        self.texts = tuple(text if self.too_long >> at & 1 == 0 else "" for at, text in enumerate(texts))
        self.n_off = sum(not entry.enabled for entry in self.lore)
        self._with_secondary = set_of(place for place in places_in(self.keyed) if self.lore[place].secondary)
        plain, beyond = _affordable_keys(self._keys(regex=False))
        self._plain = _by_bit(plain)
        self._indices = [_index(plain, case_sensitive) for case_sensitive in (False, True)]
        self._expressions = _Expressions(self._keys(regex=True))
        self.too_many_keys = self._split(_bits(beyond) | self._expressions.not_asked)
        self._found: OrderedDict[str, Hits] = OrderedDict()
        self._sets: dict[tuple[Hits, int], Touched] = {}
        self._said: dict[tuple[int, str], str] = {}

    def hits(self, text: str) -> Hits:
        """What is found in a text; remembered."""
        if not self.keyed:
            return NOTHING
        known = self._found.get(text)
        if known is None:
            return self._look(text)
        self._found.move_to_end(text)
        return known

    def touched(self, seen: Hits, rounds: int) -> Touched:
        """What comes to mind where `seen` is found in the talk."""
        sets = self._sets.get((seen, rounds))
        if sets is None:
            if len(self._sets) >= MOST_TEXTS:
                self._sets.clear()
            sets = self._sets[seen, rounds] = self._bring(seen, rounds)
        return sets

    def _bring(self, seen: Hits, rounds: int) -> Touched:
        touched = new = self._at_once(self._of(seen), MOST_AT_ONCE)
        sets, n_read = [touched], 0
        for _ in range(rounds):
            read = self._at_once(new, MOST_READ - n_read)
            n_read += read.bit_count()
            for place in places_in(read):
                seen |= self.hits(self.texts[place])
            new = self._at_once(self._of(seen) & ~touched, MOST_AT_ONCE - touched.bit_count())
            if not new:
                break
            touched |= new
            sets.append(touched)
        return Touched(tuple(sets), self._of(seen) & ~touched)

    def _at_once(self, places: int, most: int) -> int:
        """Those of the highest priority, then those that stand first, where there are more."""
        if places.bit_count() <= most:
            return places
        return set_of(islice((place for place in self._foremost if places >> place & 1), most))

    def bringer(self, place: int, touched: Touched) -> int | None:
        """The entry that brought the one at `place` along; None where the talk touched it itself, or nothing did."""
        for before, after in pairwise(touched.rounds):
            if (after & ~before) >> place & 1:
                return next((by for by in places_in(before) if self._has(self.hits(self.texts[by]), place)), None)
        return None

    def key_in(self, place: int, text: str) -> str:
        """The first key of the entry that is in the text; "" when none is. Remembered: every receipt asks again."""
        key = self._said.get((place, text))
        if key is None:
            if len(self._said) >= MOST_TEXTS:
                self._said.clear()
            key = self._said[place, text] = self._key_in(place, text[:MOST_CHARS])
        return key

    def _key_in(self, place: int, text: str) -> str:
        entry = self.lore[place]
        if entry.regex:
            asked = _as_bytes(text)
            return next((key for key in entry.keys if _matches(key, asked, entry.case_sensitive)), "")
        keys = self._plain.get(1 << place, [])
        found = KeyIndex(((key, 1 << at) for at, key in enumerate(keys)), case_sensitive=entry.case_sensitive).found(text)
        return keys[next(places_in(found))] if found else ""

    def _of(self, seen: Hits) -> int:
        return seen.keys & (seen.secondary | ~self._with_secondary)

    def _has(self, hits: Hits, place: int) -> bool:
        return bool((hits.keys | hits.secondary) >> place & 1)

    def _look(self, text: str) -> Hits:
        beginning = text[:MOST_CHARS]
        bits = self._expressions.found(beginning)
        for index in self._indices:
            bits |= index.found(beginning)
        n = len(self.lore)
        hits = Hits(bits & ((1 << n) - 1), bits >> n) if bits else NOTHING
        self._found[text] = hits
        if len(self._found) > MOST_TEXTS:
            self._found.popitem(last=False)
        return hits

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
        self._n_missed = 0
        self.not_asked = _bits(in_order[MOST_EXPRESSIONS:])
        for case_sensitive in (False, True):
            alike = [key for key in allowed if key[2] == case_sensitive]
            for start in range(0, len(alike), TOGETHER):
                self._take(alike[start : start + TOGETHER], case_sensitive)

    def found(self, text: str) -> int:
        mask = 0
        asked = _as_bytes(text) if self._searches else b""
        for search in self._searches:
            mask |= search.found(asked)
        return mask

    def _take(self, keys: list[_Key], case_sensitive: bool) -> None:
        """Together, else in halves. After some that find no room none is looked at: to find out how large they are takes time."""
        search = _search(keys, case_sensitive) if self._n_missed < MOST_MISSED else None
        if search and search.any.programsize <= self._room:
            self._room -= search.any.programsize
            self._searches.append(search)
        elif len(keys) > 1:
            half = len(keys) // 2
            self._take(keys[:half], case_sensitive)
            self._take(keys[half:], case_sensitive)
        else:
            self.not_asked |= _bits(keys) if search or self._n_missed >= MOST_MISSED else 0
            self._n_missed += 1


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


def _search(keys: list[_Key], case_sensitive: bool) -> _Search | None:
    """None where they cannot be joined, or where one cannot be used at all: such a pack is refused when it is read."""
    expressions = [key for key, _, _ in keys]
    found = joined(expressions, case_sensitive=case_sensitive) if len(keys) > 1 else _expression(expressions[0], case_sensitive)
    return _Search(keys, found) if found else None


def _first_within(most_bytes: int, places: Sequence[int], texts: Sequence[str]) -> list[int]:
    """As many of the places, from the first, as have texts that long together."""
    lengths = accumulate(len(texts[place].encode()) for place in places)
    return [place for place, length in zip(places, lengths, strict=True) if length <= most_bytes]


def _affordable_keys(keys: Iterable[_Key]) -> tuple[list[_Key], list[_Key]]:
    """Plain keys as far as they are looked for, and those beyond."""
    in_order = list(keys)
    lengths = accumulate(len(key) for key, _, _ in in_order)
    n = sum(1 for length in islice(lengths, MOST_KEYS) if length <= MOST_KEY_CHARS)
    return in_order[:n], in_order[n:]


def _by_bit(keys: Iterable[_Key]) -> dict[int, list[str]]:
    by_bit: dict[int, list[str]] = {}
    for key, bit, _ in keys:
        by_bit.setdefault(bit, []).append(key)
    return by_bit


def _index(keys: Iterable[_Key], case_sensitive: bool) -> KeyIndex:
    return KeyIndex(((key, bit) for key, bit, sensitive in keys if sensitive == case_sensitive), case_sensitive=case_sensitive)


def _as_bytes(text: str) -> bytes:
    """Its beginning, in whole characters."""
    return text.encode()[:MOST_CHARS].decode("utf-8", "ignore").encode()


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


def _matches(key: str, text: bytes, case_sensitive: bool) -> bool:
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
