"""Whatever happens to an NPC between two lines, it says what it would have said: through the socket, on a real llama.cpp, greedily.

The model is tiny, of random F32 weights: a token that was computed from the wrong KV is another token. Each test tells one talk twice, once
with the disturbance and once without, and compares what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.config import ServiceConfig
from personae.engine.settings import EngineSettings
from tests.engine.llama.house import write_voices
from tests.service.house import Peer, Running
from tests.tiny import TinyModel, write_model

CAST = {"anna": "wide", "bert": "wide", "cleo": "narrow", "dora": None}
LINES = ("Good evening. What is there to eat?", "And what do you drink yourself?", "Then I shall have the same.")
N_REPLY = 12

Start = Callable[..., Peer]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("manners") / "m.gguf", request.param)


@pytest.fixture(scope="module")
def characters(model: TinyModel) -> Path:
    voices = write_voices(model.path.parent, model)
    folder = model.path.parent / "characters"
    for name, voice in CAST.items():
        pack = folder / name
        pack.mkdir(parents=True)
        lines = [f'name = "{name.title()}"', f'persona = "You are {name.title()}, and you have seen everything there is to see."']
        if voice:
            (pack / "adapter.gguf").write_bytes(voices[voice].path.read_bytes())
            lines += ["[adapter]", 'file = "adapter.gguf"']
        lines += ["[sampling]", "temperature = 0.0", "[limits]", f"max_tokens = {N_REPLY}"]
        (pack / "character.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def start(model: TinyModel, characters: Path) -> Iterator[Start]:
    """A service of its own and a peer that talks to it; keyword arguments are ServiceConfig's and, as `engine`, EngineSettings'."""
    running: list[Running] = []
    peers: list[Peer] = []

    def begin(*, in_child: bool = False, engine: dict[str, Any] | None = None, **config: Any) -> Peer:
        settings: dict[str, Any] = {"n_slots": 4, "n_ctx": 384, "threads": 1, "prefill_chunk": 32, **(engine or {})}
        merged: dict[str, Any] = {"characters": characters, "drain_ms": 0, "seed": 1, **config}
        running.append(Running(ServiceConfig(engine=EngineSettings(model=str(model.path), **settings), **merged), in_child=in_child))
        peers.append(Peer(running[-1].endpoint))
        assert peers[-1].hello()["type"] == "done"
        return peers[-1]

    yield begin
    for peer in peers:
        peer.close()
    for one in running:
        one.stop()
        assert one.failure is None, one.failure


def spawn_all(peer: Peer) -> None:
    for name in CAST:
        assert peer.ask("spawn", character=name)["npc"] == name


def say(peer: Peer, npc: str, text: str, **fields: Any) -> dict[str, Any]:
    done = peer.ask("say", npc=npc, text=text, **fields)
    assert done["type"] == "done", done
    return done


def talk(peer: Peer, lines: tuple[str, ...] = LINES) -> list[dict[str, Any]]:
    """Every line to everybody, one after another."""
    return [say(peer, npc, line) for line in lines for npc in CAST]


def texts(dones: list[dict[str, Any]]) -> list[str]:
    assert any(done["text"] for done in dones)
    return [done["text"] for done in dones]


def sources(dones: list[dict[str, Any]]) -> set[str]:
    return {done["usage"]["source"] for done in dones}


def test_an_npc_put_aside_and_fetched_back_says_what_it_would_have_said(start: Start) -> None:
    roomy, tight = start(), start(engine={"n_slots": 1})
    for peer in (roomy, tight):
        spawn_all(peer)
    undisturbed, moved = talk(roomy), talk(tight)
    assert texts(moved) == texts(undisturbed)
    assert "host" in sources(moved)
    assert "host" not in sources(undisturbed)


def test_an_npc_whose_kv_was_dropped_says_what_it_would_have_said(start: Start) -> None:
    roomy, forgetful = start(), start(engine={"n_slots": 1}, kv_ram=0)
    for peer in (roomy, forgetful):
        spawn_all(peer)
    undisturbed, recomputed = talk(roomy), talk(forgetful)
    assert texts(recomputed) == texts(undisturbed)
    assert sources(recomputed) <= {"none", "copy"}


def test_an_npc_that_begins_with_a_copy_says_what_a_first_one_says(start: Start) -> None:
    peer = start()
    for npc in ("first", "second"):
        peer.ask("spawn", character="anna", npc=npc)
    first, second = (say(peer, npc, LINES[0]) for npc in ("first", "second"))
    assert second["text"] == first["text"]
    # of a sequence longer than gemma's sliding window only a part comes along in a copy: it is of use as a whole or not at all
    copied = "copy" if peer.ask("stats")["model"]["architecture"] == "llama" else "none"
    assert (first["usage"]["source"], second["usage"]["source"]) == ("none", copied)


def test_those_of_one_pack_who_are_spoken_to_at_once_say_what_each_would_alone(start: Start) -> None:
    alone, together = start(), start(step_ms=0.01)  # so that the persona takes many steps
    for peer in (alone, together):
        for npc in ("first", "second", "third"):
            peer.ask("spawn", character="anna", npc=npc)
    sampling = {"temperature": 1.0, "seed": 5, "repeat_penalty": 1.3}
    expected = [say(alone, npc, LINES[n], sampling=sampling)["text"] for n, npc in enumerate(("first", "second", "third"))]
    turns = [together.send("say", npc=npc, text=LINES[n], sampling=sampling) for n, npc in enumerate(("first", "second", "third"))]
    dones = [together.end_of(turn) for turn in turns]
    assert texts(dones) == expected
    if together.ask("stats")["model"]["architecture"] == "llama":
        assert "copy" in sources(dones)


def test_two_voices_with_the_same_words_never_share_kv(start: Start) -> None:
    """anna and a namesake under another adapter: equal tokens, other KV."""
    alone, together = start(), start(engine={"n_slots": 2})
    for peer in (alone, together):
        for character in ("anna", "cleo"):
            peer.ask("spawn", character=character)
    expected = [say(alone, npc, LINES[0])["text"] for npc in ("cleo", "anna")]
    found = [say(together, npc, LINES[0])["text"] for npc in ("anna", "cleo")]
    assert found == expected[::-1]


def test_a_reply_cut_by_a_barge_in_is_a_history_typed_by_hand(start: Start) -> None:
    peer = start()
    for npc in ("spoken", "typed"):
        peer.ask("spawn", character="anna", npc=npc)
    long_reply = peer.send("say", npc="spoken", text=LINES[0], max_tokens=200)
    peer.until(lambda message: message["type"] == "delta" and len(peer.deltas(long_reply)) >= 8)
    second = peer.send("say", npc="spoken", text=LINES[1], heard={"chars": 5})
    interrupted, answer = peer.end_of(long_reply), peer.end_of(second)
    assert interrupted["finish"] == "interrupted"
    lines = peer.ask("history", npc="spoken")["lines"]
    assert lines[1]["text"] == interrupted["text"][:5].rstrip()
    peer.ask("history", npc="typed", lines=lines[:2])
    assert say(peer, "typed", LINES[1])["text"] == answer["text"]


def test_after_a_cancel_in_prefill_an_npc_is_as_fresh(start: Start) -> None:
    peer = start(engine={"prefill_chunk": 4}, step_ms=0.01)
    for npc in ("cancelled", "fresh"):
        peer.ask("spawn", character="anna", npc=npc)
    doomed = peer.send("say", npc="cancelled", text="A very long question, " * 8)
    peer.ask("cancel", npc="cancelled")
    ended = peer.end_of(doomed)
    assert (ended["finish"], ended["text"]) == ("cancelled", "")
    assert say(peer, "cancelled", LINES[0])["text"] == say(peer, "fresh", LINES[0])["text"]


def test_a_paused_turn_says_what_it_would_have_said(start: Start) -> None:
    roomy, tight = start(), start(engine={"n_slots": 1})
    expected, found = [], []
    for peer, said in ((roomy, expected), (tight, found)):
        spawn_all(peer)
        murmur = peer.send("say", npc="anna", text=LINES[0], priority="ambient", max_tokens=120)
        peer.until(lambda message, turn=murmur: message["type"] == "delta" and message["id"] == turn)  # type: ignore[misc]
        player = [peer.send("say", npc=npc, text=LINES[1]) for npc in ("cleo", "dora")]
        said += [peer.end_of(turn) for turn in player]
        said.append(peer.end_of(murmur))
    assert texts(found) == texts(expected)
    assert found[-1]["timing"]["pauses"] >= 1
    assert expected[-1]["timing"]["pauses"] == 0


def test_an_npc_restored_in_a_new_process_says_what_it_would_have_said(start: Start) -> None:
    first = start(in_child=True)
    spawn_all(first)
    talk(first, LINES[:2])
    document = first.ask("save")["document"]
    never_stopped = talk(first, LINES[2:])
    second = start(in_child=True)
    restored = second.ask("restore", document=document)
    assert {one["npc"] for one in restored["restored"]} == set(CAST), restored
    assert texts(talk(second, LINES[2:])) == texts(never_stopped)


def test_kv_beside_a_save_is_used_and_changes_no_word(start: Start, tmp_path: Path) -> None:
    first = start(state=tmp_path / "first")
    spawn_all(first)
    talk(first, LINES[:2])
    assert first.ask("save", name="evening", kv=True)["kv"] == len(CAST)
    never_stopped = talk(first, LINES[2:])
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "saves").rename(tmp_path / "second" / "saves")
    second = start(state=tmp_path / "second")
    restored = second.ask("restore", name="evening")
    assert {one["kv"] for one in restored["restored"]} == {"loaded"}, restored
    after = talk(second, LINES[2:])
    assert texts(after) == texts(never_stopped)
    assert sources(after) == {"saved"}


def test_kv_of_another_context_size_is_left_aside_with_a_reason(start: Start, tmp_path: Path) -> None:
    first = start(state=tmp_path / "first")
    spawn_all(first)
    talk(first, LINES[:1])
    first.ask("save", name="evening", kv=True)
    never_stopped = talk(first, LINES[1:2])
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "saves").rename(tmp_path / "second" / "saves")
    second = start(state=tmp_path / "second", engine={"n_ctx": 768})
    restored = second.ask("restore", name="evening")["restored"]
    assert all(one["kv"] == "none" and one["kv_reason"] for one in restored), restored
    assert texts(talk(second, LINES[1:2])) == texts(never_stopped)


def test_a_service_started_again_from_its_state_goes_on_as_if_never_stopped(start: Start, tmp_path: Path) -> None:
    undisturbed, stopped = start(), start(state=tmp_path / "state")
    for peer in (undisturbed, stopped):
        spawn_all(peer)
    expected = talk(undisturbed)
    found = talk(stopped, LINES[:2])
    stopped.ask("shutdown")
    _wait_for_the_folder(tmp_path / "state")
    found += talk(start(state=tmp_path / "state"), LINES[2:])
    assert texts(found) == texts(expected)


def _wait_for_the_folder(folder: Path) -> None:
    """The service that had it is ending in its thread."""
    import time

    from personae.errors import AskedWrong
    from personae.service.state import StateFolder

    deadline = time.monotonic() + 10
    while True:
        try:
            StateFolder(folder).close()
            return
        except AskedWrong:
            assert time.monotonic() < deadline, "the state folder stays locked"
            time.sleep(0.02)
