"""What the scheduler has done, in numbers: for `stats`, and for the hint when to come again. Decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from personae.engine.batch import EngineCounters, StepDone
from personae.scheduler.sequence import Sequence

WEIGHT = 0.2  # of a new turn in the average time that one holds its slot
GUESS_HOLD_MS = 3000.0  # until measured: a short reply on a laptop
SHORTEST_RETRY_MS, LONGEST_RETRY_MS = 250, 60_000


class Ledger:
    def __init__(self) -> None:
        self.asked = 0
        self.ended: Counter[str] = Counter()  # finish reason or error code -> turns
        self.counters = EngineCounters()
        self.steps = 0
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self._reply_tokens = 0
        self._begun = 0
        self._waited_ms = 0.0
        self._longest_wait_ms = 0.0
        self._hold_ms = GUESS_HOLD_MS  # from slot to end, average
        self._holds = 0

    def note_begun(self, turn: Sequence, now_ms: float) -> None:
        waited_ms = now_ms - turn.asked.at_ms
        self._begun += 1
        self._waited_ms += waited_ms
        self._longest_wait_ms = max(self._longest_wait_ms, waited_ms)
        self.prompt_tokens += len(turn.asked.prompt)
        self.reused_tokens += turn.reused

    def note_ended(self, turn: Sequence, how: str, now_ms: float) -> None:
        self.ended[how] += 1
        self._reply_tokens += len(turn.drawn)
        if turn.place is not None:
            held_ms = now_ms - turn.begun_ms
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
        if rows:
            counters.decodes += step.n_decodes
            counters.rows += rows
            counters.mixed_decodes += step.n_adapters > step.n_decodes  # grouped mode decodes each adapter apart
            counters.by_rows[rows] = counters.by_rows.get(rows, 0) + 1

    def retry_after_ms(self, waiting: int, n_slots: int) -> int:
        """When half of those who wait now will have gone, by what turns have taken so far."""
        drain_ms = self._hold_ms * waiting / max(1, n_slots) / 2
        return int(min(max(drain_ms, SHORTEST_RETRY_MS), LONGEST_RETRY_MS))

    def statistics(self) -> dict[str, object]:
        counters = self.counters
        engine: dict[str, object] = asdict(counters)
        engine["by_rows"] = {str(rows): times for rows, times in sorted(counters.by_rows.items())}
        return {
            "turns": {"asked": self.asked, "ended": {str(how): turns for how, turns in self.ended.items()}},
            "waits": {"mean_ms": round(self._waited_ms / max(1, self._begun), 1), "max_ms": round(self._longest_wait_ms, 1)},
            "hold_ms": round(self._hold_ms, 1),
            "reuse": {"prompt_tokens": self.prompt_tokens, "reused_tokens": self.reused_tokens},
            "reply_tokens": self._reply_tokens,
            "steps": self.steps,
            "rows_per_decode": round(counters.rows / max(1, counters.decodes), 3),
            "mixed_share": round(counters.mixed_decodes / max(1, counters.decodes), 3),
            "engine": engine,
        }
