"""Decides where everything lies that is to outlive the service: a folder with one file an NPC, written whenever the NPC has changed.

    lock                   held for as long as a service uses the folder
    npcs/<name>.json       one NPC, as a save of its own; sealed.py says what lies beside it
    saves/<name>.json      a save that a client asked to be kept under a name
    saves/<name>.kv/       KV beside it, which may be lost

It knows no request, and of a save no more than that it is a map.

An embedded database was tried: SQLite (WAL, not synchronous) survives a kill as well and writes a little faster, but there is nothing to
query, and a file for each NPC can be looked at, copied and thrown away alone, and costs one NPC when it is damaged.

Rules that always hold
- When `keep` has returned, the NPC is there after a kill at any instant; when `forget` has, it is not.
- What was kept is never lost in silence: what cannot be read, or cannot be played today, stays on disk, and the log and `stats` say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from personae.errors import AskedWrong, WorldFailed
from personae.service import sealed
from personae.service.npcs import Npc

log = logging.getLogger("personae.service")

SUFFIX = ".json"
SHELVED = ".shelved"  # an NPC that cannot be played today, whose name another has taken
SAVE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
MOST_SYNCED = 64  # files one by one, which takes milliseconds each; more of them go with everything else the system has to write
HEAD_CHARS = 40  # of a file's name: what people recognize it by

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 20, os.SEEK_SET)  # a locked byte cannot be read by others, and the first ones say who holds it
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Keeper(Protocol):
    """Whoever is told that an NPC has changed. WorldFailed `state_unusable`: it could not be kept; what was kept before still is."""

    def keep(self, npc: Npc) -> None:
        """The NPC as it is now outlives the service from here on."""
        ...

    def forget(self, npc_id: str) -> None: ...


class NoKeeper:
    """NPCs are gone with the service."""

    def keep(self, npc: Npc) -> None:
        pass

    def forget(self, npc_id: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file of the folder holds."""

    file: str  # its name; for `shelve`
    document: dict[str, Any]


class StateFolder:
    """A Keeper, and the place of named saves. `author` must be set before the first `keep`: it makes the document of an NPC."""

    def __init__(self, path: Path) -> None:
        """Made where there is none, and locked until `close`. AskedWrong `state_in_use`, `state_unusable`."""
        self.path = path.resolve()
        self.author: Callable[[Npc], dict[str, Any]] | None = None
        self._npcs, self._saves = self.path / "npcs", self.path / "saves"
        self._shelved: dict[str, str] = {}  # file -> why
        self._kept: set[str] = set()  # files of NPCs that are there
        self._unsynced: set[str] = set()
        self._last_failure = ""
        try:
            for folder in (self._npcs, self._saves):
                folder.mkdir(parents=True, exist_ok=True)
            self._handle: int | None = self._take()
        except OSError as error:
            raise _unusable(self.path, error) from error

    def close(self) -> None:
        """Written through to the disk, and free for another service."""
        if self._handle is not None:
            self._sync()
            os.close(self._handle)
            self._handle = None

    # --- NPCs -----------------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[Kept]:
        """Each NPC's document, by name. What cannot be read is shelved."""
        for file in self._tidied():
            self._kept.add(file)
            if (kept := self.read_again(file)) is not None:
                yield kept

    def read_again(self, file: str) -> Kept | None:
        """None: it cannot be read, and is shelved for that."""
        try:
            found = sealed.read(self._path_of(file))
        except (OSError, sealed.Damaged) as damage:
            self.shelve(file, f"it {damage}" if isinstance(damage, sealed.Damaged) else damage.strerror or str(damage))
            return None
        if found.note:
            log.warning("of the NPC in %s the previous version is taken: %s", self._path_of(file), found.note)
        return Kept(file, found.document)

    def shelve(self, file: str, reason: str) -> None:
        """This NPC cannot be played today. It stays where it is for the day when it can."""
        log.warning("the NPC in %s is kept and not played: %s", self._path_of(file), reason)
        self._shelved[file] = reason

    def is_shelved(self, file: str) -> bool:
        return file in self._shelved

    def unshelve(self, file: str) -> None:
        """It is played again, or always was."""
        self._shelved.pop(file, None)

    def keep(self, npc: Npc) -> None:
        assert self.author is not None, "nobody was told how to write an NPC down"
        file = file_of(npc.id) + SUFFIX
        with self._failing(f"NPC {npc.id!r} could not be kept"):
            if file in self._shelved:
                self._make_room(file)
            sealed.write(self._path_of(file), self.author(npc))
        self._kept.add(file)
        self._unsynced.add(file)

    def forget(self, npc_id: str) -> None:
        file = file_of(npc_id) + SUFFIX
        with self._failing(f"NPC {npc_id!r} could not be forgotten"):
            sealed.remove(self._path_of(file))
        self._kept.discard(file)
        self._unsynced.discard(file)

    # --- named saves ----------------------------------------------------------------------------------------------------

    def write_save(self, name: str, document: dict[str, Any]) -> None:
        """Survives a power cut. KV of an older save of this name that this one does not name is thrown away."""
        path = self._saves / (checked(name) + SUFFIX)
        with self._failing(f"The save {name!r} could not be written"):
            sealed.write(str(path), document, sync=True)
            self._drop_kv(name, {npc["kv"]["file"] for npc in document.get("npcs", ()) if npc.get("kv")})

    def read_save(self, name: str) -> dict[str, Any]:
        """AskedWrong `unknown_save`, and `bad_save` where neither the save nor its previous version can be read."""
        path = self._saves / (checked(name) + SUFFIX)
        try:
            found = sealed.read(str(path))
        except FileNotFoundError:
            raise AskedWrong("unknown_save", f"There is no save {name!r}.", f"There are: {', '.join(self.saves()) or 'none'}.") from None
        except sealed.Damaged as damage:
            raise AskedWrong("bad_save", f"The save {name!r} {damage}.", "Restore another.") from None
        except OSError as error:
            raise _unusable(path, error) from error
        if found.note:
            log.warning("of the save %r the previous version is taken: %s", name, found.note)
        return found.document

    def saves(self) -> list[str]:
        return [file.removesuffix(SUFFIX) for file in _files(self._saves)]

    def kv_file(self, name: str, npc_id: str) -> Path:
        """Where the KV of an NPC lies beside a save; the folder is there. WorldFailed `state_unusable`."""
        folder = self._kv_folder(checked(name))
        with self._failing(f"There is no room for the KV of the save {name!r}"):
            folder.mkdir(exist_ok=True)
        return folder / f"{file_of(npc_id)}.kv"

    def statistics(self) -> dict[str, Any]:
        """`npcs`: how many are kept, played or not. `last_failure`: the last that could not be written; "" when all could."""
        return {
            "folder": str(self.path).encode("utf-8", "replace").decode(),
            "npcs": len(self._kept),
            "shelved": [{"file": file, "reason": reason} for file, reason in self._shelved.items()],
            "last_failure": self._last_failure,
        }

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        """The lock's handle. It is not inherited, so that an engine that outlives us for a moment does not hold it."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() if hasattr(os, "pread") else ""
            os.close(handle)
            if not isinstance(error, BlockingIOError | PermissionError):
                raise
            who = f"process {holder}" if holder.isdigit() else "another service"
            raise AskedWrong(
                "state_in_use", f"{self.path} is in use by {who}.", "Every service needs a --state folder of its own."
            ) from None
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"{os.getpid()}\n".encode())
        return handle

    def _tidied(self) -> list[str]:
        """The files of NPCs, after what an interrupted run left behind was cleared up."""
        for fresh in self._npcs.glob(f"*{SUFFIX}{sealed.NEW}"):
            fresh.unlink(missing_ok=True)
        files = _files(self._npcs)
        for shelved in sorted(self._npcs.glob(f"*{SUFFIX}*{SHELVED}")):
            file = shelved.name.partition(SUFFIX)[0] + SUFFIX
            if file not in files:  # whoever had taken its name is gone
                os.replace(shelved, self._path_of(file))
                files.append(file)
        return sorted(files)

    def _make_room(self, file: str) -> None:
        """A new NPC has the name of one that cannot be played today: the old one is moved aside, and is back when the name is free."""
        path = self._path_of(file)
        aside = next(end for end in chain([SHELVED], (f".{n}{SHELVED}" for n in count(2))) if not os.path.exists(path + end))
        for version in (path + sealed.PREVIOUS, path):
            with contextlib.suppress(FileNotFoundError):
                os.replace(version, path + aside)
        log.warning("a new NPC has the name of the one in %s, which is now %s", file, file + aside)
        del self._shelved[file]

    def _sync(self) -> None:
        try:
            if len(self._unsynced) > MOST_SYNCED and hasattr(os, "sync"):
                os.sync()
            else:
                for file in self._unsynced:
                    sealed.sync_file(self._path_of(file))
                sealed.sync_folder(str(self._npcs))
        except OSError as error:
            log.error("%s could not be written through to the disk: %s", self.path, error.strerror or error)
        self._unsynced.clear()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._last_failure = f"{what}: {error.strerror or error}."
            raise WorldFailed(
                "state_unusable", self._last_failure, f"Look at {self.path}: is the disk full, or not ours to write?"
            ) from error

    def _drop_kv(self, name: str, needed: set[str]) -> None:
        folder = self._kv_folder(name)
        if folder.is_dir():
            for blob in folder.iterdir():
                if blob.name not in needed:
                    blob.unlink()

    def _kv_folder(self, name: str) -> Path:
        return self._saves / f"{name}.kv"

    def _path_of(self, file: str) -> str:
        return f"{self._npcs}{os.sep}{file}"


def file_of(npc_id: str) -> str:
    """A name that every file system takes and tells from all others, also where it does not tell A from a."""
    head = re.sub(r"[^a-z0-9]+", "-", npc_id.lower())[:HEAD_CHARS].strip("-")
    return f"{head or 'npc'}-{sha256(npc_id.encode('utf-8', 'replace')).hexdigest()[:16]}"


def is_file_of(file: str, npc_id: str) -> bool:
    return file == file_of(npc_id) + SUFFIX


def _files(folder: Path) -> list[str]:
    """Of all that is there in any version, without the ends that sealed.py adds."""
    return sorted({path.name.removesuffix(sealed.PREVIOUS) for end in ("", sealed.PREVIOUS) for path in folder.glob(f"*{SUFFIX}{end}")})


def checked(name: str) -> str:
    if not SAVE_NAME.fullmatch(name):
        raise AskedWrong("bad_request", f"{name!r} cannot be the name of a save.", "Letters, digits, . _ and -, not with a dot first.")
    return name


def _unusable(path: Path, error: OSError) -> AskedWrong:
    return AskedWrong("state_unusable", f"{path} cannot be used: {error.strerror or error}.", "--state takes a folder that can be written.")
