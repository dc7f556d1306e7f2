"""Decides which subcommand runs and what exit code a failure has. Knows of a subcommand only its name, its one line of help and its module.

A module is imported when its command is called, so that `personae serve` needs nothing of what the demo needs.
Exit codes are a promise to whoever starts us (bindings/PROTOCOL.md, section 10).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from personae import __version__
from personae.errors import AskedWrong, PersonaeError

COMMANDS = {
    "serve": "run the dialogue service",
    "talk": "talk to one or several characters in the terminal",
    "pack": "begin, check, show, build, import and export character packs",
    "demo": "six characters speak at once, side by side",
    "bench": "measure this machine",
    "doctor": "look for what keeps the service from running well",
    "replay": "play a record of the service again and check every rule",
}

OK, OUR_BUG, ENDPOINT_TAKEN, MODEL_TROUBLE, BAD_ARGUMENTS, ENGINE_TROUBLE = range(6)

EXIT_CODES = {
    "endpoint_taken": ENDPOINT_TAKEN,
    "model_missing": MODEL_TROUBLE,
    "model_unreadable": MODEL_TROUBLE,
    "engine_failed": ENGINE_TROUBLE,
    "engine_lost": ENGINE_TROUBLE,
    "record_unreadable": BAD_ARGUMENTS,
    "pack_unwritable": BAD_ARGUMENTS,
    "peft_unwritable": BAD_ARGUMENTS,
    "card_unwritable": BAD_ARGUMENTS,
    "replay_failed": OUR_BUG,
}


class Parser(argparse.ArgumentParser):
    """argparse exits with 2, which here means that the port is taken."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}\nTry {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. The last line on standard error says why the exit code is not 0."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        module, args = _parse(given)
        return int(module.run(args))
    except PersonaeError as failure:
        print(f"personae: {failure}", file=sys.stderr)
        return exit_code(failure)
    except KeyboardInterrupt:
        return OK


def exit_code(failure: PersonaeError) -> int:
    usual = BAD_ARGUMENTS if isinstance(failure, AskedWrong) else OUR_BUG
    return EXIT_CODES.get(failure.code, usual)


def _parse(given: list[str]) -> tuple[Any, argparse.Namespace]:
    parser = Parser(prog="personae", description="One model, many personae: NPC dialogue for games.")
    parser.add_argument("--version", action="version", version=f"personae {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    called = next((word for word in given if not word.startswith("-")), None)
    module: Any = None
    for name, line in COMMANDS.items():
        subparser = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if name == called:
            module = command_module(name)
            module.add_arguments(subparser)
    return module, parser.parse_args(given)


def command_module(name: str) -> Any:
    """The module of a command, `bench.mix` for `personae bench mix`. AskedWrong when something it needs is not installed."""
    try:
        return importlib.import_module(f"personae.cli.{name}")
    except ModuleNotFoundError as error:
        extra = "demo" if error.name in ("rich", "personae_client") else "engine"
        raise AskedWrong(
            "bad_arguments",
            f"`personae {name.replace('.', ' ')}` needs {error.name}, which is not installed.",
            f"pip install 'personae[{extra}]'",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
