"""A reply that would come too late is replaced by a line that the writer has put there for it."""

from __future__ import annotations

import pytest

from tests.service.house import write_pack

SLOW = {"fake_step_ms": 5, "prefill_chunk": 16}


@pytest.fixture
def peer(serve, connect, characters):
    write_pack(characters, "clerk", fallback='["One moment, please.", "Hm?"]')
    peer = connect(serve(engine=SLOW, step_ms=1.0))
    peer.ask("spawn", character="clerk", npc="one", player="Tom")
    return peer


def test_missed_first_word_is_an_authored_line_and_part_of_the_talk(peer) -> None:
    say = peer.send("say", npc="one", text="A long story. " * 60, deadline={"first_ms": 50})
    done = peer.end_of(say)
    assert (done["finish"], done["text"], done["fallback"]) == ("deadline", "One moment, please.", "One moment, please.")
    assert (peer.deltas(say), done["timing"]["ttft_ms"], done["speech"]) == (done["text"], -1, done["text"])
    assert done["timing"]["total_ms"] >= 50
    assert [line["text"] for line in peer.ask("history", npc="one")["lines"]][1] == "One moment, please."
    assert peer.ask("say", npc="one", text="fake:say:Yes?")["text"] == "Yes?"


def test_missed_end_lets_what_was_said_stand_before_the_line(peer) -> None:
    say = peer.send("say", npc="one", text="fake:long", max_tokens=3000, deadline={"end_ms": 400})
    done = peer.end_of(say)
    assert done["finish"] == "deadline"
    assert done["text"].endswith(" One moment, please.")
    assert done["text"].startswith("[base]")
    assert done["text"] == peer.deltas(say) == peer.ask("history", npc="one")["lines"][1]["text"]


def test_lines_for_it_are_spoken_in_turn(peer) -> None:
    text, deadline = "A long story. " * 60, {"first_ms": 20}
    assert [peer.ask("say", npc="one", text=text, deadline=deadline)["fallback"] for _ in range(3)] == [
        "One moment, please.",
        "Hm?",
        "One moment, please.",
    ]


def test_pack_without_such_lines_ends_with_what_was_said(peer) -> None:
    peer.ask("spawn", character="guard", npc="two")
    done = peer.ask("say", npc="two", text="A long story. " * 60, deadline={"first_ms": 50})
    assert (done["finish"], done["text"], done["fallback"]) == ("deadline", "", None)
    assert [line["is_npc"] for line in peer.ask("history", npc="two")["lines"]] == [False]


def test_deadline_that_is_met_changes_nothing(peer) -> None:
    done = peer.ask("say", npc="one", text="fake:say:Yes?", deadline={"first_ms": 60_000, "end_ms": 60_000})
    assert (done["finish"], done["text"], done["fallback"]) == ("end", "Yes?", None)


def test_deadline_holds_for_a_line_that_waits(peer) -> None:
    first = peer.send("say", npc="one", text="fake:long", max_tokens=3000)
    peer.until(lambda message: message["type"] == "delta")
    late = peer.send("say", npc="one", text="Are you done?", speaker="Ada", deadline={"first_ms": 60})
    done = peer.end_of(late)
    assert (done["finish"], done["text"], peer.deltas(late)) == ("deadline", "One moment, please.", "One moment, please.")
    peer.ask("cancel", turn=first)
    assert [line["speaker"] for line in peer.ask("history", npc="one")["lines"]] == ["Tom", "Clerk", "Ada", "Clerk"]


def test_deadline_holds_while_the_engine_is_down(serve, connect, characters) -> None:
    write_pack(characters, "clerk", fallback='["One moment, please."]')
    peer = connect(serve(in_child=True, restart_backoff_ms=(60_000, 60_000)))
    peer.ask("spawn", character="clerk", npc="one")
    assert peer.ask("say", npc="one", text="fake:crash")["code"] == "engine_lost"
    done = peer.ask("say", npc="one", text="Are you there?", deadline={"first_ms": 50})
    assert (done["type"], done.get("fallback")) == ("done", "One moment, please.")


def test_line_spoken_for_one_who_waited_can_be_cut_to_what_was_heard(peer) -> None:
    first = peer.send("say", npc="one", text="fake:long", max_tokens=3000)
    peer.until(lambda message: message["type"] == "delta")
    late = peer.send("say", npc="one", text="Are you done?", speaker="Ada", deadline={"first_ms": 60})
    peer.end_of(late)
    peer.ask("cancel", turn=first)
    assert peer.ask("cancel", turn=late, heard={"chars": 3})["cut"] == len("One moment, please.") - 3
    assert peer.ask("history", npc="one")["lines"][-1]["text"] == "One"
