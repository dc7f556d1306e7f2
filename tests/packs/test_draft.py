"""A pack appears whole or not at all, where it was meant to and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from personae.errors import AskedWrong, WorldFailed
from personae.packs import draft as drafts
from personae.packs.draft import MAX_FILES, PackDraft, folder_name, write_pack
from personae.packs.loader import examine_pack

TABLE = {"manifest": 1, "name": "Mira", "persona": "You are Mira.\nYou guard the gate."}


def mira(**changes: Any) -> PackDraft:
    return PackDraft(**{"name": "mira", "manifest": dict(TABLE), "files": {"notes/a.txt": b"a"}, **changes})


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_written_is_a_pack_that_loads(tmp_path: Path) -> None:
    (tmp_path / "source.bin").write_bytes(b"copied")
    pack = write_pack(mira(files={"notes/a.txt": b"a", "b.bin": tmp_path / "source.bin"}), tmp_path / "characters")
    assert pack == tmp_path / "characters" / "mira"
    character, problems = examine_pack(pack)
    assert character is not None, problems
    assert (character.name, character.persona) == ("Mira", TABLE["persona"])
    assert everything(tmp_path / "characters") == ["mira/b.bin", "mira/character.toml", "mira/notes/a.txt"]
    assert (pack / "b.bin").read_bytes() == b"copied"


@pytest.mark.parametrize("there", ["mira", "mira.persona"])
def test_a_pack_of_that_name_is_refused_and_left_alone(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_bytes(b"precious")
    with pytest.raises(AskedWrong) as fault:
        write_pack(mira(), tmp_path)
    assert fault.value.code == "pack_exists"
    assert everything(tmp_path) == [there]


def test_replacing_puts_the_new_one_whole_in_the_place_of_the_old(tmp_path: Path) -> None:
    write_pack(mira(files={"old.txt": b"old"}), tmp_path)
    (tmp_path / "mira.persona").write_bytes(b"an archive of the same name")
    write_pack(mira(files={"new.txt": b"new"}), tmp_path, replace=True)
    assert everything(tmp_path) == ["mira/character.toml", "mira/new.txt"]
    assert os.listdir(tmp_path) == ["mira"]


def test_replacing_a_link_takes_the_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep.txt").write_bytes(b"keep")
    (tmp_path / "characters").mkdir()
    (tmp_path / "characters" / "mira").symlink_to(elsewhere)
    write_pack(mira(), tmp_path / "characters", replace=True)
    assert everything(elsewhere) == ["keep.txt"]
    assert not (tmp_path / "characters" / "mira").is_symlink()


def test_a_failure_on_the_way_leaves_the_old_pack_and_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pack(mira(files={"old.txt": b"old"}), tmp_path)
    with pytest.raises(WorldFailed) as fault:
        write_pack(mira(files={"gone.bin": tmp_path / "no such file"}), tmp_path, replace=True)
    assert fault.value.code == "pack_unwritable"
    rename = os.rename

    def failing(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "mira" and ".new-" in str(source):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(drafts.os, "rename", failing)
    with pytest.raises(WorldFailed, match="No space left"):
        write_pack(mira(), tmp_path, replace=True)
    assert everything(tmp_path) == ["mira/character.toml", "mira/old.txt"]
    assert os.listdir(tmp_path) == ["mira"]


def test_a_failure_on_the_way_leaves_no_folder_that_was_not_there(tmp_path: Path) -> None:
    with pytest.raises(WorldFailed):
        write_pack(mira(files={"gone.bin": tmp_path / "no such file"}), tmp_path / "characters")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [("a.png", "A.PNG"), ("é", "e\u0301"), ("a", "a."), ("a/b", "a"), ("a", "a/b"), ("A/b", "a"), ("Straße", "strasse"), ("x./b", "X/B")],
)
def test_files_that_some_system_takes_for_one_are_refused(tmp_path: Path, first: str, second: str) -> None:
    with pytest.raises(AskedWrong, match="another has that name already"):
        write_pack(mira(files={first: b"x", second: b"y"}), tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WorldFailed) as fault:
        write_pack(mira(), tmp_path / "file")
    assert fault.value.code == "pack_unwritable"


FILES = [
    "../x",
    "/x",
    "a/../../x",
    "a\\b",
    "c:x",
    "",
    ".hidden",
    "a/.b/c",
    "con",
    "a/NUL.txt",
    "character.toml",
    "Character.TOML",
    "a//b",
    "a\0b",
    "character.toml/x",
    "character.toml.",
    "龍" * 86,  # three bytes each
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_would_lie_outside_or_stand_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AskedWrong) as fault:
        write_pack(mira(files={name: b"x"}), tmp_path / "characters")
    assert fault.value.code == "pack_invalid"
    assert not (tmp_path / "characters").exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/x", ".x", "_x", "a\\b", "con", "Aux.persona", "a\0", " a", "a.", "n" * 65]
)
def test_a_pack_name_that_is_a_path_or_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AskedWrong) as fault:
        write_pack(mira(name=name), tmp_path / "characters")
    assert fault.value.code == "pack_invalid"
    assert os.listdir(tmp_path) == []


def test_too_many_files_and_a_manifest_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for broken in (mira(files={f"{n}/{n}.txt": b"" for n in range(MAX_FILES // 2 + 1)}), mira(manifest={"name": None})):
        with pytest.raises(AskedWrong) as fault:
            write_pack(broken, tmp_path)
        assert fault.value.code == "pack_invalid"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("Captain Redbeard", "captain-redbeard"),
        ("Unit 7", "unit-7"),
        ("../../x", "x"),
        ("con", "con-character"),
        ("LPT1", "lpt1-character"),
        ("n" * 300, "n" * 48),
        ("\u202egnp.exe", "gnp-exe"),
        ("Zoë  O'Brien", "zoë-o-brien"),
        ("Капитан", "капитан"),
        ("अधिकारी", "अधिकारी"),
        ("_hidden", "hidden"),
        ("...", "character"),
        ("", "character"),
        ("🐉", "character"),
        ("Ｆｕｌｌ", "full"),
    ],
)
def test_a_folder_is_called_after_the_character_in_a_plain_way(name: str, folder: str) -> None:
    assert folder_name(name) == folder
    assert folder_name(folder) == folder
