"""What the client asks about turns with manners, about memory and saves, against a scripted ROUTER; sync and asyncio alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import pytest

from personae_client import AsyncClient, Character, CharacterGone, Client, Line, PersonaeError, UnknownMood, VoicePart
from tests.bindings.scripted import PATIENCE_S, Message, ScriptedService, delta, done, error, said

TALK = [Line("Player", "Hello"), Line("Mira", "Hm.", True), Line("", "It rains.")]
PROBLEM = {
    "pack": "bard", "file": "character.toml", "field": "name", "problem": "is missing",
    "remedy": "Give the character a name.", "severity": "error",
}  # fmt: skip
LINES = [{"speaker": line.speaker, "text": line.text, "is_npc": line.is_npc} for line in TALK]


class Both:
    """The two clients as one: every call is made by the blocking one, or by the other in a loop of its own."""

    def __init__(self, service: ScriptedService, *, is_async: bool) -> None:
        self.service = service
        self._is_async = is_async

    def do(self, call: Callable[[Any], Any]) -> Any:
        """What `call(client)` gives; awaited where it must be."""
        if not self._is_async:
            with Client(self.service.endpoint, timeout=PATIENCE_S) as client:
                return call(client)

        async def within() -> Any:
            async with AsyncClient(self.service.endpoint, timeout=PATIENCE_S) as client:
                return await call(client)

        return asyncio.run(asyncio.wait_for(within(), PATIENCE_S))

    def asked(self, kind: str, answer: Mapping[str, Any], call: Callable[[Any], Any]) -> tuple[Message, Any]:
        """The request that a call makes, without type and id, and what the caller gets for this answer."""
        self.service.answers[kind] = lambda request: [done(request, **answer)]
        result = self.do(call)
        request = self.service.hear(kind)
        return {key: value for key, value in request.items() if key not in ("type", "id")}, result


@pytest.fixture(params=["sync", "asyncio"])
def both(request: pytest.FixtureRequest, service: ScriptedService) -> Both:
    return Both(service, is_async=request.param == "asyncio")


@pytest.fixture
def client(service: ScriptedService) -> Iterator[Client]:
    with Client(service.endpoint, timeout=PATIENCE_S) as client:
        yield client


# --- saying ---


def test_every_option_of_a_say_has_its_place(client: Client, service: ScriptedService) -> None:
    client.npc("a").say(
        "x", mid_reply="queue", heard_sentences=0, first_ms=1500, end_ms=8000.0, mood="grim", max_kv=512, speaker="Bo", stop="END"
    ).wait()
    request = service.hear("say")
    assert request == {
        "type": "say", "id": request["id"], "npc": "a", "text": "x", "speaker": "Bo", "mid_reply": "queue", "heard": {"sentences": 0},
        "deadline": {"first_ms": 1500, "end_ms": 8000.0}, "mood": "grim", "max_kv": 512, "stop": ["END"],
    }  # fmt: skip


def test_an_npc_may_go_on_of_its_own_accord(client: Client, service: ScriptedService) -> None:
    client.npc("a").say().wait()
    assert set(service.hear("say")) == {"type", "id", "npc"}


def test_an_option_that_is_none_is_said_before_anything_is_sent(client: Client, service: ScriptedService) -> None:
    with pytest.raises(TypeError, match="moood"):
        client.npc("a").say("x", moood="grim")  # type: ignore[call-arg]
    assert service.hear("hello")
    assert service.heard.empty()


def test_reply_that_came_too_late_shows_its_fallback(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: [
        delta(request, "Hm. Let me think."),
        {**said(request, "Hm. Let me think.", "deadline"), "fallback": "Hm. Let me think."},
    ]
    reply = client.npc("a").say("x", first_ms=1).wait()
    assert (reply.finish, reply.fallback, reply.text) == ("deadline", "Hm. Let me think.", "Hm. Let me think.")


# --- barging in ---


def test_cancel_says_how_much_was_heard_and_hears_how_much_was_cut(both: Both) -> None:
    answer = {"cancelled": True, "cut": 13}
    asked, cancelled = both.asked("cancel", answer, lambda client: client.npc("a").cancel(heard_chars=20))
    assert asked == {"npc": "a", "heard": {"chars": 20}}
    assert (bool(cancelled), cancelled.in_time, cancelled.cut) == (True, True, 13)
    asked, cancelled = both.asked("cancel", {"cancelled": False}, lambda client: client.npc("a").cancel(heard_sentences=0))
    assert asked == {"npc": "a", "heard": {"sentences": 0}}
    assert (bool(cancelled), cancelled.cut) == (False, 0)


def test_a_reply_that_has_ended_can_still_be_cut(client: Client, service: ScriptedService) -> None:
    stream = client.npc("a").say("x")
    stream.wait()
    service.answers["cancel"] = lambda request: [done(request, cancelled=False, cut=5)]
    cancelled = stream.cancel(heard_chars=8)
    assert (bool(cancelled), cancelled.cut) == (False, 5)
    asked = service.hear("cancel")
    assert asked == {"type": "cancel", "id": asked["id"], "turn": asked["id"] - 1, "heard": {"chars": 8}}


def test_a_turn_the_service_has_forgotten_is_nothing_to_cut(service: ScriptedService) -> None:
    async def talk() -> None:
        async with AsyncClient(service.endpoint, timeout=PATIENCE_S) as client:
            stream = client.npc("a").say("x")
            await stream
            service.answers["cancel"] = lambda request: [error(request, "unknown_turn")]
            cancelled = await stream.cancel(heard_sentences=1)
            assert (bool(cancelled), cancelled.cut) == (False, 0)

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))


# --- what NPCs know ---


def test_observing_names_who_was_there(both: Both) -> None:
    asked, nothing = both.asked("observe", {"npcs": ["a", "b"]}, lambda client: client.observe([client.npc("a"), "b"], "Crash!"))
    assert (asked, nothing) == ({"npcs": ["a", "b"], "text": "Crash!"}, None)
    asked, _ = both.asked("observe", {"npcs": ["a"]}, lambda client: client.npc("a").observe("Halt!", speaker="Guard"))
    assert asked == {"npcs": ["a"], "text": "Halt!", "speaker": "Guard"}
    asked, _ = both.asked("observe", {"npcs": ["old tom"]}, lambda client: client.observe("old tom", "Crash!"))
    assert asked["npcs"] == ["old tom"]


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (lambda npc: npc.history(), {}),
        (lambda npc: npc.keep_history(0), {"keep": 0}),
        (lambda npc: npc.edit_line(-1, "Hm!"), {"edit": {"at": -1, "text": "Hm!"}}),
        (lambda npc: npc.set_history(TALK), {"lines": LINES}),
        (lambda npc: npc.set_history([]), {"lines": []}),
    ],
)
def test_history_is_read_and_changed(both: Both, call: Callable[[Any], Any], fields: Message) -> None:
    asked, lines = both.asked("history", {"npc": "a", "lines": LINES}, lambda client: call(client.npc("a")))
    assert asked == {"npc": "a", **fields}
    assert lines == TALK


def test_memories_are_read_and_set(both: Both) -> None:
    asked, memories = both.asked("memories", {"npc": "a", "memories": ["He paid."]}, lambda client: client.npc("a").memories())
    assert (asked, memories) == ({"npc": "a"}, ["He paid."])
    asked, memories = both.asked("memories", {"npc": "a", "memories": []}, lambda client: client.npc("a").set_memories([]))
    assert (asked, memories) == ({"npc": "a", "set": []}, [])


def test_warming_waits_for_its_end(both: Both) -> None:
    answer = {"npc": "a", "finish": "warm", "adapter": None, "usage": {"prompt": 9, "reused": 8, "prefilled": 1, "source": "copy"}}
    asked, ready = both.asked("warm", answer, lambda client: client.npc("a").warm(priority="scene"))
    assert asked == {"npc": "a", "priority": "scene"}
    assert (ready.finish, ready.text, ready.usage.source, ready.usage.reused) == ("warm", "", "copy", 8)


def test_warming_may_be_for_a_mood(both: Both) -> None:
    answer = {"npc": "a", "finish": "warm", "mood": "drunk", "voice": [{"adapter": "cd", "scale": 0.5}]}
    asked, ready = both.asked("warm", answer, lambda client: client.npc("a").warm(mood="drunk"))
    assert asked == {"npc": "a", "mood": "drunk"}
    assert (ready.mood, ready.voice) == ("drunk", (VoicePart("cd", 0.5),))


# --- characters and their packs ---


def test_greeting_is_chosen_by_number(both: Both) -> None:
    answer = {
        "npc": "bard",
        "character": "bard",
        "name": "Bard",
        "greeting": "Ho.",
        "adapter": "cd",
        "voice": [{"adapter": "cd", "scale": 1}],
    }
    asked, npc = both.asked("spawn", answer, lambda client: client.spawn("bard", greeting=1))
    assert asked == {"character": "bard", "greeting": 1}
    assert (npc.greeting, npc.card.voice) == ("Ho.", (VoicePart("cd", 1.0),))


def test_character_tells_all_that_its_pack_says(both: Both) -> None:
    listed = {
        "id": "bard", "name": "Bard", "adapter": "cd", "greeting": "Hey.", "greetings": 3, "moods": ["drunk"], "description": "Sings.",
        "adapters": [{"file": "voice.gguf", "adapter": "cd", "scale": 1.0}, {"file": "new.gguf", "adapter": None, "scale": 0.5}],
        "author": "Ada", "licence": "CC0-1.0", "tags": ["inn"], "portrait": "bard.png", "pack": "bard.persona",
    }  # fmt: skip
    _, cast = both.asked("characters", {"characters": [listed], "problems": [PROBLEM]}, lambda client: client.characters())
    (bard,) = cast.characters
    assert (bard.id, bard.name, bard.adapter, bard.greeting, bard.greetings, bard.moods) == ("bard", "Bard", "cd", "Hey.", 3, ("drunk",))
    assert bard.adapters == (VoicePart("cd", 1.0, "voice.gguf"), VoicePart(None, 0.5, "new.gguf"))
    assert (bard.description, bard.author, bard.licence, bard.tags) == ("Sings.", "Ada", "CC0-1.0", ("inn",))
    assert (bard.portrait, bard.pack) == ("bard.png", "bard.persona")
    assert (cast.problems[0].field, cast.problems[0].severity) == ("name", "error")


def test_characters_of_an_older_service_lack_only_what_it_does_not_say(both: Both) -> None:
    older = {"id": "bard", "name": "Bard", "adapter": None, "greeting": "Hey."}
    _, cast = both.asked("characters", {"characters": [older], "problems": []}, lambda client: client.characters())
    assert cast.characters == (Character("bard", "Bard", None, "Hey."),)


@pytest.mark.parametrize("wanted", [True, False])
def test_packs_are_subscribed_to(both: Both, wanted: bool) -> None:
    asked, is_so = both.asked("subscribe", {"packs": wanted}, lambda client: client.subscribe_packs(wanted))
    assert (asked, is_so) == ({"packs": wanted}, wanted)


def test_what_becomes_of_a_pack_is_a_typed_event(client: Client, service: ScriptedService) -> None:
    service.answers["subscribe"] = lambda request: [
        {"type": "event", "event": "pack", "change": "refused", "character": "bard", "name": "Bard", "npcs": 2, "kept": True,
         "problems": [PROBLEM]},
        {"type": "event", "event": "warm", "ms": 1.0},
        done(request, packs=True),
    ]  # fmt: skip
    client.subscribe_packs()
    change, other = (event.pack_change for event in client.take_events())
    assert (change.change, change.character, change.name, change.npcs, change.kept) == ("refused", "bard", "Bard", 2, True)
    assert change.problems[0].remedy == "Give the character a name."
    assert other is None


@pytest.mark.parametrize(("code", "kind"), [("unknown_mood", UnknownMood), ("character_gone", CharacterGone)])
def test_refusals_about_packs_have_classes_of_their_own(
    client: Client, service: ScriptedService, code: str, kind: type[PersonaeError]
) -> None:
    service.answers["say"] = lambda request: [error(request, code)]
    with pytest.raises(kind):
        client.npc("a").say("x", mood="drnk").wait()


def test_warming_need_not_be_waited_for(client: Client, service: ScriptedService) -> None:
    stream = client.npc("a").start_warm()
    ask = service.hear("warm")
    assert not stream.is_over
    service.answers["cancel"] = lambda request: [done(ask, npc="a", finish="cancelled"), done(request, cancelled=True, cut=0)]
    assert stream.cancel()
    assert stream.wait().finish == "cancelled"


# --- saves ---


def test_a_save_is_a_document_or_a_name(both: Both) -> None:
    document = {"personae_save": 1, "npcs": [{"npc": "a"}]}
    asked, save = both.asked("save", {"npcs": 1, "document": document}, lambda client: client.save())
    assert (asked, save.npcs, save.document, save.name, save.kv) == ({}, 1, document, None, 0)
    answer = {"npcs": 2, "name": "slot1", "kv": 1}
    asked, save = both.asked("save", answer, lambda client: client.save([client.npc("a"), "b"], name="slot1", kv=True))
    assert asked == {"npcs": ["a", "b"], "name": "slot1", "kv": True}
    assert (save.npcs, save.document, save.name, save.kv) == (2, None, "slot1", 1)


def test_a_restore_tells_of_every_npc(both: Both) -> None:
    answer = {
        "restored": [{"npc": "a", "character": "innkeeper", "lines": 3, "kv": "none", "kv_reason": "another model"}],
        "problems": [{"npc": "b", "code": "npc_exists", "message": "There is an NPC 'b'.", "hint": "Replace it."}],
    }
    asked, restored = both.asked("restore", answer, lambda client: client.restore(name="slot1", npcs=["a", "b"], replace=True))
    assert asked == {"name": "slot1", "npcs": ["a", "b"], "replace": True}
    assert [(one.npc, one.character, one.lines, one.kv, one.kv_reason) for one in restored.npcs] == [
        ("a", "innkeeper", 3, "none", "another model")
    ]
    assert [(one.npc, one.code) for one in restored.problems] == [("b", "npc_exists")]


def restored(request: Message) -> list[Message]:
    """As the service does it: each NPC of the document that is asked for, or a problem of it."""
    there = {one["npc"]: one for one in request["document"]["npcs"]}
    wanted = request.get("npcs") or list(there)
    return [
        done(
            request,
            restored=[{"npc": npc, "character": "x", "lines": len(there[npc]["history"])} for npc in wanted if npc in there],
            problems=[{"npc": npc, "code": "unknown_npc"} for npc in wanted if npc not in there],
        )
    ]


def crowd(n: int, *, n_lines: int = 20) -> Message:
    history = [{"speaker": "Player", "text": "Good evening. " * 5, "is_npc": False}] * n_lines
    return {"personae_save": 1, "base": "ab" * 32, "npcs": [{"npc": f"n{i}", "history": history} for i in range(n)]}


def parts(service: ScriptedService) -> list[Message]:
    heard = []
    while not service.heard.empty():
        heard.append(service.heard.get())
    return [request for request in heard if request["type"] == "restore"]


@pytest.mark.parametrize("limits", [{"frame_bytes": 20_000, "frame_values": 65_536}, {"frame_bytes": 1 << 20, "frame_values": 1000}])
def test_a_document_larger_than_a_request_is_given_back_in_parts(service: ScriptedService, limits: Message) -> None:
    service.welcome["limits"] = limits
    service.answers["restore"] = restored
    document = crowd(30)
    with Client(service.endpoint, timeout=PATIENCE_S) as client:
        assert [one.npc for one in client.restore(document).npcs] == [one["npc"] for one in document["npcs"]]
        assert len(client.npcs()) == 30
    sent = parts(service)
    assert 2 <= len(sent) < 30
    assert all({**part["document"], "npcs": []} == {**document, "npcs": []} for part in sent)
    assert all(len(msgpack.packb(part)) <= limits["frame_bytes"] for part in sent)
    assert all(n_values(part) <= limits["frame_values"] for part in sent)


def n_values(value: Any) -> int:
    inner = [one for pair in value.items() for one in pair] if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + sum(map(n_values, inner))


def test_names_go_with_the_part_they_are_in_and_the_unknown_are_asked_for_once(service: ScriptedService) -> None:
    service.welcome["limits"] = {"frame_bytes": 8_000}
    service.answers["restore"] = restored
    with Client(service.endpoint, timeout=PATIENCE_S) as client:
        told = client.restore(crowd(30), npcs=["n3", "ghost", "n20", "n11", "n7"])
    assert [one.npc for one in told.npcs] == ["n3", "n11", "n7", "n20"]  # part by part, each as it was asked
    assert [one.npc for one in told.problems] == ["ghost"]
    sent = parts(service)
    assert 2 <= len(sent) <= 4
    assert sorted(one["npc"] for part in sent for one in part["document"]["npcs"]) == ["n11", "n20", "n3", "n7"]


@pytest.mark.parametrize("document", [{}, {"npcs": "?"}, {"npcs": []}, {"npcs": [None, 7, {"npc": 3}]}])
def test_what_is_no_save_is_the_service_s_to_refuse(client: Client, service: ScriptedService, document: Message) -> None:
    service.answers["restore"] = lambda request: [error(request, "bad_save")]
    with pytest.raises(PersonaeError) as caught:
        client.restore(document)
    assert caught.value.code == "bad_save"
    assert service.hear("restore")["document"] == document


def test_one_npc_that_is_too_large_by_itself_is_refused_before_it_is_sent(client: Client) -> None:
    with pytest.raises(PersonaeError) as caught:
        client.restore(crowd(1, n_lines=20_000))
    assert caught.value.code == "too_large"
