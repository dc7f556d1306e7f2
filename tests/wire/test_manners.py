"""Requests about turns with manners, memory and saves: what is taken, and the sentence for what is not."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from personae.errors import AskedWrong
from personae.types import Priority
from personae.wire.codec import REQUEST_LIMITS, decode
from personae.wire.messages import (
    Cancel,
    Deadline,
    Edit,
    Heard,
    History,
    HistoryLine,
    Memories,
    MidReply,
    Observe,
    Request,
    Restore,
    Save,
    Say,
    Warm,
    parse,
)

NO_CONTROL = "must not hold line breaks or other control characters."
LINE = {"speaker": "Mira", "text": "Hm.", "is_npc": True}


def asked(kind: str, **fields: Any) -> Request:
    return parse({"type": kind, "id": 1, **fields})


def refusal(kind: str, **fields: Any) -> AskedWrong:
    with pytest.raises(AskedWrong) as caught:
        asked(kind, **fields)
    return caught.value


# --- say and cancel ---


def test_say_leaves_manners_to_whoever_knows_who_speaks() -> None:
    say = asked("say", npc="a")
    assert isinstance(say, Say)
    assert (say.text, say.priority, say.mid_reply, say.heard, say.deadline, say.max_kv) == (None,) * 6


def test_say_with_manners_is_typed() -> None:
    say = asked("say", npc="a", text="x", mid_reply="refuse", heard={"chars": 0}, deadline={"first_ms": 1, "end_ms": 600_000}, max_kv=64)
    assert say == Say(
        id=1,
        npc="a",
        text="x",
        mid_reply=MidReply.REFUSE,
        heard=Heard(chars=0),
        deadline=Deadline(first_ms=1.0, end_ms=600_000.0),
        max_kv=64,
    )


def test_cancel_says_how_much_was_heard() -> None:
    assert asked("cancel", turn=7, heard={"sentences": 2}) == Cancel(id=1, turn=7, heard=Heard(sentences=2))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"text": ""}, "`text` of say must not be empty."),
        ({"mid_reply": "shout"}, "`mid_reply` of say must be one of 'interrupt', 'queue' or 'refuse'."),
        ({"heard": 3}, "`heard` of say must be a map."),
        ({"heard": {}}, "`heard` of say must hold exactly one of chars, sentences."),
        ({"heard": {"chars": 1, "sentences": 1}}, "`heard` of say must hold exactly one of chars, sentences."),
        ({"heard": {"chars": -1}}, "`heard.chars` of say must be at least 0."),
        ({"heard": {"sentences": 1.5}}, "`heard.sentences` of say must be an integer."),
        ({"deadline": {}}, "`deadline` of say must hold first_ms, end_ms or both."),
        ({"deadline": {"first_ms": 0.9}}, "`deadline.first_ms` of say must be at least 1."),
        ({"deadline": {"end_ms": 600_001}}, "`deadline.end_ms` of say must be at most 600000."),
        ({"deadline": {"end_ms": float("nan")}}, "`deadline.end_ms` of say must be a finite number."),
        ({"max_kv": 63}, "`max_kv` of say must be at least 64."),
        ({"max_kv": (1 << 20) + 1}, "`max_kv` of say must be at most 1048576."),
    ],
)
def test_say_is_refused_in_one_sentence_that_names_the_field(fields: dict[str, Any], sentence: str) -> None:
    error = refusal("say", npc="a", **fields)
    assert (error.code, error.message) == ("bad_request", sentence)


# --- what NPCs know ---


def test_observers_are_named_once_each_and_in_order() -> None:
    assert asked("observe", npcs=["b", "a", "b"], text="x") == Observe(id=1, npcs=("b", "a"), text="x")


def test_history_has_at_most_one_change() -> None:
    read = asked("history", npc="a")
    assert isinstance(read, History)
    assert not read.is_change
    changes: list[tuple[dict[str, Any], History]] = [
        ({"keep": 0}, History(id=1, npc="a", keep=0)),
        ({"edit": {"at": -1, "text": "x"}}, History(id=1, npc="a", edit=Edit(at=-1, text="x"))),
        ({"lines": []}, History(id=1, npc="a", lines=())),
    ]
    for fields, meant in changes:
        assert asked("history", npc="a", **fields) == meant
        assert meant.is_change
    assert refusal("history", npc="a", keep=1, lines=[]).message == "A history must hold at most one of keep, edit, lines."


def test_history_that_was_read_can_be_given_back() -> None:
    event = {"speaker": "", "text": "The door bursts open."}
    history = asked("history", npc="a", lines=[LINE, event])
    assert isinstance(history, History)
    assert history.lines == (HistoryLine(speaker="Mira", text="Hm.", is_npc=True), HistoryLine(speaker="", text=event["text"]))
    assert asked("history", npc="a", lines=[{**LINE, "text": "x" * 65_536}] * 2 + [LINE] * 398)


def test_memories_are_read_or_set() -> None:
    assert asked("memories", npc="a") == Memories(id=1, npc="a")
    assert asked("memories", npc="a", set=["x" * 2000] * 64) == Memories(id=1, npc="a", set=("x" * 2000,) * 64)


def test_warm_is_of_no_class_before_the_service_says_so() -> None:
    assert asked("warm", npc="a") == Warm(id=1, npc="a")
    assert asked("warm", npc="a", priority="player") == Warm(id=1, npc="a", priority=Priority.PLAYER)


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("observe", {"text": "x"}, "`npcs` of observe is missing."),
        ("observe", {"npcs": [], "text": "x"}, "`npcs` of observe must not be empty."),
        ("observe", {"npcs": "ab", "text": "x"}, "`npcs` of observe must be an array."),
        ("observe", {"npcs": ["a", 1], "text": "x"}, "`npcs[1]` of observe must be a string."),
        ("observe", {"npcs": [f"n{i}" for i in range(257)], "text": "x"}, "`npcs` of observe must have at most 256 entries."),
        ("observe", {"npcs": ["a"]}, "`text` of observe is missing."),
        ("observe", {"npcs": ["a"], "text": "x", "speaker": "A\nB"}, f"`speaker` of observe {NO_CONTROL}"),
        ("history", {"npc": "a", "keep": -1}, "`keep` of history must be at least 0."),
        ("history", {"npc": "a", "edit": {"at": 0.0, "text": "x"}}, "`edit.at` of history must be an integer."),
        ("history", {"npc": "a", "edit": {"at": 0}}, "`edit.text` of history is missing."),
        ("history", {"npc": "a", "edit": {"at": 0, "text": ""}}, "`edit.text` of history must not be empty."),
        ("history", {"npc": "a", "lines": [LINE] * 401}, "`lines` of history must have at most 400 entries."),
        ("history", {"npc": "a", "lines": [LINE, {"text": "x"}]}, "`lines[1].speaker` of history is missing."),
        ("history", {"npc": "a", "lines": [{**LINE, "is_npc": 1}]}, "`lines[0].is_npc` of history must be true or false."),
        ("history", {"npc": "a", "lines": [{**LINE, "speaker": "A\u2028"}]}, f"`lines[0].speaker` of history {NO_CONTROL}"),
        ("memories", {"npc": "a", "set": ["x"] * 65}, "`set` of memories must have at most 64 entries."),
        ("memories", {"npc": "a", "set": ["x", "y" * 2001]}, "`set[1]` of memories must have at most 2000 characters."),
        ("memories", {"npc": "a", "set": [""]}, "`set[0]` of memories must not be empty."),
        ("warm", {}, "`npc` of warm is missing."),
        ("warm", {"npc": "a", "priority": "hot"}, "`priority` of warm must be one of 'player', 'scene' or 'ambient'."),
    ],
)  # fmt: skip
def test_refusal_is_one_sentence_that_names_the_field(kind: str, fields: dict[str, Any], sentence: str) -> None:
    error = refusal(kind, **fields)
    assert (error.code, error.message) == ("bad_request", sentence)


@pytest.mark.parametrize(
    ("kind", "fields", "subject", "limit"),
    [
        ("observe", {"npcs": ["a"], "text": "é" * 8193}, "`text` of observe", 16384),
        ("history", {"npc": "a", "edit": {"at": 0, "text": "x" * 65_537}}, "`edit.text` of history", 65536),
        ("history", {"npc": "a", "lines": [{**LINE, "text": "é" * 32_769}]}, "`lines[0].text` of history", 65536),
    ],
)  # fmt: skip
def test_text_past_its_limit_has_a_code_of_its_own(kind: str, fields: dict[str, Any], subject: str, limit: int) -> None:
    error = refusal(kind, **fields)
    assert (error.code, error.message) == ("text_too_long", f"{subject} must have at most {limit} bytes of UTF-8.")


# --- saves ---


def test_save_is_of_all_unless_some_are_named() -> None:
    assert asked("save") == Save(id=1)
    assert asked("save", npcs=[]) == Save(id=1, npcs=())
    names = [f"n{i}" for i in range(4096)]
    assert asked("save", npcs=names, name="slot_1.auto-2", kv=True) == Save(id=1, npcs=tuple(names), name="slot_1.auto-2", kv=True)
    assert asked("save", name="x", kv=None) == Save(id=1, name="x")


@pytest.mark.parametrize("name", ["", ".hidden", "..", "a/b", "a\\b", "a b", "ä", "x" * 129, "a\n", "a\0"])
def test_name_of_a_save_stays_within_its_folder(name: str) -> None:
    sentence = "must be 1 to 128 letters, digits, dots, underscores and hyphens, and not begin with a dot"
    assert refusal("save", name=name).message == f"`name` of save {sentence}."
    assert refusal("restore", name=name).message == f"`name` of restore {sentence}."


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("save", {"kv": True}, "A save with kv must have a name: only the service can keep it."),
        ("save", {"npcs": [f"n{i}" for i in range(4097)]}, "`npcs` of save must have at most 4096 entries."),
        ("save", {"name": "x", "kv": "yes"}, "`kv` of save must be true or false."),
        ("restore", {}, "A restore must hold exactly one of document, name."),
        ("restore", {"document": {}, "name": "x"}, "A restore must hold exactly one of document, name."),
        ("restore", {"document": [1]}, "`document` of restore must be a map."),
        ("restore", {"name": "x", "replace": 1}, "`replace` of restore must be true or false."),
    ],
)
def test_save_and_restore_are_refused_in_one_sentence(kind: str, fields: dict[str, Any], sentence: str) -> None:
    error = refusal(kind, **fields)
    assert (error.code, error.message) == ("bad_request", sentence)


def test_document_is_taken_as_it_is() -> None:
    document = {"personae_save": 99, "npcs": "?", "later": {"deep": [1, None, 0.5]}}
    assert asked("restore", document=document, npcs=["a", "a"], replace=True) == Restore(id=1, document=document, npcs=("a",), replace=True)


def saved_crowd(n_npcs: int, n_lines: int) -> bytes:
    line = {"speaker": "Player", "text": "Good evening. Is there a room left for tonight?", "is_npc": False}
    reply = {
        "speaker": "Mira",
        "text": "There is always a room for a friend, and a meal.",
        "is_npc": True,
        "tokens": "4711 12 9 801 77 3 12 4",
    }
    npc = {"npc": "innkeeper-2", "character": "innkeeper", "character_hash": "ef" * 32, "adapter": "cd" * 32, "player": "Player", "seed": 7}
    npcs = [{**npc, "npc": f"n{i}", "history": [line, reply] * (n_lines // 2), "memories": ["He paid."]} for i in range(n_npcs)]
    packed: bytes = msgpack.packb({"type": "restore", "id": 1, "document": {"personae_save": 1, "base": "ab" * 32, "npcs": npcs}})
    return packed


def test_save_of_a_hundred_npcs_with_forty_lines_passes_the_limits() -> None:
    frame = saved_crowd(100, 40)
    assert 300_000 < len(frame) < REQUEST_LIMITS.frame_bytes
    restore = parse(decode(frame))
    assert isinstance(restore, Restore)
    assert restore.document is not None
    assert len(restore.document["npcs"]) == 100
