"""Saves and restores of a running service: KV beside them, NPCs that are there already, and what is said of what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def peer(serve, connect, tmp_path: Path):
    peer = connect(serve(state=tmp_path / "state", engine={"fake_step_ms": 1}))
    for npc in ("one", "two"):
        peer.ask("spawn", character="guard", npc=npc)
        peer.ask("say", npc=npc, text=f"fake:say:I am {npc}.")
    return peer


def move_saves(tmp_path: Path) -> Path:
    """The saves of the state folder, in a folder of another service."""
    (tmp_path / "other").mkdir()
    (tmp_path / "state" / "saves").rename(tmp_path / "other" / "saves")
    return tmp_path / "other"


def test_kv_is_written_beside_a_save_and_read_by_another_service(serve, connect, tmp_path, peer) -> None:
    assert peer.ask("save", name="evening", kv=True) | {"id": 0} == {"type": "done", "id": 0, "npcs": 2, "name": "evening", "kv": 2}
    other = connect(serve(state=move_saves(tmp_path)))
    restored = other.ask("restore", name="evening")
    assert restored["problems"] == []
    assert [(one["npc"], one["lines"], one["kv"], one["kv_reason"]) for one in restored["restored"]] == [
        ("one", 2, "loaded", ""),
        ("two", 2, "loaded", ""),
    ]
    said = other.ask("say", npc="one", text="fake:say:Still one.")
    assert (said["text"], said["usage"]["source"]) == ("Still one.", "saved")


def test_save_without_kv_says_so_and_restores_the_text(serve, connect, tmp_path, peer) -> None:
    peer.ask("save", name="evening", npcs=["one"])
    (one,) = connect(serve(state=move_saves(tmp_path))).ask("restore", name="evening")["restored"]
    assert (one["kv"], one["lines"]) == ("none", 2)
    assert one["kv_reason"]


def test_kv_that_is_gone_is_a_reason_and_no_failure(serve, connect, tmp_path, peer) -> None:
    peer.ask("save", name="evening", kv=True)
    folder = move_saves(tmp_path)
    for blob in (folder / "saves" / "evening.kv").iterdir():
        blob.unlink()
    restored = connect(serve(state=folder)).ask("restore", name="evening")["restored"]
    assert all(one["kv"] == "none" and one["kv_reason"] for one in restored)


def test_some_are_restored_and_a_name_that_is_not_in_the_save_is_a_problem(serve, connect, peer) -> None:
    document = peer.ask("save")["document"]
    answer = connect(serve()).ask("restore", document=document, npcs=["two", "three"])
    assert [one["npc"] for one in answer["restored"]] == ["two"]
    assert [(problem["npc"], problem["code"]) for problem in answer["problems"]] == [("three", "unknown_npc")]


def test_npc_that_is_replaced_in_mid_reply_ends_its_turn_first(peer) -> None:
    document = peer.ask("save")["document"]
    say = peer.send("say", npc="one", text="fake:long", max_tokens=2000)
    waiting = peer.send("say", npc="one", text="Me too.", speaker="Ada")
    answer = peer.ask("restore", document=document, npcs=["one"], replace=True)
    assert [one["npc"] for one in answer["restored"]] == ["one"]
    ends = [message for message in peer.heard if message.get("id") in (say, waiting) and message["type"] == "done"]
    assert [end["finish"] for end in ends] == ["cancelled", "cancelled"]
    assert [line["text"] for line in peer.ask("history", npc="one")["lines"]] == ["fake:say:I am one.", "I am one."]
    assert peer.ask("say", npc="one", text="fake:say:Here.")["text"] == "Here."


def test_turn_that_is_open_is_not_in_a_save_and_goes_on(peer) -> None:
    say = peer.send("say", npc="one", text="fake:long", max_tokens=100)
    peer.until(lambda message: message["type"] == "delta")
    saved = {npc["npc"]: npc for npc in peer.ask("save")["document"]["npcs"]}
    assert len(saved["one"]["history"]) == 2
    assert peer.end_of(say)["finish"] == "length"


def test_unknown_npc_is_refused_and_nothing_is_saved(peer) -> None:
    assert peer.ask("save", name="evening", npcs=["one", "nobody"])["code"] == "unknown_npc"
    assert peer.ask("restore", name="evening")["code"] == "unknown_save"


def test_id_of_a_save_that_is_not_answered_yet_cannot_be_used_again(peer) -> None:
    say = peer.send("say", npc="two", text="fake:long", max_tokens=300)
    save = peer.send("save", name="evening", kv=True)
    peer.send("ping", id=save)
    answers = [peer.until(lambda message: message.get("id") in (0, save) and message["type"] != "delta") for _ in range(2)]
    assert {(answer["id"], answer["type"]) for answer in answers} in ({(0, "error"), (save, "done")}, {(save, "done")})
    peer.ask("cancel", turn=say)


def test_engine_that_dies_leaves_no_save_unanswered(serve, connect, tmp_path) -> None:
    peer = connect(serve(in_child=True, restart_backoff_ms=(60_000, 60_000), state=tmp_path / "of-one-that-dies"))
    peer.ask("spawn", character="guard", npc="one")
    assert peer.ask("say", npc="one", text="fake:crash")["code"] == "engine_lost"
    assert peer.ask("save", name="evening", kv=True)["kv"] == 0
    (one,) = peer.ask("restore", name="evening", replace=True)["restored"]
    assert (one["kv"], bool(one["kv_reason"])) == ("none", True)


def test_a_save_that_no_answer_can_hold_is_refused_with_both_sizes(peer, monkeypatch) -> None:
    monkeypatch.setattr("personae.service.archive.ENVELOPE_BYTES", 16 << 20)
    refused = peer.ask("save")
    assert (refused["type"], refused["code"]) == ("error", "save_too_large")
    assert str(16 << 20) in refused["message"]
