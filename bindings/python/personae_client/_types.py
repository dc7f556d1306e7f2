"""What a caller gets back: frozen dataclasses made from the service's messages. Decides names and types; knows no connection.

Reading is forgiving: a field that is missing or of another type becomes its empty value, so that a service of another age breaks no game.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


def text_of(message: Message, key: str) -> str:
    value = message.get(key)
    return value if isinstance(value, str) else ""


def int_of(message: Message, key: str) -> int:
    value = message.get(key)
    return value if isinstance(value, int) else 0


def float_of(message: Message, key: str) -> float:
    value = message.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def map_of(message: Message, key: str) -> Message:
    value = message.get(key)
    return value if isinstance(value, dict) else {}


def maps_of(message: Message, key: str) -> Iterable[Message]:
    value = message.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class Delta:
    """Decided text of a reply: the new part, not the text so far. `kind` is "speech" or "narration"."""

    text: str
    kind: str
    npc: str

    @classmethod
    def of(cls, message: Message) -> Delta:
        return cls(text_of(message, "text"), text_of(message, "kind") or "speech", text_of(message, "npc"))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. prompt = reused + prefilled."""

    prompt: int
    reused: int
    prefilled: int
    reply: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds from the service hearing the request. `ttft_ms` is -1 when there was no first token."""

    queued_ms: float
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Done:
    """A reply at its end. `text` is all deltas joined, `speech` the spoken part; `finish` why it ended: "end", "stop", "cancelled", ..."""

    npc: str
    text: str
    speech: str
    finish: str
    adapter: str | None
    seed: int
    usage: Usage
    timing: Timing
    receipt: Message

    @classmethod
    def of(cls, message: Message) -> Done:
        usage, timing = map_of(message, "usage"), map_of(message, "timing")
        return cls(
            npc=text_of(message, "npc"),
            text=text_of(message, "text"),
            speech=text_of(message, "speech"),
            finish=text_of(message, "finish") or "end",
            adapter=text_of(message, "adapter") or None,
            seed=int_of(message, "seed"),
            usage=Usage(*(int_of(usage, key) for key in ("prompt", "reused", "prefilled", "reply"))),
            timing=Timing(*(float_of(timing, key) for key in ("queued_ms", "ttft_ms", "total_ms"))),
            receipt=map_of(message, "receipt"),
        )


@dataclass(frozen=True, slots=True)
class NpcCard:
    """What the service told of an NPC when it was spawned. For one that was attached to, all but `npc` may be empty."""

    npc: str
    character: str = ""
    name: str = ""
    greeting: str = ""
    adapter: str | None = None

    @classmethod
    def of(cls, message: Message) -> NpcCard:
        npc, character, name, greeting, adapter = (text_of(message, key) for key in ("npc", "character", "name", "greeting", "adapter"))
        return cls(npc, character, name, greeting, adapter or None)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an NPC's conversation."""

    speaker: str
    text: str
    is_npc: bool

    @classmethod
    def of(cls, message: Message) -> Line:
        return cls(text_of(message, "speaker"), text_of(message, "text"), message.get("is_npc") is True)


@dataclass(frozen=True, slots=True)
class Character:
    """A pack that can be spawned."""

    id: str
    name: str
    adapter: str | None
    greeting: str


@dataclass(frozen=True, slots=True)
class PackProblem:
    """A pack that cannot be used as it is, in words for its writer."""

    pack: str
    file: str
    field: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Characters:
    """What can be spawned, and what cannot and why."""

    characters: tuple[Character, ...]
    problems: tuple[PackProblem, ...]

    @classmethod
    def of(cls, message: Message) -> Characters:
        return cls(
            tuple(
                Character(text_of(one, "id"), text_of(one, "name"), text_of(one, "adapter") or None, text_of(one, "greeting"))
                for one in maps_of(message, "characters")
            ),
            tuple(
                PackProblem(*(text_of(one, key) for key in ("pack", "file", "field", "problem", "remedy")))
                for one in maps_of(message, "problems")
            ),
        )


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    architecture: str
    hash: str  # SHA-256 of the file, hex
    n_ctx: int  # tokens one NPC's conversation can hold at once


@dataclass(frozen=True, slots=True)
class Welcome:
    """The service's answer to hello."""

    v: int
    server: str
    session: str
    model: Model
    mode: str  # "mixed" or "grouped"
    mode_reason: str
    slots: int  # NPCs that speak at the same time
    state: str  # "ready" or "warm", as it was when connected
    heartbeat_ms: int
    limits: Message = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message) -> Welcome:
        model = map_of(message, "model")
        name, architecture, content_hash = (text_of(model, key) for key in ("name", "architecture", "hash"))
        return cls(
            v=int_of(message, "v"),
            server=text_of(message, "server"),
            session=text_of(message, "session"),
            model=Model(name, architecture, content_hash, int_of(model, "n_ctx")),
            mode=text_of(message, "mode"),
            mode_reason=text_of(message, "mode_reason"),
            slots=int_of(message, "slots"),
            state=text_of(message, "state"),
            heartbeat_ms=int_of(message, "heartbeat_ms"),
            limits=map_of(message, "limits"),
        )


@dataclass(frozen=True, slots=True)
class Event:
    """What nobody asked for: "warm", "engine_lost", "engine_ready", "closing" of the service; "connection_lost", "reconnected" of ours."""

    name: str
    details: Message = field(default_factory=dict)
