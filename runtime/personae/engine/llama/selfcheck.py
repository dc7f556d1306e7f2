"""Does the mixer say what llama.cpp says? Decoded and compared at every start, on this very model, build and machine.

Random adapters are loaded the ordinary way and, as tables, into the mixer. Two sequences are then decoded, once mixed in one batch
and once under each adapter alone, in batches of equal shape. Compared is the adapters' *effect* on the logits. Two questions:

- Is the arithmetic right? Asked of adapters on the last layer (and the output matrix) alone: everything before is bit for bit the same,
  so what differs is rounding in one layer, and the bound can be tight.
- Is every layer wired to its own tables? Asked of adapters on all layers. On a quantized base the rounding of activations grows
  from layer to layer until it is a good part of the effect: a row must only be clearly nearer to its own adapter than to another or none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from personae.engine import _mixer
from personae.engine.llama.abi import OpCodes
from personae.engine.llama.context import Context, Row
from personae.engine.llama.model import Model
from personae.engine.mixer import Sites, tables
from personae.packs.lora import read_lora
from personae.packs.lora_writer import Pair, random_pairs, write_lora

_RANKS = (3, 5)  # different, and no multiples of a kernel's width
_N_TOKENS = 3  # prefilled before the row that is compared
_LAST = 10.0  # what the adapters add to a row of activations near 1: far more than rounding does, far less than binary16 holds
_ALL = (0.3, 3.0, 10.0)  # over all layers; which of them drowns least in rounding depends on the model, and a wrong wiring fails at each
_TIGHT = 0.08  # error on the last layer, of the effect; 0.0004 (F32) to 0.014 (Q4_0) was seen
_NEARER = 0.6  # error over all layers, of the distance to the next best explanation; 0.003 (F32) to 0.15 (Q4_1, Q4_K) was seen at the best
_LEAST_EFFECT = 0.01  # of the logits' norm; less would prove nothing

Logits = npt.NDArray[np.float32]


class SelfCheckFailed(Exception):  # noqa: N818  a finding, and the reason for grouped mode
    """The mixer does not compute what llama.cpp does."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    error: float  # on the last layer, of the adapters' effect
    error_all: float  # over all layers, of the distance to the next best explanation
    sites: frozenset[str]  # the matrices that llama.cpp really adapts in this architecture


class _Bench:
    """Two small contexts over one model: one with the mixer, one plain."""

    def __init__(self, model: Model, template: Any, sites: Sites, codes: OpCodes, threads: int) -> None:
        self.model = model
        self.mixer = _mixer.Mixer(sites.as_list(), codes.as_tuple(), threads)
        shape = {"n_streams": 2, "n_ctx": 32, "n_batch": 8, "threads": threads}
        self.mixed = Context(model, mixer=self.mixer, **shape)  # type: ignore[arg-type]
        self.stock = Context(model, **shape)  # type: ignore[arg-type]
        self.mixed.use_adapters((template, 1.0))
        self.tokens = [int(token) for token in np.random.default_rng(1).integers(0, model.n_vocab, 2 * (_N_TOKENS + 2))]

    def run_mixed(self, *voices: _mixer.Parts) -> list[Logits]:
        def decode(rows: list[Row]) -> None:
            self.mixer.set_rows([voices[row.stream] for row in rows], [row.wants_logits for row in rows])
            self.mixed.decode(rows)

        return self._run(self.mixed, decode)

    def run_stock(self, *adapter: tuple[Any, float]) -> list[Logits]:
        self.stock.use_adapters(*adapter)
        return self._run(self.stock, self.stock.decode)

    def _run(self, context: Context, decode: Any) -> list[Logits]:
        """Logits of both sequences decoded together, then of the first alone: both forms in which the mixer lays out a site."""
        half = _N_TOKENS + 2
        text = [self.tokens[:half], self.tokens[half:]]
        for stream in (0, 1):
            context.cut(stream, 0)
            decode([Row(text[stream][i], i, stream, False) for i in range(_N_TOKENS)])
        decode([Row(text[stream][_N_TOKENS], _N_TOKENS, stream, True) for stream in (0, 1)])
        together = [context.logits(row).copy() for row in (0, 1)]
        decode([Row(text[0][_N_TOKENS + 1], _N_TOKENS + 1, 0, True)])
        return [*together, context.logits(0).copy()]

    def close(self) -> None:
        self.mixed.close()
        self.stock.close()


def self_check(model: Model, template: Any, sites: Sites, codes: OpCodes, threads: int) -> SelfCheck:
    """Raises SelfCheckFailed with the reason."""
    bench = _Bench(model, template, sites, codes, threads)
    try:
        plain = bench.run_stock()
        last = _ask(bench, _adapters(model, sites, _last_layer(sites), _LAST), plain)
        error_all = _error_everywhere(bench, model, sites, plain)
        counts, seen = bench.mixer.counts(), frozenset(bench.mixer.seen())
    finally:
        bench.close()
    if counts["broken"] or counts["misfits"] or not seen:
        raise SelfCheckFailed(f"the graph was not recognised ({counts}, {len(seen)} of {len(sites.shapes)} matrices)")
    error = max(row.of_effect() for row in last)
    if not (error <= _TIGHT and error_all <= _NEARER):
        raise SelfCheckFailed(f"logits differ from llama.cpp's own: {error:.3f} on the last layer, {error_all:.2f} over all")
    return SelfCheck(error, error_all, seen)


def _error_everywhere(bench: _Bench, model: Model, sites: Sites, plain: list[Logits]) -> float:
    """The smallest error over the effects tried; the first that is small enough will do."""
    errors = []
    for effect in _ALL:
        rows = _ask(bench, _adapters(model, sites, list(sites.shapes), effect), plain)
        errors.append(max(row.of_next_best() for row in rows))
        if errors[-1] <= _NEARER:
            break
    return min(errors)


def _last_layer(sites: Sites) -> list[str]:
    layers = [int(name.split(".")[1]) for name in sites.shapes if name.startswith("blk.")]
    last = f"blk.{max(layers, default=0)}."
    return [name for name in sites.shapes if name.startswith(last) or not name.startswith("blk.")]


@dataclass(frozen=True, slots=True)
class _Compared:
    """One row of logits: what the mixer said, what llama.cpp said, and what it would have said under each other adapter and none."""

    got: Logits
    wanted: Logits
    others: list[Logits]

    def of_effect(self) -> float:
        return self._to(self.wanted) / max(float(np.linalg.norm(self.wanted - self.others[0])), 1e-30)

    def of_next_best(self) -> float:
        return self._to(self.wanted) / max(min(map(self._to, self.others)), 1e-30)

    def _to(self, row: Logits) -> float:
        return float(np.linalg.norm(self.got - row))


def _ask(bench: _Bench, adapters: tuple[list[Any], list[_mixer.Adapter]], plain: list[Logits]) -> list[_Compared]:
    """Rows: sequence 0 under the first adapter, 1 under the second, 0 again alone, and 0 under none beside 1 under the second."""
    stock, mixed = adapters[0], [((adapter, 1.0),) for adapter in adapters[1]]
    try:
        one, two = (bench.run_stock((adapter, 1.0)) for adapter in stock)
        got, beside = bench.run_mixed(*mixed), bench.run_mixed((), mixed[1])
    finally:
        bench.stock.use_adapters()
        for adapter in stock:
            bench.model.free_adapter(adapter)
    if not all(np.linalg.norm(a - b) >= _LEAST_EFFECT * np.linalg.norm(b) for a, b in zip(one + two, plain + plain, strict=True)):
        raise SelfCheckFailed("the test adapters hardly changed the logits, which proves nothing")
    return [
        _Compared(got[0], one[0], [plain[0], two[0]]),
        _Compared(got[1], two[1], [plain[1], one[1]]),
        _Compared(got[2], one[2], [plain[2], two[2]]),
        _Compared(beside[0], plain[0], [one[0], two[0]]),
        _Compared(beside[1], two[1], [plain[1], one[1]]),
    ]


def _adapters(model: Model, sites: Sites, names: list[str], effect: float) -> tuple[list[Any], list[_mixer.Adapter]]:
    """Two random adapters on the matrices named, in llama.cpp and as tables."""
    rng = np.random.default_rng(2)
    shapes = {name: sites.shapes[name] for name in names}
    stock, mixed = [], []
    with tempfile.TemporaryDirectory(prefix="personae-") as folder:
        for rank in _RANKS:
            path = Path(folder) / f"{rank}.gguf"
            write_lora(path, model.architecture, float(rank), _pairs(shapes, rank, effect, rng))
            stock.append(model.load_adapter(path))
            mixed.append(tables(read_lora(path, model.base.with_sites(sites.shapes)), sites))
    return stock, mixed


def _pairs(shapes: Mapping[str, tuple[int, int]], rank: int, effect: float, rng: np.random.Generator) -> dict[str, Pair]:
    """B A x of a row with elements near 1 has elements near `effect`, whatever the width."""
    pairs = random_pairs(shapes, rank, 1.0, rng, np.float32)
    return {
        name: ((a / np.sqrt(a.shape[1])).astype(np.float16), (b * (effect / np.sqrt(rank))).astype(np.float16))
        for name, (a, b) in pairs.items()
    }
