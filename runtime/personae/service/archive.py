"""Decides what `save` and `restore` do, and what is said of KV that was or was not brought along. Opens no file; knows no socket.

The document is the save; KV beside it only spares a prefill, and whether there is any changes no word that an NPC says. So whatever is
wrong with a blob is a reason in the answer, never a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong, PersonaeError
from personae.scheduler.events import KvLoadAsked, KvSaveAsked
from personae.service.conductor import Conductor
from personae.service.errands import Became, Errands
from personae.service.keeping import Keeping
from personae.service.npcs import Npc, Npcs
from personae.service.roster import Roster
from personae.service.saves import Problem, SavedNpc, document_of, read_document
from personae.service.sessions import Session
from personae.service.state import StateFolder
from personae.types import ModelCard, NpcId
from personae.wire.codec import REPLY_LIMITS, encode
from personae.wire.messages import Restore, Save

ENVELOPE_BYTES = 1024  # of an answer around its document


@dataclass(frozen=True, slots=True)
class _Restored:
    npc: Npc
    kv_file: str | None  # path of the blob; None: there is none
    kv_reason: str = ""

    def to_wire(self, loaded: Became | None) -> dict[str, Any]:
        reason = self.kv_reason if loaded is None else loaded.reason
        return {
            "npc": self.npc.id,
            "character": self.npc.character,
            "lines": len(self.npc.lines),
            "kv": "none" if reason else "loaded",
            "kv_reason": reason,
        }


class Archive:
    """`state` None: nothing outlives the service but what clients take with them."""

    def __init__(
        self,
        npcs: Npcs,
        roster: Roster,
        conductor: Conductor,
        errands: Errands,
        keeping: Keeping,
        *,
        card: ModelCard,
        vocabulary: Vocabulary,
        state: StateFolder | None,
    ) -> None:
        self._npcs = npcs
        self._roster = roster
        self._conductor = conductor
        self._errands = errands
        self._keeping = keeping
        self._card = card
        self._vocabulary = vocabulary
        self._state = state

    def mute(self, session: Session) -> None:
        """The client is back by another connection: what it had asked ends untold."""
        self._errands.mute(session)

    # --- save -----------------------------------------------------------------------------------------------------------

    def save(self, request: Save, session: Session, at_ms: float) -> dict[str, Any] | None:
        """The fields of the answer; None: it comes when the engine has written the KV."""
        npcs = [self._npcs[npc_id] for npc_id in dict.fromkeys(request.npcs)] if request.npcs is not None else list(self._npcs)
        document = document_of(npcs, self._card, self._roster)
        if request.name is None:
            _check_size(document, len(npcs))
            return {"npcs": len(npcs), "document": document}
        state, name = self._folder(), request.name
        if not request.kv or not npcs:
            state.write_save(name, document)
            return {"npcs": len(npcs), "name": name, "kv": 0}

        def finish(written: Mapping[str, Became]) -> dict[str, Any]:
            n_kv = _note_kv(document, written)
            state.write_save(name, document)
            return {"npcs": len(npcs), "name": name, "kv": n_kv}

        paths = {str(state.kv_file(name, npc.id)): npc.id for npc in npcs}
        self._errands.begin(session, request.id, paths, finish)
        for path, npc_id in paths.items():
            self._conductor.handle(KvSaveAsked(at_ms, npc_id, path))
        return None

    # --- restore --------------------------------------------------------------------------------------------------------

    def restore(self, request: Restore, session: Session, at_ms: float) -> dict[str, Any] | None:
        """The fields of the answer; None: it comes when the engine has read the KV. AskedWrong when the save as a whole cannot be read."""
        save = read_document(request.document if request.name is None else self._folder().read_save(request.name))
        wanted = None if request.npcs is None else set(request.npcs)
        problems = [problem for problem in save.problems if wanted is None or problem.npc in wanted]
        problems += _missing(wanted or (), [saved.npc for saved in save] + [problem.npc for problem in problems])
        restored: list[_Restored] = []
        for saved in save:
            if wanted is None or saved.npc in wanted:
                try:
                    restored.append(self._restore_one(saved, request, at_ms))
                except PersonaeError as refusal:
                    problems.append(Problem(saved.npc, refusal.code, refusal.message, refusal.hint))
        return self._answer(restored, problems, request, session, at_ms)

    def _restore_one(self, saved: SavedNpc, request: Restore, at_ms: float) -> _Restored:
        character = self._roster[saved.character]
        npc = saved.to_npc(character, base=self._card.content_hash, vocabulary=self._vocabulary, most_lines=self._npcs.most_lines)
        if request.replace and npc.id in self._npcs:
            self._conductor.dismiss(self._npcs[npc.id], at_ms)
            self._npcs.despawn(npc.id)
        self._npcs.adopt(npc)
        self._keeping.keep(npc)
        if request.name is None or saved.kv is None:
            return _Restored(npc, None, "the save holds no KV of it")
        path = self._folder().kv_file(request.name, npc.id)
        if not path.is_file():
            return _Restored(npc, None, "its KV is not beside the save any more")
        return _Restored(npc, str(path))

    def _answer(
        self, restored: list[_Restored], problems: list[Problem], request: Restore, session: Session, at_ms: float
    ) -> dict[str, Any] | None:
        def finish(loaded: Mapping[str, Became]) -> dict[str, Any]:
            return {
                "restored": [one.to_wire(loaded.get(one.kv_file or "")) for one in restored],
                "problems": [problem.to_wire() for problem in problems],
            }

        paths = {one.kv_file: one.npc.id for one in restored if one.kv_file is not None}
        if not paths:
            return finish({})
        self._errands.begin(session, request.id, paths, finish)
        for path, npc_id in paths.items():
            self._conductor.handle(KvLoadAsked(at_ms, npc_id, path))
        return None

    def _folder(self) -> StateFolder:
        if self._state is None:
            raise AskedWrong("no_state", "This service keeps no saves.", "Start it with --state DIR, or take the document yourself.")
        return self._state


def _note_kv(document: dict[str, Any], written: Mapping[str, Became]) -> int:
    """Say in the save which KV lies beside it; returns of how many NPCs."""
    by_npc = {saved.npc: saved for saved in written.values() if not saved.reason}
    for npc in document["npcs"]:
        saved = by_npc.get(NpcId(npc["npc"]))
        if saved is not None:
            npc["kv"] = {"file": saved.path.replace("\\", "/").rpartition("/")[2], "tokens": saved.n_tokens}
    return len(by_npc)


def _missing(wanted: Iterable[str], found: list[str]) -> list[Problem]:
    return [
        Problem(npc_id, "unknown_npc", f"There is no NPC {npc_id!r} in the save.", "Look at what it holds.")
        for npc_id in sorted(set(wanted) - set(found))
    ]


def _check_size(document: dict[str, Any], n_npcs: int) -> None:
    """A client closes the connection on a frame past the limit, and would never learn why."""
    size, most = len(encode({"document": document})) + ENVELOPE_BYTES, REPLY_LIMITS.frame_bytes
    if size > most:
        raise AskedWrong(
            "save_too_large",
            f"The save of {n_npcs} NPCs has {size} bytes; an answer holds {most}.",
            "Name fewer `npcs` at a time, or give the save a `name`.",
        )
