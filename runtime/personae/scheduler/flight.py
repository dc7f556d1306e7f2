"""The one step under way: what was ordered, so that its report can be entered exactly. Knows what a report must account for; ends no turn.

A turn may end while the step that advances it is under way (cancelled, out of time). The engine works off its orders in their order,
so the step happens all the same: its tokens are in the KV, and the slot stays taken until the report says how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from personae.engine.batch import PrefillChunk, RowDone, RunStep, StepDone
from personae.errors import OurBug
from personae.scheduler.budget import StepBudget
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import TurnId


@dataclass(slots=True)
class Flight:
    decode: list[Sequence]
    chunks: list[PrefillChunk]
    turns: dict[TurnId, Sequence] = field(default_factory=dict)  # all of them

    def __contains__(self, turn: Sequence) -> bool:
        return turn.turn in self.turns

    def order(self) -> RunStep:
        return RunStep(tuple(turn.turn for turn in self.decode), tuple(self.chunks))

    def _named(self, name: TurnId) -> Sequence:
        turn = self.turns.get(name)
        if turn is None:
            raise OurBug("internal", f"The engine reports turn {name}, which its step did not name.", "Restart the engine.")
        return turn

    def enter_prefilled(self, step: StepDone) -> int:
        """Returns the tokens that are in KV now."""
        total = 0
        for name, n_tokens in step.prefilled:
            self._named(name).note_prefilled(n_tokens)
            total += n_tokens
        return total

    def enter_fed(self, step: StepDone) -> int:
        """Each row of the decode has fed its turn's last token. Returns how many rows those were."""
        rows = 0
        for row in step.rows:
            turn = self._named(row.turn)
            rows += turn.pending is not None
            turn.note_fed()
        return rows

    def live_rows(self, step: StepDone) -> Iterator[tuple[Sequence, RowDone]]:
        """Rows of turns that somebody still listens to."""
        for row in step.rows:
            turn = self._named(row.turn)
            if not turn.ended:
                yield turn, row

    def unaccounted(self, step: StepDone) -> list[Sequence]:
        """Turns of the step that the report passes over in silence."""
        answered = {row.turn for row in step.rows} | {fault.turn for fault in step.faults}
        unfinished = {name for name, turn in self.turns.items() if turn.prompt_left > 0}
        answered |= {name for name, _ in step.prefilled} & unfinished
        return [turn for name, turn in self.turns.items() if not turn.ended and name not in answered]


def plan(busy: list[Sequence], budget: StepBudget, now_ms: float, config: SchedulerConfig) -> Flight | None:
    """The next step: speaking turns decode; prompts are prefilled by class and age as far as the time goes. None: nothing to do.

    A decode of few rows costs nearly as much as one of many, and the first word is what people wait for. So while a prompt waits, voices
    of its class or below speak at the pace of a reader, no faster; the time saved goes to the prompt, and they catch up after it.
    """
    prompts = [turn for turn in busy if turn.prompt_left > 0]
    prompts.sort(key=lambda turn: (turn.class_at(now_ms, config.ageing_ms), turn.number))
    decode = [turn for turn in busy if turn.pending is not None]
    urgent = [
        turn for turn in decode if prompts and turn.class_at(now_ms, config.ageing_ms) < prompts[0].class_at(now_ms, config.ageing_ms)
    ]
    if prompts and not budget.is_due(now_ms):
        decode = urgent
    if not decode and not prompts:
        return None
    if decode:
        budget.note_decode(now_ms)
    may_wait = bool(decode) and not urgent and config.pace_ms > 0  # the next step has no rows
    chunks = list(_chunks(prompts, budget, len(decode), may_wait))
    turns = {turn.turn: turn for turn in decode}
    named = {chunk.turn for chunk in chunks}
    turns.update((turn.turn, turn) for turn in prompts if turn.turn in named)
    return Flight(decode, chunks, turns)


def _chunks(prompts: list[Sequence], budget: StepBudget, rows: int, may_wait: bool) -> Iterator[PrefillChunk]:
    """`may_wait`: a prompt that the next step can take whole is not begun in this one; each piece of it would be a decode of its own."""
    if not prompts or (may_wait and budget.would_split(prompts[0].prompt_left, rows)):
        return
    tokens_left, is_first = budget.prefill_tokens(rows), True
    for turn in prompts:
        start, prompt_left = turn.computed, turn.prompt_left
        while n_tokens := budget.share(tokens_left, prompt_left, is_first):
            yield turn.chunk(start, n_tokens)
            start, prompt_left, tokens_left, is_first = start + n_tokens, prompt_left - n_tokens, tokens_left - n_tokens, False
