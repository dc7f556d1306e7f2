"""`personae pack export PACK --card`: writes a pack as a character card, for programs that know cards and not packs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from personae.cli.pack.check import pack_path, usable
from personae.cli.pack.imported import note_lines
from personae.cli.pack.screen import Line, folded, show
from personae.errors import AskedWrong
from personae.packs.cards import write_card
from personae.packs.character import PackProblem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", type=pack_path, metavar="PACK", help="a pack's folder or a .persona archive")
    parser.add_argument("--card", action="store_true", required=True, help="as a character card, version 3")
    parser.add_argument("--to", type=Path, metavar="FILE", help=".json, .png or .charx (default: PACK's name here, .png with a portrait)")
    parser.add_argument("--with-adapter", action="store_true", help="the adapters inside the card too; a .charx has them always")
    parser.add_argument("--replace", action="store_true", help="a file that is there already")


def run(args: argparse.Namespace) -> int:
    character = usable(args.pack)
    to = args.to or Path(character.id + (".png" if character.portrait else ".json"))
    if os.path.lexists(to) and not args.replace:
        raise AskedWrong("bad_arguments", f"There is a file {to} already.", "Name another with --to, or write over it with --replace.")
    notes = write_card(args.pack, to, with_adapter=args.with_adapter)
    show(_exported(character.id, to, notes))
    return 0


def _exported(pack: str, to: Path, notes: list[PackProblem]) -> Iterator[Line]:
    yield from folded(f"Wrote {to}: {pack} as a character card, {to.stat().st_size:,} bytes.", 0, "bold")
    yield from note_lines(notes, "Not in it:")
