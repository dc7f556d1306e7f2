"""Cards as they are found in the wild, and files that only look like some: read, read with a note, or refused by name."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.packs.cards import Card, card_from_bytes, draft_of, read_card, reading
from personae.packs.cards import charx as charx_form
from personae.packs.cards import json_text as bounds
from personae.packs.cards import png as png_form
from personae.packs.draft import write_pack
from personae.packs.manifest import check
from personae.packs.toml_text import toml_text
from tests.packs.cards.conftest import END, HEADER, PICTURE, PIXELS, chunk, packed, png_with, text, v1, v2, v3, zipped


def card(value: Any, source: str = "mira.json") -> Card:
    return card_from_bytes(value if isinstance(value, bytes) else json.dumps(value).encode(), source)


def fields(found: Card) -> list[str]:
    return [note.field for note in found.notes]


def refused(content: Any, source: str = "mira.json") -> AskedWrong:
    with pytest.raises(AskedWrong) as fault:
        card(content, source)
    assert source.split(".")[0] in fault.value.message
    return fault.value


# --- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("made", "version"), [(v1, 1.0), (v2, 2.0), (v3, 3.0)])
def test_a_card_in_good_order_is_read_without_a_note(made: Any, version: float) -> None:
    found = card(made())
    assert found.version == version
    assert found.whole == made()
    assert found.texts["name"] == "Mira"
    assert found.notes == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_text_may_be_utf_8_with_or_without_a_mark_or_utf_16(encoding: str) -> None:
    assert card(json.dumps({"name": "Mïra", "description": "x"}, ensure_ascii=False).encode(encoding)).texts["name"] == "Mïra"


def test_a_card_without_spec_is_read_by_its_shape_and_noted() -> None:
    inner = v2()["data"]
    found = card({"data": inner})
    assert (found.version, fields(found)) == (2.0, ["spec"])


@pytest.mark.parametrize(
    ("spec", "said", "version"),
    [("chara_card_v3", "3.7", 3.7), ("chara_card_v4", "4.0", 4.0), ("chara_card_v4", None, 4.0), ("chara_card_v3", 3.5, 3.5)],
)
def test_a_version_to_come_is_read_as_far_as_it_goes_with_a_note(spec: str, said: Any, version: float) -> None:
    found = card(v3() | {"spec": spec, "spec_version": said})
    assert (found.version, fields(found)) == (version, ["spec_version"])
    assert found.texts["personality"] == v3()["data"]["personality"]


def test_each_field_that_is_missing_null_or_of_another_kind_is_named() -> None:
    inner = {"name": "A", "description": None, "personality": 5, "scenario": {"x": 1}, "first_mes": ["a", "b"], "tags": "x, y"}
    inner |= {"extensions": None, "character_book": 7, "alternate_greetings": ["hi", 3, None]}
    found = card({"spec": "chara_card_v2", "spec_version": "2.0", "data": inner})
    named = {name.removeprefix("data.") for name in fields(found)}
    assert named == {
        "description", "personality", "scenario", "first_mes", "tags", "extensions", "character_book", "alternate_greetings", "mes_example"
    }  # fmt: skip
    assert (found.texts["description"], found.texts["personality"], found.texts["first_mes"]) == ("", "5", "a\nb")
    assert (found.lists["tags"], found.lists["alternate_greetings"]) == (("x", "y"), ("hi",))
    assert draft_of(found).manifest["name"] == "A"


def test_fields_beside_a_data_that_is_no_object_are_read() -> None:
    found = card({"spec": "chara_card_v2", "data": None, "name": "A", "description": "B"})
    assert found.texts["description"] == "B"
    assert "data" in fields(found)


def test_a_field_that_only_the_top_has_is_taken_from_there() -> None:
    assert card({"data": {"name": "A"}, "first_mes": "hi"}).texts["first_mes"] == "hi"


@pytest.mark.parametrize("place", ["top", "data", "extensions", "other name", "list"])
def test_the_lore_book_is_found_wherever_it_is(place: str) -> None:
    book: Any = {"entries": [{"keys": ["a"], "content": "A"}]}
    value: dict[str, Any] = {"data": {"name": "A", "extensions": {}}}
    if place == "top":
        value["character_book"] = book
    elif place == "extensions":
        value["data"]["extensions"]["character_book"] = book
    else:
        key = {"data": "character_book", "other name": "lorebook", "list": "character_book"}[place]
        value["data"][key] = book["entries"] if place == "list" else book
    assert draft_of(card(value)).manifest["lore"] == [{"text": "A", "keys": ["a"]}]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "no name and no text"),
        ([], "no JSON object"),
        ({"spec": "chara_card_v2", "data": {"name": "", "tags": ["x"]}}, "no name and no text"),
        ({"entries": {"0": {"key": ["a"], "content": "b"}}}, "lore book"),
        ({"spec": "lorebook_v3", "data": {"entries": []}}, "lore book"),
        ({"data": {"name": None}}, "no name and no text"),
    ],
)
def test_what_holds_nothing_to_play_is_no_card(value: Any, says: str) -> None:
    fault = refused(value)
    assert fault.code == "not_a_card"
    assert says in fault.message


@pytest.mark.parametrize(
    "content",
    [
        b'{"name": "a"',
        b"{",
        b'{"name": "\xff"}',
        b'{"a":' * 100_000,
        b'{"name": "a", "description": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
        b'{"name": "a", "x": ' + b"[" * 80 + b"]" * 80 + b"}",
        b'{"name": "a", "x": ' + b"9" * 5000 + b"}",
        b'{"name": "a", "x": 0.' + b"9" * 5000 + b"}",
        b'{"name": "a"} x',
    ],
)
def test_json_that_cannot_be_read_is_refused_by_name(content: bytes) -> None:
    assert refused(content).code == "card_unreadable"


def test_too_many_values_and_too_many_bytes_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    many = b'{"name": "a", "entries": [' + b"{}," * 600_000 + b"{}]}"
    assert refused(many).code == "card_too_large"
    monkeypatch.setattr(bounds, "MAX_BYTES", 1000)
    assert refused(b'{"name": "' + b"a" * 1000 + b'"}').code == "card_too_large"


def test_keys_twice_and_numbers_json_does_not_have_are_noted() -> None:
    found = card(b'{"name": "a", "name": "b", "x": NaN, "y": -Infinity}')
    assert found.texts["name"] == "b"
    assert found.whole["x"] is None
    assert len([note for note in found.notes if "twice" in note.problem or "null" in note.problem]) == 3


def test_a_number_with_an_absurd_exponent_is_kept_and_harmless() -> None:
    found = card(
        b'{"name": "a", "x": 1e99999999999999999999999, "character_book": {"entries": [{"content": "c", "insertion_order": 1e400}]}}'
    )
    assert draft_of(found).manifest["lore"] == [{"text": "c", "enabled": False}]


def test_a_note_can_always_be_printed_and_sent() -> None:
    book = {"entries": {"\ud800\n": {"key": ["/(?=x)/"], "content": "c", "order": 10**9}}}
    found = draft_of(card({"name": "a", "spec": "\udfff", "character_book": book}))
    assert all(str(note).encode() and str(note).isprintable() for note in found.notes)


# --- PNG ----------------------------------------------------------------------------------------------------------


def named(name: str) -> dict[str, Any]:
    card = v2()
    card["data"]["name"] = name
    return card


def itxt(keyword: str, content: bytes, *, pack: bool) -> bytes:
    body = zlib.compress(content) if pack else content
    return chunk(b"iTXt", keyword.encode() + b"\0" + bytes([pack, 0]) + b"en\0x\0" + body)


@pytest.mark.parametrize(
    "content",
    [
        png_with(text("chara", packed(v2()))),
        HEADER + text("chara", packed(v2())) + PIXELS + END,
        HEADER + text("Comment", b"x") + text("Chara", packed(v2())) + PIXELS + END,
        png_with(chunk(b"zTXt", b"chara\0\0" + zlib.compress(packed(v2())))),
        png_with(itxt("chara", packed(v2()), pack=False)),
        png_with(itxt("chara", packed(v2()), pack=True)),
        png_with(text("chara", json.dumps(v2()).encode())),
        png_with(text("chara", packed(v2()).replace(b"=", b""))),
        png_with(text("chara", b"\n".join(packed(v2())[i : i + 76] for i in range(0, len(packed(v2())), 76)))),
    ],
)
def test_a_card_is_found_wherever_and_however_a_png_may_hold_it(content: bytes) -> None:
    found = card(content, "mira.png")
    assert found.whole == v2()
    assert found.notes == ()
    assert found.files == {"portrait.png": png_form.without_card(content, "")}
    assert found.portrait == "portrait.png"


def test_version_3_wins_wherever_it_stands() -> None:
    for order in ((text("chara", packed(v2())), text("ccv3", packed(v3()))), (text("ccv3", packed(v3())), text("chara", packed(v2())))):
        assert card(png_with(*order), "mira.png").version == 3.0


def test_when_the_newer_text_is_broken_the_older_is_read_with_a_note() -> None:
    found = card(png_with(text("ccv3", b"!!!"), text("chara", packed(v2()))), "mira.png")
    assert (found.version, fields(found)) == (2.0, ["ccv3"])


def test_a_wrong_checksum_is_noted_and_the_card_read() -> None:
    found = card(png_with(chunk(b"tEXt", b"chara\0" + packed(v2()), crc=0)), "mira.png")
    assert (found.texts["name"], fields(found)) == ("Mira", ["chara"])


def test_a_picture_that_breaks_off_behind_the_card_is_read_with_a_note() -> None:
    content = HEADER + text("chara", packed(v2())) + PIXELS[:9]
    found = card(content, "mira.png")
    assert found.whole == v2()
    assert "breaks off" in found.notes[0].problem


def test_the_card_is_taken_out_of_the_portrait() -> None:
    found = card(png_with(text("chara", packed(v2())), text("ccv3", packed(v3())), text("Author", b"me")), "mira.png")
    assert found.files["portrait.png"] == png_with(text("Author", b"me"))


def test_files_laid_beside_the_card_in_the_picture_become_assets() -> None:
    value = v3()
    value["data"]["assets"] = [{"type": "icon", "uri": "__asset:0", "name": "main", "ext": "png"}]
    beside = text("chara-ext-asset_:0", base64.b64encode(PICTURE))
    evil = text("chara-ext-asset_:../../x", b"AAAA")
    found = card(png_with(beside, evil, text("ccv3", packed(value))), "mira.png")
    assert set(found.files) == {"portrait.png", "assets/0.bin"}
    assert found.portrait == "assets/0.bin"
    assert any("left out" in note.problem for note in found.notes)


def test_files_beside_the_card_that_a_pack_cannot_have_are_left_out_with_a_note(tmp_path: Path) -> None:
    """The pack is written with the others."""
    names = ["a.png", "A.png", ".a/b.png", "a.png/b.png", "\xe9" * 200 + ".png", "con.png", "b.png"]
    beside = [chunk(b"tEXt", b"chara-ext-asset_:" + name.encode("latin-1") + b"\0AAAA") for name in names]
    found = card(png_with(*beside, text("ccv3", packed(v3()))), "mira.png")
    assert set(found.files) == {"portrait.png", "assets/a.png", "assets/b.png"}
    assert len([note for note in found.notes if "left out" in note.problem]) == 5
    assert write_pack(draft_of(found), tmp_path)


def test_texts_that_break_off_behind_many_bytes_are_tried_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []
    monkeypatch.setattr(png_form, "_inflated", lambda packed: tried.append(packed))
    assert refused(png_with(*[chunk(b"zTXt", b"chara\0\0bomb")] * 1000), "mira.png").code == "not_a_card"
    assert len(tried) == png_form.MAX_TEXTS


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (PICTURE, "not_a_card"),
        (png_with(text("chara", b"?" * 50)), "card_unreadable"),
        (png_with(text("chara", packed([1]))), "not_a_card"),
        (HEADER + struct.pack(">I", 0xFFFFFFF0) + b"tEXt", "card_unreadable"),
        (HEADER + struct.pack(">I", 0x7FFFFFF0) + b"tEXtchara\0", "not_a_card"),
        (HEADER[:8], "not_a_card"),
        (HEADER + chunk(b"IDAT", b"") * 25_000 + END, "card_unreadable"),
        (png_with(chunk(b"zTXt", b"chara\0\0garbage")), "not_a_card"),
        (png_with(chunk(b"zTXt", b"chara")), "not_a_card"),
        (png_with(chunk(b"iTXt", b"chara\0\0")), "not_a_card"),
    ],
)
def test_a_png_without_a_card_that_can_be_read_is_refused(content: bytes, code: str) -> None:
    assert refused(content, "mira.png").code == code


def test_a_text_that_unpacks_to_too_much_is_refused() -> None:
    bomb = zlib.compress(b"A" * (png_form.MAX_TEXT_BYTES + 10), 9)
    assert refused(png_with(chunk(b"zTXt", b"chara\0\0" + bomb)), "mira.png").code == "card_too_large"


def test_a_picture_too_large_for_a_portrait_is_kept_and_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PORTRAIT_BYTES", 50)
    found = card(png_with(text("chara", packed(v2()))), "mira.png")
    assert (found.portrait, fields(found)) == ("", ["portrait.png"])


# --- CHARX --------------------------------------------------------------------------------------------------------


def test_a_charx_gives_its_card_and_its_files() -> None:
    value = v3()
    value["data"]["assets"] = [{"type": "icon", "uri": "embeded://assets/icon/images/i.png", "name": "main", "ext": "png"}]
    content = zipped({"card.json": json.dumps(value).encode(), "assets/icon/images/i.png": PICTURE, "x/y.risum": b"r", ".hidden": b""})
    found = card(content, "mira.charx")
    assert found.whole == value
    assert found.files == {"assets/icon/images/i.png": PICTURE, "assets/charx/x/y.risum": b"r"}
    assert found.portrait == "assets/icon/images/i.png"


def test_a_charx_behind_a_picture_and_one_whose_folder_was_zipped_are_read() -> None:
    content = zipped({"mira/card.json": json.dumps(v3()).encode(), "mira/assets/a.ogg": b"o"})
    assert card(content, "mira.charx").files == {"assets/a.ogg": b"o"}
    assert card(b"\xff\xd8\xff some picture " + zipped({"card.json": json.dumps(v3()).encode()}), "mira.jpeg").whole == v3()


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/../../evil", "C:\\evil", "a\\..\\..\\evil"])
def test_a_charx_that_reaches_outside_is_refused(name: str) -> None:
    assert refused(zipped({"card.json": json.dumps(v3()).encode(), name: b"x"}), "mira.charx").code == "card_unreadable"


def test_a_file_that_windows_takes_for_a_device_is_left_out_with_a_note() -> None:
    found = card(zipped({"card.json": json.dumps(v3()).encode(), "assets/con.png": b"x", "assets/b.png": b"y"}), "mira.charx")
    assert set(found.files) == {"assets/b.png"}
    assert fields(found) == ["assets/con.png"]


def test_a_file_in_a_charx_cannot_stand_for_one_of_the_pack() -> None:
    files = {"card.json": json.dumps(v3()).encode(), "character.toml": b"x", "assets/personae/character.toml": b"y", "lore-1.toml": b"z"}
    found = card(zipped(files), "mira.charx")
    assert set(found.files) == {"assets/charx/character.toml", "assets/personae/character.toml", "assets/charx/lore-1.toml"}


def test_files_of_a_charx_that_a_pack_cannot_have_beside_each_other_are_left_out_with_a_note(tmp_path: Path) -> None:
    files = [
        "assets/a.gguf",
        "assets/personae/assets/A.gguf",
        "assets/a.gguf.d/x",
        "assets/personae/card.json/x.gguf",
        "x/y",
        "assets/charx/x/y",
    ]
    long = "assets/" + "語" * 90 + ".png"
    found = card(zipped({"card.json": json.dumps(v3()).encode(), **dict.fromkeys([*files, long], b"x")}), "mira.charx")
    assert set(found.files) == {"assets/a.gguf", "assets/a.gguf.d/x", "assets/charx/x/y"}
    assert len(found.notes) == 4
    assert write_pack(draft_of(found), tmp_path)


def test_files_that_are_too_many_or_too_large_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charx_form, "MAX_ASSETS", 3)  # with the folder that they are in
    monkeypatch.setattr(charx_form, "MAX_ASSET_BYTES", 10)
    names = {f"assets/{n}.bin": b"x" for n in range(4)}
    found = card(zipped({"card.json": json.dumps(v3()).encode(), "assets/large.bin": b"x" * 11, **names}), "mira.charx")
    assert set(found.files) == {"assets/0.bin", "assets/1.bin"}
    assert len(found.notes) == 3


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (zipped({"a.txt": b""}), "not_a_card"),
        (b"PK\3\4" + b"\0" * 100, "card_unreadable"),
        (zipped({"card.json": b"{"}), "card_unreadable"),
        (zipped({"card.json": b"[]"}), "not_a_card"),
        (zipped({"card.json": json.dumps(v3()).encode()})[:-30], "card_unreadable"),
        (zipped({"card.json": b" " * 30_000_000}), "card_unreadable"),
    ],
)
def test_a_charx_that_cannot_be_read_is_refused(content: bytes, code: str) -> None:
    assert refused(content, "mira.charx").code == code


# --- files --------------------------------------------------------------------------------------------------------


def test_what_a_file_is_is_decided_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "really.png").write_bytes(json.dumps(v2()).encode())
    assert read_card(tmp_path / "really.png").whole == v2()


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8\xff\xe0 a picture", b"name: Mira", b"\0" * 1000])
def test_any_other_file_is_no_card(content: bytes) -> None:
    assert refused(content, "mira.bin").code == "not_a_card"


def test_a_path_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(AskedWrong) as fault:
            read_card(path)
        assert fault.value.code == "card_unreadable"


def test_the_main_icon_may_lie_in_its_own_address_and_nothing_is_ever_fetched() -> None:
    value = v3()
    address = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    value["data"]["assets"] = [
        {"type": "icon", "uri": "https://example.org/x.png", "name": "other", "ext": "png"},
        {"type": "icon", "uri": address, "name": "main", "ext": "png"},
        {"type": "icon", "uri": 7},
        "no object",
    ]
    found = card(value)
    assert (found.portrait, found.files) == ("icon.png", {"icon.png": PICTURE})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    "name",
    "description",
    "first_mes",
    "mes_example",
    "tags",
    "extensions",
    "character_book",
    "assets",
    "alternate_greetings",
    "nickname",
]
ENTRY_NAMES = [
    "keys",
    "key",
    "content",
    "order",
    "insertion_order",
    "enabled",
    "disable",
    "constant",
    "secondary_keys",
    "selective",
    "use_regex",
]


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8),
    st.lists(st.dictionaries(st.sampled_from(ENTRY_NAMES), JSON, max_size=6), max_size=3),
)
def test_whatever_the_fields_hold_a_card_is_refused_by_name_or_becomes_a_valid_pack(inner: dict[str, Any], entries: list[Any]) -> None:
    inner["character_book"] = inner.get("character_book") or {"entries": entries}
    try:
        found = card({"spec": "chara_card_v3", "data": inner})
    except AskedWrong:
        return
    draft = draft_of(found)
    manifest, problems = check(draft.name, draft.manifest)
    assert manifest is not None, problems
    assert toml_text(draft.manifest)


WHOLE = png_with(text("chara", packed(v2())), text("ccv3", packed(v3())))
ZIPPED = zipped({"card.json": json.dumps(v3()).encode(), "assets/a.png": PICTURE})


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([WHOLE, ZIPPED, json.dumps(v3()).encode()]),
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_a_file_with_some_bytes_changed_is_read_or_refused_and_nothing_else(content: bytes, at: int, new: bytes, cut: int) -> None:
    at %= len(content)
    changed = content[:at] + new + content[at + cut :]
    try:
        for note in draft_of(card_from_bytes(changed, "x")).notes:
            assert str(note).encode()
    except AskedWrong as fault:
        assert fault.code in ("card_unreadable", "card_too_large", "not_a_card")  # noqa: PT017  either is right
