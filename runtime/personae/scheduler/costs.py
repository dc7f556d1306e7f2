"""What a step costs on this machine, in ms, learnt from every step. Decides nothing by it; knows no turn, target or clock.

A llama_decode costs a fixed part, the pass over the weights, and a part for each row or prompt token in it. So there are two lines, one for
the decodes of rows and one for those of prompts, and beside them the *load*: how slow the machine is now, as a factor of both. Lines
change seldom and remember long; the load follows within ten steps. So a machine that gets busy while people speak is known to be slow when
the next prompt comes.

No step counts for more than twice or less than half of what was expected: a single slow one changes little. What steps of one size cannot
tell, how their price divides, is as it was guessed. (Moving both parts of a line straight from each step was tried: noise in one
line, passed on to the other, wore the smaller part away.)
"""

from __future__ import annotations

WEIGHT = 0.2  # of a step in the load
MEMORY = 0.97  # of a line: thirty steps
CALM = 0.999  # by which the load returns to 1 each step, the lines taking over: only the product of both means anything
MOST, LEAST = 2.0, 0.5  # of what was expected: what a step counts for
SURE = 3  # steps a line has seen before its news is of the machine, and not of the line
DOUBT = 0.3  # of a step: the weight of the guess how a price divides
GUESS_FIXED_MS, GUESS_ROW_MS, GUESS_TOKEN_MS = 10.0, 5.0, 2.0  # until measured: a small quantized model on two CPU threads


class Line:
    """`fixed_ms` for each llama_decode, `each_ms` for each row or token in it; neither is ever 0. Least squares of relative errors."""

    def __init__(self, fixed_ms: float, each_ms: float) -> None:
        self.fixed_ms, self.each_ms = fixed_ms, each_ms
        self.n_seen = 0
        self._shape = fixed_ms / each_ms
        self._steps = 0.0  # seen, the older the less; so with the sums of a = decodes / ms and b = rows / ms
        self._a = self._b = self._aa = self._ab = self._bb = 0.0

    def ms(self, n: int, n_decodes: int) -> float:
        return self.fixed_ms * n_decodes + self.each_ms * n

    def scale(self, ratio: float) -> None:
        """A guess was wrong by so much."""
        self.fixed_ms *= ratio
        self.each_ms *= ratio

    def learn(self, n: int, n_decodes: int, ms: float) -> None:
        a, b = n_decodes / ms, n / ms
        sums = (self._steps, 1.0), (self._a, a), (self._b, b), (self._aa, a * a), (self._ab, a * b), (self._bb, b * b)
        self._steps, self._a, self._b, self._aa, self._ab, self._bb = (MEMORY * total + new for total, new in sums)
        self.n_seen += 1
        self._solve()

    def _solve(self) -> None:
        doubt = DOUBT * self._aa / self._steps
        aa, ab, bb = self._aa + doubt, self._ab - doubt * self._shape, self._bb + doubt * self._shape**2
        size = aa * bb - ab * ab
        self.fixed_ms = (bb * self._a - ab * self._b) / size
        self.each_ms = (aa * self._b - ab * self._a) / size
        if self.fixed_ms <= 0 or self.each_ms <= 0:  # noise: then all of the price is the other part's
            total, is_fixed = (self._a / self._aa, True) if self.each_ms <= 0 else (self._b / self._bb, False)
            self.fixed_ms, self.each_ms = (total, total / 1000) if is_fixed else (total / 1000, total)


class Costs:
    def __init__(self) -> None:
        self.load = 1.0
        self._decode = Line(GUESS_FIXED_MS, GUESS_ROW_MS)
        self._prefill = Line(GUESS_FIXED_MS, GUESS_TOKEN_MS)

    def decode_ms(self, n_rows: int, n_decodes: int) -> float:
        return self.load * self._decode.ms(n_rows, n_decodes)

    def prefill_ms(self, n_tokens: int, n_decodes: int) -> float:
        return self.load * self._prefill.ms(n_tokens, n_decodes)

    def note_decode(self, n_rows: int, n_decodes: int, ms: float) -> None:
        self._note(self._decode, self._prefill, n_rows, n_decodes, ms)

    def note_prefill(self, n_tokens: int, n_decodes: int, ms: float) -> None:
        self._note(self._prefill, self._decode, n_tokens, n_decodes, ms)

    def _note(self, line: Line, other: Line, n: int, n_decodes: int, ms: float) -> None:
        if n < 1 or n_decodes < 1 or ms <= 0:
            return
        expected_ms = self.load * line.ms(n, n_decodes)
        ratio = ms / expected_ms
        if line.n_seen == 0:
            if other.n_seen == 0:
                other.scale(ratio)  # both were guesses about one machine
        else:
            ratio = min(max(ratio, LEAST), MOST)
        if line.n_seen >= SURE:
            self.load = (self.load * ratio**WEIGHT) ** CALM
        line.learn(n, n_decodes, ratio * expected_ms / self.load)
