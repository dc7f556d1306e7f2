"""Which adapters are resident, which are on their way, and how many more fit. Knows keys, bytes and the order of use; no turn, no file.

What is resident counts with the bytes that the engine reported, what is on its way with those that its file promised, or with those that
were reported when it was here before: content of one key is always of one size. Number and bytes are limited both. The bytes may be passed
by one voice alone, which is larger than all of them; then nothing but its adapters is here.

Which one goes for which, and when, is decided in making_room.py; which ones may have killed the engine, in suspects.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from personae.scheduler.suspects import Suspects
from personae.types import AdapterKey, AdapterSource


@dataclass(frozen=True, slots=True)
class Load:
    """So many adapters of so many bytes altogether."""

    n: int = 0
    n_bytes: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.n + other.n, self.n_bytes + other.n_bytes)

    def __sub__(self, other: Load) -> Load:
        return Load(self.n - other.n, self.n_bytes - other.n_bytes)

    def holds(self, other: Load) -> bool:
        return other.n <= self.n and other.n_bytes <= self.n_bytes


class AdapterTable:
    def __init__(self, max_adapters: int, max_bytes: int) -> None:
        self._limit = Load(max_adapters, max_bytes)
        self._resident: dict[AdapterKey, int] = {}  # key -> bytes; in order of use, longest ago first
        self._loading: dict[AdapterKey, int] = {}  # key -> bytes as far as they are known; in order of orders
        self._alone: frozenset[AdapterKey] = frozenset()  # the voice that may pass the limit of bytes while nothing else is here
        self._has_come = False  # one of them, and nobody has looked yet whether there was room for it
        self._retired: set[AdapterKey] = set()
        self._paths: dict[AdapterKey, str] = {}  # of those here or on their way, and of suspects
        self._sizes: dict[AdapterKey, int] = {}  # as reported, of all that were ever here and are still named
        self._new: set[AdapterKey] = set()  # resident, and no step has ended since
        self.suspects = Suspects()
        self.loads = 0
        self.frees = 0
        self.refusals = 0

    # --- what is here -------------------------------------------------------------------------------------------------

    @property
    def resident(self) -> AbstractSet[AdapterKey]:
        """The one used longest ago first."""
        return self._resident.keys()

    @property
    def loading(self) -> AbstractSet[AdapterKey]:
        return self._loading.keys()

    def are_here(self, keys: AbstractSet[AdapterKey]) -> bool:
        return keys <= self._resident.keys()

    def is_loading(self, key: AdapterKey) -> bool:
        return key in self._loading

    def missing(self, sources: Iterable[AdapterSource]) -> dict[AdapterKey, int]:
        """Those neither here nor on their way, and the bytes they will take as far as can be told."""
        return {each.key: self.size(each) for each in sources if each.key not in self._resident and each.key not in self._loading}

    def size(self, source: AdapterSource) -> int:
        here = self._resident.get(source.key, self._loading.get(source.key))
        return self._sizes.get(source.key, source.n_bytes) if here is None else here

    def path(self, key: AdapterKey) -> str:
        """Of an adapter that is here, on its way or a suspect."""
        return self._paths[key]

    # --- how much fits ------------------------------------------------------------------------------------------------

    @property
    def load(self) -> Load:
        """All that is here and on its way."""
        return self.load_of(self._resident) + self.load_of(self._loading)

    def load_of(self, keys: Iterable[AdapterKey]) -> Load:
        """Of adapters that are here or on their way."""
        sizes = [self._resident.get(key, self._loading.get(key, 0)) for key in keys]
        return Load(len(sizes), sum(sizes))

    def fits(self, load: Load) -> bool:
        return self._limit.holds(load)

    def room_beside(self, load: Load) -> Load:
        return self._limit - load

    def take_excess(self) -> bool:
        """Whether more is here than may be, since the last time it was asked: what has come was larger than its file had said, or came for
        a turn that is gone."""
        has_come, self._has_come = self._has_come, False
        return has_come and self.load.n_bytes > self._limit.n_bytes

    # --- what comes and goes ------------------------------------------------------------------------------------------

    def note_use(self, keys: Iterable[AdapterKey]) -> None:
        for key in keys:
            self._resident[key] = self._resident.pop(key)

    def note_asked(self, keys: Iterable[AdapterKey]) -> None:
        """A turn wants them: somebody names them after all."""
        self._retired.difference_update(keys)

    def note_alone(self, keys: frozenset[AdapterKey]) -> None:
        """Nothing else is to be here, and they may take what they need."""
        self._alone = keys

    def note_ordered(self, source: AdapterSource) -> None:
        self._loading[source.key] = self.size(source)
        self._paths[source.key] = source.path
        self.loads += 1

    def note_loaded(self, key: AdapterKey, n_bytes: int) -> None:
        del self._loading[key]
        self._resident[key] = self._sizes[key] = n_bytes
        self._new.add(key)
        self._has_come = True

    def note_refused(self, key: AdapterKey) -> None:
        """Nothing is remembered of it: the file may have been repaired when it is asked for again."""
        del self._loading[key]
        self._retired.discard(key)
        self.suspects.note_refused(key)
        self.refusals += 1

    def retire(self, key: AdapterKey) -> None:
        self.suspects.forget(key)
        self._sizes.pop(key, None)
        if key in self._resident or key in self._loading:
            self._retired.add(key)

    @property
    def retired(self) -> AbstractSet[AdapterKey]:
        """Here or on their way, and named by no pack."""
        return self._retired

    def retired_and_unused(self, used: AbstractSet[AdapterKey]) -> list[AdapterKey]:
        return [key for key in self._resident if key in self._retired and key not in used]

    def note_freed(self, key: AdapterKey) -> None:
        del self._resident[key]
        self._retired.discard(key)
        self._new.discard(key)
        self.frees += 1

    def note_step(self, keys: AbstractSet[AdapterKey]) -> bool:
        """A step in which these took part has ended. Whether a suspect has cleared itself."""
        self._new.clear()
        return self.suspects.note_step(keys)

    def note_death(self, in_use: AbstractSet[AdapterKey]) -> list[AdapterKey]:
        """The engine died; returns the adapters that are set aside for it now. `in_use`: by slots at work."""
        return self.suspects.note_death(self._loading.keys() | self._new | in_use)

    def forget_all(self) -> None:
        """The engine is gone. Strikes and sizes outlive it."""
        self._resident.clear()
        self._loading.clear()
        self._retired.clear()
        self._new.clear()
        self._alone, self._has_come = frozenset(), False
        self._paths = {key: self._paths[key] for key in self.suspects.among(self._paths.keys())}

    # --- for people and tests -----------------------------------------------------------------------------------------

    def validate(self, in_use: AbstractSet[AdapterKey]) -> None:
        n_here, n_bytes = self.load.n, sum(self._resident.values())
        assert n_here <= self._limit.n, f"{n_here} adapters resident of {self._limit.n}"
        assert n_bytes <= self._limit.n_bytes or self.resident <= self._alone, f"adapters have {n_bytes} bytes of {self._limit.n_bytes}"
        assert not self._loading.keys() & self._resident.keys(), "an adapter is resident and being loaded"
        assert self._retired <= self._resident.keys() | self._loading.keys(), "an adapter is retired that is not here"
        assert in_use <= self._resident.keys(), f"turns speak with adapters that are not resident: {in_use - self._resident.keys()}"

    def statistics(self, in_use: AbstractSet[AdapterKey], wanted: AbstractSet[AdapterKey]) -> Mapping[str, object]:
        """`in_use`: by slots at work; `wanted`: by turns that wait."""
        pinned = self.load_of(self._resident.keys() & in_use)
        return {
            "resident": len(self._resident),
            "bytes_resident": sum(self._resident.values()),
            "budget_bytes": self._limit.n_bytes,
            "pinned": pinned.n,
            "bytes_pinned": pinned.n_bytes,
            "waiting": len(wanted - self._resident.keys()),
            "loading": len(self._loading),
            "max": self._limit.n,
            "loads": self.loads,
            "frees": self.frees,
            "refusals": self.refusals,
            **self.suspects.statistics(),
        }
