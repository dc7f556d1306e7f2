"""Every value comes back as it was, and a hand-written file keeps its comments."""

from __future__ import annotations

import math
import tomllib
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.packs.manifest import decode
from personae.packs.toml_text import LINE, MAX_DEPTH, toml_text, with_values

ROOT = Path(__file__).parents[2]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.text('"\\ \n\t.a', max_size=300)
PLAIN = TEXTS | st.integers() | st.booleans() | st.floats(allow_nan=False) | st.dates() | st.times()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_whatever_is_written_parses_back_to_the_same(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(table)) == table


@settings(max_examples=120, deadline=None)
@given(st.text('"\\ \n\t.a', max_size=500))
def test_quotes_blanks_and_folds_never_change_a_text(text: str) -> None:
    written = toml_text({"persona": text, "list": [text, text]})
    assert tomllib.loads(written) == {"persona": text, "list": [text, text]}


@pytest.mark.parametrize("text", ["." * 5000, ". " * 5000, "Well... " * 800, " " * 5000, "a" + " " * 500 + "." * 500])
def test_a_long_line_is_folded_and_reads_back_the_same(text: str) -> None:
    written = toml_text({"persona": text})
    assert decode(written.encode()) == {"persona": text}
    assert all(len(line.strip(" \\")) <= LINE for line in written.splitlines())


def test_prose_becomes_a_block_that_can_be_edited() -> None:
    text = "You are Mira.\n\n" + "You guard the gate by night. " * 8 + 'You say "halt".'
    written = toml_text({"persona": text})
    assert written.startswith('persona = """\nYou are Mira.\n\nYou guard')
    assert all(len(line) <= LINE + 5 for line in written.splitlines())
    assert tomllib.loads(written) == {"persona": text}


def test_tables_follow_the_values_and_keep_their_order() -> None:
    table = {"lore": [{"text": "b"}, {"text": "a", "keys": ["x"]}], "name": "Mira", "sampling": {"top_k": 3, "deep": {"x": 1}}, "tags": []}
    written = toml_text(table)
    assert written == (
        'name = "Mira"\ntags = []\n\n[[lore]]\ntext = "b"\n\n[[lore]]\ntext = "a"\nkeys = ["x"]\n\n'
        "[sampling]\ntop_k = 3\n\n[sampling.deep]\nx = 1\n"
    )
    assert tomllib.loads(written) == table


def test_every_kind_of_value_is_written() -> None:
    table = {
        "when": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        "day": date(2024, 5, 6),
        "hour": time(7, 8, 9, 120),
        "inf": math.inf,
        "minus": -math.inf,
        "big": 10**40,
        "small": 1e-300,
        "mixed": [1, "two", {"three": [3, "x\ny"]}, [4.5]],
        "a key.with \"dots\"\n": True,
        "": "empty key",
    }  # fmt: skip
    assert tomllib.loads(toml_text(table)) == table
    assert math.isnan(tomllib.loads(toml_text({"x": math.nan}))["x"])


def test_control_characters_and_marks_that_turn_text_around_are_written_as_escapes() -> None:
    written = toml_text({"name": "a\x00\x7f\u202eb\r\n\u2028"})
    assert written.isascii()
    assert tomllib.loads(written) == {"name": "a\x00\x7f\u202eb\r\n\u2028"}


@pytest.mark.parametrize("value", [None, {"x": None}, [None], b"bytes", object(), "\ud800", ["\udfff"]])
def test_what_toml_cannot_hold_is_refused_with_the_key(value: object) -> None:
    with pytest.raises(ValueError, match="persona"):
        toml_text({"persona": value})


def test_too_deep_is_refused_and_not_a_crash() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        toml_text({"x": deep})
    tables: Any = {}
    for _ in range(5000):
        tables = {"x": tables}
    with pytest.raises(ValueError, match="deep"):
        toml_text(tables)


WRITTEN = """\
# my guard
name = "Mira"   # short for Miranda

persona = \"\"\"
You are Mira.
\"\"\"

[sampling]
# not too wild
temperature = 0.7
top_k = 40

[[lore]]
text = "The gate is shut."   # by night
"""


def test_an_edit_in_place_keeps_comments_and_order() -> None:
    edited = with_values(WRITTEN, {"name": "Mirabel", "sampling": {"temperature": 0.9, "top_k": None}, "style": "Dry.", "tags": ["a"]})
    assert tomllib.loads(edited) == {
        **tomllib.loads(WRITTEN),
        "name": "Mirabel",
        "sampling": {"temperature": 0.9},
        "style": "Dry.",
        "tags": ["a"],
    }
    for comment in ("# my guard", "# short for Miranda", "# not too wild", "# by night"):
        assert comment in edited


def test_a_list_of_tables_and_a_new_table_can_be_set() -> None:
    edited = with_values(WRITTEN, {"lore": [{"text": "One."}, {"text": "Two."}], "adapter": {"file": "a.gguf", "scale": 1.0}})
    table = tomllib.loads(edited)
    assert table["lore"] == [{"text": "One."}, {"text": "Two."}]
    assert table["adapter"] == {"file": "a.gguf", "scale": 1.0}
    assert "# my guard" in edited


def test_the_sample_packs_survive_an_edit_with_all_their_comments() -> None:
    for manifest in sorted((ROOT / "characters").glob("*/character.toml")):
        text = manifest.read_text("utf-8")
        edited = with_values(text, {"author": "Somebody", "moods": [{"name": "drunk"}], "fallback": None})
        expected = {**tomllib.loads(text), "author": "Somebody", "moods": [{"name": "drunk"}]}
        expected.pop("fallback")
        assert tomllib.loads(edited) == expected
        assert all(line in edited for line in text.splitlines() if line.startswith("#"))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_an_edit_always_ends_in_the_values_asked_for(before: dict[str, Any], changes: dict[str, Any]) -> None:
    edited = tomllib.loads(with_values(toml_text(before), changes))
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            assert value.items() <= edited[key].items() or any(isinstance(part, dict) for part in value.values())
        else:
            assert edited[key] == value
    assert all(edited[key] == value for key, value in before.items() if key not in changes)


def test_text_that_is_no_toml_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        with_values("name = ", {"name": "x"})
