"""What is fuzzed. Each target takes any bytes and returns, or raises AskedWrong; all else is a fault of ours, and so is taking long."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from personae.errors import AskedWrong

Target = Callable[[bytes], None]


def manifest(content: bytes) -> None:
    """character.toml: decoding, all checks, every warning."""
    from personae.packs import manifest as form

    try:
        table = form.decode(content)
    except ValueError:
        return
    _, problems = form.check("fuzz", table)
    for problem in problems:
        problem.to_wire()


def archive(content: bytes) -> None:
    """A `.persona` file, examined as when it is dropped into the folder."""
    from personae.packs.loader import examine_pack

    with tempfile.TemporaryDirectory(prefix="personae-fuzz-") as folder:
        path = Path(folder) / "fuzz.persona"
        path.write_bytes(content)
        character, problems = examine_pack(path)
        assert character is not None or any(problem.is_error for problem in problems), "a pack is refused and nobody says why"


def card(content: bytes) -> None:
    """A character card in any of its forms, and the pack that is made of it."""
    from personae.packs.cards import card_from_bytes, draft_of
    from personae.packs.toml_text import toml_text

    toml_text(draft_of(card_from_bytes(content, "fuzz")).manifest)


def gguf(content: bytes) -> None:
    """The header of an adapter or a model."""
    from personae.packs.gguf import ADAPTER_LIMITS, parse_header

    parse_header(content, Path("fuzz.gguf"), ADAPTER_LIMITS)


def adapter(content: bytes) -> None:
    """A whole GGUF adapter against a base."""
    from personae.packs.base import BaseShapes
    from personae.packs.gguf import parse_header
    from personae.packs.lora import read_lora
    from tests.fuzz.seeds import base_gguf

    base = BaseShapes.of(parse_header(base_gguf(), Path("base.gguf")))
    with tempfile.TemporaryDirectory(prefix="personae-fuzz-") as folder:
        path = Path(folder) / "fuzz.gguf"
        path.write_bytes(content)
        read_lora(path, base)


def peft(content: bytes) -> None:
    """adapter_config.json and adapter_model.safetensors in one: a length of four bytes stands before the first."""
    from personae.packs.peft import peft_from_bytes

    n_config = min(int.from_bytes(content[:4], "little"), len(content) - 4) if len(content) >= 4 else 0
    peft_from_bytes(content[4 : 4 + n_config], content[4 + n_config :])


TARGETS: dict[str, Target] = {target.__name__: target for target in (manifest, archive, card, gguf, adapter, peft)}


def run(target: Target, content: bytes) -> None:
    """Once. AskedWrong is an answer."""
    with contextlib.suppress(AskedWrong):
        target(content)
