"""Where packs are, what they are called, and how one state of a pack is told from another without reading it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from personae.packs.loader import examine_pack, pack_id, pack_paths, snapshot
from personae.packs.pack_files import MAX_ENTRIES
from tests.packs.conftest import WritePack

SMALL = 'name = "Marta"\npersona = "You are Marta."\n'
VOICED = SMALL + '[adapter]\nfile = "voice.gguf"\n'


def test_paths_are_those_of_folders_and_archives_that_are_not_hidden(tmp_path: Path) -> None:
    for name in ("b", ".git", "_old", "d.persona"):
        (tmp_path / name).mkdir()
    for name in ("a.persona", "C.PERSONA", ".x.persona", "_y.persona", "notes.txt", "e.persona.part"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in pack_paths(tmp_path)] == ["C.PERSONA", "a.persona", "b", "d.persona"]
    with pytest.raises(OSError, match="nowhere"):
        pack_paths(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "said"), [("marta", "marta"), ("marta.persona", "marta"), ("m.PERSONA", "m"), ("cafe\u0301", "caf\u00e9")]
)
def test_id_is_the_name_without_its_ending_in_one_spelling(name: str, said: str) -> None:
    assert pack_id(Path("somewhere") / name) == said


def test_snapshot_changes_with_every_file_and_only_then(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(VOICED, voice=adapter_bytes)
    seen = [snapshot(folder)]
    assert snapshot(folder) == seen[0]
    for change in (
        lambda: (folder / "deep" / "deeper").mkdir(parents=True),
        lambda: (folder / "deep" / "deeper" / "lore.toml").write_text("x"),
        lambda: (folder / "voice.gguf").write_bytes(b""),
        lambda: (folder / "voice.gguf").unlink(),
    ):
        change()
        seen.append(snapshot(folder))
    assert seen[1] == seen[0]  # a folder with nothing in it is nothing
    assert len(set(seen)) == 4
    (folder / ".character.toml.swp").write_text("an editor at work")
    assert snapshot(folder) == seen[-1]


def test_snapshot_tells_what_was_written_anew_and_given_its_old_date(write_pack: WritePack) -> None:
    manifest = write_pack(SMALL) / "character.toml"
    first, seen = snapshot(manifest.parent), manifest.stat()
    manifest.write_text(SMALL.replace("You are", "This is"))
    os.utime(manifest, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert manifest.stat().st_size == seen.st_size
    assert snapshot(manifest.parent) != first


def test_snapshot_of_an_archive_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.persona"
    assert snapshot(path) is None
    path.write_bytes(b"one")
    first = snapshot(path)
    path.write_bytes(b"other")
    assert first is not None
    assert snapshot(path) not in (None, first)


def test_snapshot_of_a_folder_full_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 5):
        (tmp_path / f"{number}.txt").write_bytes(b"")
    found = snapshot(tmp_path)
    assert found is not None
    assert len(found) == MAX_ENTRIES
    (tmp_path / "character.toml").write_text(SMALL)
    character, (problem,) = examine_pack(tmp_path)
    assert character is None
    assert "more than 1000" in problem.problem


def test_snapshot_does_not_mind_links_to_nowhere(write_pack: WritePack) -> None:
    folder = write_pack(SMALL)
    (folder / "lost").symlink_to("nowhere")
    assert snapshot(folder) is not None
