"""Decides nothing: does what orders say, against any `Backend`, and reports what happened. Knows no NPC, client, deadline or pipe.

The loop owns the open turns (sampler, reply text, slot, last token) and which adapters are resident. It is used from one thread; only
reading an adapter file happens on another, and what that thread has ready is installed by `settle` between orders.

Rules that always hold
- Each RunStep is answered by exactly one StepDone, each LoadAdapter by AdapterLoaded or AdapterRefused (one answer may serve several
  orders for the same key). Turns that a step names and that are not open (dropped, faulted, ended meanwhile) are passed over.
- A fault ends one turn, and is reported once: in StepDone.faults or, from BeginTurn, as a TurnFaulted. It takes nothing from the turn's
  slot that was reported to be there; what may be there besides is cut by the next BeginTurn. So the books above stay true without a rule
  for faults.
- Where the memory could not keep all of the prefix that BeginTurn asked for, the rest of it is prefilled again from `history`, there and
  then: rare, and right. Without a history it is a fault, `kv_lost`.
- A slot is extended wholly or not at all, and never at the cost of the step: a fault there is logged, cut away and reported as 0 tokens.
- A turn whose slot is full after its last token ends with CONTEXT: there is no place for the next decode.
- OurBug passes through: the engine's state cannot be trusted, its process ends and is started again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from personae.engine.adapter_loader import AdapterLoader
from personae.engine.backend import Backend, Sampler
from personae.engine.batch import (
    BeginTurn,
    ClearSlot,
    DropTurn,
    ExtendSlot,
    FreeAdapter,
    LoadAdapter,
    Order,
    PrefillChunk,
    Quit,
    Result,
    RowDone,
    RunStep,
    StepDone,
    TurnFaulted,
)
from personae.engine.text import ReplyText
from personae.errors import AskedWrong, OurBug, PersonaeError, WorldFailed
from personae.types import AdapterKey, AdapterUse, FinishReason, Piece, SamplingParams, Slot, Token, TurnId

log = logging.getLogger(__name__)

_FAULTS = (AskedWrong, WorldFailed)


@dataclass(slots=True)
class _Turn:
    turn: TurnId
    slot: Slot
    adapter: AdapterUse | None
    sampler: Sampler
    text: ReplyText
    look_back: int  # prompt tokens the penalties want to see; -1: all
    max_tokens: int
    n_kv: int  # tokens in its slot
    n_drawn: int = 0
    last_token: Token = -1  # drawn and not yet in KV


_Chunk = tuple[_Turn, PrefillChunk]


def _are_alike(one: PrefillChunk, other: PrefillChunk) -> bool:
    return len(one.tokens) == len(other.tokens) and one.last == other.last and one.turn != other.turn


class EngineLoop:
    """`handle` each order in turn; `emit` is called with each result, on the same thread.

    `wake` is called on the loader thread when an adapter is ready for `settle`, so that a loop that sleeps can be woken.
    `prefill_chunk`: the most tokens of one prefill that is not ordered but needed, as in EngineSettings.
    """

    def __init__(
        self,
        backend: Backend,
        emit: Callable[[Result], None],
        wake: Callable[[], None] = lambda: None,
        prefill_chunk: int = 256,
    ) -> None:
        self.quitting = False  # a Quit was handled
        self._backend = backend
        self._emit = emit
        self._prefill_chunk = prefill_chunk
        self._turns: dict[TurnId, _Turn] = {}
        self._adapters = AdapterLoader(backend, emit, wake)

    def handle(self, order: Order) -> None:
        match order:
            case RunStep():
                self._run_step(order)
            case BeginTurn():
                self._begin_turn(order)
            case DropTurn(turn):
                self._end(turn)
            case ClearSlot(slot):
                self._clear_slot(slot)
            case LoadAdapter():
                self._adapters.load(order)
            case FreeAdapter(key):
                self._free_adapter(key)
            case Quit():
                self.quitting = True

    def settle(self, block: bool = False) -> None:
        """Install the adapters that have been read meanwhile. `block`: wait for all that are still being read."""
        self._adapters.settle(block)

    def close(self) -> None:
        """End every turn without a word, and the backend with them. A file that is still being read is not waited for."""
        for turn in list(self._turns):
            self._end(turn)
        self._adapters.close()
        self._backend.close()

    # --- a step ---------------------------------------------------------------------------------------------------

    def _run_step(self, step: RunStep) -> None:
        faults: list[TurnFaulted] = []
        turns = sorted((self._turns[turn] for turn in step.decode if turn in self._turns), key=lambda turn: turn.slot)
        n_adapters = len({turn.adapter for turn in turns})
        started = time.perf_counter()
        n_decodes, rows = self._decode_rows(turns, faults)
        decoded = time.perf_counter()
        prefilled, first_rows = self._prefill_chunks(step.prefill, faults)
        prefill_ended = time.perf_counter()
        extended = tuple((order.slot, self._extend(order)) for order in step.extend)
        ended = time.perf_counter()
        self._emit(
            StepDone(
                rows=(*rows, *first_rows),
                prefilled=tuple(prefilled),
                faults=tuple(faults),
                decode_ms=(decoded - started) * 1e3,
                prefill_ms=(prefill_ended - decoded) * 1e3,
                n_decodes=n_decodes,
                n_adapters=n_adapters,
                threads=self._backend.threads,
                extended=extended,
                extend_ms=(ended - prefill_ended) * 1e3,
            )
        )

    def _decode_rows(self, turns: list[_Turn], faults: list[TurnFaulted]) -> tuple[int, list[RowDone]]:
        """(calls of llama_decode, rows). `turns` in order of slots."""
        if not turns:
            return 0, []
        if any(turn.n_drawn == 0 for turn in turns):
            raise OurBug("internal", "A step wants to decode a turn whose prompt is not prefilled.")
        try:
            report = self._backend.decode([(turn.slot, turn.last_token) for turn in turns])
        except _FAULTS as error:  # nobody knows which of the rows did it
            faults += [self._undo(turn, error) for turn in turns]
            return 0, []
        for turn in turns:
            turn.n_kv += 1
        rows = [self._draw(turn, faults) for turn in turns]
        return report.n_decodes, [row for row in rows if row]

    def _prefill_chunks(self, chunks: Sequence[PrefillChunk], faults: list[TurnFaulted]) -> tuple[list[tuple[TurnId, int]], list[RowDone]]:
        prefilled: list[tuple[TurnId, int]] = []
        rows: list[RowDone] = []
        for group in self._groups(chunks):
            for turn, chunk in self._prefill_group(group, faults):
                prefilled.append((turn.turn, len(chunk.tokens)))
                if chunk.last and (row := self._draw(turn, faults)):
                    rows.append(row)
        return prefilled, rows

    def _groups(self, chunks: Sequence[PrefillChunk]) -> list[list[_Chunk]]:
        """Chunks of open turns, in order; neighbours that can share a decode are together: one length, one chunk a turn.

        A line that is said to everybody at the table is such a group: each NPC prefills the same few tokens, and a decode of their own
        would cost each of them nearly what it costs all.
        """
        groups: list[list[_Chunk]] = []
        for chunk in chunks:
            turn = self._turns.get(chunk.turn)
            if turn is None:
                continue
            last = groups[-1] if groups else []
            fits = (len(last) + 1) * len(chunk.tokens) <= self._prefill_chunk
            if last and fits and all(_are_alike(one, chunk) for _, one in last):
                last.append((turn, chunk))
            else:
                groups.append([(turn, chunk)])
        return groups

    def _prefill_group(self, group: list[_Chunk], faults: list[TurnFaulted]) -> Iterator[_Chunk]:
        """Those of the group that are in KV now. Each is handed out while its slot has its logits."""
        if len(group) > 1 and self._prefill_together(group):
            yield from group
            return
        for turn, chunk in group:
            if self._prefill_chunk_of(turn, chunk, faults):
                yield turn, chunk

    def _prefill_together(self, group: list[_Chunk]) -> bool:
        """False when one of them does not fit: nothing has happened then, and each finds out for itself."""
        try:
            self._backend.prefill_alike([(turn.slot, chunk.tokens) for turn, chunk in group], wants_logits=group[0][1].last)
        except AskedWrong:
            return False
        for turn, chunk in group:
            turn.n_kv += len(chunk.tokens)
            _accept(turn.sampler, chunk.tokens, turn.look_back)
        return True

    def _prefill_chunk_of(self, turn: _Turn, chunk: PrefillChunk, faults: list[TurnFaulted]) -> bool:
        try:
            self._prefill(turn, chunk.tokens, wants_logits=chunk.last)
            _accept(turn.sampler, chunk.tokens, turn.look_back)
        except _FAULTS as error:
            faults.append(self._undo(turn, error))
            return False
        return True

    def _prefill(self, turn: _Turn, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        self._backend.prefill(turn.slot, tokens, wants_logits=wants_logits)
        turn.n_kv += len(tokens)

    def _extend(self, order: ExtendSlot) -> int:
        """Returns how many tokens were appended."""
        if any(turn.slot == order.slot for turn in self._turns.values()):
            raise OurBug("internal", f"Slot {order.slot} was to be extended while a turn is open in it.")
        if self._backend.n_tokens(order.slot) != order.held:
            return 0
        try:
            for start in range(0, len(order.tokens), self._prefill_chunk):
                self._backend.prefill(order.slot, order.tokens[start : start + self._prefill_chunk], wants_logits=False)
        except _FAULTS as error:
            log.warning("slot %d could not be extended by %d tokens: %s", order.slot, len(order.tokens), error)
            self._backend.cut(order.slot, order.held)
            return 0
        return len(order.tokens)

    def _undo(self, turn: _Turn, error: PersonaeError) -> TurnFaulted:
        """A decode failed half-way: its slot may hold some of what it was to append."""
        self._backend.cut(turn.slot, turn.n_kv)
        return self._fault(turn.turn, error)

    def _draw(self, turn: _Turn, faults: list[TurnFaulted]) -> RowDone | None:
        """The turn's next token, from the logits its slot has now. None when that was a fault."""
        try:
            token = self._backend.sample(turn.slot, turn.sampler)
        except _FAULTS as error:
            faults.append(self._fault(turn.turn, error))
            return None
        turn.last_token = token
        turn.n_drawn += 1
        pieces, finish = self._speak(turn, token)
        if finish:
            self._end(turn.turn)
        return RowDone(turn.turn, token, pieces, finish)

    def _speak(self, turn: _Turn, token: Token) -> tuple[tuple[Piece, ...], FinishReason | None]:
        vocabulary, text = self._backend.vocabulary, turn.text
        if vocabulary.is_end(token):
            return text.close(), text.finish or FinishReason.END
        pushed = text.push(vocabulary.piece(token))
        if pushed.finish:
            return pushed.pieces, pushed.finish
        if turn.n_drawn >= turn.max_tokens:
            return pushed.pieces + text.close(), text.finish or FinishReason.LENGTH
        if turn.n_kv >= self._backend.card.n_ctx:
            return pushed.pieces + text.close(), text.finish or FinishReason.CONTEXT
        return pushed.pieces, None

    # --- turns and slots ------------------------------------------------------------------------------------------

    def _begin_turn(self, order: BeginTurn) -> None:
        if order.turn in self._turns or any(turn.slot == order.slot for turn in self._turns.values()):
            raise OurBug("internal", f"Turn {order.turn} begins in slot {order.slot}, where a turn is open.")
        try:
            left = self._backend.cut(order.slot, min(order.keep, self._backend.n_tokens(order.slot)))
            self._backend.bind(order.slot, order.adapter)
            turn = self._turns[order.turn] = self._new_turn(order, left)
            if left < order.keep:
                self._refill(turn, order)
            _accept(turn.sampler, order.history, turn.look_back)
        except _FAULTS as error:
            self._emit(self._fault(order.turn, error))

    def _new_turn(self, order: BeginTurn, n_kv: int) -> _Turn:
        return _Turn(
            turn=order.turn,
            slot=order.slot,
            adapter=order.adapter,
            sampler=self._backend.new_sampler(order.sampling),
            text=ReplyText(order.rules),
            look_back=_look_back(order.sampling),
            max_tokens=order.limits.max_tokens,
            n_kv=n_kv,
        )

    def _refill(self, turn: _Turn, order: BeginTurn) -> None:
        """Prefill again what the slot should have kept."""
        if len(order.history) != order.keep:
            raise WorldFailed("kv_lost", f"Slot {turn.slot} kept {turn.n_kv} of the {order.keep} tokens that turn {turn.turn} builds on.")
        log.warning("slot %d kept %d of %d tokens; the rest is prefilled again", turn.slot, turn.n_kv, order.keep)
        while turn.n_kv < order.keep:
            until = min(order.keep, turn.n_kv + self._prefill_chunk)
            self._prefill(turn, order.history[turn.n_kv : until], wants_logits=False)

    def _end(self, turn: TurnId) -> None:
        ended = self._turns.pop(turn, None)
        if ended:
            ended.sampler.close()

    def _fault(self, turn: TurnId, error: PersonaeError) -> TurnFaulted:
        self._end(turn)
        return TurnFaulted(turn, error.code, error.message, error.hint)

    def _clear_slot(self, slot: Slot) -> None:
        for turn in [turn.turn for turn in self._turns.values() if turn.slot == slot]:
            self._end(turn)
        self._backend.cut(slot, 0)

    def _free_adapter(self, key: AdapterKey) -> None:
        if any(turn.adapter and turn.adapter.key == key for turn in self._turns.values()):
            raise OurBug("internal", f"Adapter {key} was to be freed while a turn speaks with it.")
        self._adapters.free(key)


def _look_back(sampling: SamplingParams) -> int:
    """How many tokens before the next one the penalties of this turn look at; -1: all."""
    windows = [0]
    if sampling.repeat_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty:
        windows.append(sampling.repeat_last_n)
    if sampling.dry_multiplier:
        windows.append(sampling.dry_last_n)
    return -1 if min(windows) < 0 else max(windows)


def _accept(sampler: Sampler, tokens: Sequence[Token], look_back: int) -> None:
    for token in tokens if look_back < 0 else tokens[max(0, len(tokens) - look_back) :]:
        sampler.accept(token)
