"""Which adapters are resident, which to load and which to give back. Knows keys and who uses them; knows no file, weight or turn.

At most `max_adapters` are resident or on their way. To make room the one used longest ago goes, but never one that a slot in work uses
or that a turn further ahead in the line waits for. When slots in work use all the others, one of them is *closing*: turns behind the
one that waits do not begin under it, so that it comes free when those that speak with it have ended. Without that, steady traffic of
resident adapters would keep a new one out for ever.
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


class AdapterTable:
    def __init__(self, max_adapters: int) -> None:
        self._max = max_adapters
        self._resident: dict[AdapterKey, int] = {}  # key -> bytes; in order of use, longest ago first
        self._loading: set[AdapterKey] = set()
        self._retired: set[AdapterKey] = set()
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

    def is_known(self, key: AdapterKey) -> bool:
        """Resident or on its way."""
        return key in self._resident or key in self._loading

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

    def note_ordered(self, key: AdapterKey) -> None:
        self._loading.add(key)
        self.loads += 1

    def note_loaded(self, key: AdapterKey, n_bytes: int) -> None:
        self._loading.remove(key)
        self._resident[key] = n_bytes

    def note_refused(self, key: AdapterKey) -> None:
        """Nothing is remembered of it: the file may have been repaired when it is asked for again."""
        self._loading.remove(key)
        self._retired.discard(key)
        self.refusals += 1

    def retire(self, key: AdapterKey) -> None:
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
        self.frees += 1

    def forget_all(self) -> None:
        self._resident.clear()
        self._loading.clear()
        self._retired.clear()

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
        }
