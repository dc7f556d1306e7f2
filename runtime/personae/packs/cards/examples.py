"""Example dialogue: the one text of a card <-> exchanges of a pack.

A card writes `<START>` before each dialogue and `{{user}}:` or `{{char}}:` before each speech; a speech goes on until the next begins. A
pack has pairs of what the player says and what the character answers. Speeches of one speaker in a row become one; where the character
begins, the player was silent (SILENCE, which is what a prompt shows for it too).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

SILENCE = "..."
MAX_SPEECHES = 2000  # looked at

_USER = re.compile(r"\{\{user\}\}|<user>", re.IGNORECASE)
_START = re.compile(r"<start>|\[start\]|END_OF_DIALOG(?:UE)?", re.IGNORECASE)


def exchanges(text: str, names: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """((player, reply) of each exchange, what could not be read) of a card's text, placeholders as they are. `names`: of the character."""
    found: list[tuple[str, str]] = []
    lost: list[str] = []
    speaker = _speaker(names, or_you=not _USER.search(text))
    for block in _START.split(text):
        player: list[str] = []
        reply: list[str] = []
        speeches = [*_speeches(block, speaker)][:MAX_SPEECHES]
        for is_npc, said in speeches:
            if is_npc is None:
                lost.append(said)
            elif is_npc:
                reply.append(said)
            else:
                if reply:
                    found.append(("\n".join(player) or SILENCE, "\n".join(reply)))
                    player, reply = [], []
                player.append(said)
        if reply:
            found.append(("\n".join(player) or SILENCE, "\n".join(reply)))
        elif player:
            lost.append("\n".join(player))
    return found, lost


def text_of(pairs: Sequence[tuple[str, str]]) -> str:
    """What `exchanges` reads back: each exchange a dialogue of its own."""
    return "\n".join(line for player, reply in pairs for line in ("<START>", f"{{{{user}}}}: {player}", f"{{{{char}}}}: {reply}"))


def _speaker(names: Sequence[str], *, or_you: bool) -> re.Pattern[str]:
    """A line's beginning that says who speaks: group 1 the player, group 2 the character. `or_you`: old cards say `You:`."""
    user = _USER.pattern + ("|you" if or_you else "")
    own = "|".join(re.escape(name) for name in names if name)
    char = r"\{\{(?:char|bot)\}\}|<(?:bot|char)>" + (f"|{own}" if own else "")
    return re.compile(rf"[ \t]*(?:({user})|({char}))[ \t]*:[ \t]?", re.IGNORECASE)


def _speeches(block: str, speaker: re.Pattern[str]) -> Iterator[tuple[bool | None, str]]:
    """(whether the character speaks; None where nobody is named, what is said)"""
    is_npc: bool | None = None
    said: list[str] = []
    for line in block.splitlines():
        if begins := speaker.match(line):
            if text := "\n".join(said).strip():
                yield is_npc, text
            is_npc, said = begins[1] is None, [line[begins.end() :]]
        else:
            said.append(line)
    if text := "\n".join(said).strip():
        yield is_npc, text
