from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.prompt.keys import KeyIndex, contains, normal


def is_in(key: str, text: str, *, case_sensitive: bool = False) -> bool:
    return KeyIndex([(key, 1)], case_sensitive=case_sensitive).found(text) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("mill", "the old Mill's wheel"),
        ("MILL", "mill"),
        ("old mill", "the OLD\n \t mill."),
        ("  old   mill ", "the old mill"),
        ("mill", "_mill_ and *mill*"),
        ("mill", "million? mill!"),
        ("C++", "I know c++!"),
        ("...", "well..."),
        ("♥", "I ♥ you"),
        ("St. Mary", "to st. mary we go"),
        ("half-elf", "a Half-Elf came"),
        ("café", "CAFE\u0301"),
        ("cafe\u0301", "ein Café"),
        ("straße", "STRASSE"),
        ("Москва", "в МОСКВА!"),
        ("हिन्दी", "हिन्दी है"),
        ("שלום", "אמר שלום לי"),
        ("江戸", "江戸城へ行く"),
        ("城", "江戸城へ行く"),
        ("Edo", "江戸のEdo城"),
        ("Edo城", "江戸のEdo城へ"),
        ("서울", "서울은 크다"),
        ("ไทย", "ประเทศไทยดี"),
        ("a a", "xa ax a a"),
        ("7", "room 7, please"),
    ],
)
def test_a_key_is_found(key: str, text: str) -> None:
    assert is_in(key, text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("mill", "a million, a windmill, mill3"),
        ("cafe", "un café"),
        ("old mill", "an old, mill"),
        ("Москв", "Москва"),
        ("हिन", "हिन्दी"),
        ("Edo城", "xEdo城"),
        ("7", "room 17"),
        ("", "anything"),
        (" \n", "any thing"),
        ("mill", ""),
    ],
)
def test_a_key_is_not_found(key: str, text: str) -> None:
    assert not is_in(key, text)


def test_case_counts_where_a_key_says_so() -> None:
    assert is_in("Rose", "call Rose", case_sensitive=True)
    assert not is_in("Rose", "a rose", case_sensitive=True)


def test_a_key_of_several_entries_brings_them_all() -> None:
    index = KeyIndex([("mill", 1), ("Mill", 4), ("river", 2), ("old mill", 8)], case_sensitive=False)
    assert [index.found(text) for text in ("the mill", "river", "the old mill by the river", "nothing")] == [5, 2, 15, 0]


some_text = st.text("ab -é城ß.A\n", max_size=12)


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(st.lists(some_text, max_size=6), some_text)
def test_looking_up_finds_what_searching_finds(keys: list[str], text: str) -> None:
    index = KeyIndex([(key, 1 << place) for place, key in enumerate(keys)], case_sensitive=False)
    normals = [normal(key, case_sensitive=False) for key in keys]
    searched = sum(1 << place for place, key in enumerate(normals) if key and contains(normal(text, case_sensitive=False), key))
    assert index.found(text) == searched
