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


def texts_of(message: Message, key: str) -> list[str]:
    value = message.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


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
    """Tokens. prompt = reused + prefilled. `source`: where the reused ones were: "none", "slot", "host", "copy", "saved"."""

    prompt: int
    reused: int
    prefilled: int
    reply: int
    source: str = "none"

    @classmethod
    def of(cls, message: Message) -> Usage:
        prompt, reused, prefilled, reply = (int_of(message, key) for key in ("prompt", "reused", "prefilled", "reply"))
        return cls(prompt, reused, prefilled, reply, text_of(message, "source") or "none")


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds from the service hearing the request. `ttft_ms` is -1 when there was no first token. `paused_ms` went by in `pauses`
    pauses, for turns of a higher priority."""

    queued_ms: float
    ttft_ms: float
    total_ms: float
    paused_ms: float = 0.0
    pauses: int = 0

    @classmethod
    def of(cls, message: Message) -> Timing:
        queued_ms, ttft_ms, total_ms, paused_ms = (float_of(message, key) for key in ("queued_ms", "ttft_ms", "total_ms", "paused_ms"))
        return cls(queued_ms, ttft_ms, total_ms, paused_ms, int_of(message, "pauses"))


@dataclass(frozen=True, slots=True)
class VoicePart:
    """One of the adapters that a voice is made of. `adapter`: SHA-256 hex, None where nobody has read it yet; `file`: within its pack, ""
    where that is not said."""

    adapter: str | None
    scale: float
    file: str = ""

    @classmethod
    def of(cls, message: Message) -> VoicePart:
        return cls(text_of(message, "adapter") or None, float_of(message, "scale"), text_of(message, "file"))


def parts_of(message: Message, key: str) -> tuple[VoicePart, ...]:
    return tuple(map(VoicePart.of, maps_of(message, key)))


@dataclass(frozen=True, slots=True)
class Done:
    """A reply at its end. `text` is all deltas joined, `speech` the spoken part; `finish` why it ended: "end", "stop", "cancelled",
    "interrupted", "deadline", ... `fallback`: the authored line, part of `text`, that was spoken because a deadline passed. `voice`: the
    adapters it was spoken with, none of them being the base model alone. Of a `warm`, texts are empty and `finish` is "warm"."""

    npc: str
    text: str
    speech: str
    finish: str
    adapter: str | None
    seed: int
    usage: Usage
    timing: Timing
    receipt: Message
    fallback: str | None = None
    voice: tuple[VoicePart, ...] = ()
    mood: str | None = None

    @classmethod
    def of(cls, message: Message) -> Done:
        return cls(
            npc=text_of(message, "npc"),
            text=text_of(message, "text"),
            speech=text_of(message, "speech"),
            finish=text_of(message, "finish") or "end",
            adapter=text_of(message, "adapter") or None,
            seed=int_of(message, "seed"),
            usage=Usage.of(map_of(message, "usage")),
            timing=Timing.of(map_of(message, "timing")),
            receipt=map_of(message, "receipt"),
            fallback=text_of(message, "fallback") or None,
            voice=parts_of(message, "voice"),
            mood=text_of(message, "mood") or None,
        )


@dataclass(frozen=True, slots=True)
class Cancelled:
    """True when there was a turn to end. `cut`: how many characters went out of the history's last reply, because nobody heard them."""

    in_time: bool
    cut: int

    @classmethod
    def of(cls, message: Message) -> Cancelled:
        return cls(message.get("cancelled") is True, int_of(message, "cut"))

    def __bool__(self) -> bool:
        return self.in_time


@dataclass(frozen=True, slots=True)
class NpcCard:
    """What the service told of an NPC when it was spawned. For one that was attached to, all but `npc` may be empty."""

    npc: str
    character: str = ""
    name: str = ""
    greeting: str = ""
    adapter: str | None = None
    voice: tuple[VoicePart, ...] = ()

    @classmethod
    def of(cls, message: Message) -> NpcCard:
        npc, character, name, greeting, adapter = (text_of(message, key) for key in ("npc", "character", "name", "greeting", "adapter"))
        return cls(npc, character, name, greeting, adapter or None, parts_of(message, "voice"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an NPC's conversation. `speaker` is "" for an event that nobody said."""

    speaker: str
    text: str
    is_npc: bool = False

    @classmethod
    def of(cls, message: Message) -> Line:
        return cls(text_of(message, "speaker"), text_of(message, "text"), message.get("is_npc") is True)


@dataclass(frozen=True, slots=True)
class Character:
    """A pack that can be spawned. `adapter` is that of the first of its `adapters`; `greetings` how many there are to choose from, the
    usual one counted; `pack` the name of its folder or archive, `portrait` of a file in it, "" where there is none."""

    id: str
    name: str
    adapter: str | None
    greeting: str
    greetings: int = 0
    adapters: tuple[VoicePart, ...] = ()
    moods: tuple[str, ...] = ()
    description: str = ""
    author: str = ""
    licence: str = ""
    tags: tuple[str, ...] = ()
    portrait: str = ""
    pack: str = ""

    @classmethod
    def of(cls, message: Message) -> Character:
        return cls(
            id=text_of(message, "id"),
            name=text_of(message, "name"),
            adapter=text_of(message, "adapter") or None,
            greeting=text_of(message, "greeting"),
            greetings=int_of(message, "greetings"),
            adapters=parts_of(message, "adapters"),
            moods=tuple(texts_of(message, "moods")),
            description=text_of(message, "description"),
            author=text_of(message, "author"),
            licence=text_of(message, "licence"),
            tags=tuple(texts_of(message, "tags")),
            portrait=text_of(message, "portrait"),
            pack=text_of(message, "pack"),
        )


@dataclass(frozen=True, slots=True)
class PackProblem:
    """What is wrong with a pack, in words for its writer. `severity`: "error", it cannot be used; "warning", it can."""

    pack: str
    file: str
    field: str
    problem: str
    remedy: str
    severity: str = "error"

    @classmethod
    def of(cls, message: Message) -> PackProblem:
        pack, file, field, problem, remedy = (text_of(message, key) for key in ("pack", "file", "field", "problem", "remedy"))
        return cls(pack, file, field, problem, remedy, text_of(message, "severity") or "error")


@dataclass(frozen=True, slots=True)
class Characters:
    """What can be spawned, and what cannot and why."""

    characters: tuple[Character, ...]
    problems: tuple[PackProblem, ...]

    @classmethod
    def of(cls, message: Message) -> Characters:
        return cls(tuple(map(Character.of, maps_of(message, "characters"))), tuple(map(PackProblem.of, maps_of(message, "problems"))))


@dataclass(frozen=True, slots=True)
class PackChange:
    """What became of a pack while the service runs. `change`: "added", "changed", "refused", "removed". `npcs`: how many NPCs of it there
    are. `kept`: it was refused, and its last good version is played on."""

    change: str
    character: str
    name: str
    npcs: int
    kept: bool
    problems: tuple[PackProblem, ...]

    @classmethod
    def of(cls, message: Message) -> PackChange:
        change, character, name = (text_of(message, key) for key in ("change", "character", "name"))
        problems = tuple(map(PackProblem.of, maps_of(message, "problems")))
        return cls(change, character, name, int_of(message, "npcs"), message.get("kept") is True, problems)


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
    """What nobody asked for. Of the service: "warm", "engine_lost", "engine_ready", "adapter_set_aside", "state_failed", "closing", and
    "pack" to who has subscribed; of this client: "connection_lost", "reconnected"."""

    name: str
    details: Message = field(default_factory=dict)

    @property
    def pack_change(self) -> PackChange | None:
        """What became of a pack; None when the event is of something else."""
        return PackChange.of(self.details) if self.name == "pack" else None
