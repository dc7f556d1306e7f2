"""Prints the JSON Schema of character.toml, made from the models in manifest.py, or writes it to a file. For editors: completion and hints.

python -m personae.packs.schema                                    prints it
python -m personae.packs.schema characters/character.schema.json  writes it there

A manifest says where it is in its first line, and VS Code with the extension "Even Better TOML" reads that:
#:schema ../character.schema.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from personae.packs.manifest import LoreFile, Manifest
from personae.packs.mistakes import known_keys

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Of character.toml, draft 2020-12. Keys of other tools are allowed, as they are in a pack."""
    made = _in_toml(Manifest.model_json_schema())
    made["properties"] = _all_spellings(made["properties"])
    return {"$schema": DIALECT, **made, "title": "Personae character"}


def lore_schema() -> dict[str, Any]:
    """The same of a file of `lore_files`."""
    return {"$schema": DIALECT, **_in_toml(LoreFile.model_json_schema()), "title": "Personae lore"}


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _all_spellings(properties: dict[str, Any]) -> dict[str, Any]:
    """With `license` beside `licence`: pydantic's schema knows the first only."""
    fields = Manifest.model_fields
    first = {id(field): properties[name] for name in properties if (field := known_keys(Manifest)[name])}
    assert len(first) == len(fields)
    return {spelling: first[id(field)] for spelling, field in known_keys(Manifest).items()}


def _in_toml(part: Any) -> Any:
    """Without null, which TOML does not have, and without pydantic's titles, which say the key again."""
    if isinstance(part, list):
        return [_in_toml(each) for each in part if each != {"type": "null"}]
    if not isinstance(part, dict):
        return part
    kept = {key: _in_toml(value) for key, value in part.items() if not (_is_title(key, value) or _is_idle_default(key, value))}
    choices = kept.get("anyOf")
    return {**{key: value for key, value in kept.items() if key != "anyOf"}, **choices[0]} if choices and len(choices) == 1 else kept


def _is_title(key: str, value: Any) -> bool:
    """And no property of that name, whose value would be a schema."""
    return key == "title" and isinstance(value, str)


def _is_idle_default(key: str, value: Any) -> bool:
    """What an editor had better not fill in: nothing, or a whole table."""
    return key == "default" and (value is None or isinstance(value, dict | list))


def main(arguments: list[str]) -> int:
    if not arguments:
        print(schema_text(), end="")
        return 0
    try:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8", newline="\n")
    except OSError as fault:
        print(f"{arguments[0]}: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
