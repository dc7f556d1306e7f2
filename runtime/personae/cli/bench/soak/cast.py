"""Who plays in a soak: a few characters, the many NPCs that are made of them, and the secret word that each NPC is told.

A secret is what shows that one NPC's talk has got into another's: it is said to one of them and to nobody else.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from random import Random

TRADES = ("guard", "smith", "cook", "miller", "priest", "hunter", "nurse", "thief")
SECRET = re.compile("zq[a-z]{10}")
WANDERS_EVERY = 5


def npc_name(number: int) -> str:
    return f"npc-{number:04d}"


def bystander_of(trade: str) -> str:
    """The NPC of a trade that players leave alone."""
    return f"bystander-{trade}"


def trade_of(number: int) -> str:
    """Of what an NPC is made at first."""
    return TRADES[number % len(TRADES)]


def is_wanderer(number: int) -> bool:
    """Whether it may be made of another trade later. Of the others it is known all the time whose pack they speak by."""
    return number % WANDERS_EVERY == 0


def packs_of(npcs: int) -> dict[str, str]:
    """npc -> its pack, of those who keep to it."""
    settled = {npc_name(number): trade_of(number) for number in range(npcs) if not is_wanderer(number)}
    return settled | {bystander_of(trade): trade for trade in TRADES}


class Secrets:
    """The word of each NPC, and how to find another's."""

    def __init__(self, npcs: Sequence[str], random: Random) -> None:
        self._of = {npc: "zq" + "".join(random.choices(string.ascii_lowercase, k=10)) for npc in npcs}
        self._whose = {word: npc for npc, word in self._of.items()}

    def of(self, npc: str) -> str:
        return self._of[npc]

    def told_by_others(self, npc: str, text: str) -> list[str]:
        """NPCs whose secret is in a text that only `npc` may have heard. What looks like a secret and is none, a model made up."""
        found = {self._whose.get(word, npc) for word in SECRET.findall(text)}
        return sorted(found - {npc})
