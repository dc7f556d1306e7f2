"""The shipped Python client against the whole service, through its public door alone."""

from __future__ import annotations

import shutil
import time

import pytest

from tests.service.house import PATIENCE_MS, write_pack

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


def test_writer_drops_a_pack_in_edits_it_and_takes_it_out_and_the_game_hears_of_it(serve, characters) -> None:
    with personae_client.Client(serve().endpoint, name="test") as client:
        assert client.subscribe_packs()
        heard = []

        def until(change: str) -> personae_client.PackChange:
            deadline = time.monotonic() + PATIENCE_MS / 1000
            while time.monotonic() < deadline:
                heard.extend(event.pack_change for event in client.take_events() if event.pack_change)
                if heard:
                    assert heard[0].change == change
                    return heard.pop(0)
                client._link.wait(lambda: bool(client._link.session.events), 1.0)
            raise AssertionError(f"no pack was {change}")

        pack = write_pack(characters, "bard", greetings='["Ho."]', moods='[{ name = "drunk", style = "You slur." }]')
        assert until("added").character == "bard"
        bard = next(one for one in client.characters().characters if one.id == "bard")
        assert (bard.moods, bard.greetings) == (("drunk",), 2)
        npc = client.spawn("bard", greeting=1)
        assert npc.greeting == "Ho."
        assert npc.say("fake:say:Hic.", mood="drunk").wait().mood == "drunk"
        with pytest.raises(personae_client.UnknownMood):
            npc.say("Well?", mood="sober").wait()
        (pack / "character.toml").write_text("persona = 3")
        refused = until("refused")
        assert (refused.kept, refused.npcs, {problem.field for problem in refused.problems}) == (True, 1, {"name", "persona"})
        shutil.rmtree(pack)
        assert until("removed").npcs == 1
        with pytest.raises(personae_client.CharacterGone):
            npc.say("Still there?").wait()
