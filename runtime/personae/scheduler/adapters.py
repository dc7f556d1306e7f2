"""Which adapters are resident, which to load and which to give back. Knows keys and who uses them; knows no file, weight or turn.

At most `max_adapters` are resident or on their way. To make room the one used longest ago goes, but never one that a slot in work uses
or that a turn further ahead in the line waits for. When slots in work use all the others, one of them is *closing*: turns behind the
one that waits do not begin under it, so that it comes free when those that speak with it have ended. Without that, steady traffic of
resident adapters would keep a new one out for ever.

An adapter can kill the engine. Whatever is on its way, or just loaded, or in its first step when the engine dies is a *suspect* and gets a
strike. After two it is *set aside*: nobody speaks with it any more. The innocent clear themselves by the first step they take part in, for
good: a key is the adapter's content, so what went well once is not what kills, however often the engine is killed beside it. So that no
more of them are there when the guilty one kills again, suspects come one at a time.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum, auto

from personae.types import AdapterKey


class Outlook(Enum):
    """What a turn that wants an adapter can expect."""

    HERE = auto()
    COMING = auto()  # being loaded; nothing to do
    ROOM = auto()  # not here, and it may be loaded now
    FULL = auto()  # not here, and no room
    HELD = auto()  # not here, and not to be loaded before another suspect has cleared itself


STRIKES = 2  # deaths of an engine that an adapter may be suspected of


class AdapterTable:
    def __init__(self, max_adapters: int) -> None:
        self._max = max_adapters
        self._resident: dict[AdapterKey, int] = {}  # key -> bytes; in order of use, longest ago first
        self._loading: set[AdapterKey] = set()
        self._retired: set[AdapterKey] = set()
        self._paths: dict[AdapterKey, str] = {}  # of those here or on their way, and of suspects
        self._new: set[AdapterKey] = set()  # resident, and no step has ended since
        self._proven: set[AdapterKey] = set()  # a step with it has ended, in this engine's life or an earlier one
        self._strikes: dict[AdapterKey, int] = {}
        self.loads = 0
        self.frees = 0
        self.refusals = 0

    def outlook(self, key: AdapterKey) -> Outlook:
        if key in self._resident:
            return Outlook.HERE
        if key in self._loading:
            return Outlook.COMING
        return Outlook.FULL if self.is_full else Outlook.ROOM

    def spare(self, needed: AbstractSet[AdapterKey]) -> AdapterKey | None:
        """The resident adapter used longest ago that is not needed."""
        return next((key for key in self._resident if key not in needed), None)

    @property
    def is_full(self) -> bool:
        return len(self._resident) + len(self._loading) >= self._max

    def is_loading(self, key: AdapterKey) -> bool:
        return key in self._loading

    def note_use(self, key: AdapterKey) -> None:
        self._resident[key] = self._resident.pop(key)

    def note_asked(self, key: AdapterKey) -> None:
        """A turn wants it: somebody names it after all."""
        self._retired.discard(key)

    def note_ordered(self, key: AdapterKey, path: str) -> None:
        self._loading.add(key)
        self._paths[key] = path
        self.loads += 1

    def note_loaded(self, key: AdapterKey, n_bytes: int) -> None:
        self._loading.remove(key)
        self._resident[key] = n_bytes
        self._new.add(key)

    def note_refused(self, key: AdapterKey) -> None:
        """Nothing is remembered of it: the file may have been repaired when it is asked for again."""
        self._loading.remove(key)
        self._retired.discard(key)
        self._forget_strikes(key)
        self.refusals += 1

    def retire(self, key: AdapterKey) -> None:
        """Whoever names it again has repaired what was wrong."""
        self._forget_strikes(key)
        self._proven.discard(key)
        if key in self._resident or key in self._loading:
            self._retired.add(key)

    @property
    def has_retired(self) -> bool:
        return bool(self._retired)

    def retired_and_unused(self, used: AbstractSet[AdapterKey]) -> list[AdapterKey]:
        return [key for key in self._resident if key in self._retired and key not in used]

    def note_freed(self, key: AdapterKey) -> None:
        del self._resident[key]
        self._retired.discard(key)
        self._new.discard(key)
        self.frees += 1

    def forget_all(self) -> None:
        """The engine is gone. Strikes outlive it."""
        self._resident.clear()
        self._loading.clear()
        self._retired.clear()
        self._new.clear()
        self._paths = {key: path for key, path in self._paths.items() if key in self._strikes}

    # --- those that kill the engine -----------------------------------------------------------------------------------

    def note_step(self, keys: AbstractSet[AdapterKey]) -> bool:
        """A step in which these took part has ended, and the engine lives. Whether a suspect has cleared itself."""
        self._new.clear()
        cleared = keys & self._strikes.keys()
        self._proven |= keys
        for key in cleared:
            self._forget_strikes(key)
        return bool(cleared)

    def note_death(self, in_use: AbstractSet[AdapterKey]) -> list[AdapterKey]:
        """The engine died; returns the adapters that are set aside for it now. `in_use`: by slots at work."""
        suspects = (self._loading | self._new | in_use) - self._proven
        for key in suspects:
            self._strikes[key] = self._strikes.get(key, 0) + 1
        return sorted(key for key in suspects if self._strikes[key] == STRIKES)

    def is_set_aside(self, key: AdapterKey) -> bool:
        return self._strikes.get(key, 0) >= STRIKES

    def path(self, key: AdapterKey) -> str:
        """Of an adapter that is here, on its way or a suspect."""
        return self._paths[key]

    def is_held(self, key: AdapterKey, wanted: AbstractSet[AdapterKey]) -> bool:
        """Whether it is a suspect, and another one is on trial: on its way, or here, `wanted` and without a step."""
        others = self._strikes.keys() - {key}
        tried = self._loading | ((self._resident.keys() & wanted) - self._proven)
        return key in self._strikes and not others.isdisjoint(tried)

    def _forget_strikes(self, key: AdapterKey) -> None:
        self._strikes.pop(key, None)

    def validate(self, in_use: AbstractSet[AdapterKey]) -> None:
        assert len(self._resident) + len(self._loading) <= self._max, f"{len(self._resident)} adapters resident of {self._max}"
        assert not self._loading & self._resident.keys(), "an adapter is resident and being loaded"
        assert self._retired <= self._resident.keys() | self._loading, "an adapter is retired that is not here"
        assert in_use <= self._resident.keys(), f"turns speak with adapters that are not resident: {in_use - self._resident.keys()}"

    def statistics(self) -> dict[str, object]:
        return {
            "resident": len(self._resident),
            "bytes_resident": sum(self._resident.values()),
            "loading": len(self._loading),
            "max": self._max,
            "loads": self.loads,
            "frees": self.frees,
            "refusals": self.refusals,
            "suspects": len(self._strikes),
            "set_aside": sorted(key for key in self._strikes if self.is_set_aside(key)),
        }
