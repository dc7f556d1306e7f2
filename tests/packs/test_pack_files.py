"""A folder and an archive with the same files are the same pack, and neither lets anybody out of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from personae.errors import AskedWrong
from personae.packs.names import MAX_DEPTH
from personae.packs.pack_files import MAX_ENTRIES, FolderPack, PackFiles, open_pack
from personae.packs.plain_files import open_plain
from tests.packs.conftest import zipped

FILES = {"character.toml": b"persona", "voice.gguf": b"weights" * 1000, "world/town.toml": b"lore"}

MakePack = Callable[[dict[str, bytes]], PackFiles]


def refused(call: Callable[[], object]) -> str:
    """The code with which it is."""
    with pytest.raises(AskedWrong) as caught:
        call()
    assert caught.value.hint
    assert caught.value.message.isprintable()
    return caught.value.code


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(params=["folder", "archive"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakePack:
    """Opens a pack with these files, of either kind."""

    def make(files: dict[str, bytes]) -> PackFiles:
        if request.param == "folder":
            pack = open_pack(laid_out(tmp_path / "pack", files))
        else:
            (tmp_path / "pack.persona").write_bytes(zipped(files))
            pack = open_pack(tmp_path / "pack.persona")
        request.addfinalizer(pack.close)
        return pack

    return make


# --- both ---------------------------------------------------------------------------------------------------------


def test_names_and_contents_are_those_that_were_put_in(make: MakePack) -> None:
    pack = make(FILES)
    assert pack.names() == tuple(sorted(FILES))
    assert {name: pack.read(name, 10_000) for name in pack.names()} == FILES
    stream, n_bytes = pack.open("voice.gguf")
    with stream:
        assert (n_bytes, stream.read(7), stream.read(7)) == (7000, b"weights", b"weights")


def test_hidden_files_are_not_there(make: MakePack) -> None:
    pack = make({**FILES, ".DS_Store": b"x", "__MACOSX/._voice.gguf": b"x", ".git/config": b"x", "world/.swp": b"x"})
    assert pack.names() == tuple(sorted(FILES))
    assert refused(lambda: pack.read(".git/config", 10)) == "pack_file_refused"


def test_file_that_is_not_there_and_one_too_large_are_told_apart(make: MakePack) -> None:
    pack = make(FILES)
    for name in ("gone", "world", "world/gone", "voice.gguf/inside"):
        assert refused(lambda name=name: pack.open(name)) in ("pack_file_missing", "pack_file_refused")
    assert refused(lambda: pack.version("gone")) == "pack_file_missing"
    assert refused(lambda: pack.read("voice.gguf", 6999)) == "pack_file_too_large"


@pytest.mark.parametrize("name", ["../pack/voice.gguf", "/etc/passwd", "C:/x", "a\\b", "", ".", "world//town.toml", "x\0y", "\ud800"])
def test_name_that_leads_out_of_a_pack_is_refused(name: str, make: MakePack) -> None:
    pack = make(FILES)
    for call in (pack.open, pack.version):
        assert refused(lambda call=call: call(name)) == "pack_file_refused"


def test_pack_may_be_closed_twice(make: MakePack) -> None:
    with make(FILES) as pack:
        pack.close()


# --- folders ------------------------------------------------------------------------------------------------------


def test_links_out_of_a_folder_and_special_files_are_neither_listed_nor_read(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "pack", FILES)
    laid_out(tmp_path / "outside", {"secret": b"s"})
    (folder / "secret").symlink_to(tmp_path / "outside" / "secret")
    (folder / "rooms").symlink_to(tmp_path / "outside")
    (folder / "round").symlink_to("round")
    (folder / "nowhere").symlink_to("gone")
    os.mkfifo(folder / "pipe")
    with open_pack(folder) as pack:
        assert pack.names() == tuple(sorted(FILES))
        for name in ("secret", "rooms/secret", "round", "pipe", "rooms"):
            assert refused(lambda name=name: pack.read(name, 10)) == "pack_file_refused"
        assert refused(lambda: pack.read("nowhere", 10)) == "pack_file_missing"


@pytest.mark.parametrize("becomes", ["link", "pipe", "another"])
def test_what_takes_a_files_place_while_it_is_opened_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: str) -> None:
    folder = laid_out(tmp_path / "pack", FILES)
    (tmp_path / "secret").write_bytes(b"s")
    place = FolderPack.place

    def and_then_it_changes(pack: FolderPack, name: str) -> Path:
        found = place(pack, name)
        monkeypatch.setattr(FolderPack, "place", place)
        found.unlink()
        if becomes == "link":
            found.symlink_to(tmp_path / "secret")
        elif becomes == "pipe":
            os.mkfifo(found)
        else:
            os.link(tmp_path / "secret", found)
        return found

    monkeypatch.setattr(FolderPack, "place", and_then_it_changes)
    with open_pack(folder) as pack:
        if becomes == "another":  # it lies in the pack: the newer one is read
            assert pack.read("voice.gguf", 10_000) == b"s"
        else:
            assert refused(lambda: pack.read("voice.gguf", 10_000)) == "pack_file_refused"


def test_pipe_that_was_a_file_a_moment_ago_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    before = (tmp_path / "file").stat()
    monkeypatch.setattr(Path, "stat", lambda path: before)
    assert open_plain(tmp_path / "pipe") is None


def test_links_within_a_folder_are_followed_and_circles_of_folders_are_not(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "pack", FILES)
    (folder / "best.gguf").symlink_to("voice.gguf")
    (folder / "world" / "again").symlink_to(folder)
    with open_pack(folder) as pack:
        assert pack.names() == ("best.gguf", *sorted(FILES))
        assert pack.read("best.gguf", 10_000) == pack.read("world/again/voice.gguf", 10_000) == FILES["voice.gguf"]


def test_folder_that_is_itself_a_link_is_a_pack(tmp_path: Path) -> None:
    laid_out(tmp_path / "elsewhere", FILES)
    (tmp_path / "pack").symlink_to("elsewhere")
    with open_pack(tmp_path / "pack") as pack:
        assert pack.read("character.toml", 100) == b"persona"


def test_listing_of_a_folder_is_bounded_in_number_and_depth(tmp_path: Path) -> None:
    deep = "d/" * MAX_DEPTH
    folder = laid_out(tmp_path / "pack", {deep + "file": b"", deep[2:] + "file": b""})
    with open_pack(folder) as pack:
        assert pack.names() == (deep[2:] + "file",)
        for number in range(MAX_ENTRIES):
            (folder / f"{number}").write_bytes(b"")
        assert refused(pack.names) == "pack_too_many_files"


def test_version_of_a_file_changes_when_it_is_written(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "pack", FILES)
    with open_pack(folder) as pack:
        before = {name: pack.version(name) for name in FILES}
        (folder / "new").write_bytes(b"other")
        os.replace(folder / "new", folder / "voice.gguf")
        after = {name: pack.version(name) for name in FILES}
    assert [name for name in FILES if before[name] != after[name]] == ["voice.gguf"]


# --- archives -----------------------------------------------------------------------------------------------------


def test_folder_that_everything_in_an_archive_lies_in_is_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "pack.persona"
    path.write_bytes(zipped({"Marta/" + name: content for name, content in FILES.items()} | {"__MACOSX/Marta/._x": b"x"}))
    with open_pack(path) as pack:
        assert pack.names() == tuple(sorted(FILES))
        assert pack.read("world/town.toml", 10) == b"lore"


def test_spelling_of_accents_does_not_matter_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "pack.persona"
    path.write_bytes(zipped({"cafe\u0301.gguf": b"x"}))
    with open_pack(path) as pack:
        assert pack.names() == ("caf\u00e9.gguf",)
        assert pack.read("caf\u00e9.gguf", 1) == pack.read("cafe\u0301.gguf", 1) == b"x"


def test_version_of_a_file_in_an_archive_is_that_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "pack.persona"
    versions = set()
    for content in (b"one", b"other"):
        path.write_bytes(zipped({**FILES, "world/town.toml": content}))
        with open_pack(path) as pack:
            versions |= {pack.version(name) for name in FILES}
    assert len(versions) == 2


def test_what_is_no_pack_at_all_is_refused_and_left_closed(tmp_path: Path) -> None:
    assert refused(lambda: open_pack(tmp_path / "gone")) == "pack_missing"
    assert refused(lambda: open_pack(Path("nul\0byte"))) in ("pack_missing", "pack_archive")
    os.mkfifo(tmp_path / "pipe.persona")
    assert refused(lambda: open_pack(tmp_path / "pipe.persona")) == "pack_archive"
    (tmp_path / "empty.persona").write_bytes(b"")
    assert refused(lambda: open_pack(tmp_path / "empty.persona")) == "pack_incomplete"
    (tmp_path / "page.persona").write_bytes(b"<html>")
    assert refused(lambda: open_pack(tmp_path / "page.persona")) == "pack_archive"
