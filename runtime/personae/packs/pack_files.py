"""The files of a pack, whether it is a folder or an archive. Decides what belongs to it; does not know what any file means.

Rules that always hold
- A file is asked for by its name within the pack, and nothing outside the pack is ever opened, however it is named or linked.
- What is hidden (names that begin with a dot, __MACOSX) is not there.
- Listing and reading are bounded: so many entries, so deep, so many bytes.

Faults are AskedWrong: `pack_missing` (nothing at that path), `pack_incomplete` (a copy under way), `pack_archive` and `pack_too_many_files`
(the pack as a whole), `pack_file_missing`, `pack_file_refused` and `pack_file_too_large` (one file of it).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn, Protocol, Self

from personae.errors import AskedWrong
from personae.packs.archive import MAX_ENTRIES, Archive
from personae.packs.names import MAX_DEPTH, fault_in_name, folders_above, is_hidden, plain
from personae.packs.plain_files import open_plain

SUFFIX = ".persona"


class PackFiles(Protocol):
    """An open pack. A context manager; `close` may be called twice."""

    path: Path  # absolute

    def names(self) -> tuple[str, ...]:
        """Of all files, sorted, with / between folders. AskedWrong `pack_too_many_files`."""
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """All of a file. AskedWrong `pack_file_*`, `pack_archive`."""
        ...

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """A file at its start, and its bytes. It can only be read forwards. Raises as `read`, and so may its `read`."""
        ...

    def version(self, name: str) -> tuple[int, ...]:
        """Another when the file has been written since. AskedWrong `pack_file_missing`."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None: ...


def open_pack(path: Path) -> PackFiles:
    """AskedWrong `pack_missing`, `pack_incomplete`, `pack_archive`."""
    path = Path(os.path.abspath(path))
    if path.is_dir():
        return FolderPack(path)
    return ArchivePack(path)


def version_of(seen: os.stat_result) -> tuple[int, ...]:
    """Another also when who wrote the file put its date back, as archives and copies do, and when its rights have changed."""
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """(name within the folder, entry) of every file, those nearest to the top first, hidden ones left out.

    Links to folders are not entered. Ends after MAX_ENTRIES entries have been looked at, with an AskedWrong `pack_too_many_files`.
    Folders that vanish meanwhile are empty.
    """
    level, looked_at = [""], 0
    for _ in range(MAX_DEPTH):
        below: list[str] = []
        for prefix in level:
            for entry in _scanned(folder / prefix):
                looked_at += 1
                if looked_at > MAX_ENTRIES:
                    _too_many(folder)
                name = prefix + entry.name
                if is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(name + "/")
                else:
                    yield name, entry
        level = below


class _Closing:
    """What makes a pack a context manager."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class FolderPack(_Closing):
    """A pack that lies open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = path.resolve()

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, entry in walk(self.path) if self._is_file(name, entry)))

    def read(self, name: str, most_bytes: int) -> bytes:
        stream, n_bytes = self.open(name)
        with stream:
            return _read(stream, n_bytes, name, most_bytes)

    def open(self, name: str) -> tuple[BinaryIO, int]:
        try:
            stream = open_plain(self.place(name))
        except OSError as fault:
            _refuse_file(name, f"cannot be read ({fault.strerror})", "Check that you may read it.")
        if stream is None:
            _refuse_file(name, "is not a regular file", "Put a plain file there.")
        try:
            seen = os.fstat(stream.fileno())
            self._check_place(name, seen)
        except BaseException:
            stream.close()
            raise
        return stream, seen.st_size

    def version(self, name: str) -> tuple[int, ...]:
        return version_of(self.place(name).stat())

    def close(self) -> None: ...

    def place(self, name: str) -> Path:
        """Where a file lies, all links followed: inside the folder, and a regular file. AskedWrong `pack_file_*`."""
        _check_name(name)
        try:
            path = (self.path / name).resolve(strict=True)
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            _missing(name)
        except (OSError, RuntimeError) as fault:  # RuntimeError: links that go round in circles
            _refuse_file(name, f"cannot be read ({getattr(fault, 'strerror', None) or 'its links go round in circles'})", "Copy it again.")
        if not path.is_relative_to(self._real):
            _refuse_file(name, "is a link that leads out of the pack", "Copy the file into the pack.")
        if not stat.S_ISREG(mode):
            _refuse_file(name, "is not a regular file", "Put a plain file there.")
        return path

    def _check_place(self, name: str, seen: os.stat_result) -> None:
        """What was opened has to be what lies there now: a link may have taken the file's place behind the first look."""
        try:
            is_same = os.path.samestat(seen, self.place(name).lstat())
        except OSError:
            is_same = False
        if not is_same:
            _refuse_file(name, "was replaced while it was opened", "Ask again when nobody writes to the pack.")

    def _is_file(self, name: str, entry: os.DirEntry[str]) -> bool:
        if entry.is_file(follow_symlinks=False):
            return not fault_in_name(name)
        try:
            return bool(self.place(name))
        except AskedWrong:
            return False


class ArchivePack(_Closing):
    """A pack in a zip archive. A folder that all of it lies in is looked through: people zip the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        stream = _opened(path)
        try:
            self._version = version_of(os.fstat(stream.fileno()))
            self._archive = Archive(stream, _shown(path.name))
        except BaseException:
            stream.close()
            raise
        seen = [name for name in self._archive.entries if not is_hidden(name)]
        top = _single_top(seen)
        self._inside = {name.removeprefix(top): name for name in seen}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._inside))

    def read(self, name: str, most_bytes: int) -> bytes:
        stream, n_bytes = self.open(name)
        with stream:
            return _read(stream, n_bytes, name, most_bytes)

    def open(self, name: str) -> tuple[BinaryIO, int]:
        inside = self._find(name)
        return self._archive.open(inside), self._archive.entries[inside].n_bytes

    def version(self, name: str) -> tuple[int, ...]:
        """That of the archive: whoever writes one file of it writes all."""
        self._find(name)
        return self._version

    def close(self) -> None:
        self._archive.close()

    def _find(self, name: str) -> str:
        _check_name(name)
        found = self._inside.get(plain(name))
        return found if found is not None else _missing(name)


def _single_top(names: list[str]) -> str:
    """`folder/` where that begins every name, else ""."""
    tops = {next(folders_above(name), "") for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    return f"{top}/" if top else ""


def _scanned(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


def _opened(path: Path) -> BinaryIO:
    try:
        stream = open_plain(path)
        if stream is None:
            raise AskedWrong("pack_archive", f"'{_shown(path.name)}' is neither a folder nor a regular file.", "Put a pack there.")
        return stream
    except (FileNotFoundError, NotADirectoryError):
        raise AskedWrong("pack_missing", f"There is no pack at '{_shown(str(path))}'.", "Check the path.") from None
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        why = getattr(fault, "strerror", None) or fault
        raise AskedWrong("pack_archive", f"Archive '{_shown(path.name)}' cannot be read ({why}).", "Check that you may read it.") from None


def _read(stream: BinaryIO, n_bytes: int, name: str, most_bytes: int) -> bytes:
    if n_bytes > most_bytes:
        _too_large(name, n_bytes, most_bytes)
    try:
        content = stream.read(most_bytes + 1)
    except OSError as fault:
        _refuse_file(name, f"could not be read to its end ({fault.strerror})", "Check the disk.")
    if len(content) > most_bytes:  # it grew
        _too_large(name, len(content), most_bytes)
    return content


def _check_name(name: str) -> None:
    if fault := fault_in_name(name) or ("that is hidden" if is_hidden(name) else ""):
        _refuse_file(
            _shown(name)[:80], f"cannot be the name of a file in a pack: {fault}", "Copy the file into the pack and give its name."
        )


def _shown(name: str) -> str:
    """Fit for a message: names come from strangers, and may hold what a terminal obeys."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _missing(name: str) -> NoReturn:
    raise AskedWrong("pack_file_missing", f"'{name}' is not in the pack.", "Copy it into the pack, or check how its name is written.")


def _refuse_file(name: str, why: str, hint: str) -> NoReturn:
    raise AskedWrong("pack_file_refused", f"'{name}' {why}.", hint)


def _too_large(name: str, n_bytes: int, most_bytes: int) -> NoReturn:
    raise AskedWrong("pack_file_too_large", f"'{name}' has {n_bytes} bytes, more than {most_bytes}.", "Make it smaller.")


def _too_many(folder: Path) -> NoReturn:
    problem = f"The folder '{folder.name}' holds more than {MAX_ENTRIES} files and folders."
    raise AskedWrong("pack_too_many_files", problem, "Keep only what belongs to the character.")
