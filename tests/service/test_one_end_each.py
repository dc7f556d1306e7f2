"""Whatever is asked in whatever order, every request ends once, and nothing comes for it after its end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

NPCS = ("one", "two", "three")
TEXTS = ("fake:say:Yes. No. Perhaps.", "fake:long", "fake:fault", "fake:silent", "fake:loop", "Good evening.", None)


def request(rng: random.Random, n_sent: int) -> tuple[str, dict[str, Any]]:
    """What a client might ask next, sensible or not."""
    npc = rng.choice(NPCS)
    heard = rng.choice([None, {"chars": rng.randrange(8)}, {"sentences": rng.randrange(3)}])
    kind = rng.choices(["say", "cancel", "warm", "observe", "history", "memories", "save", "respawn"], [10, 4, 2, 2, 2, 1, 1, 1])[0]
    match kind:
        case "say":
            policy = rng.choice([None, "interrupt", "queue", "refuse"])
            deadline = rng.choice([None, None, {"first_ms": rng.randrange(1, 40)}, {"end_ms": rng.randrange(1, 80)}])
            speaker = rng.choice([None, "Ada"])
            fields = {"text": rng.choice(TEXTS), "heard": heard, "mid_reply": policy, "deadline": deadline, "speaker": speaker}
            return "say", {"npc": npc, "max_tokens": rng.choice([1, 20, 200]), **fields}
        case "cancel":
            by = {"npc": npc} if rng.random() < 0.5 else {"turn": rng.randrange(1, n_sent + 2)}
            return "cancel", {**by, "heard": heard}
        case "warm":
            return "warm", {"npc": npc}
        case "observe":
            return "observe", {"npcs": rng.sample(NPCS, 2), "text": "The bell tolls."}
        case "history":
            return "history", {"npc": npc, **rng.choice([{}, {"keep": rng.randrange(4)}, {"edit": {"at": -1, "text": "Other words."}}])}
        case "memories":
            return "memories", {"npc": npc, "set": ["Ada lies."]}
        case "save":
            return "save", {"npcs": [npc]}
    return rng.choice([("despawn", {"npc": npc}), ("spawn", {"character": "guard", "npc": npc})])


@pytest.mark.parametrize("seed", range(6))
def test_every_request_of_two_clients_ends_once(serve, connect, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    rng = random.Random(seed)
    running = serve(engine={"fake_step_ms": 1, "n_slots": 2, "n_ctx": 1024, "prefill_chunk": 64}, max_queue=4, summarise=True)
    peers = [connect(running) for _ in range(2)]
    for npc in NPCS:
        peers[0].ask("spawn", character="guard", npc=npc)
    sent: list[list[int]] = [[], []]
    for number in range(150):
        which = rng.randrange(2)
        kind, fields = request(rng, number)
        sent[which].append(peers[which].send(kind, **fields))
        if rng.random() < 0.2:
            peers[which].next()
    for peer, ids in zip(peers, sent, strict=True):
        while set(ids) - {message["id"] for message in peer.heard if message["type"] in ("done", "error")}:
            peer.next()
        peer.ask("ping")
    assert peers[0].ask("stats")["turns"] == 0
    for peer, ids in zip(peers, sent, strict=True):
        assert_ended_once(peer.heard, ids)
    assert not [record for record in caplog.records if record.exc_info], "something failed in a way nobody thought of"


def assert_ended_once(heard: list[dict[str, Any]], ids: list[int]) -> None:
    ended: Counter[int] = Counter()
    for message in heard:
        if message["type"] in ("done", "error"):
            ended[message["id"]] += 1
            assert message.get("code") != "internal", message
        elif message["type"] == "delta":
            assert not ended[message["id"]], f"a word after the end: {message}"
    assert {ended[request_id] for request_id in ids} == {1}
