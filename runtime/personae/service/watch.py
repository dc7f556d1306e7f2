"""Decides what is told of the folder of packs while the service runs, and when: it watches, waits until packs have settled, and looks at
them, all on a thread of its own. Knows no NPC and no client. The only door to watchfiles.

Events of the file system only say *when* to look. What has changed is found by comparing prints of everything that is there, so that a
lost event, an overrun queue or a drive that sends none costs time and nothing else: a slow rescan finds it, too.

Rules that always hold
- Nothing in a pack ends the thread; what nobody thought of is a line in the log, and the next round.
- Only folders that are packs are listened to, and a bounded number: a link in a pack may lead to a whole disk.
- While the folder of packs itself is away (a drive, a rename) nobody is told that its packs are gone.
- An adapter is read before its pack is told of: when the service swaps a character, speaking with it costs no more reading.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from watchfiles._rust_notify import RustNotify  # documented; the package's own loop has one patience for all rounds

from personae.errors import PersonaeError
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile, Character, PackProblem
from personae.service.inspection import ROOT, PackSeen, Paths, Print, look_at, packs_in, print_of, prints_of, root_lost
from personae.service.settling import Patience, Settling
from personae.types import AdapterSource

log = logging.getLogger("personae.service")

MOST_FOLDERS = 4096  # listened to; Linux grants a user 8,192 at the least
MOST_FOLDERS_A_PACK = 32
STEP_MS = 50  # how often watchfiles looks for a stop; its thread sleeps in between
BURST_MS = 200  # events of a burst are taken together for so long at the most
READING_MS = 500.0  # how long adapters are read before it is looked again whether anything has changed
AWAY_MS = 500.0  # how often is looked whether the folder of packs is back
JOIN_S = 2.0
NICE = 10  # the share of a core that a decode's thread leaves it is about a tenth
TEXT = ".toml"

Ear = tuple[str, int, int]  # path, device, inode: a folder that was replaced has to be listened to anew


class Adapters(Protocol):
    """Reads adapters and remembers what it has read. packs.store.AdapterStore is one."""

    def source(self, file: AdapterFile) -> AdapterSource: ...

    def retain(self, files: Iterable[AdapterFile]) -> None: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """`rescan_ms`: how often everything is looked over although no event came. `hears` False: no events are asked for."""

    patience: Patience = field(default_factory=Patience)
    rescan_ms: float = 5000.0
    hears: bool = True


class Watcher:
    """Begins to work with `start`. What it has to tell is fetched with `take`; `wake` is called, on its thread, when there is something."""

    def __init__(
        self,
        root: Path,
        adapters: Adapters,
        wake: Callable[[], None],
        *,
        base: BaseShapes | None = None,
        pace: Pace | None = None,
        watches: bool = True,
    ) -> None:
        """`watches` False: only the adapters of the packs that are known are read, and nothing is ever told."""
        self._root = root
        self._watches = watches
        self._adapters = adapters
        self._wake = wake
        self._base = base
        self._pace = pace or Pace()
        self._settling = Settling(self._pace.patience)
        self._whole: dict[str, Character] = {}  # the last of each pack that was told as one
        self._needed: deque[tuple[AdapterFile, ...]] = deque(maxlen=1)  # beside theirs; empty: nothing is to be tidied up
        self._unread: deque[AdapterFile] = deque()
        self._packs: dict[str, Paths] = {}
        self._prints: dict[str, Print] = {}
        self._ears: tuple[Ear, ...] = ()
        self._notifier: RustNotify | None = None
        self._is_root_lost = False
        self._told: queue.SimpleQueue[PackSeen] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="personae-packs", daemon=True)

    @property
    def is_watching(self) -> bool:
        return self._watches and self._thread.is_alive()

    def start(self, known: Mapping[str, Print], characters: Iterable[Character]) -> None:
        """`known`: the packs as they were when they were loaded; `characters`: what came of them. Their adapters are read by and by."""
        self._settling.know(known)
        self._whole = {character.id: character for character in characters}
        self._unread.extend(self._files())
        self._thread.start()

    @property
    def has_news(self) -> bool:
        return not self._told.empty()

    def take(self) -> PackSeen | None:
        """The next that there is to tell; None: nothing."""
        try:
            return self._told.get_nowait()
        except queue.Empty:
            return None

    def tidy(self, needed: Iterable[AdapterFile]) -> None:
        """What was read of packs that are gone or are others by now may be forgotten, by and by, but for these. It is done on the thread
        that reads: what it has read, and not told of yet, must not be forgotten."""
        self._needed.append(tuple(needed))

    def end(self) -> None:
        """Nothing is told from now on; the thread ends when what it does just now is done."""
        self._ended.set()

    def close(self) -> None:
        """Returns when the thread has ended, or after a moment, when a disk holds it up."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """It stands back for the decode beside it: who speaks must not wait for a pack."""
        if sys.platform == "linux":  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while self._watches and not self._ended.is_set():
            try:
                self._round()
            except Exception:
                log.exception("the packs could not be looked at; they will be looked at again")
                self._ended.wait(self._pace.rescan_ms / 1e3)
        self._read_on(math.inf)
        self._hush()

    def _round(self) -> None:
        self._look_over()
        for pack in [] if self._is_root_lost else self._settling.due(_now_ms()):
            if self._ended.is_set():
                return
            self._look_at(pack)
        if self._needed:
            self._adapters.retain((*self._files(), *self._needed.popleft()))
        self._wait(self._patience_ms())

    def _look_over(self) -> None:
        """What is there now. When others are to be listened to, once more: nothing was heard of them until then."""
        for _ in range(3):
            has_changed = self._scan()
            if not has_changed or not self._listen():
                return

    def _scan(self) -> bool:
        """Whether anything is not as it was."""
        try:
            packs = packs_in(self._root)
        except OSError as fault:
            self._lose_root(fault)
            return True
        if self._is_root_lost:
            self._is_root_lost = False
            self._tell(PackSeen(ROOT, None))
        prints = prints_of(packs)
        has_changed = prints != self._prints or not self._ears or self._ears[0] != _ear(str(self._root))
        self._packs, self._prints = packs, prints
        self._settling.saw(prints, _now_ms())
        return has_changed

    def _lose_root(self, fault: OSError) -> None:
        if not self._is_root_lost:
            self._is_root_lost = True
            self._tell(root_lost(self._root, fault))
        self._packs, self._prints = {}, {}

    def _patience_ms(self) -> float:
        """Until there is something to look at, if nothing is heard before."""
        if self._is_root_lost:
            return min(self._pace.rescan_ms, AWAY_MS)
        due_ms = self._settling.next_due_ms()
        return self._pace.rescan_ms if due_ms is None else min(self._pace.rescan_ms, max(0.0, due_ms - _now_ms()))

    def _wait(self, patience_ms: float) -> None:
        if self._unread:
            self._read_on(min(patience_ms, READING_MS))
        elif self._notifier is None:
            self._ended.wait(patience_ms / 1e3)
        else:
            self._hear(max(1, int(patience_ms)))

    def _read_on(self, for_ms: float) -> None:
        """For so long, and one at the least. Not one a round: looking everything over for each of five hundred takes most of a minute."""
        until_ms = _now_ms() + for_ms
        while self._unread and not self._ended.is_set():
            self._read(self._unread.popleft())
            if _now_ms() >= until_ms:
                return

    def _hear(self, patience_ms: int) -> None:
        try:
            assert self._notifier is not None
            self._notifier.watch(BURST_MS, STEP_MS, patience_ms, self._ended)
        except RuntimeError as fault:  # a file whose name is no text: from then on it says nothing else
            log.info("an event of %s could not be read, and its folders are listened to anew: %s", self._root, fault)
            self._hush()
            self._ears = ()

    # --- one pack -------------------------------------------------------------------------------------------------------

    def _look_at(self, pack: str) -> None:
        paths = self._packs.get(pack, ())
        before = print_of(paths)
        self._settling.saw_one(pack, before, _now_ms())
        if not self._settling.is_due(pack, _now_ms()):
            return
        seen = look_at(pack, paths, self._base) if before is not None else PackSeen(pack, None, is_there=False)
        is_same = seen.character is None or all(map(self._read, seen.character.all_adapters()))
        after = print_of(paths)
        self._settling.saw_one(pack, after, _now_ms())
        if not is_same:
            self._settling.look_again(pack, _now_ms())
        elif after == before and self._settling.is_to_be_told(pack, after, _now_ms(), may_be_half=self._may_be_half(seen)):
            self._tell(seen)

    def _may_be_half(self, seen: PackSeen) -> bool:
        """Whether it cannot be used only because a copy is under way, perhaps. Of a known pack its text is not held: it is an editor that
        saves it, and a writer who waits for a word."""
        if not seen.is_there or seen.character is not None:
            return False
        return seen.pack not in self._whole or any(map(_is_of_files, seen.problems))

    def _read(self, file: AdapterFile) -> bool:
        """False: it is not the file any more that its pack was looked at with. What else is wrong shows when somebody wants to speak."""
        try:
            self._adapters.source(file)
        except PersonaeError as fault:
            return fault.code != "adapter_changed"
        except Exception:
            log.exception("the adapter %s of %s could not be read", file.file, file.pack)
        return True

    def _files(self) -> list[AdapterFile]:
        return [file for character in self._whole.values() for file in character.all_adapters()]

    def _tell(self, seen: PackSeen) -> None:
        if seen.character is not None:
            self._whole[seen.pack] = seen.character
        elif not seen.is_there:
            self._whole.pop(seen.pack, None)
        if not self._ended.is_set():  # whoever is to be woken may be gone by now
            self._told.put(seen)
            self._wake()

    # --- ears -----------------------------------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """To the folders that count now. Whether that is others than before."""
        ears = tuple(islice(self._folders(), MOST_FOLDERS)) if self._pace.hears else ()
        if ears == self._ears:
            return False
        self._hush()
        self._ears = ears
        for some in (ears, ears[:1]):  # where the system does not grant so many, packs that come and go are heard at least
            if some and self._notifier is None:
                self._notifier = _notifier_of(some)
        if self._notifier is None and ears:
            log.warning("%s cannot be watched; it is looked over every %g s", self._root, self._pace.rescan_ms / 1e3)
        return self._notifier is not None

    def _folders(self) -> Iterator[Ear]:
        yield from _ears((str(self._root),))
        for paths in self._packs.values():
            for path in paths:
                yield from _ears(_folders_of(path))

    def _hush(self) -> None:
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            notifier.close()


def _is_of_files(problem: PackProblem) -> bool:
    """Whether it is about what there is in a pack, and not about what stands in its text."""
    return not problem.file.endswith(TEXT) or "file" in problem.field or problem.field == "portrait"


def _folders_of(path: Path) -> Iterator[str]:
    """A pack's own, a few, links in it not followed. A link to a pack counts with what it leads to."""
    if path.is_symlink() and not path.is_dir():
        yield str(path)
    yield from islice((folder for folder, _, _ in os.walk(path)), MOST_FOLDERS_A_PACK)


def _ears(paths: Iterable[str]) -> Iterator[Ear]:
    for path in paths:
        if (ear := _ear(path)) is not None:
            yield ear


def _ear(path: str) -> Ear | None:
    """None: it is gone again, or its name is no text, which watchfiles cannot be given. What is in there is found by the rescan."""
    try:
        path.encode()
        found = os.stat(path)
    except (OSError, UnicodeError):
        return None
    return path, found.st_dev, found.st_ino


def _notifier_of(ears: Iterable[Ear]) -> RustNotify | None:
    """None: a folder is gone again, or the system has no more watches to give."""
    try:
        return RustNotify([path for path, _, _ in ears], False, False, 0, False, True)
    except (OSError, RuntimeError) as fault:
        log.info("folders cannot be listened to: %s", fault)
        return None


def _now_ms() -> float:
    return time.monotonic() * 1e3
