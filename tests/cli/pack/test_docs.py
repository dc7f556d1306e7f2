"""characters/README.md tells writers what is so: its manifests load, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from personae.cli.pack import SUBCOMMANDS
from tests.cli.pack.conftest import Pack, Write

README = (Path(__file__).parents[3] / "characters" / "README.md").read_text(encoding="utf-8").partition("## Manifest reference")[0]
BLOCKS = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)


def test_the_manifests_it_shows_are_one_good_pack(pack: Pack, write: Write) -> None:
    whole = [block for block in BLOCKS if "[[adapter]]" not in block]
    assert len(whole) == 3
    more = 'description = "x"\nauthor = "x"\nlicence = "x"\n'
    ended = pack("check", write(head=more + "".join(whole)), "--model", "fake", "--strict")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "marta: nothing to put right")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"personae pack (\w+)", README))))
def test_the_commands_it_names_exist(name: str) -> None:
    assert name in SUBCOMMANDS


def test_what_it_shows_of_lore_is_what_is_shown(pack: Pack, write: Write) -> None:
    folder = write(head="".join(block for block in BLOCKS if "[[adapter]]" not in block))
    ended = pack("show", folder, "--model", "fake", "--say", "What is in the cellar?")
    page, notes = README.partition("says why each entry is there:\n\n```\n")[2].partition("```")[0].split("...\n")
    assert _without_counts(page) in _without_counts(ended.out)
    for line in notes.splitlines():
        assert _without_counts(line.removeprefix("lore")) in _without_counts(ended.out)


def _without_counts(text: str) -> str:
    """Tokens are those of another model here."""
    return " ".join(re.sub(r"(?m)^(\w+) +\d+  |\(\d+ tokens\)", r"\1 ", text).split())
