"""`personae pack new` with options alone, and with its questions on a terminal."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from personae.cli.pack.starter import display_name
from personae.packs.loader import examine_pack
from tests.cli.pack.conftest import Pack, Write
from tests.cli.processes import on_terminal

PERSONA = 'You are "Old" Marta, the innkeeper.\nYou know everybody.'


def test_options_make_a_pack_that_loads_and_nothing_beside_it(pack: Pack, here: Path) -> None:
    ended = pack(
        "new", "old-marta", "--persona", PERSONA, "--style", "Warm.", "--greeting", "Come in.", "--licence", "MIT", "--author", "me"
    )
    assert (ended.code, ended.error) == (0, "")
    folder = here / "characters" / "old-marta"
    assert sorted(os.listdir(here)) == ["characters"]
    assert os.listdir(here / "characters") == ["old-marta"]
    assert sorted(os.listdir(folder)) == ["character.toml", "lines.jsonl"]
    character, problems = examine_pack(folder)
    assert character is not None
    assert problems == ()
    assert (character.name, character.persona, character.style) == ("Old Marta", PERSONA, "Warm.")
    assert (character.greeting, character.licence, character.author) == ("Come in.", "MIT", "me")
    assert ended.out.splitlines()[-1] == "Next: personae pack check characters/old-marta"


def test_the_file_teaches_its_form(pack: Pack) -> None:
    pack("new", "marta", "--persona", "You are Marta.")
    text = Path("characters/marta/character.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema ../character.schema.json\n")
    assert '# greeting = "' in text
    uncommented = "\n".join(
        line.removeprefix("# ") if line.startswith(("# [", "# ")) and ("=" in line or "[[" in line) else line for line in text.splitlines()
    )
    shown = tomllib.loads(uncommented)
    assert {"greeting", "fallback", "examples", "lore"} <= shown.keys()


def test_two_lines_show_the_form_of_lines(pack: Pack) -> None:
    pack("new", "marta", "--persona", "You are Marta.", "--greeting", "Herein!")
    lines = Path("characters/marta/lines.jsonl").read_text(encoding="utf-8").splitlines()
    first, second = map(json.loads, lines)
    assert first["reply"] == "Herein!"
    assert set(second) == {"player", "reply"}


def test_a_pack_is_not_warned_of_for_the_lines_that_came_with_it(pack: Pack, here: Path) -> None:
    pack("new", "marta", "--persona", "You are Marta.")
    assert "lines.jsonl" not in pack("check", "characters/marta", "--model", "none").out


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_what_is_missing_is_said_by_name_where_nobody_can_be_asked(pack: Pack, here: Path, yes: tuple[str, ...]) -> None:
    ended = pack("new", "marta", *yes)
    assert ended.code == 4
    assert "--persona is missing" in ended.error
    assert os.listdir(here) == []


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "_note", "", "a\\b", "con"])
def test_a_name_that_no_folder_can_have_is_refused_with_one_that_can(pack: Pack, here: Path, name: str) -> None:
    ended = pack("new", name, "--persona", "You are Marta.")
    assert ended.code == 4
    assert "Call it '" in ended.error
    assert not list(here.rglob("character.toml"))


def test_a_folder_that_is_there_is_left_as_it_is(pack: Pack, write: Write) -> None:
    folder = write()
    before = (folder / "character.toml").read_bytes()
    ended = pack("new", "marta", "--persona", "You are another.")
    assert ended.code == 4
    assert "There is a pack 'marta'" in ended.error
    assert (folder / "character.toml").read_bytes() == before
    assert os.listdir(folder) == ["character.toml"]


def test_an_option_that_the_form_refuses_is_named(pack: Pack, here: Path) -> None:
    ended = pack("new", "marta", "--persona", "You are Marta.", "--author", "x" * 300)
    assert ended.code == 4
    assert "--author" in ended.error
    assert os.listdir(here) == []


def test_schema_is_found_from_the_pack_wherever_packs_are(pack: Pack, here: Path) -> None:
    (here / "game" / "npcs").mkdir(parents=True)
    (here / "game" / "npcs" / "character.schema.json").write_text("{}")
    ended = pack("new", "marta", "--persona", "You are Marta.", "--into", "game/npcs")
    assert "personae pack schema" not in ended.out
    text = (here / "game/npcs/marta/character.toml").read_text(encoding="utf-8")
    assert (here / "game/npcs/marta" / text.splitlines()[0].split()[1]).resolve().exists()


@pytest.mark.parametrize(("pack_name", "shown"), [("old-marta", "Old Marta"), ("UNIT_7", "UNIT 7"), ("marta", "Marta"), ("été", "Été")])
def test_name_that_players_see_is_made_of_the_folders(pack_name: str, shown: str) -> None:
    assert display_name(pack_name) == shown


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_questions_make_the_same_pack(here: Path) -> None:
    with on_terminal("pack", "new", "marta", "--author", "me") as terminal:
        for asked, answer in (
            ("name [Marta]: ", ""),
            ("persona: ", "You are Márta."),
            ("style: ", "Warm."),
            ("greeting: ", ""),
            ("licence: ", "MIT"),
        ):
            terminal.read_until(asked)
            terminal.type(answer + "\n")
        code, shown = terminal.wait()
    assert code == 0
    assert "Left out: greeting." in shown
    assert "author:" not in shown
    character, _ = examine_pack(here / "characters" / "marta")
    assert character is not None
    assert (character.name, character.persona, character.licence, character.author) == ("Marta", "You are Márta.", "MIT", "me")


def test_an_answer_that_cannot_be_is_asked_for_again(here: Path) -> None:
    with on_terminal("pack", "new", "marta") as terminal:
        terminal.read_until("name [Marta]: ")
        terminal.type("x" * 100 + "\n")
        terminal.read_until("80")
        terminal.read_until("name [Marta]: ")
        terminal.type("\n")
        terminal.read_until("persona: ")
        terminal.type("\n")
        terminal.read_until("cannot be left out")
        terminal.read_until("persona: ")
        terminal.type("You are Marta.\n")
        for asked in ("style: ", "greeting: ", "licence: ", "author: "):
            terminal.read_until(asked)
            terminal.type("\n")
        assert terminal.wait()[0] == 0


def test_leaving_in_the_middle_leaves_nothing_behind(here: Path) -> None:
    with on_terminal("pack", "new", "marta") as terminal:
        terminal.read_until("name [Marta]: ")
        terminal.type("\n")
        terminal.read_until("persona: ")
        terminal.interrupt_until("Nothing was written.")
        terminal.wait()
    assert os.listdir(here) == []


def test_the_end_of_input_leaves_nothing_behind_and_says_so(here: Path) -> None:
    with on_terminal("pack", "new", "marta") as terminal:
        terminal.read_until("name [Marta]: ")
        terminal.type("\x04")
        code, shown = terminal.wait()
    assert code == 4
    assert "nothing was written" in shown
    assert os.listdir(here) == []


def test_yes_asks_nothing_on_a_terminal_either(here: Path) -> None:
    with on_terminal("pack", "new", "marta", "--yes") as terminal:
        code, shown = terminal.wait()
    assert code == 4
    assert "--persona is missing" in shown
