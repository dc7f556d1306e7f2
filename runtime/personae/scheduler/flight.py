"""The one step under way: what was ordered, so that its report can be entered exactly. Knows what a report must account for; ends no turn.

A turn may end while the step that advances it is under way (cancelled, out of time). The engine works off its orders in their order,
so the step happens all the same: its tokens are in the KV, and the slot stays taken until the report says how many.

`plan` makes the next one. Who speaks in it is decided in rows.py, how much fits in budget.py; here, how rows and prompts share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from personae.engine.batch import ExtendSlot, PrefillChunk, RowDone, RunStep, StepDone
from personae.errors import OurBug
from personae.scheduler.budget import StepBudget
from personae.scheduler.rows import ahead_of, due, fitting
from personae.scheduler.sequence import Place, Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import MixMode, Token, TurnId

Extension = tuple[Place, tuple[Token, ...]]

PATIENCE, LONG_PATIENCE = 1, 3  # steps of rows before prompts get one to themselves; where the rows are of a higher class, the second


@dataclass(slots=True)
class Flight:
    decode: list[Sequence]
    chunks: list[PrefillChunk]
    turns: dict[TurnId, Sequence] = field(default_factory=dict)  # all of them
    extensions: list[Extension] = field(default_factory=list)
    n_prefills: int = 0  # decodes that the chunks need
    held_up: int = 0  # steps in a row, this one included, in which a prompt waited and none went on

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

    def rows_in(self, step: StepDone) -> int:
        """Rows of the decode, without the first tokens that prefill drew. One that faulted was decoded with the others."""
        speaking = {turn.turn for turn in self.decode}
        return len(speaking & ({row.turn for row in step.rows} | {fault.turn for fault in step.faults}))

    def unaccounted(self, step: StepDone) -> list[Sequence]:
        """Turns of the step that the report passes over in silence. A chunk that draws nothing needs no row, even if it is a prompt's last:
        its turn is only prepared, or goes on with a token that it drew before it was paused."""
        answered = {row.turn for row in step.rows} | {fault.turn for fault in step.faults}
        drawing = {turn.turn for turn in self.decode} | {chunk.turn for chunk in self.chunks if chunk.last}
        answered |= {name for name, _ in step.prefilled} - drawing
        return [turn for name, turn in self.turns.items() if not turn.ended and name not in answered]


def plan(
    busy: list[Sequence],
    owed: list[Place],
    budget: StepBudget,
    now_ms: float,
    config: SchedulerConfig,
    *,
    mode: MixMode = MixMode.MIXED,
    last: Flight | None = None,
) -> Flight | None:
    """The next step: those who speak, as many as its time allows; prompts by class and age in what is left of it; when nobody is at work, a
    parked slot is extended. None: nothing to do. `busy` in order of slots; `last`: the step before, None if there was nothing to do."""
    speakers = [turn for turn in busy if turn.speaks]
    prompts = [turn for turn in busy if turn.prompt_left > 0]
    if prompts:
        prompts.sort(key=lambda turn: _urgency(turn, turn.class_at(now_ms, config.ageing_ms)))
        return _shared(speakers, prompts, budget, now_ms, config, mode, last.held_up if last else 0)
    decode = fitting(speakers, budget, now_ms, config, mode)
    extensions = [] if decode else list(_extensions(owed, budget))
    return Flight(decode, [], {turn.turn: turn for turn in decode}, extensions) if decode or extensions else None


def _urgency(turn: Sequence, its_class: int) -> tuple[int, bool, int]:
    """Least goes first. One that says nothing stands behind the others of its class, until it has risen as far as one can."""
    return its_class, its_class > 0 and not turn.asked.draws, turn.number


def _shared(
    speakers: list[Sequence],
    prompts: list[Sequence],
    budget: StepBudget,
    now_ms: float,
    config: SchedulerConfig,
    mode: MixMode,
    held_up: int,
) -> Flight:
    """A step while prompts wait. Where they and those who speak do not fit into one, they take turns: prompts wait for PATIENCE steps and
    get the next to themselves. Nobody waits longer for a first word because of a prompt of a lower class behind it: that is left out."""
    head_class = prompts[0].class_at(now_ms, config.ageing_ms)
    ahead = ahead_of(prompts[0], speakers, now_ms, config)
    speaking = set() if held_up >= (LONG_PATIENCE if ahead else PATIENCE) else {*ahead, *due(prompts[0], speakers, now_ms, config)}
    decode = fitting([turn for turn in speakers if turn in speaking], budget, now_ms, config, mode)
    chunks = _Chunks(budget, config, mode, budget.decode_ms(len(decode), n_decodes(decode, mode)))
    may_wait = bool(decode) and not ahead  # the next step has no rows
    if not (may_wait and budget.would_split(prompts[0].prompt_left, chunks.spent_ms)):
        chunks.add([turn for turn in prompts if turn.class_at(now_ms, config.ageing_ms) == head_class])
    named = {chunk.turn for chunk in chunks.made}
    turns = {turn.turn: turn for turn in [*decode, *(turn for turn in prompts if turn.turn in named)]}
    return Flight(decode, chunks.made, turns, n_prefills=chunks.n_decodes, held_up=0 if chunks.made else held_up + 1)


def n_decodes(rows: list[Sequence], mode: MixMode) -> int:
    """Calls of llama_decode for these rows."""
    return len({turn.voice for turn in rows}) if mode is MixMode.GROUPED else min(1, len(rows))


class _Chunks:
    """The chunks of one step. Neighbours of one length share a decode where voices are mixed: a line that everybody hears."""

    def __init__(self, budget: StepBudget, config: SchedulerConfig, mode: MixMode, spent_ms: float) -> None:
        self._budget, self._most_tokens, self._is_mixed = budget, config.prefill_chunk, mode is MixMode.MIXED
        self.spent_ms = spent_ms
        self.made: list[PrefillChunk] = []
        self.n_decodes = 0
        self._n_alike = 0  # chunks that share the last decode

    def add(self, prompts: list[Sequence]) -> None:
        for turn in prompts:
            start, left = turn.computed, turn.prompt_left
            joins = self._joins(turn.chunk(start, left))
            while left and (n_tokens := self._budget.chunk(left, self.spent_ms, joins=joins)):
                self._add(turn.chunk(start, n_tokens))
                start, left, joins = start + n_tokens, left - n_tokens, False

    def _add(self, chunk: PrefillChunk) -> None:
        joins = self._joins(chunk)
        self.spent_ms += self._budget.prefill_ms(len(chunk.tokens), joins=joins)
        self.n_decodes += not joins
        self._n_alike = self._n_alike + 1 if joins else 1
        self.made.append(chunk)

    def _joins(self, chunk: PrefillChunk) -> bool:
        """Whether the engine's loop will put it into one decode with the chunk before it."""
        if not self.made or not self._is_mixed:
            return False
        before, n_tokens = self.made[-1], len(chunk.tokens)
        is_alike = len(before.tokens) == n_tokens and before.last == chunk.last and before.turn != chunk.turn
        return is_alike and (self._n_alike + 1) * n_tokens <= self._most_tokens


def _extensions(owed: list[Place], budget: StepBudget) -> Iterator[Extension]:
    """One slot, and no more of what it is owed than a step's worth, so that a line that arrives meanwhile waits for little.

    Never beside a voice: there it would cost a decode of its own, more than the same tokens cost as the head of the next prompt.
    """
    for place in owed[:1]:
        yield place, place.take_owed(budget.chunk(len(place.owed), 0.0))
