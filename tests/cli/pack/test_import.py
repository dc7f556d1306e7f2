"""`personae pack import` and `export`: what becomes of cards, adapters and archives, what is told of it, and what is refused."""

from __future__ import annotations

import json
import os
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.packs.loader import load_character
from personae.packs.lora import read_lora
from tests.cli.pack.conftest import GOOD, Pack, Write
from tests.cli.processes import on_terminal
from tests.packs.cards.conftest import packed, png_with, text, v2, zipped
from tests.packs.peft.saved import pair, save
from tests.tiny import TinyModel, write_adapter
from tests.tiny.models import N_EMBD, N_FF

INTO = Path("characters")
CARD: dict[str, Any] = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Captain Flint",
        "description": "{{char}} is a captain who trusts nobody, {{user}} least.",
        "first_mes": "State your business, {{user}}.",
        "mes_example": "<START>\n{{user}}: Hi\n{{char}}: Hm.",
        "alternate_greetings": ["You again?"],
        "tags": ["sea"],
        "character_book": {
            "entries": [{"keys": ["ship"], "content": "The Walrus.", "enabled": True, "insertion_order": 1, "extensions": {}}]
        },
    },
}


@pytest.fixture
def card(here: Path) -> Path:
    Path("flint.json").write_text(json.dumps(CARD), encoding="utf-8")
    return Path("flint.json")


@pytest.fixture
def peft(here: Path) -> Path:
    tensors = pair("model.layers.0.self_attn.q_proj", N_EMBD, N_EMBD) | pair("model.layers.1.mlp.down_proj", N_FF, N_EMBD)
    return save(here / "lora", tensors, target_modules=["q_proj", "down_proj"])


@pytest.fixture
def gguf(here: Path, model: TinyModel) -> Path:
    write_adapter(here / "voice.gguf", model, alpha=8.0)
    return here / "voice.gguf"


def manifest(name: str) -> dict[str, Any]:
    return tomllib.loads((INTO / name / "character.toml").read_text(encoding="utf-8"))


def fits(path: Path, model: TinyModel) -> bool:
    return read_lora(path, BaseShapes.of(read_header(model.path))).rank > 0


# --- cards ------------------------------------------------------------------------------------------------------------


def test_a_card_becomes_a_pack_and_it_is_told_what_of_it(pack: Pack, card: Path) -> None:
    ended = pack("import", card)
    assert (ended.code, ended.error) == (0, "")
    assert "made of flint.json (character card, version 2)." in ended.words
    assert "Taken: name, persona, greeting and 1 other, 1 example, 1 lore entry (1 with keys), 1 tag." in ended.words
    assert "Kept aside: all of the card, in card.json" in ended.words
    assert ended.out.splitlines()[-1] == "Next: personae pack check characters/captain-flint"
    assert load_character(INTO / "captain-flint").greetings == ("You again?",)


@pytest.mark.parametrize("name", ["card.png", "card.charx", "card"])
def test_a_card_is_known_by_its_content_and_not_by_its_name(pack: Pack, here: Path, name: str) -> None:
    content = png_with(text("chara", packed(CARD))) if name != "card.charx" else zipped({"card.json": json.dumps(CARD).encode()})
    Path(name).write_bytes(content)
    assert pack("import", name).code == 0
    assert load_character(INTO / "captain-flint").name == "Captain Flint"


def test_what_is_not_as_it_was_is_told_in_a_few_lines(pack: Pack, here: Path) -> None:
    Path("odd.json").write_text(json.dumps(v2()), encoding="utf-8")
    ended = pack("import", "odd.json")
    assert ended.code == 0
    assert "Not as it was:" in ended.out
    assert max(map(len, ended.out.splitlines()[:-1])) <= 80


def test_several_cards_are_several_packs(pack: Pack, card: Path) -> None:
    Path("second.json").write_text(json.dumps({"name": "Other", "description": "Another."}), encoding="utf-8")
    assert pack("import", card, "second.json").code == 0
    assert sorted(os.listdir(INTO)) == ["captain-flint", "other"]


def test_a_name_and_a_place_may_be_given(pack: Pack, card: Path) -> None:
    assert pack("import", card, "--name", "flint", "--into", "game/npcs").code == 0
    assert load_character(Path("game/npcs/flint")).name == "Captain Flint"


def test_a_pack_that_is_there_is_replaced_only_when_asked(pack: Pack, card: Path, write: Write) -> None:
    folder = write(name="captain-flint")
    ended = pack("import", card)
    assert ended.code == 4
    assert "There is a pack 'captain-flint'" in ended.error
    assert load_character(folder).name == "Marta"
    assert pack("import", card, "--replace").code == 0
    assert load_character(folder).name == "Captain Flint"


def test_a_pack_that_is_there_is_refused_with_the_options_that_help(pack: Pack, card: Path, write: Write) -> None:
    write(name="captain-flint")
    assert "Name another with --name, or write over it with --replace." in pack("import", card).error


@pytest.mark.parametrize(("answer", "name"), [("y", "Captain Flint"), ("", "Marta")])
def test_on_a_terminal_it_asks_before_it_replaces(card: Path, write: Write, answer: str, name: str) -> None:
    folder = write(name="captain-flint")
    with on_terminal("pack", "import", str(card)) as terminal:
        terminal.read_until("Replace it? [y/N] ")
        terminal.type(answer + "\n")
        terminal.wait()
    assert load_character(folder).name == name


@pytest.mark.parametrize("content", [b"", b"hello", b"[1, 2]", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04"])
def test_what_is_no_card_ends_with_4_and_leaves_nothing(pack: Pack, here: Path, content: bytes) -> None:
    Path("x.json").write_bytes(content)
    ended = pack("import", "x.json")
    assert ended.code == 4
    assert ended.error.startswith("personae: ")
    assert os.listdir(here) == ["x.json"]


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_a_peft_adapter_beside_a_card_is_its_voice(pack: Pack, card: Path, peft: Path, model: TinyModel) -> None:
    ended = pack("import", card, peft, "--base", model.path)
    assert (ended.code, ended.error) == (0, "")
    assert "rank 4" in ended.words
    said = manifest("captain-flint")
    assert said["adapter"]["file"] == "adapter.gguf"
    assert said["base"]["architecture"] == "llama"
    assert fits(INTO / "captain-flint" / "adapter.gguf", model)
    assert pack("check", INTO, "--model", model.path).code == 0


def test_an_adapter_alone_is_a_new_pack_when_a_persona_is_given(pack: Pack, peft: Path, model: TinyModel) -> None:
    ended = pack("import", peft, "--base", model.path, "--persona", "You are Nobody.", "--name", "old-nobody")
    assert ended.code == 0
    character = load_character(INTO / "old-nobody")
    assert (character.name, character.persona) == ("Old Nobody", "You are Nobody.")
    assert len(character.adapters) == 1


@pytest.mark.parametrize("source", ["lora", "lora/adapter_config.json", "lora/adapter_model.safetensors"])
def test_an_adapter_is_added_to_a_pack_that_keeps_its_comments(pack: Pack, write: Write, peft: Path, model: TinyModel, source: str) -> None:
    folder = write("# a comment that stays\n")
    ended = pack("import", source, "--pack", "marta", "--base", model.path)
    assert (ended.code, ended.error) == (0, "")
    assert "is its adapter now, as adapter.gguf" in ended.words
    assert "# a comment that stays" in (folder / "character.toml").read_text(encoding="utf-8")
    assert load_character(folder).adapters[0].file == "adapter.gguf"
    assert sorted(os.listdir(folder)) == ["adapter.gguf", "character.toml"]


def test_a_gguf_adapter_is_added_as_it_is(pack: Pack, write: Write, gguf: Path, model: TinyModel) -> None:
    folder = write()
    assert pack("import", gguf, "--pack", folder, "--base", model.path).code == 0
    assert (folder / "adapter.gguf").read_bytes() == gguf.read_bytes()


def test_a_second_adapter_is_refused_and_with_replace_takes_the_place_of_the_first(pack: Pack, write: Write, gguf: Path) -> None:
    folder = write()
    pack("import", gguf, "--pack", folder)
    before = (folder / "character.toml").read_bytes()
    ended = pack("import", gguf, "--pack", folder)
    assert ended.code == 4
    assert "has an adapter already" in ended.error
    assert (folder / "character.toml").read_bytes() == before
    assert pack("import", gguf, "--pack", folder, "--replace").code == 0
    (part,) = load_character(folder).adapters
    assert part.file == "adapter-2.gguf"  # what a running game reads is never written over


def test_an_adapter_of_another_base_is_refused_before_anything_is_written(pack: Pack, write: Write, here: Path, model: TinyModel) -> None:
    save(here / "lora", pair("model.layers.0.self_attn.q_proj", N_EMBD + 8, N_EMBD), target_modules=["q_proj"])
    folder = write()
    ended = pack("import", "lora", "--pack", folder, "--base", model.path)
    assert ended.code == 4
    assert "inputs" in ended.error
    assert os.listdir(folder) == ["character.toml"]


def test_an_adapter_is_not_added_to_a_pack_that_is_broken(pack: Pack, write: Write, gguf: Path) -> None:
    folder = write("this is no TOML\n")
    before = (folder / "character.toml").read_bytes()
    assert pack("import", gguf, "--pack", folder).code == 4
    assert (folder / "character.toml").read_bytes() == before
    assert os.listdir(folder) == ["character.toml"]


# --- archives ---------------------------------------------------------------------------------------------------------


def test_an_archive_is_unpacked_to_be_edited(pack: Pack, here: Path) -> None:
    with zipfile.ZipFile("marta.persona", "w") as archive:
        archive.writestr("character.toml", "# hers\n" + GOOD)
        archive.writestr("Thumbs.db", "")
    ended = pack("import", "marta.persona")
    assert ended.code == 0
    assert os.listdir(INTO / "marta") == ["character.toml"]
    assert (INTO / "marta" / "character.toml").read_text(encoding="utf-8").startswith("# hers\n")


def test_an_archive_that_cannot_be_used_shows_its_errors_and_is_not_unpacked(pack: Pack, here: Path) -> None:
    with zipfile.ZipFile("marta.persona", "w") as archive:
        archive.writestr("character.toml", "persona = 3\n")
    ended = pack("import", "marta.persona")
    assert ended.code == 4
    assert "character.toml: persona" in ended.out
    assert not INTO.exists()


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt"])
def test_an_archive_that_leads_out_writes_nothing(pack: Pack, here: Path, name: str) -> None:
    with zipfile.ZipFile("marta.persona", "w") as archive:
        archive.writestr("character.toml", GOOD)
        archive.writestr(name, "evil")
    assert pack("import", "marta.persona").code == 4
    assert not list(here.parent.rglob("evil.txt"))
    assert not INTO.exists()


def test_a_named_adapter_becomes_the_voice_of_an_archive_and_its_comments_stay(pack: Pack, gguf: Path) -> None:
    with zipfile.ZipFile("marta.persona", "w") as archive:
        archive.writestr("character.toml", "# hers\n" + GOOD)
    assert pack("import", "marta.persona", gguf).code == 0
    assert (INTO / "marta" / "character.toml").read_text(encoding="utf-8").startswith("# hers\n")
    assert load_character(INTO / "marta").adapters[0].file == "adapter.gguf"


# --- what cannot be meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "There is nothing at nowhere."),
        (("empty",), "holds no adapter_config.json"),
        (("characters/marta",), "is a pack already"),
        (("lora",), "an adapter without a character"),
        (("lora", "voice.gguf"), "2 adapters at once"),
        (("flint.json", "flint2.json", "--name", "x"), "2 characters and one name"),
        (("flint.json", "flint2.json", "lora"), "2 characters and one adapter"),
        (("voice.gguf", "--pack", "marta", "--name", "x"), "--pack with --name or --persona"),
        (("flint.json", "--persona", "You are x."), "--persona with a character"),
        (("flint.json", "--pack", "marta"), "--pack without an adapter alone"),
        (("voice.gguf", "--pack", "nobody"), "There is no pack at nobody"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(
    pack: Pack, write: Write, card: Path, peft: Path, gguf: Path, arguments: tuple[str, ...], told: str
) -> None:
    write()
    Path("empty").mkdir()
    Path("flint2.json").write_bytes(card.read_bytes())
    before = sorted(INTO.rglob("*"))
    ended = pack("import", *arguments)
    assert ended.code == 4
    assert told in ended.error
    assert sorted(INTO.rglob("*")) == before


def test_a_base_that_is_not_there_ends_with_3(pack: Pack, peft: Path) -> None:
    assert pack("import", peft, "--persona", "You are Nobody.", "--base", "/nowhere.gguf").code == 3


# --- export -----------------------------------------------------------------------------------------------------------


def test_a_card_that_was_imported_is_exported_as_it_was(pack: Pack, card: Path) -> None:
    pack("import", card)
    ended = pack("export", INTO / "captain-flint", "--card", "--to", "out.json")
    assert ended.code == 0
    assert "Wrote out.json: captain-flint as a character card" in ended.out
    written = json.loads(Path("out.json").read_bytes())["data"]
    assert {key: written[key] for key in CARD["data"]} == CARD["data"]


def test_a_portrait_that_json_cannot_hold_is_told_of(pack: Pack, write: Write) -> None:
    folder = write('portrait = "p.png"\n', files={"p.png": png_with()})
    assert "portrait is 'p.png', and JSON holds no picture." in pack("export", folder, "--card", "--to", "out.json").words
    assert "Not in it" not in pack("export", folder, "--card").words


@pytest.mark.parametrize("ending", [".json", ".png", ".charx"])
def test_a_pack_that_was_exported_imports_again(pack: Pack, write: Write, ending: str) -> None:
    folder = write('[[lore]]\nname = "mill"\ntext = "It burnt."\nkeys = ["mill"]\n')
    assert pack("export", folder, "--card", "--to", f"card{ending}").code == 0
    assert pack("import", f"card{ending}", "--name", "again").code == 0
    was, again = load_character(folder), load_character(INTO / "again")
    assert (again.name, again.persona, again.greeting, again.lore) == (was.name, was.persona, was.greeting, was.lore)


def test_the_adapter_goes_along_when_asked(pack: Pack, write: Write, gguf: Path) -> None:
    folder = write('[adapter]\nfile = "a.gguf"\nscale = 0.5\n', files={"a.gguf": gguf.read_bytes()})
    assert "content is not in it" in pack("export", folder, "--card").words
    pack("export", folder, "--card", "--with-adapter", "--to", "whole.json")
    assert pack("import", "whole.json", "--name", "again").code == 0
    (part,) = load_character(INTO / "again").adapters
    assert part.scale == 0.5
    assert (INTO / "again" / part.file).read_bytes() == gguf.read_bytes()


def test_a_file_that_is_there_is_written_over_only_when_asked(pack: Pack, write: Write) -> None:
    folder = write()
    Path("marta.json").write_text("precious")
    ended = pack("export", folder, "--card")
    assert ended.code == 4
    assert "There is a file marta.json already." in ended.error
    assert Path("marta.json").read_text() == "precious"
    assert pack("export", folder, "--card", "--replace").code == 0


@pytest.mark.parametrize("to", ["card.txt", "card", "nowhere/card.json"])
def test_a_place_where_no_card_can_be_ends_with_4(pack: Pack, write: Write, to: str) -> None:
    ended = pack("export", write(), "--card", "--to", to)
    assert ended.code == 4
    assert ended.error.startswith("personae: ")
