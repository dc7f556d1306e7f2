"""The form of character.toml: what a writer may say, in which range, and how a mistake is told to them.

Decides about the text alone: it opens no file and does not know whether the adapter it names exists. The models below are the
one source; the reference table in characters/README.md is made from them.

Rules that always hold
- All mistakes of a manifest are found in one reading, each with its field and what to do.
- A key nobody knows is kept and warned of, never refused: it may be from a newer version, another tool, or a typing mistake.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from personae.packs.character import PackProblem, Severity

FILE = "character.toml"
VERSION = 1
MAX_BYTES = 256 * 1024
# tomllib takes time that grows with the square of a dotted key's parts: 17 s for one of 32 768 (measured on Python 3.11).
MAX_DOTS_IN_LINE = 100
MAX_PROBLEMS = 50  # listed for one pack; the others come to light when these are put right

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _readable(text: str) -> str:
    if found := _CONTROL.search(text):
        raise ValueError(f"should hold no control characters, and holds U+{ord(found[0]):04X}")
    return text


def _on_one_line(text: str) -> str:
    """A name heads lines of dialogue: a break in it could forge another speaker."""
    if len(text.splitlines()) > 1:
        raise ValueError("should stand on one line")
    return text


Prose = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_readable)]
Name = Annotated[Prose, AfterValidator(_on_one_line)]
Exact = Annotated[str, AfterValidator(_readable)]  # blanks at the ends count


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)


class Example(_Table):
    """How the character talks, shown rather than told. Two or three are enough."""

    player: Prose = Field(min_length=1, max_length=2000, description="What the player says.")
    reply: Prose = Field(min_length=1, max_length=2000, description="What the character answers, in its own voice.")


class Lore(_Table):
    """What the character knows of its world, one thing an entry: what does not fit into a short context goes entry by entry."""

    name: Name = Field(default="", max_length=80, description="Label, for people and for the list of what was left out.")
    text: Prose = Field(min_length=1, max_length=4000, description="What the character knows, word for word as in the prompt.")
    priority: int = Field(default=0, ge=-100, le=100, description="Higher stays longer when the context is short.")


class Adapter(_Table):
    """The LoRA adapter that gives the character its voice. Leave the table out for a voice made by the persona alone."""

    file: Exact = Field(min_length=1, max_length=255, description="GGUF file inside the pack, with `/` between folders.")
    scale: float = Field(default=1.0, gt=0, le=4, description="Strength of the voice; multiplies alpha / rank.")


class Sampling(_Table):
    """How the next word is drawn. What is left out is up to the service.

    No grammar and no logit bias: token ids belong to one model, and a grammar of a hundred optional letters holds a step for seconds.
    """

    temperature: float | None = Field(default=None, ge=0, le=5, description="0 always takes the likeliest word.")
    top_k: int | None = Field(default=None, ge=0, le=100_000, description="Only the k likeliest; 0 is off.")
    top_p: float | None = Field(default=None, gt=0, le=1, description="Only the likeliest that make up this share; 1 is off.")
    min_p: float | None = Field(default=None, ge=0, le=1, description="Only those at least this likely against the likeliest; 0 is off.")
    repeat_penalty: float | None = Field(default=None, ge=0.5, le=3, description="Above 1 makes repeating less likely; 1 is off.")
    repeat_last_n: int | None = Field(default=None, ge=0, le=8192, description="Tokens looked back at by the penalties; 0 is off.")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, description="Per time a token was used.")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="Once a token was used at all.")
    dry_multiplier: float | None = Field(default=None, ge=0, le=10, description="Against repeated phrases (DRY); 0 is off.")
    dry_base: float | None = Field(default=None, ge=1, le=4, description="Growth of DRY with the phrase's length.")
    dry_allowed_length: int | None = Field(default=None, ge=1, le=64, description="Tokens that may repeat before DRY counts.")
    dry_last_n: int | None = Field(default=None, ge=-1, le=8192, description="Tokens looked back at by DRY; -1 is all.")
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1, description="The same seed and prompt give the same reply.")


class TurnLimits(_Table):
    """What one reply may use at the most."""

    max_tokens: int | None = Field(default=None, ge=1, le=4096, description="Tokens of a reply; about 4 for 3 English words.")
    max_seconds: float | None = Field(default=None, gt=0, le=600, description="Seconds of a reply.")
    max_kv: int | None = Field(
        default=None, ge=64, le=1_048_576, description="Tokens of prompt and reply together. Left out: all that the context holds."
    )


class Manifest(_Table):
    """One character."""

    manifest: int = Field(default=VERSION, ge=1, description="Version of this form.")
    name: Name = Field(default="", max_length=80, description="Name the player sees. Left out: the folder's name, with a warning.")
    persona: Prose = Field(
        min_length=1, max_length=16_000, description="Who the character is, addressed as *you*. Never cut from the prompt."
    )
    style: Prose = Field(default="", max_length=4000, description="How the character speaks.")
    greeting: Prose = Field(default="", max_length=2000, description="First line, spoken before the player says anything.")
    fallback: list[Annotated[Prose, Field(min_length=1, max_length=300)]] = Field(
        default=[], max_length=16, description="What the character says when its reply would come too late; one is picked in turn."
    )
    stop: list[Annotated[Exact, Field(min_length=1, max_length=64)]] = Field(
        default=[], max_length=16, description="Texts that end a reply."
    )
    description: Prose = Field(default="", max_length=4000, description="For people who choose a character; not in the prompt.")
    author: Prose = Field(default="", max_length=200, description="Who made the pack.")
    licence: Prose = Field(
        default="", max_length=200, validation_alias=AliasChoices("licence", "license"), description="What others may do with it."
    )
    tags: list[Annotated[Prose, Field(min_length=1, max_length=40)]] = Field(default=[], max_length=32, description="For sorting.")
    examples: list[Example] = Field(default=[], max_length=32)
    lore: list[Lore] = Field(default=[], max_length=256)
    adapter: Adapter | None = None
    sampling: Sampling = Sampling()
    limits: TurnLimits = TurnLimits()


def decode(content: bytes) -> dict[str, Any]:
    """A manifest's bytes as TOML. ValueError in words for its writer; always UTF-8, with or without a byte order mark."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"has {len(content)} bytes, more than {MAX_BYTES}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError(f"is not UTF-8 (byte {fault.start + 1} is 0x{content[fault.start]:02X})") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > MAX_DOTS_IN_LINE:
            raise ValueError(f"has more than {MAX_DOTS_IN_LINE} dots in line {number}")
    try:
        return tomllib.loads(text)
    except ValueError as fault:  # TOMLDecodeError, or a number with thousands of digits
        raise ValueError(f"is not TOML: {fault}") from None
    except RecursionError:
        raise ValueError("is not TOML: it is nested too deeply") from None


def check(pack: str, table: Mapping[str, Any]) -> tuple[Manifest | None, list[PackProblem]]:
    """The manifest, or None when it has errors, and everything there is to say about it."""
    problems = list(islice(_warnings(pack, table), MAX_PROBLEMS))
    try:
        return Manifest.model_validate(table), problems
    except ValidationError as fault:
        errors = [_explained(pack, error) for error in fault.errors(include_url=False)]
        return None, (errors + problems)[:MAX_PROBLEMS]


# --- mistakes -----------------------------------------------------------------------------------------------------


def _warnings(pack: str, table: Mapping[str, Any]) -> Iterator[PackProblem]:
    version = table.get("manifest")
    if isinstance(version, int) and version > VERSION:
        problem = f"was written for version {version} of the form, and this program knows {VERSION}: it was read as far as that goes."
        yield PackProblem(pack, FILE, "manifest", problem, "Update Personae to use all of it.", Severity.WARNING)
    if not table.get("name"):
        problem = "is missing: the character is called after its folder."
        yield PackProblem(pack, FILE, "name", problem, 'Add name = "..." at the top.', Severity.WARNING)
    for where, key, known in _unknown(Manifest, table, ""):
        yield _unknown_key(pack, where, key, known)


def _unknown(model: type[BaseModel], table: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, list[str]]]:
    """(path, key, keys that would be known there) of each key without a field, in tables and lists of tables below too."""
    fields = known_keys(model)
    for key, value in table.items():
        if key not in fields:
            yield where + key[:60], key, list(fields)
        elif inner := inner_model(fields[key]):
            for path, part in _parts(where + key, value):
                yield from _unknown(inner, part, path + ".")


def _parts(path: str, value: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
    elif isinstance(value, list):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(value, start=1) if isinstance(part, dict))


def known_keys(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Every spelling of every field, in order."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
        found.update(dict.fromkeys(names, field))
    return MappingProxyType(found)


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The table that a field holds, or holds a list of; None for plain values."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _unknown_key(pack: str, where: str, key: str, known: list[str]) -> PackProblem:
    near = difflib.get_close_matches(key[:40].lower(), known, n=1)
    remedy = f"Did you mean '{near[0]}'?" if near else "Remove it, or look for its right place in the manifest reference."
    return PackProblem(pack, FILE, where, "is not known here: it is kept and has no effect.", remedy, Severity.WARNING)


def _explained(pack: str, error: ErrorDetails) -> PackProblem:
    path = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return PackProblem(pack, FILE, path, "is missing.", _remedy(error["loc"]))
    if error["type"] == "string_too_short":
        return PackProblem(pack, FILE, path, "is empty.", _remedy(error["loc"]))
    if error["type"] in ("model_type", "model_attributes_type"):
        return PackProblem(pack, FILE, path, "should be a table.", _remedy(error["loc"]))
    message = re.sub(r"^(Input|String|List|Value error,) | after validation", "", error["msg"])
    return PackProblem(pack, FILE, path, f"{message}{_given(error['input'])}.", _remedy(error["loc"]))


def _given(value: object) -> str:
    """The value itself, where it is short enough to help."""
    if isinstance(value, bool | int | float):
        return f", and is {str(value).lower() if isinstance(value, bool) else value}"
    if isinstance(value, str) and 0 < len(value) <= 40:
        return f", and is {value!r}"
    return ""


def _remedy(loc: tuple[int | str, ...]) -> str:
    """What the reference says of the field an error is at."""
    model: type[BaseModel] | None = Manifest
    text = ""
    for part in loc:
        if isinstance(part, str) and model is not None and (field := known_keys(model).get(part)):
            model = inner_model(field)
            text = field.description or (model.__doc__ if model else "") or text
    return text
