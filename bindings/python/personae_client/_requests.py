"""What each call says to the service: the fields of a request, made of a caller's arguments. Decides their shape; judges no value, which
is the service's to do, and knows no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypedDict

from personae_client._errors import PersonaeError, Timeout
from personae_client._types import Line, Message


class SayOptions(TypedDict, total=False):
    """What a `say` may have beside its text. Left out or None: the pack's, or the service's own."""

    speaker: str | None  # who says it; None: the NPC's player
    priority: str | None  # "player", "scene" or "ambient"; None: by who speaks
    mid_reply: (
        str | None
    )  # while the NPC is still answering: "interrupt" it, "queue" for the end, or "refuse" with NpcBusy; None: by priority
    heard_chars: int | None  # how much of the reply that this interrupts, or of the NPC's last one, was heard; the rest never happened
    heard_sentences: int | None  # the same, counted in sentences; one of the two
    first_ms: float | None  # deadline for the first token: past it the pack's fallback line is spoken
    end_ms: float | None  # the same for the whole reply
    mood: str | None  # one of the character's moods; None: as always
    max_tokens: int | None
    max_seconds: float | None
    max_kv: int | None  # tokens of prompt and reply together
    stop: Sequence[str] | None  # a lone string means itself and not its letters
    sampling: Mapping[str, float] | None


class Named(Protocol):
    """An NPC's handle."""

    @property
    def id(self) -> str: ...


def say_fields(npc: str, text: str | None, options: SayOptions) -> Message:
    unknown = options.keys() - SayOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"say() got unexpected arguments: {', '.join(sorted(unknown))}")
    stop, sampling = options.get("stop"), options.get("sampling")
    return {
        "npc": npc,
        "text": text,
        "speaker": options.get("speaker"),
        "priority": options.get("priority"),
        "mid_reply": options.get("mid_reply"),
        "heard": _given(chars=options.get("heard_chars"), sentences=options.get("heard_sentences")),
        "deadline": _given(first_ms=options.get("first_ms"), end_ms=options.get("end_ms")),
        "mood": options.get("mood"),
        "max_tokens": options.get("max_tokens"),
        "max_seconds": options.get("max_seconds"),
        "max_kv": options.get("max_kv"),
        "stop": None if stop is None else [stop] if isinstance(stop, str) else list(stop),
        "sampling": None if sampling is None else dict(sampling),
    }


def cancel_fields(heard_chars: int | None, heard_sentences: int | None, *, turn: int | None = None, npc: str | None = None) -> Message:
    return {"turn": turn, "npc": npc, "heard": _given(chars=heard_chars, sentences=heard_sentences)}


def spawn_fields(character: str, npc: str | None, player: str | None, greeting: int | None) -> Message:
    return {"character": character, "npc": npc, "player": player, "greeting": greeting}


def warm_fields(npc: str, mood: str | None, priority: str | None) -> Message:
    return {"npc": npc, "mood": mood, "priority": priority}


def observe_fields(npcs: Iterable[Named | str], text: str, speaker: str | None) -> Message:
    return {"npcs": ids_of(npcs), "text": text, "speaker": speaker}


def lines_fields(npc: str, lines: Iterable[Line]) -> Message:
    return {"npc": npc, "lines": [{"speaker": line.speaker, "text": line.text, "is_npc": line.is_npc} for line in lines]}


def ids_of(npcs: Iterable[Named | str]) -> list[str]:
    """A lone id means itself and not its letters."""
    return [npcs] if isinstance(npcs, str) else [npc if isinstance(npc, str) else npc.id for npc in npcs]


def too_slow(kind: str, timeout: float) -> PersonaeError:
    return Timeout("timeout", f"The service did not answer {kind} within {timeout:g} s.", "It may have been carried out all the same.")


def _given(**fields: float | None) -> Message | None:
    """A map of those that are not None; None when none is."""
    return {key: value for key, value in fields.items() if value is not None} or None
