"""How a voice is trained. Decides nothing; where a number comes from is said beside it."""

from __future__ import annotations

from dataclasses import dataclass

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")  # of each layer, as GGUF names them


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """All matrices of every layer at a small rank learn a voice from a hundred lines without learning the lines by heart; attention alone
    loops, a higher rank at a lower rate takes longer (LoRA as in Hu et al. 2021: W x + alpha / rank * B A x)."""

    rank: int = 8
    alpha: float = 16.0
    learning_rate: float = 3e-3  # at its peak: rises over the first steps, then falls along a cosine
    epochs: int = 3  # at the most: held-out lines may end it sooner
    batch: int = 8  # lines a step
    seed: int = 0
    held_out: float = 0.1  # share of the different replies that is not learned

    @property
    def scale(self) -> float:
        """What B (A x) is multiplied with."""
        return self.alpha / self.rank
