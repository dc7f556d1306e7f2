"""Decides which characters of a stranger's text may reach a terminal. Needs nothing but the standard library."""

from __future__ import annotations

import re

# A model, a pack or a player may write escape codes, and codes that turn the line around. Line breaks stay.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    return UNPRINTABLE.sub("", text.replace("\t", " "))
