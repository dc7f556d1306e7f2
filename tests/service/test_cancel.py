"""A turn can be taken back in each of its phases, and nothing of it is left behind."""

from __future__ import annotations

import pytest

SLOW = {"fake_step_ms": 5, "prefill_chunk": 16}


@pytest.fixture
def peer(serve, connect):
    peer = connect(serve(engine={"n_slots": 1, **SLOW}, step_ms=1.0))
    for npc in ("one", "two"):
        peer.ask("spawn", character="guard", npc=npc)
    return peer


def assert_as_fresh(peer, npc: str = "one") -> None:
    """The next turn is that of an NPC with the same history and no cancelled turn in its past."""
    peer.ask("spawn", character="guard", npc="fresh")
    assert peer.ask("history", npc=npc)["lines"] == []
    cancelled, fresh = (peer.ask("say", npc=who, text="Good evening.") for who in (npc, "fresh"))
    assert cancelled["text"] == fresh["text"]
    assert cancelled["usage"]["prompt"] == fresh["usage"]["prompt"]


def test_cancelled_while_it_waits_for_a_slot(peer) -> None:
    blocking = peer.send("say", npc="two", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    waiting = peer.send("say", npc="one", text="Anybody there?")
    assert peer.ask("cancel", turn=waiting)["cancelled"] is True
    end = next(message for message in peer.heard if message.get("id") == waiting)
    assert (end["finish"], end["text"], end["timing"]["ttft_ms"]) == ("cancelled", "", -1)
    assert peer.ask("cancel", turn=blocking)["cancelled"] is True
    assert_as_fresh(peer)


def test_cancelled_in_the_middle_of_its_prompt(peer) -> None:
    say = peer.send("say", npc="one", text="A long story. " * 60)
    assert peer.ask("cancel", turn=say)["cancelled"] is True
    end = next(message for message in peer.heard if message.get("id") == say)
    assert (end["finish"], end["text"], end["usage"]["reply"]) == ("cancelled", "", 0)
    assert_as_fresh(peer)


def test_cancelled_while_it_speaks_keeps_what_was_heard_and_no_more(peer) -> None:
    say = peer.send("say", npc="one", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta" and "9" in message["text"])
    peer.ask("cancel", npc="one")
    end = next(message for message in peer.heard if message["type"] == "done" and message["id"] == say)
    assert end["finish"] == "cancelled"
    assert end["text"] == peer.deltas(say) != ""
    assert peer.ask("history", npc="one")["lines"] == [
        {"speaker": "Player", "text": "fake:long", "is_npc": False},
        {"speaker": "Guard", "text": end["text"], "is_npc": True},
    ]
    assert peer.ask("say", npc="one", text="fake:say:As I said.")["text"] == "As I said."


def test_no_word_comes_after_the_end(peer) -> None:
    say = peer.send("say", npc="one", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    peer.ask("cancel", turn=say)
    peer.ask("say", npc="one", text="fake:say:Next.")
    ours = [message["type"] for message in peer.heard if message.get("id") == say]
    assert ours.count("done") == 1
    assert ours[-1] == "done"


def test_cancel_that_comes_too_late_is_false_and_harmless(peer) -> None:
    say = peer.send("say", npc="one", text="fake:say:Yes.")
    peer.end_of(say)
    assert peer.ask("cancel", turn=say)["cancelled"] is False
    assert peer.ask("cancel", npc="one")["cancelled"] is False
    assert len(peer.ask("history", npc="one")["lines"]) == 2


def test_cancel_and_say_sent_together_barge_in(peer) -> None:
    first = peer.send("say", npc="one", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    peer.send("cancel", npc="one")
    second = peer.send("say", npc="one", text="fake:say:Very well.")
    assert peer.end_of(second)["text"] == "Very well."
    assert any(message.get("id") == first and message.get("finish") == "cancelled" for message in peer.heard)
