"""Who plays in a soak: a few characters, the many NPCs that are made of them, and the secret word that each NPC is told.

A secret is what shows that one NPC's talk has got into another's: it is said to one of them and to nobody else.
"""

from __future__ import annotations

import json
import re
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from random import Random

TRADES = ("guard", "smith", "cook", "miller", "priest", "hunter", "nurse", "thief")
VOICES = 6  # of the characters that have an adapter of their own; the others speak as the base does
SECRET = re.compile("zq[a-z]{10}")
FALLBACKS = ("Not now.", "Give me a moment, will you?")


def write_packs(folder: Path, adapters: Sequence[Path], year: int) -> None:
    """All characters, in place of what they were. From one `year` to the next they have other words, and the voices go round."""
    for i, trade in enumerate(TRADES):
        pack = folder / trade
        pack.mkdir(parents=True, exist_ok=True)
        persona = f"You are the {trade} of the old town in the year {year}. You know everybody here, and you like to talk."
        lines = [
            "manifest = 1",
            f"name = {json.dumps(trade.title())}",
            f"persona = {json.dumps(persona)}",
            f"fallback = {json.dumps(FALLBACKS if i % 2 else [])}",
        ]
        if i < len(adapters):
            lines += ["[adapter]", 'file = "voice.gguf"']
            shutil.copyfile(adapters[(i + year) % len(adapters)], pack / "voice.gguf")
        (pack / "character.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


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
