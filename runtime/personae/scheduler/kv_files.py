"""NPCs' KV on its way to files and from them. Decides what is written and who a file's KV belongs to; never opens a file.

Each KvSaveAsked and KvLoadAsked is answered once, by KvSaved or KvLoaded. What is written is what is known between two steps. What is read
becomes a stash of the NPC; how much of it its next turn can use, only that turn's prompt tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from personae.engine.batch import DropStash, KvRead, KvWritten, Order, ReadKv, WriteKv
from personae.scheduler.actions import Action, Command, KvLoaded, KvSaved
from personae.scheduler.events import KvLoadAsked, KvSaveAsked
from personae.scheduler.host import HostMemory
from personae.scheduler.sequence import Sequence
from personae.scheduler.slots import SlotTable
from personae.types import NpcId, Stash


class KvFiles:
    def __init__(self, slots: SlotTable, host: HostMemory) -> None:
        self._slots = slots
        self._host = host
        self._asked: list[KvSaveAsked] = []  # until no step is under way
        self._written: list[KvSaveAsked] = []  # ordered, in their order
        self._read: dict[Stash, KvLoadAsked] = {}  # ordered
        self._gone: set[Stash] = set()  # being read, and their NPCs are despawned

    def ask_save(self, event: KvSaveAsked) -> None:
        self._asked.append(event)

    def ask_load(self, event: KvLoadAsked, *, is_up: bool) -> Action:
        if not is_up:
            return KvLoaded(event.npc, event.path, 0, "the engine is down")
        if not self._host.is_open:
            return KvLoaded(event.npc, event.path, 0, "there is no host memory for KV (kv_ram is 0)")
        stash = self._host.new_name()
        self._read[stash] = event
        return Command(ReadKv(event.path, stash))

    def forget_npc(self, npc: NpcId) -> None:
        self._gone |= {stash for stash, event in self._read.items() if event.npc == npc}

    def write(self, open_turns: dict[NpcId, Sequence]) -> Iterator[Action]:
        """Between two steps: what was asked since the last one."""
        asked, self._asked = self._asked, []
        for event in asked:
            order = self._order(event, open_turns.get(event.npc))
            if order is None:
                yield KvSaved(event.npc, event.path, 0, 0, "nothing is held of it")
            else:
                self._written.append(event)
                yield Command(order)

    def _order(self, event: KvSaveAsked, turn: Sequence | None) -> Order | None:
        place = self._slots.of(event.npc)
        if place is not None and place.known:
            return WriteKv(event.path, place.slot, None, tuple(place.known), place.voice)
        stashed = (self._host.of_turn(turn) if turn is not None else None) or self._host.of_npc(event.npc)
        return WriteKv(event.path, None, stashed.stash, stashed.tokens, stashed.voice) if stashed is not None else None

    def note_written(self, report: KvWritten) -> Iterator[Action]:
        """An answer to nobody is the last word of an engine that is gone."""
        event = next((event for event in self._written if event.path == report.path), None)
        if event is not None:
            self._written.remove(event)
            yield KvSaved(event.npc, event.path, report.n_tokens, report.n_bytes, report.reason)

    def note_read(self, report: KvRead) -> Iterator[Action]:
        event = self._read.pop(report.stash, None)
        if event is None:
            return
        reason, drops = report.reason, [DropStash(report.stash)]
        if not reason and report.stash in self._gone:
            reason = "the NPC is gone"
        elif not reason:
            fits, drops = self._host.keep_read(event.npc, report)
            reason = "" if fits else "it does not fit into the host memory for KV"
        self._gone.discard(report.stash)
        yield from () if report.reason else map(Command, drops)
        yield KvLoaded(event.npc, event.path, 0 if reason else len(report.tokens), reason)

    def lose(self, reason: str) -> Iterator[Action]:
        """The engine is gone, and what was asked of it with it."""
        for save in (*self._asked, *self._written):
            yield KvSaved(save.npc, save.path, 0, 0, reason)
        for load in self._read.values():
            yield KvLoaded(load.npc, load.path, 0, reason)
        self._asked, self._written = [], []
        self._read.clear()
        self._gone.clear()
