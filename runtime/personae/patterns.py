"""Regular expressions that a writer brings along, in time linear in the text. The only door to RE2.

Python's own `re` can be made to run for years by a pattern of ten characters, and cannot be stopped; RE2 reads each character once. The
price is that patterns with look-around or back-references do not exist here: they are refused when a pack is read, never at play time.

Linear is not free: at the worst a search takes a step of some 10 ns for each byte of the text and each instruction of the pattern's
program. Whoever asks many patterns bounds the sum of `programsize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import re2

MAX_CHARS = 500  # of a pattern
# Unicode classes of a pattern: RE2 builds each in full before it looks at MAX_MEMORY, and no other thread of ours runs meanwhile.
MAX_CLASSES = 8
MAX_MEMORY = 1 << 16  # bytes for one pattern's program and states; when states outgrow it, matching goes on more slowly
MAX_JOINED = 1 << 18  # bytes for one that stands for many
MAX_KEPT = 1024  # compiled patterns: 64 MiB at the worst


class Pattern(Protocol):
    @property
    def programsize(self) -> int:
        """Instructions: 8 for a short word, some 4,000 at most."""
        ...

    def search(self, text: str | bytes) -> object | None:
        """Not None where it matches somewhere. `bytes`: UTF-8, which saves time where many patterns are asked."""
        ...


@lru_cache(maxsize=MAX_KEPT)
def compiled(pattern: str, *, case_sensitive: bool) -> Pattern:
    """ValueError, in words for the pattern's writer, when it is none, is too long or needs too much memory."""
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"has {len(pattern)} characters, more than {MAX_CHARS}")
    if (n_classes := classes_in(pattern)) > MAX_CLASSES:
        raise ValueError(f"has {n_classes} Unicode classes (\\p), more than {MAX_CLASSES}")
    return _compiled(pattern, case_sensitive, MAX_MEMORY)


def classes_in(pattern: str) -> int:
    r"""How many `\pL`, `\P{Han}`, ... there are at the most."""
    return pattern.count(r"\p") + pattern.count(r"\P")


def joined(patterns: Sequence[str], *, case_sensitive: bool) -> Pattern | None:
    r"""One that matches where any of them does, for the price of one search. None where they cannot be joined: then ask each.

    What is in `\Q...` may leave its `\E` out, and would then swallow its neighbours.
    """
    if any(r"\Q" in pattern for pattern in patterns):
        return None
    try:
        return _compiled("|".join(f"(?:{pattern})" for pattern in patterns), case_sensitive, MAX_JOINED)
    except ValueError:  # too large together, or groups of one name
        return None


def _compiled(pattern: str, case_sensitive: bool, max_memory: int) -> Pattern:
    options = re2.Options()
    options.case_sensitive = case_sensitive
    options.log_errors = False
    options.max_mem = max_memory
    try:
        found: Pattern = re2.compile(pattern, options)
    except re2.error as fault:
        said = fault.args[0].decode("utf-8", "replace") if fault.args and isinstance(fault.args[0], bytes) else str(fault)
        raise ValueError(f"is no regular expression that can be used here ({said})") from None
    except UnicodeEncodeError:
        raise ValueError("has half a character in it, which is no text") from None
    return found
