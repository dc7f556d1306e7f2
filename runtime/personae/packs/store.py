"""Where an adapter's content is, by its key. Decides when a file is read and hashed, and keeps what lies in archives unpacked.

The key is the SHA-256 of the file: packs that bring the same adapter share it in memory, whatever they call it. Finding it out costs
reading the file, which is done once for each version of it, by whoever comes first; others that want the same file wait for them, those
that want another do not. What `known` and `source` give names a file that had this content a moment ago; the engine checks it again as
it loads.

Unpacked adapters lie in a folder of the store's own, one file for each key, and go with `close`, or with `retain` when no pack has them
any more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from personae.errors import AskedWrong
from personae.packs.character import AdapterFile
from personae.packs.lora_header import MAX_ADAPTER_BYTES
from personae.packs.pack_files import FolderPack, PackFiles, open_pack
from personae.types import AdapterKey, AdapterSource

_CHUNK = 1024 * 1024

_Identity = tuple[Path, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Held:
    key: AdapterKey
    path: Path
    is_copy: bool  # in our own folder


class AdapterStore:
    """Thread-safe. `folder`: where the store may make its own folder for unpacked adapters; None: where the system keeps such things."""

    def __init__(self, folder: Path | None = None) -> None:
        self._within = folder
        self._own: Path | None = None
        self._remove_own: Callable[[], object] = lambda: None
        self._held: dict[_Identity, _Held] = {}
        self._at_work: dict[_Identity, threading.Lock] = {}
        self._books = threading.Lock()  # over the three above; never held while a file is read
        self._is_closed = False

    def known(self, file: AdapterFile) -> AdapterSource | None:
        """What `source` would give, if that needs no reading; None if it does."""
        with self._books:
            held = self._held.get(_identity(file))
        if held is None or (held.is_copy and not held.path.exists()):  # systems tidy their folder for passing things
            return None
        return AdapterSource(held.key, str(held.path), file.n_bytes)

    def source(self, file: AdapterFile) -> AdapterSource:
        """Reads the file through if need be. AskedWrong `adapter_missing`, `adapter_unreadable`, `adapter_changed`."""
        with self._alone_with(_identity(file)):
            known = self.known(file)
            if known is not None:
                return known
            held = self._booked(_identity(file), self._found(file))
        return AdapterSource(held.key, str(held.path), file.n_bytes)

    def retain(self, files: Iterable[AdapterFile]) -> None:
        """Forget all but these, and delete the unpacked copies that none of them has. For when packs have changed or gone."""
        wanted = {_identity(file) for file in files}
        with self._books:
            gone = [self._held.pop(identity) for identity in self._held.keys() - wanted]
            in_use = {held.path for held in self._held.values()}
            for held in gone:
                if held.is_copy and held.path not in in_use:
                    held.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget everything and delete the unpacked copies. May be called twice; a file that is being read is given up."""
        with self._books:
            self._is_closed = True
            self._held.clear()
            self._remove_own()

    @contextmanager
    def _alone_with(self, identity: _Identity) -> Iterator[None]:
        with self._books:
            lock = self._at_work.setdefault(identity, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._books:
                self._at_work.pop(identity, None)

    def _booked(self, identity: _Identity, held: _Held) -> _Held:
        """Take what was found into the books. A copy gets its name here, under the lock, so that `retain` cannot take it for a stray."""
        with self._books:
            if self._is_closed:
                raise _closed()
            if held.is_copy:
                path = held.path.with_name(f"{held.key}.gguf")
                os.replace(held.path, path)
                held = _Held(held.key, path, is_copy=True)
            self._held[identity] = held
        return held

    def _found(self, file: AdapterFile) -> _Held:
        """Hash a file where it lies, or copy it out of its archive; it has to be the version that was asked for before and after."""
        with _as_adapter(file):
            with open_pack(file.pack) as pack:
                _check_version(pack, file)
                held = self._in_place(pack, file) if isinstance(pack, FolderPack) else self._unpacked(pack, file)
            try:
                with open_pack(file.pack) as pack:
                    _check_version(pack, file)
            except AskedWrong:
                _drop(held)
                raise
        return held

    def _in_place(self, pack: FolderPack, file: AdapterFile) -> _Held:
        stream, _ = pack.open(file.file)
        with stream:
            return _Held(self._hashed(stream), pack.place(file.file), is_copy=False)

    def _unpacked(self, pack: PackFiles, file: AdapterFile) -> _Held:
        """Under a name of no meaning, until it is whole and in the books."""
        stream, _ = pack.open(file.file)
        descriptor, beside = tempfile.mkstemp(".part", dir=self._own_folder())
        try:
            with stream, open(descriptor, "wb") as out:
                return _Held(self._hashed(stream, out), Path(beside), is_copy=True)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise

    def _hashed(self, stream: BinaryIO, out: BinaryIO | None = None) -> AdapterKey:
        """The key of all that is left of a stream, which is written to `out` too."""
        digest, n_bytes = hashlib.sha256(), 0
        while piece := stream.read(_CHUNK):
            if self._is_closed:
                raise _closed()
            n_bytes += len(piece)
            if n_bytes > MAX_ADAPTER_BYTES:
                hint = "Is it a model rather than an adapter?"
                raise AskedWrong("pack_file_too_large", f"It has more than {MAX_ADAPTER_BYTES} bytes.", hint)
            digest.update(piece)
            if out is not None:
                out.write(piece)
        return AdapterKey(digest.hexdigest())

    def _own_folder(self) -> Path:
        with self._books:
            if self._is_closed:
                raise _closed()
            if self._own is None or not self._own.is_dir():
                self._own = Path(tempfile.mkdtemp(prefix="personae-adapters-", dir=self._within))
                self._remove_own = weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
            return self._own


def _identity(file: AdapterFile) -> _Identity:
    return file.pack, file.file, file.version


def _drop(held: _Held) -> None:
    if held.is_copy:
        held.path.unlink(missing_ok=True)


def _check_version(pack: PackFiles, file: AdapterFile) -> None:
    if pack.version(file.file) != file.version:
        problem = f"Adapter '{file.file}' of pack '{file.pack.name}' has been replaced since the pack was read."
        raise AskedWrong("adapter_changed", problem, "Ask again: the pack is read anew.")


def _closed() -> AskedWrong:
    return AskedWrong("adapter_unreadable", "The store of adapters is closed.", "The service is stopping.")


@contextmanager
def _as_adapter(file: AdapterFile) -> Iterator[None]:
    """Turn what may happen to a pack into codes of adapters."""
    name = f"'{file.file}' of pack '{file.pack.name}'"
    try:
        yield
    except AskedWrong as fault:
        if fault.code.startswith("adapter_"):
            raise
        code = "adapter_missing" if fault.code in ("pack_missing", "pack_file_missing") else "adapter_unreadable"
        raise AskedWrong(code, f"Adapter {name} cannot be read. {fault.message}", fault.hint) from None
    except OSError as fault:
        hint = "Check the disk it is on, and that there is room to unpack it."
        raise AskedWrong("adapter_unreadable", f"Adapter {name} cannot be read ({fault.strerror}).", hint) from None
