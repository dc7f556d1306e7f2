"""What clients may ask: one model for each request of protocol 1. Decides what a request must look like; refuses to know whether
it can be done (is there such an NPC, does its text fit), which is the service's to say.

What a single value may be is `fields.py`'s to say; here stands which fields a request has and what must not come together.
`None` in an optional field is as if it were absent.

    id_of(message)   whom an answer would go to, for messages that cannot be parsed
    parse(message)   the request, or AskedWrong with one sentence that names the field
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from personae.errors import AskedWrong
from personae.types import Priority
from personae.wire.codec import REQUEST_LIMITS
from personae.wire.fields import (
    MAX_ID,
    MAX_KV,
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_MEMORIES,
    MAX_MEMORY_CHARS,
    MAX_NAME_CHARS,
    MAX_OBSERVERS,
    MAX_REPLY_TOKENS,
    MAX_SAVED,
    MAX_SAY_BYTES,
    MAX_SECONDS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOKEN_CHARS,
    MIN_KV,
    Count,
    DeadlineMs,
    Flag,
    Form,
    LineText,
    Memory,
    MessageId,
    Name,
    Names,
    Narrator,
    SaveName,
    SayText,
    Stop,
    at_most_one,
    exactly_one,
)
from personae.wire.refusals import refusal
from personae.wire.sampling import SamplingRequest

LIMITS: dict[str, int | float] = {
    "frame_bytes": REQUEST_LIMITS.frame_bytes,
    "frame_values": REQUEST_LIMITS.values,
    "say_bytes": MAX_SAY_BYTES,
    "line_bytes": MAX_LINE_BYTES,
    "name_chars": MAX_NAME_CHARS,
    "max_tokens": MAX_REPLY_TOKENS,
    "max_seconds": MAX_SECONDS,
    "stop_strings": MAX_STOPS,
    "stop_chars": MAX_STOP_CHARS,
    "observers": MAX_OBSERVERS,
    "lines": MAX_LINES,
    "memories": MAX_MEMORIES,
    "memory_chars": MAX_MEMORY_CHARS,
}
"""Goes into the answer to hello as it is."""


# --- parts of requests --------------------------------------------------------------------------------------------


class MidReply(StrEnum):
    """What becomes of a say to an NPC that is still answering. The values are part of the wire."""

    INTERRUPT = "interrupt"  # the reply ends here
    QUEUE = "queue"  # the say waits for its end
    REFUSE = "refuse"  # `npc_busy`


class Heard(Form):
    """How much of a reply somebody heard, from its start: exactly one of the two. More than there is means all of it."""

    chars: Count | None = None  # Unicode characters of the reply's text, narration and blanks counted
    sentences: Count | None = None

    @model_validator(mode="after")
    def _counts_one_thing(self) -> Self:
        exactly_one(self, "chars", "sentences")
        return self


class Deadline(Form):
    """Milliseconds from the request; at least one of the two."""

    first_ms: DeadlineMs | None = None  # to the first token
    end_ms: DeadlineMs | None = None

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.first_ms is None and self.end_ms is None:
            raise PydanticCustomError("no_deadline", "must hold first_ms, end_ms or both")
        return self


class HistoryLine(Form):
    """`speaker` "": nobody says it, it is an event that is told."""

    speaker: Narrator
    text: LineText
    is_npc: Flag = False


class Edit(Form):
    """`at`: which line, from 0; negative from the end, so that -1 is the newest."""

    at: int = Field(ge=-MAX_ID, le=MAX_ID)
    text: LineText


# --- requests ------------------------------------------------------------------------------------------------------


class _Request(Form):
    type: ClassVar[str]
    id: MessageId


class Hello(_Request):
    """The first request of a connection. `session` asks for the place of a connection that was lost; `v` is judged by the service."""

    type = "hello"
    v: int = Field(ge=1, le=MAX_ID)
    client: Name
    token: str | None = Field(None, max_length=MAX_TOKEN_CHARS, repr=False)
    session: Name | None = None


class Characters(_Request):
    type = "characters"


class Subscribe(_Request):
    """`packs`: whether this session hears what becomes of packs; None: as before, it is only asked."""

    type = "subscribe"
    packs: bool | None = None


class Spawn(_Request):
    """`npc` None: the service picks the id. `player` None: the service's word for the player. `greeting`: which of the character's, from 0;
    None: the first, if there is one."""

    type = "spawn"
    character: Name
    npc: Name | None = None
    player: Name | None = None
    greeting: Count | None = None


class Say(_Request):
    """`text` None: nobody spoke, the NPC goes on of its own accord. `speaker` None: the NPC's player. `priority` and `mid_reply` None: by
    who speaks. `heard`: of the reply that this interrupts, or of the NPC's last one. `mood`: one of the character's; None: as always.
    Numbers that are None are the pack's or the service's.
    """

    type = "say"
    npc: Name
    text: SayText | None = None
    speaker: Name | None = None
    priority: Annotated[Priority, Field(strict=False)] | None = None
    mid_reply: Annotated[MidReply, Field(strict=False)] | None = None
    heard: Heard | None = None
    deadline: Deadline | None = None
    mood: Name | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_REPLY_TOKENS)
    max_seconds: float | None = Field(None, ge=0.1, le=MAX_SECONDS)
    max_kv: int | None = Field(None, ge=MIN_KV, le=MAX_KV)
    stop: Annotated[tuple[Stop, ...], Field(strict=False, max_length=MAX_STOPS)] | None = None
    sampling: SamplingRequest | None = None


class Cancel(_Request):
    """`turn` is the id of a say or warm of this session, `npc` means whatever that NPC is saying. `heard` None: all that was sent."""

    type = "cancel"
    turn: MessageId | None = None
    npc: Name | None = None
    heard: Heard | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.turn is None) == (self.npc is None):
            raise PydanticCustomError("names_one", "must name either a turn or an npc")
        return self


class Observe(_Request):
    """These NPCs hear it and do not answer. `speaker` None: it is an event, told by nobody."""

    type = "observe"
    npcs: Annotated[Names, Field(min_length=1, max_length=MAX_OBSERVERS)]
    text: SayText
    speaker: Name | None = None


class History(_Request):
    """Without a change: read it. `keep`: only the first so many lines stay. `edit`: one line gets another text. `lines`: all of it anew."""

    type = "history"
    npc: Name
    keep: Count | None = None
    edit: Edit | None = None
    lines: Annotated[tuple[HistoryLine, ...], Field(strict=False, max_length=MAX_LINES)] | None = None

    @model_validator(mode="after")
    def _changes_one_thing(self) -> Self:
        at_most_one(self, "keep", "edit", "lines")
        return self

    @property
    def is_change(self) -> bool:
        return not (self.keep is None and self.edit is None and self.lines is None)


class Memories(_Request):
    """`set` None: read them."""

    type = "memories"
    npc: Name
    set: Annotated[tuple[Memory, ...], Field(strict=False, max_length=MAX_MEMORIES)] | None = None


class Warm(_Request):
    type = "warm"
    npc: Name
    mood: Name | None = None
    priority: Annotated[Priority, Field(strict=False)] | None = None


class Save(_Request):
    """`npcs` None: all. `name` None: the document goes to the client; otherwise the service keeps it, with `kv` beside it."""

    type = "save"
    npcs: Annotated[Names, Field(max_length=MAX_SAVED)] | None = None
    name: SaveName | None = None
    kv: Flag = False

    @model_validator(mode="after")
    def _keeps_kv_by_name(self) -> Self:
        if self.kv and self.name is None:
            raise PydanticCustomError("kv_without_name", "with kv must have a name: only the service can keep it")
        return self


class Restore(_Request):
    """Exactly one of `document` and `name`. What a document holds is the service's to judge. `npcs` None: all that are in it."""

    type = "restore"
    document: dict[str, Any] | None = None
    name: SaveName | None = None
    npcs: Annotated[Names, Field(max_length=MAX_SAVED)] | None = None
    replace: Flag = False

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        exactly_one(self, "document", "name")
        return self


class Despawn(_Request):
    type = "despawn"
    npc: Name


class Stats(_Request):
    type = "stats"


class Ping(_Request):
    type = "ping"


class Shutdown(_Request):
    type = "shutdown"


Request = (
    Hello
    | Characters
    | Subscribe
    | Spawn
    | Say
    | Cancel
    | Observe
    | History
    | Memories
    | Warm
    | Save
    | Restore
    | Despawn
    | Stats
    | Ping
    | Shutdown
)

_MODELS: tuple[type[Request], ...] = (
    Hello,
    Characters,
    Subscribe,
    Spawn,
    Say,
    Cancel,
    Observe,
    History,
    Memories,
    Warm,
    Save,
    Restore,
    Despawn,
    Stats,
    Ping,
    Shutdown,
)
REQUESTS: dict[str, type[Request]] = {model.type: model for model in _MODELS}


def id_of(message: dict[str, Any]) -> int:
    """The id an error about this message goes to; 0 when it has none that could be answered."""
    given = message.get("id")
    return given if type(given) is int and 1 <= given <= MAX_ID else 0


def parse(message: dict[str, Any]) -> Request:
    """The request a decoded frame holds.

    AskedWrong `bad_message`: it has no usable `type` or `id`, so that the answer has id 0. `bad_request`: the type is unknown or
    a field is wrong. `text_too_long`: what is said is past the limit.
    """
    kind = message.get("type")
    if type(kind) is not str:
        raise AskedWrong("bad_message", "The message has no `type`.", f"Name one of {', '.join(REQUESTS)}.")
    if not id_of(message):
        raise AskedWrong("bad_message", f"The {_shown(kind)} has no usable `id`.", f"Number requests from 1 to {MAX_ID}.")
    model = REQUESTS.get(kind)
    if model is None:
        raise AskedWrong("bad_request", f"There is no request {_shown(kind)!r} in protocol 1.", f"Known are {', '.join(REQUESTS)}.")
    try:
        return model.model_validate(message)
    except ValidationError as error:
        raise refusal(kind, error.errors(include_url=False, include_input=False)) from None


def _shown(text: str) -> str:
    return text if len(text) <= 32 else text[:32] + "…"
