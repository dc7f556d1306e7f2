"""Decides what a value on the wire may be: how long, how many, which characters. Refuses to know which request it is part of.

Values are taken as they are: no string becomes a number. `None` is as if the field were absent.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_ID = 2**53 - 1  # what a double, the only number of some script languages, still counts exactly
MAX_SAY_BYTES = 16 << 10  # about 4,000 tokens: more than a slot holds
MAX_LINE_BYTES = 64 << 10  # of a line that history is given: a reply of MAX_REPLY_TOKENS long tokens has to go back whole
MAX_NAME_CHARS = 128
MAX_TOKEN_CHARS = 255  # what a PLAIN password can hold
MAX_STOPS = 16
MAX_STOP_CHARS = 128
MAX_REPLY_TOKENS = 4096
MAX_SECONDS = 600.0
MAX_DEADLINE_MS = 600_000.0
MIN_KV, MAX_KV = 64, 1 << 20  # tokens: below, no persona fits; above, no slot reaches
MAX_OBSERVERS = 256
MAX_LINES = 400
MAX_MEMORIES = 64
MAX_MEMORY_CHARS = 2_000
MAX_SAVED = 4_096  # NPCs that a save or a restore names
MAX_SAVE_NAME_CHARS = 128  # it becomes a name of a file

_SAVE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Form(BaseModel):
    """What every map on the wire has in common. Unknown keys are ignored, so that a later client is understood as far as it can be."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


def _fits(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) > limit or len(text.encode()) > limit:
            raise PydanticCustomError("text_too_long", "must have at most {limit} bytes of UTF-8", {"limit": limit})
        return text

    return AfterValidator(check)


def _check_save_name(name: str) -> str:
    if len(name) > MAX_SAVE_NAME_CHARS or not _SAVE_NAME.fullmatch(name):
        raise PydanticCustomError(
            "save_name",
            "must be 1 to {limit} letters, digits, dots, underscores and hyphens, and not begin with a dot",
            {"limit": MAX_SAVE_NAME_CHARS},
        )
    return name


def _absent_is_false(value: Any) -> Any:
    return False if value is None else value


def exactly_one(whole: Form, *names: str) -> None:
    """For a model's own check: one of these fields is there, and no other of them."""
    if sum(getattr(whole, name) is not None for name in names) != 1:
        raise PydanticCustomError("exactly_one", "must hold exactly one of {names}", {"names": ", ".join(names)})


def at_most_one(whole: Form, *names: str) -> None:
    if sum(getattr(whole, name) is not None for name in names) > 1:
        raise PydanticCustomError("at_most_one", "must hold at most one of {names}", {"names": ", ".join(names)})


# A name ends up at the head of a line of dialogue: a line break in it could forge another speaker.
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\p{Cc}\u2028\u2029]+$")]
Narrator = Annotated[str, Field(max_length=MAX_NAME_CHARS, pattern=r"^[^\p{Cc}\u2028\u2029]*$")]  # a name, or "": nobody, an event
Names = Annotated[tuple[Name, ...], Field(strict=False), AfterValidator(lambda names: tuple(dict.fromkeys(names)))]  # each once
SaveName = Annotated[str, AfterValidator(_check_save_name)]
SayText = Annotated[str, Field(min_length=1), _fits(MAX_SAY_BYTES)]
LineText = Annotated[str, Field(min_length=1), _fits(MAX_LINE_BYTES)]
Memory = Annotated[str, Field(min_length=1, max_length=MAX_MEMORY_CHARS)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
MessageId = Annotated[int, Field(ge=1, le=MAX_ID)]
Count = Annotated[int, Field(ge=0, le=MAX_ID)]
DeadlineMs = Annotated[float, Field(ge=1, le=MAX_DEADLINE_MS)]
Flag = Annotated[bool, BeforeValidator(_absent_is_false)]
NotYet = Annotated[None, Field(default=None)]
