"""Where the KV of sequences is: in slots, in stashes, on its way to a file or from one. Knows no turn and decides nothing by itself.

Rules that always hold
- It is known of every slot and stash under which voice its KV was made; KV of one is never built on under another (OurBug).
- What cannot be brought leaves an empty slot, never a wrong one: whoever builds on it finds fewer tokens and prefills them.
- A stash is a copy: fetching it leaves it where it is, until it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from personae.engine.backend import Backend
from personae.engine.batch import CopySlot, FetchStash, KvRead, KvWritten, ReadKv, Result, SlotStashed, StashSlot, WriteKv
from personae.engine.kv_files import KvFiles, KvHead, Refused
from personae.errors import OurBug
from personae.types import Slot, Stash, Voice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stashed:
    blob: bytes
    n_tokens: int
    under: Voice


class SlotKv:
    """`emit` gets what orders here are answered with; files are written and read on a thread of their own, which calls `wake`."""

    def __init__(self, backend: Backend, emit: Callable[[Result], None], wake: Callable[[], None]) -> None:
        self._backend = backend
        self._emit = emit
        self._files = KvFiles(backend, wake)
        self._under: dict[Slot, Voice] = {}  # where a slot holds anything
        self._stashes: dict[Stash, _Stashed] = {}
        self._reading: dict[Stash, bool] = {}  # whether it is still wanted

    # --- for turns ------------------------------------------------------------------------------------------------

    def take(self, slot: Slot, keep: int, voice: Voice) -> int:
        """Cut a slot and bind it to the voice of what comes next; returns how many tokens are left, at most `keep`."""
        keep = min(keep, self._backend.n_tokens(slot))
        if keep and self._under.get(slot, ()) != voice:
            raise OurBug("internal", f"A turn was to build on the KV of slot {slot}, which was made under another voice.")
        left = self._backend.cut(slot, keep)
        self._backend.bind(slot, voice)
        self._under[slot] = voice
        return left

    def rebind(self, slot: Slot) -> None:
        """So that what is appended without a turn is made under the voice of what the slot holds."""
        self._backend.bind(slot, self._under.get(slot, ()))

    def clear(self, slot: Slot) -> None:
        self._backend.cut(slot, 0)

    # --- from place to place --------------------------------------------------------------------------------------

    def stash(self, order: StashSlot) -> None:
        if order.stash in self._stashes or order.stash in self._reading:
            raise OurBug("internal", f"Stash {order.stash} is there already.")
        held = self._exported(order.slot)
        if held is None:
            self._emit(SlotStashed(order.stash, 0, 0))
            return
        self._stashes[order.stash] = held
        self._emit(SlotStashed(order.stash, held.n_tokens, len(held.blob)))

    def fetch(self, order: FetchStash) -> None:
        held = self._stashes.get(order.stash)
        if held is None:
            self._backend.cut(order.slot, 0)
            return
        n_tokens = self._backend.restore(order.slot, held.blob)
        self._under[order.slot] = held.under
        if n_tokens != held.n_tokens:  # whatever it is, nobody knows its tokens
            log.warning("stash %d brought %d of %d tokens to slot %d", order.stash, n_tokens, held.n_tokens, order.slot)
            self._backend.cut(order.slot, 0)

    def drop(self, stash: Stash) -> None:
        self._stashes.pop(stash, None)
        if stash in self._reading:
            self._reading[stash] = False

    def copy(self, order: CopySlot) -> None:
        if order.source != order.target:
            self._backend.copy(order.source, order.target)
            self._under[order.target] = self._under.get(order.source, ())
        self._backend.cut(order.target, min(order.keep, self._backend.n_tokens(order.target)))

    def _exported(self, slot: Slot) -> _Stashed | None:
        """None: it holds nothing, or there is no memory for a copy."""
        n_tokens = self._backend.n_tokens(slot)
        if not n_tokens:
            return None
        try:
            return _Stashed(self._backend.export(slot), n_tokens, self._under.get(slot, ()))
        except MemoryError:
            log.warning("no memory to put %d tokens of slot %d aside", n_tokens, slot)
            return None

    # --- files ----------------------------------------------------------------------------------------------------

    def write(self, order: WriteKv) -> None:
        held = self._named_by(order)
        if held is None:
            self._emit(KvWritten(order.path, 0, 0, "nothing is held of it"))
        elif held.n_tokens != len(order.tokens):
            self._emit(KvWritten(order.path, 0, 0, f"{held.n_tokens} tokens are held of it, not {len(order.tokens)}"))
        elif held.under != order.voice:
            raise OurBug("internal", f"KV was to be written to '{order.path}' as if it had been made under another voice.")
        else:
            self._files.write(order.path, order.tokens, order.voice, held.blob)

    def _named_by(self, order: WriteKv) -> _Stashed | None:
        if order.stash is not None:
            return self._stashes.get(order.stash)
        return None if order.slot is None else self._exported(order.slot)

    def read(self, order: ReadKv) -> None:
        if order.stash in self._stashes or order.stash in self._reading:
            raise OurBug("internal", f"Stash {order.stash} is there already.")
        self._reading[order.stash] = True
        self._files.read(order.path, order.stash)

    def settle(self, block: bool) -> None:
        """Report what was written and read meanwhile. `block`: wait for all of it."""
        for done in self._files.settled(block):
            self._emit(done if isinstance(done, KvWritten) else self._arrived(done.path, done.stash, done.content))

    def _arrived(self, path: str, stash: Stash, content: tuple[KvHead, bytes] | Refused) -> KvRead:
        is_wanted = self._reading.pop(stash)
        if isinstance(content, Refused):
            return KvRead(path, stash, reason=content.reason)
        if not is_wanted:
            return KvRead(path, stash, reason="it was dropped while it was read")
        head, blob = content
        self._stashes[stash] = _Stashed(blob, len(head.tokens), head.voice)
        return KvRead(path, stash, head.tokens, head.voice, len(blob))

    def close(self) -> None:
        """Files that were to be written are written first."""
        self._files.close()
