"""Decides which NPCs of a state folder are there again, when a service begins and when a pack comes, and what is said of the others. Opens
no file itself.

An NPC whose pack is gone, one past the limit, one of a later version: each stays in the folder as it is, and is there again when the
reason is gone. A pack that comes back brings its NPCs at once; for the other reasons the next start is soon enough.
"""

from __future__ import annotations

import logging

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong, PersonaeError
from personae.service.npcs import Npc, Npcs
from personae.service.roster import Roster
from personae.service.saves import SavedNpc, document_of, read_document
from personae.service.state import Kept, StateFolder, is_file_of
from personae.types import ModelCard

log = logging.getLogger("personae.service")


class Recall:
    def __init__(self, folder: StateFolder, npcs: Npcs, roster: Roster, card: ModelCard, vocabulary: Vocabulary) -> None:
        self._folder = folder
        self._npcs = npcs
        self._roster = roster
        self._card = card
        self._vocabulary = vocabulary
        self._waiting: dict[str, list[str]] = {}  # character that is not there -> files of its NPCs

    def all(self) -> None:
        """All that can be played today, and from now on the folder knows how to write an NPC down."""
        for kept in self._folder.load():
            self._adopt(kept)
        self._folder.author = lambda npc: document_of([npc], self._card, self._roster)
        log.info("NPCs there again from %s: %d", self._folder.path, len(self._npcs))

    def of(self, character_id: str) -> int:
        """The pack of this character has come. Returns how many NPCs are there again."""
        files = [file for file in self._waiting.pop(character_id, ()) if self._folder.is_shelved(file)]
        n_back = sum(self._adopt(kept) for file in files if (kept := self._folder.read_again(file)) is not None)
        if n_back:
            log.info("NPCs there again with %s: %d", character_id, n_back)
        return n_back

    def _adopt(self, kept: Kept) -> bool:
        try:
            saved = self._saved(kept)
            if saved.character not in self._roster.characters:
                self._waiting.setdefault(saved.character, []).append(kept.file)
            self._npcs.adopt(self._npc_of(saved))
        except PersonaeError as refusal:
            self._folder.shelve(kept.file, refusal.message)
            return False
        self._folder.unshelve(kept.file)
        return True

    def _saved(self, kept: Kept) -> SavedNpc:
        save = read_document(kept.document)
        for problem in save.problems:
            raise AskedWrong(problem.code, problem.message)
        for saved in save:
            if is_file_of(kept.file, saved.npc):
                return saved
        raise AskedWrong("bad_save", f"It does not hold the NPC that {kept.file} is named for.")

    def _npc_of(self, saved: SavedNpc) -> Npc:
        character = self._roster[saved.character]
        return saved.to_npc(character, base=self._card.content_hash, vocabulary=self._vocabulary, most_lines=self._npcs.most_lines)
