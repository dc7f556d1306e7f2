"""Decides when the model sums up what an NPC's context has no room for any more, and makes a memory of it. Off unless it is asked for.

It knows no client. A summary is a turn of the service's own: ambient, with the base model alone, under a name that no client can give, so
that the NPC it is about never waits for it. When it fails nothing is lost but the attempt: the end of the NPC's next turn brings another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from personae.errors import PersonaeError
from personae.prompt import Line, Prompt, PromptBuilder
from personae.prompt.summary import summary_request, without_question
from personae.scheduler.actions import EndTurn, FailTurn, Speak
from personae.scheduler.events import NpcGone, TurnAsked
from personae.service.heard import sentence_ends
from personae.service.keeping import Keeping
from personae.service.npcs import MAX_SEED, Npc, Npcs, digest
from personae.service.turns import Turns
from personae.types import FinishReason, Limits, NpcId, Priority, ReplyRules, SamplingParams, TurnId

LIMITS = Limits(max_tokens=96, max_seconds=120.0)  # three short sentences; memories have a tenth of the context
TEMPERATURE = 0.3  # it is to report, not to invent
MOST_CHARS = 2000
WHOLE = frozenset({FinishReason.END, FinishReason.STOP, FinishReason.LENGTH})


@dataclass(slots=True, eq=False)
class _Summary:
    npc: Npc
    edition: int
    until: int  # lines summed up, counted from the first the NPC ever had
    pieces: list[str] = field(default_factory=list)


class Summaries:
    def __init__(self, prompts: PromptBuilder, npcs: Npcs, turns: Turns, keeping: Keeping) -> None:
        self._prompts = prompts
        self._npcs = npcs
        self._turns = turns
        self._keeping = keeping
        self._due: dict[NpcId, Npc] = {}
        self._open: dict[TurnId, _Summary] = {}
        self._gone: deque[NpcId] = deque()  # ghosts that have done their work: their slots are free

    def __contains__(self, turn: TurnId) -> bool:
        return turn in self._open

    def note(self, npc: Npc) -> None:
        """A turn of this NPC has ended: perhaps there is something to sum up."""
        if npc.unseen > npc.remembered:
            self._due[npc.id] = npc

    def next_up(self, at_ms: float) -> TurnAsked | NpcGone | None:
        """What the scheduler is to hear next."""
        if self._gone:
            return NpcGone(at_ms, self._gone.popleft())
        while self._due:
            _, npc = self._due.popitem()
            if self._is_wanted(npc) and (asked := self._ask(npc, at_ms)) is not None:
                return asked
        return None

    def speak(self, action: Speak) -> None:
        self._open[action.turn].pieces += (piece.text for piece in action.pieces)

    def end(self, action: EndTurn) -> None:
        summary = self._close(action.turn)
        text = _memory(summary.npc.name, "".join(summary.pieces), action.finish)
        if text and self._is_there(summary.npc) and summary.npc.remember(text, summary.edition, summary.until):
            self._keeping.keep(summary.npc)
            self.note(summary.npc)

    def fail(self, action: FailTurn) -> None:
        self._close(action.turn)

    def forget_all(self) -> None:
        """The scheduler begins anew: whatever it was asked is no more."""
        self._open.clear()
        self._gone.clear()

    def _close(self, turn: TurnId) -> _Summary:
        summary = self._open.pop(turn)
        self._gone.append(_ghost_of(summary.npc))
        return summary

    def _is_there(self, npc: Npc) -> bool:
        """It may have gone, and another may have its name."""
        return npc.id in self._npcs and self._npcs[npc.id] is npc

    def _is_wanted(self, npc: Npc) -> bool:
        is_open = any(summary.npc is npc for summary in self._open.values())
        return self._is_there(npc) and npc.unseen > npc.remembered and not is_open and self._turns.is_quiet(npc)

    def _ask(self, npc: Npc, at_ms: float) -> TurnAsked | None:
        """None: not even one line can be summed up in this context."""
        lines = npc.lines[npc.remembered : npc.unseen]
        prompt = self._prompt(npc, lines)
        while prompt is None or (prompt.n_cut_lines and len(lines) > 1):  # rather half of them than all but the first
            if len(lines) <= 1:
                return None
            lines = lines[: len(lines) // 2]
            prompt = self._prompt(npc, lines)
        until = npc.n_trimmed + npc.remembered + len(lines)
        turn = self._turns.next_number()
        self._open[turn] = _Summary(npc, npc.edition, until)
        sampling = SamplingParams(temperature=TEMPERATURE, seed=digest(npc.seed, "summary", until) % (MAX_SEED + 1))
        rules = ReplyRules(self._prompts.stops)
        return TurnAsked(at_ms, turn, _ghost_of(npc), prompt.tokens, (), (), sampling, rules, LIMITS, Priority.AMBIENT)

    def _prompt(self, npc: Npc, lines: list[Line]) -> Prompt | None:
        try:
            return self._prompts.build(*summary_request(npc.name, lines), LIMITS.max_tokens)
        except PersonaeError:
            return None


def _ghost_of(npc: Npc) -> NpcId:
    """No name of the wire holds a control character."""
    return NpcId(f"summary\x1f{npc.id}")


def _memory(name: str, said: str, finish: FinishReason) -> str:
    """What is worth keeping of a summary; "" when nothing is. One that was too long loses the sentence it was cut in."""
    text = without_question(name, " ".join(said.split()))
    if finish not in WHOLE:
        return ""
    if finish is FinishReason.LENGTH:
        *whole, _last = sentence_ends(text) if text else (0,)
        text = text[: whole[-1]] if whole else text
    return text[:MOST_CHARS].strip()
