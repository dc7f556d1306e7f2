"""Something of each kind that is right: where fuzzing begins. Small, so that a spoiled byte is likely to be one that matters."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from functools import cache

from tests.packs.conftest import BASE_TENSORS
from tests.packs.gguf_writer import Tensor, gguf, lora_pairs, pair_of, text_pair

MANIFEST = """\
manifest = 1
name = "Rosa"
persona = "You are Rosa, who keeps the inn."
style = "Warm and short."
greeting = "Come in!"
greetings = ["Who is there?"]
fallback = ["One moment."]
stop = ["\\n\\n"]
tags = ["inn"]

[[examples]]
player = "A room?"
reply = "Two silver."

[[lore]]
name = "the mill"
keys = ["mill", "miller"]
secondary = ["fire"]
text = "The mill burnt down."
priority = 2
order = 1

[[lore]]
keys = ["drag(on|ons)"]
regex = true
text = "A dragon lives in the hills."

[lore_rules]
tokens = 200
scan_lines = 4
recursion = 1

[[moods]]
name = "drunk"
style = "Slurred."

[sampling]
temperature = 0.7

[limits]
max_tokens = 80

[base]
architecture = "llama"
n_layers = 2
"""

CARD = {
    "spec": "chara_card_v3",
    "spec_version": "3.0",
    "data": {
        "name": "Rosa",
        "description": "{{char}} keeps the inn.",
        "personality": "warm",
        "scenario": "{{user}} comes in.",
        "first_mes": "Come in, {{user}}!",
        "mes_example": "<START>\n{{user}}: A room?\n{{char}}: Two silver.",
        "creator_notes": "",
        "system_prompt": "",
        "post_history_instructions": "",
        "alternate_greetings": ["Who is there?"],
        "tags": ["inn"],
        "creator": "us",
        "character_version": "1",
        "extensions": {"talkativeness": 0.5},
        "group_only_greetings": [],
        "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
        "character_book": {
            "scan_depth": 4,
            "token_budget": 200,
            "recursive_scanning": True,
            "extensions": {},
            "entries": [
                {
                    "keys": ["/mill(er)?/i"],
                    "secondary_keys": ["fire"],
                    "content": "The mill burnt down.",
                    "enabled": True,
                    "insertion_order": 1,
                    "case_sensitive": False,
                    "constant": False,
                    "priority": 2,
                    "use_regex": True,
                    "extensions": {},
                }
            ],
        },
    },
}
CARD_V1 = {key: CARD["data"][key] for key in ("name", "description", "personality", "scenario", "first_mes", "mes_example")}  # type: ignore[index]
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none", "base_model_name_or_path": "tiny"}


@cache
def seeds_of(name: str) -> tuple[bytes, ...]:
    """For the target of that name."""
    makers = {"manifest": _manifests, "archive": _archives, "card": _cards, "gguf": _headers, "adapter": _adapters, "peft": _pefts}
    return makers[name]()


def _manifests() -> tuple[bytes, ...]:
    return MANIFEST.encode(), b'\xef\xbb\xbfpersona = "You are a guard."\n', b'persona = "x"\n[adapter]\nfile = "a.gguf"\nscale = 0.5\n'


def _archives() -> tuple[bytes, ...]:
    files = {"character.toml": MANIFEST.encode(), "lines.jsonl": b'{"player": "Hi", "reply": "Hello"}\n'}
    voiced = {"character.toml": b'persona = "x"\n[adapter]\nfile = "a.gguf"\n', "a.gguf": _adapters()[0]}
    in_folder = {f"rosa/{name}": content for name, content in files.items()}
    return _zipped(files), _zipped(voiced, zipfile.ZIP_STORED), _zipped(in_folder)


def _zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, method)
    return target.getvalue()


def _cards() -> tuple[bytes, ...]:
    v2 = CARD | {"spec": "chara_card_v2", "spec_version": "2.0"}
    written = [json.dumps(card).encode() for card in (CARD, v2, CARD_V1)]
    charx = _zipped({"card.json": written[0], "assets/icon/main.png": _png([])})
    texts = [(b"tEXt", b"chara\0" + base64.b64encode(written[1])), (b"tEXt", b"ccv3\0" + base64.b64encode(written[0]))]
    packed = [(b"zTXt", b"chara\0\0" + zlib.compress(base64.b64encode(written[1])))]
    return (*written, charx, _png(texts), _png(packed))


def _png(texts: list[tuple[bytes, bytes]]) -> bytes:
    """A picture of one pixel."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), *texts, (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _headers() -> tuple[bytes, ...]:
    return (*_adapters(), base_gguf())


def _adapters() -> tuple[bytes, ...]:
    both = pair_of("blk.0.attn_q.weight", 32, 32) + pair_of("blk.0.attn_k.weight", 32, 16)
    return gguf(lora_pairs(), both), gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 32, 32))


@cache
def base_gguf() -> bytes:
    """The header, and weights of zeros, of the base that `_adapters` are for."""
    tensors = []
    for name, dims in BASE_TENSORS.items():
        n = 1
        for dim in dims:
            n *= dim
        tensors.append(Tensor(name, dims, b"\0" * (2 * n)))
    return gguf([text_pair("general.architecture", "llama"), text_pair("general.name", "Tiny Base")], tensors)


def _pefts() -> tuple[bytes, ...]:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{module}.lora_A.weight": (2, 4), f"{module}.lora_B.weight": (4, 2)}
    plain, fancy = CONFIG, CONFIG | {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 8}}
    return _peft(plain, shapes, "F32"), _peft(fancy, shapes, "F16"), _peft(plain, shapes, "BF16")


def _peft(config: dict[str, object], shapes: dict[str, tuple[int, int]], dtype: str) -> bytes:
    size = 4 if dtype == "F32" else 2
    value = {"F32": struct.pack("<f", 0.5), "F16": b"\x00\x38", "BF16": b"\x00\x3f"}[dtype]
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (rows, columns) in shapes.items():
        head[name] = {"dtype": dtype, "shape": [rows, columns], "data_offsets": [offset, offset + rows * columns * size]}
        offset += rows * columns * size
    raw = json.dumps(head).encode()
    tensors = struct.pack("<Q", len(raw)) + raw + value * (offset // size)
    written = json.dumps(config).encode()
    return struct.pack("<I", len(written)) + written + tensors
