"""Somebody speaks to an NPC that is still answering: it breaks off, or they wait, or they are refused; and only what was heard happened."""

from __future__ import annotations

from typing import Any

import pytest

SLOW = {"fake_step_ms": 2}
LONG = {"text": "fake:long", "max_tokens": 1500}


@pytest.fixture
def peer(serve, connect):
    peer = connect(serve(engine=SLOW))
    peer.ask("spawn", character="guard", npc="one", player="Tom")
    return peer


def speaking(peer, npc: str = "one", **fields: Any) -> int:
    """A say whose reply goes on for long, and of which some words have been heard."""
    say = peer.send("say", npc=npc, **{**LONG, **fields})
    peer.until(lambda message: len(peer.deltas(say)) > len("[base] "))
    return say


def ends(peer, *says: int) -> list[dict[str, Any]]:
    """Their terminal messages in the order in which they came, each exactly once."""
    while len(found := [m for m in peer.heard if m.get("id") in says and m["type"] in ("done", "error")]) < len(says):
        peer.next()
    peer.ask("ping")
    assert sorted(message["id"] for message in found) == sorted(says)
    return found


def history(peer, npc: str = "one") -> list[tuple[str, str]]:
    return [(line["speaker"], line["text"]) for line in peer.ask("history", npc=npc)["lines"]]


def test_player_interrupts_and_what_was_sent_counts_as_heard(peer) -> None:
    first = speaking(peer)
    second = peer.send("say", npc="one", text="fake:say:Very well.")
    interrupted, answer = ends(peer, first, second)
    assert (interrupted["id"], interrupted["finish"]) == (first, "interrupted")
    assert interrupted["text"] == peer.deltas(first)
    assert (answer["finish"], answer["text"]) == ("end", "Very well.")
    assert history(peer) == [
        ("Tom", "fake:long"),
        ("Guard", interrupted["text"]),
        ("Tom", "fake:say:Very well."),
        ("Guard", "Very well."),
    ]


@pytest.mark.parametrize(("heard", "expected"), [({"chars": 4}, "[bas"), ({"chars": 7}, "[base]"), ({"sentences": 0}, None)])
def test_of_an_interrupted_reply_only_what_was_heard_happened(peer, heard, expected) -> None:
    first = speaking(peer)
    second = peer.send("say", npc="one", text="Very well.", heard=heard, max_tokens=5)
    ends(peer, first, second)
    cut = [("Guard", expected)] if expected else []
    assert history(peer)[:-1] == [("Tom", "fake:long"), *cut, ("Tom", "Very well.")]


def test_barge_in_is_the_same_as_a_history_typed_by_hand(peer) -> None:
    first = speaking(peer)
    second = peer.send("say", npc="one", text="And now?", heard={"chars": 5})
    _, answer = ends(peer, first, second)
    peer.ask("spawn", character="guard", npc="typed", player="Tom")
    peer.ask("history", npc="typed", lines=peer.ask("history", npc="one")["lines"][:2])
    typed = peer.ask("say", npc="typed", text="And now?")
    assert typed["text"] == answer["text"]
    assert typed["usage"]["prompt"] == answer["usage"]["prompt"]


def test_line_of_the_scene_waits_until_the_reply_has_ended(peer) -> None:
    first = speaking(peer, max_tokens=40)
    second = peer.send("say", npc="one", text="fake:say:What?", speaker="Ada")
    done, answer = ends(peer, first, second)
    assert (done["id"], done["finish"], answer["text"]) == (first, "length", "What?")
    assert answer["timing"]["queued_ms"] > 0
    assert [speaker for speaker, _ in history(peer)] == ["Tom", "Guard", "Ada", "Guard"]


def test_lines_that_wait_are_answered_in_order_and_each_hears_the_answer_before(peer) -> None:
    says = [speaking(peer, max_tokens=40)]
    says += [peer.send("say", npc="one", text=f"fake:say:Answer {n}.", speaker=f"Ada {n}") for n in range(3)]
    assert [end["id"] for end in ends(peer, *says)] == says
    assert [text for _, text in history(peer)][3::2] == ["Answer 0.", "Answer 1.", "Answer 2."]


def test_player_who_interrupts_goes_ahead_of_those_who_wait(peer) -> None:
    first = speaking(peer)
    waiting = peer.send("say", npc="one", text="fake:say:Me too.", speaker="Ada")
    player = peer.send("say", npc="one", text="fake:say:At once.")
    assert [(end["id"], end["finish"]) for end in ends(peer, first, waiting, player)] == [
        (first, "interrupted"),
        (player, "end"),
        (waiting, "end"),
    ]


def test_who_interrupts_and_who_waits_can_be_asked_for(peer) -> None:
    first = speaking(peer, max_tokens=60)
    waits = peer.send("say", npc="one", text="fake:say:Patience.", mid_reply="queue")
    assert peer.ask("say", npc="one", text="Now!", mid_reply="refuse")["code"] == "npc_busy"
    done, patient = ends(peer, first, waits)
    assert (done["finish"], patient["text"]) == ("length", "Patience.")
    second = speaking(peer)
    breaks_in = peer.send("say", npc="one", text="fake:say:Oh!", speaker="Ada", mid_reply="interrupt")
    assert [end["finish"] for end in ends(peer, second, breaks_in)] == ["interrupted", "end"]


def test_queue_is_bounded_and_a_refusal_changes_nothing(peer) -> None:
    first = speaking(peer)
    waiting = [peer.send("say", npc="one", text="fake:say:Yes.", speaker="Ada") for _ in range(8)]
    refused = peer.ask("say", npc="one", text="fake:say:Yes.", speaker="Ada")
    assert (refused["code"], refused["retry_after_ms"] > 0) == ("npc_busy", True)
    peer.ask("cancel", turn=first)
    assert [end["finish"] for end in ends(peer, *waiting)] == ["end"] * 8


def test_line_that_can_never_fit_is_refused_at_once_and_interrupts_nobody(serve, connect) -> None:
    peer = connect(serve(engine={**SLOW, "n_ctx": 512}))
    peer.ask("spawn", character="guard", npc="one")
    first = speaking(peer, max_tokens=100)
    for fields in ({}, {"mid_reply": "queue"}):
        assert peer.ask("say", npc="one", text="x" * 1000, heard={"chars": 1}, **fields)["code"] == "text_too_long"
    done = peer.end_of(first)
    assert done["finish"] == "length"
    assert history(peer)[1][1] == done["text"]


# --- ends of those who wait -------------------------------------------------------------------------------------------------


def test_waiting_line_can_be_taken_back(peer) -> None:
    first = speaking(peer)
    waiting = peer.send("say", npc="one", text="Never mind.", speaker="Ada")
    assert peer.ask("cancel", turn=waiting) | {"id": 0} == {"type": "done", "id": 0, "cancelled": True, "cut": 0}
    end = next(message for message in peer.heard if message.get("id") == waiting)
    assert (end["finish"], end["text"], end["usage"]["prompt"], end["timing"]["ttft_ms"]) == ("cancelled", "", 0, -1)
    peer.ask("cancel", turn=first)
    assert [speaker for speaker, _ in history(peer)] == ["Tom", "Guard"]


def test_waiting_line_ends_when_its_time_is_over(peer) -> None:
    first = speaking(peer)
    late = peer.send("say", npc="one", text="Are you done?", speaker="Ada", max_seconds=0.1)
    end = peer.end_of(late)
    assert (end["finish"], end["text"]) == ("time", "")
    assert end["timing"]["total_ms"] >= 100
    assert not any(message.get("id") == first and message["type"] == "done" for message in peer.heard)
    peer.ask("cancel", turn=first)


def test_despawn_ends_the_reply_and_all_who_wait(peer) -> None:
    says = [speaking(peer), *(peer.send("say", npc="one", text="Hm.", speaker="Ada") for _ in range(3))]
    gone = peer.send("despawn", npc="one")
    assert {end["finish"] for end in ends(peer, *says)} == {"cancelled"}
    assert any(message.get("id") == gone and message["type"] == "done" for message in peer.heard)
    assert peer.ask("stats")["turns"] == 0


def test_client_that_is_lost_takes_its_waiting_lines_with_it_and_no_others(serve, connect) -> None:
    running = serve(engine=SLOW)
    gone, stays = connect(running), connect(running)
    stays.ask("spawn", character="guard", npc="one")
    first = speaking(stays, max_tokens=300)
    gone.send("say", npc="one", text="fake:say:Of somebody who is gone.", speaker="Ada")
    kept = stays.send("say", npc="one", text="fake:say:Still here.", speaker="Bo")
    gone.socket.send(b"\xc1")
    gone.until(lambda message: message["type"] == "done" and message.get("finish") == "cancelled")
    assert [end["id"] for end in ends(stays, first, kept)] == [first, kept]
    assert not [text for _, text in history(stays) if "gone" in text]


def test_waiting_line_is_answered_by_the_next_engine(serve, connect) -> None:
    peer = connect(serve(in_child=True, restart_backoff_ms=(10, 20), engine=SLOW))
    peer.ask("spawn", character="guard", npc="one")
    crash = peer.send("say", npc="one", text="fake:crash")
    waiting = peer.send("say", npc="one", text="fake:say:Nothing happened.", speaker="Ada")
    lost, answer = ends(peer, crash, waiting)
    assert (lost["code"], answer.get("text")) == ("engine_lost", "Nothing happened.")


def test_shutdown_lets_those_who_wait_end_too(serve, connect) -> None:
    peer = connect(serve(engine=SLOW, drain_ms=10_000))
    peer.ask("spawn", character="guard", npc="one")
    first = speaking(peer, max_tokens=100)
    waiting = peer.send("say", npc="one", text="fake:say:Good night.", speaker="Ada")
    peer.ask("shutdown")
    assert peer.end_of(first)["finish"] == "length"
    assert peer.end_of(waiting)["text"] == "Good night."


# --- how much was heard, told later -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["turn", "npc"])
def test_reply_that_has_ended_is_cut_to_what_was_heard(peer, by) -> None:
    say = peer.send("say", npc="one", text="fake:say:One. Two. Three.")
    peer.end_of(say)
    answer = peer.ask("cancel", **{"turn": {"turn": say}, "npc": {"npc": "one"}}[by], heard={"sentences": 2})
    assert (answer["cancelled"], answer["cut"]) == (False, len(" Three."))
    assert history(peer)[1] == ("Guard", "One. Two.")
    assert peer.ask("say", npc="one", text="fake:say:Go on.")["text"] == "Go on."


def test_cancel_of_an_open_reply_tells_how_much_of_it_never_happened(peer) -> None:
    say = speaking(peer)
    answer = peer.ask("cancel", turn=say, heard={"chars": 3})
    end = next(message for message in peer.heard if message.get("id") == say and message["type"] == "done")
    assert (answer["cancelled"], answer["cut"]) == (True, len(end["text"]) - 3)
    assert history(peer) == [("Tom", "fake:long"), ("Guard", "[ba")]


def test_cancel_with_nothing_heard_takes_the_question_back_whether_the_reply_has_ended_or_not(peer) -> None:
    peer.ask("say", npc="one", text="fake:say:Before.")
    before = history(peer)
    peer.ask("cancel", turn=speaking(peer), heard={"chars": 0})
    assert history(peer) == before
    say = peer.send("say", npc="one", text="fake:say:After.")
    peer.end_of(say)
    assert peer.ask("cancel", turn=say, heard={"chars": 0})["cut"] == len("After.")
    assert history(peer) == before


def test_cancel_of_a_say_that_is_not_the_newest_any_more_cuts_nothing(peer) -> None:
    old = peer.send("say", npc="one", text="fake:say:Old words.")
    peer.end_of(old)
    peer.ask("say", npc="one", text="fake:say:New words.")
    assert peer.ask("cancel", turn=old, heard={"chars": 1})["cut"] == 0
    assert history(peer)[1::2] == [("Guard", "Old words."), ("Guard", "New words.")]


def test_next_line_tells_how_much_was_heard_of_a_reply_that_has_ended(peer) -> None:
    peer.ask("say", npc="one", text="fake:say:One. Two. Three.")
    peer.ask("say", npc="one", text="fake:say:Quite.", heard={"sentences": 1})
    assert history(peer) == [("Tom", "fake:say:One. Two. Three."), ("Guard", "One."), ("Tom", "fake:say:Quite."), ("Guard", "Quite.")]


def test_line_that_waited_tells_how_much_was_heard_of_the_reply_it_waited_for(peer) -> None:
    first = speaking(peer, max_tokens=40)
    waiting = peer.send("say", npc="one", text="fake:say:Quite.", speaker="Ada", heard={"chars": 6})
    ends(peer, first, waiting)
    assert history(peer)[1] == ("Guard", "[base]")


@pytest.mark.parametrize("by", ["turn", "npc"])
def test_reply_that_never_happened_takes_none_before_it_along_when_that_is_told_twice(peer, by) -> None:
    peer.ask("say", npc="one", text="fake:say:One. Two.")
    say = speaking(peer)
    for _ in range(2):
        peer.ask("cancel", **{"turn": {"turn": say}, "npc": {"npc": "one"}}[by], heard={"chars": 0})
    peer.ask("say", npc="one", text="fake:say:Hm.", heard={"chars": 0})
    assert [text for _, text in history(peer)][1::2] == ["One. Two.", "Hm."]


def test_cut_of_the_reply_before_leaves_the_open_one_its_place(peer) -> None:
    before = peer.send("say", npc="one", text="fake:say:One. Two.")
    peer.end_of(before)
    say = speaking(peer)
    assert peer.ask("cancel", turn=before, heard={"chars": 0})["cut"] == len("One. Two.")
    peer.ask("observe", npcs=["one"], text="The bell tolls.")
    peer.ask("cancel", turn=say, heard={"chars": 4})
    assert history(peer) == [("Tom", "fake:long"), ("Guard", "[bas"), ("", "The bell tolls.")]
