"""Packs that come, change and go while the service plays: as a writer does it, and as clients hear of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from personae.packs.lora import adapter_key
from personae.service.settling import Patience
from personae.service.watch import Pace
from tests.service.house import SWIFT, Peer, write_manifest, write_pack
from tests.tiny import write_adapter, write_model

PATIENT = Pace(Patience(60.0, 60_000.0, 60_000.0), rescan_ms=60_000.0)  # with what looks half copied or gone


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters, none like another."""
    folder = tmp_path_factory.mktemp("voices")
    model = write_model(folder / "tiny.gguf")
    for number in range(3):
        write_adapter(folder / f"{number}.gguf", model, seed=number)
    return [folder / f"{number}.gguf" for number in range(3)]


@pytest.fixture
def peer(serve, connect) -> Peer:
    """Hears of packs; an NPC of the guard is there."""
    return subscribed(connect(serve()))


def subscribed(peer: Peer) -> Peer:
    assert peer.ask("subscribe", packs=True)["packs"] is True
    peer.ask("spawn", character="guard")
    return peer


def told(peer: Peer, pack: str | None = None) -> dict[str, Any]:
    """The next event of packs, or of one."""
    event = peer.until(lambda message: message.get("event") == "pack" and pack in (None, message["character"]))
    return {key: event[key] for key in ("change", "character", "name", "npcs", "kept", "problems")}


def persona_tokens(peer: Peer, **say: Any) -> int:
    """What the persona takes of the prompt, by which versions of it are told apart."""
    done = peer.ask("say", **{"npc": "guard", "text": "fake:say:Aye.", **say})
    return next(part["tokens"] for part in done["receipt"]["parts"] if part["part"] == "persona")


def zipped(pack: Path, archive: Path) -> Path:
    """Beside its place first, as programs save."""
    beside = archive.with_name(f".{archive.name}")
    with zipfile.ZipFile(beside, "w") as out:
        for file in sorted(pack.iterdir()):
            out.write(file, file.name)
    os.replace(beside, archive)
    return archive


# --- coming -------------------------------------------------------------------------------------------------------------


def test_pack_that_is_copied_in_is_played(peer, characters) -> None:
    write_pack(characters, "bard", greeting='"Hey nonny."')
    assert told(peer) == {"change": "added", "character": "bard", "name": "Bard", "npcs": 0, "kept": False, "problems": []}
    assert peer.ask("spawn", character="bard")["greeting"] == "Hey nonny."
    assert peer.ask("say", npc="bard", text="fake:say:La la.")["text"] == "La la."


def test_pack_that_is_copied_file_by_file_is_played_when_it_is_whole(serve, connect, characters, voices) -> None:
    peer = subscribed(connect(serve(pace=PATIENT)))
    pack, content = characters / "bard", voices[0].read_bytes()
    write_pack(characters, "bard", adapter='{ file = "voice.gguf" }')
    write_pack(characters, "cook")
    assert told(peer)["character"] == "cook"
    (pack / "voice.gguf").write_bytes(content[:100])
    write_manifest(characters / "cook", style='"Loud."')
    assert told(peer)["character"] == "cook"
    assert "bard" not in [one["id"] for one in peer.ask("characters")["characters"]]
    (pack / "voice.gguf").write_bytes(content)
    assert told(peer)["change"] == "added"
    bard = next(one for one in peer.ask("characters")["characters"] if one["id"] == "bard")
    (adapter,) = bard["adapters"]
    assert adapter["file"] == "voice.gguf"
    assert bard["adapter"] == adapter["adapter"] == peer.ask("spawn", character="bard")["voice"][0]["adapter"]
    assert peer.ask("say", npc="bard", text="fake:say:La.")["voice"] == [{"adapter": adapter["adapter"], "scale": 1.0}]


def test_archive_is_played_and_a_new_one_in_its_place_too(peer, characters, tmp_path, voices) -> None:
    pack = write_pack(tmp_path, "bard", adapter='{ file = "voice.gguf" }')
    keys = []
    for number, change in enumerate(("added", "changed")):
        shutil.copy(voices[number], pack / "voice.gguf")
        zipped(pack, characters / "bard.persona")
        assert told(peer, "bard")["change"] == change
        if number == 0:
            peer.ask("spawn", character="bard")
        keys.append(peer.ask("say", npc="bard", text="fake:say:La.")["adapter"])
    assert None not in keys
    assert len(set(keys)) == 2
    assert [one["pack"] for one in peer.ask("characters")["characters"] if one["id"] == "bard"] == ["bard.persona"]


def test_folder_that_becomes_an_archive_of_the_same_name_is_a_change(serve, connect, characters, tmp_path) -> None:
    peer = subscribed(connect(serve(pace=PATIENT)))
    zipped(characters / "guard", tmp_path / "guard.persona")
    shutil.rmtree(characters / "guard")
    (tmp_path / "guard.persona").rename(characters / "guard.persona")
    assert told(peer)["change"] == "changed"
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."


def test_fifty_packs_at_once_are_all_played(peer, characters) -> None:
    for number in range(50):
        write_pack(characters, f"extra{number:02}")
    events = [told(peer) for _ in range(50)]
    assert {event["change"] for event in events} == {"added"}
    assert len(peer.ask("characters")["characters"]) == 52
    assert peer.ask("stats")["packs"] == {"characters": 52, "problems": 0, "changes": 50, "watching": True}


# --- changing -----------------------------------------------------------------------------------------------------------


def test_edited_persona_is_heard_in_the_next_turn_and_not_in_the_open_one(serve, connect, characters) -> None:
    peer = subscribed(connect(serve(engine={"fake_step_ms": 5})))
    usual = persona_tokens(peer)
    long = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    waits = peer.send("say", npc="guard", text="fake:say:Yes?", mid_reply="queue")
    peer.until(lambda message: message["type"] == "delta" and message["id"] == long)
    write_manifest(characters / "guard", persona='"You are a very old guard with a very long story."')
    assert told(peer)["change"] == "changed"
    peer.ask("cancel", turn=long)
    receipts = {turn: peer.end_of(turn)["receipt"]["parts"] for turn in (long, waits)}
    tokens = {turn: next(part["tokens"] for part in parts if part["part"] == "persona") for turn, parts in receipts.items()}
    assert tokens[long] == usual
    assert tokens[waits] > usual
    assert persona_tokens(peer) == tokens[waits]


def test_unpacked_copy_of_an_old_version_goes_with_the_last_turn_that_speaks_with_it(
    serve, connect, characters, tmp_path, voices, monkeypatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pack = write_pack(tmp_path / "work", "bard", adapter='{ file = "voice.gguf" }')
    shutil.copy(voices[0], pack / "voice.gguf")
    zipped(pack, characters / "bard.persona")
    peer = subscribed(connect(serve(engine={"fake_step_ms": 5}, pace=Pace(SWIFT.patience, rescan_ms=100.0))))
    peer.ask("spawn", character="bard")
    long = peer.send("say", npc="bard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta" and message["id"] == long)
    shutil.copy(voices[1], pack / "voice.gguf")
    zipped(pack, characters / "bard.persona")
    assert told(peer, "bard")["change"] == "changed"
    old = adapter_key(voices[0])
    assert list(tmp_path.glob(f"*/{old}*")), "a turn still speaks with it"
    peer.ask("cancel", turn=long)
    peer.end_of(long)
    until = time.monotonic() + 10.0
    while list(tmp_path.glob(f"*/{old}*")):
        assert time.monotonic() < until, "it is kept for nobody"
        time.sleep(0.01)


def test_broken_version_leaves_the_last_good_one_and_every_problem_is_told(peer, characters) -> None:
    usual = persona_tokens(peer)
    (characters / "guard" / "character.toml").write_text('name = 3\npersona = ""\n[sampling]\ntop_p = 9.0\n')
    event = told(peer)
    assert (event["change"], event["kept"], event["name"], event["npcs"]) == ("refused", True, "Guard", 1)
    assert {problem["field"] for problem in event["problems"]} == {"name", "persona", "sampling.top_p"}
    assert all(problem["remedy"] and problem["severity"] == "error" for problem in event["problems"])
    assert peer.ask("characters")["problems"] == event["problems"]
    assert persona_tokens(peer) == usual
    write_manifest(characters / "guard")
    assert told(peer)["change"] == "changed"
    assert peer.ask("characters")["problems"] == []


def test_pack_that_has_lost_its_manifest_alone_plays_on_and_that_is_an_error(peer, characters) -> None:
    (characters / "guard" / "character.toml").unlink()
    change = told(peer)
    assert (change["change"], change["kept"]) == ("refused", True)
    assert [(one["severity"], one["problem"]) for one in change["problems"]] == [("error", "has lost its manifest.")]
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."


def test_persona_that_has_grown_too_long_is_refused_like_any_other_error(peer, characters) -> None:
    write_manifest(characters / "guard", persona=f'"{"A very long story, " * 200}"')
    event = told(peer)
    assert (event["change"], event["kept"], event["problems"][-1]["field"]) == ("refused", True, "persona")
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."


@pytest.mark.parametrize("by_rename", [True, False], ids=["by rename", "in place"])
def test_adapter_that_is_replaced_is_spoken_with_from_the_next_turn_on(peer, characters, voices, tmp_path, by_rename) -> None:
    keys = []
    for number in range(2):
        if by_rename:
            shutil.copy(voices[number], tmp_path / "voice.gguf")
            os.replace(tmp_path / "voice.gguf", characters / "guard" / "voice.gguf")
        else:
            (characters / "guard" / "voice.gguf").write_bytes(voices[number].read_bytes())
        if number == 0:
            write_manifest(characters / "guard", adapter='{ file = "voice.gguf" }')
        told(peer)
        keys.append(peer.ask("say", npc="guard", text="fake:say:Halt.")["adapter"])
    assert None not in keys
    assert len(set(keys)) == 2
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    assert peer.ask("stats")["scheduler"]["adapters"]["resident"] == 1


def test_renamed_character_has_its_name_from_its_next_turn_on(peer, characters) -> None:
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    write_manifest(characters / "guard", name='"Captain"')
    assert told(peer)["name"] == "Captain"
    peer.ask("say", npc="guard", text="fake:say:Pass.")
    speakers = [line["speaker"] for line in peer.ask("history", npc="guard")["lines"] if line["is_npc"]]
    assert speakers == ["Guard", "Captain"]


# --- going --------------------------------------------------------------------------------------------------------------


def test_removed_pack_drains_and_its_npcs_speak_on_when_it_is_back(serve, connect, characters, tmp_path) -> None:
    peer = subscribed(connect(serve(engine={"fake_step_ms": 5})))
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    open_turn = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta" and message["id"] == open_turn)
    (characters / "guard").rename(tmp_path / "guard")
    event = told(peer)
    assert (event["change"], event["npcs"], event["name"]) == ("removed", 1, "Guard")
    peer.ask("cancel", turn=open_turn)
    assert peer.end_of(open_turn)["finish"] == "cancelled"
    refusal = peer.ask("say", npc="guard", text="Still there?")
    assert (refusal["code"], "despawn" in refusal["hint"]) == ("character_gone", True)
    assert peer.ask("warm", npc="guard")["code"] == "character_gone"
    assert peer.ask("spawn", character="guard")["code"] == "unknown_character"
    lines = [line["text"] for line in peer.ask("history", npc="guard")["lines"]]
    assert lines[:2] == ["fake:say:Halt.", "Halt."]
    (tmp_path / "guard").rename(characters / "guard")
    event = told(peer)
    assert (event["change"], event["npcs"]) == ("added", 1)
    assert peer.ask("say", npc="guard", text="fake:say:Here I am.")["text"] == "Here I am."
    assert len(peer.ask("history", npc="guard")["lines"]) == len(lines) + 2


def test_line_that_waits_for_an_npc_whose_pack_goes_is_refused_by_name(serve, connect, characters, tmp_path) -> None:
    peer = subscribed(connect(serve(engine={"fake_step_ms": 5})))
    long = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    waits = peer.send("say", npc="guard", text="Well?", mid_reply="queue")
    peer.until(lambda message: message["type"] == "delta")
    (characters / "guard").rename(tmp_path / "guard")
    told(peer)
    peer.ask("cancel", turn=long)
    assert peer.end_of(waits)["code"] == "character_gone"


def test_line_that_is_refused_when_its_time_comes_has_cut_nothing_out_of_the_history(serve, connect, characters, tmp_path) -> None:
    peer = subscribed(connect(serve(engine={"fake_step_ms": 5})))
    long = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    waits = peer.send("say", npc="guard", text="Well?", mid_reply="queue", heard={"chars": 1})
    peer.until(lambda message: message["type"] == "delta")
    (characters / "guard").rename(tmp_path / "guard")
    told(peer)
    peer.ask("cancel", turn=long)
    said = peer.end_of(long)["text"]
    assert peer.end_of(waits)["code"] == "character_gone"
    assert peer.ask("history", npc="guard")["lines"][-1]["text"] == said
    assert len(said) > 1


def test_adapter_of_a_removed_pack_leaves_the_engine(peer, characters, voices) -> None:
    pack = write_pack(characters, "bard", adapter='{ file = "voice.gguf" }')
    shutil.copy(voices[0], pack / "voice.gguf")
    told(peer)
    peer.ask("spawn", character="bard")
    peer.ask("say", npc="bard", text="fake:say:La.")
    assert peer.ask("stats")["scheduler"]["adapters"]["resident"] == 1
    shutil.rmtree(pack)
    assert told(peer)["change"] == "removed"
    assert peer.ask("stats")["scheduler"]["adapters"]["resident"] == 0


def test_adapter_that_waits_is_read_from_another_pack_when_the_first_has_gone(serve, connect, characters, voices) -> None:
    for name, voice in (("bard", voices[0]), ("cook", voices[0]), ("thief", voices[1])):
        shutil.copy(voice, write_pack(characters, name, adapter='{ file = "voice.gguf" }') / "voice.gguf")
    peer = connect(serve(engine={"fake_step_ms": 5, "max_adapters": 1}, pace=PATIENT))
    for name in ("bard", "cook", "thief"):
        peer.ask("spawn", character=name)
    long = peer.send("say", npc="thief", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    waits = [peer.send("say", npc=name, text="fake:say:Aye.") for name in ("bard", "cook")]
    assert peer.ask("stats")["scheduler"]["adapters"]["waiting"] == 1
    shutil.rmtree(characters / "bard")
    peer.ask("cancel", turn=long)
    assert peer.end_of(waits[0])["code"] == "adapter_missing"
    assert peer.end_of(waits[1])["text"] == "Aye."


def test_npcs_that_a_state_folder_kept_are_back_with_their_pack(serve, connect, characters, tmp_path) -> None:
    running = serve(state=tmp_path / "state")
    peer = connect(running)
    peer.ask("spawn", character="innkeeper", npc="keeper")
    peer.ask("say", npc="keeper", text="fake:say:Ale?")
    running.stop()
    (characters / "innkeeper").rename(tmp_path / "away")
    peer = subscribed(connect(serve(state=tmp_path / "state")))
    assert peer.ask("history", npc="keeper")["code"] == "unknown_npc"
    (tmp_path / "away").rename(characters / "innkeeper")
    event = told(peer)
    assert (event["change"], event["npcs"]) == ("added", 1)
    assert [line["text"] for line in peer.ask("history", npc="keeper")["lines"]] == ["Come in, come in.", "fake:say:Ale?", "Ale?"]
    assert peer.ask("say", npc="keeper", text="fake:say:Aye.")["text"] == "Aye."
    assert peer.ask("stats")["state"]["shelved"] == []


# --- who hears of it ----------------------------------------------------------------------------------------------------


def test_only_who_has_subscribed_hears_of_packs(serve, connect, characters) -> None:
    running = serve()
    peer, other, once = subscribed(connect(running)), connect(running), connect(running)
    once.ask("subscribe", packs=True)
    assert once.ask("subscribe", packs=False)["packs"] is False
    assert peer.ask("subscribe")["packs"] is True
    assert other.ask("subscribe")["packs"] is False
    write_pack(characters, "bard")
    told(peer)
    for silent in (other, once):
        assert silent.ask("spawn", character="bard")["type"] == "done"
        assert not [message for message in silent.heard if message.get("event") == "pack"]


def test_without_watching_nothing_is_noticed(serve, connect, characters) -> None:
    peer = connect(serve(watch=False))
    assert peer.ask("stats")["packs"]["watching"] is False
    write_pack(characters, "bard")
    assert peer.ask("spawn", character="bard")["code"] == "unknown_character"
    assert peer.ask("spawn", character="guard")["type"] == "done"


def test_folder_that_comes_only_after_the_service_is_watched_too(serve, connect, characters, tmp_path) -> None:
    characters.rename(tmp_path / "later")
    peer = connect(serve(pace=Pace(SWIFT.patience, rescan_ms=100.0)))
    peer.ask("subscribe", packs=True)
    assert "cannot be read" in peer.ask("characters")["problems"][0]["problem"]
    (tmp_path / "later").rename(characters)
    assert {told(peer)["character"] for _ in range(2)} == {"innkeeper", "guard"}
    assert peer.ask("characters")["problems"] == []


# --- moods and greetings ------------------------------------------------------------------------------------------------


@pytest.fixture
def moody(serve, connect, characters, voices) -> Peer:
    moods = '[{ name = "drunk", style = "You slur.", adapter = [{ file = "1.gguf", scale = 0.5 }, { file = "2.gguf" }] }]'
    pack = write_pack(characters, "bard", adapter='{ file = "0.gguf" }', moods=moods, greeting='"Hey."', greetings='["Ho.", "Nonny."]')
    for voice in voices:
        shutil.copy(voice, pack)
    return connect(serve())


def test_mood_is_spoken_with_voices_of_its_own_for_one_turn(moody) -> None:
    moody.ask("spawn", character="bard")
    drunk = moody.ask("say", npc="bard", text="fake:say:Hic.", mood="drunk")
    assert (drunk["mood"], sorted(part["scale"] for part in drunk["voice"])) == ("drunk", [0.5, 1.0])
    assert drunk["adapter"] == drunk["voice"][0]["adapter"]
    usual = moody.ask("say", npc="bard", text="fake:say:La.")
    assert (usual["mood"], len(usual["voice"])) == (None, 1)
    assert usual["adapter"] not in [part["adapter"] for part in drunk["voice"]]
    refusal = moody.ask("say", npc="bard", text="Well?", mood="drnk")
    assert (refusal["code"], "drunk" in refusal["hint"]) == ("unknown_mood", True)
    assert moody.ask("warm", npc="bard", mood="drnk")["code"] == "unknown_mood"
    assert moody.ask("warm", npc="bard", mood="drunk")["mood"] == "drunk"


def test_greeting_can_be_chosen_among_those_there_are(moody) -> None:
    bard = next(one for one in moody.ask("characters")["characters"] if one["id"] == "bard")
    assert (bard["greetings"], bard["moods"]) == (3, ["drunk"])
    assert moody.ask("spawn", character="bard", npc="usual")["greeting"] == "Hey."
    assert moody.ask("spawn", character="bard", npc="other", greeting=2)["greeting"] == "Nonny."
    assert [line["text"] for line in moody.ask("history", npc="other")["lines"]] == ["Nonny."]
    assert moody.ask("spawn", character="bard", greeting=3)["code"] == "unknown_greeting"
    assert moody.ask("spawn", character="guard", greeting=0)["code"] == "unknown_greeting"
