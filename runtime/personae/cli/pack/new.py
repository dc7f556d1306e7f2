"""`personae pack new NAME`: begins a pack. On a terminal it asks the few things that matter and says why; without one the options decide.

Nothing is written before the last answer, and then all of it at once: who leaves in the middle leaves nothing behind.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from personae.cli.pack.questions import QUESTIONS, Answers, ask_all, check_answers, is_terminal
from personae.cli.pack.screen import Line, folded, line, show
from personae.cli.pack.starter import character_toml, display_name, lines_jsonl
from personae.errors import AskedWrong
from personae.packs.draft import PackDraft, folder_name, write_pack
from personae.packs.lines import LINES_FILE
from personae.packs.manifest import FILE
from personae.packs.names import fault_in_name, is_hidden

SCHEMA = "character.schema.json"
DEFAULT_INTO = Path("characters")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="NAME", help="of the pack's folder: the id that a game passes to `spawn`")
    parser.add_argument("--into", type=Path, default=DEFAULT_INTO, metavar="DIR", help="folder of packs (default: %(default)s)")
    for question in QUESTIONS:
        parser.add_argument(f"--{question.option}", dest=question.key, metavar="TEXT", help=question.what)
    parser.add_argument("--yes", action="store_true", help="ask nothing: the options decide")


def run(args: argparse.Namespace) -> int:
    _refuse_unusable(args.pack, args.into)
    given = {question.key: text for question in QUESTIONS if (text := getattr(args, question.key)) is not None}
    answers = _answers(args.pack, given, is_asked=is_terminal() and not args.yes)
    text = character_toml(answers, schema=f"../{SCHEMA}").encode()
    folder = write_pack(PackDraft(args.pack, {}, {LINES_FILE: lines_jsonl(answers)}, text=text), args.into)
    show(_made(folder, answers))
    return 0


def _answers(pack: str, given: Answers, *, is_asked: bool) -> Answers:
    usual = {"name": display_name(pack)}
    check_answers(pack, given)
    if is_asked:
        return ask_all(pack, given, usual)
    answers = usual | given
    missing = [f"--{question.option}" for question in QUESTIONS if question.is_needed and not answers.get(question.key, "").strip()]
    if missing:
        hint = f'{missing[0]} "You are {answers["name"]}, ...": who the character is.'
        raise AskedWrong("bad_arguments", f"{' and '.join(missing)} is missing, and nobody can be asked.", hint)
    return answers


def _refuse_unusable(pack: str, into: Path) -> None:
    """Before anything is asked. `write_pack` looks again."""
    if "/" in pack or fault_in_name(pack) or is_hidden(pack) or pack.startswith("_"):
        raise AskedWrong(
            "pack_invalid", f"{pack[:80]!a} cannot be the name of a pack's folder.", f"Call it '{folder_name(pack)}', for instance."
        )
    if os.path.lexists(into / pack):
        raise AskedWrong(
            "pack_exists", f"There is a pack '{pack}' in '{into}' already.", "Take another name, or edit the one that is there."
        )


def _made(folder: Path, answers: Answers) -> Iterator[Line]:
    yield from folded(f"Made {folder}: {FILE} and {LINES_FILE}, with two lines that show its form.", 0)
    left_out = [question.key for question in QUESTIONS if not answers.get(question.key)]
    if left_out:
        yield from folded(f"Left out: {', '.join(left_out)}. {FILE} shows where they go.", 0)
    schema = folder.parent / SCHEMA
    if not schema.exists():
        yield line(f"For editors to complete it: personae pack schema > {shlex.quote(str(schema))}")
    yield line(f"Next: personae pack check {shlex.quote(str(folder))}", "bold")
