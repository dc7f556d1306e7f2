"""Whole cards of every version, and the ways they come: JSON, PNG, CHARX. What makes a PNG here is not what reads it there."""

from __future__ import annotations

import base64
import copy
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.packs.cards import draft_of, read_card
from personae.packs.draft import write_pack

FIRST = {
    "name": "Mira",
    "description": "{{char}} guards the gate. She distrusts {{user}}.",
    "personality": "dry, loyal ☂",
    "scenario": "It is night, and the gate is shut.",
    "first_mes": '*She looks at {{user}}.* "Halt!"',
    "mes_example": "<START>\n{{user}}: Let me in.\n{{char}}: No.\nNot tonight.\n<START>\n{{char}}: Who goes there?\n",
}

BOOK = {
    "name": "Gate lore",
    "description": "",
    "scan_depth": 6,
    "token_budget": 300,
    "recursive_scanning": True,
    "extensions": {"vendor/book": {"x": [1, 2.5, None]}},
    "unknown_in_book": "kept",
    "entries": [
        {
            "keys": ["gate", "portcullis"],
            "content": "The gate was built by {{char}}'s grandfather.",
            "extensions": {"position": 0, "probability": 100, "useProbability": True, "depth": 4, "nested": {"deep": [{}]}},
            "enabled": True,
            "insertion_order": 100,
            "case_sensitive": False,
            "name": "the gate",
            "priority": 10,
            "id": 1,
            "comment": "",
            "selective": True,
            "secondary_keys": ["night"],
            "constant": False,
            "position": "before_char",
            "unknown_in_entry": 1.50,
        },
        {
            "keys": [],
            "content": "The king is dead.",
            "extensions": {},
            "enabled": True,
            "insertion_order": 50,
            "constant": True,
            "comment": "the king",
        },
        {"keys": ["never"], "content": "", "extensions": {}, "enabled": False, "insertion_order": 0},
    ],
}

LATER = {
    "creator_notes": "Made with love.\n\nMind the gate.",
    "system_prompt": "Write {{char}}'s next line. {{original}}",
    "post_history_instructions": "Keep it short.",
    "alternate_greetings": ["Who's there?", "", "*nods at {{user}}*"],
    "tags": ["guard", "Night Watch", ""],
    "creator": "somebody",
    "character_version": "1.2-beta",
    "extensions": {"talkativeness": "0.5", "fav": False, "depth_prompt": {"prompt": "", "depth": 4}, "chub": {"id": 12345678901234567890}},
    "character_book": BOOK,
}

NEWEST = {
    "nickname": "Mir",
    "creator_notes_multilingual": {"en": "Made with love.", "ja": "愛をこめて"},
    "source": ["https://example.org/mira", "id:7"],
    "group_only_greetings": ["All of you, halt!"],
    "creation_date": 1700000000,
    "modification_date": 0,
    "assets": [
        {"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"},
        {"type": "x_voice", "uri": "embeded://assets/other/audio/a.ogg", "name": "hm", "ext": "ogg", "unknown": None},
    ],
}


def v1() -> dict[str, Any]:
    return copy.deepcopy({**FIRST, "unknown_at_top": {"a": [1, 2]}})


def v2() -> dict[str, Any]:
    inner = {**FIRST, **LATER, "unknown_in_data": [True, None, 0.1, ""]}
    return copy.deepcopy({"spec": "chara_card_v2", "spec_version": "2.0", "data": inner, "unknown_at_top": "kept"})


def v3() -> dict[str, Any]:
    card = v2()
    for entry in card["data"]["character_book"]["entries"]:
        entry["use_regex"] = False
    card["data"] |= copy.deepcopy(NEWEST)
    return card | {"spec": "chara_card_v3", "spec_version": "3.0"}


def chunk(kind: bytes, content: bytes, crc: int | None = None) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content) if crc is None else crc)


PIXELS = chunk(b"IDAT", zlib.compress(b"\0\x80"))
HEADER = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
END = chunk(b"IEND", b"")
PICTURE = HEADER + PIXELS + END


def packed(card: Any) -> bytes:
    return base64.b64encode(json.dumps(card).encode())


def text(keyword: str, content: bytes) -> bytes:
    return chunk(b"tEXt", keyword.encode() + b"\0" + content)


def png_with(*texts: bytes) -> bytes:
    return HEADER + PIXELS + b"".join(texts) + END


def zipped(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


Imported = Callable[[Any], Path]


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    """The pack of a card, given as an object or as a file's content."""

    def imported(card: Any, name: str = "card.json") -> Path:
        path = tmp_path / name
        path.write_bytes(card if isinstance(card, bytes) else json.dumps(card).encode())
        return write_pack(draft_of(read_card(path)), tmp_path / "characters", replace=True)

    return imported
