"""The header reader against right, wrong and hostile files."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.packs.gguf import ADAPTER_LIMITS, MODEL_LIMITS, Limits, SkippedArray, parse_header, read_header
from tests.packs.gguf_writer import Tensor, gguf, lora_pairs, number_array, pair, pair_of, string, text_array, text_pair

WHERE = Path("some.gguf")


def refused(content: bytes, limits: Limits = MODEL_LIMITS) -> AskedWrong:
    with pytest.raises(AskedWrong) as caught:
        parse_header(content, WHERE, limits)
    assert "some.gguf" in caught.value.message
    assert caught.value.hint
    return caught.value


def test_metadata_of_every_kind_is_read() -> None:
    header = parse_header(
        gguf([text_pair("a", "ünï"), pair("b", "u32", 7), pair("c", "f32", 0.5), pair("d", "bool", True), pair("e", "u64", 2**63)]), WHERE
    )
    assert header.metadata == {"a": "ünï", "b": 7, "c": 0.5, "d": True, "e": 2**63}
    assert header.kinds == {"a": "string", "b": "u32", "c": "f32", "d": "bool", "e": "u64"}
    assert header.text("a") == "ünï"
    assert header.text("b") is None
    assert header.text("z") is None


def test_arrays_are_stepped_over_and_keep_their_length() -> None:
    words = [f"word{n}" for n in range(1000)]
    header = parse_header(gguf([text_array("t", words), number_array("n", range(70)), text_pair("after", "yes")]), WHERE)
    assert header.metadata == {"t": SkippedArray("string", 1000), "n": SkippedArray("u32", 70), "after": "yes"}


def test_tensors_tell_shape_type_and_place_in_the_file() -> None:
    content = gguf(
        [], [Tensor("first", (2, 3), b"x" * 12), Tensor("second", (32, 2), b"y" * 68, "q8_0"), Tensor("third", (4,), b"z" * 16, "f32")]
    )
    header = parse_header(content, WHERE)
    assert [(name, tensor.dims, tensor.dtype) for name, tensor in header.tensors.items()] == [
        ("first", (2, 3), "f16"),
        ("second", (32, 2), "q8_0"),
        ("third", (4,), "f32"),
    ]
    for name, letter in (("first", b"x"), ("second", b"y"), ("third", b"z")):
        tensor = header.tensors[name]
        assert content[tensor.offset : tensor.offset + tensor.n_bytes] == letter * tensor.n_bytes


def test_alignment_of_the_file_is_followed() -> None:
    content = gguf([pair("general.alignment", "u32", 64)], [Tensor("one", (2,), b"1" * 4), Tensor("two", (2,), b"2" * 4)], alignment=64)
    header = parse_header(content, WHERE)
    assert header.data_offset % 64 == 0
    assert content[header.tensors["two"].offset :][:4] == b"2222"


def test_the_header_of_the_real_model_is_read_in_a_tenth_of_a_second(real_base_path: Path) -> None:
    read_header(real_base_path)  # the disk's share is paid here
    took = []
    for _ in range(5):
        start = time.perf_counter()
        header = read_header(real_base_path)
        took.append(time.perf_counter() - start)
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray("string", 49152)
    assert len(header.tensors) == 272
    assert min(took) < 0.1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gguf([], magic=b"PK\3\4"), "another kind"),
        (gguf([], version=1), "version 1"),
        (gguf([], version=4), "version 4"),
        (gguf([], version=0x03000000), "big-endian"),
        (gguf([], n_tensors=2**63), "tensors"),
        (gguf([], n_pairs=2**63), "metadata keys"),
        (gguf([string(b"\xff\xfe") + struct.pack("<IB", 0, 1)]), "UTF-8"),
        (gguf([text_pair("k" * 2000, "v")]), "bytes in a metadata key"),
        (gguf([string("k") + struct.pack("<IQ", 8, 2**40)]), "metadata value 'k'"),
        (gguf([text_pair("k", "1"), text_pair("k", "2")]), "twice"),
        (gguf([string("k") + struct.pack("<I", 77)]), "unknown type 77"),
        (gguf([string("k") + struct.pack("<IIQ", 9, 9, 1)]), "unknown type 9"),
        (gguf([string("k") + struct.pack("<IIQ", 9, 4, 2**62)]), "elements in metadata array 'k'"),
        (gguf([pair("general.alignment", "u32", 0)]), "general.alignment"),
        (gguf([pair("general.alignment", "u32", 48)]), "general.alignment"),
        (gguf([pair("general.alignment", "u32", 2**31)]), "general.alignment"),
        (gguf([pair("general.alignment", "u64", 32)]), "general.alignment"),
        (gguf([text_pair("general.alignment", "32")]), "general.alignment"),
        (gguf([], [Tensor("t" * 64, (2,), b"1234")]), "bytes in a tensor name"),
        (gguf([], [Tensor("t", (2,), b"1234"), Tensor("t", (2,), b"1234")]), "twice"),
        (gguf([], [Tensor("t", (1, 1, 1, 1, 1), b"12")]), "5 dimensions"),
        (gguf([], [Tensor("t", (), b"12")]), "0 dimensions"),
        (gguf([], [Tensor("t", (2,), b"1234", 4)]), "weight type 4"),
        (gguf([], [Tensor("t", (33,), b"1" * 68, "q8_0")]), "multiple of 32"),
        (gguf([], [Tensor("t", (2,), b"1234", offset=32)]), "should lie at 0"),
        (gguf([], [Tensor("t", (2,), b"1234", offset=2**64 - 32)]), "should lie at 0"),
        (gguf([], [Tensor("t", (2,), b"1234"), Tensor("u", (2,), b"1234", offset=0)]), "should lie at 32"),
    ],
)
def test_malformed_file_is_unreadable_and_says_why(content: bytes, said: str) -> None:
    fault = refused(content)
    assert fault.code == "gguf_unreadable"
    assert said in fault.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGU",
        gguf([], n_tensors=3),
        gguf([], n_pairs=3),
        gguf([text_array("t", ["word"] * 9)])[:60],
        gguf([string("k") + struct.pack("<IIQ", 9, 8, 1000)]),
        gguf([string("k") + struct.pack("<IIQQ", 9, 8, 2, 2**64 - 1)]),
        gguf([string("k") + struct.pack("<IIQ", 9, 4, 1_000_000)]),
        gguf([], [Tensor("t", (2**32, 2**32, 2**32, 2**32), b"1234")]),
        gguf([], [Tensor("t", (1024, 1024), b"1234")]),
    ],
)
def test_file_that_ends_too_early_is_truncated(content: bytes) -> None:
    assert refused(content).code == "gguf_truncated"


def test_no_cut_of_a_file_is_taken_for_a_whole_one(adapter_bytes: bytes) -> None:
    whole = parse_header(adapter_bytes, WHERE)
    last = list(whole.tensors.values())[-1]
    for length in range(last.offset + last.n_bytes):
        assert refused(adapter_bytes[:length]).code == "gguf_truncated", length


def test_forged_lengths_allocate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "forged.gguf"
    content = gguf([string("k") + struct.pack("<IIQ", 9, 4, 16_000_000)])
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(AskedWrong):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000  # two chunks of reading; the forged array would take 64 MB


def test_header_beyond_its_limit_is_refused_although_the_file_holds_it() -> None:
    fault = refused(gguf([text_array("t", [""] * 200)]), Limits(header_bytes=1000))
    assert fault.code == "gguf_unreadable"
    assert "larger than 1000 bytes" in fault.message


def test_millions_of_empty_strings_end_in_bounded_time(tmp_path: Path) -> None:
    """The slowest header the adapter limits let through to the end: a quarter of a million strings of no length."""
    path = tmp_path / "slow.gguf"
    n = 3_000_000
    path.write_bytes(gguf([string("k") + struct.pack("<IIQ", 9, 8, n) + b"\0" * 8 * n]))
    with pytest.raises(AskedWrong, match="larger than"):
        read_header(path, ADAPTER_LIMITS)


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AskedWrong) as caught:
        read_header(tmp_path / "nowhere" / "x.gguf")
    assert caught.value.code == "gguf_missing"


def test_folder_pipe_and_impossible_path_are_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("a\0b")):
        with pytest.raises(AskedWrong) as caught:
            read_header(path)
        assert caught.value.code == "gguf_unreadable"


def test_path_with_spaces_and_other_scripts_is_read(tmp_path: Path, adapter_bytes: bytes) -> None:
    path = tmp_path / "Küche des Wirts – 宿屋" / "die Stimme ñ.gguf"
    path.parent.mkdir()
    path.write_bytes(adapter_bytes)
    assert read_header(path).tensors


SEED = gguf(
    [*lora_pairs(), text_array("words", ["one", "two", ""]), number_array("numbers", [1, 2, 3])],
    pair_of("blk.0.attn_q.weight", 32, 32),
)


@settings(derandomize=True, max_examples=400, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, len(SEED)))
def test_damaged_file_is_read_or_refused_and_nothing_else(damage: list[tuple[int, int]], length: int) -> None:
    content = bytearray(SEED)
    for place, value in damage:
        content[place] = value
    if length > 700:
        length = len(content)
    code, ends = "gguf_unreadable", []
    try:
        header = parse_header(bytes(content[:length]), WHERE, ADAPTER_LIMITS)
        ends = [tensor.offset + tensor.n_bytes for tensor in header.tensors.values()]
    except AskedWrong as fault:
        code = fault.code
    assert code in {"gguf_unreadable", "gguf_truncated"}
    assert all(end <= length for end in ends)


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=200))
def test_noise_behind_the_magic_is_refused(noise: bytes) -> None:
    assert refused(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + noise).code in {"gguf_unreadable", "gguf_truncated"}


# --- files that are laid out alike ------------------------------------------------------------------------------------


def lora_of(value: bytes, name: str = "one") -> bytes:
    pairs = [text_pair("general.architecture", "llama"), text_pair("general.name", name)]
    return gguf(pairs, [Tensor("a", (4, 2), value * 16), Tensor("b", (2, 4), value * 16)])


def test_files_that_are_laid_out_alike_have_what_each_says_of_itself() -> None:
    one, other = (parse_header(lora_of(b"1", name), Path(f"{name}.gguf")) for name in ("one", "two"))
    assert other.tensors == one.tensors
    assert [header.text("general.name") for header in (one, other)] == ["one", "two"]
    assert [header.path.name for header in (one, other)] == ["one.gguf", "two.gguf"]


@pytest.mark.parametrize("n", range(17, 40))  # sixteen bytes behind the last tensor are padding
def test_file_that_is_cut_is_refused_though_one_like_it_was_whole(n: int) -> None:
    whole = lora_of(b"1")
    parse_header(whole, Path("whole.gguf"))
    with pytest.raises(AskedWrong) as refused:
        parse_header(whole[:-n], Path("cut.gguf"))
    assert refused.value.code == "gguf_truncated"
    assert "cut.gguf" in refused.value.message


def test_table_that_differs_in_one_byte_is_read_for_itself() -> None:
    whole = lora_of(b"1")
    parse_header(whole, Path("whole.gguf"))
    at = whole.index(b"\1\0\0\0\0\0\0\0b")  # the name of the second tensor
    forged = whole[: at + 8] + b"a" + whole[at + 9 :]
    with pytest.raises(AskedWrong, match="twice"):
        parse_header(forged, Path("forged.gguf"))
