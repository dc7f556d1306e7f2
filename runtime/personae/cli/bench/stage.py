"""What benchmarks inside one process share: a model, contexts over it, and random adapters in both their forms. Measures nothing.

It goes through the engine's own files (context, mixing) and the packs' writer, so that what is timed is what the service runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from personae.cli.models import find_model, format_for
from personae.engine import _mixer
from personae.engine.llama import abi, formats
from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Grouped, Mixed, Mixing, load_template
from personae.engine.llama.model import Model
from personae.engine.mixer import Sites
from personae.errors import AskedWrong, PersonaeError, WorldFailed
from personae.packs.lora import Lora, read_lora
from personae.packs.lora_writer import random_pairs, write_lora
from personae.types import AdapterUse, Voice

MAGNITUDE = 0.02  # standard deviation of random factors: an effect of about the size trained adapters have
N_BATCH = 256


class Stage:
    """A model, loaded once. Contexts that were made over it are closed with it."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = Model(str(path))
        self.threads = threads
        base = self.model.base
        self.sites = Sites({name: shape for name, shape in base.matrices.items() if name in base.sites})
        self._template = load_template(self.model, self.sites)
        self._open: list[tuple[Context, _mixer.Mixer | None]] = []

    def plain(self, n_streams: int, n_ctx: int, *, flash: bool = False, threads: int | None = None) -> Context:
        """llama.cpp alone."""
        return self._context(None, n_streams, n_ctx, flash, threads or self.threads)

    def mixed(self, n_streams: int, n_ctx: int, *, flash: bool = False, threads: int | None = None) -> tuple[Mixed, Context]:
        """The mixer, and the context it works on. WorldFailed `engine_failed` where it does not fit this llama.cpp."""
        try:
            codes = abi.verify()
        except abi.AbiMismatch as mismatch:
            raise WorldFailed(
                "engine_failed", f"The mixer does not fit this llama.cpp: {mismatch}.", "See `personae doctor`."
            ) from mismatch
        mixer = _mixer.Mixer(self.sites.as_list(), codes.as_tuple(), threads or self.threads)
        context = self._context(mixer, n_streams, n_ctx, flash, threads or self.threads)
        return Mixed(context, self._template, self.sites), context

    def grouped(self, n_streams: int, n_ctx: int, *, flash: bool = False) -> Grouped:
        return Grouped(self.model, self.plain(n_streams, n_ctx, flash=flash))

    def _context(self, mixer: _mixer.Mixer | None, n_streams: int, n_ctx: int, flash: bool, threads: int) -> Context:
        context = Context(self.model, n_streams=n_streams, n_ctx=n_ctx, n_batch=N_BATCH, threads=threads, flash=flash, mixer=mixer)
        self._open.append((context, mixer))  # the mixer must outlive its context
        return context

    def read(self, path: Path) -> Lora:
        return read_lora(path, self.model.base.with_sites(self.sites.shapes))

    def random_adapters(self, ranks: Iterable[int], folder: Path, seed: int = 0) -> list[Path]:
        """F16 files on every matrix the model lets be adapted, all different, scale 1."""
        rng = np.random.default_rng(seed)
        paths = []
        for i, rank in enumerate(ranks):
            paths.append(folder / f"{i}-rank{rank}.gguf")
            write_lora(paths[-1], self.model.architecture, float(rank), random_pairs(self.sites.shapes, rank, MAGNITUDE, rng))
        return paths

    def install(self, paths: Iterable[Path], *mixings: Mixing) -> list[Voice]:
        """Read files and install each with every one of `mixings`. A voice of each file alone."""
        voices: list[Voice] = []
        for path in paths:
            lora = self.read(path)
            for mixing in mixings:
                mixing.install(lora.key, mixing.prepare(lora))
            voices.append((AdapterUse(lora.key),))
        return voices

    def random_tokens(self, n: int, seed: int = 0) -> list[int]:
        """Past the first hundred: control tokens mostly stand there."""
        rng = np.random.default_rng(seed)
        return [int(token) for token in rng.integers(min(100, self.model.n_vocab // 2), self.model.n_vocab, n)]

    def close(self) -> None:
        for context, _ in self._open:
            context.close()
        self._open.clear()
        self.model.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def chunk(stream: int, tokens: Sequence[int], at: int = 0) -> list[Row]:
    """Prompt tokens of one stream; the last wants logits, as the last of a prompt does."""
    return [Row(token, at + i, stream, i == len(tokens) - 1) for i, token in enumerate(tokens)]


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="personae-bench-")


def model_file(args: argparse.Namespace, threads: int) -> Path:
    """The file that --model and --format mean. What cannot be converted is measured as it is, and said so."""
    path, args.format = find_model(args.model), format_for(args.model, args.format)
    if str(path) == "fake":
        raise AskedWrong("bad_arguments", "A benchmark needs a real model.", "Give the path of a GGUF file.")
    try:
        return formats.resolve(path, args.format, threads)
    except PersonaeError as failure:
        print(f"personae: {failure}", file=sys.stderr)
        args.format = formats.AS_IS
        return path
