"""`personae pack schema`: prints the JSON Schema of character.toml. Editors complete and check with it."""

from __future__ import annotations

import argparse
import json

from personae.packs.schema import json_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "personae pack schema > characters/character.schema.json, where `#:schema` in a character.toml looks for it."


def run(args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
