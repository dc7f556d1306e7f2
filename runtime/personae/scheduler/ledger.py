"""What the scheduler has done, in numbers: for `stats`, and for the hint when to come again. Decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from math import ceil

from personae.engine.batch import EngineCounters, StepDone
from personae.scheduler.sequence import Sequence
from personae.types import Priority

WEIGHT = 0.2  # of a new turn in the average time that one holds its slot
GUESS_HOLD_MS = 3000.0  # until measured: a short reply on a laptop
STEP_GRAIN_MS = 5  # of the lengths of steps, as they are counted
SHORTEST_RETRY_MS, LONGEST_RETRY_MS = 250, 60_000


@dataclass(slots=True)
class Waits:
    """From asked to the first slot."""

    turns: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0

    def note(self, waited_ms: float) -> None:
        self.turns += 1
        self.total_ms += waited_ms
        self.longest_ms = max(self.longest_ms, waited_ms)

    def statistics(self) -> dict[str, object]:
        return {"mean_ms": round(self.total_ms / max(1, self.turns), 1), "max_ms": round(self.longest_ms, 1)}


class Ledger:
    def __init__(self) -> None:
        self.asked = 0
        self.ended: Counter[str] = Counter()  # finish reason or error code -> turns
        self.counters = EngineCounters()
        self.steps = 0
        self.pauses = 0
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.refilled_tokens = 0  # promised to a turn, not found by the engine and prefilled there and then
        self._reply_tokens = 0
        self._waits = Waits()
        self._waits_of = {priority: Waits() for priority in Priority}
        self._hold_ms = GUESS_HOLD_MS  # in a slot, average
        self._holds = 0

    def note_begun(self, turn: Sequence, now_ms: float) -> None:
        """Seated for the first time."""
        for waits in (self._waits, self._waits_of[turn.asked.priority]):
            waits.note(now_ms - turn.asked.at_ms)
        self.prompt_tokens += len(turn.asked.prompt)

    def note_seated(self, turn: Sequence) -> None:
        """For the first time or after a pause."""
        self.reused_tokens += turn.brought

    def note_refilled(self, turn: Sequence, n_tokens: int) -> None:
        self.refilled_tokens += n_tokens
        self.reused_tokens -= turn.note_refilled(n_tokens)

    def note_ended(self, turn: Sequence, how: str, now_ms: float) -> None:
        self.ended[how] += 1
        self._reply_tokens += len(turn.drawn)
        if turn.has_begun:
            held_ms = now_ms - turn.begun_ms - turn.paused_at(now_ms)
            self._hold_ms += (WEIGHT if self._holds else 1.0) * (held_ms - self._hold_ms)
            self._holds += 1

    def note_step(self, step: StepDone, rows: int, prefilled: int) -> None:
        """`rows`: those of the decode, without the first tokens that prefill drew."""
        counters = self.counters
        self.steps += 1
        counters.threads = step.threads
        counters.prefill_tokens += prefilled
        counters.decode_ms += step.decode_ms
        counters.prefill_ms += step.prefill_ms
        counters.idle_prefill_tokens += sum(n_tokens for _, n_tokens in step.extended)
        counters.idle_prefill_ms += step.extend_ms
        counters.moved_ms += step.moved_ms
        length_ms = STEP_GRAIN_MS * ceil((step.moved_ms + step.decode_ms + step.prefill_ms + step.extend_ms) / STEP_GRAIN_MS)
        counters.by_ms[length_ms] = counters.by_ms.get(length_ms, 0) + 1
        if rows:
            counters.decodes += step.n_decodes
            counters.rows += rows
            counters.mixed_decodes += step.n_voices > step.n_decodes  # grouped mode decodes each voice apart
            counters.by_rows[rows] = counters.by_rows.get(rows, 0) + 1

    def retry_after_ms(self, waiting: int, n_slots: int) -> int:
        """When half of those who wait now will have gone, by what turns have taken so far."""
        drain_ms = self._hold_ms * waiting / max(1, n_slots) / 2
        return int(min(max(drain_ms, SHORTEST_RETRY_MS), LONGEST_RETRY_MS))

    def statistics(self) -> dict[str, object]:
        counters = self.counters
        engine: dict[str, object] = asdict(counters)
        engine["by_ms"] = {str(ms): times for ms, times in sorted(counters.by_ms.items())}
        engine["by_rows"] = {str(rows): times for rows, times in sorted(counters.by_rows.items())}
        return {
            "turns": {"asked": self.asked, "ended": {str(how): turns for how, turns in self.ended.items()}},
            "waits": {
                **self._waits.statistics(),
                "by_class": {str(priority): waits.statistics() for priority, waits in self._waits_of.items()},
            },
            "pauses": self.pauses,
            "hold_ms": round(self._hold_ms, 1),
            "reuse": {"prompt_tokens": self.prompt_tokens, "reused_tokens": self.reused_tokens, "refilled_tokens": self.refilled_tokens},
            "reply_tokens": self._reply_tokens,
            "steps": self.steps,
            "rows_per_decode": round(counters.rows / max(1, counters.decodes), 3),
            "mixed_share": round(counters.mixed_decodes / max(1, counters.decodes), 3),
            "engine": engine,
        }
