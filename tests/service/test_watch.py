"""The thread that watches a folder of packs: a real folder, real events, and whatever people and programs do to it."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from personae.errors import AskedWrong
from personae.packs.character import AdapterFile
from personae.service import inspection
from personae.service.inspection import PackSeen, look_at, packs_in, prints_of
from personae.service.settling import Patience
from personae.service.watch import Pace, Watcher
from personae.types import AdapterKey, AdapterSource
from tests.service.house import PATIENCE_MS, SWIFT, write_manifest, write_pack
from tests.tiny import write_adapter, write_model

PATIENCE_S = PATIENCE_MS / 1000
DEAF = Pace(SWIFT.patience, rescan_ms=50.0, hears=False)
PATIENT = Pace(Patience(60.0, 60_000.0, 60_000.0), rescan_ms=60_000.0)  # with what looks half copied or gone
QUIET_S = 0.4  # longer than SWIFT takes to tell of anything but what it holds


class Adapters:
    """What was read, and what is told of the next look at a file."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.kept: list[str] = []
        self.faults: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def source(self, file: AdapterFile) -> AdapterSource:
        self.read.append(file.file)
        if not self.faults.empty():
            raise self.faults.get()
        return AdapterSource(AdapterKey(file.file), file.file)

    def retain(self, files: object) -> None:
        self.kept = sorted(f"{file.pack.name}/{file.file}" for file in files)


class Watch:
    """A watcher, and what it has told."""

    def __init__(self, root: Path, pace: Pace, *, watches: bool = True) -> None:
        self.adapters = Adapters()
        self._bell = threading.Event()
        self.watcher = Watcher(root, self.adapters, self._bell.set, pace=pace, watches=watches)
        packs = packs_in(root) if root.is_dir() else {}
        known = [look_at(pack, paths, None) for pack, paths in packs.items()]
        self.watcher.start(prints_of(packs), [seen.character for seen in known if seen.character is not None])

    def next(self) -> PackSeen:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (seen := self.watcher.take()) is not None:
                return seen
            self._bell.wait(0.1)
            self._bell.clear()
        raise AssertionError("nothing was told")

    def is_silent(self) -> bool:
        """Nothing is told for a while."""
        self._bell.wait(QUIET_S)
        return not self.watcher.has_news


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "characters"
    write_pack(folder, "guard")
    return folder


@pytest.fixture
def watch(root: Path) -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def start(pace: Pace = SWIFT, **options: bool) -> Watch:
        watches.append(Watch(root, pace, **options))
        return watches[-1]

    yield start
    for one in watches:
        one.watcher.close()
        assert not one.watcher.is_watching


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


@pytest.mark.parametrize("pace", [SWIFT, DEAF], ids=["by events", "where none come"])
def test_packs_that_come_change_and_go_are_told(watch, root, pace) -> None:
    told = watch(pace)
    write_pack(root, "bard")
    assert (seen := told.next()).pack == "bard"
    assert seen.character is not None
    write_manifest(root / "bard", persona='"You are somebody else."')
    assert told.next().character.persona == "You are somebody else."
    shutil.rmtree(root / "bard")
    assert told.next() == PackSeen("bard", None, is_there=False)


def test_nothing_is_told_of_what_was_there_at_the_start(watch) -> None:
    assert watch().is_silent()


def test_file_deep_in_a_pack_that_came_later_is_heard(watch, root) -> None:
    told = watch()
    (root / "guard" / "lore").mkdir()
    (root / "guard" / "lore" / "old.toml").write_text("")
    told.next()
    (root / "guard" / "lore" / "old.toml").write_text("# another")
    assert told.next().pack == "guard"


def test_pack_that_is_copied_file_by_file_is_told_when_it_is_whole(watch, root, tmp_path) -> None:
    model = write_model(tmp_path / "tiny.gguf")
    write_adapter(tmp_path / "voice.gguf", model)
    content = (tmp_path / "voice.gguf").read_bytes()
    told = watch(PATIENT)
    write_pack(root, "bard", adapter='{ file = "voice.gguf" }')
    assert told.is_silent()
    (root / "bard" / "voice.gguf").write_bytes(content[: len(content) // 2])
    assert told.is_silent()
    (root / "bard" / "voice.gguf").write_bytes(content)
    seen = told.next()
    assert (seen.character is not None, seen.errors) == (True, ())
    assert told.adapters.read == ["voice.gguf"]


def test_copy_that_never_goes_on_is_told_as_it_is(watch, root, tmp_path) -> None:
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    told = watch()
    write_pack(root, "bard", adapter='{ file = "voice.gguf" }')
    (root / "bard" / "voice.gguf").write_bytes((tmp_path / "voice.gguf").read_bytes()[:200])
    seen = told.next()
    assert seen.character is None
    assert "incomplete" in seen.errors[0].problem


def test_typo_in_a_known_pack_is_told_at_once_and_its_repair_too(watch, root) -> None:
    told = watch(PATIENT)
    (root / "guard" / "character.toml").write_text('persona = "unfinished')
    assert told.next().character is None
    write_manifest(root / "guard")
    assert told.next().errors == ()


def test_file_that_is_saved_by_deleting_and_renaming_is_a_change_and_nothing_else(watch, root) -> None:
    told = watch(PATIENT)
    (root / "guard" / "character.toml").unlink()
    write_pack(root.parent, "new", persona='"You are new."')
    os.replace(root.parent / "new" / "character.toml", root / "guard" / "character.toml")
    assert told.next().character.persona == "You are new."
    assert told.is_silent()


def test_folder_that_is_swapped_by_renames_is_a_change_and_nothing_else(watch, root, tmp_path) -> None:
    told = watch(PATIENT)
    for persona in ("You are another.", "You are a third."):
        write_pack(tmp_path / persona, "guard", persona=f'"{persona}"')
        (root / "guard").rename(tmp_path / persona / "old")
        (tmp_path / persona / "guard").rename(root / "guard")
        assert told.next().character.persona == persona
    assert told.is_silent()


def test_linked_pack_is_heard_where_it_lies(watch, root, tmp_path) -> None:
    write_pack(tmp_path / "elsewhere", "bard")
    told = watch()
    (root / "bard").symlink_to(tmp_path / "elsewhere" / "bard")
    assert told.next().character is not None
    write_manifest(tmp_path / "elsewhere" / "bard", persona='"You are changed."')
    assert told.next().character.persona == "You are changed."


def test_pack_whose_adapter_changes_while_it_is_read_is_looked_at_again(watch, root, tmp_path) -> None:
    told = watch(PATIENT)
    told.adapters.faults.put(AskedWrong("adapter_changed", "It was replaced."))
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    pack = write_pack(root, "bard", adapter='{ file = "voice.gguf" }')
    shutil.copy(tmp_path / "voice.gguf", pack)
    assert told.next().character is not None
    assert told.adapters.read == ["voice.gguf"] * 2


@pytest.mark.parametrize("watches", [True, False])
def test_adapters_of_packs_that_were_there_are_read_by_and_by(watch, root, tmp_path, watches) -> None:
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    for name in ("bard", "cook"):
        shutil.copy(tmp_path / "voice.gguf", write_pack(root, name, adapter='{ file = "voice.gguf" }'))
    told = watch(watches=watches)
    wait_until(lambda: len(told.adapters.read) == 2)
    assert told.is_silent()


def test_reading_many_adapters_does_not_look_everything_over_for_each(watch, root, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    for number in range(40):
        shutil.copy(tmp_path / "voice.gguf", write_pack(root, f"bard{number:02}", adapter='{ file = "voice.gguf" }'))
    looks = []
    monkeypatch.setattr("personae.service.watch.packs_in", lambda root: looks.append(root) or packs_in(root))
    told = watch()
    wait_until(lambda: len(told.adapters.read) == 40)
    assert len(looks) < 20


def test_what_is_needed_no_more_is_forgotten_but_not_what_was_just_read(watch, root, tmp_path) -> None:
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    told = watch()
    pack = write_pack(root, "bard", adapter='{ file = "voice.gguf" }')
    shutil.copy(tmp_path / "voice.gguf", pack)
    needed = AdapterFile(tmp_path / "old", "old.gguf", 1.0, (1,), 1)
    told.next()
    told.watcher.tidy([needed])
    write_manifest(root / "guard", style='"Gruff."')
    told.next()
    wait_until(lambda: told.adapters.kept == ["bard/voice.gguf", "old/old.gguf"])


# --- what nobody should do ----------------------------------------------------------------------------------------------


def test_many_packs_at_once_are_all_told(watch, root, tmp_path) -> None:
    told = watch()
    for number in range(50):
        write_pack(root, f"extra{number:02}")
    assert sorted(told.next().pack for _ in range(50)) == [f"extra{number:02}" for number in range(50)]


def test_folder_of_packs_that_is_away_takes_nobody_along(watch, root) -> None:
    told = watch(DEAF)
    root.rename(root.with_name("away"))
    lost = told.next()
    assert (lost.pack, "cannot be read" in lost.problems[0].problem) == ("", True)
    assert told.is_silent()
    write_pack(root.with_name("away"), "bard")
    root.with_name("away").rename(root)
    assert told.next() == PackSeen("", None)
    assert told.next().pack == "bard"


def test_folder_of_packs_that_was_replaced_is_listened_to_anew(watch, root) -> None:
    told = watch(Pace(SWIFT.patience, rescan_ms=200.0))
    write_pack(root.parent / "other", "guard")
    write_pack(root.parent / "other", "bard")
    root.rename(root.with_name("old"))
    (root.parent / "other").rename(root)
    while told.next().pack != "bard":
        pass
    write_manifest(root / "bard", style='"Loud."')
    while told.next().pack != "bard":
        pass


def pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")
    os.mkfifo(root / "pipe.persona")
    (root / "odd").mkdir()
    os.mkfifo(root / "odd" / "character.toml")


def loop(root: Path) -> None:
    (root / "odd").mkdir()
    (root / "odd" / "inside").symlink_to(root / "odd")
    (root / "round").symlink_to(root / "round")
    (root / "odd" / "character.toml").symlink_to(root / "odd" / "character.toml")


def no_text(root: Path) -> None:
    name = os.fsdecode(b"\xff.txt")
    try:
        (root / "guard" / name).write_text("")
    except OSError:
        pytest.skip("the system takes no names that are no text")
    (write_pack(root, "odd", persona="3") / name).write_text("")
    write_pack(root, "odder").rename(root / os.fsdecode(b"odder\xff"))


def forbidden(root: Path) -> None:
    write_pack(root, "odd").chmod(0)


def whole_disk(root: Path) -> None:
    (root / "odd").symlink_to("/")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes that are files")
@pytest.mark.parametrize("trouble", [pipe, loop, no_text, forbidden, whole_disk])
def test_thread_lives_on_whatever_lies_in_the_folder(watch, root, trouble) -> None:
    told = watch()
    trouble(root)
    write_pack(root, "zoe")
    told_of = {}
    while "zoe" not in told_of or "odd" not in told_of:
        seen = told.next()
        told_of[seen.pack] = seen
    assert told_of["zoe"].character is not None
    if trouble is not forbidden or os.getuid() != 0:
        assert told_of["odd"].character is None
    write_manifest(root / "guard", style='"Gruff."')
    while told.next().pack != "guard":
        pass
    for path in root.glob("odd"):
        if not path.is_symlink():
            path.chmod(0o755)


def test_what_nobody_thought_of_is_that_pack_s_problem(watch, root, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = inspection.examine_pack

    def examine(path: Path, base: object = None) -> object:
        if path.name == "bard":
            raise ZeroDivisionError("well")
        return honest(path, base)

    monkeypatch.setattr(inspection, "examine_pack", examine)
    told = watch()
    write_pack(root, "bard")
    write_pack(root, "cook")
    seen = {one.pack: one for one in (told.next(), told.next())}
    assert "ZeroDivisionError" in seen["bard"].problems[0].problem
    assert seen["cook"].character is not None


def test_round_that_fails_is_followed_by_another(watch, root, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    told = watch(DEAF)
    monkeypatch.setattr("personae.service.watch.prints_of", lambda packs: 1 / 0)
    wait_until(lambda: "looked at again" in caplog.text)
    monkeypatch.undo()
    write_pack(root, "bard")
    assert told.next().pack == "bard"


def test_watch_ends_at_once_and_leaves_no_thread(watch) -> None:
    told = watch()
    began = time.monotonic()
    told.watcher.close()
    assert time.monotonic() - began < 1.0
    assert not any(thread.name == "personae-packs" for thread in threading.enumerate())


def test_idle_watch_costs_next_to_nothing(watch) -> None:
    watch()
    time.sleep(0.2)
    began = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - began < 0.1
