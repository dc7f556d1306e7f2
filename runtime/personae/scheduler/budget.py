"""How many prompt tokens a step may prefill beside its decode rows. Decides by what earlier steps took; knows no turns and reads no clock.

The step aims at a fixed time, so that whatever arrives is picked up within it. Decode rows come first; what is left of the time
is spent on prefill. A floor of `min_chunk` tokens keeps prompts moving when the rows alone take too long.
"""

from __future__ import annotations

from personae.scheduler.settings import SchedulerConfig

WEIGHT = 0.2  # of a new measurement in its average: follows a busy machine within ten steps, shrugs at one slow step
FULL_WEIGHT_TOKENS = 64  # a shorter prefill says less about the price of a token: its decode has a fixed cost
STRETCH = 1.25  # of the time left for prefill, when that ends a prompt: another decode for its last few tokens would cost more
GUESS_PREFILL_MS = 2.0  # a token, until measured: a small quantized model on two CPU threads
GUESS_DECODE_MS = 15.0  # one row, until measured
GUESS_ROW_MS = 5.0  # each further row, until measured


class StepBudget:
    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._prefill_ms = GUESS_PREFILL_MS  # a token
        self._has_measured_prefill = False
        self._decode_ms: dict[int, float] = {}  # rows -> ms of the whole decode

    def note(self, rows: int, decode_ms: float, prefill_tokens: int, prefill_ms: float) -> None:
        """What one step took, in ms."""
        if rows and decode_ms > 0:
            before = self._decode_ms.get(rows, decode_ms)
            self._decode_ms[rows] = before + WEIGHT * (decode_ms - before)
        if prefill_tokens and prefill_ms > 0:
            weight = WEIGHT if self._has_measured_prefill else 1.0
            weight *= min(1.0, prefill_tokens / FULL_WEIGHT_TOKENS)
            self._prefill_ms += weight * (prefill_ms / prefill_tokens - self._prefill_ms)
            self._has_measured_prefill = True

    @property
    def prefill_ms(self) -> float:
        """A prompt token, in ms."""
        return self._prefill_ms

    def decode_ms(self, rows: int) -> float:
        """A decode of so many rows, in ms. Unmeasured: the nearest measured one, in proportion when that was smaller."""
        if rows == 0:
            return 0.0
        if rows in self._decode_ms:
            return self._decode_ms[rows]
        if not self._decode_ms:
            return GUESS_DECODE_MS + GUESS_ROW_MS * (rows - 1)
        nearest = min(self._decode_ms, key=lambda measured: abs(measured - rows))
        return self._decode_ms[nearest] * max(1.0, rows / nearest)

    def prefill_tokens(self, rows: int) -> int:
        """Prompt tokens for a step that decodes so many rows; never less than min_chunk."""
        left_ms = self._config.step_ms - self.decode_ms(rows)
        return max(self._config.min_chunk, int(left_ms / self.prefill_ms))

    def would_split(self, prompt_left: int, rows: int) -> bool:
        """Whether a prompt that fits into a step of its own does not fit beside so many rows."""
        fits = self.share(self.prefill_tokens(0), prompt_left, True) == prompt_left
        return fits and self.share(self.prefill_tokens(rows), prompt_left, True) < prompt_left

    def share(self, tokens_left: int, prompt_left: int, is_first: bool) -> int:
        """The next chunk of one prompt, 0 for none. A sliver at the end of the budget is left to the next step: each chunk is a
        decode of its own and costs one whatever its length."""
        longest = min(prompt_left, self._config.prefill_chunk)
        n_tokens = longest if longest <= tokens_left * STRETCH else min(tokens_left, longest)
        if not is_first and n_tokens < min(self._config.min_chunk, longest):
            return 0
        return max(0, n_tokens)

    def statistics(self) -> dict[str, object]:
        by_rows = {str(rows): round(ms, 2) for rows, ms in sorted(self._decode_ms.items())}
        return {"step_ms": self._config.step_ms, "prefill_token_ms": round(self.prefill_ms, 3), "decode_ms": by_rows}
