"""What the wizard of `personae pack new` asks, why, and which answers it takes. Writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from personae.cli.pack.screen import folded, line, show
from personae.errors import AskedWrong
from personae.packs import manifest as form

Answers = dict[str, str]  # by key of the manifest


@dataclass(frozen=True, slots=True)
class Question:
    key: str  # of character.toml
    option: str
    what: str  # one line, for --help
    why: str  # what the wizard says before it asks
    is_needed: bool = False


QUESTIONS = (
    Question("name", "name", "name that the player sees (default: from NAME)", "What is the character called? Players see it."),
    Question(
        "persona",
        "persona",
        "who the character is, addressed as you",
        'Who is it? Address it as "you": "You are Marta, the innkeeper of the Green Man." The model reads this before anything else.',
        is_needed=True,
    ),
    Question(
        "style", "style", "how it speaks", "How does it speak? Say how long, too: a small model keeps to what is short and plain to follow."
    ),
    Question("greeting", "greeting", "its first line", "What does it say first? It also shows the model the voice."),
    Question(
        "licence", "licence", "what others may do with the pack", "What may others do with it? CC BY 4.0, MIT, all rights reserved, ..."
    ),
    Question("author", "author", "who made it", "Who made it?"),
)


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_all(pack: str, given: Answers, usual: Mapping[str, str]) -> Answers:
    """The answers, those given included. `usual`: what an empty line means, by key. AskedWrong when the input ends first."""
    show([*folded(f"A new character, '{pack}'. An empty line skips a question; Ctrl-C leaves, and nothing is written.", 0, "bold"), line()])
    try:
        return {
            question.key: _ask(pack, question, usual.get(question.key, "")) for question in QUESTIONS if question.key not in given
        } | given
    except KeyboardInterrupt:
        print("\nNothing was written.")
        raise
    except EOFError:
        print()
        raise AskedWrong("bad_arguments", "The questions were not answered to the end, and nothing was written.", "Begin again.") from None


def check_answers(pack: str, given: Answers) -> None:
    """AskedWrong `bad_arguments` names the first option that the manifest's form refuses."""
    for question in QUESTIONS:
        if fault := fault_in(pack, question, given.get(question.key, "")):
            raise AskedWrong("bad_arguments", f"--{question.option}: {fault}", "Change it.")


def fault_in(pack: str, question: Question, text: str) -> str:
    """What the form of a manifest has against an answer; "" for nothing. An empty one is left out and never wrong."""
    if not text.strip():
        return ""
    _, problems = form.check(pack, {"name": "x", "persona": "x", question.key: text})
    return next((problem.problem for problem in problems if problem.is_error), "")


def _ask(pack: str, question: Question, usual: str) -> str:
    show(folded(question.why, 0))
    while True:
        text = _typed(f"{question.key}{f' [{usual}]' if usual else ''}: ") or usual
        fault = fault_in(pack, question, text) or ("cannot be left out." if question.is_needed and not text else "")
        if not fault:
            print()
            return text
        show(folded(f"{question.key} {fault}", 0, "warning"))


def _typed(prompt: str) -> str:
    """Bytes that are no text in the terminal's encoding become question marks."""
    return input(prompt).encode("utf-8", "replace").decode().strip()
