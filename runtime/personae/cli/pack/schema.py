"""`personae pack schema`: prints the JSON Schema of character.toml, or of a lore file. Editors complete and check with it."""

from __future__ import annotations

import argparse
import json

from personae.packs.schema import json_schema, lore_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lore", action="store_true", help="of the files that `lore_files` names, instead")
    parser.epilog = "personae pack schema > characters/character.schema.json, where `#:schema` in a character.toml looks for it."


def run(args: argparse.Namespace) -> int:
    print(json.dumps(lore_schema() if args.lore else json_schema(), indent=2, ensure_ascii=False))
    return 0
