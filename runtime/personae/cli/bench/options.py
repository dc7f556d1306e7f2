"""Options that several benchmarks have, so that they are spelled and bounded alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from personae.cli.models import AS_IS, AUTO
from personae.engine.threads import physical_cores

FORMATS = (AUTO, AS_IS, "q4_0", "q8_0")


def whole(least: int, most: int) -> Callable[[str], int]:
    """An argparse type: a whole number within bounds."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def add_threads(parser: argparse.ArgumentParser) -> None:
    cores = physical_cores()
    parser.add_argument("--threads", type=whole(1, 512), default=cores, help=f"of the engine (default: all physical cores, {cores} here)")


def add_serving_threads(parser: argparse.ArgumentParser) -> None:
    """As `serve` has it: 0 follows the load."""
    parser.add_argument("--threads", type=whole(0, 512), default=0, help="of the engine (default: as many as there are idle cores)")


def add_format(parser: argparse.ArgumentParser, default: str = AS_IS) -> None:
    """`auto` is what `serve` runs."""
    parser.add_argument("--format", choices=FORMATS, default=default, help="convert the base first (default: %(default)s)")


def add_flash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flash", action="store_true", help="with flash attention")


def add_count(parser: argparse.ArgumentParser, name: str, default: int, most: int, help: str) -> None:
    parser.add_argument(f"--{name}", type=whole(1, most), default=default, help=f"{help} (default: %(default)s)")
