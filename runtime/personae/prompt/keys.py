r"""Which words and phrases are in a text. Decides what a whole word is; refuses to know what a key is for.

A key is found where it stands alone: no letter, digit or mark of a script that sets blanks between words touches it. So "mill" is in
"the old mill's wheel" and not in "a million"; and in scripts without blanks - Chinese, Japanese, Thai, Khmer, ... and Korean, which glues
its particles to the noun - a key is found wherever its characters are. Letters that look the same are the same (Unicode's NFC), any
blank is as good as any other, and unless a key tells capital from small letters, case is folded.

Fast because most keys are never looked at. A key that stands alone has only whole words in it, so its longest one must be among the words
of the text; a key without such a word must have its first character there.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from unicodedata import category, normalize

MOST_PLACES = 64  # of one key in one text, looked at for one where it stands alone
WITHOUT_BLANKS = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1100, 0x11FF),  # Korean letters
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x1AAF),  # Tai Le, New Tai Lue, Tai Tham
    (0x2E80, 0xA4CF),  # Chinese, Japanese, Yi
    (0xA960, 0xA97F),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF),
    (0xAC00, 0xD7FF),  # Korean syllables
    (0xF900, 0xFAFF),
    (0xFF66, 0xFFDC),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
WITH_MARKS = ((0x300, 0x1E00), (0x20D0, 0x2100), (0x2CE0, 0x2E00), (0xA660, 0xAC00), (0xFB1E, 0xFB1F), (0xFE20, 0xFE30))


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def _marks() -> Iterator[tuple[int, int]]:
    """Vowel signs and accents: part of a word, though Python's `\\w` does not take them for one."""
    codes = [code for block in WITH_MARKS for code in range(*block) if category(chr(code))[0] == "M"]
    start = 0
    for place in range(1, len(codes) + 1):
        if place == len(codes) or codes[place] != codes[place - 1] + 1:
            yield codes[start], codes[place - 1]
            start = place


# What stands in a word of a script with blanks: letters, digits and marks. Texts are cut into these.
WORD = re.compile(f"(?:(?![{_ranges(WITHOUT_BLANKS)}])(?:[^\\W_]|[{_ranges(_marks())}]))+")


def normal(text: str, *, case_sensitive: bool) -> str:
    """The form in which texts and keys are compared."""
    if text.isascii():
        text = text if case_sensitive else text.lower()
    else:
        composed = normalize("NFC", text)
        text = composed if case_sensitive else normalize("NFC", composed.casefold())
    return " ".join(text.split())


class KeyIndex:
    """Keys, each with bits to be set where it is found."""

    def __init__(self, keys: Iterable[tuple[str, int]], *, case_sensitive: bool) -> None:
        self._case_sensitive = case_sensitive
        self._by_word: dict[str, list[tuple[str, int]]] = {}
        self._by_character: dict[str, list[tuple[str, int]]] = {}
        bits: defaultdict[str, int] = defaultdict(int)
        for key, bit in keys:
            bits[normal(key, case_sensitive=case_sensitive)] |= bit
        for key, mask in bits.items():
            if key:
                self._add(key, mask)

    def found(self, text: str) -> int:
        """The bits of all keys that are in the text, as it was written."""
        if not self._by_word and not self._by_character:
            return 0
        text = normal(text, case_sensitive=self._case_sensitive)
        words = self._by_word.keys() & WORD.findall(text)
        characters = self._by_character.keys() & set(text) if self._by_character else ()
        candidates = [*(self._by_word[word] for word in words), *(self._by_character[character] for character in characters)]
        mask = 0
        for key, bits in (candidate for each in candidates for candidate in each):
            if bits & ~mask and (key in words or contains(text, key)):
                mask |= bits
        return mask

    def _add(self, key: str, mask: int) -> None:
        words = WORD.findall(key)
        if words:
            self._by_word.setdefault(sys.intern(max(words, key=len)), []).append((key, mask))
        else:
            self._by_character.setdefault(key[0], []).append((key, mask))


def contains(text: str, key: str) -> bool:
    """Both normal; the key not empty."""
    at = text.find(key)
    for _ in range(MOST_PLACES):
        if at < 0:
            return False
        if _stands_alone(text, at, at + len(key)):
            return True
        at = text.find(key, at + 1)
    return False


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not (_is_one_word(text[start - 1 : start + 1] if start else "") or _is_one_word(text[end - 1 : end + 1]))


def _is_one_word(pair: str) -> bool:
    return len(pair) == 2 and WORD.fullmatch(pair) is not None
