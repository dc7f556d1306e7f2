"""Clients come, go, fall silent, read slowly and talk nonsense: it costs them, and nobody else."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
import zmq

HEARTBEAT_MS = 500  # three of them are far longer than any stall of a busy machine between two pings
STEPS = {"fake_step_ms": 2}


def wait_until_idle(peer) -> None:
    """Until no turn is open, as the service counts them."""
    for _ in range(2_000):
        if peer.ask("stats")["turns"] == 0:
            return
    raise AssertionError("turns are still open")


def test_client_that_falls_silent_loses_its_turns_and_no_others(serve, connect) -> None:
    running = serve(engine=STEPS, heartbeat_ms=HEARTBEAT_MS)
    silent, lively = connect(running), connect(running)
    for npc in ("one", "two"):
        lively.ask("spawn", character="guard", npc=npc)
    lost = silent.send("say", npc="one", text="fake:long", max_tokens=2000)
    kept = lively.send("say", npc="two", text="fake:long", max_tokens=2000)
    lost_end: list[dict[str, Any]] = []
    while not lost_end:
        lively.ask("ping")
        while not lost_end and silent.socket.poll(0):
            lost_end += [message for message in [silent.next()] if message.get("id") == lost and message["type"] != "delta"]
    assert lost_end[0]["finish"] == "cancelled"
    assert not [message for message in lively.heard if message.get("id") == kept and message["type"] != "delta"]
    assert lively.ask("cancel", turn=kept)["cancelled"] is True
    assert silent.ask("ping")["code"] == "hello_first"
    assert lively.ask("say", npc="one", text="fake:say:Still here.")["text"] == "Still here."


def test_client_that_is_gone_loses_its_turns_and_no_others(serve, connect) -> None:
    running = serve(engine=STEPS)
    gone, lively = connect(running), connect(running)
    for npc in ("one", "two"):
        lively.ask("spawn", character="guard", npc=npc)
    kept = lively.send("say", npc="two", text="fake:long", max_tokens=300)
    gone.send("say", npc="one", text="fake:long", max_tokens=2000)
    gone.until(lambda message: message["type"] == "delta")
    gone.close()
    assert lively.end_of(kept)["finish"] == "length"
    wait_until_idle(lively)
    assert len(lively.ask("stats")["sessions"]) == 1


def test_client_that_comes_back_keeps_session_and_npcs_but_not_its_open_turn(serve, connect) -> None:
    running = serve(engine=STEPS)
    before = connect(running)
    session = before.heard[0]["session"]
    before.ask("spawn", character="guard")
    before.ask("say", npc="guard", text="fake:say:Halt.")
    open_say = before.send("say", npc="guard", text="fake:long", max_tokens=2000)
    before.until(lambda message: message["type"] == "delta")

    after = connect(running, hello=False)
    assert after.hello(session=session)["session"] == session
    assert after.ask("stats")["turns"] == 0
    assert after.ask("history", npc="guard")["lines"][1]["text"] == "Halt."
    assert not any(message.get("id") == open_say and message.get("finish") for message in after.heard)
    assert after.ask("say", npc="guard", text="fake:say:You again.")["text"] == "You again."
    assert before.ask("ping")["code"] == "hello_first"


def test_client_that_does_not_read_loses_its_session_and_nobody_else_waits(serve, connect) -> None:
    running = serve()
    slow = connect(running, options={zmq.RCVHWM: 1, zmq.RCVBUF: 4096, zmq.SNDHWM: 0})  # a libzmq that cannot read does not see an end
    lively = connect(running)
    lively.ask("spawn", character="guard")
    for _ in range(6_000):
        slow.send("stats")
    for _ in range(2_000):
        if len(lively.ask("stats")["sessions"]) == 1:
            break
    assert [session["client"] for session in lively.ask("stats")["sessions"]] == ["test"]
    assert lively.ask("say", npc="guard", text="fake:say:Move along.")["text"] == "Move along."


def test_clients_are_bounded(serve, connect) -> None:
    running = serve(max_clients=1)
    connect(running)
    assert connect(running, hello=False).hello()["code"] == "too_many_clients"


def test_wrong_token_is_never_answered_and_the_right_one_is(serve, connect) -> None:
    running = serve(token="sesame")
    stranger = connect(running, hello=False, token="open")
    stranger.send("hello", v=1, client="stranger")
    assert connect(running, hello=False, token="sesame").hello(token="sesame")["type"] == "done"
    assert not stranger.socket.poll(0)


def noise(rng: random.Random) -> bytes:
    """A frame that no client of ours would send."""
    valid = {"type": rng.choice(["say", "spawn", "hello", "cancel", "stats"]), "id": 7, "npc": "one", "text": "hi", "v": 1}
    match rng.randrange(7):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            return msgpack.packb(valid)[: rng.randrange(1, 20)]
        case 2:
            spoiled = bytearray(msgpack.packb(valid))
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
            return bytes(spoiled)
        case 3:
            return b"\xdf\xff\xff\xff\xff"  # a map that announces four billion keys
        case 4:
            return b"\x81\xa1k" + b"\x91" * 50_000
        case 5:
            key = rng.choice(sorted(valid))
            return msgpack.packb({**valid, key: rng.choice([None, -1, 2**64 - 1, [], {}, b"\xff", 1.5, True, "x" * 70_000])})
        case _:
            return msgpack.packb([valid, valid])


@pytest.mark.parametrize("seed", [1, 2])
def test_three_hundred_malformed_frames_disturb_nobody(serve, connect, seed) -> None:
    rng = random.Random(seed)
    running = serve(engine={"fake_step_ms": 1})
    noisy, lively = connect(running), connect(running)
    lively.ask("spawn", character="guard", npc="lively")
    say = lively.send("say", npc="lively", text="fake:long", max_tokens=400)
    for _ in range(300):
        noisy.socket.send(noise(rng))
    noisy.socket.send_multipart([b"", b"two frames"])
    done = lively.end_of(say)
    assert done["finish"] == "length"
    assert lively.deltas(say) == done["text"]
    assert done["text"] == ("[base] " + " ".join(map(str, range(1, 400))))[:400]
    noisy.hello(session="none")
    assert {message["type"] for message in noisy.heard} <= {"done", "error", "event"}
    assert all(message["code"] and message["message"] for message in noisy.heard if message["type"] == "error")


def test_frame_that_is_no_message_ends_the_session_and_its_turns(serve, connect) -> None:
    running = serve(engine=STEPS)
    peer, witness = connect(running), connect(running)
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    peer.socket.send(b"\xc1")
    refusal = peer.until(lambda message: message["type"] == "error")
    assert (refusal["id"], refusal["code"]) == (0, "bad_frame")
    assert peer.end_of(say)["finish"] == "cancelled"
    assert peer.ask("ping")["code"] == "hello_first"
    wait_until_idle(witness)


def test_request_with_a_wrong_field_costs_that_request_alone(serve, connect) -> None:
    peer = connect(serve(engine=STEPS))
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=50)
    assert peer.ask("say", npc="guard", text=7)["code"] == "bad_request"
    assert peer.end_of(say)["finish"] == "length"


def test_client_that_floods_loses_its_session_and_its_turns_and_may_come_back(serve, connect) -> None:
    running = serve(engine=STEPS)
    flood, lively = connect(running, options={zmq.SNDHWM: 0}), connect(running)
    lively.ask("spawn", character="guard")
    kept = lively.send("say", npc="guard", text="fake:long", max_tokens=2000)
    for _ in range(6_000):
        flood.socket.send(b"\x81\xa1k\xda\x0f\xa0" + b"x" * 4_000)  # 24 MB in all
    for _ in range(2_000):
        if len(lively.ask("stats")["sessions"]) == 1:
            break
    assert len(lively.ask("stats")["sessions"]) == 1
    assert lively.ask("cancel", turn=kept)["cancelled"] is True
    flood.close()
    assert connect(running).ask("ping")["type"] == "done"


def test_burst_of_six_hundred_requests_is_answered_in_full(serve, connect) -> None:
    peer = connect(serve())
    asked = [peer.send("ping") for _ in range(600)]
    assert [peer.end_of(request)["type"] for request in asked] == ["done"] * 600


def test_flood_of_one_client_does_not_keep_another_waiting(serve, connect) -> None:
    running = serve()
    flood, lively = connect(running), connect(running)
    lively.ask("spawn", character="guard")
    for _ in range(2_000):
        flood.send("ping")
    assert lively.ask("say", npc="guard", text="fake:say:Next, please.")["text"] == "Next, please."
    assert sum(flood.next()["type"] == "done" for _ in range(500)) == 500
