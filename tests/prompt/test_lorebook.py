from __future__ import annotations

import pytest

from personae.prompt.lorebook import (
    MOST_ALWAYS_BYTES,
    MOST_AT_ONCE,
    MOST_BOOKS,
    MOST_CHARS,
    MOST_EXPRESSIONS,
    MOST_KEY_CHARS,
    MOST_KEYED_BYTES,
    MOST_KEYS,
    MOST_READ,
    MOST_TEXTS,
    Hits,
    Library,
    Lorebook,
    places_in,
)
from tests.prompt.lines import Entry


def book_of(*entries: Entry) -> Lorebook:
    return Lorebook(entries)


def touched(book: Lorebook, *lines: str, rounds: int = 0) -> list[int]:
    seen = Hits()
    for line in lines:
        seen |= book.hits(line)
    return list(places_in(book.touched(seen, rounds).all))


def test_what_has_no_key_or_is_constant_is_always_known_and_what_is_off_or_blank_never() -> None:
    book = book_of(
        Entry("a"),
        Entry("b", keys=("k",), constant=True),
        Entry("c", keys=("k",)),
        Entry("d", enabled=False),
        Entry(" "),
        Entry("", keys=("k",)),
    )
    assert (book.always, list(places_in(book.keyed)), book.n_off) == ((0, 1), [2], 1)
    assert touched(book, "k") == [2]


def test_any_key_touches_and_a_secondary_one_is_needed_too_where_there_are_any() -> None:
    book = book_of(Entry("a", keys=("mill", "wheel")), Entry("b", keys=("mill",), secondary=("night", "ghost")))
    assert touched(book, "the wheel") == [0]
    assert touched(book, "the mill") == [0]
    assert touched(book, "a ghost") == []
    assert touched(book, "a ghost", "the mill") == [0, 1]


def test_regular_expressions_and_words_may_stand_side_by_side() -> None:
    book = book_of(
        Entry("a", keys=(r"gob(lin)?s?\b",), regex=True),
        Entry("b", keys=("goblin",)),
        Entry("c", keys=("Gob",), regex=True, case_sensitive=True),
        Entry("d", keys=("orc",), secondary=("^At",), regex=True),
    )
    assert touched(book, "Goblin!") == [0, 1, 2]
    assert touched(book, "gobs") == [0]
    assert touched(book, "At night an ORC came") == [3]


def test_lore_brings_other_lore_along_for_so_many_rounds() -> None:
    book = book_of(*(Entry(f"Of w{n + 1}.", keys=(f"w{n}",)) for n in range(5)))
    assert [len(touched(book, "w0", rounds=rounds)) for rounds in range(7)] == [1, 2, 3, 4, 5, 5, 5]


def test_what_is_always_known_brings_nothing_along() -> None:
    assert touched(book_of(Entry("The mill."), Entry("b", keys=("mill",))), "hello", rounds=3) == []


def test_a_text_may_bring_the_secondary_key_that_the_talk_did_not() -> None:
    book = book_of(Entry("By night.", keys=("wheel",)), Entry("b", keys=("mill",), secondary=("night",)))
    assert touched(book, "mill") == []
    assert touched(book, "mill", "wheel", rounds=1) == [0, 1]


def test_circles_end_and_everybody_has_one_bringer() -> None:
    book = book_of(*(Entry("All: " + " ".join(f"w{n}" for n in range(256)), keys=(f"w{n}",)) for n in range(256)))
    sets = book.touched(book.hits("w7"), 1_000_000)
    assert [each.bit_count() for each in sets.rounds] == [1, MOST_AT_ONCE]
    assert book.bringer(7, sets) is None
    assert {book.bringer(place, sets) for place in places_in(sets.all) if place != 7} == {7}


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|a)*b", "(.*a){30}z", "(([ab]x?){50}y?){15}q"])
def test_expressions_that_explode_elsewhere_are_searched_in_a_moment(pattern: str) -> None:
    book = book_of(Entry("a", keys=(pattern,), regex=True), Entry("b", keys=("end",), regex=True))
    assert touched(book, "xa" * 1000) == []
    assert touched(book, "end") == [1]


def test_expressions_beyond_the_bound_are_not_looked_for_and_known_by_name() -> None:
    book = book_of(*(Entry("t", keys=(f"w{n}x",), regex=True) for n in range(MOST_EXPRESSIONS + 3)))
    assert list(places_in(book.too_many_keys)) == [MOST_EXPRESSIONS, MOST_EXPRESSIONS + 1, MOST_EXPRESSIONS + 2]
    assert touched(book, f"w1x w{MOST_EXPRESSIONS}x") == [1]


def test_of_expressions_that_are_too_large_together_the_first_are_looked_for() -> None:
    book = book_of(*(Entry("t", keys=(f"(?:[a-z ]{{0,20}}q){{3}}{n}",), regex=True) for n in range(40)))
    left = list(places_in(book.too_many_keys))
    assert left == list(range(left[0], 40))
    assert 1 < left[0] < 40
    assert touched(book, f"a q b q c q1, a q b q c q{left[0]}") == [1]


def test_an_expression_that_is_too_large_does_not_silence_those_behind_it() -> None:
    book = book_of(
        Entry("a", keys=("(([ab]x?){50}y?){15}q",), regex=True), *(Entry("b", keys=(rf"\bmill{n}\b",), regex=True) for n in range(40))
    )
    assert list(places_in(book.too_many_keys)) == [0]
    assert touched(book, "mill39") == [40]


def test_plain_keys_beyond_the_bounds_are_not_looked_for_and_known_by_name() -> None:
    many = book_of(
        *(Entry("t", keys=tuple(f"w{n} {key}" for key in range(64))) for n in range(MOST_KEYS // 64)), Entry("t", keys=("mill",))
    )
    assert (list(places_in(many.too_many_keys)), touched(many, "mill, w3 7")) == ([MOST_KEYS // 64], [3])
    long = book_of(Entry("t", keys=("k" * MOST_KEY_CHARS, "inn")), Entry("t", keys=("mill",)))
    assert (list(places_in(long.too_many_keys)), touched(long, "inn, mill")) == ([0, 1], [])


def test_what_is_always_known_has_a_bound_and_what_has_keys_another() -> None:
    half = MOST_ALWAYS_BYTES // 2
    book = book_of(Entry("ä" * half), Entry("b" * half, priority=-1), Entry("c" * half, priority=1), Entry("k" * half, keys=("k",)))
    assert (book.always, list(places_in(book.too_long)), touched(book, "k")) == ((2,), [0, 1], [3])
    keyed = book_of(*(Entry("t" * 4000, keys=(f"w{n}",)) for n in range(MOST_KEYED_BYTES // 4000 + 1)))
    assert list(places_in(keyed.too_long)) == [MOST_KEYED_BYTES // 4000]


def test_of_more_than_come_to_mind_at_once_the_highest_priorities_do_and_the_others_are_known() -> None:
    book = book_of(*(Entry("t", keys=("mill",), priority=n) for n in range(MOST_AT_ONCE + 2)))
    found = book.touched(book.hits("mill"), 1)
    assert (found.all, found.beyond) == ((1 << MOST_AT_ONCE + 2) - 4, 3)


def test_what_others_bring_never_takes_the_place_of_what_the_talk_touches() -> None:
    book = book_of(*(Entry("t", keys=("river",), priority=9) for _ in range(MOST_AT_ONCE)), Entry("The river.", keys=("mill",)))
    found = book.touched(book.hits("mill"), 1)
    assert [places.bit_count() for places in found.rounds] == [1, MOST_AT_ONCE]
    assert (found.rounds[0], found.beyond.bit_count()) == (1 << MOST_AT_ONCE, 1)


def test_only_so_many_texts_are_read_for_what_they_bring() -> None:
    rivers = [Entry(f"river{n}", keys=("mill",)) for n in range(MOST_READ + 1)]
    book = book_of(*rivers, Entry("t", keys=(f"river{MOST_READ - 1}",)), Entry("t", keys=(f"river{MOST_READ}",)))
    assert touched(book, "mill", rounds=1) == [*range(MOST_READ + 2)]


def test_an_expression_that_is_none_touches_nothing_and_spoils_no_other() -> None:
    book = book_of(Entry("a", keys=("(",), regex=True), Entry("b", keys=("mill",), regex=True), Entry("c", keys=(r"\Qc+",), regex=True))
    assert touched(book, "mill ( c+") == [1, 2]
    assert book.too_many_keys == 0


def test_a_long_text_is_looked_through_from_its_beginning_only() -> None:
    book = book_of(Entry("a", keys=("mill",)))
    assert touched(book, "x " * (MOST_CHARS // 2) + "mill") == []


def test_what_is_remembered_is_bounded() -> None:
    book = book_of(Entry("a", keys=("mill",)))
    for n in range(MOST_TEXTS + 50):
        book.key_in(0, f"mill {n}")
        book.touched(book.hits(f"mill {n}"), 1)
    assert len(book._found) == MOST_TEXTS
    assert len(book._said) <= MOST_TEXTS


def test_a_tuple_has_one_book_and_a_list_is_read_again() -> None:
    library, entries = Library(), [Entry("a", keys=("k",))]
    lore = tuple(entries)
    assert library.of(lore) is library.of(lore)
    before = library.of(entries)
    entries.append(Entry("b"))
    assert (len(before.lore), len(library.of(entries).lore)) == (1, 2)


def test_books_that_nobody_uses_are_closed() -> None:
    library, lore = Library(), (Entry("a", keys=("k",)),)
    first = library.of(lore)
    for n in range(MOST_BOOKS):
        library.of((Entry(f"{n}"),))
    assert len(library._books) == MOST_BOOKS
    assert library.of(lore) is not first
    assert library.of(lore).hits("k") == first.hits("k")
