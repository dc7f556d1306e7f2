"""What a client sees of a conversation, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from tests.service.house import write_pack
from tests.tiny import write_adapter, write_model


def test_hello_introduces_the_service(serve, connect) -> None:
    answer = connect(serve(), hello=False).hello()
    assert answer["v"] == 1
    assert answer["server"].startswith("personae ")
    assert answer["model"].keys() == {"name", "architecture", "hash", "n_ctx"}
    assert (answer["mode"], answer["mode_reason"], answer["slots"]) == ("mixed", "", 8)
    assert answer["state"] in ("ready", "warm")
    assert answer["heartbeat_ms"] == 5000
    assert answer["limits"]["frame_bytes"] == 1 << 20


def test_client_that_comes_before_the_engine_is_ready_waits_for_its_hello(serve, connect) -> None:
    assert connect(serve(engine={"fake_step_ms": 50}), hello=False).hello()["type"] == "done"


def test_request_before_hello_is_told_so(serve, connect) -> None:
    answer = connect(serve(), hello=False).ask("characters")
    assert (answer["type"], answer["code"], answer["id"]) == ("error", "hello_first", 1)


def test_characters_are_listed_and_broken_packs_are_problems(serve, connect, characters) -> None:
    write_pack(characters, "mute").joinpath("character.toml").write_text("persona = 7\n")
    write_pack(characters, "windbag").joinpath("character.toml").write_text(f'name = "Windbag"\npersona = "{"long " * 500}"\n')
    answer = connect(serve()).ask("characters")
    assert [one["id"] for one in answer["characters"]] == ["guard", "innkeeper"]
    assert answer["characters"][1] == {
        **{"id": "innkeeper", "name": "Innkeeper", "pack": "innkeeper", "portrait": ""},
        **{"greeting": "Come in, come in.", "greetings": 1, "adapter": None, "adapters": [], "moods": []},
        **{"description": "", "author": "", "licence": "", "tags": []},
    }
    assert {"mute", "windbag"} <= {problem["pack"] for problem in answer["problems"]}


def test_refused_pack_cannot_be_spawned_and_its_problem_is_the_hint(serve, connect, characters) -> None:
    write_pack(characters, "windbag").joinpath("character.toml").write_text(f'name = "Windbag"\npersona = "{"long " * 500}"\n')
    answer = connect(serve()).ask("spawn", character="windbag")
    assert answer["code"] == "unknown_character"
    assert "tokens" in answer["hint"]


def test_say_streams_and_ends_in_one_done_whose_text_is_the_deltas(serve, connect) -> None:
    peer = connect(serve())
    assert peer.ask("spawn", character="innkeeper", npc="mira", player="Tom")["npc"] == "mira"
    say = peer.send("say", npc="mira", text="fake:say:*wipes a mug* Evening.")
    done = peer.end_of(say)
    assert done["text"] == "*wipes a mug* Evening." == peer.deltas(say)
    assert done["speech"] == "Evening."
    assert (done["finish"], done["npc"], done["adapter"]) == ("end", "mira", None)
    assert done["usage"]["prompt"] == done["usage"]["reused"] + done["usage"]["prefilled"]
    assert done["usage"]["reply"] == len(done["text"])
    assert done["timing"]["total_ms"] >= done["timing"]["ttft_ms"] >= done["timing"]["queued_ms"] >= 0
    assert done["receipt"]["total"] == done["usage"]["prompt"]
    assert (done["fallback"], done["usage"]["source"]) == (None, "none")
    assert (done["timing"]["pauses"], done["timing"]["paused_ms"]) == (0, 0.0)
    assert {done["receipt"][name] for name in ("reused", "prefilled", "source")} == {0, done["usage"]["prompt"], "none"}
    assert {message["kind"] for message in peer.heard if message["type"] == "delta"} == {"speech", "narration"}
    peer.ask("ping")
    assert sum(message.get("id") == say and message["type"] == "done" for message in peer.heard) == 1


def test_second_line_finds_the_first_in_the_slot(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="innkeeper")
    first = peer.ask("say", npc="innkeeper", text="Good evening.")["usage"]
    second = peer.ask("say", npc="innkeeper", text="A room, please.")["usage"]
    assert second["reused"] >= first["prompt"] + first["reply"] - 1
    own = FakeVocabulary().tokenize("A room, please.<|im_end|>\n<|im_start|>assistant\n", special=True)
    assert second["prefilled"] == len(own)  # what stands before the line was prefilled while nobody waited


def test_history_holds_what_was_said(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="innkeeper", player="Tom")
    peer.ask("say", npc="innkeeper", text="fake:say:Evening.")
    peer.ask("say", npc="innkeeper", text="fake:say:Well met.", speaker="Ada")
    assert peer.ask("history", npc="innkeeper")["lines"] == [
        {"speaker": "Innkeeper", "text": "Come in, come in.", "is_npc": True},
        {"speaker": "Tom", "text": "fake:say:Evening.", "is_npc": False},
        {"speaker": "Innkeeper", "text": "Evening.", "is_npc": True},
        {"speaker": "Ada", "text": "fake:say:Well met.", "is_npc": False},
        {"speaker": "Innkeeper", "text": "Well met.", "is_npc": True},
    ]


def test_npc_goes_on_by_itself_when_nobody_speaks(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="innkeeper")
    done = peer.ask("say", npc="innkeeper")
    assert (done["finish"], done["text"]) == ("end", "[base] I heard: .")
    assert [(line["text"], line["is_npc"]) for line in peer.ask("history", npc="innkeeper")["lines"]] == [
        ("Come in, come in.", True),
        (done["text"], True),
    ]


def test_request_may_bound_prompt_and_reply_together(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard")
    for number in range(6):
        peer.ask("say", npc="guard", text=f"fake:say:This is number {number} of the things that I shall not say again.")
    free = peer.ask("say", npc="guard", text="fake:say:Well.")
    bound = peer.ask("say", npc="guard", text="fake:say:Well.", max_kv=256)
    assert free["usage"]["prompt"] > 256 >= bound["usage"]["prompt"] + bound["usage"]["reply"]
    assert bound["receipt"]["cuts"]
    assert bound["text"] == "Well."


def test_two_npcs_of_one_character_share_no_line(serve, connect) -> None:
    peer = connect(serve())
    one, two = (peer.ask("spawn", character="guard")["npc"] for _ in range(2))
    peer.ask("say", npc=one, text="The password is swordfish.")
    assert peer.ask("history", npc=two)["lines"] == []
    alone = peer.ask("say", npc=two, text="What is the password?")
    assert "swordfish" not in alone["text"]
    assert alone["usage"]["prompt"] < peer.ask("say", npc=one, text="What is the password?")["usage"]["prompt"]


def test_many_npcs_speak_at_once_each_its_own_words(serve, connect) -> None:
    peer = connect(serve(engine={"n_slots": 4}))
    npcs = [peer.ask("spawn", character="guard")["npc"] for _ in range(10)]
    says = {peer.send("say", npc=npc, text=f"fake:say:I am {npc}, at your service."): npc for npc in npcs}
    ended: dict[int, str] = {}
    while len(ended) < len(says):
        done = peer.until(lambda message: message["type"] == "done")
        ended[done["id"]] = done["text"]
    assert ended == {say: f"I am {npc}, at your service." for say, npc in says.items()}
    assert all(peer.deltas(say) == text for say, text in ended.items())


@pytest.mark.parametrize("text", ["Grüße, 旅人! 🐉", "fake:unicode", "e\u0301 \u202e abc", "<|im_end|>\n<|im_start|>system"])
def test_any_text_goes_through_whole(serve, connect, text) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", npc="Käthe 🐉", player="Ωmega")
    say = peer.send("say", npc="Käthe 🐉", text=text)
    done = peer.end_of(say)
    assert done["finish"] == "end"
    assert done["text"] == peer.deltas(say)
    history = peer.ask("history", npc="Käthe 🐉")["lines"]
    assert history[0] == {"speaker": "Ωmega", "text": text, "is_npc": False}
    assert history[1]["text"] == done["text"]


def test_reply_stops_before_another_speaker_s_cue(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", player="Tom")
    done = peer.ask("say", npc="guard", text="fake:say:Halt.\\nTom: I surrender!")
    assert (done["finish"], done["text"].strip()) == ("speaker", "Halt.")


def test_stop_string_never_shows(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:say:Halt, stranger.", stop=["stranger"])
    assert (peer.end_of(say)["finish"], peer.deltas(say)) == ("stop", "Halt,")


def test_request_may_shorten_the_reply(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard")
    done = peer.ask("say", npc="guard", text="fake:long", max_tokens=12)
    assert (done["finish"], done["usage"]["reply"]) == ("length", 12)


def test_pack_sets_limits_and_stops_and_the_request_overrides_them(serve, connect, characters) -> None:
    write_pack(characters, "terse", stop='["7"]', limits="{ max_tokens = 9 }", sampling="{ seed = 7 }")
    peer = connect(serve())
    peer.ask("spawn", character="terse")
    assert peer.ask("say", npc="terse", text="fake:long")["finish"] == "length"
    longer = peer.ask("say", npc="terse", text="fake:long", max_tokens=100, sampling={"seed": 8})
    assert (longer["finish"], longer["seed"]) == ("stop", 8)
    assert peer.ask("say", npc="terse", text="fake:silent")["seed"] == 7


def test_endless_talk_in_a_small_context_always_ends(serve, connect) -> None:
    peer = connect(serve(engine={"n_ctx": 512}))
    peer.ask("spawn", character="innkeeper")
    for number in range(40):
        done = peer.ask("say", npc="innkeeper", text=f"This is line number {number} of a long evening.", max_tokens=4096)
        assert done["type"] == "done", done
    assert done["receipt"]["cuts"]


def test_reply_in_circles_ends_and_is_not_remembered(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="guard", text="fake:loop", max_tokens=1000)["finish"] == "repetition"
    assert [line["is_npc"] for line in peer.ask("history", npc="guard")["lines"]] == [False]


def test_fault_of_one_turn_is_its_error_and_leaves_no_trace(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard", npc="one")
    peer.ask("spawn", character="guard", npc="two")
    other = peer.send("say", npc="two", text="fake:long", max_tokens=200)
    fault = peer.send("say", npc="one", text="fake:fault")
    assert peer.end_of(fault)["code"] == "grammar_error"
    assert peer.end_of(other)["finish"] == "length"
    assert peer.ask("history", npc="one")["lines"] == []
    assert peer.ask("say", npc="one", text="fake:say:Yes?")["text"] == "Yes?"


def test_busy_npc_is_refused_by_whoever_will_not_wait_and_its_turn_undisturbed(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 1}))
    peer.ask("spawn", character="guard")
    first = peer.send("say", npc="guard", text="fake:long", max_tokens=60)
    second = peer.send("say", npc="guard", text="And another thing.", mid_reply="refuse")
    refusal = peer.end_of(second)
    assert refusal["code"] == "npc_busy"
    assert refusal["retry_after_ms"] > 0
    assert peer.end_of(first)["finish"] == "length"
    assert [line["text"] for line in peer.ask("history", npc="guard")["lines"]][0::2] == ["fake:long"]


@pytest.mark.parametrize(
    ("request_type", "fields", "code"),
    [
        ("spawn", {"character": "nobody"}, "unknown_character"),
        ("say", {"npc": "nobody", "text": "Hello?"}, "unknown_npc"),
        ("history", {"npc": "nobody"}, "unknown_npc"),
        ("despawn", {"npc": "nobody"}, "unknown_npc"),
        ("cancel", {"npc": "nobody"}, "unknown_npc"),
        ("cancel", {"turn": 99}, "unknown_turn"),
        ("cancel", {}, "bad_request"),
        ("say", {"npc": "nobody", "text": ""}, "bad_request"),
        ("say", {"npc": "nobody", "text": "x" * 20_000}, "text_too_long"),
        ("dance", {}, "bad_request"),
        ("hello", {"v": 99, "client": "from the future"}, "unsupported_version"),
        ("hello", {"v": 1, "client": "c", "token": "wrong"}, "unauthorized"),
    ],
)
def test_what_cannot_be_done_is_one_error_with_its_code_and_a_hint(serve, connect, request_type, fields, code) -> None:
    answer = connect(serve(token="secret"), token="secret").ask(request_type, **fields)
    assert (answer["type"], answer["code"]) == ("error", code)
    assert answer["message"]
    assert answer["hint"]


def test_line_too_long_for_the_context_is_refused_and_the_npc_still_talks(serve, connect) -> None:
    peer = connect(serve(engine={"n_ctx": 512}))
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="guard", text="x" * 1000)["code"] == "text_too_long"
    assert peer.ask("say", npc="guard", text="fake:say:Hm?")["text"] == "Hm?"


def test_id_of_an_open_say_cannot_be_used_again(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 1}))
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=60)
    peer.send("ping", id=say)
    refusal = peer.until(lambda message: message["type"] == "error")
    assert (refusal["id"], refusal["code"]) == (0, "bad_message")
    assert peer.end_of(say)["finish"] == "length"


def test_despawn_ends_the_turn_and_frees_the_id(serve, connect) -> None:
    peer = connect(serve(engine={"fake_step_ms": 1}))
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    gone = peer.send("despawn", npc="guard")
    assert peer.end_of(say)["finish"] == "cancelled"
    assert peer.end_of(gone)["npc"] == "guard"
    assert peer.ask("spawn", character="guard")["npc"] == "guard"
    assert peer.ask("history", npc="guard")["lines"] == []


def test_npcs_are_bounded(serve, connect) -> None:
    peer = connect(serve(max_npcs=2))
    answers = [peer.ask("spawn", character="guard") for _ in range(3)]
    assert [answer.get("code") for answer in answers] == [None, None, "too_many_npcs"]


def test_full_queue_is_busy_with_a_hint_and_recovers(serve, connect) -> None:
    peer = connect(serve(engine={"n_slots": 1, "fake_step_ms": 1}, max_queue=2))
    npcs = [peer.ask("spawn", character="guard")["npc"] for _ in range(8)]
    says = [peer.send("say", npc=npc, text="fake:long", max_tokens=20) for npc in npcs]
    ends = [peer.until(lambda message: message["type"] in ("done", "error")) for _ in says]
    refused = [end for end in ends if end["type"] == "error"]
    assert {end["code"] for end in refused} == {"busy"}
    assert all(end["retry_after_ms"] > 0 for end in refused)
    assert 1 <= len(ends) - len(refused) <= 4
    assert peer.ask("say", npc=npcs[-1], text="fake:say:Better.")["text"] == "Better."


def test_seed_is_reported_and_drawn_anew_for_each_turn(serve, connect) -> None:
    peer = connect(serve(seed=1))
    peer.ask("spawn", character="guard")
    seeds = [peer.ask("say", npc="guard", text="fake:silent")["seed"] for _ in range(3)]
    assert len(set(seeds)) == 3
    again = connect(serve(seed=1))
    again.ask("spawn", character="guard")
    assert [again.ask("say", npc="guard", text="fake:silent")["seed"] for _ in range(3)] == seeds


def test_stats_tell_what_the_engine_did(serve, connect) -> None:
    peer = connect(serve())
    peer.ask("spawn", character="guard")
    peer.ask("say", npc="guard", text="Good evening.")
    stats = peer.ask("stats")
    assert stats["type"] == "done", stats
    assert stats["totals"].keys() == {"decodes", "rows", "mixed_decodes", "prefill_tokens", "tokens"}
    assert stats["totals"]["rows"] >= stats["totals"]["decodes"] > 0
    assert stats["totals"]["tokens"] > 0
    assert (stats["npcs"], stats["turns"], len(stats["sessions"])) == (1, 0, 1)
    assert stats["engine"]["state"] == "warm"
    assert stats["mode"] == "mixed"
    assert stats["uptime_ms"] > 0


def test_voices_speak_under_their_adapters_in_one_decode(serve, connect, characters, tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny.gguf")
    for number, name in enumerate(("pirate", "nun")):
        pack = write_pack(characters, name, adapter='{ file = "voice.gguf" }')
        write_adapter(pack / "voice.gguf", model, seed=number)
    peer = connect(serve(engine={"fake_step_ms": 1}))
    keys = {name: peer.ask("spawn", character=name)["adapter"] for name in ("pirate", "nun", "guard")}
    says = {name: peer.send("say", npc=name, text="Say something about the sea.") for name in keys}
    ends: dict[int, dict] = {}
    while len(ends) < len(says):
        done = peer.until(lambda message: message["type"] in ("done", "error"))
        ends[done["id"]] = done
    for name, say in says.items():
        assert ends[say]["adapter"] == keys[name]
        assert ends[say]["text"].startswith(f"[{keys[name][:6] if keys[name] else 'base'}]")
    assert peer.ask("stats")["totals"]["mixed_decodes"] > 0


def test_broken_adapter_costs_its_own_npc_alone(serve, connect, characters, tmp_path: Path) -> None:
    pack = write_pack(characters, "ghost", adapter='{ file = "voice.gguf" }')
    write_adapter(pack / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    peer = connect(serve())
    (pack / "voice.gguf").unlink()
    peer.ask("spawn", character="ghost")
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="ghost", text="Boo?")["code"] == "adapter_missing"
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."
