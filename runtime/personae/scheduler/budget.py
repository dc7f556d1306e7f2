"""How much fits into the next step: rows, and prompt tokens beside them. Decides by what earlier steps took; knows no turn by name.

The step aims at a fixed time, so that whatever arrives is picked up within it. Where a few rows cost as little each as many do, few are
taken: two steps of eight then end no later than one of sixteen, and a player's line that comes in between is read sooner.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from personae.engine.batch import StepDone
from personae.scheduler.costs import Costs
from personae.scheduler.settings import SchedulerConfig

if TYPE_CHECKING:
    from personae.scheduler.flight import Flight

WORTH = 1.08  # of the best price of a row: fewer rows at a time are taken when theirs is no higher
SHORTEST = 0.5  # of the target: steps are not cut any shorter than that; each costs a little besides, which is not measured
AIM = 0.85  # of the target, for a piece of a prompt: its time is the least certain of all that is in a step
STRETCH = 1.15  # of the target, when that ends a prompt: another decode for its last few tokens would cost more
FIRST_ROWS = 4  # in one step before any was measured; later at most twice as many as there ever were


class StepBudget:
    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._costs = Costs()
        self._most_seen = 0  # rows in one step

    def note(self, flight: Flight, step: StepDone) -> None:
        """What one step took. The time that KV was moved between steps is not of it: `moved_ms` is left alone."""
        rows = flight.rows_in(step)
        self._most_seen = max(self._most_seen, rows)
        self._costs.note_decode(rows, step.n_decodes, step.decode_ms)
        if len(step.prefilled) == len(flight.chunks):  # else some of the time went into a chunk that came to nothing
            self._costs.note_prefill(sum(n for _, n in step.prefilled), flight.n_prefills, step.prefill_ms)
        extended = [n for _, n in step.extended if n]
        self._costs.note_prefill(sum(extended), len(extended), step.extend_ms)

    # --- rows -----------------------------------------------------------------------------------------------------

    def decode_ms(self, rows: int, n_decodes: int = 1) -> float:
        return self._costs.decode_ms(rows, n_decodes)

    def rows(self, n: int) -> int:
        """How many of `n` rows that share one decode the next step takes: all, or a party of two, three... that are equally large."""
        worth_ms = WORTH * min(self.decode_ms(rows) / rows for rows in range(1, n + 1))
        parties = [ceil(n / times) for times in range(1, n + 1)]
        fitting = [rows for rows in parties if self.has_room(rows, 1)]
        cheap = [rows for rows in fitting if self.decode_ms(rows) <= worth_ms * rows and self.is_long(self.decode_ms(rows))]
        return cheap[-1] if cheap else max(fitting, default=1)

    def has_room(self, rows: int, n_decodes: int) -> bool:
        """Whether so many rows in so many decodes fit into a step, as far as can be told from fewer."""
        return rows <= max(FIRST_ROWS, 2 * self._most_seen) and self.decode_ms(rows, n_decodes) <= self._config.step_ms

    def is_long(self, ms: float) -> bool:
        """Whether a step of that length need not be made longer for the sake of its rows."""
        return ms >= SHORTEST * self._config.step_ms

    # --- prompts --------------------------------------------------------------------------------------------------

    @property
    def step_tokens(self) -> int:
        """Prompt tokens for a step with nothing else in it. On a machine that is too slow for the target: as many as cost no less than the
        pass over the weights that they need, or `min_chunk`."""
        chunk, fixed_ms = self._config.prefill_chunk, self._costs.prefill_ms(0, 1)
        n_full, left_ms = divmod(AIM * self._config.step_ms, self.prefill_ms(chunk))
        fit = int(n_full) * chunk + self._tokens_in(left_ms - fixed_ms)
        return max(1, fit, min(self._config.min_chunk, self._tokens_in(fixed_ms)))

    def prefill_ms(self, n_tokens: int, *, joins: bool = False) -> float:
        """A chunk, or a prompt in chunks as long as may be. `joins`: it shares the decode of the chunk before it."""
        n_decodes = 0 if joins else ceil(n_tokens / self._config.prefill_chunk)
        return self._costs.prefill_ms(n_tokens, n_decodes)

    def would_split(self, prompt_left: int, spent_ms: float) -> bool:
        """Whether a prompt that fits into a step of its own does not fit into one that spends so much on rows."""
        whole_ms, most_ms = self.prefill_ms(prompt_left), STRETCH * self._config.step_ms
        return whole_ms <= most_ms < spent_ms + whole_ms

    def chunk(self, prompt_left: int, spent_ms: float, *, joins: bool = False) -> int:
        """The next chunk of one prompt in a step that spends so much before it; 0 for none. Pieces of a prompt that takes several steps are
        equally long. A sliver at the end of a step is left to the next one: each chunk is a decode and costs one, whatever its length."""
        aim_ms, longest = AIM * self._config.step_ms, min(prompt_left, self._config.prefill_chunk)
        ends_ms = spent_ms + self.prefill_ms(longest, joins=joins)
        if ends_ms <= aim_ms or (longest == prompt_left and ends_ms <= STRETCH * self._config.step_ms):
            return longest
        piece = min(longest, ceil(prompt_left / ceil(prompt_left / self.step_tokens)))
        if not spent_ms:
            return piece
        n_tokens = min(piece, self._tokens_in(aim_ms - spent_ms - self._costs.prefill_ms(0, 1)))
        return n_tokens if n_tokens >= min(self._config.min_chunk, longest) else 0

    def _tokens_in(self, ms: float) -> int:
        """That a decode has time for besides its fixed cost; less than 0 where there is no time."""
        return int(ms / self._costs.prefill_ms(1, 0))

    def statistics(self) -> dict[str, object]:
        costs = self._costs
        prices = {
            "decode_fixed_ms": costs.decode_ms(0, 1),
            "decode_row_ms": costs.decode_ms(1, 0),
            "prefill_fixed_ms": costs.prefill_ms(0, 1),
            "prefill_token_ms": costs.prefill_ms(1, 0),
        }
        return {"step_ms": self._config.step_ms, **{name: round(ms, 3) for name, ms in prices.items()}}
