"""Decides nothing: does what orders say, against any `Backend`, and reports what happened. Knows no NPC, client, deadline or pipe.

The loop owns the steps; the open turns are in `open_turns`, the KV of slots and stashes in `slot_kv`, adapters in `adapter_loader`. It is
used from one thread; only files are read and written on others, and what those have ready is taken up by `settle` between orders.

Rules that always hold
- Each RunStep is answered by exactly one StepDone, each LoadAdapter by AdapterLoaded or AdapterRefused (one answer may serve several
  orders for the same key). Turns that a step names and that are not open (dropped, faulted, ended meanwhile) are passed over.
- A fault ends one turn, and is reported once: in StepDone.faults or, from BeginTurn, as a TurnFaulted. It takes nothing from the turn's
  slot that was reported to be there; what may be there besides is cut by the next BeginTurn. So the books above stay true without a rule
  for faults.
- Where a slot holds less of the prefix than BeginTurn or ResumeTurn was promised, the rest of it is prefilled again from `history`, there
  and then, and TurnRefilled says so: rare, and right. Without a history it is a fault, `kv_lost`.
- A paused turn is resumed as it was: what of its prompt the sampler has accepted it does not accept again.
- A slot is extended wholly or not at all, and never at the cost of the step: a fault there is logged, cut away and reported as 0 tokens.
- A turn whose slot is full after its last token, or holds `max_kv` tokens, ends with CONTEXT: there is no place for the next decode.
- OurBug passes through: the engine's state cannot be trusted, its process ends and is started again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from personae.engine.adapter_loader import AdapterLoader
from personae.engine.backend import Backend
from personae.engine.batch import (
    BeginTurn,
    ClearSlot,
    CopySlot,
    DropStash,
    DropTurn,
    ExtendSlot,
    FetchStash,
    FreeAdapter,
    LoadAdapter,
    Order,
    PauseTurn,
    PrefillChunk,
    Quit,
    ReadKv,
    Result,
    ResumeTurn,
    RowDone,
    RunStep,
    StashSlot,
    StepDone,
    TurnFaulted,
    TurnRefilled,
    WriteKv,
)
from personae.engine.open_turns import OpenTurn, OpenTurns, look_back
from personae.engine.slot_kv import SlotKv
from personae.engine.text import ReplyText
from personae.errors import AskedWrong, OurBug, PersonaeError, WorldFailed
from personae.types import AdapterKey, FinishReason, Piece, Slot, Token, TurnId

log = logging.getLogger(__name__)

_FAULTS = (AskedWrong, WorldFailed)

_Chunk = tuple[OpenTurn, PrefillChunk]


def _are_alike(one: PrefillChunk, other: PrefillChunk) -> bool:
    return len(one.tokens) == len(other.tokens) and one.last == other.last and one.turn != other.turn


class EngineLoop:
    """`handle` each order in turn; `emit` is called with each result, on the same thread.

    `wake` is called on another thread when an adapter or a KV file is ready for `settle`, so that a loop that sleeps can be woken.
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
        self._turns = OpenTurns()
        self._adapters = AdapterLoader(backend, emit, wake)
        self._kv = SlotKv(backend, emit, wake)
        self._moved_s = 0.0  # since the last step

    def handle(self, order: Order) -> None:
        match order:
            case RunStep():
                self._run_step(order)
            case LoadAdapter():
                self._adapters.load(order)
            case FreeAdapter(key):
                self._free_adapter(key)
            case Quit():
                self._kv.settle(block=True)
                self.quitting = True
            case _:
                started = time.perf_counter()
                self._rearrange(order)
                self._moved_s += time.perf_counter() - started

    def _rearrange(self, order: Order) -> None:
        """What changes who is in which slot, and with which KV."""
        match order:
            case BeginTurn():
                self._begin_turn(order)
            case DropTurn(turn):
                self._turns.end(turn)
            case PauseTurn(turn):
                self._pause_turn(turn)
            case ResumeTurn():
                self._resume_turn(order)
            case ClearSlot(slot):
                self._clear_slot(slot)
            case _:
                self._move_kv(order)

    def _move_kv(self, order: Order) -> None:
        match order:
            case StashSlot():
                self._kv.stash(order)
            case FetchStash():
                self._require_idle(order.slot)
                self._kv.fetch(order)
            case DropStash(stash):
                self._kv.drop(stash)
            case CopySlot():
                self._require_idle(order.target)
                self._kv.copy(order)
            case WriteKv():
                self._kv.write(order)
            case ReadKv():
                self._kv.read(order)

    def settle(self, block: bool = False) -> None:
        """Install the adapters that have been read meanwhile, and report the KV files. `block`: wait for all that is still under way."""
        self._adapters.settle(block)
        self._kv.settle(block)

    def close(self) -> None:
        """End every turn without a word, and the backend with them. An adapter that is still being read is not waited for."""
        for turn in self._turns:
            self._turns.end(turn.turn)
        self._adapters.close()
        self._kv.close()
        self._backend.close()

    # --- a step ---------------------------------------------------------------------------------------------------

    def _run_step(self, step: RunStep) -> None:
        faults: list[TurnFaulted] = []
        turns = sorted(filter(None, map(self._turns.get, step.decode)), key=lambda turn: turn.place)
        moved_s, self._moved_s = self._moved_s, 0.0
        n_voices = len({turn.voice for turn in turns})
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
                n_voices=n_voices,
                threads=self._backend.threads,
                extended=extended,
                extend_ms=(ended - prefill_ended) * 1e3,
                moved_ms=moved_s * 1e3,
            )
        )

    def _decode_rows(self, turns: list[OpenTurn], faults: list[TurnFaulted]) -> tuple[int, list[RowDone]]:
        """(calls of llama_decode, rows). `turns` in order of slots."""
        if not turns:
            return 0, []
        if not all(turn.can_speak for turn in turns):
            raise OurBug("internal", "A step wants to decode a turn whose prompt is not prefilled.")
        try:
            report = self._backend.decode([(turn.place, turn.last_token) for turn in turns])
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
            if not turn.can_take(chunk):
                raise OurBug("internal", f"A chunk of {len(chunk.tokens)} tokens is not what turn {turn.turn} has left to prefill.")
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
            self._backend.prefill_alike([(turn.place, chunk.tokens) for turn, chunk in group], wants_logits=group[0][1].last)
        except AskedWrong:
            return False
        for turn, chunk in group:
            self._appended(turn, chunk.tokens)
        return True

    def _prefill_chunk_of(self, turn: OpenTurn, chunk: PrefillChunk, faults: list[TurnFaulted]) -> bool:
        try:
            self._prefill(turn, chunk.tokens, wants_logits=chunk.last)
        except _FAULTS as error:
            faults.append(self._undo(turn, error))
            return False
        return True

    def _prefill(self, turn: OpenTurn, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        self._backend.prefill(turn.place, tokens, wants_logits=wants_logits)
        self._appended(turn, tokens)

    def _appended(self, turn: OpenTurn, tokens: Sequence[Token]) -> None:
        turn.hear(tokens, turn.n_kv)
        turn.n_kv += len(tokens)

    def _extend(self, order: ExtendSlot) -> int:
        """Returns how many tokens were appended."""
        self._require_idle(order.slot)
        if self._backend.n_tokens(order.slot) != order.held:
            return 0
        self._kv.rebind(order.slot)
        try:
            for start in range(0, len(order.tokens), self._prefill_chunk):
                self._backend.prefill(order.slot, order.tokens[start : start + self._prefill_chunk], wants_logits=False)
        except _FAULTS as error:
            log.warning("slot %d could not be extended by %d tokens: %s", order.slot, len(order.tokens), error)
            self._backend.cut(order.slot, order.held)
            return 0
        return len(order.tokens)

    def _undo(self, turn: OpenTurn, error: PersonaeError) -> TurnFaulted:
        """A decode failed half-way: its slot may hold some of what it was to append."""
        self._backend.cut(turn.place, turn.n_kv)
        return self._fault(turn.turn, error)

    def _draw(self, turn: OpenTurn, faults: list[TurnFaulted]) -> RowDone | None:
        """The turn's next token, from the logits its slot has now. None when that was a fault."""
        try:
            token = self._backend.sample(turn.place, turn.sampler)
        except _FAULTS as error:
            faults.append(self._fault(turn.turn, error))
            return None
        turn.drew(token)
        pieces, finish = self._speak(turn, token)
        if finish:
            self._turns.end(turn.turn)
        return RowDone(turn.turn, token, pieces, finish)

    def _speak(self, turn: OpenTurn, token: Token) -> tuple[tuple[Piece, ...], FinishReason | None]:
        vocabulary, text = self._backend.vocabulary, turn.text
        if vocabulary.is_end(token):
            return text.close(), text.finish or FinishReason.END
        pushed = text.push(vocabulary.piece(token))
        if pushed.finish:
            return pushed.pieces, pushed.finish
        if turn.n_drawn >= turn.max_tokens:
            return pushed.pieces + text.close(), text.finish or FinishReason.LENGTH
        if turn.n_kv >= turn.most_kv:
            return pushed.pieces + text.close(), text.finish or FinishReason.CONTEXT
        return pushed.pieces, None

    # --- turns and slots ------------------------------------------------------------------------------------------

    def _begin_turn(self, order: BeginTurn) -> None:
        if self._turns.get(order.turn):
            raise OurBug("internal", f"Turn {order.turn} begins, and is open already.")
        self._require_idle(order.slot)
        try:
            left = self._kv.take(order.slot, order.keep, order.voice)
            turn = self._new_turn(order, left)
            self._turns.add(turn)
            self._build_on(turn, order.history, order.keep)
        except _FAULTS as error:
            self._emit(self._fault(order.turn, error))

    def _new_turn(self, order: BeginTurn, n_kv: int) -> OpenTurn:
        n_ctx = self._backend.card.n_ctx
        return OpenTurn(
            turn=order.turn,
            slot=order.slot,
            voice=order.voice,
            sampler=self._backend.new_sampler(order.sampling),
            text=ReplyText(order.rules),
            look_back=look_back(order.sampling),
            max_tokens=order.limits.max_tokens,
            most_kv=min(n_ctx, order.limits.max_kv or n_ctx),
            n_kv=n_kv,
        )

    def _pause_turn(self, turn: TurnId) -> None:
        paused = self._turns.get(turn)
        if paused:
            paused.slot = None

    def _resume_turn(self, order: ResumeTurn) -> None:
        turn = self._turns.get(order.turn)
        if turn is None:
            return
        if turn.slot is not None or (turn.n_drawn and order.keep >= turn.n_heard):
            raise OurBug("internal", f"Turn {turn.turn} cannot be resumed on {order.keep} tokens in slot {order.slot}.")
        self._require_idle(order.slot)
        try:
            turn.n_kv = self._kv.take(order.slot, order.keep, turn.voice)
            turn.slot = order.slot
            self._build_on(turn, order.history, order.keep)
        except _FAULTS as error:
            self._emit(self._fault(order.turn, error))

    def _build_on(self, turn: OpenTurn, history: Sequence[Token], keep: int) -> None:
        """See that the first `keep` tokens of a turn are in its slot, and that its sampler has heard them."""
        turn.hear(history, 0)
        turn.n_heard = max(turn.n_heard, keep)
        n_missing = keep - turn.n_kv
        if n_missing:
            self._refill(turn, history, keep)
            self._emit(TurnRefilled(turn.turn, n_missing))

    def _refill(self, turn: OpenTurn, history: Sequence[Token], keep: int) -> None:
        if len(history) != keep:
            raise WorldFailed("kv_lost", f"Slot {turn.slot} kept {turn.n_kv} of the {keep} tokens that turn {turn.turn} builds on.")
        log.info("slot %d holds %d of %d tokens; the rest is prefilled again", turn.slot, turn.n_kv, keep)
        while turn.n_kv < keep:
            until = min(keep, turn.n_kv + self._prefill_chunk)
            self._prefill(turn, history[turn.n_kv : until], wants_logits=False)

    def _fault(self, turn: TurnId, error: PersonaeError) -> TurnFaulted:
        self._turns.end(turn)
        return TurnFaulted(turn, error.code, error.message, error.hint)

    def _clear_slot(self, slot: Slot) -> None:
        turn = self._turns.in_slot(slot)
        if turn:
            self._turns.end(turn.turn)
        self._kv.clear(slot)

    def _require_idle(self, slot: Slot) -> None:
        turn = self._turns.in_slot(slot)
        if turn:
            raise OurBug("internal", f"Slot {slot} was to be changed while turn {turn.turn} is open in it.")

    def _free_adapter(self, key: AdapterKey) -> None:
        if self._turns.use_adapter(key):
            raise OurBug("internal", f"Adapter {key} was to be freed while a turn speaks with it.")
        self._adapters.free(key)
