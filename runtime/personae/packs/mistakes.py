"""How mistakes in a table that a person wrote become problems they can put right. Knows pydantic's errors and no form of ours.

All mistakes are found in one reading, each with its field and what to do. A key that the form does not have is warned of, never refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from personae.packs.character import PackProblem, Severity

MAX_PROBLEMS = 50  # listed for one pack; the others come to light when these are put right

Table = TypeVar("Table", bound=BaseModel)
_Loc = tuple[int | str, ...]


def validated(model: type[Table], table: Mapping[str, Any], pack: str, file: str) -> tuple[Table | None, list[PackProblem]]:
    """The table as the form has it, or None when it has errors, and those errors."""
    try:
        return model.model_validate(table), []
    except ValidationError as fault:
        return None, [_explained(model, table, pack, file, error) for error in fault.errors(include_url=False)[:MAX_PROBLEMS]]


def unknown_keys(model: type[BaseModel], table: Mapping[str, Any], pack: str, file: str) -> Iterator[PackProblem]:
    """A warning for each key without a field, in tables and lists of tables below too."""
    for where, key, known in _unknown(model, table, ""):
        near = difflib.get_close_matches(key[:40].lower(), known, n=1)
        remedy = f"Did you mean '{near[0]}'?" if near else "Remove it, or look for its right place in the manifest reference."
        yield PackProblem(pack, file, where, "is not known here: it is kept and has no effect.", remedy, Severity.WARNING)


@cache
def known_keys(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Every spelling of every field, in order."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
        found.update(dict.fromkeys(names, field))
    return MappingProxyType(found)


def inner_model(kind: object) -> type[BaseModel] | None:
    """The table that a field of this annotation holds, or holds a list of; None for plain values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := inner_model(part))), None)


def _unknown(model: type[BaseModel], table: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, list[str]]]:
    """(path, key, keys that would be known there)"""
    fields = known_keys(model)
    for key, value in table.items():
        if key not in fields:
            yield where + key[:60], key, list(fields)
        elif inner := inner_model(fields[key].annotation):
            for path, part in _parts(where + key, value):
                yield from _unknown(inner, part, path + ".")


def _parts(path: str, value: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
    elif isinstance(value, list):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(value, start=1) if isinstance(part, dict))


def _explained(model: type[BaseModel], table: Mapping[str, Any], pack: str, file: str, error: ErrorDetails) -> PackProblem:
    loc = _as_written(error["loc"], table)
    path = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    return PackProblem(pack, file, path, _in_words(error), _remedy(model, loc, error))


def _as_written(loc: _Loc, table: Mapping[str, Any]) -> _Loc:
    """Without the places of lists that the writer did not write: one table may stand for a list of one."""
    written: list[int | str] = []
    value: object = table
    for part in loc:
        if isinstance(part, int) and not isinstance(value, list):
            continue
        written.append(part)
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return tuple(written)


def _in_words(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is missing."
    if error["type"] == "string_too_short":
        return "is empty."
    if error["type"] in ("model_type", "model_attributes_type"):
        return "should be a table."
    message = re.sub(r"^(Input|String|List|Value error,) | after validation", "", error["msg"])
    return f"{message}{_given(error['input'])}."


def _given(value: object) -> str:
    """The value itself, where it is short enough to help."""
    if isinstance(value, bool | int | float):
        return f", and is {str(value).lower() if isinstance(value, bool) else value}"
    if isinstance(value, str) and 0 < len(value) <= 40:
        return f", and is {value!r}"
    return ""


def _remedy(model: type[BaseModel], loc: _Loc, error: ErrorDetails) -> str:
    """How it is written, where that is what went wrong; else what the reference says of the field."""
    name = loc[-1] if loc else ""
    if error["type"] == "list_type" and isinstance(name, str):
        return _as_a_list(name, error["input"])
    meaning = _meaning(model, loc).replace("*", "")
    return f"Add {name}. {meaning}" if error["type"] == "missing" else meaning


def _as_a_list(name: str, given: object) -> str:
    if isinstance(given, Mapping):
        return f"Write [[{name}]], in two brackets, and once for each of them."
    one = json.dumps(given, ensure_ascii=False) if isinstance(given, str) and len(given) <= 40 else '"..."'
    return f"Put it in brackets: {name} = [{one}]"


def _meaning(model: type[BaseModel], loc: _Loc) -> str:
    """What the reference says of the field at a place."""
    within: type[BaseModel] | None = model
    text = ""
    for part in loc:
        if isinstance(part, str) and within is not None and (field := known_keys(within).get(part)):
            within = inner_model(field.annotation)
            text = field.description or (within.__doc__ if within else "") or text
    return text
