"""Decides how a field that cannot be used is refused: one sentence that names it, made of pydantic's list. Knows no request by name."""

from __future__ import annotations

from typing import Any

from pydantic_core import ErrorDetails

from personae.errors import AskedWrong

_SENTENCES = {
    "missing": "is missing",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must not hold line breaks or other control characters",
    "tuple_type": "must be an array",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "enum": "must be one of {expected}",
    "model_type": "must be a map",
    "dict_type": "must be a map",
    "none_required": "is not part of protocol 1",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def refusal(kind: str, errors: list[ErrorDetails]) -> AskedWrong:
    """`text_too_long` where that is what is wrong first, otherwise `bad_request`."""
    first = errors[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    sentence = _SENTENCES.get(first["type"], first["msg"]).format_map(_Words(first.get("ctx", {})))
    subject = f"`{field}` of {kind}" if field else f"A {kind}"
    also = f", and {len(errors) - 1} more of its fields cannot be used" if len(errors) > 1 else ""
    hint = "bindings/PROTOCOL.md lists the fields of every request."
    if first["type"] == "text_too_long":
        return AskedWrong("text_too_long", f"{subject} {sentence}{also}.", hint)
    return AskedWrong("bad_request", f"{subject} {sentence}{also}.", hint)


class _Words(dict[str, Any]):
    """Words for a sentence; a number loses its idle `.0`, and a missing word shows its name instead of failing."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def __missing__(self, key: str) -> str:
        return key
