"""Which KV is kept in the engine's host memory, and what goes when there is no room. Knows tokens, owners and bytes; no slots or time.

A *stash* holds the whole KV of one sequence. It belongs to an NPC that has no slot, or to a turn that is paused; whoever begins with the
same tokens under the same voice may start from it too. The one used longest ago goes first, that of a paused turn never for another's
sake: there somebody is in the middle of a sentence. Nothing goes for what does not fit even so. What is gone is prefilled again.

How many bytes a stash has is known when the engine has reported it. Until then it counts by its tokens, at the price of the last report.

The shelf of one voice is sorted by tokens, so that what shares most with a prompt stands beside the place where the prompt would stand:
a thousand stashes are searched in ten comparisons.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import accumulate

from personae.engine.batch import DropStash, KvRead, SlotStashed
from personae.scheduler.sequence import Sequence, common_prefix
from personae.types import NpcId, Stash, Token, TurnId, Voice

WORTH_KEEPING = 32  # tokens; fewer are prefilled in the time that moving them takes

_LAST = Stash(1 << 62)  # sorts after every stash there is


@dataclass(slots=True, eq=False)
class Stashed:
    """One stash. Compared by identity."""

    stash: Stash
    npc: NpcId
    tokens: tuple[Token, ...]
    voice: Voice
    n_bytes: int  # guessed until the engine has reported it
    turn: TurnId | None = None  # the paused turn that goes on from it
    is_saved: bool = False  # read from a file
    is_measured: bool = False


class HostMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes
        self._stashes: dict[Stash, Stashed] = {}  # in order of use, longest ago first
        self._of_npc: dict[NpcId, Stashed] = {}  # of those whose turn is not paused
        self._of_turn: dict[TurnId, Stashed] = {}
        self._shelves: dict[Voice, list[tuple[tuple[Token, ...], Stash]]] = {}
        self._token_bytes = 0.0  # of one token; 0: nobody knows yet
        self._last = 0
        self.n_bytes = 0
        self.kept = 0
        self.fetched = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._stashes)

    def reset(self, token_bytes: int) -> None:
        """Another engine, or none: what the last one held is gone with it. `token_bytes` 0: not known."""
        self._stashes.clear()
        self._of_npc.clear()
        self._of_turn.clear()
        self._shelves.clear()
        self._token_bytes, self.n_bytes = float(token_bytes), 0

    @property
    def is_open(self) -> bool:
        """Whether any host memory may be used."""
        return self._limit > 0

    def new_name(self) -> Stash:
        self._last += 1
        return Stash(self._last)

    # --- what is there ------------------------------------------------------------------------------------------------

    def of_npc(self, npc: NpcId) -> Stashed | None:
        """What the NPC left, not counting a turn that is paused."""
        return self._of_npc.get(npc)

    def of_turn(self, turn: Sequence) -> Stashed | None:
        """Its own: what it left when it was paused; before it has begun, what its NPC left."""
        return self._of_turn.get(turn.turn) if turn.has_begun else self._of_npc.get(turn.npc)

    def longest(self, voice: Voice, goal: tuple[Token, ...], *, whole: bool) -> tuple[Stashed | None, int]:
        """What shares most tokens with `goal` under this voice, and how many. `whole`: only what is a prefix of `goal` altogether."""
        shelf = self._shelves.get(voice, [])
        if whole:
            return self._longest_prefix(shelf, goal)
        at = bisect_left(shelf, (goal,))
        best, shared = None, 0
        for tokens, stash in shelf[max(0, at - 1) : at + 1]:
            n = common_prefix(tokens, goal)
            if n > shared:
                best, shared = stash, n
        return (self._stashes[best] if best is not None else None), shared

    def _longest_prefix(self, shelf: list[tuple[tuple[Token, ...], Stash]], goal: tuple[Token, ...]) -> tuple[Stashed | None, int]:
        """A prefix of `goal` sorts before it; so does what departs from it lower, and then the prefix is one of what those two share."""
        while goal and (at := bisect_right(shelf, (goal, _LAST))):
            tokens, stash = shelf[at - 1]
            n = common_prefix(tokens, goal)
            if n == len(tokens):
                return self._stashes[stash], n
            goal = goal[:n]
        return None, 0

    # --- what comes and goes ------------------------------------------------------------------------------------------

    def keep(
        self,
        npc: NpcId,
        tokens: list[Token],
        voice: Voice,
        *,
        turn: TurnId | None = None,
        but: Stashed | None = None,
    ) -> tuple[Stashed | None, list[DropStash]]:
        """Room for a KV, made by dropping others; None where it is not worth it or does not fit. `but`: this one is needed now."""
        n_bytes = round(len(tokens) * self._token_bytes)
        if len(tokens) < WORTH_KEEPING or not self.is_open:
            return None, []
        drops = self._make_room(n_bytes, but)
        if self.n_bytes + n_bytes > self._limit:
            return None, drops
        stashed = Stashed(self.new_name(), npc, tuple(tokens), voice, n_bytes, turn)
        self._put(stashed)
        self.kept += 1
        return stashed, drops

    def keep_read(self, npc: NpcId, read: KvRead) -> tuple[bool, list[DropStash]]:
        """What a file held is the NPC's now, instead of what it had here; or there was no room, and it is dropped."""
        drops = self.forget_npc(npc)
        drops += self._make_room(read.n_bytes, None)
        if self.n_bytes + read.n_bytes > self._limit:
            return False, [*drops, DropStash(read.stash)]
        self._put(Stashed(read.stash, npc, read.tokens, read.voice, read.n_bytes, is_saved=True, is_measured=True))
        return True, drops

    def note_stashed(self, report: SlotStashed) -> list[DropStash]:
        """What it really has. One that could not be made is forgotten; whoever was to go on from it is prefilled again."""
        stashed = self._stashes.get(report.stash)
        if stashed is None:
            return []
        if report.n_bytes == 0:
            self.take(stashed)
            self.dropped += 1
            return []
        self.n_bytes += report.n_bytes - stashed.n_bytes
        stashed.n_bytes, stashed.is_measured = report.n_bytes, True
        self._token_bytes = report.n_bytes / max(1, report.n_tokens)
        drops = self._make_room(0, stashed)
        return drops if self.n_bytes <= self._limit else [*drops, self._drop(stashed)]

    def note_use(self, stashed: Stashed) -> None:
        self.fetched += 1
        if stashed.stash in self._stashes:
            self._stashes[stashed.stash] = self._stashes.pop(stashed.stash)

    def take(self, stashed: Stashed) -> None:
        """Out of the books. The engine holds it until it is told to drop it."""
        del self._stashes[stashed.stash]
        if stashed.turn is not None:
            del self._of_turn[stashed.turn]
        else:
            del self._of_npc[stashed.npc]
        shelf = self._shelves[stashed.voice]
        del shelf[bisect_left(shelf, (stashed.tokens, stashed.stash))]
        if not shelf:
            del self._shelves[stashed.voice]
        self.n_bytes -= stashed.n_bytes

    def note_ended(self, turn: Sequence) -> list[DropStash]:
        """A paused turn has ended: what it left is its NPC's, whose next prompt will have much of it."""
        stashed = self._of_turn.pop(turn.turn, None)
        if stashed is None:
            return []
        drops = self.forget_npc(turn.npc)
        stashed.turn = None
        self._of_npc[turn.npc] = stashed
        return drops

    def forget_npc(self, npc: NpcId) -> list[DropStash]:
        stashed = self._of_npc.get(npc)
        return [self._drop(stashed)] if stashed is not None else []

    def _put(self, stashed: Stashed) -> None:
        self._stashes[stashed.stash] = stashed
        if stashed.turn is not None:
            self._of_turn[stashed.turn] = stashed
        else:
            self._of_npc[stashed.npc] = stashed
        insort(self._shelves.setdefault(stashed.voice, []), (stashed.tokens, stashed.stash))
        self.n_bytes += stashed.n_bytes

    def _make_room(self, n_bytes: int, but: Stashed | None) -> list[DropStash]:
        """Drop what was used longest ago until so many bytes fit; nothing where they never will. A paused turn keeps its own."""
        over = self.n_bytes + n_bytes - self._limit
        if over <= 0:
            return []
        may_go = [each for each in self._stashes.values() if each.turn is None and each is not but]
        freed = list(accumulate((each.n_bytes for each in may_go), initial=0))
        n_drops = bisect_left(freed, over)
        return [self._drop(each) for each in may_go[:n_drops]] if n_drops < len(freed) else []

    def _drop(self, stashed: Stashed) -> DropStash:
        self.take(stashed)
        self.dropped += 1
        return DropStash(stashed.stash)

    # --- for people and tests -----------------------------------------------------------------------------------------

    def validate(self, paused: dict[TurnId, Sequence]) -> None:
        """`paused`: the turns that are."""
        owned = [*self._of_npc.values(), *self._of_turn.values()]
        assert set(owned) == set(self._stashes.values()), "a stash belongs to nobody"
        assert len(owned) == len(self._stashes), "a stash belongs to two"
        assert all(stashed.npc == npc and stashed.turn is None for npc, stashed in self._of_npc.items()), "an NPC's stash is another's"
        assert self.n_bytes == sum(stashed.n_bytes for stashed in owned), "stashes and their bytes disagree"
        assert self.n_bytes <= self._limit, f"{self.n_bytes} bytes of host memory in use, {self._limit} allowed"
        assert self._of_turn.keys() <= paused.keys(), "a stash waits for a turn that is not paused"
        for turn, stashed in self._of_turn.items():
            assert stashed.turn == turn, f"the stash of turn {turn} is another's"
            assert stashed.tokens == paused[turn].goal[: len(stashed.tokens)], f"turn {turn} has left other tokens than it computed"
            assert stashed.voice == paused[turn].voice, f"the stash of turn {turn} was made under another voice"
        for voice, shelf in self._shelves.items():
            assert shelf == sorted(shelf), "a shelf is out of order"
            assert all(self._stashes[stash].voice == voice for _, stash in shelf), "a stash stands on another voice's shelf"
        assert sum(map(len, self._shelves.values())) == len(self._stashes), "a stash stands on no shelf, or on two"

    def statistics(self) -> dict[str, object]:
        return {
            "stashes": len(self._stashes),
            "bytes": self.n_bytes,
            "limit": self._limit,
            "stashed": self.kept,
            "fetched": self.fetched,
            "dropped": self.dropped,
        }
