"""A safetensors file from a stranger is read as it was written, or refused by name; no header makes us crash or take much memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

from personae.errors import AskedWrong
from personae.packs.peft.tensors import MAX_HEADER_BYTES, MAX_TENSORS, read_tensors, values
from tests.packs.peft.saved import Array, bf16, safetensors, whole, with_header


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def code_of(content: bytes) -> str:
    with pytest.raises(AskedWrong) as refusal:
        read_tensors(content, "pirate")
    assert "pirate" in refusal.value.message
    assert refusal.value.hint
    assert len(refusal.value.message) < 500
    return refusal.value.code


def test_all_types_are_read_as_stored() -> None:
    numbers = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    written: dict[str, Array] = {"c": numbers, "a": numbers.astype(np.float16), "b": bf16(numbers)}
    found = read_tensors(safetensors(written), "pirate")
    assert list(found) == ["a", "b", "c"]
    for name, array in written.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    assert np.array_equal(values(found["c"]), numbers)
    assert np.abs(values(found["b"]) - numbers).max() < 0.03


WHOLE = entry()
DEEP = b"[" * 200_000
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "truncated"),
    "less than a length": (b"\1\0\0", "truncated"),
    "a header of 2^63 bytes": (with_header({"a": WHOLE}, n=2**63), "unreadable"),
    "a header past the limit": (with_header({"a": WHOLE}, n=MAX_HEADER_BYTES + 1), "unreadable"),
    "a header past the end": (with_header({"a": WHOLE}, n=100_000), "truncated"),
    "weights cut short": (with_header({"a": WHOLE}, b"\0" * 3), "truncated"),
    "weights to the end of the world": (with_header({"a": entry(offsets=(0, 2**64 - 1))}), "truncated"),
    "weights past that": (with_header({"a": entry(offsets=(0, 10**30))}), "truncated"),
    "bytes left over": (with_header({"a": WHOLE}, b"\0" * 8), "unreadable"),
    "an empty header": (with_header(b""), "unreadable"),
    "half a header": (with_header(b"{"), "unreadable"),
    "a list": (with_header([]), "unreadable"),
    "no text": (with_header(b'{"\xff": {}}'), "unreadable"),
    "deep": (with_header(b'{"a":' + DEEP), "unreadable"),
    "deep metadata": (with_header(b'{"__metadata__":' + b'{"a":' * 100_000), "unreadable"),
    "metadata of numbers": (with_header({"__metadata__": {"a": 1}, "a": WHOLE}, b"\0" * 4), "unreadable"),
    "a hole": (with_header({"a": entry(offsets=(4, 8))}, b"\0" * 8), "unreadable"),
    "an overlap": (with_header({"a": WHOLE, "b": WHOLE}, b"\0" * 4), "unreadable"),
    "backwards": (with_header({"a": entry(offsets=(4, 0))}, b"\0" * 4), "unreadable"),
    "a negative place": (with_header({"a": entry(offsets=(-4, 0))}, b"\0" * 4), "unreadable"),
    "places that are no numbers": (with_header({"a": entry(offsets=("0", "4"))}, b"\0" * 4), "unreadable"),
    "one place": (with_header({"a": entry(offsets=(4,))}, b"\0" * 4), "unreadable"),
    "no places": (with_header({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4), "unreadable"),
    "a shape below zero": (with_header({"a": entry(shape=(-1,))}, b"\0" * 4), "unreadable"),
    "a shape that overflows": (with_header({"a": entry(shape=(2**62, 2**62))}, b"\0" * 4), "unreadable"),
    "a shape for other bytes": (with_header({"a": entry(shape=(2,))}, b"\0" * 4), "unreadable"),
    "a broken shape": (with_header({"a": entry(shape=(1.5,))}, b"\0" * 4), "unreadable"),
    "more dimensions than there are": (with_header({"a": entry(shape=(1,) * 100)}, b"\0" * 4), "unreadable"),
    "a type nobody knows": (with_header({"a": entry(dtype="X9")}, b"\0" * 4), "unreadable"),
    "a type that is a number": (with_header({"a": entry(dtype=0)}, b"\0" * 4), "unreadable"),
    "a name twice": (with_header(b'{"a":%b,"a":%b}' % ((json.dumps(WHOLE).encode(),) * 2), b"\0" * 4), "unreadable"),
    "too many names": (with_header({str(i): entry(shape=(0,), offsets=(0, 0)) for i in range(MAX_TENSORS + 1)}), "unreadable"),
    "float64": (with_header({"a": entry("F64", (1,), (0, 8))}, b"\0" * 8), "unsupported"),
    "integers": (with_header({"a": entry("I8", (4,))}, b"\0" * 4), "unsupported"),
    "less than a byte": (with_header({"a": entry("F4", (8,))}, b"\0" * 4), "unsupported"),
    "eight bits": (with_header({"a": entry("F8_E4M3", (4,))}, b"\0" * 4), "unsupported"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_forged_file_is_refused_by_name(kind: str) -> None:
    content, code = HOSTILE[kind]
    assert code_of(content) == f"peft_{code}"


def test_a_file_cut_anywhere_is_truncated() -> None:
    content = safetensors(whole())
    for length in range(0, len(content), 97):
        assert code_of(content[:length]) == "peft_truncated", length


def test_a_header_full_of_nothing_takes_little_memory() -> None:
    filled = b'{"a":[' + b"{}," * (MAX_HEADER_BYTES // 3 - 10) + b"{}]}"
    tracemalloc.start()
    try:
        assert code_of(with_header(filled)) == "peft_unreadable"
        assert tracemalloc.get_traced_memory()[1] < 40 * MAX_HEADER_BYTES
    finally:
        tracemalloc.stop()


def test_a_mutated_file_is_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(4)
    content = safetensors(whole())
    n_header = int.from_bytes(content[:8], "little")
    read = 0
    for _ in range(3000):
        mutant = bytearray(content)
        place = chance.randrange(8 + n_header)
        mutant[place] = chance.choice(b'0123456789{}[]",:-eE\\u \0\xff')
        try:
            read_tensors(bytes(mutant), "mutant")
            read += 1
        except AskedWrong:
            pass
    assert 0 < read < 3000
