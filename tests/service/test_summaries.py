"""What an NPC's context has no room for any more becomes a memory, where the service was started so."""

from __future__ import annotations

from typing import Any

SMALL = {"n_ctx": 640}


def talk_until(peer, npc: str, is_enough) -> list[dict[str, Any]]:
    """Say things until it is; the answers."""
    answers = []
    for number in range(60):
        answers.append(peer.ask("say", npc=npc, text=f"This is number {number} of the things that I have to tell you.", max_tokens=60))
        assert answers[-1]["type"] == "done", answers[-1]
        if is_enough(answers[-1]):
            return answers
    raise AssertionError("it was never enough")


def has_cut_history(done: dict[str, Any]) -> bool:
    return any(cut["part"] == "history" for cut in done["receipt"]["cuts"])


def memories(peer, npc: str) -> list[str]:
    return peer.ask("memories", npc=npc)["memories"]


def wait_for_memories(peer, npc: str, n: int = 1) -> list[str]:
    for _ in range(5_000):
        if len(found := memories(peer, npc)) >= n:
            return found
    raise AssertionError("no memory came")


def test_lines_that_have_no_room_any_more_become_a_memory(serve, connect) -> None:
    peer = connect(serve(engine=SMALL, summarise=True))
    peer.ask("spawn", character="guard", npc="one")
    talk_until(peer, "one", has_cut_history)
    (memory,) = wait_for_memories(peer, "one")
    assert memory.startswith("[base] I heard:")
    assert not [line for line in peer.ask("history", npc="one")["lines"] if line["text"] == memory]


def test_memory_stands_in_the_prompts_that_follow(serve, connect) -> None:
    peer = connect(serve(engine={"n_ctx": 2048}, summarise=True))
    peer.ask("spawn", character="guard", npc="one")
    talk_until(peer, "one", has_cut_history)
    wait_for_memories(peer, "one")
    after = peer.ask("say", npc="one", text="fake:say:Indeed.")
    assert [part["count"] for part in after["receipt"]["parts"] if part["part"] == "memory"] == [1]


def test_memory_is_the_client_s_to_see_only_as_a_memory(serve, connect) -> None:
    peer = connect(serve(engine=SMALL, summarise=True))
    peer.ask("spawn", character="guard", npc="one")
    says = [done["id"] for done in talk_until(peer, "one", has_cut_history)]
    wait_for_memories(peer, "one")
    assert {message["id"] for message in peer.heard if message["type"] == "delta"} <= set(says)
    stats = peer.ask("stats")
    assert (stats["npcs"], stats["turns"]) == (1, 0)


def test_nothing_is_summed_up_unless_it_was_asked_for(serve, connect) -> None:
    peer = connect(serve(engine=SMALL))
    peer.ask("spawn", character="guard", npc="one")
    talk_until(peer, "one", has_cut_history)
    for _ in range(20):
        assert memories(peer, "one") == []


def test_talk_goes_on_for_ever_and_memories_stay_bounded(serve, connect) -> None:
    peer = connect(serve(engine=SMALL, summarise=True, max_history_lines=20))
    peer.ask("spawn", character="guard", npc="one")
    talk_until(peer, "one", lambda done: len(memories(peer, "one")) >= 3)
    assert peer.ask("say", npc="one", text="fake:say:Indeed.")["text"] == "Indeed."


def test_npc_that_goes_takes_its_summary_with_it(serve, connect) -> None:
    peer = connect(serve(engine={**SMALL, "fake_step_ms": 2}, summarise=True))
    peer.ask("spawn", character="guard", npc="one")
    talk_until(peer, "one", has_cut_history)
    peer.ask("despawn", npc="one")
    peer.ask("spawn", character="guard", npc="one")
    peer.ask("spawn", character="guard", npc="two")
    peer.ask("say", npc="two", text="fake:long", max_tokens=200)
    assert memories(peer, "one") == []
