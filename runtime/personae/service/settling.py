"""Decides when a pack that changes has come to rest and is to be looked at, and whether what was seen then is to be told.

A pure function of prints and times: it touches no file, thread or clock. A print is whatever tells one version of a pack from another.

A copy takes a while, file by file, with pauses. A pack is *settled* when its print has stayed the same for `settle_ms`. What looks broken
then may still be half a copy: such a pack is *held*, and looked at once more when nothing of it has moved for `grace_ms`. A pack that is
gone is gone only after `gone_ms`: programs save by deleting and renaming, and people swap folders.

    moving -> settled -> told           the usual way
                      -> held -> told   what was seen may be half of it
    any    -> moving                    it changed again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from personae.service.inspection import Print


@dataclass(frozen=True, slots=True)
class Patience:
    """All in milliseconds."""

    settle_ms: float = 250.0  # longer than the pause of a copy between two small files, shorter than a writer's patience
    grace_ms: float = 2000.0  # for what looks half copied: a disk that stalls
    gone_ms: float = 1000.0


@dataclass(slots=True)
class _Pack:
    seen: Print | None  # None: it is not there
    since_ms: float  # since when it is as seen
    told: Print | None = None  # the version that was told last; None: none, or that it is gone
    is_held: bool = False


@dataclass(slots=True)
class Settling:
    """Feed it all that is there with `saw`, look at what it calls `due`, and ask `is_to_be_told` about what was seen."""

    patience: Patience = field(default_factory=Patience)
    _packs: dict[str, _Pack] = field(default_factory=dict)

    def know(self, prints: Mapping[str, Print]) -> None:
        """These were told before the watch began."""
        self._packs.update((pack, _Pack(print, 0.0, print)) for pack, print in prints.items())

    def saw(self, prints: Mapping[str, Print], at_ms: float) -> None:
        """All packs that are there now."""
        for pack in self._packs.keys() | prints.keys():
            self.saw_one(pack, prints.get(pack), at_ms)

    def saw_one(self, pack: str, print: Print | None, at_ms: float) -> None:
        known = self._packs.get(pack)
        if known is None:
            self._packs[pack] = _Pack(print, at_ms)
        elif known.seen != print:
            known.seen, known.since_ms, known.is_held = print, at_ms, False
        self._forget_if_gone(pack)

    def due(self, at_ms: float) -> list[str]:
        """Those that have settled and are to be looked at now, by name."""
        return sorted(pack for pack, due_ms in self._due() if due_ms <= at_ms)

    def is_due(self, pack: str, at_ms: float) -> bool:
        known = self._packs.get(pack)
        return known is not None and known.seen != known.told and known.since_ms + self._pause_ms(known) <= at_ms

    def is_to_be_told(self, pack: str, print: Print | None, at_ms: float, *, may_be_half: bool = False) -> bool:
        """It was looked at while it had this print. False: it has changed meanwhile, or it is held."""
        known = self._packs.get(pack)
        if known is None or known.seen != print:
            return False
        if may_be_half and at_ms < known.since_ms + self.patience.grace_ms:
            known.is_held = True
            return False
        known.told = print
        self._forget_if_gone(pack)
        return True

    def next_due_ms(self) -> float | None:
        return min((due_ms for _, due_ms in self._due()), default=None)

    def look_again(self, pack: str, at_ms: float) -> None:
        """What was seen of it cannot be trusted: as if it had just changed."""
        if (known := self._packs.get(pack)) is not None:
            known.since_ms, known.is_held = at_ms, False

    def _due(self) -> Iterator[tuple[str, float]]:
        for pack, known in self._packs.items():
            if known.seen != known.told:
                yield pack, known.since_ms + self._pause_ms(known)

    def _pause_ms(self, pack: _Pack) -> float:
        if pack.seen is None:
            return self.patience.gone_ms
        return self.patience.grace_ms if pack.is_held else self.patience.settle_ms

    def _forget_if_gone(self, pack: str) -> None:
        known = self._packs[pack]
        if known.seen is None and known.told is None:
            del self._packs[pack]
