"""Saves as a caller sees them. Decides how one that is larger than a request is given back in parts; what is in it, only the service knows,
but for `npcs`, the array of its NPCs (PROTOCOL.md, 3.9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from personae_client._codec import encode
from personae_client._types import Message, int_of, map_of, maps_of, text_of

ROOM_BYTES, ROOM_VALUES = 1 << 10, 32  # of a request, for what it holds beside document and names
USUAL_BYTES, USUAL_VALUES = 1 << 20, 4096  # where the service does not say what a request may hold


@dataclass(frozen=True, slots=True)
class Saved:
    """`npcs`: how many are in it. `document`: keep it with your save game. It is None when the service keeps it, under `name` and with
    what it had computed for `kv` of them."""

    npcs: int
    document: Message | None
    name: str | None
    kv: int

    @classmethod
    def of(cls, message: Message) -> Saved:
        return cls(int_of(message, "npcs"), map_of(message, "document") or None, text_of(message, "name") or None, int_of(message, "kv"))


@dataclass(frozen=True, slots=True)
class RestoredNpc:
    """An NPC that is there again. `kv`: "loaded", or "none" and `kv_reason` says why: then its first turn takes as long as a new NPC's."""

    npc: str
    character: str
    lines: int
    kv: str
    kv_reason: str


@dataclass(frozen=True, slots=True)
class NotRestored:
    """An NPC that is not, and why; `npc` is "" where not even its name could be read."""

    npc: str
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Restored:
    """Every NPC that was asked for is in exactly one of the two."""

    npcs: tuple[RestoredNpc, ...]
    problems: tuple[NotRestored, ...]

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Restored:
        """One answer, or those of several parts."""
        answers = list(messages)
        return cls(
            tuple(
                RestoredNpc(
                    text_of(one, "npc"), text_of(one, "character"), int_of(one, "lines"), text_of(one, "kv"), text_of(one, "kv_reason")
                )
                for answer in answers
                for one in maps_of(answer, "restored")
            ),
            tuple(
                NotRestored(*(text_of(one, key) for key in ("npc", "code", "message", "hint")))
                for answer in answers
                for one in maps_of(answer, "problems")
            ),
        )


def restores(document: Message | None, name: str | None, npcs: list[str] | None, replace: bool, limits: Message) -> list[Message]:
    """The fields of the requests that give a save back: one, where it fits into one."""
    common: Message = {"name": name, "replace": replace or None}
    if document is None:
        return [{**common, "npcs": npcs}]
    parts = list(parts_of(document if npcs is None else _only(document, npcs), limits))
    if npcs is None:
        return [{**common, "document": part} for part in parts]
    names = [[npc for npc in npcs if npc in _names(part)] for part in parts]
    names[0] += sorted(set(npcs) - {npc for some in names for npc in some})  # the service says that they are not in the save
    return [{**common, "document": part, "npcs": some} for part, some in zip(parts, names, strict=True)]


def parts_of(document: Message, limits: Message) -> Iterator[Message]:
    """The document, or as few as do of the same document with some of its NPCs. One NPC too large by itself is the service's to refuse."""
    npcs = document.get("npcs")
    if not isinstance(npcs, list) or not npcs:
        yield document
        return
    head = {key: value for key, value in document.items() if key != "npcs"}
    most_bytes = (int_of(limits, "frame_bytes") or USUAL_BYTES) - _bytes(head) - ROOM_BYTES
    most_values = (int_of(limits, "frame_values") or USUAL_VALUES) - _values(head) - ROOM_VALUES
    part: list[Any] = []
    n_bytes = n_values = 0
    for npc in npcs:
        name = _bytes(npc.get("npc")) if isinstance(npc, dict) else 0  # it may be in the request's `npcs`, too
        more_bytes, more_values = _bytes(npc) + name, _values(npc) + 1
        if part and (n_bytes + more_bytes > most_bytes or n_values + more_values > most_values):
            yield {**head, "npcs": part}
            part, n_bytes, n_values = [], 0, 0
        part.append(npc)
        n_bytes, n_values = n_bytes + more_bytes, n_values + more_values
    yield {**head, "npcs": part}


def _only(document: Message, npcs: list[str]) -> Message:
    """What nobody asked for need not be sent. What cannot be told apart is."""
    listed, wanted = document.get("npcs"), set(npcs)
    if not isinstance(listed, list):
        return document
    return {**document, "npcs": [one for one in listed if isinstance(one, dict) and one.get("npc") in wanted]}


def _names(part: Message) -> set[str]:
    return {text_of(one, "npc") for one in maps_of(part, "npcs")}


def _bytes(value: Any) -> int:
    try:
        return len(encode(value))
    except (TypeError, ValueError, OverflowError):
        return 0  # the request that holds it says what is wrong


def _values(value: Any) -> int:
    """As the service counts them: each one, keys too."""
    if isinstance(value, dict):
        return 1 + sum(1 + _values(inner) for inner in value.values())
    return 1 + sum(map(_values, value)) if isinstance(value, (list, tuple)) else 1
