"""Decides what follows for the service when a pack comes, changes or goes: who is retired, who is back, and who hears of it.

It owns what stands behind the characters: the roster, the store of adapters, the watcher. It makes no turn and judges no pack.

A turn in flight keeps what it began with; the next takes the character as it is then. NPCs of a pack that is gone keep their history, and
speak on when it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from personae.config import ServiceConfig
from personae.errors import PersonaeError
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile
from personae.packs.gguf import read_header
from personae.packs.store import AdapterStore
from personae.prompt import PromptBuilder
from personae.scheduler.events import AdapterRetired
from personae.service.conductor import Conductor
from personae.service.inspection import PackSeen
from personae.service.npcs import Npcs
from personae.service.outbox import Outbox
from personae.service.recall import Recall
from personae.service.roster import Change, ChangeKind, Roster
from personae.service.turns import Turns
from personae.service.watch import Pace, Watcher
from personae.types import ModelCard
from personae.wire import replies

log = logging.getLogger("personae.service")

FAKE = "fake"  # a model without a file: adapters are then checked for themselves alone


class Casting:
    def __init__(self, config: ServiceConfig, card: ModelCard, prompts: PromptBuilder, wake: Callable[[], None], pace: Pace) -> None:
        """Everything in the folder has been loaded, headers only. `wake`: as of the watcher."""
        base = base_of(config.engine.model, {card.content_hash, *config.base_hashes})
        self._root = config.characters.absolute() if config.characters is not None else None
        self.adapters = AdapterStore()
        self.roster = Roster.load(self._root, prompts, base, self.adapters.known)
        if not self.roster.characters:
            log.warning("no character could be loaded from %s: nobody can be spawned", self._root or "anywhere (--characters)")
        self._lingering: set[AdapterFile] = set()  # that no pack names any more and turns still speak with
        self._watcher = Watcher(self._root or Path(), self.adapters, wake, base=base, pace=pace, watches=config.watch)

    def begin(self, npcs: Npcs, turns: Turns, conductor: Conductor, outbox: Outbox, recall: Recall | None) -> None:
        """NPCs that were kept are back, and from now on changes are heard of."""
        self._npcs = npcs
        self._turns = turns
        self._conductor = conductor
        self._outbox = outbox
        self._recall = recall
        if recall is not None:
            recall.all()
        if self._root is not None:
            self._watcher.start(self.roster.prints, self.roster)

    @property
    def has_news(self) -> bool:
        return self._watcher.has_news

    def hear(self, at_ms: float) -> None:
        """The next of what the watcher has seen: one a round, so that fifty packs at once hold up nobody who speaks."""
        self._mind_leftovers()
        seen = self._watcher.take()
        if seen is None:
            return
        try:
            self._take(seen, at_ms)
        except Exception:
            log.exception("what was seen of pack %r could not be taken over", seen.pack)

    def close(self) -> None:
        self._watcher.end()
        self.adapters.close()  # whatever the watcher reads is given up
        self._watcher.close()

    def statistics(self) -> dict[str, Any]:
        return {**self.roster.statistics(), "watching": self._watcher.is_watching}

    def _take(self, seen: PackSeen, at_ms: float) -> None:
        change = self.roster.swap(seen)
        if change is not None:
            self._follow(change, at_ms)
            self._tidy()

    def _mind_leftovers(self) -> None:
        """What an old version of a pack has left goes with the last turn that speaks with it."""
        if self._lingering and self._lingering.isdisjoint(self._turns.files_in_use()):
            self._tidy()

    def _tidy(self) -> None:
        named = {file for character in self.roster for file in character.all_adapters()}
        spoken_with = set(self._turns.files_in_use())
        self._lingering = spoken_with - named
        self._watcher.tidy(named | spoken_with)

    def _follow(self, change: Change, at_ms: float) -> None:
        for key in self.roster.take_unnamed():
            self._conductor.handle(AdapterRetired(at_ms, key))
        if change.kind is ChangeKind.ADDED and self._recall is not None:
            self._recall.of(change.pack)
        _log(change)
        self._outbox.tell_of_packs(replies.event("pack", **self._told(change)))

    def _told(self, change: Change) -> dict[str, Any]:
        return {
            "change": change.kind.value,
            "character": change.pack,
            "name": change.name,
            "npcs": sum(npc.character == change.pack for npc in self._npcs),
            "kept": change.kept,
            "problems": [problem.to_wire() for problem in change.problems],
        }


def base_of(model: str, hashes: Collection[str]) -> BaseShapes | None:
    """What adapters must fit, from the model's header. None where it has none that can be read: the engine has the last word anyway."""
    if model == FAKE:
        return None
    try:
        return BaseShapes.of(read_header(Path(model)), hashes)
    except PersonaeError as fault:
        log.warning("adapters are not checked against the model before they are used: %s", fault)
        return None


def _log(change: Change) -> None:
    log.info("pack %s: %s", change.pack, change.kind.value)
    for problem in change.problems:
        log.log(logging.ERROR if problem.is_error else logging.WARNING, "%s", problem)
