"""Which field of a card becomes which of a manifest, and what is said when something had to be changed."""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from personae.packs import manifest as form
from personae.packs.cards import card_from_bytes, card_of, draft_of
from personae.packs.cards.examples import exchanges, text_of
from personae.packs.draft import PackDraft, write_pack
from personae.packs.loader import examine_pack
from personae.packs.toml_text import toml_text
from tests.packs.cards.conftest import Imported, v1, v2, v3


def draft(value: Any, source: str = "mira.json") -> PackDraft:
    return draft_of(card_from_bytes(json.dumps(value).encode(), source))


def with_fields(**fields: Any) -> PackDraft:
    return draft({"spec": "chara_card_v3", "spec_version": "3.0", "data": v1() | fields})


def lore_of(*entries: dict[str, Any], **book: Any) -> PackDraft:
    return with_fields(character_book={"entries": list(entries), **book})


def said(found: PackDraft, field: str) -> str:
    return " ".join(f"{note.problem} {note.remedy}" for note in found.notes if note.field.endswith(field))


def test_every_field_of_a_card_has_its_place() -> None:
    card = v3()
    card["data"]["extensions"]["depth_prompt"]["prompt"] = "{{char}} is tired."
    assert draft(card).manifest == {
        "manifest": 1,
        "name": "Mira",
        "description": "Made with love.\n\nMind the gate.",
        "author": "somebody",
        "tags": ["guard", "Night Watch"],
        "persona": "You are Mira, called Mir.\n\nMir guards the gate. She distrusts the player.\n\n"
        "Personality: dry, loyal ☂\n\nScenario: It is night, and the gate is shut.",
        "style": "Write Mir's next line.\n\nMir is tired.\n\nKeep it short.",
        "greeting": '*She looks at you.* "Halt!"',
        "greetings": ["Who's there?", "*nods at you*"],
        "examples": [{"player": "Let me in.", "reply": "No.\nNot tonight."}, {"player": "...", "reply": "Who goes there?"}],
        "lore_rules": {"tokens": 300, "scan_lines": 6, "recursion": 1},
        "lore": [
            {
                "name": "the gate",
                "text": "The gate was built by Mir's grandfather.",
                "keys": ["gate", "portcullis"],
                "secondary": ["night"],
                "order": 100,
                "priority": 10,
            },
            {"name": "the king", "text": "The king is dead.", "constant": True, "order": 50},
        ],
    }


def test_a_description_that_addresses_the_character_needs_no_opening() -> None:
    assert with_fields(description="You are {{char}}, a guard.").manifest["persona"].startswith("You are Mira, a guard.")


def test_a_card_with_a_name_alone_still_has_a_persona() -> None:
    assert draft({"name": "Mira"}).manifest["persona"] == "You are Mira."


def test_a_card_without_a_name_is_called_after_its_file_with_a_note() -> None:
    found = draft({"name": "", "description": "A guard."}, "Night Guard.png")
    assert (found.manifest["name"], found.name) == ("Night Guard", "night-guard")
    assert "Night Guard" in said(found, "name")


def test_notes_in_several_languages_are_taken_in_english() -> None:
    found = with_fields(creator_notes="", creator_notes_multilingual={"ja": "は", "en": "Hello"})
    assert found.manifest["description"] == "Hello"


def test_a_text_that_is_too_long_is_cut_with_field_and_numbers_and_kept_in_the_card() -> None:
    found = with_fields(first_mes="Word. " * 1000, description="x " * 20_000, tags=["t" * 50] + ["u"] * 40, alternate_greetings=["g"] * 100)
    assert len(found.manifest["greeting"]) <= 2000
    assert len(found.manifest["persona"]) <= 16_000
    assert len(found.manifest["tags"]) == 32
    assert len(found.manifest["greetings"]) == 64
    for field, numbers in (("first_mes", ("5999", "2000")), ("description", ("39999", "16000")), ("tags[1]", ("50", "40"))):
        assert all(number in said(found, field) for number in numbers)
    assert json.loads(bytes(found.files["card.json"]))["data"]["first_mes"] == "Word. " * 1000


def test_placeholders_that_stand_for_chance_or_for_nothing_known_are_noted() -> None:
    found = with_fields(first_mes="{{random:Halt,Stop}}! It is {{time}}.")
    assert found.manifest["greeting"] == "Halt! It is {{time}}."
    notes = " ".join(note.problem for note in found.notes)
    assert "{{random}} once" in notes
    assert "{{time}} once" in notes


def test_lines_end_in_one_way_and_what_cannot_be_shown_is_taken_out() -> None:
    found = with_fields(description="a\r\nb\rc\x00\x1b[31m", first_mes="\ud800x")
    assert "a\nb\nc[31m" in found.manifest["persona"]
    assert found.manifest["greeting"] == "\ufffdx"
    assert said(found, "description")
    assert said(found, "first_mes")


# --- examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pairs", "n_lost"),
    [
        ("", [], 0),
        ("<START>\n{{user}}: a\n{{char}}: b", [("a", "b")], 0),
        ("{{user}}: a\n{{char}}: b\nc\n\nd\n<start>{{user}}:e\nf\n{{char}}:g", [("a", "b\nc\n\nd"), ("e\nf", "g")], 0),
        ("<START>\n{{char}}: a\n{{char}}: b\n{{user}}: c", [("...", "a\nb")], 1),
        ("<START>\nSome prose about {{char}}.\n<START>\n{{user}}: a\n{{char}}: b", [("a", "b")], 1),
        ("<USER>: a\r\n<BOT>: b\r\nMira: c\nmira: d", [("a", "b\nc\nd")], 0),
        ("{{user}}: a\n{{user}}: b\n{{char}}: c\n{{user}}: d\n{{char}}: e\nEND_OF_DIALOG", [("a\nb", "c"), ("d", "e")], 0),
        ("{{user}}:\n{{char}}: only", [("...", "only")], 0),
        ("You: a\nMira: b", [("a", "b")], 0),
        ("{{user}}: a\n{{char}}: Two ways.\nYou: mine.", [("a", "Two ways.\nYou: mine.")], 0),
    ],
)
def test_dialogues_become_exchanges(text: str, pairs: list[tuple[str, str]], n_lost: int) -> None:
    found, lost = exchanges(text, ["Mira"])
    assert (found, len(lost)) == (pairs, n_lost)


def test_exchanges_written_as_dialogues_read_back_the_same() -> None:
    pairs = [("a\n\nb", "c: d"), ("...", "e")]
    assert exchanges(text_of(pairs), ["Mira"]) == (pairs, [])


def test_a_dialogue_nobody_can_read_is_noted_and_kept_in_the_card() -> None:
    found = with_fields(mes_example="She speaks softly.")
    assert "examples" not in found.manifest
    assert "card.json" in said(found, "mes_example")


# --- lore ---------------------------------------------------------------------------------------------------------


def test_world_info_keyed_by_number_is_read_in_the_order_of_its_numbers() -> None:
    entries = {
        "10": {"key": ["c"], "content": "C", "order": 3},
        "2": {"key": ["b"], "keysecondary": ["x", "y"], "selective": True, "content": "B", "comment": "bee", "caseSensitive": True},
        "0": {"key": "a, aa", "content": "A", "disable": True, "constant": False, "order": "7", "useProbability": True, "probability": 50},
    }
    found = with_fields(character_book={"entries": entries})
    assert found.manifest["lore"] == [
        {"text": "A", "keys": ["a", "aa"], "order": 7, "enabled": False},
        {"text": "B", "name": "bee", "keys": ["b"], "secondary": ["x", "y"], "case_sensitive": True},
        {"text": "C", "keys": ["c"], "order": 3},
    ]
    assert "50 %" in said(found, "entries.0")


def test_secondary_keys_count_only_where_the_entry_is_selective() -> None:
    entry = {"keys": ["a"], "secondary_keys": ["b"], "content": "A"}
    assert lore_of(entry).manifest["lore"] == [{"text": "A", "keys": ["a"]}]


def test_secondary_keys_that_ask_for_more_than_any_are_noted() -> None:
    entry = {"keys": ["a"], "secondary_keys": ["b"], "selective": True, "content": "A"}
    neither = lore_of(entry | {"extensions": {"selectiveLogic": 2}})
    both = lore_of(entry | {"selectiveLogic": 3})
    assert neither.manifest["lore"] == [{"text": "A", "keys": ["a"]}]
    assert both.manifest["lore"] == [{"text": "A", "keys": ["a"], "secondary": ["b"]}]
    assert "not any" in said(neither, "entries[1]")
    assert "all" in said(both, "entries[1]")


def test_patterns_keep_their_flags_and_plain_keys_beside_them_become_patterns() -> None:
    found = lore_of({"keys": ["/dra(g|k)on/i", "Mr. Wyrm", "/a\\/b/gs"], "content": "A"})
    entry = found.manifest["lore"][0]
    assert entry == {
        "text": "A",
        "keys": ["(?i)dra(g|k)on", "(?i)\\bMr\\. Wyrm\\b", "(?s)a/b"],
        "regex": True,
        "case_sensitive": True,
    }


def test_the_flag_for_patterns_makes_none_of_a_plain_word() -> None:
    found = lore_of({"keys": ["dragon"], "content": "A", "use_regex": True}, {"keys": ["^dragon"], "content": "B", "use_regex": True})
    assert found.manifest["lore"] == [
        {"text": "A", "keys": ["dragon"]},
        {"text": "B", "keys": ["(?i)^dragon"], "regex": True, "case_sensitive": True},
    ]


def test_a_pattern_that_cannot_be_had_in_linear_time_leaves_its_entry_switched_off_with_a_note() -> None:
    found = lore_of({"keys": ["/(?<=a)b/", "/(a)\\1/"], "content": "A"}, {"keys": ["/(?=x)/", "/ok/"], "content": "B"})
    assert found.manifest["lore"] == [
        {"text": "A", "keys": ["/(?<=a)b/", "/(a)\\1/"], "enabled": False},
        {"text": "B", "keys": ["ok"], "regex": True, "case_sensitive": True},
    ]
    assert "switched off" in said(found, "entries[1]")


def test_an_entry_without_keys_that_is_not_constant_stays_off_since_a_pack_would_always_know_it() -> None:
    found = lore_of({"keys": [], "content": "A"}, {"keys": ["  "], "content": "B", "constant": True})
    assert found.manifest["lore"] == [{"text": "A", "enabled": False}, {"text": "B", "constant": True}]
    assert "switched off" in said(found, "entries[1]")


def test_decorators_are_taken_out_of_the_text_and_obeyed_where_a_pack_can() -> None:
    found = lore_of(
        {"keys": ["a"], "content": "@@depth 4\n@@@activate\n@@unknown x\n\nA fact."},
        {"keys": ["a"], "content": "@@dont_activate\nB"},
        {"keys": ["a"], "content": "@@additional_keys b, c\nC"},
        {"keys": ["a"], "content": "@@ only"},
    )
    assert found.manifest["lore"][:3] == [
        {"text": "A fact.", "keys": ["a"], "constant": True},
        {"text": "B", "keys": ["a"], "enabled": False},
        {"text": "C", "keys": ["a"], "secondary": ["b", "c"]},
    ]
    assert "@@unknown" in said(found, "entries[1]")


def test_numbers_beyond_what_a_pack_has_become_the_nearest_with_a_note() -> None:
    found = lore_of(
        {"keys": ["a"], "content": "A", "insertion_order": 10**300, "priority": -1e9},
        scan_depth=3000,
        token_budget=1,
        recursive_scanning=False,
    )
    assert found.manifest["lore"] == [{"text": "A", "keys": ["a"], "order": 1_000_000, "priority": -100}]
    assert found.manifest["lore_rules"] == {"tokens": 16, "scan_lines": 64, "recursion": 0}
    assert len([note for note in found.notes if "nearest" in note.remedy]) == 3


def test_more_lore_than_a_manifest_holds_goes_into_files_that_load(tmp_path: Path) -> None:
    entries = [{"keys": [f"k{n}"], "content": f"Fact {n}. " + "é" * 800, "enabled": n % 7 > 0} for n in range(1500)]
    found = lore_of(*entries)
    names = found.manifest["lore_files"]
    lore = [entry for name in names for entry in tomllib.loads(bytes(found.files[name]).decode())["lore"]]
    assert len(lore) == form.MAX_LORE
    assert all(entry.get("enabled", True) for entry in lore)  # those switched off went first
    assert all(len(found.files[name]) <= form.MAX_LORE_FILE_BYTES for name in names)
    assert "1500" in said(found, "character_book.entries")
    character, problems = examine_pack(write_pack(found, tmp_path))
    assert character is not None, problems
    assert len(character.lore) == form.MAX_LORE


def test_lore_beyond_what_a_pack_may_hold_is_noted_and_comes_out_again(tmp_path: Path) -> None:
    book = {"entries": [{"keys": [f"k{n}"], "content": "word " * 800, "enabled": n > 0} for n in range(700)]}
    found = with_fields(character_book=book)
    assert "of 700 entries" in said(found, "character_book.entries")
    pack = write_pack(found, tmp_path)
    character, problems = examine_pack(pack)
    assert character is not None, problems
    assert 500 < len(character.lore) < 600
    assert all(entry.enabled for entry in character.lore)  # the one that is switched off went first
    assert card_of(pack)["data"]["character_book"] == book


def test_more_patterns_than_a_pack_may_have_leave_the_others_switched_off() -> None:
    found = lore_of(*({"keys": [f"/a{n}|b/", f"/c{n}|d/"], "content": "A"} for n in range(200)))
    lore = tomllib.loads(bytes(found.files["lore-1.toml"]).decode())["lore"]
    assert sum(len(entry["keys"]) for entry in lore if entry.get("regex")) == form.MAX_REGEX_KEYS
    assert "256" in said(found, "character_book.entries")


def test_more_classes_in_patterns_than_a_pack_may_have_leave_the_others_switched_off(tmp_path: Path) -> None:
    found = lore_of(*({"keys": [rf"/\pL{n}[\pL\pN]/"], "content": "A"} for n in range(20)))
    character, problems = examine_pack(write_pack(found, tmp_path))
    assert character is not None, problems
    assert [entry.enabled for entry in character.lore] == [n < 10 for n in range(20)]


def test_a_book_that_is_only_named_is_noted() -> None:
    assert "'Old World'" in said(with_fields(extensions={"world": "Old World"}), "extensions.world")


# --- the whole ----------------------------------------------------------------------------------------------------


def test_a_card_of_the_longest_texts_still_makes_a_manifest_within_its_limit() -> None:
    found = with_fields(
        description="龍" * 16_000,
        alternate_greetings=["龍" * 2000] * 64,
        mes_example="{{user}}: " + "龍" * 1990 + "\n{{char}}: " + "龍" * 1990,
    )
    assert len(toml_text(found.manifest).encode()) <= form.MAX_BYTES
    assert 0 < len(found.manifest["greetings"]) < 64
    assert said(found, "greetings")


def test_extension_values_that_a_manifest_refuses_are_left_out_with_a_note() -> None:
    ours = {
        "sampling": {"temperature": 99},
        "fallback": ["One moment."],
        "stop": 7,
        "limits": None,
        "moods": [{"name": "x"}, {"name": "x"}],
    }
    found = with_fields(extensions={"personae": {"version": 9, **ours}})
    assert found.manifest["fallback"] == ["One moment."]
    assert not {"sampling", "stop", "limits", "moods"} & found.manifest.keys()
    assert "temperature" in said(found, "personae.sampling")


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 1, "junk": "x" * 300_000},
        {"top_k": 1, "." * 3000: {"." * 3000: 0.5}},
        {"top_k": 1, "list": [1, {"a": "." * 5000}]},
        {"top_k": 1, "number": 10**300},
        {"top_k": 1, "deep": [[[[[[{}]]]]]] * 100},
    ],
)
def test_what_an_extension_adds_never_makes_a_pack_that_cannot_be_read(tmp_path: Path, sampling: dict[str, Any]) -> None:
    character, problems = examine_pack(write_pack(with_fields(extensions={"personae": {"sampling": sampling}}), tmp_path))
    assert character is not None, problems


@pytest.mark.parametrize("adapter", [{"file": []}, [{"file": {}}], {"file": 7}, {"file": None}, "x"])
def test_an_adapter_whose_file_is_no_text_is_left_out(adapter: Any) -> None:
    assert "adapter" not in with_fields(extensions={"personae": {"adapter": adapter}}).manifest


def test_adapters_in_a_card_whose_names_mean_the_same_file_are_one() -> None:
    names = ["a.gguf", "A.gguf", "a.gguf/b.gguf", "card.json/c.gguf", "lore-1.toml/d.gguf", "é" * 200 + ".gguf"]
    files = {name: {"content": base64.b64encode(b"GGUF").decode()} for name in names}
    assert set(with_fields(extensions={"personae": {"files": files}}).files) == {"card.json", "a.gguf"}


def test_an_adapter_in_a_card_cannot_be_written_outside_or_over_another_file() -> None:
    content = base64.b64encode(b"GGUF").decode()
    names = ["../x.gguf", "character.toml", "/x.gguf", "a/../../x.gguf", "con.gguf", "good.gguf", ".x.gguf", "x.exe"]
    found = with_fields(extensions={"personae": {"files": {name: {"content": content} for name in names}}})
    assert set(found.files) == {"card.json", "good.gguf"}


def test_thousands_of_odd_entries_make_a_bounded_number_of_notes() -> None:
    found = lore_of(*({"keys": [f"/(?={n})/"], "content": "A"} for n in range(5000)))
    assert len(found.notes) < 300
    assert "more notes" in found.notes[-1].problem


@pytest.mark.parametrize("name", ["../../x", "con", "n" * 300, "\u202egnp.exe", "a/b\\c:d", "...", "{{user}}", "NUL.txt", "𝔐ira", "  "])
def test_whatever_a_character_is_called_its_pack_loads_under_a_plain_name(imported: Imported, name: str) -> None:
    card = v2()
    card["data"]["name"] = name
    pack = imported(card)
    assert pack.parent.name == "characters"
    assert "." not in pack.name
    character, problems = examine_pack(pack)
    assert character is not None, problems
    assert character.name == (name.strip() or "card")[:80]
