"""The engine is a process: it may die at any moment, and that costs the turns in flight and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from personae.engine.batch import Order
from personae.service.engine_host import EngineDied, Post

QUICK = {"in_child": True, "restart_backoff_ms": (10, 20)}


def test_engine_killed_in_mid_step_ends_its_turns_and_the_next_one_works(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 5}, **QUICK))
    peer.ask("spawn", character="guard")
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta" and message["id"] == say)
    os.kill(peer.ask("stats")["engine"]["pid"], signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    end = peer.end_of(say)
    assert (end["type"], end["code"]) == ("error", "engine_lost")
    assert end["retry_after_ms"] > 0
    peer.until(lambda message: message.get("event") == "engine_ready")
    assert [line["text"] for line in peer.ask("history", npc="guard")["lines"]] == ["fake:say:Halt.", "Halt."]
    assert peer.ask("say", npc="guard", text="fake:say:As I said.")["text"] == "As I said."
    stats = peer.ask("stats")["engine"]
    assert stats["restarts"] == 1
    assert stats["last_death"]


def test_turn_asked_while_the_engine_is_down_is_answered_by_the_next(serve, connect) -> None:
    peer = connect(serve(**QUICK))
    peer.ask("spawn", character="guard", npc="one")
    peer.ask("spawn", character="guard", npc="two")
    crash = peer.send("say", npc="one", text="fake:crash")
    assert peer.end_of(crash)["code"] == "engine_lost"
    assert peer.ask("say", npc="two", text="fake:say:Nothing happened.")["text"] == "Nothing happened."


def test_engine_s_own_bug_costs_the_same(serve, connect) -> None:
    peer = connect(serve(**QUICK))
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="guard", text="fake:bug")["code"] == "engine_lost"
    assert peer.ask("say", npc="guard", text="fake:say:Better.")["text"] == "Better."


def test_engine_that_keeps_dying_is_given_up_and_says_so(serve, connect) -> None:
    peer = connect(serve(engine_restarts=1, **QUICK))
    peer.ask("spawn", character="guard")
    assert [peer.ask("say", npc="guard", text="fake:crash")["code"] for _ in range(2)] == ["engine_lost", "engine_failed"]
    assert [message["given_up"] for message in peer.heard if message.get("event") == "engine_lost"] == [False, True]
    assert peer.ask("say", npc="guard", text="Hello?")["code"] == "engine_failed"
    assert peer.ask("stats")["engine"]["state"] == "failed"


class Stillborn:
    """An engine that its model ends while it is loaded."""

    pid = None

    def __init__(self, post: Post) -> None:
        post(EngineDied("it was ended by signal 6"))

    def send(self, orders: Sequence[Order]) -> None:
        pass

    def close(self, grace_s: float) -> None:
        pass


def test_model_that_ends_the_engine_twice_as_it_is_loaded_is_given_up_by_name(serve, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(engine_restarts=100, **QUICK)
    peer = connect(running)
    peer.ask("spawn", character="guard")
    monkeypatch.setattr(running.service._host, "_start", Stillborn)
    assert peer.ask("say", npc="guard", text="fake:crash")["code"] == "engine_lost"
    peer.until(lambda message: message.get("given_up") is True)
    failure = peer.ask("say", npc="guard", text="Hello?")
    assert failure["code"] == "engine_failed"
    assert "the model 'fake' has ended the engine twice while it was being loaded" in failure["message"]
    assert "signal 6" in failure["message"]
    assert peer.ask("history", npc="guard")["lines"] == []


def test_clients_hear_of_the_death_and_of_the_return(serve, connect) -> None:
    running = serve(**QUICK)
    peer, witness = connect(running), connect(running)
    peer.ask("spawn", character="guard")
    peer.ask("say", npc="guard", text="fake:crash")
    witness.until(lambda message: message.get("event") == "engine_ready")
    assert [message["event"] for message in witness.heard if message["type"] == "event"][-2:] == ["engine_lost", "engine_ready"]


def test_wrong_books_end_open_turns_and_the_service_goes_on(serve, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(restart_backoff_ms=(10, 20), engine={"fake_step_ms": 2})
    peer = connect(running)
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    scheduler = running.service._conductor._scheduler
    monkeypatch.setattr(scheduler, "handle", lambda event: 1 / 0)
    assert peer.end_of(say)["code"] == "internal"
    assert peer.ask("say", npc="guard", text="fake:say:Where was I?")["text"] == "Where was I?"


def test_fault_in_telling_one_client_costs_that_turn_alone(serve, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(engine={"fake_step_ms": 1})
    peer = connect(running)
    for npc in ("one", "two"):
        peer.ask("spawn", character="guard", npc=npc)
    turns = running.service._turns
    speak = turns.speak
    monkeypatch.setattr(turns, "speak", lambda action: 1 / 0 if action.turn == 1 else speak(action))
    unlucky = peer.send("say", npc="one", text="fake:say:Halt.")
    other = peer.send("say", npc="two", text="fake:say:Who goes there?")
    assert peer.end_of(unlucky)["code"] == "internal"
    assert peer.end_of(other)["text"] == "Who goes there?"
    assert peer.ask("history", npc="one")["lines"] == []
