"""Decides which NPCs of a state folder are there again when a service begins, and what is said of the others. Opens no file itself.

An NPC whose pack is gone, one past the limit, one of a later version: each stays in the folder as it is, and is there again when the
reason is gone.
"""

from __future__ import annotations

import logging

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong, PersonaeError
from personae.service.npcs import Npc, Npcs
from personae.service.roster import Roster
from personae.service.saves import document_of, read_document
from personae.service.state import Kept, StateFolder, is_file_of
from personae.types import ModelCard

log = logging.getLogger("personae.service")


def recall(folder: StateFolder, npcs: Npcs, roster: Roster, card: ModelCard, vocabulary: Vocabulary) -> None:
    """All that can be played today, and from now on the folder knows how to write an NPC down."""
    for kept in folder.load():
        try:
            npcs.adopt(_npc_of(kept, npcs, roster, card, vocabulary))
        except PersonaeError as refusal:
            folder.shelve(kept.file, refusal.message)
    folder.author = lambda npc: document_of([npc], card, roster)
    log.info("NPCs there again from %s: %d", folder.path, len(npcs))


def _npc_of(kept: Kept, npcs: Npcs, roster: Roster, card: ModelCard, vocabulary: Vocabulary) -> Npc:
    save = read_document(kept.document)
    for problem in save.problems:
        raise AskedWrong(problem.code, problem.message)
    for saved in save:
        if is_file_of(kept.file, saved.npc):
            return saved.to_npc(roster[saved.character], base=card.content_hash, vocabulary=vocabulary, most_lines=npcs.most_lines)
    raise AskedWrong("bad_save", f"It does not hold the NPC that {kept.file} is named for.")
