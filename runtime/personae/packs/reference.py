"""Prints the manifest reference, made from the models in manifest.py, or puts it into a file between two markers.

python -m personae.packs.reference                       prints it
python -m personae.packs.reference characters/README.md  writes it there
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from personae.packs.manifest import Manifest, OneOrMany, Sampling, TurnLimits
from personae.packs.mistakes import inner_model, known_keys
from personae.types import Limits, SamplingParams

BEGIN = "<!-- manifest reference: made by `python -m personae.packs.reference characters/README.md` -->"
END = "<!-- end of manifest reference -->"

_KINDS = (("list[", "list of texts"), ("bool", "true or false"), ("float", "number"), ("int", "whole number"), ("str", "text"))
_DEFAULTS: dict[type[BaseModel], object] = {Sampling: SamplingParams(), TurnLimits: Limits()}  # what the service does with no pack


def reference() -> str:
    """The tables in Markdown, markers left out."""
    return "\n".join(_lines())


def insert(text: str) -> str:
    """A document with the section between the markers made anew. ValueError when it has not both markers, in order."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError("the document lacks the markers of the manifest reference")
    return f"{head}{BEGIN}\n\n{reference()}\n\n{END}{tail}"


def _lines() -> Iterator[str]:
    yield from _table("### Top level", Manifest)
    for name, field in Manifest.model_fields.items():
        if inner := inner_model(field.annotation):
            yield ""
            yield from _table(f"### {_heading(name, field)}", inner)


def _heading(name: str, field: FieldInfo) -> str:
    if any(isinstance(part, OneOrMany) for part in field.metadata):
        return f"`[{name}]`, or up to {_most(field)} `[[{name}]]`"
    return f"`[[{name}]]`, up to {_most(field)}" if str(field.annotation).startswith("list") else f"`[{name}]`"


def _table(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield from (title, "", " ".join((model.__doc__ or "").split()), "")
    yield from ("| key | what | left out | meaning |", "|---|---|---|---|")
    for name, field in model.model_fields.items():
        if not inner_model(field.annotation):
            spelled = " or ".join(f"`{key}`" for key, known in known_keys(model).items() if known is field)
            yield f"| {spelled} | {_kind(field)}{_range(field)} | {_default(model, name, field)} | {field.description} |"
        elif model is not Manifest:  # whose tables come one by one
            yield f"| `{name}` | as `[{name}]` above or below | as always | {field.description} |"


def _kind(field: FieldInfo) -> str:
    written = re.sub(r"<class '|typing\.(Optional|Annotated)\[", "", str(field.annotation))
    return next(words for start, words in _KINDS if written.startswith(start))


def _range(field: FieldInfo) -> str:
    lows = [f"from {part.ge}" if isinstance(part, Ge) else f"above {part.gt}" for part in field.metadata if isinstance(part, Ge | Gt)]
    highs = [f"to {part.le}" if isinstance(part, Le) else f"below {part.lt}" for part in field.metadata if isinstance(part, Le | Lt)]
    unit = "entries" if _kind(field).startswith("list") else "characters"
    sizes = [f"up to {_most(field)} {unit}"] if any(isinstance(part, MaxLen) for part in field.metadata) else []
    words = [*lows, *highs, *sizes]
    return ", " + " ".join(words) if words else ""


def _most(field: FieldInfo) -> int:
    return next(part.max_length for part in field.metadata if isinstance(part, MaxLen))


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "refused"
    value = getattr(_DEFAULTS[model], name) if model in _DEFAULTS else field.default
    return "none" if value in (None, "", []) or _is_below_range(value, field) else _in_toml(value)


def _in_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _is_below_range(value: object, field: FieldInfo) -> bool:
    """Whether the service has a word for "no limit" that a writer says by leaving the key out."""
    return any(value < part.ge for part in field.metadata if isinstance(part, Ge))  # type: ignore[operator]  # both are numbers


def main(arguments: list[str]) -> int:
    if not arguments:
        print(reference())
        return 0
    path = Path(arguments[0])
    try:
        path.write_text(insert(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    except (OSError, ValueError) as fault:
        print(f"{path}: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
