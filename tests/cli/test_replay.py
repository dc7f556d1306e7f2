"""A record plays again without model, adapters or clock, under every rule; and says so when one is broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from personae.cli import main as cli
from personae.cli.rerun import Rerun
from personae.engine.batch import FreeAdapter
from personae.scheduler import core
from personae.scheduler.actions import Action, Command
from personae.scheduler.core import Scheduler
from personae.scheduler.events import Event, StepReported, TurnAsked
from personae.service.recorder import Recorder
from personae.types import AdapterKey
from tests.scheduler.stage import Stage

Replay = Callable[..., dict[str, Any]]
BAD = AdapterKey("bad")


class Recorded(Stage):
    """A stage whose play is recorded."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.recorder: Recorder | None = None
        super().__init__(is_up=False, **settings)
        self.recorder = Recorder(path, self.config)
        self.engine.bad_keys.add(BAD)
        self.start()

    def tell(self, event: Event) -> list[Action]:
        actions = super().tell(event)
        assert self.recorder is not None
        self.recorder.saw(event, actions)
        return actions


def play(path: Path, seed: int = 1) -> Recorded:
    """NPCs with and without adapters, more of them than slots, some of them cancelled, and an engine that dies."""
    random = Random(seed)
    stage = Recorded(path, n_slots=2, n_ctx=200, end_every=7, max_adapters=2, adapter_ram=1500, max_waiting=4)
    for i in range(60):
        voice = random.choice((None, "one", "two", ("two", "three"), ("one", BAD), BAD))
        prompt = tuple(random.choices(range(1, 400), k=random.randint(4, 60)))
        turn = stage.ask(f"npc{random.randrange(5)}", prompt, voice, max_tokens=6, tail=(3, 4))
        for _ in range(random.randrange(6)):
            if stage.can_step:
                stage.step()
            elif stage.engine.loading:
                stage.load()
        if random.random() < 0.2:
            stage.cancel(turn)
        if i == 30:
            stage.lose()
            stage.start()
    stage.settle()
    assert stage.recorder is not None
    stage.recorder.close()
    return stage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "play.record"


@pytest.fixture
def replay(path: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    def call(*options: str, code: int = 0) -> dict[str, Any]:
        assert cli.main(["replay", str(path), "--json", *options]) == code
        return dict(json.loads(capsys.readouterr().out))

    return call


@pytest.mark.parametrize("seed", range(12))
def test_play_passes_again_and_every_turn_ends_once(path: Path, replay: Replay, seed: int) -> None:
    stage = play(path, seed)
    played = replay()
    assert played["passed"]
    assert played["is_whole"]
    assert played["turns"] == sum(played["ended"].values()) == len(stage.asked)
    assert played["engines"] == 2


@pytest.mark.parametrize("seed", range(12))
def test_today_s_scheduler_decides_as_it_did(path: Path, replay: Replay, seed: int) -> None:
    stage = play(path, seed)
    played = replay("--as-recorded")
    assert played["differs_at"] is None
    ended = [stage.code(turn) for turn in stage.ended]
    assert played["ended"] == {how: ended.count(how) for how in sorted(set(ended))}


def test_replay_says_what_was_said(path: Path) -> None:
    stage = Recorded(path, n_slots=1, end_every=7)
    turn = stage.ask("mira", (5, 6, 70_000), max_tokens=50)
    stage.settle()
    assert stage.recorder is not None
    stage.recorder.close()
    rerun = Rerun(path)
    ends: list[Any] = []
    handle = rerun._scheduler.handle
    rerun._scheduler.handle = _listening(handle, ends)  # type: ignore[method-assign]
    rerun.play()
    (ended,) = [action for action in ends if type(action).__name__ == "EndTurn"]
    assert ended == stage.ended[turn]


def _listening(handle: Callable[[Event], list[Action]], heard: list[Any]) -> Callable[[Event], list[Action]]:
    def listen(event: Event) -> list[Action]:
        actions = handle(event)
        heard.extend(actions)
        return actions

    return listen


def test_refused_adapter_is_refused_again(path: Path, replay: Replay) -> None:
    stage = Recorded(path)
    stage.ask("mira", adapter=BAD)
    stage.settle()
    assert stage.recorder is not None
    stage.recorder.close()
    assert replay()["ended"] == {"adapter_shape": 1}


def test_record_of_a_killed_service_is_played_to_an_end_of_its_own(path: Path, replay: Replay) -> None:
    play(path)
    os.truncate(path, path.stat().st_size * 2 // 3)
    played = replay()
    assert not played["is_whole"]
    assert played["turns"] == sum(played["ended"].values()) > 0


def test_nothing_but_the_record_is_read_or_written(path: Path, replay: Replay, tmp_path: Path) -> None:
    stage = Recorded(path, kv_ram=1 << 20)
    kv = tmp_path / "mira.kv"
    stage.ask("mira")
    stage.settle()
    stage.save_kv("mira", str(kv))
    stage.load_kv("mira", str(kv))
    stage.settle()
    assert stage.recorder is not None
    stage.recorder.close()
    assert replay()["passed"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_another_decision_is_said_and_does_not_fail(path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Recorded(path, n_slots=1, max_waiting=1)
    for npc in ("mira", "tom", "anna", "bert"):
        stage.ask(npc)
    stage.settle()
    assert stage.recorder is not None
    stage.recorder.close()
    monkeypatch.setattr("personae.scheduler.ledger.Ledger.retry_after_ms", lambda *_: 77)
    played = replay("--as-recorded")
    assert played["passed"]
    assert played["differs_at"] == played["events"] == 4


def test_broken_rule_is_told_with_its_story(
    path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(path)
    handle = Scheduler.handle

    def careless(scheduler: Scheduler, event: Event) -> list[Action]:
        """Frees an adapter that is not there with every step."""
        wrong: list[Action] = [Command(FreeAdapter(AdapterKey("nobody's")))] if isinstance(event, StepReported) else []
        return wrong + handle(scheduler, event)

    monkeypatch.setattr(core.Scheduler, "handle", careless)
    told = replay(code=1)
    assert told["broken"] == "adapter nobody's is freed and not there"
    assert any("StepReported" in line for line in told["story"])
    assert cli.main(["replay", str(path)]) == 1
    assert "adapter nobody's is freed and not there" in capsys.readouterr().err.splitlines()[-1]


def test_event_that_the_scheduler_cannot_take_is_a_broken_rule(path: Path, replay: Replay) -> None:
    stage = Recorded(path)
    turn = stage.ask("mira")
    assert stage.recorder is not None
    event = stage.asked[turn]
    assert isinstance(event, TurnAsked)
    stage.recorder.saw(event, [])
    stage.recorder.close()
    assert "was asked twice" in replay(code=1)["broken"]


def test_event_over_which_the_scheduler_fails_in_any_way_is_a_broken_rule(
    path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(path)
    monkeypatch.setattr(core.Scheduler, "handle", lambda scheduler, event: {}["no such turn"])
    assert "no such turn" in replay(code=1)["broken"]


def test_file_that_is_no_record_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path / "missing", tmp_path):
        assert cli.main(["replay", str(file)]) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert str(file) in line


def test_people_are_told_in_words(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(path)
    assert cli.main(["replay", str(path), "--as-recorded"]) == 0
    told = capsys.readouterr().out
    assert "every rule held" in told
    assert "Every decision was the same as then." in told
