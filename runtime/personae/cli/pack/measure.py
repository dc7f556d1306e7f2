"""The model that packs are looked at with: its vocabulary, its template, the shapes of its matrices. Never its weights.

Decides what is still done where there is none: packs are checked without it, and what could not be looked at is said.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

from personae.cli.models import FAKE, find_model
from personae.engine.backend import Vocabulary
from personae.engine.factory import make_vocabulary
from personae.errors import AskedWrong, PersonaeError, WorldFailed
from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.prompt import PromptBuilder

DEFAULT_MODEL, NONE = "smollm2", "none"
DEFAULT_CTX, LEAST_CTX, MOST_CTX = 2048, 64, 1 << 20


@dataclass(frozen=True, slots=True)
class Measure:
    """`base` None: adapters are looked at from outside. `vocabulary` and `builder` None: nothing is counted in tokens. `note`: why."""

    name: str = ""  # the model's, for people
    base: BaseShapes | None = None
    vocabulary: Vocabulary | None = None
    builder: PromptBuilder | None = None
    n_ctx: int = DEFAULT_CTX
    note: str = ""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{DEFAULT_MODEL}, the path of a GGUF file, or {NONE} (default: {DEFAULT_MODEL} where it is installed)",
    )
    parser.add_argument("--ctx", type=_ctx, default=DEFAULT_CTX, metavar="N", help="tokens of context (default: %(default)s)")


def take_measure(model: str | None, n_ctx: int) -> Measure:
    """`model` None: the usual one, where it is installed.

    WorldFailed `model_missing`, `model_unreadable`, `engine_failed` when one that was asked for cannot be used.
    """
    if model == NONE:
        return Measure(n_ctx=n_ctx, note="Without a model nothing was counted in tokens, and no adapter was tried on a base.")
    try:
        path = find_model(model or DEFAULT_MODEL)
        base = None if path == Path(FAKE) else base_of(path)
    except WorldFailed as fault:
        if model is not None:
            raise
        return Measure(n_ctx=n_ctx, note=f"{fault.message} Nothing was counted in tokens, and no adapter was tried on a base.")
    try:
        vocabulary = make_vocabulary(str(path))
    except WorldFailed as fault:
        if model is not None:
            raise
        return Measure(path.name, base, n_ctx=n_ctx, note=f"{fault.message} Nothing was counted in tokens.")
    return Measure(path.name, base, vocabulary, PromptBuilder(vocabulary, n_ctx=n_ctx), n_ctx)


def base_of(path: Path) -> BaseShapes:
    """With the hash of the file, which costs a second a gigabyte. WorldFailed `model_unreadable`."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return BaseShapes.of(read_header(path), hashes=(digest,))
    except (PersonaeError, OSError) as fault:
        why = fault.message if isinstance(fault, AskedWrong) else f"'{path.name}' cannot be read."
        raise WorldFailed("model_unreadable", f"Model {why}", "Give the path of a whole GGUF model file.") from fault


def _ctx(text: str) -> int:
    value = int(text)
    if not LEAST_CTX <= value <= MOST_CTX:
        raise argparse.ArgumentTypeError(f"must be from {LEAST_CTX} to {MOST_CTX}")
    return value
