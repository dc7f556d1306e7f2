"""The soak: a minute of it on a real llama.cpp, a few seconds on the fake, and that it would notice."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("llama_cpp")

from personae.cli import main as cli
from personae.cli.bench import soak
from personae.cli.bench.soak import playbill as playbills
from personae.cli.bench.soak import watch
from personae.cli.bench.soak.cast import Secrets
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.line import GREETING, READY, Line
from personae.cli.bench.soak.passing import PassingFolder
from personae.cli.bench.soak.playbill import Playbill
from personae.cli.bench.soak.players import Asked, Crowd, Player
from personae.cli.bench.soak.wardrobe import VOICED, Adapter, Version, overwrite_file, replace_file, write_archive, write_folder
from personae.cli.bench.soak.watch import MB, Scales, Watcher
from personae.engine.batch import FreeAdapter
from personae.engine.fake import FakeVocabulary
from personae.packs.loader import load_character, pack_paths
from personae.packs.store import AdapterStore
from personae.scheduler.actions import Command
from personae.scheduler.events import EngineStarted, Tick, TurnAsked
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, AdapterSource, AdapterUse, Limits, NpcId, ReplyRules, SamplingParams, TurnId, Voice, voice_of
from tests.cli.processes import command
from tests.tiny import write_model

NPCS = ["npc-0000", "npc-0001"]
LONGEST_S = 300
WAYS = {
    "persona",
    "adapter_renamed",
    "adapter_overwritten",
    "broken",
    "repaired",
    "removed",
    "put_back",
    "repacked",
    "guest_came",
    "guest_left",
}


def test_a_minute_on_a_tiny_model_passes(tmp_path: Path) -> None:
    """A process of its own: what it weighs is its own memory."""
    model = write_model(tmp_path / "tiny.gguf", "llama-tied")
    asked = command("bench", "soak", "--model", str(model.path), "--minutes", "1", "--json", "--keep", str(tmp_path / "kept"))
    ran = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", timeout=LONGEST_S)
    assert ran.stdout, ran.stderr[-4000:]
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["failures"] == [], ran.stderr[-4000:]
    assert ran.returncode == 0
    assert report["passed"]
    assert report["events"] == report["validated_events"] == report["refereed_events"] > 0
    assert report["engine_kills"] >= 1
    assert (report["npcs"], report["slots"]) == (1000, 16)
    assert {"interrupted", "cancelled", "length", "warm"} <= report["finishes"].keys()
    assert {"busy", "npc_busy"} <= report["errors"].keys()
    was_trial_of_packs(report)
    assert report["turns_of_old_versions"] > 0


def test_a_few_seconds_on_the_fake_model_change_packs_in_every_way(tmp_path: Path) -> None:
    asked = command("bench", "soak", "--model", "fake", "--minutes", "0.18", "--npcs", "40", "--json", "--keep", str(tmp_path / "kept"))
    ran = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", timeout=LONGEST_S)
    assert ran.stdout, ran.stderr[-4000:]
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["failures"] == [], ran.stderr[-4000:]
    was_trial_of_packs(report)
    assert report["not_done"] == []


def was_trial_of_packs(report: dict[str, Any]) -> None:
    assert report["swaps"].keys() == WAYS
    assert report["n_swaps"] == sum(report["pack_events"].values()) == sum(report["swaps"].values())
    assert report["pack_events"].keys() == {"added", "changed", "refused", "removed"}
    assert report["removals"] == report["pack_events"]["removed"]
    assert report["refusals_by_packs"]["character_gone"] > 0
    assert min(report["turns_judged"], report["turns_in_mood"], report["turns_with_keyed_lore"]) > 0
    assert report["adapter_ram"] == report["scheduler"]["adapters"]["budget_bytes"]
    assert report["scheduler"]["adapters"]["frees"] > 0


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def secrets() -> Secrets:
    return Secrets(NPCS, Random(1))


@pytest.fixture
def playbill(failures: Failures) -> Playbill:
    """Both NPCs are guards, and the service has begun with the guard of 1200."""
    playbill = Playbill(dict.fromkeys(NPCS, "guard"), failures)
    playbill.open({"guard": GUARD, "cook": Version("cook", 1300)}, set())
    return playbill


@pytest.fixture
def watcher(secrets: Secrets, playbill: Playbill, failures: Failures) -> Watcher:
    return Watcher(SchedulerConfig(), FakeVocabulary(), secrets, playbill, failures)


A, B = (Adapter(Path(name), AdapterKey(name)) for name in "ab")
GUARD = Version("guard", 1200, (A,))
YOUNGER = Version("guard", 1201, (B,), (A, B))
VOICE, SOURCE = GUARD.voice(None), AdapterSource(A.key, "a.gguf")
PERSONA = "You are the guard of the old town in the year {}. "


def asked(prompt: str) -> TurnAsked:
    return TurnAsked(
        1.0,
        TurnId(1),
        NpcId(NPCS[0]),
        tuple((PERSONA.format(1200) + prompt).encode()),
        VOICE,
        (SOURCE,),
        SamplingParams(),
        ReplyRules(),
        Limits(),
    )


def test_what_another_was_told_is_found_in_a_prompt(watcher: Watcher, secrets: Secrets, failures: Failures) -> None:
    watcher.saw(asked(f"The word is {secrets.of(NPCS[0])}, not zqaaaaaaaaaa."), [])
    assert failures.told == []
    watcher.saw(asked(f"The word is {secrets.of(NPCS[1])}."), [])
    assert failures.told == [
        "The prompt of turn 1 of NPC 'npc-0000' holds what NPC 'npc-0001' was told.",
        "After event 2 (TurnAsked): turn 1 was asked twice.",
    ]


def test_order_that_cannot_be_obeyed_is_found_and_the_rest_not_judged(watcher: Watcher, failures: Failures) -> None:
    watcher.saw(EngineStarted(0.0, 1, 64), [])
    wrong = [Command(FreeAdapter(AdapterKey("nobody's")))]
    for _ in range(3):
        watcher.saw(Tick(1.0), wrong)
    assert failures.told == ["After event 2 (Tick): adapter nobody's is freed and not there."]


@pytest.mark.parametrize(("last_mb", "grows"), [(100, False), (125, False), (140, True)])
def test_memory_that_grows_past_the_bound_is_found(last_mb: int, grows: bool, failures: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(watch, "resident_bytes", lambda pid=None: None if pid else (100 if now_s < 60 else last_mb) * MB)
    scales = Scales()
    for _ in range(100):
        now_s += 1.0
        scales.weigh(7)
    report = scales.report(failures)
    assert (report["service"], report["engine"]) == (
        {"first_third_mb": 100.0, "last_third_mb": float(last_mb), "growth_mb": float(last_mb - 100)},
        None,
    )
    assert (failures.n == 1) == grows


@pytest.fixture
def crowd(secrets: Secrets, playbill: Playbill, failures: Failures) -> Crowd:
    crowd = Crowd(1, secrets, playbill, failures)
    crowd.players[0].asked[1] = Asked("say", NPCS[0])
    return crowd


def hear(crowd: Crowd, **message: Any) -> None:
    crowd._take(crowd.players[0], message)


def test_answer_that_comes_twice_is_found(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text="Well. ")
    hear(crowd, type="done", id=1, text="Well. ", finish="end")
    assert failures.told == []
    hear(crowd, type="error", id=1, code="busy", message="No.")
    hear(crowd, type="delta", id=1, text="And")
    assert [sentence[:31] for sentence in failures.told] == ["player 0 gets a error for reque", "player 0 gets a delta for reque"]


def test_reply_that_is_not_its_deltas_is_found(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text="Well")
    hear(crowd, type="done", id=1, text="Well. ", finish="end")
    assert "are not its text" in failures.told[0]


def test_reply_with_another_s_secret_is_found(crowd: Crowd, secrets: Secrets, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text=secrets.of(NPCS[1]))
    hear(crowd, type="done", id=1, text=secrets.of(NPCS[1]), finish="end")
    assert failures.told == ["NPC 'npc-0000' says what NPC 'npc-0001' was told."]


def test_fault_of_the_service_is_found_and_a_refusal_is_none(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="error", id=1, code="npc_busy", message="Busy.")
    assert failures.told == []
    crowd.players[0].asked[2] = Asked("warm", NPCS[0])
    hear(crowd, type="error", id=2, code="internal", message="Oh.")
    assert failures.told == ["A warm is answered internal: Oh."]


# --- packs ----------------------------------------------------------------------------------------------------------------


def event(change: str, pack: str = "guard", *, kept: bool = False) -> dict[str, Any]:
    return {"change": change, "character": pack, "kept": kept, "problems": [], "npcs": 1}


def say(
    playbill: Playbill, year: int, voice: Voice, *, tick: int | None = None, mood: str | None = None, told: Voice | None = None
) -> None:
    """A turn that begins and ends so. `tick`: when it was asked, now if None; `told`: the voice in its `done`."""
    asked = Asked("say", NPCS[0], seed=7, tick=playbill.tick if tick is None else tick)
    playbill.begins(NPCS[0], 7, PERSONA.format(year), voice)
    wire = [{"adapter": use.key, "scale": use.scale} for use in (voice if told is None else told)]
    playbill.ends(asked, {"mood": mood, "voice": wire, "receipt": {"lore": []}})


def swap(playbill: Playbill) -> int:
    """From the guard of 1200 to that of 1201. Returns the tick before it was told."""
    playbill.will("changed", "guard", YOUNGER)
    tick = playbill.tick
    assert playbill.take(event("changed")) == "changed"
    return tick


def refuse(playbill: Playbill, code: str, *, tick: int | None = None, kind: str = "say", **fields: Any) -> None:
    asked = Asked(kind, NPCS[0], seed=7, tick=playbill.tick if tick is None else tick)
    playbill.refuses(asked, {"code": code, "message": "No.", **fields})


def test_turn_asked_before_a_swap_was_told_may_be_of_either_version(playbill: Playbill, failures: Failures) -> None:
    tick = swap(playbill)
    say(playbill, 1200, GUARD.voice(None), tick=tick)
    say(playbill, 1201, YOUNGER.voice(None), tick=tick)
    say(playbill, 1201, YOUNGER.voice(VOICED), mood=VOICED)
    assert failures.told == []
    assert playbill.n_late == 1


def test_turn_asked_after_a_swap_was_told_must_not_be_of_the_old_version(playbill: Playbill, failures: Failures) -> None:
    swap(playbill)
    say(playbill, 1200, GUARD.voice(None))
    assert "of which it was told before that it is no more" in failures.told[0]


def test_text_of_one_version_and_voice_of_another_is_found(playbill: Playbill, failures: Failures) -> None:
    swap(playbill)
    playbill.begins(NPCS[0], 7, PERSONA.format(1201), GUARD.voice(None))
    assert "a voice that is not of it" in failures.told[0]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"told": ()}, "ends in another voice than it began with"),
        ({"mood": VOICED}, f"is {VOICED}, and has not that voice"),
    ],
)
def test_done_with_another_voice_is_found(playbill: Playbill, failures: Failures, said: dict[str, Any], fault: str) -> None:
    swap(playbill)
    say(playbill, 1201, YOUNGER.voice(None), **said)
    assert fault in failures.told[0]


def test_prompt_of_another_pack_or_of_none_is_found(playbill: Playbill, failures: Failures) -> None:
    playbill.begins(NPCS[0], 7, "You are the cook of the old town in the year 1300.", ())
    playbill.begins(NPCS[0], 8, "Good evening.", ())
    assert failures.told == ["NPC 'npc-0000' is asked as 'cook', and is of 'guard'.", "A prompt of NPC 'npc-0000' has no persona."]


def test_event_that_nobody_expects_or_that_comes_twice_is_found(playbill: Playbill, failures: Failures) -> None:
    swap(playbill)
    assert playbill.take(event("changed")) is None
    playbill.will("removed", "cook")
    assert playbill.take(event("changed", "cook")) is None
    assert [sentence.split(":")[0] for sentence in failures.told] == [
        "Pack 'guard' is told to be changed, and nothing was done to it",
        "Pack 'cook' is told to be changed, and removed is awaited",
    ]


@pytest.mark.parametrize(("is_deaf", "n_failures"), [(False, 1), (True, 0)])
def test_swap_that_nobody_tells_of_is_found_unless_nobody_listened(
    playbill: Playbill, failures: Failures, monkeypatch: pytest.MonkeyPatch, is_deaf: bool, n_failures: int
) -> None:
    now_s = 0.0
    monkeypatch.setattr(playbills.time, "monotonic", lambda: now_s)
    playbill.will("changed", "guard", YOUNGER)
    assert not playbill.all_settled
    if is_deaf:
        playbill.lose_ear()
    now_s = playbills.EVENT_S
    assert playbill.all_settled
    assert failures.n == n_failures


def test_broken_version_leaves_the_good_one_and_one_that_is_not_kept_is_found(playbill: Playbill, failures: Failures) -> None:
    for kept in (True, False):
        playbill.will("refused", "guard")
        playbill.take(event("refused", kept=kept))
        say(playbill, 1200, GUARD.voice(None))
    assert failures.told == ["The last good version of pack 'guard' is not kept."]


def test_npc_is_refused_while_its_pack_is_away_and_only_then(playbill: Playbill, failures: Failures) -> None:
    playbill.will("removed", "guard")
    refuse(playbill, "character_gone")  # the service may know before we hear of it
    playbill.take(event("removed"))
    while_away = playbill.tick
    refuse(playbill, "character_gone")
    playbill.will("added", "guard", YOUNGER)
    playbill.take(event("added"))
    refuse(playbill, "character_gone", tick=while_away)
    assert failures.told == []
    refuse(playbill, "character_gone")
    refuse(playbill, "character_gone", tick=while_away, kind="history")
    assert failures.n == 2
    assert playbill.refusals == {"character_gone": 5}


def test_npc_that_speaks_while_its_pack_is_away_is_found(playbill: Playbill, failures: Failures) -> None:
    playbill.will("removed", "guard")
    playbill.take(event("removed"))
    say(playbill, 1200, GUARD.voice(None))
    assert failures.n == 1


def test_adapter_is_refused_while_its_pack_is_swapped_and_says_when_to_come_again(playbill: Playbill, failures: Failures) -> None:
    tick = swap(playbill)
    refuse(playbill, "adapter_changed", tick=tick, retry_after_ms=1000)
    assert failures.told == []
    refuse(playbill, "adapter_changed", tick=tick)
    refuse(playbill, "adapter_missing")
    assert [sentence[:40] for sentence in failures.told] == [
        "A client is told `adapter_changed`, and ",
        "A say of NPC 'npc-0000' is answered adap",
    ]


def test_restart_retires_what_was_and_a_pack_that_is_away_is_played_by_nobody(playbill: Playbill, failures: Failures) -> None:
    playbill.open({"guard": YOUNGER, "cook": Version("cook", 1301)}, {"guard"})
    refuse(playbill, "character_gone")
    assert failures.told == []
    say(playbill, 1200, GUARD.voice(None))
    assert failures.n == 1


def test_versions_are_packs_that_load_and_tell_their_voices(tmp_path: Path) -> None:
    adapters = [Adapter.at(soak._small_adapter(tmp_path / f"{seed}.gguf", seed)) for seed in range(3)]
    version = Version("guard", 1200, tuple(adapters[:2]), (adapters[2],))
    write_folder(version, tmp_path / "packs" / "guard")
    write_archive(version, tmp_path / "packs" / "cook.persona")
    store = AdapterStore(tmp_path)
    for path in pack_paths(tmp_path / "packs"):
        character = load_character(path)
        for mood, files in ((None, character.adapters), (VOICED, character.moods[VOICED].adapters)):
            assert files is not None
            assert voice_of(AdapterUse(store.source(file).key, file.scale) for file in files) == version.voice(mood)
        assert [lore.keys for lore in character.lore] == [("bridge",), ("north",)]
    store.close()


def test_file_of_a_pack_is_replaced_by_another_or_written_over(tmp_path: Path) -> None:
    for name in ("old", "new", "newer"):
        (tmp_path / name).write_text(name)
    inode = (tmp_path / "old").stat().st_ino
    overwrite_file(tmp_path / "old", tmp_path / "new")
    assert ((tmp_path / "old").read_text(), (tmp_path / "old").stat().st_ino) == ("new", inode)
    replace_file(tmp_path / "old", tmp_path / "newer")
    assert (tmp_path / "old").read_text() == "newer"
    assert (tmp_path / "old").stat().st_ino != inode


def test_passing_things_are_counted_in_a_folder_of_their_own(tmp_path: Path) -> None:
    before, passing = tempfile.gettempdir(), PassingFolder(tmp_path / "passing")
    with passing:
        store = AdapterStore()
        adapter = Adapter.at(soak._small_adapter(tmp_path / "a.gguf", 1))
        write_archive(Version("cook", 1200, (adapter,)), tmp_path / "cook.persona")
        (file,) = load_character(tmp_path / "cook.persona").adapters
        store.source(file)
        assert passing.n_adapters() == 1
        store.close()
    assert passing.n_adapters() == 0
    assert tempfile.gettempdir() == before


def test_first_failures_are_told_and_the_rest_counted(failures: Failures) -> None:
    for number in range(100):
        failures.note(f"Failure {number}.")
    assert (len(failures.told), failures.n) == (Failures.MOST, 100)


def test_a_soak_that_fails_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "PYTHONUTF8"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(soak, "run", lambda _: {"passed": False})
    assert cli.main(["bench", "soak", "--model", "fake", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"passed": False}


def test_nobody_who_hung_up_is_owed_anything() -> None:
    player = Player("player")
    player.asked[1], player.session = Asked("say", NPCS[0]), "a session"
    player.forget()
    assert (player.asked, player.session, player.former) == ({}, None, "a session")


def test_line_waits_for_the_other_side_and_answers_its_pings() -> None:
    """The other side of a handshake, written out too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        line.say({"id": 1})
        peer, _ = server.accept()
        with peer:
            greeting = peer.recv(len(GREETING) + len(READY), socket.MSG_WAITALL)
            assert greeting == GREETING + READY  # and no message yet
            peer.sendall(GREETING + READY + b"\x04\x09\x04PING\x00\x00xy" + b"\x00\x05\x81\xa2id")
            while line._held is not None:
                assert list(line.hear()) == []
            assert peer.recv(16, socket.MSG_WAITALL) == b"\x00\x05\x81\xa2id\x01" + b"\x04\x07\x04PONGxy"
            peer.sendall(b"\x01")
        while line.is_open:
            heard = list(line.hear())
            assert heard in ([], [{"id": 1}])
        line.close()


def test_npc_whose_history_a_client_took_along_is_asked_after_again() -> None:
    class House:
        """Of two NPCs the first answer about one is lost with its client, the machine being crowded; a third is not there at all."""

        _npcs, _bystanders, lost = ["kept", "lost", "gone"], [], set[str]()

        def _reconnect(self) -> None:
            pass

        def _ask_all(self, kind: str, requests: list[dict[str, str]], told: Any) -> None:
            for request in requests:
                if request["npc"] == "gone" or (request["npc"] == "lost" and kind not in self.lost):
                    self.lost.add(kind)
                else:
                    told(Asked(kind, request["npc"]), {**request, "lines": [kind], "memories": [kind]})

    whole = {"history": ["history"], "memories": ["memories"]}
    assert soak.Soak._histories(House()) == {"kept": whole, "lost": whole}  # type: ignore[arg-type]
