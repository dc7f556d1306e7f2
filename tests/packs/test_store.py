"""The store knows what an adapter's content is, reads each version once, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from personae.errors import AskedWrong
from personae.packs import store as module
from personae.packs.character import AdapterFile
from personae.packs.loader import load_character
from personae.packs.store import AdapterStore
from tests.packs.conftest import WritePack, zipped
from tests.packs.gguf_writer import gguf, lora_pairs, pair_of

MANIFEST = 'name = "Marta"\npersona = "You are Marta."\nadapter = { file = "voice.gguf", scale = 0.5 }\n'

Adapter = Callable[[], AdapterFile]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AdapterStore]:
    (tmp_path / "unpacked").mkdir()
    store = AdapterStore(tmp_path / "unpacked")
    yield store
    store.close()


def unpacked(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "unpacked").rglob("*") if path.is_file())


def archived(tmp_path: Path, adapter: bytes, name: str = "smith", more: str = "") -> AdapterFile:
    path = tmp_path / f"{name}.persona"
    path.write_bytes(zipped({"character.toml": MANIFEST + more, "voice.gguf": adapter}))
    return load_character(path).adapters[0]


def key_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with the name of each file that is read through."""
    reads: list[str] = []
    found = AdapterStore._found

    def counted(store: AdapterStore, file: AdapterFile) -> module._Held:
        reads.append(file.file)
        return found(store, file)

    monkeypatch.setattr(AdapterStore, "_found", counted)
    return reads


def test_adapter_in_a_folder_is_used_where_it_lies(
    write_pack: WritePack, adapter_bytes: bytes, store: AdapterStore, tmp_path: Path
) -> None:
    folder = write_pack(MANIFEST, voice=adapter_bytes)
    (file,) = load_character(folder).adapters
    assert store.known(file) is None
    source = store.source(file)
    assert (source.key, source.path, source.n_bytes) == (key_of(adapter_bytes), str(folder / "voice.gguf"), file.n_bytes)
    assert store.known(file) == source
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_adapter_in_an_archive_is_unpacked_under_its_key(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path) -> None:
    file = archived(tmp_path, adapter_bytes)
    source = store.source(file)
    assert source.key == key_of(adapter_bytes)
    assert Path(source.path).read_bytes() == adapter_bytes
    assert unpacked(tmp_path) == [f"{source.key}.gguf"]
    store.close()
    store.close()
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_one_content_is_one_key_and_one_copy_whatever_pack_it_is_in(
    write_pack: WritePack, adapter_bytes: bytes, store: AdapterStore, tmp_path: Path
) -> None:
    files = [archived(tmp_path, adapter_bytes, name) for name in ("smith", "baker")]
    files += load_character(write_pack(MANIFEST, voice=adapter_bytes)).adapters
    assert {store.source(file).key for file in files} == {key_of(adapter_bytes)}
    assert len(unpacked(tmp_path)) == 1


def test_version_is_read_once_whatever_the_scale(
    write_pack: WritePack, adapter_bytes: bytes, store: AdapterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(monkeypatch)
    (file,) = load_character(write_pack(MANIFEST, voice=adapter_bytes)).adapters
    assert store.source(file) == store.source(replace(file, scale=2.0)) == store.known(file)
    assert reads == ["voice.gguf"]


def test_threads_that_want_one_file_read_it_once(
    adapter_bytes: bytes, store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(monkeypatch)
    file = archived(tmp_path, adapter_bytes)
    ready = threading.Barrier(8)

    def ask() -> object:
        ready.wait(10)
        return store.source(file)

    with ThreadPoolExecutor(8) as pool:
        sources = [asked.result(10) for asked in [pool.submit(ask) for _ in range(8)]]
    assert len(set(sources)) == 1
    assert reads == ["voice.gguf"]


def test_threads_that_want_different_files_do_not_wait_for_each_other(
    adapter_bytes: bytes, store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are under way at the same moment, or the barrier breaks."""
    files = [archived(tmp_path, adapter_bytes, name) for name in ("smith", "baker")]
    meeting = threading.Barrier(2)
    found = AdapterStore._found

    def met(store: AdapterStore, file: AdapterFile) -> module._Held:
        meeting.wait(10)
        return found(store, file)

    monkeypatch.setattr(AdapterStore, "_found", met)
    with ThreadPoolExecutor(2) as pool:
        keys = {asked.result(10).key for asked in [pool.submit(store.source, file) for file in files]}
    assert keys == {key_of(adapter_bytes)}
    assert len(unpacked(tmp_path)) == 1


def refused(store: AdapterStore, file: AdapterFile) -> str:
    with pytest.raises(AskedWrong) as caught:
        store.source(file)
    assert "'voice.gguf' of pack" in caught.value.message
    assert caught.value.hint
    assert store.known(file) is None
    return caught.value.code


def test_file_that_was_replaced_or_removed_is_refused_by_name(write_pack: WritePack, adapter_bytes: bytes, store: AdapterStore) -> None:
    folder = write_pack(MANIFEST, voice=adapter_bytes)
    (file,) = load_character(folder).adapters
    (folder / "new").write_bytes(adapter_bytes)
    os.replace(folder / "new", folder / "voice.gguf")
    assert refused(store, file) == "adapter_changed"
    (folder / "voice.gguf").unlink()
    assert refused(store, file) == "adapter_missing"
    os.mkfifo(folder / "voice.gguf")
    assert refused(store, file) == "adapter_unreadable"


def test_archive_that_was_replaced_or_removed_is_refused_by_name(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path) -> None:
    file = archived(tmp_path, adapter_bytes)
    again = archived(tmp_path, adapter_bytes, more="# another word")
    assert refused(store, file) == "adapter_changed"
    assert store.source(again).key == key_of(adapter_bytes)
    file.pack.write_bytes(b"<html>")
    assert refused(store, file) == "adapter_unreadable"
    file.pack.unlink()
    assert refused(store, file) == "adapter_missing"


@pytest.mark.parametrize("is_archive", [False, True])
def test_file_that_is_replaced_while_it_is_read_is_refused(
    is_archive: bool,
    write_pack: WritePack,
    adapter_bytes: bytes,
    store: AdapterStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_pack(MANIFEST, voice=adapter_bytes)
    file = archived(tmp_path, adapter_bytes) if is_archive else load_character(folder).adapters[0]
    hashed = AdapterStore._hashed

    def replaced(*arguments: object) -> object:
        key = hashed(*arguments)  # type: ignore[arg-type]
        path = file.pack if is_archive else folder / "voice.gguf"
        (tmp_path / "new").write_bytes(path.read_bytes())
        os.replace(tmp_path / "new", path)
        return key

    monkeypatch.setattr(AdapterStore, "_hashed", replaced)
    assert refused(store, file) == "adapter_changed"
    assert unpacked(tmp_path) == []


def test_content_damaged_in_an_archive_is_refused_and_leaves_nothing(store: AdapterStore, tmp_path: Path) -> None:
    path = tmp_path / "smith.persona"
    large = gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 1024, 1024, rank=64))
    content = bytearray(zipped({"voice.gguf": large, "character.toml": MANIFEST}, method=0))
    content[len(large) - 10] ^= 1  # far behind the header
    path.write_bytes(content)
    (file,) = load_character(path).adapters
    assert refused(store, file) == "adapter_unreadable"
    assert unpacked(tmp_path) == []


def test_disk_that_is_full_is_told_and_leaves_nothing(
    adapter_bytes: bytes, store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise OSError(28, "No space left on device")

    file = archived(tmp_path, adapter_bytes)
    monkeypatch.setattr(AdapterStore, "_hashed", full)
    assert refused(store, file) == "adapter_unreadable"
    assert unpacked(tmp_path) == []


def test_copy_that_somebody_tidied_away_is_made_again(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path) -> None:
    file = archived(tmp_path, adapter_bytes)
    source = store.source(file)
    Path(source.path).unlink()
    assert store.known(file) is None
    assert store.source(file) == source
    assert Path(source.path).read_bytes() == adapter_bytes


def test_folder_that_somebody_tidied_away_is_made_again(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path) -> None:
    file = archived(tmp_path, adapter_bytes)
    source = store.source(file)
    Path(source.path).unlink()
    Path(source.path).parent.rmdir()
    assert Path(store.source(file).path).read_bytes() == adapter_bytes


def test_only_copies_that_no_pack_has_any_more_are_let_go(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path) -> None:
    other = gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 32, 32))
    smith, baker, thief = archived(tmp_path, adapter_bytes), archived(tmp_path, adapter_bytes, "baker"), archived(tmp_path, other, "thief")
    keys = [store.source(file).key for file in (smith, baker, thief)]
    store.retain([baker, thief])
    assert store.known(smith) is None
    assert unpacked(tmp_path) == sorted({f"{key}.gguf" for key in keys})
    store.retain([thief])
    assert unpacked(tmp_path) == [f"{keys[2]}.gguf"]


def test_closed_store_gives_nothing(adapter_bytes: bytes, store: AdapterStore, tmp_path: Path, write_pack: WritePack) -> None:
    files = [archived(tmp_path, adapter_bytes), *load_character(write_pack(MANIFEST, voice=adapter_bytes)).adapters]
    store.close()
    for file in files:
        with pytest.raises(AskedWrong, match="closed"):
            store.source(file)
    assert unpacked(tmp_path) == []


@pytest.mark.parametrize("is_archive", [False, True])
def test_file_that_is_being_read_is_given_up_when_the_store_is_closed(
    adapter_bytes: bytes, store: AdapterStore, tmp_path: Path, write_pack: WritePack, monkeypatch: pytest.MonkeyPatch, is_archive: bool
) -> None:
    (file,) = [archived(tmp_path, adapter_bytes)] if is_archive else load_character(write_pack(MANIFEST, voice=adapter_bytes)).adapters
    n_pieces = []

    class Digest:
        def update(self, piece: bytes) -> None:
            n_pieces.append(len(piece))
            store.close()

    monkeypatch.setattr(module, "_CHUNK", 16)
    monkeypatch.setattr(module.hashlib, "sha256", Digest)
    with pytest.raises(AskedWrong, match="closed"):
        store.source(file)
    assert n_pieces == [16]
    assert unpacked(tmp_path) == []


def test_store_without_a_folder_uses_that_of_the_system(adapter_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    store = AdapterStore()
    assert list((tmp_path / "system").iterdir()) == []  # before it is needed
    assert Path(store.source(archived(tmp_path, adapter_bytes)).path).is_relative_to(tmp_path / "system")
    store.close()
    assert list((tmp_path / "system").iterdir()) == []
