"""The one step under way: what was ordered, so that its report can be entered exactly. Knows what a report must account for; ends no turn.

A turn may end while the step that advances it is under way (cancelled, out of time). The engine works off its orders in their order,
so the step happens all the same: its tokens are in the KV, and the slot stays taken until the report says how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from personae.engine.batch import ExtendSlot, PrefillChunk, RowDone, RunStep, StepDone
from personae.errors import OurBug
from personae.scheduler.budget import StepBudget
from personae.scheduler.sequence import Place, Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import Token, TurnId

Extension = tuple[Place, tuple[Token, ...]]


@dataclass(slots=True)
class Flight:
    decode: list[Sequence]
    chunks: list[PrefillChunk]
    turns: dict[TurnId, Sequence] = field(default_factory=dict)  # all of them
    extensions: list[Extension] = field(default_factory=list)

    def __contains__(self, turn: Sequence) -> bool:
        return turn.turn in self.turns

    def order(self) -> RunStep:
        extend = tuple(ExtendSlot(place.slot, len(place.known), tokens) for place, tokens in self.extensions)
        return RunStep(tuple(turn.turn for turn in self.decode), tuple(self.chunks), extend)

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

    def enter_extended(self, step: StepDone) -> None:
        """A slot that the report passes over was not extended."""
        done = dict(step.extended)
        for place, tokens in self.extensions:
            place.note_extended(tokens, min(done.pop(place.slot, 0), len(tokens)))
        if done:
            raise OurBug("internal", f"The engine reports to have extended slots {list(done)}, which its step did not name.", "Restart it.")

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


def plan(busy: list[Sequence], owed: list[Place], budget: StepBudget, now_ms: float, config: SchedulerConfig) -> Flight | None:
    """The next step: speaking turns decode; prompts are prefilled by class and age as far as the time goes; when nobody is at work, a
    parked slot is extended. None: nothing to do.

    A decode of few rows costs nearly as much as one of many, and the first word is what people wait for. So while a prompt waits, voices
    of its class or below speak at the pace of a reader, no faster; the time saved goes to the prompt, and they catch up after it. When one
    of them is due, all speak: their rows cost little beside its own.
    """
    prompts = [turn for turn in busy if turn.prompt_left > 0]
    prompts.sort(key=lambda turn: (turn.class_at(now_ms, config.ageing_ms), turn.number))
    decode = [turn for turn in busy if turn.pending is not None]
    urgent = [
        turn for turn in decode if prompts and turn.class_at(now_ms, config.ageing_ms) < prompts[0].class_at(now_ms, config.ageing_ms)
    ]
    is_due = any(now_ms - turn.heard_ms >= config.pace_ms for turn in decode if turn not in urgent)
    if prompts and not is_due:
        decode = urgent
    extensions = [] if prompts or decode else list(_extensions(owed, budget, config))
    if not decode and not prompts and not extensions:
        return None
    may_wait = bool(decode) and not urgent and config.pace_ms > 0  # the next step has no rows
    chunks = list(_chunks(prompts, budget, len(decode), may_wait))
    turns = {turn.turn: turn for turn in decode}
    named = {chunk.turn for chunk in chunks}
    turns.update((turn.turn, turn) for turn in prompts if turn.turn in named)
    return Flight(decode, chunks, turns, extensions)


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


def _extensions(owed: list[Place], budget: StepBudget, config: SchedulerConfig) -> Iterator[Extension]:
    """One slot, and no more of what it is owed than a step's worth, so that a line that arrives meanwhile waits for little.

    Never beside a voice: there it would cost a decode of its own, more than the same tokens cost as the head of the next prompt.
    """
    for place in owed[:1]:
        yield place, place.take_owed(min(budget.prefill_tokens(0), config.prefill_chunk))
