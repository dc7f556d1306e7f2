"""Memories are the writer's to read and to edit, and stand in every prompt."""

from __future__ import annotations


def test_memories_are_read_and_set(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", npc="one")
    assert peer.ask("memories", npc="one")["memories"] == []
    assert peer.ask("memories", npc="one", set=["Tom owes me a coin.", "Ada lies."])["memories"] == ["Tom owes me a coin.", "Ada lies."]
    assert peer.ask("memories", npc="one", set=["Ada lies."]) | {"id": 0} == {
        "type": "done",
        "id": 0,
        "npc": "one",
        "memories": ["Ada lies."],
    }
    assert peer.ask("memories", npc="one", set=[])["memories"] == []


def test_memories_are_part_of_the_prompt_and_of_its_receipt(serve, connect) -> None:
    peer = connect(serve())
    for npc in ("one", "two"):
        peer.ask("spawn", character="guard", npc=npc)
    peer.ask("memories", npc="two", set=["Tom owes me a coin."])
    one, two = (peer.ask("say", npc=npc, text="Good evening.") for npc in ("one", "two"))
    assert two["usage"]["prompt"] > one["usage"]["prompt"]
    assert [part["count"] for part in two["receipt"]["parts"] if part["part"] == "memory"] == [1]


def test_memories_may_change_while_the_npc_speaks(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 2}))
    peer.ask("spawn", character="guard", npc="one")
    say = peer.send("say", npc="one", text="fake:long", max_tokens=60)
    assert peer.ask("memories", npc="one", set=["Ada lies."])["memories"] == ["Ada lies."]
    assert peer.end_of(say)["finish"] == "length"
