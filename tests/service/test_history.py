"""A history is read, shortened, edited and replaced; what an NPC says next follows from what stands there."""

from __future__ import annotations

import pytest

LINES = [
    {"speaker": "Tom", "text": "Good evening.", "is_npc": False},
    {"speaker": "Guard", "text": "Halt.", "is_npc": True},
    {"speaker": "Ada", "text": "It is me.", "is_npc": False},
    {"speaker": "Guard", "text": "Pass.", "is_npc": True},
]


@pytest.fixture
def peer(serve, connect):
    peer = connect(serve(engine={"fake_step_ms": 1}))
    peer.ask("spawn", character="guard", npc="one", player="Tom")
    assert peer.ask("history", npc="one", lines=LINES)["lines"] == LINES
    return peer


@pytest.mark.parametrize(("keep", "left"), [(0, 0), (1, 1), (4, 4), (9, 4)])
def test_first_lines_are_kept(peer, keep, left) -> None:
    assert peer.ask("history", npc="one", keep=keep)["lines"] == LINES[:left]
    assert peer.ask("history", npc="one")["lines"] == LINES[:left]


@pytest.mark.parametrize(("at", "place"), [(0, 0), (3, 3), (-1, 3), (-4, 0)])
def test_one_line_gets_another_text(peer, at, place) -> None:
    expected = [dict(line) for line in LINES]
    expected[place]["text"] = "Other words."
    assert peer.ask("history", npc="one", edit={"at": at, "text": "Other words."})["lines"] == expected


@pytest.mark.parametrize("at", [4, -5])
def test_line_that_is_not_there_is_refused_by_name(peer, at) -> None:
    refusal = peer.ask("history", npc="one", edit={"at": at, "text": "Other words."})
    assert (refusal["code"], str(at) in refusal["message"]) == ("unknown_line", True)
    assert peer.ask("history", npc="one")["lines"] == LINES


def test_npc_speaks_from_the_history_as_it_stands(peer) -> None:
    peer.ask("spawn", character="guard", npc="two", player="Tom")
    peer.ask("say", npc="two", text="fake:say:Something else.")
    peer.ask("history", npc="two", lines=LINES)
    one, two = (peer.ask("say", npc=npc, text="Well?") for npc in ("one", "two"))
    assert (one["text"], one["usage"]["prompt"]) == (two["text"], two["usage"]["prompt"])


def test_history_of_an_npc_that_speaks_can_be_read_and_not_changed(peer) -> None:
    say = peer.send("say", npc="one", text="fake:long", max_tokens=1000)
    peer.until(lambda message: message["type"] == "delta")
    assert peer.ask("history", npc="one")["lines"] == LINES
    assert peer.ask("history", npc="one", keep=0)["code"] == "npc_busy"
    peer.ask("cancel", turn=say)
    assert peer.ask("history", npc="one", keep=0)["lines"] == []


def test_history_is_bounded_as_the_service_was_told(serve, connect) -> None:
    peer = connect(serve(max_history_lines=8))
    peer.ask("spawn", character="guard", npc="one")
    lines = [{"speaker": "Tom", "text": f"Line {number}.", "is_npc": False} for number in range(20)]
    assert peer.ask("history", npc="one", lines=lines)["lines"] == lines[-8:]
