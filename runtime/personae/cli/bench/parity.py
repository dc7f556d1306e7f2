"""How far the mixer's logits are from llama.cpp's, where nothing but rounding can keep them apart: F32 weights, F16 adapters, F16 KV.

Eight adapters of different ranks speak in one mixed batch. llama.cpp decodes the same batch once for each adapter, and the row of the
NPC whose adapter it was is compared: batches of equal shape, because llama.cpp's own sums depend on the shape. On a quantized
base llama.cpp itself moves by 1-2 % when a batch changes, which would hide everything that is asked here.

`rows_independent`: a row is the same bit for bit, whatever adapters the other rows of its batch have.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from personae.cli.bench.figures import rounded
from personae.cli.bench.options import add_count, add_flash, add_threads
from personae.cli.bench.stage import Stage, chunk, scratch_folder
from personae.cli.models import find_model
from personae.engine.llama import formats
from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Mixed
from personae.types import Voice

RANKS = (4, 6, 8, 12, 16, 24, 32, 64)
N_CTX = 256

Logits = npt.NDArray[np.float32]
Voices = Sequence[Voice]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "The model should be F32. Without --model, SmolLM2 is dequantized into a temporary file of 540 MB."
    parser.set_defaults(model=None)
    add_count(parser, "steps", 3, 32, "compared")
    add_count(parser, "prompt", 16, 128, "tokens of each NPC's prompt")
    add_threads(parser)
    add_flash(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    with scratch_folder() as folder:
        path = find_model(args.model) if args.model else Path(folder) / "smollm2.f32.gguf"
        if not args.model:
            formats.convert(find_model("smollm2"), path, "f32", args.threads)
        with Stage(path, args.threads) as stage:
            return _compare(stage, Path(folder), args)


def _compare(stage: Stage, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    n = len(RANKS)
    (mixed, context), stock = stage.mixed(n, N_CTX, flash=args.flash), stage.plain(n, N_CTX, flash=args.flash)
    paths = stage.random_adapters(RANKS, folder)
    voices = stage.install(paths, mixed)
    tokens = stage.random_tokens(n * (args.prompt + args.steps))
    play = _Play([tokens[i * args.prompt : (i + 1) * args.prompt] for i in range(n)], tokens[n * args.prompt :], args.steps)
    ours = play.mixed(mixed, voices)
    theirs = play.stock(stage, stock, paths)
    errors = np.abs(ours - theirs).max(axis=-1) / np.abs(theirs).max(axis=-1)
    return {
        "max_rel_logit": rounded(float(errors.max())),
        "median_rel_logit": rounded(float(np.median(errors))),
        "rows_independent": play.is_independent(mixed, context, voices),
        "same_best_token": rounded(float((ours.argmax(-1) == theirs.argmax(-1)).mean())),
        "rows": int(errors.size),
        "ranks": list(RANKS),
        "steps": args.steps,
        "model": stage.model.path.name,
        "description": stage.model.description,
        "threads": args.threads,
        "flash_attention": args.flash,
    }


class _Play:
    """Prompts, and the tokens that follow them whatever the logits say: everybody decodes the same."""

    def __init__(self, prompts: Sequence[Sequence[int]], following: Sequence[int], n_steps: int) -> None:
        self._prompts, self._following = prompts, following
        self._n, self._n_prompt, self._n_steps = len(prompts), len(prompts[0]), n_steps

    def mixed(self, mixed: Mixed, voices: Voices) -> Logits:
        """(steps, rows, n_vocab)."""
        for stream, prompt in enumerate(self._prompts):
            mixed.decode(chunk(stream, prompt), [voices[stream]] * len(prompt))
        return np.stack([self._step(mixed, self._rows(step), voices) for step in range(self._n_steps)])

    def stock(self, stage: Stage, context: Context, paths: Sequence[Path]) -> Logits:
        """The same, row i from a run in which llama.cpp applies adapter i to the whole batch."""
        runs = [self._stock_run(stage, context, path, stream) for stream, path in enumerate(paths)]
        return np.stack(runs, axis=1)

    def is_independent(self, mixed: Mixed, context: Context, voices: Voices) -> bool:
        """Decode the step after the last with each row's own adapter, then again with others around the first row and around the last."""
        rows = self._rows(self._n_steps - 1)
        self._cut(context, self._n_prompt + self._n_steps - 1)
        usual = self._step(mixed, rows, voices)
        for keep in (0, self._n - 1):
            for others in ([()] * self._n, [*voices[1:], voices[0]], [voices[keep]] * self._n):
                self._cut(context, self._n_prompt + self._n_steps - 1)
                changed = [voices[i] if i == keep else others[i] for i in range(self._n)]
                if not np.array_equal(self._step(mixed, rows, changed)[keep], usual[keep]):
                    return False
        return True

    def _stock_run(self, stage: Stage, context: Context, path: Path, stream: int) -> Logits:
        """(steps, n_vocab) of one stream. The other streams stand in the batch with prompts of their own, made under whatever adapter."""
        adapter = stage.model.load_adapter(path)
        context.use_adapters((adapter, 1.0))
        for other, prompt in enumerate(self._prompts):
            if other == stream or stream == 0:  # the others' stand there since the first run
                context.cut(other, 0)
                context.decode(chunk(other, prompt))
        rows = []
        for step in range(self._n_steps):
            context.decode(self._rows(step))
            rows.append(context.logits(stream).copy())
        self._cut(context, self._n_prompt)
        context.use_adapters()
        stage.model.free_adapter(adapter)
        return np.stack(rows)

    def _rows(self, step: int) -> list[Row]:
        tokens = self._following[step * self._n : (step + 1) * self._n]
        return [Row(token, self._n_prompt + step, stream, True) for stream, token in enumerate(tokens)]

    def _step(self, mixed: Mixed, rows: Sequence[Row], voices: Voices) -> Logits:
        _, logits = mixed.decode(rows, voices)
        return np.stack([row.copy() for row in logits if row is not None])

    def _cut(self, context: Context, keep: int) -> None:
        for stream in range(self._n):
            context.cut(stream, keep)
