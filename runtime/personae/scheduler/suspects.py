"""Which adapters may have killed the engine, and which are set aside for it. Knows keys; knows no engine, turn or room.

Whatever is on its way, or just loaded, or in its first step when the engine dies is a *suspect* and gets a strike: every adapter of a voice
alike, for nobody can tell which of them it was. After two it is *set aside*: nobody speaks with it any more. The innocent clear themselves
by the first step they take part in, for good: a key is the adapter's content, so what went well once is not what kills, however often the
engine is killed beside it.

So that no more of them are there when the guilty one kills again, suspects come one at a time: one is *on trial* from its order until a
step with it has ended.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from personae.types import AdapterKey

STRIKES = 2  # deaths of an engine that an adapter may be suspected of


class Suspects:
    def __init__(self) -> None:
        self._proven: set[AdapterKey] = set()  # a step with it has ended, in this engine's life or an earlier one
        self._strikes: dict[AdapterKey, int] = {}

    def among(self, keys: AbstractSet[AdapterKey]) -> set[AdapterKey]:
        return self._strikes.keys() & keys

    def is_set_aside(self, key: AdapterKey) -> bool:
        return self._strikes.get(key, 0) >= STRIKES

    def note_step(self, keys: AbstractSet[AdapterKey]) -> bool:
        """A step in which these took part has ended, and the engine lives. Whether a suspect has cleared itself."""
        cleared = self.among(keys)
        self._proven |= keys
        for key in cleared:
            del self._strikes[key]
        return bool(cleared)

    def note_death(self, near: AbstractSet[AdapterKey]) -> list[AdapterKey]:
        """The engine died, and these were there; returns those that are set aside for it now."""
        suspects = near - self._proven
        for key in suspects:
            self._strikes[key] = self._strikes.get(key, 0) + 1
        return sorted(key for key in suspects if self._strikes[key] == STRIKES)

    def note_refused(self, key: AdapterKey) -> None:
        """It killed nobody."""
        self._strikes.pop(key, None)

    def forget(self, key: AdapterKey) -> None:
        """Nobody names it any more: whoever does so again has repaired what was wrong."""
        self._strikes.pop(key, None)
        self._proven.discard(key)

    def statistics(self) -> dict[str, object]:
        return {"suspects": len(self._strikes), "set_aside": sorted(key for key in self._strikes if self.is_set_aside(key))}
