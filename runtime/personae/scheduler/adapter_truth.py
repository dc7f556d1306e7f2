"""Which adapters an engine holds, kept from outside, and whether they may all be there at once. Knows bytes, and no slot.

It believes the engine's word on what an adapter takes once there was one, and before that what the turns say that want it.

Rules that always hold
- What is ordered is wanted by an open turn, comes from where that turn says, and is not here yet.
- Number and bytes are within the limits, with all that is on its way. One voice may have more bytes than that, where nothing else is there.
- An adapter that is larger than was said goes again, or others go for it, in the answer to its arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from personae.engine.batch import AdapterLoaded, AdapterRefused, FreeAdapter, LoadAdapter
from personae.scheduler.events import TurnAsked
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, AdapterSource, Voice


class AdapterTruth:
    def __init__(self, open_turns: Callable[[], Iterable[TurnAsked]], config: SchedulerConfig | None) -> None:
        """`config` None: limits are not judged."""
        self._open_turns = open_turns
        self._config = config
        self._sizes: dict[AdapterKey, int] = {}  # as the engine reported them, of those that are still named
        self.forget()

    def forget(self) -> None:
        self._resident: dict[AdapterKey, int] = {}
        self._loading: dict[AdapterKey, int] = {}
        self._alone: AbstractSet[AdapterKey] = frozenset()  # the voice that has more bytes than may be

    @property
    def resident(self) -> AbstractSet[AdapterKey]:
        return self._resident.keys()

    def are_there(self, voice: Voice) -> bool:
        return all(use.key in self._resident for use in voice)

    def load(self, order: LoadAdapter) -> None:
        assert order.path, f"adapter {order.key} is to be loaded from nowhere"
        assert order.key not in self._here(), f"adapter {order.key} is loaded twice"
        sources = [source for asked in self._open_turns() for source in asked.sources if source.key == order.key]
        assert sources, f"adapter {order.key} is loaded and no turn wants it"
        assert order.path in {source.path for source in sources}, f"adapter {order.key} is loaded from {order.path}, which no turn names"
        self._loading[order.key] = self._size(sources)
        n_adapters = len(self._resident) + len(self._loading)
        assert self._config is None or n_adapters <= self._config.max_adapters, f"{n_adapters} adapters are more than may be"
        self._judge(self._here(), sum(self._resident.values()) + sum(self._loading.values()))

    def _size(self, sources: list[AdapterSource]) -> int:
        return self._sizes.get(sources[0].key, min(source.n_bytes for source in sources))

    def _here(self) -> AbstractSet[AdapterKey]:
        return self._resident.keys() | self._loading.keys()

    def free(self, order: FreeAdapter) -> None:
        assert order.key in self._resident, f"adapter {order.key} is freed and not there"
        del self._resident[order.key]

    def reported(self, result: AdapterLoaded | AdapterRefused) -> None:
        if self._loading.pop(result.key, None) is None:
            return  # the last word of an engine that is gone
        if isinstance(result, AdapterLoaded):
            self._resident[result.key] = self._sizes[result.key] = result.bytes_resident

    def retired(self, key: AdapterKey) -> None:
        self._sizes.pop(key, None)

    def judge(self) -> None:
        """After every answer."""
        self._judge(self._resident.keys(), sum(self._resident.values()))

    def _judge(self, here: AbstractSet[AdapterKey], n_bytes: int) -> None:
        """One voice alone may be larger, and stay when its turn has ended, as long as nothing else comes."""
        if self._config is None or n_bytes <= self._config.adapter_ram or here <= self._alone:
            return
        voices = ({use.key for use in asked.voice} for asked in self._open_turns())
        alone = next((keys for keys in voices if here <= keys), None)
        assert alone is not None, f"adapters have {n_bytes} bytes, more than they may, and are not one voice alone"
        self._alone = alone
