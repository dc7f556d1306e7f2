"""The shipped Python client against the whole service, through its public door alone."""

from __future__ import annotations

import pytest

personae_client = pytest.importorskip("personae_client")


def test_client_speaks_with_a_character(serve) -> None:
    with personae_client.Client(serve().endpoint, name="test") as client:
        npc = client.spawn("innkeeper")
        assert "".join(delta.text for delta in npc.say("fake:say:Good evening.")) == "Good evening."
        assert [line.text for line in npc.history()] == ["Come in, come in.", "fake:say:Good evening.", "Good evening."]


def test_client_hears_two_npcs_at_once(serve) -> None:
    with personae_client.Client(serve().endpoint, name="test") as client:
        guards = [client.spawn("guard") for _ in range(2)]
        ends = client.gather(*(guard.say(f"fake:say:I am number {number}.") for number, guard in enumerate(guards)))
        assert [end.text for end in ends] == ["I am number 0.", "I am number 1."]


def test_refusal_reaches_the_game_with_its_code(serve) -> None:
    with personae_client.Client(serve().endpoint, name="test") as client, pytest.raises(personae_client.PersonaeError) as refusal:
        client.spawn("nobody")
    assert refusal.value.code == "unknown_character"
