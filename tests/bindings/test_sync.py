"""The blocking client against a scripted ROUTER."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from personae_client import (
    Busy,
    Client,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    EngineLost,
    NpcBusy,
    PackInvalid,
    Timeout,
    Unauthorized,
    WrongServer,
)
from tests.bindings.scripted import PATIENCE_S, WELCOME, ScriptedService, delta, done, error, said


@pytest.fixture
def client(service: ScriptedService) -> Iterator[Client]:
    with Client(service.endpoint, name="my game", timeout=PATIENCE_S) as client:
        yield client


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A program that is no ZeroMQ peer: takes one connection, answers its first bytes, closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1024)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "tcp://127.0.0.1:" + str(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


def wait_for(client: Client, name: str) -> None:
    """Until the client reports an event."""
    deadline = time.monotonic() + PATIENCE_S
    session = client._link.session
    assert client._link.wait(lambda: any(event.name == name for event in session.events), deadline - time.monotonic())


# --- saying ---


def test_readme_example_prints_the_reply(service: ScriptedService) -> None:
    with Client(service.endpoint) as client:
        npc = client.spawn("innkeeper")
        assert "".join(delta.text for delta in npc.say("Good evening")) == "Good evening."
    assert service.hear("spawn")["character"] == "innkeeper"
    assert service.hear("say")["text"] == "Good evening"


def test_done_is_typed(client: Client) -> None:
    stream = client.npc("innkeeper").say("hi")
    assert stream.text() == "Good evening."
    reply = stream.done
    assert reply is not None
    assert (reply.finish, reply.adapter, reply.seed) == ("end", "cd", 7)
    assert (reply.usage.prompt, reply.usage.reply, reply.timing.ttft_ms) == (9, 2, 2.0)
    assert reply.receipt == {"cut": []}
    assert (reply.fallback, reply.usage.source, reply.timing.paused_ms, reply.timing.pauses) == (None, "slot", 1.5, 2)


def test_text_after_reading_is_still_the_whole_reply(client: Client) -> None:
    stream = client.npc("innkeeper").say("hi")
    assert next(stream).text == "Good "
    assert stream.text() == "Good evening."
    assert [delta.text for delta in stream] == ["evening."]


def test_only_what_was_given_is_sent(client: Client, service: ScriptedService) -> None:
    client.npc("a").say("x").wait()
    assert set(service.hear("say")) == {"type", "id", "npc", "text"}
    client.npc("a").say("x", priority="ambient", stop="END", sampling={"temperature": 0.5}, max_tokens=9).wait()
    request = service.hear("say")
    assert request["stop"] == ["END"]
    assert request["sampling"] == {"temperature": 0.5}


def test_streams_that_are_open_together_each_get_their_own(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    a, b = client.npc("a").say("x"), client.npc("b").say("x")
    ask_a, ask_b = service.hear("say"), service.hear("say")
    service.send(delta(ask_b, "B1"), delta(ask_a, "A1"), delta(ask_b, "B2"), said(ask_b, "B1B2"), delta(ask_a, "A2"), said(ask_a, "A1A2"))
    assert [delta.text for delta in a] == ["A1", "A2"]
    assert [delta.text for delta in b] == ["B1", "B2"]


def test_stream_all_shows_many_as_they_come(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    streams = {npc: client.npc(npc).say("x") for npc in "ab"}
    asks = {request["npc"]: request for request in (service.hear("say"), service.hear("say"))}
    shown = client.stream_all(streams.values())
    service.send(delta(asks["b"], "B1"))
    assert next(shown)[0] is streams["b"]
    service.send(delta(asks["a"], "A1"), said(asks["a"], "A1"), error(asks["b"], "engine_lost"))
    assert [(stream.npc, delta.text) for stream, delta in shown] == [("a", "A1")]
    assert streams["b"].failure is not None
    assert streams["b"].failure.code == "engine_lost"


def test_gather_waits_for_all(client: Client) -> None:
    assert [reply.text for reply in client.gather(*(client.npc(npc).say("x") for npc in "abc"))] == ["Good evening."] * 3


def test_gather_raises_after_every_stream_has_ended(client: Client, service: ScriptedService) -> None:
    usual = service.answers["say"]
    service.answers["say"] = lambda request: [error(request, "npc_busy")] if request["npc"] == "a" else usual(request)
    a, b = client.npc("a").say("x"), client.npc("b").say("x")
    with pytest.raises(NpcBusy):
        client.gather(a, b)
    assert b.is_over


def test_several_threads_share_a_client(client: Client) -> None:
    replies: list[str] = []
    threads = [threading.Thread(target=lambda npc=npc: replies.append(client.npc(npc).say("x").text())) for npc in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert replies == ["Good evening."] * 8


def test_take_never_waits(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    stream = client.npc("a").say("x")
    ask = service.hear("say")
    assert stream.take() == []
    service.send(delta(ask, "A"), said(ask, "A"))
    stream.wait()
    assert [delta.text for delta in stream.take()] == ["A"]
    assert stream.is_over


def test_error_in_mid_sentence_comes_after_what_was_said(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: [delta(request, "Good "), error(request, "engine_lost")]
    stream = client.npc("a").say("x")
    assert next(stream).text == "Good "
    with pytest.raises(EngineLost):
        next(stream)
    assert stream.done is None


def test_cancel_names_the_turn_and_says_whether_it_came_in_time(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    stream = client.npc("a").say("x")
    ask = service.hear("say")
    service.answers["cancel"] = lambda request: [said(ask, "", "cancelled"), done(request, cancelled=True, cut=0)]
    assert stream.cancel()
    assert service.hear("cancel") == {"type": "cancel", "id": ask["id"] + 1, "turn": ask["id"]}
    assert stream.wait().finish == "cancelled"
    assert not stream.cancel()
    assert service.heard.empty()


def test_leaving_a_stream_cancels_it(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    with client.npc("a").say("x"):
        ask = service.hear("say")
    assert service.hear("cancel")["turn"] == ask["id"]


# --- everything else that can be asked ---


def test_npc_handles_remember_what_spawn_said(client: Client) -> None:
    npc = client.spawn("innkeeper", "old tom", player="Aldric")
    assert (npc.id, npc.name, npc.greeting, npc.card.character) == ("old tom", "Old Tom", "Come in.", "innkeeper")
    assert client.npc("old tom").greeting == "Come in."
    assert [one.id for one in client.npcs()] == ["old tom"]
    npc.despawn()
    assert client.npcs() == []


def test_history_and_characters_are_typed(client: Client, service: ScriptedService) -> None:
    service.answers["history"] = lambda request: [done(request, npc="a", lines=[{"speaker": "Mira", "text": "Hm.", "is_npc": True}])]
    service.answers["characters"] = lambda request: [
        done(
            request, characters=[{"id": "a", "name": "A", "adapter": None, "greeting": ""}], problems=[{"pack": "b", "problem": "is empty"}]
        )
    ]
    [line] = client.npc("a").history()
    assert (line.speaker, line.text, line.is_npc) == ("Mira", "Hm.", True)
    cast = client.characters()
    assert [one.id for one in cast.characters] == ["a"]
    assert [(one.pack, one.problem, one.file) for one in cast.problems] == [("b", "is empty", "")]


def test_stats_ping_and_shutdown(client: Client, service: ScriptedService) -> None:
    service.answers["stats"] = lambda request: [done(request, npcs=2)]
    service.answers["shutdown"] = lambda request: [done(request)]
    assert client.stats() == {"npcs": 2}
    assert client.ping() == 12.5
    client.shutdown()
    assert service.hear("shutdown")


def test_refusals_are_typed(client: Client, service: ScriptedService) -> None:
    service.answers["spawn"] = lambda request: [error(request, "pack_invalid", problems=[{"pack": "a"}])]
    with pytest.raises(PackInvalid) as caught:
        client.spawn("a")
    assert caught.value.problems == [{"pack": "a"}]
    service.answers["say"] = lambda request: [error(request, "busy", retry_after_ms=40)]
    with pytest.raises(Busy) as full:
        client.npc("a").say("x").text()
    assert full.value.retry_after_ms == 40


def test_service_that_does_not_answer_in_time_raises_timeout(service: ScriptedService) -> None:
    with Client(service.endpoint, timeout=0.1) as client:
        service.fall_silent()
        with pytest.raises(Timeout, match="stats"):
            client.stats()


def test_events_arrive_without_asking(client: Client, service: ScriptedService) -> None:
    service.send({"type": "event", "event": "warm", "ms": 3.0})
    wait_for(client, "warm")
    assert client.is_warm
    assert [event.name for event in client.take_events()] == ["warm"]
    assert client.take_events() == []


# --- connections ---


def test_welcome_tells_of_the_service(client: Client) -> None:
    assert client.welcome.model.n_ctx == 2048
    assert (client.welcome.slots, client.welcome.mode, client.is_connected) == (8, "mixed", True)


def test_no_service_is_said_in_time_with_the_endpoint_and_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with within(1.5), pytest.raises(ConnectionFailed) as caught:
        Client(f"tcp://127.0.0.1:{port}", timeout=0.2)
    assert f"tcp://127.0.0.1:{port}" in caught.value.message
    assert f"personae serve --port {port}" in caught.value.hint


@pytest.mark.parametrize("endpoint", ["127.0.0.1:7777", "http://127.0.0.1:7777", ""])
def test_endpoint_that_is_none_is_said_at_once(endpoint: str) -> None:
    with within(2.0), pytest.raises(ConnectionFailed, match="cannot be connected to"):
        Client(endpoint, timeout=PATIENCE_S)


def test_web_server_at_the_port_is_told_from_ours() -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as endpoint, pytest.raises(WrongServer, match="ZeroMQ"):
        Client(endpoint, timeout=PATIENCE_S)


def test_another_zeromq_service_hears_a_hello_and_no_text(service: ScriptedService) -> None:
    service.answers["hello"] = lambda request: [{"type": "done", "id": request["id"], "server": "chess 3", "v": 1}]
    with pytest.raises(WrongServer, match="chess 3"):
        Client(service.endpoint, timeout=PATIENCE_S)
    assert service.heard.get()["type"] == "hello"
    assert service.heard.empty()


def test_right_token_opens_the_door(guarded_service: ScriptedService) -> None:
    with Client(guarded_service.endpoint, token="s3cret", timeout=PATIENCE_S) as client:
        assert client.ping() == 12.5


@pytest.mark.parametrize("token", ["wrong", None])
def test_wrong_or_missing_token_is_said_at_once(guarded_service: ScriptedService, token: str | None) -> None:
    with within(3.0), pytest.raises(Unauthorized):
        Client(guarded_service.endpoint, token=token, timeout=PATIENCE_S)


def test_needless_token_is_said_at_once(service: ScriptedService) -> None:
    with within(3.0), pytest.raises(Unauthorized):
        Client(service.endpoint, token="s3cret", timeout=PATIENCE_S)


def test_vanished_service_ends_streams_and_is_found_again(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    npc = client.spawn("innkeeper")
    stream = npc.say("x")
    service.hear("say")
    service.vanish()
    with within(2.0), pytest.raises(ConnectionLost):
        stream.text()
    service.answers["say"] = lambda request: [said(request, "Back.")]
    later = npc.say("Are you there?")
    service.come_back()
    assert later.text() == "Back."
    assert service.hear("hello")["session"] == WELCOME["session"]
    assert [event.name for event in client.take_events()] == ["connection_lost", "reconnected"]


def test_silent_service_is_noticed_and_greeted_anew(service: ScriptedService) -> None:
    service.welcome["heartbeat_ms"] = 100
    answers = dict(service.answers)
    with Client(service.endpoint, timeout=PATIENCE_S) as client:
        service.answers["say"] = lambda request: []
        stream = client.npc("a").say("x")
        service.hear("say")
        service.fall_silent()
        with within(2.0), pytest.raises(ConnectionLost, match="silent"):
            stream.text()
        service.answers.update(answers)
        assert client.ping() == 12.5


def test_idle_client_pings_by_itself(service: ScriptedService) -> None:
    service.welcome["heartbeat_ms"] = 100
    with Client(service.endpoint, timeout=PATIENCE_S):
        for _ in range(3):
            assert service.hear("ping")


def test_garbage_from_the_service_ends_streams_and_heals(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: [b"\xc1\xff garbage"]
    with pytest.raises(ConnectionLost):
        client.npc("a").say("x").text()
    assert client.ping() == 12.5


@pytest.mark.parametrize("frame", [b"\x80", b"\x81\xa4type\xa4done", b"\x82\xa4type\xa5delta\xa2id\x07"])
def test_frames_that_mean_nothing_are_survived(client: Client, service: ScriptedService, frame: bytes) -> None:
    service.send(frame)
    assert client.ping() == 12.5


def test_sockets_have_no_identity(client: Client) -> None:
    dealer = client._link._dealer
    assert dealer is not None
    assert dealer.getsockopt(zmq.IDENTITY) == b""
    assert dealer.getsockopt(zmq.LINGER) == 0


# --- closing ---


def test_close_returns_within_a_second_and_twice_is_harmless(service: ScriptedService) -> None:
    client = Client(service.endpoint, timeout=PATIENCE_S)
    service.answers["say"] = lambda request: []
    stream = client.npc("a").say("x")
    service.hear("say")
    service.fall_silent()
    with within(1.0):
        client.close()
        client.close()
    with pytest.raises(Closed):
        stream.text()
    with pytest.raises(Closed):
        client.ping()


def test_close_cancels_what_is_still_being_said(service: ScriptedService) -> None:
    client = Client(service.endpoint, timeout=PATIENCE_S)
    service.answers["say"] = lambda request: []
    client.npc("a").say("x")
    ask = service.hear("say")
    client.close()
    assert service.hear("cancel")["turn"] == ask["id"]


def test_close_of_a_client_whose_service_is_gone_is_quick(service: ScriptedService) -> None:
    client = Client(service.endpoint, timeout=PATIENCE_S)
    service.vanish()
    with within(1.0):
        client.close()


def test_waiting_threads_are_let_go_by_close(client: Client, service: ScriptedService) -> None:
    service.answers["say"] = lambda request: []
    failures: list[Exception] = []

    def read() -> None:
        try:
            client.npc("a").say("x").text()
        except Closed as closed:
            failures.append(closed)

    reader = threading.Thread(target=read)
    reader.start()
    service.hear("say")
    client.close()
    reader.join(PATIENCE_S)
    assert len(failures) == 1


def test_forgotten_client_ends_its_thread(service: ScriptedService) -> None:
    client: Any = Client(service.endpoint, timeout=PATIENCE_S)
    thread, gone = client._link._thread, weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
