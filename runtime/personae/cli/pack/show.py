"""`personae pack show PACK`: what the model will see of a pack, stretch by stretch, and where its context goes. Only draws."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from personae.cli.pack.check import pack_path, usable
from personae.cli.pack.measure import DEFAULT_MODEL, NONE, Measure, add_model_arguments, take_measure
from personae.cli.pack.screen import Line, folded, line, show, width
from personae.cli.pack.sheet import Sheet, Shown, mood_of, sheet_of
from personae.cli.printable import printable
from personae.errors import AskedWrong
from personae.prompt.parts import LoreState

COLOURS = {
    "scaffold": "dim",
    "persona": "bold magenta",
    "style": "magenta",
    "lore": "green",
    "memory": "yellow",
    "examples": "cyan",
    "history": "blue",
    "line": "bold",
}
PART_WIDTH, COUNT_WIDTH = 10, 6
BAR = 30  # characters of a whole context
_FREE = "free"
_REPLY = "reply"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", type=pack_path, metavar="PATH", help="a pack's folder or a .persona archive")
    parser.add_argument("--say", action="append", default=[], metavar="TEXT", help="what the player says; several times for several lines")
    parser.add_argument("--mood", metavar="NAME", help="one of the pack's moods")
    add_model_arguments(parser)
    parser.add_argument("--tokens", action="store_true", help="token by token")
    parser.add_argument("--json", action="store_true", help="print one JSON object, token ids included")


def run(args: argparse.Namespace) -> int:
    character = usable(args.pack)
    mood = mood_of(character, args.mood)
    measure = take_measure(args.model, args.ctx)
    if measure.builder is None:
        why = "A prompt is counted in a model's tokens." if args.model == NONE else measure.note
        raise AskedWrong("bad_arguments", why, f"Give --model: {DEFAULT_MODEL}, or the path of a GGUF file.")
    sheet = sheet_of(character, mood, args.say, measure)
    if args.json:
        print(json.dumps(_report(sheet, measure)))
    else:
        show(_lines(sheet, measure, by_token=args.tokens))
    return 0


# --- the page ---------------------------------------------------------------------------------------------------------


def _lines(sheet: Sheet, measure: Measure, *, by_token: bool) -> Iterator[Line]:
    mood = f", mood '{sheet.mood}'" if sheet.mood else ""
    yield from folded(f"{sheet.character.name} ({sheet.character.id}){mood}, as {measure.name} will see it", 0, "bold")
    yield line()
    for stretch in sheet.stretches:
        yield from _stretch(stretch, by_token=by_token)
    yield line()
    yield from _budget(sheet)
    yield from _lore(sheet)
    yield from _cuts(sheet)
    yield from _adapters(sheet)
    if sheet.template_note:
        yield from _titled("template", [sheet.template_note])


def _stretch(stretch: Shown, *, by_token: bool) -> Iterator[Line]:
    """`persona       23  You are Marta, ...`, as many lines as it takes."""
    style = COLOURS.get(stretch.part, "")
    head = f"{stretch.part:<{PART_WIDTH}}{len(stretch.tokens):>{COUNT_WIDTH}}  "
    whole = "".join(stretch.pieces)
    name = f"[{stretch.name}] " if stretch.name and stretch.part == "lore" and not whole.strip().startswith(stretch.name) else ""
    text = name + (_by_token(stretch) if by_token else _visible(whole))
    room = width() - len(head)
    for number, part in enumerate(textwrap.wrap(printable(text), room, drop_whitespace=not by_token, break_on_hyphens=False) or [""]):
        yield ((head if number == 0 else " " * len(head), "dim"), (part, style))


def _by_token(stretch: Shown) -> str:
    """A bar behind each token; a token that is the rest of a character is empty."""
    return "".join(f"{_visible(piece)}{_bar_mark()}" for piece in stretch.pieces)


def _visible(text: str) -> str:
    return text.replace("\n", "⏎" if _is_unicode() else "\\n")


def _bar_mark() -> str:
    return "│" if _is_unicode() else "|"


def _is_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _budget(sheet: Sheet) -> Iterator[Line]:
    """What of the context each part takes. The reply's share is kept free for it."""
    receipt = sheet.receipt
    whole = receipt.budget + receipt.reserve
    free = receipt.budget - receipt.total
    counts = [(part.part, part.tokens) for part in receipt.parts if part.tokens]
    yield from folded(f"budget: {whole} tokens, of which {receipt.reserve} are kept for the reply", 0, "bold")
    for name, n_tokens in [*counts, (_REPLY, receipt.reserve), (_FREE, free)]:
        bar = ("█" if _is_unicode() else "#") * round(BAR * n_tokens / whole)
        share = f"{100 * n_tokens / whole:>4.0f} %"
        yield ((f"{name:<{PART_WIDTH}}{n_tokens:>{COUNT_WIDTH}} {share}  ", ""), (bar, "dim" if name == _FREE else COLOURS.get(name, "")))


def _lore(sheet: Sheet) -> Iterator[Line]:
    told = [note for note in sheet.receipt.lore if note.state is not LoreState.CONSTANT]
    texts = [f"{note.name or note.state.value}: {note.why}{f' ({note.tokens} tokens)' if note.tokens else ''}" for note in told]
    yield from _titled("lore", texts)


def _cuts(sheet: Sheet) -> Iterator[Line]:
    texts = []
    for cut in sheet.receipt.cuts:
        named = f": {', '.join(cut.names)}" if cut.names else ""
        tokens = "" if cut.tokens is None else f", {cut.tokens} tokens"
        texts.append(f"{cut.count} of {cut.part}{tokens}{named}; {cut.reason}")
    yield from _titled("left out", texts)


def _adapters(sheet: Sheet) -> Iterator[Line]:
    texts = [
        f"{part.file}, scale {part.scale:g}: rank {part.rank}, {part.n_bytes / 1e6:.1f} MB, for {part.trained_on or 'an unnamed base'}"
        for part in sheet.adapters
    ]
    yield from _titled("adapter", texts or ["none: the base model's own voice, led by the persona"])


def _titled(title: str, texts: list[str]) -> Iterator[Line]:
    for first, group in groupby(enumerate(texts), key=lambda pair: pair[0] == 0):
        for _, text in group:
            yield from folded(text, PART_WIDTH, first=f"{title:<{PART_WIDTH}}" if first else "")


# --- JSON -------------------------------------------------------------------------------------------------------------


def _report(sheet: Sheet, measure: Measure) -> dict[str, Any]:
    """Plain JSON types; its names are a promise."""
    return {
        "character": sheet.character.id,
        "name": sheet.character.name,
        "mood": sheet.mood,
        "model": measure.name,
        "n_ctx": sheet.n_ctx,
        "stretches": [stretch.to_json() for stretch in sheet.stretches],
        "receipt": sheet.receipt.to_wire(),
        "adapters": [asdict(part) for part in sheet.adapters],
        "template_note": sheet.template_note,
    }
