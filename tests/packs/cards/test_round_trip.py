"""A card goes in and comes out the same, value for value; what was edited in between comes out as edited."""

from __future__ import annotations

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.packs.cards import card_from_bytes, card_of, draft_of, read_card, write_card
from personae.packs.cards.json_text import json_text
from personae.packs.draft import write_pack
from personae.packs.loader import examine_pack
from personae.packs.toml_text import toml_text, with_values
from tests.packs.cards.conftest import BOOK, FIRST, PICTURE, Imported, packed, png_with, text, v1, v2, v3, zipped


def edit(pack: Path, **changes: Any) -> None:
    manifest = pack / "character.toml"
    manifest.write_text(with_values(manifest.read_text("utf-8"), changes), "utf-8")


def test_a_card_of_version_3_comes_out_value_for_value(imported: Imported) -> None:
    assert card_of(imported(v3())) == v3()


def test_the_file_itself_holds_the_same_values_as_the_card_that_went_in(imported: Imported, tmp_path: Path) -> None:
    pack = imported(v3())
    for name in ("out.json", "out.png", "out.charx"):
        assert write_card(pack, tmp_path / name) == []
    assert json.loads((tmp_path / "out.json").read_bytes()) == v3()
    assert read_card(tmp_path / "out.png").whole == v3()


def test_a_card_of_version_2_comes_out_as_version_3_with_every_value(imported: Imported) -> None:
    expected = v2() | {"spec": "chara_card_v3", "spec_version": "3.0"}
    expected["data"]["group_only_greetings"] = []  # version 3 asks for it
    assert card_of(imported(v2())) == expected


def test_a_card_of_version_1_keeps_its_fields_at_the_top_too(imported: Imported) -> None:
    card = card_of(imported(v1()))
    assert {key: card[key] for key in v1()} == v1()
    assert {key: card["data"][key] for key in FIRST} == FIRST
    assert card["spec"] == "chara_card_v3"
    assert card["data"]["extensions"] == {}


@pytest.mark.parametrize(("spec", "version"), [("chara_card_v3", "3.7"), ("chara_card_v4", "4.0"), ("chara_card_v12", "12.1")])
def test_a_card_of_a_version_to_come_stays_what_it_is(imported: Imported, spec: str, version: str) -> None:
    card = v3() | {"spec": spec, "spec_version": version}
    card["data"]["of_the_future"] = {"yes": [1, {"no": ""}]}
    assert card_of(imported(card)) == card


def test_unknown_keys_empty_texts_and_unicode_survive_at_every_level(imported: Imported) -> None:
    card = v3()
    card["data"]["extensions"]["𝔲"] = {"": "", "é": {"a": [{}, [], "", None, False, 0, -0.0, 1e300]}}
    card["data"]["description"] = "Snow ☃\u200b\u202e \U0001f600"
    assert card_of(imported(card)) == card


def test_numbers_come_out_with_the_digits_they_had(tmp_path: Path) -> None:
    source = (
        b'{"spec": "chara_card_v2", "data": {"name": "A", "extensions": {"a": 0.1, "b": 1.00000000000000000000001, "c": 1e999, "d": 1.0}}}'
    )
    (tmp_path / "a.json").write_bytes(source)
    pack = write_pack(draft_of(read_card(tmp_path / "a.json")), tmp_path / "characters")
    write_card(pack, tmp_path / "b.json")
    written = (tmp_path / "b.json").read_text("utf-8")
    for number in ('"a": 0.1', '"b": 1.00000000000000000000001', '"c": 1e999', '"d": 1.0'):
        assert number in written


def test_half_a_surrogate_pair_is_kept_in_the_card_and_not_in_the_manifest(imported: Imported, tmp_path: Path) -> None:
    card = v2()
    card["data"]["description"] = "torn \ud800 text"
    pack = imported(card)
    assert card_of(pack)["data"]["description"] == "torn \ud800 text"
    write_card(pack, tmp_path / "again.png")
    assert read_card(tmp_path / "again.png").whole["data"]["description"] == "torn \ud800 text"
    assert "torn \ufffd text" in (pack / "character.toml").read_text("utf-8")


ODD: list[dict[str, Any]] = [
    {"data": {"name": "A", "extensions": None, "character_book": None, "tags": None, "first_mes": None}},
    {"data": {"name": "A", "description": 5, "tags": "a, b", "alternate_greetings": "hi", "creator": ["x"]}},
    {"name": "A", "description": "top", "data": {"name": "B", "personality": "inner"}, "character_book": BOOK},
    {"char_name": "A", "char_persona": "old", "char_greeting": "hi", "example_dialogue": "", "world_scenario": "x"},
    {
        "data": {
            "name": "A",
            "character_book": {"entries": {"1": {"key": ["b"], "content": "B"}, "0": {"key": "a", "content": "A", "disable": True}}},
        }
    },
]


@pytest.mark.parametrize("card", ODD)
def test_odd_cards_keep_every_value_they_had(imported: Imported, card: dict[str, Any]) -> None:
    out = card_of(imported(card))
    for key, value in card.items():
        if key != "data":
            assert out[key] == value
    for key, value in card.get("data", {}).items():
        assert out["data"][key] == value


# --- edits --------------------------------------------------------------------------------------------------------


def test_an_edited_field_comes_out_as_edited_and_the_others_as_they_were(imported: Imported) -> None:
    pack = imported(v3())
    edit(pack, greeting="Stop right there.", author="somebody else")
    expected = v3()
    expected["data"] |= {"first_mes": "Stop right there.", "creator": "somebody else"}
    assert card_of(pack) == expected


def test_blanks_around_a_text_are_no_edit(imported: Imported) -> None:
    pack = imported(v3())
    edit(pack, persona="\n\n" + tomllib.loads((pack / "character.toml").read_text("utf-8"))["persona"] + "\n")
    assert card_of(pack) == v3()


def test_an_edited_persona_replaces_the_three_texts_it_was_made_of(imported: Imported) -> None:
    pack = imported(v3())
    edit(pack, persona="You are Mira, and changed.")
    inner = card_of(pack)["data"]
    assert (inner["description"], inner["personality"], inner["scenario"]) == ("You are Mira, and changed.", "", "")
    again = draft_of(card_from_bytes(json.dumps(card_of(pack)).encode(), "x.json"))
    assert again.manifest["persona"] == "You are Mira, and changed."


def test_an_edited_style_and_edited_examples_read_back_the_same(imported: Imported) -> None:
    pack = imported(v3())
    examples = [{"player": "Hi.", "reply": "Go.\n\nNow."}, {"player": "Why?", "reply": "Because."}]
    edit(pack, style="Curt.", examples=examples, greetings=["One", "Two"], tags=["x"])
    card = card_of(pack)
    again = draft_of(card_from_bytes(json.dumps(card).encode(), "x.json")).manifest
    assert (again["style"], again["examples"], again["greetings"], again["tags"]) == ("Curt.", examples, ["One", "Two"], ["x"])


def test_an_edit_of_one_greeting_leaves_the_others_with_their_placeholders(imported: Imported) -> None:
    pack = imported({**FIRST, "alternate_greetings": ["Hi {{user}}.", "Go, {{user}}!"]})
    edit(pack, greetings=["Hi you.", "Stay!", "Well?"])
    assert card_of(pack)["data"]["alternate_greetings"] == ["Hi {{user}}.", "Stay!", "Well?"]


def test_an_edit_of_one_lore_entry_leaves_the_others_and_its_own_unknown_keys_alone(imported: Imported) -> None:
    pack = imported(v3())
    lore = tomllib.loads((pack / "character.toml").read_text("utf-8"))["lore"]
    lore[0] |= {"text": "The gate is new.", "enabled": False, "keys": ["gate"]}
    edit(pack, lore=lore)
    expected = v3()["data"]["character_book"]
    expected["entries"][0] |= {"content": "The gate is new.", "enabled": False, "keys": ["gate"]}
    assert card_of(pack)["data"]["character_book"] == expected


def test_lore_that_was_added_moved_and_taken_out_comes_out_so(imported: Imported) -> None:
    pack = imported(v3())
    lore = tomllib.loads((pack / "character.toml").read_text("utf-8"))["lore"]
    edit(pack, lore=[lore[1], {"name": "new", "text": "News.", "keys": ["new"], "regex": True, "order": 3}])
    entries = card_of(pack)["data"]["character_book"]["entries"]
    assert entries[0] == v3()["data"]["character_book"]["entries"][1]
    assert (entries[1]["name"], entries[1]["content"], entries[1]["keys"]) == ("new", "News.", ["new"])
    assert (entries[1]["use_regex"], entries[1]["insertion_order"], entries[1]["enabled"]) == (True, 3, True)
    assert entries[2] == v3()["data"]["character_book"]["entries"][2]  # without text: never was lore


def test_a_world_info_entry_is_edited_in_its_own_spelling(imported: Imported) -> None:
    entry = {"key": ["a"], "keysecondary": [], "content": "A", "comment": "one", "order": 5, "disable": False, "uid": 7}
    pack = imported({"data": {"name": "A", "character_book": {"entries": {"7": entry}}}})
    lore = tomllib.loads((pack / "character.toml").read_text("utf-8"))["lore"]
    edit(pack, lore=[lore[0] | {"enabled": False, "order": 9}])
    expected = {"0": entry | {"disable": True, "order": 9}}
    assert card_of(pack)["data"]["character_book"]["entries"] == expected


def test_edited_lore_rules_come_out_in_the_book(imported: Imported) -> None:
    pack = imported(v3())
    edit(pack, lore_rules={"tokens": 500, "recursion": 0, "scan_lines": None})
    book = card_of(pack)["data"]["character_book"]
    assert (book["token_budget"], book["recursive_scanning"], "scan_depth" in book) == (500, False, False)


def test_a_field_that_a_card_has_twice_is_edited_in_both_places(imported: Imported) -> None:
    pack = imported(v2() | {"first_mes": FIRST["first_mes"], "name": "Mira"})
    edit(pack, greeting="New.")
    card = card_of(pack)
    assert (card["first_mes"], card["data"]["first_mes"], card["name"]) == ("New.", "New.", "Mira")


# --- packs that never were a card ---------------------------------------------------------------------------------

OURS = {
    "manifest": 1,
    "name": "Unit 7",
    "persona": "You are Unit 7.",
    "style": "Terse.",
    "greeting": "State your query.",
    "greetings": ["Speak."],
    "fallback": ["Stand by."],
    "stop": ["\n\n"],
    "description": "A robot.",
    "author": "us",
    "licence": "MIT",
    "tags": ["robot"],
    "examples": [{"player": "Help?", "reply": "Affirmative."}],
    "lore": [
        {"text": "Factory 12 burned."},
        {"text": "Cells.", "keys": ["power"], "secondary": ["low"], "priority": 3, "case_sensitive": True},
    ],
    "lore_rules": {"tokens": 100, "scan_lines": 2, "recursion": 0},
    "sampling": {"temperature": 0.6, "top_k": 20},
    "limits": {"max_tokens": 80},
    "base": {"architecture": "llama", "n_layers": 30},
    "moods": [{"name": "drunk", "style": "Slurred.", "adapter": {"file": "drunk.gguf", "scale": 0.5}}],
    "adapter": [{"file": "voice.gguf", "scale": 1.0}, {"file": "drunk.gguf", "scale": 0.25}],
}


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    pack = tmp_path / "unit"
    pack.mkdir()
    (pack / "character.toml").write_text(toml_text(OURS), "utf-8")
    (pack / "voice.gguf").write_bytes(b"GGUF voice")
    (pack / "drunk.gguf").write_bytes(b"GGUF drunk")
    return pack


def normal(table: dict[str, Any]) -> dict[str, Any]:
    moods = [{**mood, "adapter": mood["adapter"] if isinstance(mood["adapter"], list) else [mood["adapter"]]} for mood in table["moods"]]
    return {**table, "moods": moods}


def test_a_pack_of_ours_goes_through_a_charx_with_its_adapters(ours: Path, tmp_path: Path) -> None:
    assert write_card(ours, tmp_path / "unit.charx") == []
    draft = draft_of(read_card(tmp_path / "unit.charx"))
    lore = draft.manifest["lore"]
    assert lore[0]["text"] == "Factory 12 burned."
    assert lore[0]["constant"]  # a card says so of what is always known
    assert normal({**draft.manifest, "lore": lore[1:]}) == normal({**OURS, "lore": OURS["lore"][1:]})
    assert (draft.files["voice.gguf"], draft.files["drunk.gguf"]) == (b"GGUF voice", b"GGUF drunk")


def test_the_adapters_go_within_the_card_when_asked_and_are_not_kept_twice(ours: Path, tmp_path: Path) -> None:
    notes = write_card(ours, tmp_path / "unit.png")
    assert [note.field for note in notes] == ["adapter"]
    assert write_card(ours, tmp_path / "unit.png", with_adapter=True) == []
    draft = draft_of(read_card(tmp_path / "unit.png"))
    assert draft.files["voice.gguf"] == b"GGUF voice"
    assert normal(draft.manifest)["adapter"] == OURS["adapter"]
    assert b"R0dVRiB2b2ljZQ" not in draft.files["card.json"]  # its base64
    again = write_pack(draft, tmp_path / "again")
    assert card_of(again, with_adapter=True)["data"]["extensions"] == card_of(ours, with_adapter=True)["data"]["extensions"]


def test_without_their_files_adapters_are_named_in_a_note_and_not_in_the_manifest(ours: Path, tmp_path: Path) -> None:
    write_card(ours, tmp_path / "unit.json")
    draft = draft_of(read_card(tmp_path / "unit.json"))
    assert "adapter" not in draft.manifest
    assert any("voice.gguf" in note.problem for note in draft.notes)
    pack = write_pack(draft, tmp_path / "again")
    assert card_of(pack) == card_of(ours) | {"data": card_of(pack)["data"]}
    assert card_of(pack)["data"]["extensions"] == card_of(ours)["data"]["extensions"]


def test_an_adapter_too_large_for_a_card_is_refused_with_the_way_out(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.packs.cards.extension.MAX_INLINE_BYTES", 15)
    with pytest.raises(AskedWrong, match="charx") as refused:
        card_of(ours, with_adapter=True)
    assert refused.value.code == "card_too_large"


def test_an_adapter_that_is_not_the_one_named_is_left_out(ours: Path) -> None:
    card = card_of(ours, with_adapter=True)
    card["data"]["extensions"]["personae"]["files"]["voice.gguf"]["sha256"] = "0" * 64
    draft = draft_of(card_from_bytes(json_text(card).encode(), "x.json"))
    assert "voice.gguf" not in draft.files
    assert [part["file"] for part in draft.manifest["adapter"]] == ["drunk.gguf"]


def test_a_charx_keeps_its_files_and_its_icon_through_a_round_trip(tmp_path: Path) -> None:
    card = v3()
    card["data"]["assets"] = [
        {"type": "icon", "uri": "embeded://assets/icon/images/main.png", "name": "main", "ext": "png"},
        {"type": "x_risu", "uri": "embeded://extra.bin", "name": "x", "ext": "bin"},
    ]
    files = {"card.json": json.dumps(card).encode(), "assets/icon/images/main.png": PICTURE, "extra.bin": b"1", "module/m.risum": b"2"}
    (tmp_path / "in.charx").write_bytes(zipped(files))
    pack = write_pack(draft_of(read_card(tmp_path / "in.charx")), tmp_path / "characters")
    assert tomllib.loads((pack / "character.toml").read_text("utf-8"))["portrait"] == "assets/icon/images/main.png"
    assert write_card(pack, tmp_path / "out.charx") == []
    again = read_card(tmp_path / "out.charx")
    assert again.whole == card
    assert again.files == read_card(tmp_path / "in.charx").files


def test_a_portrait_goes_out_as_the_picture_of_a_png_and_comes_in_as_one(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(png_with(text("chara", packed(v2())), text("ccv3", packed(v3()))))
    pack = write_pack(draft_of(read_card(tmp_path / "in.png")), tmp_path / "characters")
    assert (pack / "portrait.png").read_bytes() == PICTURE
    assert write_card(pack, tmp_path / "out.png") == []
    assert draft_of(read_card(tmp_path / "out.png")).files["portrait.png"] == PICTURE
    assert read_card(tmp_path / "out.png").whole == v3()


def test_what_was_imported_is_a_pack_that_loads(imported: Imported) -> None:
    for card in (v1(), v2(), v3(), *ODD):
        character, problems = examine_pack(imported(card))
        assert character is not None, problems
        assert not [problem for problem in problems if problem.is_error]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*v3()["data"], "odd"])
ENTRIES = st.dictionaries(st.sampled_from([*BOOK["entries"][0], "key", "order", "disable", "odd"]), JSON, max_size=8)  # type: ignore[index]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=8), st.lists(ENTRIES, max_size=3), st.dictionaries(st.text(max_size=5), JSON, max_size=2))
def test_whatever_a_card_holds_comes_out_as_it_went_in(inner: dict[str, Any], entries: list[Any], top: dict[str, Any]) -> None:
    inner = {**inner, "name": "A", "character_book": {"entries": entries}}
    card = {**top, "spec": "chara_card_v3", "spec_version": "3.0", "data": inner}
    read = card_from_bytes(json.dumps(card).encode(), "x.json")
    with tempfile.TemporaryDirectory() as folder:
        out = card_of(write_pack(draft_of(read), Path(folder)))
    assert {key: out[key] for key in card if key != "data"} == {key: read.whole[key] for key in card if key != "data"}
    assert {key: out["data"][key] for key in inner} == inner
