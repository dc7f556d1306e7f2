"""Requests that are answered when the engine has written or read the last of several files. Decides only when that is.

It knows neither what is in the files nor who asked for what: an answer is made by whoever began the errand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from personae.errors import OurBug, PersonaeError
from personae.scheduler.actions import KvLoaded, KvSaved
from personae.service.sessions import Session
from personae.types import NpcId
from personae.wire import replies

log = logging.getLogger("personae.service")

Told = tuple[Session, dict[str, Any]]
Became = KvSaved | KvLoaded
Finish = Callable[[Mapping[str, Became]], dict[str, Any]]


@dataclass(slots=True, eq=False)
class _Errand:
    session: Session
    request: int
    missing: dict[str, NpcId]  # by path
    finish: Finish
    found: dict[str, Became] = field(default_factory=dict)  # by path
    is_muted: bool = False  # the connection that asked is gone: another request may have its id


class Errands:
    def __init__(self) -> None:
        self._open: list[_Errand] = []

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, session: Session, request: int, paths: Mapping[str, NpcId], finish: Finish) -> None:
        """`finish`: ends the work and makes the answer, of what became of each path. It is called whether or not anybody still listens."""
        session.pending.add(request)
        self._open.append(_Errand(session, request, dict(paths), finish))

    def mute(self, session: Session) -> None:
        """What the session has asked is nobody's from now on: its ids are free for the new connection."""
        session.pending.clear()
        for errand in self._open:
            errand.is_muted = errand.is_muted or errand.session is session

    def note(self, action: Became) -> list[Told]:
        """The answers that are due now."""
        for errand in self._open:
            if errand.missing.get(action.path) == action.npc:
                del errand.missing[action.path]
                errand.found[action.path] = action
                break
        return self._take_done()

    def give_up(self, reason: str) -> list[Told]:
        """Nothing more will be written or read: what is missing is missing for this reason."""
        for errand in self._open:
            for path, npc in errand.missing.items():
                errand.found[path] = KvSaved(npc, path, 0, 0, reason)
            errand.missing.clear()
        return self._take_done()

    def _take_done(self) -> list[Told]:
        done = [errand for errand in self._open if not errand.missing]
        self._open = [errand for errand in self._open if errand.missing]
        answers = [(errand, _answer(errand)) for errand in done]
        return [(errand.session, answer) for errand, answer in answers if _is_awaited(errand)]


def _is_awaited(errand: _Errand) -> bool:
    """Once for each errand: its id is free then."""
    if errand.is_muted:
        return False
    pending = errand.session.pending
    is_awaited = errand.request in pending
    pending.discard(errand.request)
    return is_awaited


def _answer(errand: _Errand) -> dict[str, Any]:
    try:
        return replies.done(errand.request, **errand.finish(errand.found))
    except PersonaeError as failure:
        return replies.error(errand.request, failure)
    except Exception:
        log.exception("a save or restore failed in a way nobody thought of")
        return replies.error(errand.request, OurBug("internal", "It failed in a way nobody thought of.", "The log says more."))
