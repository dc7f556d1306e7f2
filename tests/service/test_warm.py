"""An NPC is prepared before anybody speaks to it."""

from __future__ import annotations

import pytest

SLOW = {"fake_step_ms": 5, "prefill_chunk": 16}
LONG_AGO = [{"speaker": "Tom", "text": f"This is number {number} of the things I said.", "is_npc": False} for number in range(30)]


@pytest.fixture
def peer(serve, connect):
    peer = connect(serve())
    peer.ask("spawn", character="innkeeper", npc="one", player="Tom")
    return peer


@pytest.fixture
def slow_peer(serve, connect):
    """Its NPC takes seconds to be prepared."""
    peer = connect(serve(engine=SLOW, step_ms=1.0))
    peer.ask("spawn", character="guard", npc="one", player="Tom")
    peer.ask("history", npc="one", lines=LONG_AGO)
    return peer


def test_say_after_a_warm_prefills_its_own_words_and_little_else(peer) -> None:
    warm = peer.ask("warm", npc="one")
    assert (warm["finish"], warm["npc"]) == ("warm", "one")
    assert warm["usage"]["prefilled"] == warm["receipt"]["total"] > 0
    said = peer.ask("say", npc="one", text="Good evening.")
    assert said["usage"]["reused"] == warm["usage"]["prompt"]
    assert peer.ask("history", npc="one")["lines"][0]["text"] == "Come in, come in."


def test_warm_says_nothing_and_changes_nothing(peer) -> None:
    warm = peer.send("warm", npc="one", priority="player")
    peer.end_of(warm)
    assert not [message for message in peer.heard if message["type"] == "delta"]
    assert len(peer.ask("history", npc="one")["lines"]) == 1


def test_say_ends_a_warm_that_is_under_way_and_goes_first(slow_peer) -> None:
    warm = slow_peer.send("warm", npc="one")
    say = slow_peer.send("say", npc="one", text="fake:say:Evening.", mid_reply="refuse", speaker="Ada")
    assert slow_peer.end_of(warm)["finish"] == "cancelled"
    assert slow_peer.end_of(say)["text"] == "Evening."


def test_warm_can_be_cancelled_and_leaves_nothing_open(slow_peer) -> None:
    warm = slow_peer.send("warm", npc="one")
    assert slow_peer.ask("cancel", turn=warm)["cancelled"] is True
    assert next(message for message in slow_peer.heard if message.get("id") == warm)["finish"] == "cancelled"
    assert slow_peer.ask("stats")["turns"] == 0


def test_edit_of_the_history_ends_a_warm_for_the_old_one(slow_peer) -> None:
    warm = slow_peer.send("warm", npc="one")
    assert slow_peer.ask("history", npc="one", keep=2)["lines"] == LONG_AGO[:2]
    assert next(message for message in slow_peer.heard if message.get("id") == warm)["finish"] == "cancelled"


def test_npc_that_speaks_or_is_being_prepared_cannot_be_prepared(slow_peer) -> None:
    slow_peer.send("warm", npc="one")
    assert slow_peer.ask("warm", npc="one")["code"] == "npc_busy"
    say = slow_peer.send("say", npc="one", text="fake:long", max_tokens=1000)
    refusal = slow_peer.ask("warm", npc="one")
    assert (refusal["code"], "speaking" in refusal["message"]) == ("npc_busy", True)
    slow_peer.ask("cancel", turn=say)


def test_warm_of_a_client_that_is_gone_ends(serve, connect) -> None:
    running = serve(engine=SLOW, step_ms=1.0)
    gone, stays = connect(running), connect(running)
    stays.ask("spawn", character="guard", npc="one")
    stays.ask("history", npc="one", lines=LONG_AGO)
    gone.send("warm", npc="one")
    gone.socket.send(b"\xc1")
    gone.until(lambda message: message["type"] == "error")
    assert stays.ask("stats")["turns"] == 0
    assert stays.ask("say", npc="one", text="fake:say:Evening.")["text"] == "Evening."


def test_cancel_of_a_warm_tells_how_much_was_heard_of_the_reply_before_it(slow_peer) -> None:
    slow_peer.ask("say", npc="one", text="fake:say:One. Two. Three.")
    slow_peer.ask("memories", npc="one", set=["Ada lies."])  # so that there is something to prepare
    warm = slow_peer.send("warm", npc="one")
    answer = slow_peer.ask("cancel", npc="one", heard={"sentences": 1})
    assert (answer["cancelled"], answer["cut"]) == (True, len(" Two. Three."))
    assert slow_peer.end_of(warm)["finish"] == "cancelled"
    assert slow_peer.ask("history", npc="one")["lines"][-1]["text"] == "One."


def test_change_of_history_that_is_refused_lets_a_warm_go_on(slow_peer) -> None:
    warm = slow_peer.send("warm", npc="one")
    assert slow_peer.ask("history", npc="one", edit={"at": 99, "text": "Never."})["code"] == "unknown_line"
    assert slow_peer.end_of(warm)["finish"] == "warm"
