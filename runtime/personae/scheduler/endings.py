"""How a turn leaves: what its client is told, what the engine is told, and what becomes of its place. Decides no end by itself."""

from __future__ import annotations

from personae.engine.batch import DropTurn
from personae.scheduler.actions import EndTurn, FailTurn
from personae.scheduler.books import Books
from personae.scheduler.sequence import Sequence
from personae.types import FinishReason


class Endings:
    def __init__(self, books: Books) -> None:
        self._books = books

    def end(self, turn: Sequence, finish: FinishReason, *, by_engine: bool = False) -> None:
        """`by_engine`: the engine has forgotten the turn already."""
        now_ms, asked_ms, reply = self._books.now_ms, turn.asked.at_ms, turn.reply(finish)
        self._books.answer.tell(
            EndTurn(
                turn.turn,
                finish,
                turn.usage(len(reply)),
                reply,
                queued_ms=(turn.begun_ms if turn.has_begun else now_ms) - asked_ms,
                ttft_ms=turn.first_ms - asked_ms if turn.drawn else -1.0,
                total_ms=now_ms - asked_ms,
                n_pauses=turn.n_pauses,
                paused_ms=turn.paused_at(now_ms),
            )
        )
        self._close(turn, finish, by_engine)

    def fail(self, turn: Sequence, why: FailTurn, *, by_engine: bool = False) -> None:
        self._books.answer.tell(why)
        self._close(turn, why.code, by_engine)

    def _close(self, turn: Sequence, how: str, by_engine: bool) -> None:
        """Out of all books but the slot's, if a step is under way that advances it."""
        books = self._books
        books.ledger.note_ended(turn, how, books.now_ms)
        turn.ended = True
        del books.turns[turn.turn]
        if books.of_npc.get(turn.npc) is turn:
            del books.of_npc[turn.npc]
        books.stirred = True
        if turn.turn in books.line:
            books.line.leave(turn)
        if not turn.has_begun or books.n_ctx is None:
            return
        if not by_engine:
            books.answer.order(DropTurn(turn.turn))
        if turn.place is None:
            books.answer.order(*books.host.note_ended(turn))
        elif books.flight is None or turn not in books.flight:
            books.slots.park(turn)
