"""What the service says: plain dicts, ready for the codec. Decides the shape of each reply; refuses to know when one is due.

Every request ends in exactly one `done` or `error`. `delta` comes only between a say and its end; `event` answers nothing.
"""

from __future__ import annotations

from typing import Any

from personae.errors import PersonaeError

_OWN = frozenset({"type", "id", "code", "message", "hint"})


def done(id: int, **fields: Any) -> dict[str, Any]:
    """The request was carried out. `fields` as bindings/PROTOCOL.md lists them for its type."""
    return {"type": "done", "id": id, **fields}


def error(id: int, failure: PersonaeError) -> dict[str, Any]:
    """The request could not be carried out. `id` 0: the frame could not be attributed. Details ride along, e.g. retry_after_ms."""
    details = {key: value for key, value in failure.details.items() if key not in _OWN and value is not None}
    return {"type": "error", "id": id, "code": failure.code, "message": failure.message, "hint": failure.hint, **details}


def delta(id: int, npc: str, text: str, kind: str = "speech") -> dict[str, Any]:
    """Decided text of a say: valid UTF-8, never taken back. `kind` is "speech" or "narration"."""
    return {"type": "delta", "id": id, "npc": npc, "text": text, "kind": kind}


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Something happened that nobody asked for: "warm", "engine_lost", "engine_ready", "adapter_set_aside", "pack" or "closing"."""
    return {"type": "event", "event": name, **fields}
