"""`personae pack build`: the same pack is the same bytes, and an archive holds what the folder holds and nothing else."""

from __future__ import annotations

import os
import unicodedata
import zipfile
from pathlib import Path

import pytest

from personae.packs.loader import load_character
from tests.cli.pack.conftest import GOOD, Pack, Write

FILES = {"lore/town.toml": b'[[lore]]\ntext = "A town."\n', "README.md": b"hello", "lines.jsonl": b""}
MORE = 'lore_files = ["lore/town.toml"]\n'


def test_archive_is_the_character_that_the_folder_is(pack: Pack, write: Write) -> None:
    folder = write(MORE, files=FILES)
    ended = pack("build", folder)
    assert (ended.code, ended.error) == (0, "")
    assert "Built marta.persona: 4 files" in ended.out
    built, was = load_character(Path("marta.persona")), load_character(folder)
    assert (built.id, built.persona, built.lore, built.content_hash) == (was.id, was.persona, was.lore, was.content_hash)


def test_the_same_files_give_the_same_bytes_whenever_and_in_whatever_order_they_were_written(pack: Pack, write: Write) -> None:
    first = write(MORE, files=FILES)
    second = write(MORE, name="other", files=dict(reversed(FILES.items())))
    for path in second.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700)
    pack("build", first, "-o", "one.persona")
    pack("build", second, "-o", "two.persona")
    assert Path("one.persona").read_bytes() == Path("two.persona").read_bytes()


def test_what_is_hidden_or_junk_stays_behind_and_is_named(pack: Pack, write: Write) -> None:
    ended = pack("build", write(files={".DS_Store": b"", "Thumbs.db": b"", ".git/config": b"", "character.toml~": b""}))
    with zipfile.ZipFile("marta.persona") as archive:
        assert archive.namelist() == ["character.toml"]
    assert "Left out, as they are no part of the character: .DS_Store, .git, Thumbs.db, character.toml~." in ended.words


def test_a_link_that_leads_out_is_not_followed(pack: Pack, write: Write, here: Path) -> None:
    (here / "secret").write_text("secret")
    folder = write()
    (folder / "link.txt").symlink_to(here / "secret")
    pack("build", folder)
    with zipfile.ZipFile("marta.persona") as archive:
        assert archive.namelist() == ["character.toml"]


def test_names_are_stored_composed(pack: Pack, write: Write) -> None:
    pack("build", write(files={unicodedata.normalize("NFD", "é.txt"): b"x"}))
    with zipfile.ZipFile("marta.persona") as archive:
        assert unicodedata.normalize("NFC", "é.txt") in archive.namelist()


def test_errors_are_shown_and_nothing_is_written(pack: Pack, write: Write, here: Path) -> None:
    Path("marta.persona").write_bytes(b"the last good one")
    ended = pack("build", write(head="name = 3\n"))
    assert ended.code == 4
    assert "character.toml: persona" in ended.out
    assert "has 2 errors" in ended.error
    assert Path("marta.persona").read_bytes() == b"the last good one"
    assert sorted(os.listdir(here)) == ["characters", "marta.persona"]


def test_warnings_are_counted_and_do_not_keep_it_from_being_built(pack: Pack, write: Write) -> None:
    ended = pack("build", write(head=GOOD.replace("licence", "# licence")))
    assert ended.code == 0
    assert "1 warning: personae pack check" in ended.out


def test_an_archive_beside_its_folder_is_warned_of(pack: Pack, write: Write) -> None:
    ended = pack("build", write(), "-o", "characters/marta.persona")
    assert ended.code == 0
    assert "a service plays one of them" in ended.words


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("characters/nobody",), "is no folder"),
        (("characters/marta", "-o", "marta.zip"), "does not end in .persona"),
        (("characters/marta", "-o", "characters/marta/x.persona"), "lies in the pack itself"),
        (("characters/marta", "-o", "characters/marta/character.toml/x.persona"), "lies in the pack itself"),
        (("characters/marta", "-o", "file/x.persona"), "cannot be written"),
    ],
)
def test_what_cannot_be_built_ends_with_4(pack: Pack, write: Write, arguments: tuple[str, ...], told: str) -> None:
    write()
    Path("file").write_text("")
    ended = pack("build", *arguments)
    assert ended.code == 4
    assert told in ended.error


def test_the_built_archive_imports_again_as_the_folder_it_was(pack: Pack, write: Write) -> None:
    folder = write("# a comment that stays\n" + MORE, files=FILES)
    pack("build", folder)
    assert pack("import", "marta.persona", "--into", "elsewhere").code == 0
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {str(path.relative_to("elsewhere/marta")) for path in Path("elsewhere/marta").rglob("*") if path.is_file()}
    for name in names:
        assert (folder / name).read_bytes() == (Path("elsewhere/marta") / name).read_bytes()
