"""What is done to the packs of a soak while it plays, by chance, and that it is heard at once. Judges nothing (playbill.py does).

Of a pack nothing is done until what was done to it before has been told. Then its bystander, an NPC that nobody else talks to, says a
line: by the new version, or not at all where the pack is gone. While that is so, its history stays what it was.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from personae.cli.bench.soak.cast import TRADES, Secrets, bystander_of
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.playbill import Playbill
from personae.cli.bench.soak.players import Asked, Crowd
from personae.cli.bench.soak.wardrobe import (
    BROKEN,
    MOODS,
    Adapter,
    Version,
    overwrite_file,
    place_of,
    replace_file,
    write_archive,
    write_folder,
)
from personae.packs.manifest import FILE
from personae.types import AdapterKey

EVERY_S = 0.4  # between two swaps
N_VOICES = 12  # adapters to choose from: fewer than packs could name, so that some are shared and some are named by nobody
PARTS: dict[str, tuple[int, int | None]] = {
    "guard": (1, None),
    "smith": (2, None),
    "cook": (0, 1),
    "miller": (1, 0),
    "priest": (4, None),  # more bytes than all adapters may have
    "hunter": (1, 2),
}
"""How many adapters a pack has, and its mood (None: none of its own). The others speak as the base does."""
MOST_AWAY, MOST_GUESTS = 2, 3


@dataclass(slots=True)
class _Pack:
    version: Version
    is_archive: bool = False
    is_away: bool = False
    is_broken: bool = False
    is_guest: bool = False

    @property
    def is_whole(self) -> bool:
        return not self.is_away and not self.is_broken


class Swaps:
    """`folder`: of the packs; beside it is where those are that are away."""

    def __init__(
        self, folder: Path, adapters: Sequence[Path], crowd: Crowd, playbill: Playbill, secrets: Secrets, failures: Failures, random: Random
    ) -> None:
        self.made: Counter[str] = Counter()
        self.is_quiet = False  # nobody talks about what is told: histories are being compared
        self._folder, self._aside = folder, folder.with_name("packs-away")
        self._pool = [Adapter.at(path) for path in adapters]
        self._crowd, self._playbill, self._secrets, self._failures, self._random = crowd, playbill, secrets, failures, random
        self._packs: dict[str, _Pack] = {}
        self._years = 1200
        self._n_guests = 0
        self._due_s = 0.0
        self._histories: dict[str, Any] = {}  # of bystanders whose pack is gone
        self._table: dict[str, tuple[Callable[[_Pack], bool], Callable[[_Pack], None]]] = {
            "persona": (lambda pack: pack.is_whole, self._say_otherwise),
            "adapter_renamed": (_has_voice_files, lambda pack: self._change_voice(pack, replace_file)),
            "adapter_overwritten": (_has_voice_files, lambda pack: self._change_voice(pack, overwrite_file)),
            "broken": (lambda pack: pack.is_whole and not pack.is_archive and not pack.is_guest, self._break),
            "repaired": (lambda pack: pack.is_broken, self._say_otherwise),
            "removed": (lambda pack: pack.is_whole and not pack.is_guest and self._n_away < MOST_AWAY, self._remove),
            "put_back": (lambda pack: pack.is_away, self._put_back),
            "repacked": (lambda pack: pack.is_whole and not pack.is_guest, self._repack),
            "guest_left": (lambda pack: pack.is_whole and pack.is_guest, self._dismiss),
        }
        self._to_do: list[str] = []

    # --- on the disk, between two runs of the service -----------------------------------------------------------------------

    @property
    def versions(self) -> dict[str, Version]:
        return {name: pack.version for name, pack in self._packs.items()}

    @property
    def n_unpacked(self) -> int:
        """How many copies of adapters in archives there are to be, at the most."""
        archives = [pack.version for pack in self._packs.values() if pack.is_archive and pack.is_whole]
        return len({adapter.key for version in archives for adapter in version.adapters})

    @property
    def named(self) -> set[AdapterKey]:
        return {adapter.key for version in self.versions.values() for adapter in version.adapters}

    def open(self) -> None:
        """All packs that are there get other words and other voices, before the service starts."""
        self._aside.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        for trade in TRADES:
            pack = self._packs.setdefault(trade, _Pack(self._new(trade)))
            if not pack.is_away:
                pack.version = self._new(trade)
                self._write(pack)
        self._playbill.open(self.versions, {name for name, pack in self._packs.items() if pack.is_away})

    def take_one_away(self) -> None:
        """While nobody hears of it: the service is about to end."""
        pack = self._packs[self._random.choice(TRADES)]
        pack.is_away = True
        os.replace(self._place(pack), self._away(pack))

    # --- while it runs ------------------------------------------------------------------------------------------------------

    def make_one(self) -> None:
        """If it is time for one."""
        if time.monotonic() < self._due_s or not self._crowd.ear.is_known:
            return
        self._due_s = time.monotonic() + EVERY_S
        if not self._to_do:
            self._to_do = [*self._table, "guest_came"]
            self._random.shuffle(self._to_do)
        self._make(self._to_do.pop())

    def _make(self, kind: str) -> None:
        if kind == "guest_came":
            self._let_in()
            return
        can, do = self._table[kind]
        packs = [pack for name, pack in self._packs.items() if self._playbill.is_settled(name) and can(pack)]
        if packs:
            self.made[kind] += 1
            do(self._random.choice(packs))

    def mend_all(self) -> None:
        """Everything that was done has been told. What is gone comes back, what is broken is whole again, guests leave."""
        for pack in list(self._packs.values()):
            kind = "put_back" if pack.is_away else "repaired" if pack.is_broken else "guest_left" if pack.is_guest else None
            if kind is not None:
                self.made[kind] += 1
                self._table[kind][1](pack)

    def change_one(self) -> None:
        """One more swap, after which nobody talks: what a turn in flight needed at the last is forgotten with the next."""
        self._make("persona")

    def hear(self, event: Mapping[str, Any]) -> None:
        """An event of packs, in the ear of the one who listens for them."""
        change, name = self._playbill.take(event), event["character"]
        if change is None:
            return
        if name not in self._packs:  # a guest that has left
            self._ask("despawn", npc=name)
        elif self._packs[name].is_guest:
            self._hear_guest(change, name)
        else:
            self._hear_trade(change, bystander_of(name), event["npcs"])

    def _hear_guest(self, change: str, name: str) -> None:
        if change == "added":
            self._ask("spawn", npc=name, character=name, told=lambda asked, _: self._talk(str(asked.npc)))
        else:
            self._talk(name)

    def _hear_trade(self, change: str, bystander: str, n_npcs: int) -> None:
        if n_npcs < 1:
            self._failures.note(f"Pack of '{bystander}' is {change}, and has no NPC any more.")
        is_speaking = any(asked.npc == bystander and asked.kind == "say" for asked in self._crowd.ear.asked.values())
        if change in ("added", "removed") and not is_speaking:
            self._ask("history", npc=bystander, told=self._remember if change == "removed" else self._compare)
        self._talk(bystander)

    def _remember(self, asked: Asked, done: dict[str, Any]) -> None:
        self._histories[str(asked.npc)] = done["lines"]

    def _compare(self, asked: Asked, done: dict[str, Any]) -> None:
        before = self._histories.pop(str(asked.npc), None)
        if before not in (None, done["lines"]):
            self._failures.note(f"NPC '{asked.npc}' has another history since its pack is back.")

    def forget(self) -> None:
        """The ear was lost: what happens meanwhile is not known."""
        self._histories.clear()
        self._playbill.lose_ear()

    def _talk(self, npc: str) -> None:
        if self.is_quiet:
            return
        random = self._random
        text = f"Is the bridge out? The word is {self._secrets.of(npc)}." if npc.startswith("bystander") else "What news from the north?"
        seed = random.randrange(1 << 30)
        mood = random.choice((None, *MOODS))
        self._ask("say", npc=npc, text=text, mood=mood, max_tokens=4, mid_reply="queue", sampling={"temperature": 1.0, "seed": seed})

    def _ask(self, kind: str, *, told: Any = None, **fields: Any) -> None:
        if self._crowd.ear.is_known:
            self._crowd.ear.ask(kind, told, **fields)

    # --- the swaps ------------------------------------------------------------------------------------------------------------

    def _new(self, name: str) -> Version:
        self._years += 1
        n_usual, n_mood = PARTS.get(name, (len(name) % 2, None))
        in_mood = None if n_mood is None else tuple(self._random.sample(self._pool, n_mood))
        return Version(name, self._years, tuple(self._random.sample(self._pool, n_usual)), in_mood)

    def _say_otherwise(self, pack: _Pack) -> None:
        """Another line of persona; in an archive, which is written anew as a whole, other voices too."""
        self._years += 1
        pack.version = self._new(pack.version.pack) if pack.is_archive else replace(pack.version, year=self._years)
        pack.is_broken = False
        self._playbill.will("changed", pack.version.pack, pack.version)
        if pack.is_archive:
            self._write(pack)
        else:
            (self._place(pack) / FILE).write_text(pack.version.manifest(), encoding="utf-8")

    def _change_voice(self, pack: _Pack, write: Callable[[Path, Path], None]) -> None:
        """The manifest stays as it is."""
        new = self._random.choice([adapter for adapter in self._pool if adapter not in pack.version.usual])
        pack.version = replace(pack.version, usual=(new, *pack.version.usual[1:]))
        name = next(iter(pack.version.files()))
        self._playbill.will("changed", pack.version.pack, pack.version)
        write(self._place(pack) / name, new.path)

    def _break(self, pack: _Pack) -> None:
        pack.is_broken = True
        self._playbill.will("refused", pack.version.pack)
        (self._place(pack) / FILE).write_text(BROKEN, encoding="utf-8")

    def _remove(self, pack: _Pack) -> None:
        pack.is_away = True
        self._playbill.will("removed", pack.version.pack)
        os.replace(self._place(pack), self._away(pack))

    def _put_back(self, pack: _Pack) -> None:
        pack.version = replace(pack.version)  # the same words, played anew
        pack.is_away = False
        self._playbill.will("added", pack.version.pack, pack.version)
        os.replace(self._away(pack), self._place(pack))

    def _repack(self, pack: _Pack) -> None:
        """A folder becomes an archive, or the other way round: the same pack, changed."""
        before = self._place(pack)
        pack.version, pack.is_archive = self._new(pack.version.pack), not pack.is_archive
        self._write(pack, self._aside)
        self._playbill.will("changed", pack.version.pack, pack.version)
        old = self._aside / f"old-{before.name}"
        os.replace(before, old)
        os.replace(self._away(pack), self._place(pack))
        _delete(old)

    def _let_in(self) -> None:
        """Somebody new, in a folder or in an archive."""
        if sum(pack.is_guest for pack in self._packs.values()) >= MOST_GUESTS:
            return
        self._n_guests += 1
        self.made["guest_came"] += 1
        name = "guest-" + "x" * (self._n_guests % 2) + f"{self._n_guests:03d}"
        pack = self._packs[name] = _Pack(self._new(name), is_archive=self._n_guests % 4 < 2, is_guest=True)
        self._playbill.will("added", name, pack.version)
        self._write(pack)

    def _dismiss(self, pack: _Pack) -> None:
        del self._packs[pack.version.pack]
        self._playbill.will("removed", pack.version.pack)
        _delete(self._place(pack))

    @property
    def _n_away(self) -> int:
        return sum(pack.is_away for pack in self._packs.values())

    def _place(self, pack: _Pack) -> Path:
        return place_of(self._folder, pack.version.pack, is_archive=pack.is_archive)

    def _away(self, pack: _Pack) -> Path:
        return place_of(self._aside, pack.version.pack, is_archive=pack.is_archive)

    def _write(self, pack: _Pack, folder: Path | None = None) -> None:
        place = place_of(folder or self._folder, pack.version.pack, is_archive=pack.is_archive)
        if pack.is_archive:
            write_archive(pack.version, place)
            return
        if place.exists():
            shutil.rmtree(place)
        write_folder(pack.version, place)


def _has_voice_files(pack: _Pack) -> bool:
    return pack.is_whole and not pack.is_archive and bool(pack.version.usual)


def _delete(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
