"""A deterministic engine that works off orders faithfully, and objects to any order that a real one could not obey.

It keeps the true KV of each slot and stash, every token with the voice that made it. A reply is a function of the KV alone, so a slot
whose KV is not what the scheduler believes says something else than `fresh_reply`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    BeginTurn,
    ClearSlot,
    CopySlot,
    DropStash,
    DropTurn,
    ExtendSlot,
    FetchStash,
    FreeAdapter,
    KvRead,
    KvWritten,
    LoadAdapter,
    Order,
    PauseTurn,
    PrefillChunk,
    ReadKv,
    ResumeTurn,
    RowDone,
    RunStep,
    SlotStashed,
    StashSlot,
    StepDone,
    TurnFaulted,
    TurnRefilled,
    WriteKv,
)
from personae.scheduler.events import TurnAsked
from personae.types import AdapterKey, FinishReason, MixMode, Piece, Stash, TurnId, Voice

MASK = (1 << 40) - 1
ADAPTER_BYTES = 1000


@cache
def salt(voice: Voice) -> int:
    return crc32(repr(voice).encode())


def rolled(state: int, token: int, voice: Voice) -> int:
    return (state * 1_000_003 + token * 31 + salt(voice)) & MASK


def drawn_from(state: int) -> int:
    return 1 + (state >> 7) % 997


def is_end(token: int, end_every: int) -> bool:
    return end_every > 0 and token % end_every == 0


def fresh_reply(asked: TurnAsked, n_ctx: int, end_every: int) -> tuple[tuple[int, ...], FinishReason]:
    """What an NPC without a past answers to the prompt."""
    state = 0
    if not asked.draws:
        return (), FinishReason.WARM
    for token in asked.prompt:
        state = rolled(state, token, asked.voice)
    reply: list[int] = []
    while True:
        token = drawn_from(state)
        if is_end(token, end_every):
            return tuple(reply), FinishReason.END
        reply.append(token)
        if len(reply) >= asked.limits.max_tokens:
            return tuple(reply), FinishReason.LENGTH
        if len(asked.prompt) + len(reply) > min(n_ctx, asked.limits.max_kv or n_ctx):
            return tuple(reply), FinishReason.CONTEXT
        state = rolled(state, token, asked.voice)


@dataclass(frozen=True, slots=True)
class Cell:
    token: int
    voice: Voice
    state: int


@dataclass
class Speaker:
    order: BeginTurn
    slot: int | None  # None: paused
    fed: list[int]  # all that was ever in its KV
    pending: int | None = None
    n_drawn: int = 0

    @property
    def place(self) -> int:
        assert self.slot is not None, f"turn {self.order.turn} is at work and paused"
        return self.slot


@dataclass(frozen=True)
class KvFile:
    cells: tuple[Cell, ...]
    voice: Voice


@dataclass
class ModelEngine:
    n_slots: int
    n_ctx: int
    max_adapters: int = 256
    end_every: int = 0  # a drawn token divisible by it ends the reply; 0: none does
    can_cut: bool = True
    mode: MixMode = MixMode.MIXED
    token_bytes: int = 10  # of a token in a stash; a stash has some bytes besides
    tells_bytes: bool = True  # when it starts
    bad_keys: set[AdapterKey] = field(default_factory=set)
    sizes: dict[AdapterKey, int] = field(default_factory=dict)  # bytes of an adapter; ADAPTER_BYTES where nothing is said
    bad_begins: set[TurnId] = field(default_factory=set)  # their BeginTurn faults, as one with a bad grammar does
    bad_draws: set[TurnId] = field(default_factory=set)  # their next draw faults
    bad_slots: set[int] = field(default_factory=set)  # they cannot be extended
    bad_paths: set[str] = field(default_factory=set)  # they cannot be read or written
    has_host_memory: bool = True  # False: nothing can be stashed
    max_drawn: int | None = None  # None: as the turn's limits say
    files: dict[str, KvFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kv: list[list[Cell]] = [[] for _ in range(self.n_slots)]
        self.stashes: dict[Stash, tuple[Cell, ...]] = {}
        self.speakers: dict[TurnId, Speaker] = {}
        self.resident: set[AdapterKey] = set()
        self.loading: deque[LoadAdapter] = deque()
        self.steps: deque[StepDone] = deque()  # not delivered yet; at most one
        self.faults: deque[TurnFaulted] = deque()  # of begins; not delivered yet
        self.moved: deque[SlotStashed | TurnRefilled] = deque()  # not delivered yet
        self.filed: deque[KvWritten | KvRead] = deque()  # not delivered yet; a thread of its own tells them, whenever it is ready
        self.uses: dict[int, Voice] = {}  # slot -> the voice it is bound to
        self.tainted_stashes: set[Stash] = set()
        self.failed_stashes: set[Stash] = set()
        self.tainted: set[int] = set()  # slots that hold other than the scheduler can know of: after a fault, or a stash that failed
        self.log: list[Order] = []
        self._work: dict[type[Any], Callable[[Any], None]] = {
            LoadAdapter: self._load,
            FreeAdapter: self._free,
            BeginTurn: self._begin,
            DropTurn: self._drop,
            PauseTurn: self._pause,
            ResumeTurn: self._resume,
            StashSlot: self._stash,
            FetchStash: self._fetch,
            DropStash: self._drop_stash,
            CopySlot: self._copy,
            WriteKv: self._write,
            ReadKv: self._read,
            ClearSlot: self._clear,
            RunStep: self._run,
        }

    def obey(self, order: Order) -> None:
        self.log.append(order)
        self._work[type(order)](order)

    # --- adapters -----------------------------------------------------------------------------------------------------

    def load_one(self) -> AdapterLoaded | AdapterRefused:
        key = self.loading.popleft().key
        if key in self.bad_keys:
            return AdapterRefused(key, "adapter_shape", f"Adapter {key} does not fit.", "Train it on this base.")
        self.resident.add(key)
        return AdapterLoaded(key, self.sizes.get(key, ADAPTER_BYTES), 8, 1.0)

    def _load(self, order: LoadAdapter) -> None:
        assert order.path == f"{order.key}.gguf"
        assert order.key not in self.resident, "loaded twice"
        assert order.key not in [each.key for each in self.loading], "ordered twice"
        self.loading.append(order)
        assert len(self.resident) + len(self.loading) <= self.max_adapters, "over the adapter limit"

    def _free(self, order: FreeAdapter) -> None:
        assert order.key in self.resident, "freed and not there"
        users = [turn for turn, speaker in self.speakers.items() if speaker.slot is not None and order.key in _keys(speaker.order.voice)]
        assert not users, f"freed while {users} speak with it"
        self.resident.remove(order.key)

    # --- turns --------------------------------------------------------------------------------------------------------

    def _begin(self, order: BeginTurn) -> None:
        assert order.turn not in self.speakers, "begun twice"
        if order.turn in self.bad_begins:
            self._check_seat(order, order.voice)
            self.tainted.add(order.slot)
            self.faults.append(TurnFaulted(order.turn, "bad_grammar", "The grammar does not compile.", "Mend it."))
            return
        self._seat(order, order.voice)
        self.speakers[order.turn] = Speaker(order, order.slot, list(order.history))

    def _resume(self, order: ResumeTurn) -> None:
        speaker = self.speakers[order.turn]
        assert speaker.slot is None, "resumed and not paused"
        assert list(order.history[: len(speaker.fed)]) == speaker.fed[: order.keep], "resumed with other tokens than it had"
        self._seat(order, speaker.order.voice)
        speaker.fed += order.history[len(speaker.fed) :]
        speaker.slot = order.slot

    def _seat(self, order: BeginTurn | ResumeTurn, voice: Voice) -> None:
        self._check_seat(order, voice)
        cells = self.kv[order.slot]
        n_found = min(order.keep, len(cells))
        if n_found < len(cells) and not self.can_cut:
            n_found = 0
        del cells[n_found:]
        self.uses[order.slot] = voice
        for token in order.history[n_found:]:
            self._feed(order.slot, voice, token)
        if n_found < order.keep:
            self.moved.append(TurnRefilled(order.turn, order.keep - n_found))
        self.tainted.discard(order.slot)

    def _check_seat(self, order: BeginTurn | ResumeTurn, voice: Voice) -> None:
        cells = self.kv[order.slot]
        assert not self.steps, "begun while a step is under way"
        self._check_free(order.slot)
        assert _keys(voice) <= self.resident, "its voice is not all resident"
        assert len(order.history) == order.keep, "keeps tokens that it does not name"
        if order.slot not in self.tainted:
            assert order.keep <= len(cells), "keeps more than there is"
            assert self.can_cut or order.keep in (0, len(cells)), "cuts what cannot be cut"
        kept = cells[: order.keep]
        assert tuple(cell.token for cell in kept) == order.history[: len(kept)], "keeps other tokens than its prompt's"
        assert all(cell.voice == voice for cell in kept), "keeps KV of another voice"

    def _check_free(self, slot: int) -> None:
        users = [turn for turn, speaker in self.speakers.items() if speaker.slot == slot]
        assert not users, f"slot {slot} is taken by {users}"

    def _drop(self, order: DropTurn) -> None:
        self.speakers.pop(order.turn, None)

    def _pause(self, order: PauseTurn) -> None:
        assert not self.steps, "paused while a step is under way"
        assert self.speakers[order.turn].slot is not None, "paused twice"
        self.speakers[order.turn].slot = None

    # --- KV that moves ------------------------------------------------------------------------------------------------

    def _clear(self, order: ClearSlot) -> None:
        self._check_free(order.slot)
        self.kv[order.slot].clear()
        self.tainted.discard(order.slot)

    def _stash(self, order: StashSlot) -> None:
        assert order.stash not in self.stashes, "the name of a stash is used again"
        cells = self.kv[order.slot]
        if not self.has_host_memory or not cells:
            self.failed_stashes.add(order.stash)
            self.moved.append(SlotStashed(order.stash, 0, 0))
            return
        self.stashes[order.stash] = tuple(cells)
        self.tainted_stashes |= {order.stash} if order.slot in self.tainted else set()
        self.moved.append(SlotStashed(order.stash, len(cells), self.n_bytes(order.stash)))

    def n_bytes(self, stash: Stash) -> int:
        return len(self.stashes[stash]) * self.token_bytes + 7

    def _fetch(self, order: FetchStash) -> None:
        self._check_free(order.slot)
        assert order.stash in self.stashes or order.stash in self.failed_stashes, "fetches a stash that is not there"
        if order.stash in self.tainted_stashes | self.failed_stashes:
            self.tainted.add(order.slot)
        else:
            self.tainted.discard(order.slot)
        self.kv[order.slot][:] = self.stashes.get(order.stash, ())

    def _drop_stash(self, order: DropStash) -> None:
        self.stashes.pop(order.stash, None)

    def _copy(self, order: CopySlot) -> None:
        self._check_free(order.target)
        assert order.source != order.target, "copied onto itself"
        source = self.kv[order.source]
        if order.source in self.tainted:
            self.tainted.add(order.target)
        else:
            assert 0 < order.keep <= len(source), "copies more than there is"
            assert self.can_cut or order.keep == len(source), "copies a part of what cannot be cut"
            self.tainted.discard(order.target)
        self.kv[order.target][:] = source[: order.keep]

    def _write(self, order: WriteKv) -> None:
        assert (order.slot is None) != (order.stash is None), "written from two places or none"
        cells = self.stashes.get(order.stash or Stash(0), ()) if order.slot is None else tuple(self.kv[order.slot])
        if order.path in self.bad_paths or tuple(cell.token for cell in cells) != order.tokens:
            is_known = order.slot not in self.tainted and order.stash not in self.tainted_stashes | self.failed_stashes
            assert order.path in self.bad_paths or not is_known, "writes other tokens than there are"
            self.filed.append(KvWritten(order.path, 0, 0, "it cannot be written"))
            return
        assert all(cell.voice == order.voice for cell in cells), "writes KV as another voice's"
        self.files[order.path] = KvFile(cells, order.voice)
        self.filed.append(KvWritten(order.path, len(cells), len(cells) * self.token_bytes))

    def _read(self, order: ReadKv) -> None:
        file = self.files.get(order.path)
        if file is None or order.path in self.bad_paths:
            self.filed.append(KvRead(order.path, order.stash, reason="there is no such file"))
            return
        self.stashes[order.stash] = file.cells
        tokens = tuple(cell.token for cell in file.cells)
        self.filed.append(KvRead(order.path, order.stash, tokens, file.voice, self.n_bytes(order.stash)))

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run(self, order: RunStep) -> None:
        assert not self.steps, "a second step under way"
        assert order.decode or order.prefill or order.extend, "an empty step"
        assert not (order.prefill and order.extend), "a slot is extended while a prompt waits"
        rows: list[RowDone] = []
        faults: list[TurnFaulted] = []
        prefilled: list[tuple[TurnId, int]] = []
        speakers = [self.speakers[turn] for turn in order.decode]
        assert [speaker.place for speaker in speakers] == sorted({speaker.place for speaker in speakers}), "rows not in order of slots"
        for speaker in speakers:
            self._decode(speaker, rows, faults)
        for chunk in order.prefill:
            self._prefill(chunk, prefilled, rows, faults)
        n_voices = len({speaker.order.voice for speaker in speakers})
        n_prefilled = sum(n for _, n in prefilled)
        extended = tuple((each.slot, self._extend(each)) for each in order.extend)
        self.steps.append(
            StepDone(
                tuple(rows),
                tuple(prefilled),
                tuple(faults),
                5.0 + len(speakers),
                float(n_prefilled),
                n_voices if self.mode is MixMode.GROUPED else int(bool(speakers)),
                n_voices,
                extended=extended,
            )
        )

    def _decode(self, speaker: Speaker, rows: list[RowDone], faults: list[TurnFaulted]) -> None:
        assert speaker.pending is not None, "decodes a turn that has drawn nothing"
        assert len(self.kv[speaker.place]) == len(speaker.fed), "decodes a turn whose KV is not all there"
        self._feed(speaker.place, speaker.order.voice, speaker.pending)
        speaker.fed.append(speaker.pending)
        self._draw(speaker, rows, faults)

    def _prefill(self, chunk: PrefillChunk, prefilled: list[tuple[TurnId, int]], rows: list[RowDone], faults: list[TurnFaulted]) -> None:
        speaker = self.speakers.get(chunk.turn)
        if speaker is None:
            return  # it faulted in its begin
        assert chunk.tokens, "an empty chunk"
        assert not (chunk.last and speaker.n_drawn), "draws a first token twice"
        for token in chunk.tokens:
            self._feed_again(speaker, token)
        prefilled.append((chunk.turn, len(chunk.tokens)))
        if chunk.last:
            self._draw(speaker, rows, faults)

    def _feed_again(self, speaker: Speaker, token: int) -> None:
        """A prompt's next token, or one that a turn had before it was paused."""
        at = len(self.kv[speaker.place])
        if at < len(speaker.fed):
            assert speaker.fed[at] == token, "prefills other tokens than it had before its pause"
        else:
            assert speaker.pending is None, "prefills a turn that speaks"
            speaker.fed.append(token)
        self._feed(speaker.place, speaker.order.voice, token)

    def _extend(self, order: ExtendSlot) -> int:
        voice = self.uses.get(order.slot, ())
        self._check_free(order.slot)
        assert _keys(voice) <= self.resident, "extended under a voice that is not all resident"
        assert order.tokens, "extended by nothing"
        if order.slot in self.bad_slots or (order.slot in self.tainted and len(self.kv[order.slot]) != order.held):
            return 0
        assert len(self.kv[order.slot]) == order.held, "extended where it does not end"
        for token in order.tokens:
            self._feed(order.slot, voice, token)
        return len(order.tokens)

    def _feed(self, slot: int, voice: Voice, token: int) -> None:
        cells = self.kv[slot]
        assert len(cells) < self.n_ctx, "the slot is full"
        assert not cells or cells[-1].voice == voice, "fed after KV of another voice"
        cells.append(Cell(token, voice, rolled(cells[-1].state if cells else 0, token, voice)))

    def _draw(self, speaker: Speaker, rows: list[RowDone], faults: list[TurnFaulted]) -> None:
        turn = speaker.order.turn
        if turn in self.bad_draws:
            self.bad_draws.remove(turn)
            self.tainted.add(speaker.place)
            del self.speakers[turn]
            faults.append(TurnFaulted(turn, "grammar_error", "Nothing can be drawn."))
            return
        token = drawn_from(self.kv[speaker.place][-1].state)
        speaker.pending, speaker.n_drawn = token, speaker.n_drawn + 1
        finish = FinishReason.END if is_end(token, self.end_every) else None
        if finish is None and speaker.n_drawn >= (self.max_drawn or speaker.order.limits.max_tokens):
            finish = FinishReason.LENGTH
        if finish is not None:
            del self.speakers[turn]
        rows.append(RowDone(turn, token, (Piece(f"{token} "),), finish))


def _keys(voice: Voice) -> set[AdapterKey]:
    return {use.key for use in voice}
