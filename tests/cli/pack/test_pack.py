"""`personae pack` itself: which subcommands there are, and what a wrong line ends with."""

from __future__ import annotations

import pytest

from personae.packs.schema import json_schema, lore_schema
from tests.cli.pack.conftest import Pack


def test_alone_it_prints_its_help(pack: Pack) -> None:
    ended = pack()
    assert ended.code == 0
    for name in ("new", "check", "show", "build", "import", "export", "schema"):
        assert f"  {name} " in ended.out


@pytest.mark.parametrize("name", ["new", "check", "show", "build", "import", "export", "schema"])
def test_every_subcommand_has_a_help_of_its_own(pack: Pack, name: str) -> None:
    ended = pack(name, "--help")
    assert ended.code == 0
    assert f"usage: personae pack {name}" in ended.out


@pytest.mark.parametrize("arguments", [("dance",), ("check",), ("new",), ("show", "--what"), ("export", "x"), ("check", "x", "--ctx", "3")])
def test_a_wrong_line_ends_with_4_and_a_sentence(pack: Pack, arguments: tuple[str, ...]) -> None:
    ended = pack(*arguments)
    assert ended.code == 4
    assert "personae pack" in ended.error
    assert not ended.out


def test_schema_is_the_one_that_manifests_are_checked_with(pack: Pack) -> None:
    assert pack("schema").json == json_schema()
    assert pack("schema", "--lore").json == lore_schema()
