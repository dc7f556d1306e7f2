"""Regular expressions of strangers: refused in words, or harmless."""

from __future__ import annotations

import pytest

from personae.patterns import MAX_CHARS, compiled, joined


@pytest.mark.parametrize(
    ("pattern", "text", "is_there"),
    [
        ("mill", "The old Mill.", True),
        (r"\bmill\b", "a million", False),
        ("гор[аы]", "на ГОРЫ", True),
        ("", "x", True),
        ("^a$", "ba", False),
    ],
)
def test_a_pattern_is_searched_in_any_case_unless_told_otherwise(pattern: str, text: str, is_there: bool) -> None:
    assert (compiled(pattern, case_sensitive=False).search(text) is not None) == is_there
    assert (compiled(pattern, case_sensitive=False).search(text.encode()) is not None) == is_there


def test_case_counts_where_it_is_asked_for() -> None:
    assert compiled("Mill", case_sensitive=True).search("the mill") is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a**",
        r"(a)\1",
        "(?=a)",
        "(?<!a)b",
        r"\E",
        "a{1001}",
        r"(\pL{100}){10}",
        "x" * (MAX_CHARS + 1),
        "\ud800",
        r"\PL" * 166,
        r"[\pL\PL]" * 5,
    ],
)
def test_what_cannot_be_used_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(is no|has) "):
        compiled(pattern, case_sensitive=False)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|a)*b", "(.*a){20}z", "(a|b|ab)*c", "([a-z]+)*!"])
def test_what_explodes_elsewhere_takes_no_time_here(pattern: str) -> None:
    """In Python's `re` these take longer than the test run has."""
    assert compiled(pattern, case_sensitive=False).search("xa" * 20_000) is None


def test_classes_of_unicode_can_be_used_in_moderation() -> None:
    """Each takes a millisecond in which nothing else of the service runs."""
    assert compiled(r"\b\p{Lu}\pL+ [\p{Han}\PM]", case_sensitive=True).search("Das Mühlenrad 水") is not None
    with pytest.raises(ValueError, match="9 Unicode classes"):
        compiled(r"\pL" * 9, case_sensitive=True)


def test_joined_patterns_match_where_any_of_them_does() -> None:
    any_of = joined(["mill", "^a|b$", "(?i)RIVER", "(x)"], case_sensitive=True)
    assert any_of is not None
    assert [any_of.search(text) is not None for text in ("a mill", "ab", "xb", "cbc", "river", "Mill")] == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("patterns", [[r"\Qa", r"\Qb\E"], ["a", "("], [f"{n}[a-z]{{500}}" for n in range(40)]])
def test_what_cannot_be_joined_is_left_to_be_asked_one_by_one(patterns: list[str]) -> None:
    assert joined(patterns, case_sensitive=False) is None
