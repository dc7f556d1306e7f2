"""The state folder: what lies on disk is the last that was kept, whatever was interrupted, damaged or missing."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from personae.errors import AskedWrong, WorldFailed
from personae.prompt import Line
from personae.service import sealed
from personae.service.npcs import Npc
from personae.service.state import StateFolder, file_of
from personae.types import NpcId


def npc(name: str = "guard", *lines: str) -> Npc:
    return Npc(NpcId(name), "guard", "Guard", "Player", 400, lines=[Line("Player", line, False) for line in lines])


def written(npc: Npc) -> dict:
    return {"id": npc.id, "lines": [line.text for line in npc.lines]}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], StateFolder]]:
    """Open the folder; the one that was open before is closed, as by a service that has ended."""
    folders: list[StateFolder] = []

    def open_again() -> StateFolder:
        for folder in folders:
            folder.close()
        folders.append(StateFolder(tmp_path / "state"))
        folders[-1].author = written
        return folders[-1]

    yield open_again
    for folder in folders:
        folder.close()


def loaded(folder: StateFolder) -> dict[str, list[str]]:
    return {kept.document["id"]: kept.document["lines"] for kept in folder.load()}


def path_of(folder: StateFolder, name: str = "guard") -> str:
    return str(folder.path / "npcs" / f"{file_of(name)}.json")


# --- NPCs ---------------------------------------------------------------------------------------------------------------


def test_what_was_kept_last_is_there_again(opened) -> None:
    folder = opened()
    folder.keep(npc("guard", "Halt!"))
    folder.keep(npc("cook"))
    folder.keep(npc("guard", "Halt!", "Who goes there?"))
    assert loaded(opened()) == {"guard": ["Halt!", "Who goes there?"], "cook": []}


def test_file_of_an_npc_is_json_that_any_tool_reads(opened) -> None:
    folder = opened()
    folder.keep(npc("guard", "Grüße, 旅人."))
    document = json.loads(Path(path_of(folder)).read_bytes())
    assert document.pop("sha256")
    assert document == {"id": "guard", "lines": ["Grüße, 旅人."]}


def test_text_that_has_no_utf_8_is_kept_as_far_as_it_has(opened) -> None:
    opened().keep(npc("guard", "Halt\ud800!", "Grüße"))
    assert loaded(opened()) == {"guard": ["Halt?!", "Grüße"]}


def test_forgotten_npc_is_gone_in_every_version(opened) -> None:
    folder = opened()
    for _ in range(3):
        folder.keep(npc())
    folder.forget("guard")
    assert os.listdir(folder.path / "npcs") == []
    folder.forget("guard")
    assert loaded(opened()) == {}


@pytest.mark.parametrize(
    "names", [("Guard", "guard", "GUARD"), ("a/b", "a:b", "a\\b"), ("é", "é", "e"), ("..", ".", "con"), ("x" * 128, "x" * 127)]
)
def test_any_names_lie_side_by_side_where_upper_and_lower_case_are_one(opened, names) -> None:
    folder = opened()
    for name in names:
        folder.keep(npc(name, name))
    files = os.listdir(folder.path / "npcs")
    assert len({file.casefold() for file in files}) == len(names)
    assert all(file.isascii() and len(file) < 80 for file in files)
    assert loaded(opened()) == {name: [name] for name in names}


def killed_before(call: str, monkeypatch: pytest.MonkeyPatch, n_calls: int = 1) -> None:
    """The process is gone in place of the n-th such call."""
    real, left = getattr(os, call), [n_calls]

    def die(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, die)


@pytest.mark.parametrize("n_calls", [1, 2])
def test_killed_between_any_two_moves_of_a_replacement_leaves_the_last_that_was_kept(opened, monkeypatch, n_calls) -> None:
    folder = opened()
    folder.keep(npc("guard", "one"))
    folder.keep(npc("guard", "one", "two"))
    with monkeypatch.context() as patch:
        killed_before("replace", patch, n_calls)
        with pytest.raises(KeyboardInterrupt):
            folder.keep(npc("guard", "one", "two", "three"))
    folder = opened()
    assert loaded(folder) == {"guard": ["one", "two"]}
    folder.keep(npc("guard", "one", "two", "four"))
    assert loaded(opened()) == {"guard": ["one", "two", "four"]}


@pytest.mark.parametrize("n_calls", [1, 2, 3])
def test_killed_while_it_forgets_leaves_the_newest_or_nothing(opened, monkeypatch, n_calls) -> None:
    folder = opened()
    folder.keep(npc("guard", "old"))
    folder.keep(npc("guard", "new"))
    with monkeypatch.context() as patch:
        killed_before("unlink", patch, n_calls)
        with pytest.raises(KeyboardInterrupt):
            folder.forget("guard")
    assert loaded(opened()) == {"guard": ["new"]}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"sha256":"', b"\x00" * 400, b"[" * 100_000])
def test_damaged_file_gives_way_to_the_version_before_and_the_log_says_so(opened, caplog, damage) -> None:
    folder = opened()
    folder.keep(npc("guard", "one"))
    folder.keep(npc("guard", "one", "two"))
    path = path_of(folder)
    Path(path).write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        folder = opened()
        assert loaded(folder) == {"guard": ["one"]}
    assert path in caplog.text
    assert "checksum" in caplog.text
    assert Path(path + sealed.DAMAGED).read_bytes() == damage
    folder.keep(npc("guard", "one", "three"))
    assert loaded(opened()) == {"guard": ["one", "three"]}


def test_one_bit_that_flipped_is_noticed(opened) -> None:
    folder = opened()
    folder.keep(npc("guard", "one"))
    folder.keep(npc("guard", "two"))
    raw = bytearray(Path(path_of(folder)).read_bytes())
    raw[-6] ^= 1
    Path(path_of(folder)).write_bytes(raw)
    assert loaded(opened()) == {"guard": ["one"]}


def test_npc_whose_every_version_is_damaged_is_told_of_and_stays_on_disk(opened, caplog) -> None:
    folder = opened()
    folder.keep(npc("cook"))
    for _ in range(2):
        folder.keep(npc())
    for name in (path_of(folder), path_of(folder) + sealed.PREVIOUS):
        Path(name).write_bytes(b"rust")
    for _ in range(2):  # it is told of at every start
        caplog.clear()
        folder = opened()
        assert loaded(folder) == {"cook": []}
        assert path_of(folder) in caplog.text
        (shelved,) = folder.statistics()["shelved"]
        assert "checksum" in shelved["reason"]
    folder.keep(npc("guard", "anew"))
    assert Path(path_of(folder) + ".shelved").read_bytes() == b"rust"
    assert loaded(folder) == {"guard": ["anew"], "cook": []}


def test_shelved_npc_survives_another_of_its_name_and_is_back_when_the_name_is_free(opened) -> None:
    folder = opened()
    for _ in range(2):
        folder.keep(npc("guard", "the old one"))
    folder = opened()
    (kept,) = folder.load()
    folder.shelve(kept.file, "its pack is gone")
    for _ in range(3):
        folder.keep(npc("guard", "the new one"))
    folder = opened()
    assert loaded(folder) == {"guard": ["the new one"]}
    folder.forget("guard")
    assert loaded(opened()) == {"guard": ["the old one"]}


def test_full_disk_costs_neither_the_version_that_is_there_nor_room(opened, monkeypatch) -> None:
    folder = opened()
    folder.keep(npc("guard", "one"))

    def full(path: str, raw: bytes, *, sync: bool) -> None:
        Path(path).write_bytes(raw[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sealed, "_put", full)
        with pytest.raises(WorldFailed, match="'guard' could not be kept: No space left") as failure:
            folder.keep(npc("guard", "two"))
    assert failure.value.code == "state_unusable"
    assert "No space left" in folder.statistics()["last_failure"]
    assert os.listdir(folder.path / "npcs") == [f"{file_of('guard')}.json"]
    assert loaded(opened()) == {"guard": ["one"]}


def test_statistics_count_what_is_kept(opened) -> None:
    folder = opened()
    for name in ("guard", "cook", "guard"):
        folder.keep(npc(name))
    folder.forget("cook")
    assert folder.statistics() == {"folder": str(folder.path), "npcs": 1, "shelved": [], "last_failure": ""}


# --- the folder ----------------------------------------------------------------------------------------------------------


def test_folder_belongs_to_one_service_at_a_time(opened) -> None:
    folder = opened()
    with pytest.raises(AskedWrong, match=f"process {os.getpid()}") as refusal:
        StateFolder(folder.path)
    assert refusal.value.code == "state_in_use"
    assert str(folder.path) in refusal.value.message
    folder.close()
    StateFolder(folder.path).close()


def test_lock_of_a_process_that_was_killed_holds_nobody_up(tmp_path) -> None:
    code = "import sys; from pathlib import Path; from personae.service.state import StateFolder; "
    code += "folder = StateFolder(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline().strip() == b"open"
        with pytest.raises(AskedWrong, match=str(holder.pid)):
            StateFolder(tmp_path)
        holder.kill()
        holder.wait()
        StateFolder(tmp_path).close()


def test_folder_that_cannot_be_made_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AskedWrong, match="file") as refusal:
        StateFolder(tmp_path / "file")
    assert refusal.value.code == "state_unusable"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_refused_by_name(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AskedWrong) as refusal:
        StateFolder(tmp_path / "state")
    tmp_path.chmod(0o700)
    assert refusal.value.code == "state_unusable"


# --- named saves -----------------------------------------------------------------------------------------------------------


def test_save_is_there_under_its_name_and_a_later_one_takes_its_place(opened) -> None:
    folder = opened()
    folder.write_save("before-the-dragon", {"npcs": []})
    folder.write_save("before-the-dragon", {"npcs": [{"npc": "guard"}]})
    folder = opened()
    assert folder.read_save("before-the-dragon")["npcs"] == [{"npc": "guard"}]
    assert folder.saves() == ["before-the-dragon"]
    assert loaded(folder) == {}


def test_unknown_save_is_refused_with_those_there_are(opened) -> None:
    folder = opened()
    folder.write_save("slot.1", {})
    with pytest.raises(AskedWrong) as refusal:
        folder.read_save("slot")
    assert refusal.value.code == "unknown_save"
    assert "slot.1" in refusal.value.hint


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "ü", "x" * 129, "a\n", "a\x00"])
def test_name_that_could_leave_the_folder_is_refused(opened, name) -> None:
    folder = opened()
    for act in (lambda: folder.write_save(name, {}), lambda: folder.read_save(name), lambda: folder.kv_file(name, "guard")):
        with pytest.raises(AskedWrong) as refusal:
            act()
        assert refusal.value.code == "bad_request"


def test_damaged_save_gives_way_to_the_one_before_and_without_one_is_refused(opened, caplog) -> None:
    folder = opened()
    for number in (1, 2):
        folder.write_save("slot", {"number": number})
    path = folder.path / "saves" / "slot.json"
    path.write_bytes(b"rust")
    assert folder.read_save("slot")["number"] == 1
    assert "previous version" in caplog.text
    for version in (path, Path(str(path) + sealed.PREVIOUS)):
        version.write_bytes(b"rust")
    with pytest.raises(AskedWrong, match="checksum") as refusal:
        folder.read_save("slot")
    assert refusal.value.code == "bad_save"


def test_kv_lies_beside_its_save_and_goes_when_a_later_one_does_not_name_it(opened) -> None:
    folder = opened()
    blobs = {name: folder.kv_file("slot", name) for name in ("guard", "Guard")}
    for blob in blobs.values():
        blob.write_bytes(b"kv")
    other = folder.kv_file("other", "guard")
    other.write_bytes(b"kv")
    folder.write_save("slot", {"npcs": [{"npc": "guard", "kv": {"file": blobs["guard"].name, "tokens": 3}}, {"npc": "Guard"}]})
    assert [blob.exists() for blob in (blobs["guard"], blobs["Guard"], other)] == [True, False, True]
    assert blobs["guard"].parent == folder.path / "saves" / "slot.kv"


def test_shelved_npcs_of_one_name_all_survive_and_are_back_one_by_one(opened) -> None:
    for text in ("first", "second", "third"):
        folder = opened()
        for kept in folder.load():
            folder.shelve(kept.file, "its pack is gone")
        folder.keep(npc("guard", text))
    for text in ("third", "second", "first"):
        folder = opened()
        assert loaded(folder) == {"guard": [text]}
        folder.forget("guard")
    assert loaded(opened()) == {}
