"""The asyncio client against a scripted ROUTER."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from personae_client import AsyncClient, AsyncNpc, Closed, ConnectionFailed, ConnectionLost, NpcBusy, PersonaeError, Timeout, WrongServer
from tests.bindings.scripted import PATIENCE_S, ScriptedService, delta, done, error, said

T = TypeVar("T")
Body = Callable[[AsyncClient], Awaitable[T]]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, PATIENCE_S)

    return asyncio.run(bounded())


def with_client(service: ScriptedService, body: Body[T], **options: Any) -> T:
    async def within() -> T:
        async with AsyncClient(service.endpoint, **{"timeout": PATIENCE_S, **options}) as client:
            return await body(client)

    return run(within())


async def heard(service: ScriptedService, kind: str) -> dict[str, Any]:
    return await asyncio.to_thread(service.hear, kind)


def test_readme_example(service: ScriptedService) -> None:
    async def talk(client: AsyncClient) -> None:
        npc = await client.spawn("innkeeper")
        assert [delta.text async for delta in npc.say("Good evening")] == ["Good ", "evening."]
        reply = await npc.say("Good evening")
        assert reply.text == "Good evening."
        assert await npc.say("hi").text() == "Good evening."

    with_client(service, talk)


def test_ten_npcs_speak_at_once(service: ScriptedService) -> None:
    async def talk(client: AsyncClient) -> None:
        replies = await asyncio.gather(*(client.npc(f"npc {i}").say("hi") for i in range(10)))
        assert [reply.npc for reply in replies] == [f"npc {i}" for i in range(10)]
        assert len(await client.gather(*(client.npc(f"npc {i}").say("hi") for i in range(10)))) == 10

    with_client(service, talk)


def test_streams_interleave(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        streams = [client.npc(npc).say("x") for npc in "ab"]
        ask_a, ask_b = await heard(service, "say"), await heard(service, "say")
        service.send(delta(ask_b, "B1"), delta(ask_a, "A1"), said(ask_b, "B1"), delta(ask_a, "A2"), error(ask_a, "engine_lost"))
        shown = [(stream.npc, delta.text) async for stream, delta in client.stream_all(streams)]
        assert sorted(shown) == [("a", "A1"), ("a", "A2"), ("b", "B1")]
        assert streams[0].failure is not None
        assert streams[1].done is not None

    with_client(service, talk)


def test_gather_raises_after_every_stream_has_ended(service: ScriptedService) -> None:
    usual = service.answers["say"]
    service.answers["say"] = lambda request: [error(request, "npc_busy")] if request["npc"] == "a" else usual(request)

    async def talk(client: AsyncClient) -> None:
        a, b = client.npc("a").say("x"), client.npc("b").say("x")
        with pytest.raises(NpcBusy):
            await client.gather(a, b)
        assert b.is_over

    with_client(service, talk)


def test_cancelled_task_cancels_its_turn(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        stream = client.npc("a").say("x")
        ask = await heard(service, "say")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream, 0.01)
        assert (await heard(service, "cancel"))["turn"] == ask["id"]

    with_client(service, talk)


def test_cancelled_waiter_leaves_the_turn_alone(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        stream = client.npc("a").say("x")
        ask = await heard(service, "say")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.wait(), 0.01)
        service.send(said(ask, "Late."))
        assert (await stream.wait()).text == "Late."
        assert service.heard.empty()

    with_client(service, talk)


def test_cancel_and_leaving_a_stream(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        stream = client.npc("a").say("x")
        ask = await heard(service, "say")
        service.answers["cancel"] = lambda request: [said(ask, "", "cancelled"), done(request, cancelled=True)]
        assert await stream.cancel()
        assert (await stream).finish == "cancelled"
        assert (await heard(service, "cancel"))["turn"] == ask["id"]
        async with client.npc("a").say("y"):
            ask = await heard(service, "say")
        assert (await heard(service, "cancel"))["turn"] == ask["id"]

    with_client(service, talk)


def test_everything_else_that_can_be_asked(service: ScriptedService) -> None:
    service.answers |= {
        "history": lambda request: [done(request, npc="a", lines=[{"speaker": "Mira", "text": "Hm.", "is_npc": True}])],
        "characters": lambda request: [done(request, characters=[{"id": "a"}], problems=[])],
        "stats": lambda request: [done(request, npcs=2)],
        "shutdown": lambda request: [done(request)],
    }

    async def ask(client: AsyncClient) -> None:
        npc = await client.spawn("innkeeper", player="Aldric")
        assert isinstance(npc, AsyncNpc)
        assert (npc.name, npc.greeting, [one.id for one in client.npcs()]) == ("Innkeeper", "Come in.", ["innkeeper"])
        assert [line.text for line in await npc.history()] == ["Hm."]
        assert [one.id for one in (await client.characters()).characters] == ["a"]
        assert await client.stats() == {"npcs": 2}
        assert await client.ping() == 12.5
        assert await npc.cancel()
        await npc.despawn()
        assert client.npcs() == []
        assert client.welcome.slots == 8
        await client.shutdown()

    with_client(service, ask)


def test_timeout_is_typed_and_forgets_the_request(service: ScriptedService) -> None:
    async def ask(client: AsyncClient) -> None:
        service.fall_silent()
        with pytest.raises(Timeout):
            await client.stats()
        assert client._link.session._open == {}

    with_client(service, ask, timeout=0.1)


def test_vanished_service_ends_streams_and_is_found_again(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        stream = client.npc("a").say("x")
        await heard(service, "say")
        service.vanish()
        with pytest.raises(ConnectionLost):
            await stream
        service.answers["say"] = lambda request: [said(request, "Back.")]
        later = client.npc("a").say("y")
        service.come_back()
        assert await later.text() == "Back."

    with_client(service, talk)


def test_idle_client_pings_by_itself_while_the_loop_is_blocked(service: ScriptedService) -> None:
    service.welcome["heartbeat_ms"] = 100

    async def block(client: AsyncClient) -> None:
        for _ in range(3):
            assert service.hear("ping")  # in the loop's own thread

    with_client(service, block)


def test_wrong_server_and_no_server(service: ScriptedService) -> None:
    service.answers["hello"] = lambda request: [{"type": "done", "id": request["id"], "server": "chess 3", "v": 1}]

    async def nothing(client: AsyncClient) -> None:
        raise AssertionError

    with pytest.raises(WrongServer):
        with_client(service, nothing)
    service.vanish()
    with pytest.raises(ConnectionFailed):
        with_client(service, nothing, timeout=0.2)


def test_close_ends_waiters_and_twice_is_harmless(service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []

    async def talk(client: AsyncClient) -> None:
        waiting = asyncio.create_task(client.npc("a").say("x").wait())
        await heard(service, "say")
        await client.close()
        await client.close()
        with pytest.raises(Closed):
            await waiting

    with_client(service, talk)


def test_client_that_was_never_connected_says_so_and_closes(service: ScriptedService) -> None:
    async def forget() -> None:
        client = AsyncClient(service.endpoint)
        with pytest.raises(PersonaeError, match="not connected"):
            _ = client.welcome
        await client.close()

    run(forget())


def test_cancelled_connect_leaves_no_thread_behind(service: ScriptedService) -> None:
    service.fall_silent()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncClient(service.endpoint, timeout=PATIENCE_S).connect(), 0.05)

    run(give_up())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("personae ") and thread.is_alive()]
