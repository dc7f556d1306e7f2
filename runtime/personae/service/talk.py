"""Decides what a say, a warm or a cancel does to the turns that are open already. Knows no frame, prompt or scheduler.

    say      its NPC is free: a turn begins. It prepares itself: that gives way. It speaks: it breaks off, or the say waits, or is refused
    warm     its NPC is free: it is prepared. Otherwise there is nothing to prepare
    cancel   a turn that is open ends; of a reply that was heard in part, open or ended, the rest never happened

A line that interrupts is put first in the queue before the open turn is ended: so it follows in the same breath, and through the one
door by which everybody in a queue begins.
"""

from __future__ import annotations

from personae.errors import AskedWrong
from personae.service.conductor import Conductor
from personae.service.keeping import Keeping
from personae.service.manners import mid_reply_of, npc_busy
from personae.service.npcs import Npc, Npcs
from personae.service.sessions import Session
from personae.service.turns import Turns
from personae.types import FinishReason, TurnId
from personae.wire.messages import Cancel, Heard, MidReply, Say, Warm

MAX_OPEN_SAYS = 256  # of one client; the scheduler bounds the sum of all


class Talk:
    def __init__(self, npcs: Npcs, turns: Turns, conductor: Conductor, keeping: Keeping) -> None:
        self._npcs = npcs
        self._turns = turns
        self._conductor = conductor
        self._keeping = keeping

    def say(self, say: Say, session: Session, at_ms: float) -> None:
        _check_room(session)
        npc = self._npcs[say.npc]
        if npc.turn is None:
            self._answer(say, npc, session, at_ms)
        elif self._turns[npc.turn].is_warm:
            self._break_in(say, npc, session, at_ms, FinishReason.CANCELLED)
        else:
            self._say_mid_reply(say, npc, session, at_ms)

    def warm(self, warm: Warm, session: Session, at_ms: float) -> None:
        _check_room(session)
        npc = self._npcs[warm.npc]
        self.check_free(npc)
        self._conductor.handle(self._turns.ask(warm, npc, session, at_ms))

    def cancel(self, cancel: Cancel, session: Session, at_ms: float) -> tuple[bool, int]:
        """Whether there was something to cancel, and how many characters went out of the history. A say that has ended meanwhile is no
        error: the two crossed on the way."""
        turn = session.open.get(cancel.turn) if cancel.turn is not None else self._npcs[str(cancel.npc)].turn
        if turn is not None and not self._turns[turn].is_warm:
            return True, self._cancel_open(turn, cancel.heard, at_ms)
        if turn is not None:  # it has said nothing: what was heard is of the reply before it
            self._conductor.cancel(turn, at_ms)
        elif cancel.turn is not None and cancel.turn > session.last_say:
            raise AskedWrong("unknown_turn", f"This session has asked no say {cancel.turn}.", "Give the id of the say.")
        npc = self._last_speaker(cancel, session)
        return turn is not None, self._cut(npc, cancel.heard) if npc is not None and cancel.heard is not None else 0

    def give_way(self, npc: Npc, at_ms: float) -> None:
        """Whoever changes what an NPC has heard ends its being prepared for the old. AskedWrong `npc_busy` when it speaks."""
        if npc.turn is not None and self._turns[npc.turn].is_warm:
            self._conductor.cancel(npc.turn, at_ms)
        self.check_free(npc)

    def check_free(self, npc: Npc) -> None:
        """AskedWrong `npc_busy` when anything of it is open."""
        if not self._turns.is_quiet(npc):
            is_warm = npc.turn is not None and self._turns[npc.turn].is_warm
            raise npc_busy(npc.id, "being prepared" if is_warm else "speaking")

    # --- a say ----------------------------------------------------------------------------------------------------------

    def _answer(self, say: Say, npc: Npc, session: Session, at_ms: float) -> None:
        if say.heard is not None:
            self._turns.check(say, npc)  # a say that is refused has cut nothing
            npc.cut_heard(say.heard)
        self._conductor.handle(self._turns.ask(say, npc, session, at_ms))

    def _say_mid_reply(self, say: Say, npc: Npc, session: Session, at_ms: float) -> None:
        match mid_reply_of(say, npc.player):
            case MidReply.INTERRUPT:
                self._break_in(say, npc, session, at_ms, FinishReason.INTERRUPTED)
            case MidReply.QUEUE:
                self._turns.wait(say, npc, session, at_ms)
            case MidReply.REFUSE:
                raise npc_busy(npc.id, "speaking")

    def _break_in(self, say: Say, npc: Npc, session: Session, at_ms: float, finish: FinishReason) -> None:
        """`finish`: of the turn that is open. What was heard of it is cut there; of one that said nothing, from the reply before it."""
        assert npc.turn is not None
        open_turn = self._turns[npc.turn]
        newcomer = self._turns.wait(say, npc, session, at_ms, first=True)
        if not open_turn.is_warm:
            open_turn.heard, newcomer.cuts_last = say.heard, False
        self._conductor.cancel(open_turn.turn, at_ms, finish)

    # --- a cancel -------------------------------------------------------------------------------------------------------

    def _cancel_open(self, number: TurnId, heard: Heard | None, at_ms: float) -> int:
        turn = self._turns[number]
        turn.heard = heard
        self._conductor.cancel(number, at_ms)
        return turn.n_unheard

    def _last_speaker(self, cancel: Cancel, session: Session) -> Npc | None:
        """Whose reply is meant; None where it is not the newest line, or not any more."""
        if cancel.npc is not None:
            return None if (npc := self._npcs[cancel.npc]).is_unsaid else npc
        npc_id, turn = session.spoken.get(cancel.turn or 0, (None, None))
        if npc_id is None or npc_id not in self._npcs:
            return None
        npc = self._npcs[npc_id]
        return npc if npc.answer is not None and npc.answer.turn == turn else None

    def _cut(self, npc: Npc, heard: Heard) -> int:
        n_cut = npc.cut_last(heard, with_question=True)
        if n_cut:
            self._keeping.keep(npc)
        return n_cut


def _check_room(session: Session) -> None:
    if len(session.open) >= MAX_OPEN_SAYS:
        raise AskedWrong("busy", f"{len(session.open)} of this client's turns are open.", "Wait for some to end.", retry_after_ms=1000)
