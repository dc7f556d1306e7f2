"""The form of character.toml: what a writer may say, in which range, and how a mistake is told to them.

Decides about the text alone: it opens no file and does not know whether the adapter it names exists. The models below are the
one source; the reference table in characters/README.md is made from them.

Rules that always hold
- All mistakes of a manifest are found in one reading, each with its field and what to do.
- A key nobody knows is kept and warned of, never refused: it may be from a newer version, another tool, or a typing mistake.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from personae import patterns
from personae.packs.character import PackProblem, Severity
from personae.packs.mistakes import MAX_PROBLEMS, unknown_keys, validated
from personae.types import MAX_VOICE_PARTS

FILE = "character.toml"
VERSION = 1
MAX_BYTES = 256 * 1024
# Outside of texts, so of keys and numbers. tomllib makes tables for every part of a dotted key, half a GB of them for a MiB of dots, and
# takes time that grows with the square of its parts: 17 s for one of 32 768 (measured on Python 3.11).
MAX_DOTS = 2000
MAX_LORE_FILES = 16
MAX_LORE_FILE_BYTES = 1024 * 1024
MAX_LORE_BYTES = 2 * 1024 * 1024  # of all lore files together, which take 1.5 s for each MiB at the worst
MAX_LORE = 1024  # entries of a pack, those of its files included
MAX_REGEX_KEYS = 256  # of a pack: each may hold patterns.MAX_MEMORY while it is matched
MAX_REGEX_CLASSES = 32  # of a pack, in all its regular expressions (patterns.classes_in)

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# What TOML has texts and comments in. Each takes all that it can and never gives any back: linear in a text that ends in the middle, too.
_TEXTS = re.compile(
    r'''"""(?:[^"\\]++|\\[\s\S]|"(?!""))*+(?:"{3,5})?|'{3}(?:[^']++|'(?!''))*+(?:'{3,5})?'''
    r"""|"(?:[^"\\\n]++|\\[^\n])*+"?|'[^'\n]*+'?|\#[^\n]*+"""
)
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


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("should hold more than blanks")
    return text


def _sha256(text: str) -> str:
    if text and not _SHA256.fullmatch(text):
        raise ValueError("should be a SHA-256: 64 digits from 0 to 9 and a to f")
    return text.lower()


def _in_a_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


class OneOrMany:
    """Says in the JSON Schema that one table may stand for a list of one."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        many = handler(core)
        return {"anyOf": [many["items"], many]}


Prose = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_readable)]
Name = Annotated[Prose, AfterValidator(_on_one_line)]
Exact = Annotated[str, AfterValidator(_readable)]  # blanks at the ends count
Key = Annotated[Exact, Field(min_length=1, max_length=patterns.MAX_CHARS), AfterValidator(_not_blank)]
FileName = Annotated[Exact, Field(min_length=1, max_length=255)]


class Table(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)


class Example(Table):
    """How the character talks, shown rather than told. Two or three are enough."""

    player: Prose = Field(min_length=1, max_length=2000, description="What the player says.")
    reply: Prose = Field(min_length=1, max_length=2000, description="What the character answers, in its own voice.")


class Lore(Table):
    """What the character knows of its world, one thing an entry: what does not fit into a short context goes entry by entry."""

    name: Name = Field(default="", max_length=80, description="Label, for people and for the list of what was left out.")
    text: Prose = Field(min_length=1, max_length=4000, description="What the character knows, word for word as in the prompt.")
    priority: int = Field(default=0, ge=-100, le=100, description="Higher stays longer when the context is short.")
    keys: list[Key] = Field(default=[], max_length=64, description="Words that call it to mind, any of them; left out, it is always known.")
    secondary: list[Key] = Field(default=[], max_length=64, description="If there are any, one of these has to be there beside a key.")
    constant: bool = Field(default=False, description="Always known, whatever its keys.")
    order: int = Field(
        default=0, ge=-1_000_000, le=1_000_000, description="Lower stands earlier in the prompt; those with the same stay in your order."
    )
    regex: bool = Field(
        default=False, description="Keys are regular expressions (RE2: without look-around and back-references), not words."
    )
    case_sensitive: bool = Field(default=False, description="Keys tell capital letters from small ones.")
    enabled: bool = Field(default=True, description="`false` keeps the entry and does not use it.")


class LoreFile(Table):
    """More lore, in a file of its own."""

    lore: list[Lore] = Field(default=[], max_length=MAX_LORE)


class LoreRules(Table):
    """How lore comes to mind."""

    tokens: int | None = Field(
        default=None, ge=16, le=1_048_576, description="The most that all of it may take of a prompt. Left out: a fifth of the room."
    )
    scan_lines: int = Field(default=4, ge=1, le=64, description="Lines of the talk, from the newest, that are looked through for keys.")
    recursion: int = Field(default=1, ge=0, le=8, description="How often lore that came to mind may bring other lore along; 0 is never.")


class Adapter(Table):
    """The LoRA adapter that gives the character its voice. Leave the table out for a voice made by the persona alone.

    Several, each in an `[[adapter]]`, are added up.
    """

    file: FileName = Field(description="GGUF file inside the pack, with `/` between folders.")
    scale: float = Field(default=1.0, gt=0, le=4, description="Strength of the voice; multiplies alpha / rank.")


Adapters = Annotated[list[Adapter], Field(max_length=MAX_VOICE_PARTS), BeforeValidator(_in_a_list), OneOrMany()]


class Sampling(Table):
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


class Mood(Table):
    """Another way to speak, which a game may ask for turn by turn. What it leaves out is as always."""

    name: Annotated[Name, Field(min_length=1)] = Field(max_length=80, description="What a game asks for; no two moods of one name.")
    style: Prose | None = Field(default=None, max_length=4000, description="How the character speaks now, in place of `style`.")
    adapter: Adapters | None = Field(default=None, description="In place of the character's; an empty list is the base model alone.")
    sampling: Sampling = Field(default=Sampling(), description="Laid over the character's, key by key.")


class Base(Table):
    """The base model that the adapters were made for. Another shape is refused, another hash is warned of."""

    architecture: Name = Field(default="", max_length=80, description="As its GGUF says it: `llama`, `qwen2`, ...")
    name: Name = Field(default="", max_length=200, description="For people.")
    hash: Annotated[str, AfterValidator(_sha256)] = Field(default="", max_length=64, description="SHA-256 of its GGUF file, in hex.")
    n_layers: int = Field(default=0, ge=0, le=10_000, description="Blocks; 0 is not said.")
    n_embd: int = Field(default=0, ge=0, le=1_000_000, description="Width of an embedding; 0 is not said.")


class TurnLimits(Table):
    """What one reply may use at the most."""

    max_tokens: int | None = Field(default=None, ge=1, le=4096, description="Tokens of a reply; about 4 for 3 English words.")
    max_seconds: float | None = Field(default=None, gt=0, le=600, description="Seconds of a reply.")
    max_kv: int | None = Field(
        default=None, ge=64, le=1_048_576, description="Tokens of prompt and reply together. Left out: all that the context holds."
    )


class Manifest(Table):
    """One character."""

    manifest: int = Field(default=VERSION, ge=1, description="Version of this form.")
    name: Name = Field(default="", max_length=80, description="Name the player sees. Left out: the folder's name, with a warning.")
    persona: Prose = Field(
        min_length=1, max_length=16_000, description="Who the character is, addressed as *you*. Never cut from the prompt."
    )
    style: Prose = Field(default="", max_length=4000, description="How the character speaks.")
    greeting: Prose = Field(default="", max_length=2000, description="First line, spoken before the player says anything.")
    greetings: list[Annotated[Prose, Field(min_length=1, max_length=2000)]] = Field(
        default=[], max_length=64, description="Other first lines, for a game to choose from."
    )
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
    portrait: Exact = Field(default="", max_length=255, description="Image inside the pack: PNG, JPEG or WebP, up to 8 MiB.")
    lore_files: list[FileName] = Field(
        default=[], max_length=MAX_LORE_FILES, description="TOML files inside the pack that hold more `[[lore]]`."
    )
    examples: list[Example] = Field(default=[], max_length=32)
    lore: list[Lore] = Field(default=[], max_length=256)
    lore_rules: LoreRules = LoreRules()
    adapter: Adapters = []
    moods: list[Mood] = Field(default=[], max_length=32)
    base: Base = Base()
    sampling: Sampling = Sampling()
    limits: TurnLimits = TurnLimits()


def decode(content: bytes, most_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """A manifest's bytes as TOML. ValueError in words for its writer; always UTF-8, with or without a byte order mark."""
    if len(content) > most_bytes:
        raise ValueError(f"has {len(content)} bytes, more than {most_bytes}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError(f"is not UTF-8 (byte {fault.start + 1} is 0x{content[fault.start]:02X})") from None
    _check_dots(text)
    try:
        table = tomllib.loads(text)
    except ValueError as fault:  # TOMLDecodeError, or a number with thousands of digits
        raise ValueError(f"is not TOML: {fault}") from None
    except RecursionError:
        raise ValueError("is not TOML: it is nested too deeply") from None
    _check_numbers(table)
    return table


def _check_dots(text: str) -> None:
    n_dots = _TEXTS.sub("", text).count(".")
    if n_dots > MAX_DOTS:
        raise ValueError(f"has {n_dots} dots outside of texts, more than {MAX_DOTS}")


def _check_numbers(table: Mapping[str, Any]) -> None:
    """TOML's whole numbers have 64 bits. tomllib reads longer ones, and Python refuses to write out those of thousands of digits."""
    left: list[object] = [table]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("is not TOML: it holds a whole number of more than 64 bits")


def check(pack: str, table: Mapping[str, Any]) -> tuple[Manifest | None, list[PackProblem]]:
    """The manifest, or None when it has errors, and everything there is to say about it."""
    manifest, errors = validated(Manifest, table, pack, FILE)
    errors += [*_moods_of_one_name(pack, table), *_unusable_keys(pack, FILE, table)]
    warnings = [*islice(_warnings(pack, table), MAX_PROBLEMS)]
    return (None if errors else manifest), (errors + warnings)[:MAX_PROBLEMS]


def check_lore(
    pack: str, file: str, table: Mapping[str, Any], most_patterns: int = MAX_REGEX_KEYS
) -> tuple[LoreFile | None, list[PackProblem]]:
    """The same for a file of `lore_files`. `most_patterns`: regular expressions that are tried."""
    found, errors = validated(LoreFile, table, pack, file)
    errors += _unusable_keys(pack, file, table, most_patterns)
    warnings = [*islice(unknown_keys(LoreFile, table, pack, file), MAX_PROBLEMS)]
    return (None if errors else found), (errors + warnings)[:MAX_PROBLEMS]


# --- what the models cannot say -----------------------------------------------------------------------------------
# Read from the table as it was written, so that it is told together with all else.


def _warnings(pack: str, table: Mapping[str, Any]) -> Iterator[PackProblem]:
    version = table.get("manifest")
    if isinstance(version, int) and version > VERSION:
        problem = f"was written for version {version} of the form, and this program knows {VERSION}: it was read as far as that goes."
        yield PackProblem(pack, FILE, "manifest", problem, "Update Personae to use all of it.", Severity.WARNING)
    if not table.get("name"):
        problem = "is missing: the character is called after its folder."
        yield PackProblem(pack, FILE, "name", problem, 'Add name = "..." at the top.', Severity.WARNING)
    yield from unknown_keys(Manifest, table, pack, FILE)


def _moods_of_one_name(pack: str, table: Mapping[str, Any]) -> Iterator[PackProblem]:
    names = [(place, name.strip()) for place, mood in tables_in(table, "moods") if isinstance(name := mood.get("name"), str)]
    seen = Counter[str]()
    for place, name in names:
        seen[name.casefold()] += 1
        if seen[name.casefold()] == 2:
            yield PackProblem(
                pack, FILE, f"{place}.name", f"is the name of another mood too: {name[:80]!r}.", "Give each a name of its own."
            )


def patterns_in(table: Mapping[str, Any]) -> list[str]:
    """Keys that are meant as regular expressions, of a manifest or a lore file that nobody has checked."""
    return [key for _, key, _ in _regex_keys(table)]


def _unusable_keys(pack: str, file: str, table: Mapping[str, Any], most: int = MAX_REGEX_KEYS) -> list[PackProblem]:
    """Of entries with `regex`: keys that are no regular expression. Only as many are looked at as a pack may have."""
    problems = []
    for field, key, case_sensitive in islice(_regex_keys(table), most):
        try:
            patterns.compiled(key, case_sensitive=case_sensitive)
        except ValueError as fault:
            remedy = "Write it as RE2 understands it, or set regex = false to look for the words."
            problems.append(PackProblem(pack, file, field, f"{key[:80]!r} {fault}.", remedy))
    return problems


def _regex_keys(table: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(field, key, whether it is case-sensitive), those that are texts of a length that the form allows."""
    for place, entry in tables_in(table, "lore"):
        if entry.get("regex") is True:
            for which in ("keys", "secondary"):
                keys = entry.get(which)
                for number, key in enumerate(keys if isinstance(keys, list) else (), start=1):
                    if isinstance(key, str) and 0 < len(key) <= patterns.MAX_CHARS:
                        yield f"{place}.{which}[{number}]", key, entry.get("case_sensitive") is True


def tables_in(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, table) of each that stands under a key, alone or in a list, in a table that nobody has checked."""
    value = table.get(key)
    if isinstance(value, dict):
        yield key, value
    elif isinstance(value, list):
        yield from ((f"{key}[{number}]", part) for number, part in enumerate(value, start=1) if isinstance(part, dict))
