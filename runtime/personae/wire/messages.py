"""What clients may ask: one model for each request of protocol 1. Decides what a request must look like; refuses to know whether
it can be done (is there such an NPC, does its text fit), which is the service's to say.

Keys that are not known here are ignored, so that a client written for a later protocol is understood as far as it can be.
Values are taken as they are: no string becomes a number. `None` in an optional field is as if it were absent.

    id_of(message)   whom an answer would go to, for messages that cannot be parsed
    parse(message)   the request, or AskedWrong with one sentence that names the field
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from personae.errors import AskedWrong
from personae.types import Priority, SamplingParams
from personae.wire.codec import REQUEST_LIMITS

MAX_ID = 2**53 - 1  # what a double, the only number of some script languages, still counts exactly
MAX_SAY_BYTES = 16 << 10  # about 4,000 tokens: more than a slot holds
MAX_NAME_CHARS = 128
MAX_TOKEN_CHARS = 255  # what a PLAIN password can hold
MAX_STOPS = 16
MAX_STOP_CHARS = 128
MAX_REPLY_TOKENS = 4096
MAX_SECONDS = 600.0

LIMITS: dict[str, int | float] = {
    "frame_bytes": REQUEST_LIMITS.frame_bytes,
    "say_bytes": MAX_SAY_BYTES,
    "name_chars": MAX_NAME_CHARS,
    "max_tokens": MAX_REPLY_TOKENS,
    "max_seconds": MAX_SECONDS,
    "stop_strings": MAX_STOPS,
    "stop_chars": MAX_STOP_CHARS,
}
"""Goes into the answer to hello as it is."""


def _fits(text: str) -> str:
    if len(text) > MAX_SAY_BYTES or len(text.encode()) > MAX_SAY_BYTES:
        raise PydanticCustomError("text_too_long", "must have at most {limit} bytes of UTF-8", {"limit": MAX_SAY_BYTES})
    return text


# A name ends up at the head of a line of dialogue: a line break in it could forge another speaker.
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\p{Cc}\u2028\u2029]+$")]
SayText = Annotated[str, Field(min_length=1), AfterValidator(_fits)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
MessageId = Annotated[int, Field(ge=1, le=MAX_ID)]
_NotYet = Annotated[None, Field(default=None)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class SamplingRequest(_Model):
    """Overrides for one turn; what is None stays as the pack has it. Ranges are what the sampler chain takes without losing its meaning.

    `grammar` and `logit_bias` are refused by name rather than ignored: a client that sent one would believe that it held.
    Grammars need a check before the turn starts, and a bias needs the model's token numbers, which clients cannot see yet.
    """

    temperature: float | None = Field(None, ge=0, le=5)
    top_k: int | None = Field(None, ge=0, le=100_000)
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0, le=10)
    repeat_last_n: int | None = Field(None, ge=0, le=65_536)
    frequency_penalty: float | None = Field(None, ge=-5, le=5)
    presence_penalty: float | None = Field(None, ge=-5, le=5)
    dry_multiplier: float | None = Field(None, ge=0, le=10)
    dry_base: float | None = Field(None, ge=1, le=10)
    dry_allowed_length: int | None = Field(None, ge=0, le=1024)
    dry_last_n: int | None = Field(None, ge=-1, le=65_536)
    seed: int | None = Field(None, ge=0, le=2**32 - 2)  # 2^32 - 1 asks llama.cpp for a random one: not repeatable
    grammar: _NotYet
    logit_bias: _NotYet

    def overrides(self) -> dict[str, Any]:
        """The fields that were set, by their names in SamplingParams."""
        return {field.name: value for field in fields(SamplingParams) if (value := getattr(self, field.name)) is not None}

    def apply_to(self, params: SamplingParams) -> SamplingParams:
        return replace(params, **self.overrides())


class _Request(_Model):
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


class Spawn(_Request):
    """`npc` None: the service picks the id. `player` None: the service's word for the player."""

    type = "spawn"
    character: Name
    npc: Name | None = None
    player: Name | None = None


class Say(_Request):
    """`speaker` None: the NPC's player. Numbers that are None are the pack's or the service's own."""

    type = "say"
    npc: Name
    text: SayText
    speaker: Name | None = None
    priority: Annotated[Priority, Field(strict=False)] | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_REPLY_TOKENS)
    max_seconds: float | None = Field(None, ge=0.1, le=MAX_SECONDS)
    stop: Annotated[tuple[Stop, ...], Field(strict=False, max_length=MAX_STOPS)] | None = None
    sampling: SamplingRequest | None = None


class Cancel(_Request):
    """Exactly one of the two: `turn` is the id of an open say of this session, `npc` means whatever that NPC is saying."""

    type = "cancel"
    turn: MessageId | None = None
    npc: Name | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.turn is None) == (self.npc is None):
            raise PydanticCustomError("names_one", "must name either a turn or an npc")
        return self


class History(_Request):
    type = "history"
    npc: Name


class Despawn(_Request):
    type = "despawn"
    npc: Name


class Stats(_Request):
    type = "stats"


class Ping(_Request):
    type = "ping"


class Shutdown(_Request):
    type = "shutdown"


Request = Hello | Characters | Spawn | Say | Cancel | History | Despawn | Stats | Ping | Shutdown

_MODELS: tuple[type[Request], ...] = (Hello, Characters, Spawn, Say, Cancel, History, Despawn, Stats, Ping, Shutdown)
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
        raise _refusal(kind, error.errors(include_url=False, include_input=False)) from None


def _shown(text: str) -> str:
    return text if len(text) <= 32 else text[:32] + "…"


# --- one sentence from pydantic's list ----------------------------------------------------------------------------

_SENTENCES = {
    "missing": "is missing",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must not hold line breaks or other control characters",
    "tuple_type": "must be an array",
    "too_long": "must have at most {max_length} entries",
    "enum": "must be one of {expected}",
    "model_type": "must be a map",
    "none_required": "is not part of protocol 1",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def _refusal(kind: str, errors: list[ErrorDetails]) -> AskedWrong:
    first = errors[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    sentence = _SENTENCES.get(first["type"], first["msg"]).format_map(_Words(first.get("ctx", {})))
    subject = f"`{field}` of {kind}" if field else f"A {kind}"
    also = f", and {len(errors) - 1} more of its fields cannot be used" if len(errors) > 1 else ""
    code = "text_too_long" if first["type"] == "text_too_long" else "bad_request"
    return AskedWrong(code, f"{subject} {sentence}{also}.", "bindings/PROTOCOL.md lists the fields of every request.")


class _Words(dict[str, Any]):
    """Words for a sentence; a number loses its idle `.0`, and a missing word shows its name instead of failing."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def __missing__(self, key: str) -> str:
        return key
