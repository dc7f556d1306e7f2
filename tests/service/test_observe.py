"""NPCs witness what they do not answer."""

from __future__ import annotations


def lines(peer, npc: str) -> list[tuple[str, str, bool]]:
    return [(line["speaker"], line["text"], line["is_npc"]) for line in peer.ask("history", npc=npc)["lines"]]


def test_those_who_are_named_witness_it_and_nobody_else(serve, connect) -> None:
    peer = connect(serve())
    for npc in ("one", "two", "three"):
        peer.ask("spawn", character="guard", npc=npc)
    assert peer.ask("observe", npcs=["one", "two", "one"], text="The bell tolls.")["npcs"] == ["one", "two"]
    peer.ask("observe", npcs=["two"], text="Did you hear that?", speaker="Ada")
    assert lines(peer, "one") == [("", "The bell tolls.", False)]
    assert lines(peer, "two") == [("", "The bell tolls.", False), ("Ada", "Did you hear that?", False)]
    assert lines(peer, "three") == []


def test_what_was_witnessed_is_in_the_next_prompt_and_nothing_is_said_of_itself(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", npc="one")
    without = peer.ask("say", npc="one", text="Good evening.")["usage"]["prompt"]
    peer.ask("spawn", character="guard", npc="two")
    peer.ask("observe", npcs=["two"], text="The bell tolls.")
    assert peer.ask("say", npc="two", text="Good evening.")["usage"]["prompt"] > without
    assert not [message for message in peer.heard if message["type"] == "delta" and message["npc"] not in ("one", "two")]


def test_name_that_is_unknown_lets_nobody_witness_anything(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", npc="one")
    assert peer.ask("observe", npcs=["one", "nobody"], text="Boo.")["code"] == "unknown_npc"
    assert lines(peer, "one") == []


def test_npc_in_mid_reply_goes_on_and_has_witnessed_it_after_the_reply(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 2}))
    peer.ask("spawn", character="guard", npc="one")
    say = peer.send("say", npc="one", text="fake:long", max_tokens=60)
    peer.until(lambda message: message["type"] == "delta")
    peer.ask("observe", npcs=["one"], text="The bell tolls.")
    done = peer.end_of(say)
    assert done["finish"] == "length"
    assert [text for _, text, _ in lines(peer, "one")] == ["fake:long", done["text"], "The bell tolls."]


def test_what_was_witnessed_in_a_turn_that_failed_stays(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 2}))
    peer.ask("spawn", character="guard", npc="one")
    say = peer.send("say", npc="one", text="fake:fault")
    peer.ask("observe", npcs=["one"], text="The bell tolls.")
    assert peer.end_of(say)["code"] == "grammar_error"
    assert lines(peer, "one") == [("", "The bell tolls.", False)]
