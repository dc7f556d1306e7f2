"""Several lines in one pass: packed into one sequence that shares what they begin with. Decides where each token stands and what it sees.

No padding: pad and end are one token in some vocabularies, and a batch of eight prompts with one persona costs its tokens once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """n tokens; m of them, `rows`, are followed by a token that is to be learned or judged."""

    ids: Ints  # (n,) tokens
    positions: Ints  # (n,) of each in its own line, from 0
    visible: NDArray[np.bool_]  # (n, n): whether token i sees token j; each sees itself
    rows: Ints  # (m,) rising indices into ids
    targets: Ints  # (m,) the token that follows each row
