"""The JSON Schema says what the form says, in words that editors of TOML understand, and the file in the repository is current."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.packs.manifest import Manifest
from personae.packs.mistakes import known_keys
from personae.packs.schema import DIALECT, json_schema, lore_schema, main, schema_text

WRITTEN = Path(__file__).parents[2] / "characters" / "character.schema.json"


def parts(of: Any) -> Iterator[dict[str, Any]]:
    """Every object within, itself included."""
    if isinstance(of, dict):
        yield of
    for inner in of.values() if isinstance(of, dict) else of if isinstance(of, list) else ():
        yield from parts(inner)


def test_schema_in_the_repository_is_current() -> None:
    said = "run: python -m personae.packs.schema characters/character.schema.json"
    assert WRITTEN.read_text(encoding="utf-8") == schema_text(), said


def test_every_spelling_of_every_key_is_known_and_others_are_allowed() -> None:
    schema = json_schema()
    assert (schema["$schema"], schema["title"], schema["type"]) == (DIALECT, "Personae character", "object")
    assert list(schema["properties"]) == list(known_keys(Manifest))
    assert schema["required"] == ["persona"]
    tables = [schema, *schema["$defs"].values()]
    assert all(table["additionalProperties"] is True for table in tables)


def test_every_key_is_described_and_ranges_are_there() -> None:
    schema = json_schema()
    for table in (schema, *schema["$defs"].values()):
        assert table["description"]
        for key, field in table["properties"].items():
            assert "description" in field or "$ref" in json.dumps(field), key
    top_p = schema["$defs"]["Sampling"]["properties"]["top_p"]
    assert (top_p["exclusiveMinimum"], top_p["maximum"], top_p["type"]) == (0, 1, "number")


def test_one_table_may_stand_for_a_list_of_adapters() -> None:
    schema = json_schema()
    one = {"$ref": "#/$defs/Adapter"}
    for field in (schema["properties"]["adapter"], schema["$defs"]["Mood"]["properties"]["adapter"]):
        assert field["anyOf"] == [one, {"items": one, "maxItems": 4, "type": "array"}]


def test_toml_has_no_null_and_references_lead_somewhere() -> None:
    for schema in (json_schema(), lore_schema()):
        assert "null" not in json.dumps(schema)
        named = {f"#/$defs/{name}" for name in schema["$defs"]}
        assert {part["$ref"] for part in parts(schema) if "$ref" in part} <= named


def test_schema_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
    assert main([str(tmp_path / "a.json")]) == 0
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == schema_text()
    assert main([str(tmp_path / "nowhere" / "a.json")]) == 1
    assert "nowhere" in capsys.readouterr().err
