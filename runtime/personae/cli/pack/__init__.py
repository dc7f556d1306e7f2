"""`personae pack`: what writers and modders do with packs. Decides which of its subcommands runs; knows of each its name and a line."""

from __future__ import annotations

import argparse

from personae.cli.main import Parser, command_module

SUBCOMMANDS = {
    "new": "begin a pack: asks for what matters, and writes it",
    "check": "tell every problem of packs, with file, field and remedy",
    "show": "show what the model will see of a pack, and the budget",
    "build": "make one .persona file of a pack's folder",
    "import": "make a pack of a character card, a PEFT adapter, an archive",
    "export": "write a pack as a character card",
    "schema": "print the JSON Schema of character.toml, for editors",
}
_MODULES = {"import": "import_"}  # a word that Python keeps for itself


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "subcommands:\n" + "".join(f"  {name:<8} {line}\n" for name, line in SUBCOMMANDS.items())
    parser.add_argument(
        "subcommand", nargs="?", choices=tuple(SUBCOMMANDS), metavar="NAME", help="which, see below; `personae pack NAME --help`"
    )
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="its options")
    parser.set_defaults(print_help=parser.print_help)


def run(args: argparse.Namespace) -> int:
    if args.subcommand is None:
        args.print_help()
        return 0
    name: str = args.subcommand
    module = command_module(f"pack.{_MODULES.get(name, name)}")
    line = SUBCOMMANDS[name]
    parser = Parser(prog=f"personae pack {name}", description=f"{line[0].upper()}{line[1:]}.")
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(args.options)))
