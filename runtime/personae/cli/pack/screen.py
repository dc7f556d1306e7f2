"""Decides how lines of a report look: in colour on a terminal, plain everywhere else, never wider than they must be. Knows no pack."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

from personae.cli.printable import printable

Line = tuple[tuple[str, str], ...]
"""Pieces of one line, each with its style: one of STYLES, or in rich's words; "" is plain."""

NARROWEST, USUAL, WIDEST = 40, 80, 120
STYLES = {"error": "bold red", "warning": "yellow"}


def line(text: str = "", style: str = "") -> Line:
    return ((text, style),)


def width() -> int:
    """Columns to write in. What is not a terminal is read by people too, later."""
    return max(NARROWEST, min(shutil.get_terminal_size((USUAL, 24)).columns, WIDEST)) if sys.stdout.isatty() else USUAL


def folded(text: str, indent: int, style: str = "", first: str = "") -> list[Line]:
    """A text in as many lines as it needs. `first` stands in front of the first one, within the indent."""
    head, tail = f"{first:<{indent}}", " " * indent
    lines = textwrap.wrap(printable(text), width(), initial_indent=head, subsequent_indent=tail, break_on_hyphens=False)
    return [line(one, style) for one in lines or [head.rstrip()]]


def show(lines: Iterable[Line]) -> None:
    """What cannot be shown in the terminal's encoding becomes a question mark."""
    if sys.stdout.isatty() and _show_rich(lines):
        return
    encoding = sys.stdout.encoding or "utf-8"
    for pieces in lines:
        text = "".join(printable(text) for text, _ in pieces).rstrip()
        print(text.encode(encoding, "replace").decode(encoding))


def _show_rich(lines: Iterable[Line]) -> bool:
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    console = Console(highlight=False)
    for pieces in lines:
        console.print(Text.assemble(*((printable(text), STYLES.get(style, style)) for text, style in pieces)), soft_wrap=True)
    return True


def counted(n: int, what: str, many: str = "") -> str:
    return f"{n} {what if n == 1 else many or what + 's'}"
