"""Decides how much of a text was heard. Knows neither who spoke nor what becomes of the rest.

Players hear slower than models write: a client says how much of a reply had been shown or voiced when it was broken off, in characters
or in sentences, and the text ends there. Characters are Unicode code points of the reply's `text`, as every delta was sent.

A sentence ends at a run of . ! ? or …, or of their Arabic, Urdu and Devanagari kin, before a blank or the end of the text, at a CJK mark
wherever it stands, and at a line break; closing quotes, brackets and asterisks go with it. A dot after a title, after a single letter and
between digits ends nothing. What is told apart here must agree with nobody's grammar: a game counts the sentences it has voiced, and most
voices pause where these rules do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKS = r".!?…؟۔।॥"
_CLOSING = r"[\"'”’»›)\]}*」』）】〉》]*+"  # possessive: a text of nothing but marks is looked at once
_END = re.compile(rf"(?:[。！？｡][。！？｡…]*{_CLOSING}|(?<![{_MARKS}])[{_MARKS}]++{_CLOSING}(?=\s|$)|\n+)")
_TITLES = frozenset(("mr", "mrs", "ms", "dr", "st", "prof", "capt", "sgt", "lt", "col", "gen", "sr", "jr", "vs", "e.g", "i.e"))
_LAST_WORD = re.compile(r"[^\s\"'“‘«(*]+$")
_WORD_CHARS = 8  # more than a title has: how far back a word is looked at


def heard_part(text: str, *, chars: int | None = None, sentences: int | None = None) -> str:
    """The text as far as it was heard. Whole, where it was heard to its end; else without the space before the cut."""
    end = min(len(text), chars) if chars is not None else _end_of(text, sentences or 0)
    return text if not text[end:].strip() else text[:end].rstrip()


def sentence_ends(text: str) -> Iterator[int]:
    """Where each sentence ends, in code points; the last end is that of the text's last visible character."""
    last, n_visible = 0, len(text.rstrip())
    for match in _END.finditer(text):
        end = min(match.end(), n_visible)
        if end > last and text[last:end].strip() and not _is_abbreviation(text, match):
            last = end
            yield end
    if last < n_visible:
        yield n_visible


def _end_of(text: str, n_sentences: int) -> int:
    ends = list(sentence_ends(text))
    return 0 if not n_sentences or not ends else ends[min(n_sentences, len(ends)) - 1]


def _is_abbreviation(text: str, end: re.Match[str]) -> bool:
    """Whether a single dot belongs to the word before it."""
    if end[0] != ".":
        return False
    word = _LAST_WORD.search(text, max(0, end.start() - _WORD_CHARS), end.start())
    if word is None:
        return False
    letters = word[0].casefold()
    return letters in _TITLES or (len(letters) == 1 and letters.isalpha() and word[0].isupper() and letters != "i")
