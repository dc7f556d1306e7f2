"""Writes the golden messages of protocol 1 beside itself: python bindings/vectors/make.py [folder]

It packs with msgpack itself and knows neither the server's codec nor a client's, so that it can judge both. README.md says how to read
the files. Whatever changes here changes the wire: add, and never change what was released.
"""

# ruff: noqa: E501  tables of messages: one row is one line, however long

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgpack

HERE = Path(__file__).parent
Row = dict[str, Any]

SAMPLING = {
    "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 64, "frequency_penalty": 0.0,
    "presence_penalty": -0.5, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_last_n": -1, "seed": 4294967294,
}  # fmt: skip
FULL_SAY = {
    "type": "say", "id": 7, "npc": "innkeeper", "text": "Good evening.", "speaker": "Aldric", "priority": "player", "mid_reply": "interrupt",
    "heard": {"sentences": 1}, "deadline": {"first_ms": 1500.0, "end_ms": 8000.0}, "mood": "drunk", "max_tokens": 120, "max_seconds": 20.0,
    "max_kv": 1024, "stop": ["\n\n", "THE END"], "sampling": SAMPLING,
}  # fmt: skip
LINES = [
    {"speaker": "Player", "text": "Good evening", "is_npc": False}, {"speaker": "Mira", "text": "Evening, traveller.", "is_npc": True},
    {"speaker": "", "text": "The door bursts open.", "is_npc": False},
]  # fmt: skip
DOCUMENT: Row = {
    "personae_save": 1, "saved_at": "2026-02-03T20:15:00+00:00", "base": "ab" * 32, "npcs": [{
        "npc": "innkeeper", "character": "innkeeper", "character_name": "Mira", "character_hash": "ef" * 32, "adapter": "cd" * 32, "player": "Player",
        "history": [LINES[0], {**LINES[1], "tokens": "412 29 7"}, LINES[2]], "memories": ["Aldric paid for the broken window."],
        "seed": "1234567890", "asked": 1, "remembered": 0,
    }],
}  # fmt: skip
REQUESTS: dict[str, Row] = {
    "hello": {"type": "hello", "id": 1, "v": 1, "client": "my game"},
    "hello with token and session": {
        "type": "hello",
        "id": 2,
        "v": 1,
        "client": "my game",
        "token": "s3cret",
        "session": "9f86d081884c7d65",
    },
    "characters": {"type": "characters", "id": 3},
    "subscribe": {"type": "subscribe", "id": 37, "packs": True},
    "subscribe, no more": {"type": "subscribe", "id": 38, "packs": False},
    "subscribe, asked only": {"type": "subscribe", "id": 39},
    "spawn": {"type": "spawn", "id": 4, "character": "innkeeper"},
    "spawn with everything": {"type": "spawn", "id": 5, "character": "innkeeper", "npc": "old tom", "player": "Aldric", "greeting": 2},
    "say": {"type": "say", "id": 6, "npc": "innkeeper", "text": "Good evening"},
    "say with everything": FULL_SAY,
    "say in other scripts": {
        "type": "say",
        "id": 8,
        "npc": "wirtin-zoë",
        "text": "Grüß Gott! 夜は冷えるね 🍺🏴‍☠️ مساء الخير",
        "priority": "ambient",
    },
    "say with integers for numbers": {"type": "say", "id": 9, "npc": "a", "text": "x", "max_seconds": 5, "sampling": {"temperature": 0}},
    "say with null for absent": {"type": "say", "id": 10, "npc": "a", "text": "x", "speaker": None, "stop": None, "sampling": None},
    "say with a key of a later protocol": {"type": "say", "id": 11, "npc": "a", "text": "x", "gesture": {"bow": 0.25}},
    "say nothing": {"type": "say", "id": 19, "npc": "innkeeper"},
    "cancel a turn": {"type": "cancel", "id": 12, "turn": 7},
    "cancel a turn, heard in part": {"type": "cancel", "id": 35, "turn": 7, "heard": {"chars": 20}},
    "cancel an npc, nothing heard": {"type": "cancel", "id": 36, "npc": "innkeeper", "heard": {"sentences": 0}},
    "cancel an npc": {"type": "cancel", "id": 13, "npc": "innkeeper"},
    "history": {"type": "history", "id": 14, "npc": "innkeeper"},
    "history, keep": {"type": "history", "id": 20, "npc": "innkeeper", "keep": 2},
    "history, keep nothing": {"type": "history", "id": 21, "npc": "innkeeper", "keep": 0},
    "history, edit": {"type": "history", "id": 22, "npc": "innkeeper", "edit": {"at": -1, "text": "Evening. We are closed."}},
    "history, all anew": {"type": "history", "id": 23, "npc": "innkeeper", "lines": LINES},
    "history, nothing any more": {"type": "history", "id": 24, "npc": "innkeeper", "lines": []},
    "memories": {"type": "memories", "id": 25, "npc": "innkeeper"},
    "memories, set": {"type": "memories", "id": 26, "npc": "innkeeper", "set": ["Aldric paid for the broken window."]},
    "observe an event": {"type": "observe", "id": 27, "npcs": ["innkeeper", "guard"], "text": "The door bursts open."},
    "observe a line": {"type": "observe", "id": 28, "npcs": ["innkeeper"], "text": "Halt!", "speaker": "Guard"},
    "warm": {"type": "warm", "id": 29, "npc": "guard"},
    "warm with everything": {"type": "warm", "id": 30, "npc": "guard", "mood": "drunk", "priority": "scene"},
    "save all": {"type": "save", "id": 31},
    "save by name": {"type": "save", "id": 32, "npcs": ["innkeeper", "guard"], "name": "slot_1.auto", "kv": True},
    "restore a document": {"type": "restore", "id": 33, "document": DOCUMENT},
    "restore by name": {"type": "restore", "id": 34, "name": "slot_1.auto", "npcs": ["guard"], "replace": True},
    "despawn": {"type": "despawn", "id": 15, "npc": "innkeeper"},
    "stats": {"type": "stats", "id": 16},
    "ping": {"type": "ping", "id": 17},
    "ping with the largest id": {"type": "ping", "id": 2**53 - 1},
    "shutdown": {"type": "shutdown", "id": 18},
}

WELCOME = {
    "type": "done", "id": 1, "v": 1, "server": "personae 0.1.0", "session": "9f86d081884c7d65",
    "model": {"name": "base.gguf", "architecture": "llama", "hash": "ab" * 32, "n_ctx": 2048},
    "mode": "mixed", "mode_reason": "", "slots": 8, "state": "ready", "heartbeat_ms": 5000,
    "limits": {"frame_bytes": 1048576, "frame_values": 65536, "say_bytes": 16384, "line_bytes": 65536, "name_chars": 128, "max_tokens": 4096,
               "max_seconds": 600.0, "stop_strings": 16, "stop_chars": 128, "observers": 256, "lines": 400, "memories": 64, "memory_chars": 2000},
}  # fmt: skip
VOICE = [{"adapter": "cd" * 32, "scale": 1.0}, {"adapter": "ef" * 32, "scale": 0.5}]
SAID = {
    "type": "done", "id": 7, "npc": "innkeeper", "text": "*wipes a mug* Evening, traveller.", "speech": "Evening, traveller.", "finish": "end",
    "fallback": None, "adapter": "cd" * 32, "voice": VOICE, "mood": None, "seed": 1234567890,
    "usage": {"prompt": 212, "reused": 180, "prefilled": 32, "reply": 11, "source": "slot"},
    "timing": {"queued_ms": 0.4, "ttft_ms": 61.25, "total_ms": 402.5, "paused_ms": 120.5, "pauses": 1},
    "receipt": {"budget": 1888, "cut": [], "reused": 180, "prefilled": 32, "source": "slot"},
}  # fmt: skip
SPAWNED = {
    "type": "done", "id": 4, "npc": "innkeeper", "character": "innkeeper", "name": "Mira", "greeting": "Come in, come in.", "adapter": "cd" * 32,
    "voice": VOICE,
}  # fmt: skip
PROBLEM = {
    "pack": "ghost", "file": "character.toml", "field": "name", "problem": "is missing", "remedy": "Give the character a name.", "severity": "error",
}  # fmt: skip
LISTED: list[Row] = [
    {"id": "innkeeper", "name": "Mira", "adapter": "cd" * 32, "greeting": "Come in, come in.", "greetings": 3,
     "adapters": [{"file": "voice.gguf", "adapter": "cd" * 32, "scale": 1.0}, {"file": "dialect.gguf", "adapter": None, "scale": 0.5}],
     "moods": ["drunk", "angry"], "description": "Keeps the inn.", "author": "Ada", "licence": "CC0-1.0", "tags": ["inn"],
     "portrait": "mira.png", "pack": "innkeeper.persona"},
    {"id": "guard", "name": "Guard", "adapter": None, "greeting": "", "greetings": 0, "adapters": [], "moods": [], "description": "",
     "author": "", "licence": "", "tags": [], "portrait": "", "pack": "guard"},
]  # fmt: skip
REPLIES: dict[str, Row] = {
    "done: hello": WELCOME,
    "done: hello in grouped mode, warm": {**WELCOME, "mode": "grouped", "mode_reason": "another llama.cpp build", "state": "warm"},
    "done: characters": {"type": "done", "id": 3, "characters": LISTED, "problems": [PROBLEM]},
    "done: characters, of an older service": {"type": "done", "id": 3, "characters": [
        {"id": "innkeeper", "name": "Mira", "adapter": "cd" * 32, "greeting": "Come in, come in."},
        {"id": "guard", "name": "Guard", "adapter": None, "greeting": ""}], "problems": [PROBLEM]},
    "done: no characters": {"type": "done", "id": 3, "characters": [], "problems": []},
    "done: subscribe": {"type": "done", "id": 37, "packs": True},
    "done: spawn": SPAWNED,
    "delta: speech": {"type": "delta", "id": 7, "npc": "innkeeper", "text": "Evening, ", "kind": "speech"},
    "delta: narration": {"type": "delta", "id": 7, "npc": "innkeeper", "text": "*wipes a mug*", "kind": "narration"},
    "delta: astral": {"type": "delta", "id": 8, "npc": "wirtin-zoë", "text": "🍺 夜", "kind": "speech"},
    "done: say": SAID,
    "done: say, cancelled before a word": {**SAID, "text": "", "speech": "", "finish": "cancelled", "adapter": None, "voice": [],
        "usage": {"prompt": 0, "reused": 0, "prefilled": 0, "reply": 0, "source": "none"},
        "timing": {"queued_ms": 3.5, "ttft_ms": -1.0, "total_ms": 4.0, "paused_ms": 0.0, "pauses": 0}},
    "done: say, interrupted": {**SAID, "text": "*wipes a mug* Evening", "speech": "Evening", "finish": "interrupted"},
    "done: say, too late": {**SAID, "text": "Hm. Let me think.", "speech": "Hm. Let me think.", "finish": "deadline", "fallback": "Hm. Let me think."},
    "done: say, in a mood": {**SAID, "adapter": "ef" * 32, "voice": [{"adapter": "ef" * 32, "scale": 1.25}], "mood": "drunk"},
    "done: say, of an older service": {"type": "done", "id": 7, "npc": "guard", "text": "Halt!", "speech": "Halt!", "finish": "end", "adapter": None,
        "seed": 7, "usage": {"prompt": 9, "reused": 0, "prefilled": 9, "reply": 2}, "timing": {"queued_ms": 0.5, "ttft_ms": 2.0, "total_ms": 8.0},
        "receipt": {}},
    "done: warm": {"type": "done", "id": 29, "npc": "guard", "finish": "warm", "adapter": None, "voice": [], "mood": None,
        "usage": {"prompt": 180, "reused": 150, "prefilled": 30, "reply": 0, "source": "copy"},
        "timing": {"queued_ms": 0.5, "ttft_ms": -1.0, "total_ms": 95.0, "paused_ms": 0.0, "pauses": 0}, "receipt": {"budget": 1888, "cut": []}},
    "done: cancel": {"type": "done", "id": 12, "cancelled": True, "cut": 13},
    "done: cancel, too late": {"type": "done", "id": 13, "cancelled": False, "cut": 0},
    "done: observe": {"type": "done", "id": 27, "npcs": ["innkeeper", "guard"]},
    "done: memories": {"type": "done", "id": 26, "npc": "innkeeper", "memories": ["Aldric paid for the broken window."]},
    "done: save": {"type": "done", "id": 31, "npcs": 1, "document": DOCUMENT},
    "done: save by name": {"type": "done", "id": 32, "npcs": 2, "name": "slot_1.auto", "kv": 1},
    "done: restore": {"type": "done", "id": 34, "restored": [
        {"npc": "innkeeper", "character": "innkeeper", "lines": 3, "kv": "none", "kv_reason": "the save holds no KV of it"},
        {"npc": "guard", "character": "guard", "lines": 12, "kv": "loaded", "kv_reason": ""}], "problems": [
        {"npc": "bard", "code": "npc_exists", "message": "There is an NPC 'bard' already.", "hint": "Restore with replace."}]},
    "done: history": {"type": "done", "id": 14, "npc": "innkeeper", "lines": LINES},
    "done: despawn": {"type": "done", "id": 15, "npc": "innkeeper"},
    "done: stats": {"type": "done", "id": 16, "clients": 1, "npcs": 2, "engine": {"decodes": 4096, "by_rows": {"1": 10, "8": 4086}}},
    "done: ping": {"type": "done", "id": 17, "at_ms": 86400000.125},
    "done: shutdown": {"type": "done", "id": 18},
    "error": {"type": "error", "id": 6, "code": "unknown_npc", "message": "There is no NPC 'innkeepr'.", "hint": "Spawn it first."},
    "error: not attributed": {"type": "error", "id": 0, "code": "bad_frame", "message": "A frame must be one msgpack map.", "hint": ""},
    "error: busy": {"type": "error", "id": 6, "code": "busy", "message": "Too many turns wait.", "hint": "Ask again later.", "retry_after_ms": 250},
    "error: pack with problems": {"type": "error", "id": 4, "code": "pack_invalid", "message": "Pack 'ghost' cannot be used.", "hint": "",
        "problems": [PROBLEM]},
    "event: warm": {"type": "event", "event": "warm", "ms": 812.5},
    "event: engine lost": {"type": "event", "event": "engine_lost", "reason": "it was ended by signal 6", "given_up": False},
    "event: engine ready": {"type": "event", "event": "engine_ready"},
    "event: adapter set aside": {"type": "event", "event": "adapter_set_aside", "adapter": "cd" * 32, "characters": ["innkeeper"],
        "message": "The adapter of innkeeper has ended the engine twice."},
    "event: pack added": {"type": "event", "event": "pack", "change": "added", "character": "innkeeper", "name": "Mira", "npcs": 0,
        "kept": False, "problems": []},
    "event: pack refused, the last good one stays": {"type": "event", "event": "pack", "change": "refused", "character": "ghost",
        "name": "Ghost", "npcs": 2, "kept": True, "problems": [PROBLEM]},
    "event: pack removed": {"type": "event", "event": "pack", "change": "removed", "character": "guard", "name": "Guard", "npcs": 1,
        "kept": False, "problems": []},
    "error: unknown mood": {"type": "error", "id": 6, "code": "unknown_mood", "message": "'innkeeper' has no mood 'drnk'.",
        "hint": "Known are drunk, angry."},
    "event: closing": {"type": "event", "event": "closing", "drain_ms": 5000},
}  # fmt: skip

EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
LOW_EDGES = [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**53), -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 1.0, -1.5, 1e-7, 1e300, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")]
TEXTS = {
    "empty": "", "31 bytes": "a" * 31, "32 bytes": "a" * 32, "255 bytes": "b" * 255, "256 bytes": "b" * 256, "65536 bytes": "c" * 65536,
    "nul": "a\0b", "two bytes a character": "éß", "three": "夜は", "astral": "🍺𝄞", "joined emoji": "🏴‍☠️", "combining": "e\u0301",
    "bom inside": "\ufeffx", "noncharacter": "\uffff", "line separator": "\u2028", "highest": "\U0010ffff",
}  # fmt: skip
SHAPES: dict[str, Any] = {
    "null": None, "true": True, "false": False, "empty map": {}, "empty array": [], "15 entries": list(range(15)), "16 entries": list(range(16)),
    "65536 entries": [0] * 65536, "15 keys": {f"k{i}": i for i in range(15)}, "16 keys": {f"k{i}": i for i in range(16)}, "empty key": {"": 1},
    "key of 32 bytes": {"k" * 32: 1}, "astral key": {"🍺": 1}, "nested": {"a": [{"b": [[], {}, [None, {"c": [1, -1, 0.5, "x", True]}]]}]},
    "bytes": b"", "bytes of any value": bytes(range(256)), "256 bytes": b"\xff" * 256,
}  # fmt: skip
UNUSUAL = {  # not what a writer should send, and yet the same value: every reader takes it
    "1 as uint8": ("cc01", 1), "1 as uint16": ("cd0001", 1), "1 as uint32": ("ce00000001", 1), "1 as uint64": ("cf0000000000000001", 1),
    "1 as int8": ("d001", 1), "1 as int64": ("d30000000000000001", 1), "-1 as int16": ("d1ffff", -1), "0.5 as float32": ("ca3f000000", 0.5),
    "str8 for two bytes": ("d9026869", "hi"), "str16": ("da00026869", "hi"), "str32": ("db000000026869", "hi"),
    "array16": ("dc000101", [1]), "array32": ("dd0000000101", [1]), "map16": ("de0001a16b01", {"k": 1}), "map32": ("df00000001a16b01", {"k": 1}),
    "bin16": ("c50001ff", b"\xff"), "bin32": ("c600000001ff", b"\xff"),
}  # fmt: skip

BAD_FRAMES = {  # hex -> what is wrong; `bad_frame`
    "": "empty", "c0": "nil", "01": "an integer", "a568656c6c6f": "a string", "93010203": "an array", "c1": "the reserved byte",
    "81": "one key announced, none there", "81a174": "a key without its value", "81a474797065d9": "a str8 without its length",
    "81a474797065a570696e": "a string cut short", "81a161cd00": "an integer cut short", "81a161cb3fe0": "a float cut short",
    "81a16192": "an array cut short", "81a161ddffffffff": "an array of 4 billion, none there", "80c0": "bytes after the map", "8080": "two maps", "8101c0": "an integer key", "81c0c0": "a null key",
    "81c40161c0": "a bytes key", "8180c0": "a map as key", "81a161d40100": "fixext1", "81a161c70101ff": "ext8",
    "81a161d6ff00000000": "a timestamp", "81a161c1": "the reserved byte inside", "81a161a1ff": "not UTF-8",
    "81a161a2c328": "not UTF-8: a bad continuation", "81a161a3eda080": "not UTF-8: a lone surrogate", "81a161a2c080": "not UTF-8: an overlong NUL",
    "81a1ff01": "a key that is not UTF-8", "82a16101a16102": "the same key twice", "504f5354202f20485454502f312e31": "the head of a web page's POST",
}  # fmt: skip
TOO_LARGE = {  # the same; `too_large`
    "81a161dbffffffff": "a string of 4 GB", "81a161c6ffffffff": "bytes of 4 GB", "dfffffffff": "a map of 4 billion keys",
    "81a161dfffffffff": "a map of 4 billion keys inside", "81a161" + "91" * 64 + "c0": "64 levels deep",
}  # fmt: skip


TOO_MANY: Row = {
    "name": "70000 values of a million", "hex": {"head": "81a161dd00100000", "repeat": "c0", "times": 70000}, "code": "too_large",
}  # fmt: skip


def _bad_messages() -> list[tuple[str, Row, str, str]]:
    """Name, message, code, and the field that the error's sentence must name."""
    say = {"type": "say", "id": 1, "npc": "a", "text": "x"}

    def with_sampling(name: str, value: Any) -> Row:
        return {**say, "sampling": {name: value}}

    return [
        ("no type", {"id": 1}, "bad_message", "type"),
        ("type is no string", {"type": 1, "id": 1}, "bad_message", "type"),
        ("no id", {"type": "ping"}, "bad_message", "id"),
        ("id 0", {"type": "ping", "id": 0}, "bad_message", "id"),
        ("negative id", {"type": "ping", "id": -1}, "bad_message", "id"),
        ("id past 2^53 - 1", {"type": "ping", "id": 2**53}, "bad_message", "id"),
        ("id is a float", {"type": "ping", "id": 1.0}, "bad_message", "id"),
        ("id is a bool", {"type": "ping", "id": True}, "bad_message", "id"),
        ("unknown type", {"type": "dance", "id": 1}, "bad_request", "dance"),
        ("a reply as request", {"type": "done", "id": 1}, "bad_request", "done"),
        ("hello without version", {"type": "hello", "id": 1, "client": "x"}, "bad_request", "v"),
        ("hello with a version of text", {"type": "hello", "id": 1, "v": "1", "client": "x"}, "bad_request", "v"),
        ("hello without client", {"type": "hello", "id": 1, "v": 1}, "bad_request", "client"),
        ("hello with a long token", {"type": "hello", "id": 1, "v": 1, "client": "x", "token": "t" * 256}, "bad_request", "token"),
        ("spawn without character", {"type": "spawn", "id": 1}, "bad_request", "character"),
        ("spawn with an empty npc", {"type": "spawn", "id": 1, "character": "a", "npc": ""}, "bad_request", "npc"),
        ("spawn with a line break in a name", {"type": "spawn", "id": 1, "character": "a", "player": "A\nB"}, "bad_request", "player"),
        ("spawn with a long name", {"type": "spawn", "id": 1, "character": "a", "player": "é" * 129}, "bad_request", "player"),
        ("spawn with a negative greeting", {"type": "spawn", "id": 1, "character": "a", "greeting": -1}, "bad_request", "greeting"),
        ("spawn with a greeting of text", {"type": "spawn", "id": 1, "character": "a", "greeting": "hi"}, "bad_request", "greeting"),
        ("subscribe with a number", {"type": "subscribe", "id": 1, "packs": 1}, "bad_request", "packs"),
        ("say in a mood that is a map", {**say, "mood": {"anger": 0.25}}, "bad_request", "mood"),
        ("say in an empty mood", {**say, "mood": ""}, "bad_request", "mood"),
        ("warm in a mood with a line break", {"type": "warm", "id": 1, "npc": "a", "mood": "a\nb"}, "bad_request", "mood"),
        ("say without npc", {"type": "say", "id": 1, "text": "x"}, "bad_request", "npc"),
        ("say with empty text", {**say, "text": ""}, "bad_request", "text"),
        ("say with bytes", {**say, "text": b"x"}, "bad_request", "text"),
        ("say with long text", {**say, "text": "é" * 8193}, "text_too_long", "text"),
        ("say with an unknown priority", {**say, "priority": "urgent"}, "bad_request", "priority"),
        ("say with 0 tokens", {**say, "max_tokens": 0}, "bad_request", "max_tokens"),
        ("say with 4097 tokens", {**say, "max_tokens": 4097}, "bad_request", "max_tokens"),
        ("say with half a token", {**say, "max_tokens": 0.5}, "bad_request", "max_tokens"),
        ("say with true tokens", {**say, "max_tokens": True}, "bad_request", "max_tokens"),
        ("say with 0 seconds", {**say, "max_seconds": 0}, "bad_request", "max_seconds"),
        ("say with endless seconds", {**say, "max_seconds": float("inf")}, "bad_request", "max_seconds"),
        ("say with a stop that is no array", {**say, "stop": "END"}, "bad_request", "stop"),
        ("say with an empty stop", {**say, "stop": ["END", ""]}, "bad_request", "stop[1]"),
        ("say with 17 stops", {**say, "stop": ["END"] * 17}, "bad_request", "stop"),
        ("say with sampling that is no map", {**say, "sampling": 1}, "bad_request", "sampling"),
        ("hot", with_sampling("temperature", 5.5), "bad_request", "sampling.temperature"),
        ("no number", with_sampling("temperature", float("nan")), "bad_request", "sampling.temperature"),
        ("a temperature of text", with_sampling("temperature", "0.7"), "bad_request", "sampling.temperature"),
        ("top_k is a float", with_sampling("top_k", 40.0), "bad_request", "sampling.top_k"),
        ("top_p above 1", with_sampling("top_p", 1.01), "bad_request", "sampling.top_p"),
        ("a seed that means random", with_sampling("seed", 2**32 - 1), "bad_request", "sampling.seed"),
        ("a grammar", with_sampling("grammar", 'root ::= "a"'), "bad_request", "sampling.grammar"),
        ("a bias", with_sampling("logit_bias", [[1, 2.0]]), "bad_request", "sampling.logit_bias"),
        ("say with an unknown mid_reply", {**say, "mid_reply": "shout"}, "bad_request", "mid_reply"),
        ("say with nothing heard of", {**say, "heard": {}}, "bad_request", "heard"),
        ("say with two things heard", {**say, "heard": {"chars": 1, "sentences": 1}}, "bad_request", "heard"),
        ("say with less than nothing heard", {**say, "heard": {"chars": -1}}, "bad_request", "heard.chars"),
        ("say with half a sentence", {**say, "heard": {"sentences": 0.5}}, "bad_request", "heard.sentences"),
        ("say with an empty deadline", {**say, "deadline": {}}, "bad_request", "deadline"),
        ("say with a deadline that is a number", {**say, "deadline": 1500}, "bad_request", "deadline"),
        ("say with a deadline of 0", {**say, "deadline": {"first_ms": 0}}, "bad_request", "deadline.first_ms"),
        ("say with a deadline past ten minutes", {**say, "deadline": {"end_ms": 600001}}, "bad_request", "deadline.end_ms"),
        ("say with 63 tokens of kv", {**say, "max_kv": 63}, "bad_request", "max_kv"),
        ("say with 1048577 tokens of kv", {**say, "max_kv": 1048577}, "bad_request", "max_kv"),
        ("cancel with nothing heard of", {"type": "cancel", "id": 1, "npc": "a", "heard": {}}, "bad_request", "heard"),
        ("observe without npcs", {"type": "observe", "id": 1, "text": "x"}, "bad_request", "npcs"),
        ("observe by nobody", {"type": "observe", "id": 1, "npcs": [], "text": "x"}, "bad_request", "npcs"),
        ("observe by 257", {"type": "observe", "id": 1, "npcs": [f"n{i}" for i in range(257)], "text": "x"}, "bad_request", "npcs"),
        ("observe by a lone name", {"type": "observe", "id": 1, "npcs": "a", "text": "x"}, "bad_request", "npcs"),
        ("observe nothing", {"type": "observe", "id": 1, "npcs": ["a"]}, "bad_request", "text"),
        (
            "observe with a line break in the speaker",
            {"type": "observe", "id": 1, "npcs": ["a"], "text": "x", "speaker": "A\nB"},
            "bad_request",
            "speaker",
        ),
        ("history with two changes", {"type": "history", "id": 1, "npc": "a", "keep": 1, "lines": []}, "bad_request", "history"),
        ("history, keep less than nothing", {"type": "history", "id": 1, "npc": "a", "keep": -1}, "bad_request", "keep"),
        ("history, edit without text", {"type": "history", "id": 1, "npc": "a", "edit": {"at": 1}}, "bad_request", "edit.text"),
        ("history, edit of no line", {"type": "history", "id": 1, "npc": "a", "edit": {"text": "x"}}, "bad_request", "edit.at"),
        (
            "history, a line without text",
            {"type": "history", "id": 1, "npc": "a", "lines": [LINES[0], {"speaker": "b"}]},
            "bad_request",
            "lines[1].text",
        ),
        ("memories without npc", {"type": "memories", "id": 1}, "bad_request", "npc"),
        ("65 memories", {"type": "memories", "id": 1, "npc": "a", "set": ["x"] * 65}, "bad_request", "set"),
        ("a long memory", {"type": "memories", "id": 1, "npc": "a", "set": ["x", "x" * 2001]}, "bad_request", "set[1]"),
        ("an empty memory", {"type": "memories", "id": 1, "npc": "a", "set": [""]}, "bad_request", "set[0]"),
        ("warm without npc", {"type": "warm", "id": 1}, "bad_request", "npc"),
        ("warm with an unknown priority", {"type": "warm", "id": 1, "npc": "a", "priority": "hot"}, "bad_request", "priority"),
        ("save outside of the folder", {"type": "save", "id": 1, "name": "../x"}, "bad_request", "name"),
        ("save as a hidden file", {"type": "save", "id": 1, "name": ".x"}, "bad_request", "name"),
        ("save under a long name", {"type": "save", "id": 1, "name": "x" * 129}, "bad_request", "name"),
        ("save with kv and no name", {"type": "save", "id": 1, "kv": True}, "bad_request", "save"),
        ("save with kv of a number", {"type": "save", "id": 1, "name": "x", "kv": 1}, "bad_request", "kv"),
        ("restore of nothing", {"type": "restore", "id": 1}, "bad_request", "restore"),
        ("restore of two things", {"type": "restore", "id": 1, "document": {}, "name": "x"}, "bad_request", "restore"),
        ("restore of a document that is text", {"type": "restore", "id": 1, "document": "{}"}, "bad_request", "document"),
        ("cancel of nothing", {"type": "cancel", "id": 1}, "bad_request", "cancel"),
        ("cancel of two things", {"type": "cancel", "id": 1, "turn": 1, "npc": "a"}, "bad_request", "cancel"),
        ("history without npc", {"type": "history", "id": 1}, "bad_request", "npc"),
    ]


def pack(message: Any) -> str:
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed.hex()


def readable(value: Any) -> Any:
    """JSON's twin of a value: bytes and floats that JSON lacks become {"$bin": hex} and {"$float": name}."""
    if isinstance(value, bytes):
        return {"$bin": value.hex()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {key: readable(inner) for key, inner in value.items()}
    return [readable(inner) for inner in value] if isinstance(value, list) else value


def _row(name: str, message: Any, **more: Any) -> Row:
    return {"name": name, "message": readable(message), "hex": pack(message), **more}


def values() -> list[Row]:
    """Every value as the field `v` of a map, since a frame is always a map."""
    numbers = {f"int {value}": value for value in EDGES + LOW_EDGES} | {f"float {value}": value for value in FLOATS}
    usual = numbers | {f"text: {name}": text for name, text in TEXTS.items()} | SHAPES
    rows = [_row(name, {"v": value}) for name, value in usual.items()]
    for row in rows:  # the longest would make the file unreadable: a rule instead of a listing
        if len(row["hex"]) > 4096:
            row["message"], row["hex"] = _repeated(row["name"])
    return rows + [_unusual(name, hex_, value) for name, (hex_, value) in UNUSUAL.items()]


def _unusual(name: str, hex_: str, value: Any) -> Row:
    return {"name": name, "message": readable({"v": value}), "hex": "81a176" + hex_, "canonical": False}


def _repeated(name: str) -> tuple[Row, Row]:
    unit, head = ("c", "db00010000") if name.startswith("text") else (0, "dd00010000")
    byte = "63" if unit == "c" else "00"
    return {"v": {"$repeat": unit, "times": 65536}}, {"head": "81a176" + head, "repeat": byte, "times": 65536}


def refused() -> list[Row]:
    rows = [{"name": name, "hex": hex_, "code": "bad_frame"} for hex_, name in BAD_FRAMES.items()]
    rows += [{"name": name, "hex": hex_, "code": "too_large"} for hex_, name in TOO_LARGE.items()]
    rows.append(TOO_MANY)
    rows += [{**_row(name, message), "code": code, "names": field} for name, message, code, field in _bad_messages()]
    return rows


def files() -> dict[str, list[Row]]:
    return {
        "requests.json": [_row(name, message) for name, message in REQUESTS.items()],
        "replies.json": [_row(name, message) for name, message in REPLIES.items()],
        "values.json": values(),
        "refused.json": refused(),
    }


def written(rows: list[Row]) -> str:
    """One row a line, so that a change shows as one line in a diff."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f"[\n{lines}\n]\n"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, rows in files().items():
        (folder / name).write_text(written(rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
