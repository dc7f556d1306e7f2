"""The terminal tavern, played from a pipe against the fake engine: what a game developer copies works."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("personae_client")

from personae.cli.private_service import PrivateService
from personae_client import AsyncClient, Client

ROOT = Path(__file__).parents[2]
TAVERN = ROOT / "samples" / "tavern" / "tavern.py"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def service() -> Iterator[PrivateService]:
    with PrivateService(["--model", "fake", "--characters", str(ROOT / "characters")]) as running:
        running.wait_until_ready()
        yield running


def play(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TAVERN), *arguments], input=lines, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE_S
    )


def test_everybody_at_the_table_answers_and_nobody_else(service) -> None:
    ended = play(service.endpoint, lines="Good evening!\ngo corner\nRum!\nquit\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    hearth, _sit, corner = ended.stdout.partition("You sit down at the corner")
    assert all(f"{name}: [" in hearth for name in ("Sir Aldric", "Willowwisp"))
    assert all(f"{name}: [" in corner for name in ("Captain Redbeard", "Unit 7"))
    assert "Rum" not in hearth


def test_npcs_go_home_when_the_player_does(service) -> None:
    play(service.endpoint, lines="hello\n")
    with Client(service.endpoint) as client:
        assert client.stats()["npcs"] == 0


def test_failed_turn_is_a_gesture_and_the_game_goes_on(service) -> None:
    ended = play(service.endpoint, lines="fake:fault\nstill here?\n")
    assert ended.returncode == 0
    assert "Sir Aldric looks away and says nothing. [grammar_error]" in ended.stdout
    assert "Willowwisp: [e9ddd8] I heard: still here." in ended.stdout


def test_chatter_goes_on_at_the_other_table(service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Played in this process, so that small talk need not be waited for."""
    tavern = load_tavern()
    monkeypatch.setattr(tavern, "CHATTER_EVERY_S", 0.0)
    monkeypatch.setattr(tavern, "SMALL_TALK", ("A cold night.", "Still cold."))

    async def listen() -> list[str]:
        heard = ""
        async with AsyncClient(service.endpoint) as client:
            tables = await tavern.hire(client)
            gossip = asyncio.create_task(tavern.chatter(tables, {"hearth": True, "corner": False}))
            while "Still cold." not in heard:
                await client.ping()
                heard += capsys.readouterr().out
            gossip.cancel()
            await asyncio.gather(gossip, return_exceptions=True)
            for npc in client.npcs():
                await npc.despawn()
        return heard.splitlines()

    heard = asyncio.run(asyncio.wait_for(listen(), PATIENCE_S))
    assert heard[0] == "    [corner] Captain Redbeard: A cold night."
    assert heard[1].startswith("    [corner] Unit 7: [b5c19a] I heard: ")
    assert heard[2].startswith("    [corner] Captain Redbeard: [368581] I heard: ")
    assert heard[3].endswith("Still cold.")


def test_closed_tavern_says_why_in_one_sentence() -> None:
    ended = play("tcp://no such host")
    assert ended.returncode == 1
    assert ended.stderr.startswith("The tavern is closed. ")
    assert "Traceback" not in ended.stderr


def load_tavern() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tavern", TAVERN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
