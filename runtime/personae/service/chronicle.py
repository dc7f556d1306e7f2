"""Decides what `observe`, `history` and `memories` do to what an NPC knows. Knows no turn beyond whether one is open.

What is in its KV is nobody's concern here: the next prompt is another one, and what both have in common is found by comparing tokens.
"""

from __future__ import annotations

from typing import Any

from personae.errors import AskedWrong
from personae.prompt import Line
from personae.service.keeping import Keeping
from personae.service.npcs import Npc, Npcs
from personae.wire.messages import Edit, History, Memories, Observe


class Chronicle:
    def __init__(self, npcs: Npcs, keeping: Keeping) -> None:
        self._npcs = npcs
        self._keeping = keeping

    def observe(self, request: Observe) -> dict[str, Any]:
        """All or none: a name that is unknown is refused before anybody has heard anything."""
        npcs = [self._npcs[npc_id] for npc_id in dict.fromkeys(request.npcs)]
        for npc in npcs:
            npc.witness(Line(request.speaker or "", request.text, False))
            self._keeping.keep(npc)
        return {"npcs": [npc.id for npc in npcs]}

    def check(self, request: History) -> None:
        """AskedWrong when the change cannot be made."""
        _changed(self._npcs[request.npc], request)

    def history(self, request: History) -> dict[str, Any]:
        """The caller has seen to it that a history that is to change is nobody's at the moment."""
        npc = self._npcs[request.npc]
        if request.is_change:
            npc.rewrite(_changed(npc, request))
            self._keeping.keep(npc)
        return {"npc": npc.id, "lines": [{"speaker": line.speaker, "text": line.text, "is_npc": line.is_npc} for line in npc.lines]}

    def memories(self, request: Memories) -> dict[str, Any]:
        """A turn that is open goes on with those it began with."""
        npc = self._npcs[request.npc]
        if request.set is not None:
            npc.memories = list(request.set)
            self._keeping.keep(npc)
        return {"npc": npc.id, "memories": list(npc.memories)}


def _changed(npc: Npc, request: History) -> list[Line]:
    if request.lines is not None:
        return [Line(line.speaker, line.text, line.is_npc) for line in request.lines]
    if request.edit is not None:
        return _edited(npc, request.edit)
    return npc.lines[: request.keep]


def _edited(npc: Npc, edit: Edit) -> list[Line]:
    lines = list(npc.lines)
    if not -len(lines) <= edit.at < len(lines):
        raise AskedWrong("unknown_line", f"{npc.id!r} has {len(lines)} lines; there is none at {edit.at}.", "Read the history first.")
    old = lines[edit.at]
    lines[edit.at] = Line(old.speaker, edit.text, old.is_npc)
    return lines
