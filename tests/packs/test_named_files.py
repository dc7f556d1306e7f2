"""The files that a manifest names: each is what it is taken for, or is told of in its own name, with everything else in one report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from personae.packs import manifest as form
from personae.packs import named_files
from personae.packs.base import BaseShapes
from personae.packs.character import PackProblem
from personae.packs.gguf import parse_header
from personae.packs.loader import examine_pack, load_character
from personae.packs.named_files import MAX_PORTRAIT_BYTES
from tests.packs.conftest import WritePack, zipped
from tests.packs.gguf_writer import gguf

SMALL = 'name = "Marta"\npersona = "You are Marta."\n'
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def errors(path: Path, base: BaseShapes | None = None) -> list[tuple[str, str]]:
    """(file, field) of each; there is no character."""
    character, problems = examine_pack(path, base)
    assert character is None
    assert all(problem.remedy for problem in problems)
    return [(problem.file, problem.field) for problem in problems if problem.is_error]


def warnings(path: Path, base: BaseShapes | None = None) -> list[PackProblem]:
    character, problems = examine_pack(path, base)
    assert character is not None, problems
    return list(problems)


# --- adapters -----------------------------------------------------------------------------------------------------


def test_each_adapter_is_told_once_where_it_is_named_first(write_pack: WritePack, adapter_bytes: bytes) -> None:
    text = """
        adapter = [{ file = "good.gguf" }, { file = "gone.gguf" }, { file = "../out.gguf" }]
        [[moods]]
        name = "a"
        adapter = { file = "bad.gguf" }
        [[moods]]
        name = "b"
        adapter = [{ file = "good.gguf" }, { file = "gone.gguf" }, { file = "bad.gguf" }]
    """
    folder = write_pack(SMALL + text, good=adapter_bytes, bad=gguf([]))
    assert errors(folder) == [
        ("character.toml", "adapter[2].file"),
        ("character.toml", "adapter[3].file"),
        ("bad.gguf", "moods[1].adapter.file"),
    ]


def test_headers_of_a_pack_are_bounded_together(write_pack: WritePack, adapter_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    named = "adapter = [{ file = 'a.gguf' }, { file = 'b.gguf' }, { file = 'c.gguf' }, { file = 'd.gguf' }]\n" + SMALL
    good = dict.fromkeys("abcd", adapter_bytes)
    assert warnings(write_pack(named, name="fits", **good)) == []
    header = parse_header(adapter_bytes, Path("a.gguf")).data_offset
    monkeypatch.setattr(named_files, "MAX_HEADERS_BYTES", 2 * header)
    folder = write_pack(named, name="beyond", **good)
    assert errors(folder) == [("c.gguf", "adapter[3].file")]


def test_adapters_that_are_refused_count_as_the_largest(write_pack: WritePack) -> None:
    moods = "".join(f"[[moods]]\nname = '{n}'\nadapter = {{ file = 'a{n}.gguf' }}\n" for n in range(20))
    found = errors(write_pack(SMALL + moods, **{f"a{n}": b"GGUF" + b"\x09" * 50 for n in range(20)}))
    assert found == [*((f"a{n}.gguf", f"moods[{n + 1}].adapter.file") for n in range(8)), ("a8.gguf", "moods[9].adapter.file")]


def test_adapter_that_a_mood_names_is_never_said_to_be_unnamed(write_pack: WritePack) -> None:
    _, problems = examine_pack(write_pack(SMALL + "[[moods]]\nname = 'a'\nadapter = { file = 'bad.gguf' }", bad=b"no"))
    assert [problem.field for problem in problems] == ["moods[1].adapter.file"]


def test_adapters_are_looked_at_though_the_manifest_is_wrong(write_pack: WritePack) -> None:
    folder = write_pack('lore_files = ["x.toml"]\nportrait = "a.png"\n[[moods]]\nadapter = { file = "bad.gguf" }', bad=b"no")
    assert set(errors(folder)) == {
        ("character.toml", "persona"),
        ("character.toml", "moods[1].name"),
        ("bad.gguf", "moods[1].adapter.file"),
        ("character.toml", "lore_files[1]"),
    }


def test_moods_alone_may_have_adapters(write_pack: WritePack, adapter_bytes: bytes) -> None:
    marta = load_character(write_pack(SMALL + '[[moods]]\nname = "a"\nadapter = { file = "x.gguf" }', x=adapter_bytes))
    assert marta.adapters == ()
    assert [part.file for part in marta.all_adapters()] == ["x.gguf"]


def test_empty_list_of_adapters_means_that_the_others_are_kept_on_purpose(write_pack: WritePack, adapter_bytes: bytes) -> None:
    assert warnings(write_pack("adapter = []\n" + SMALL, x=adapter_bytes)) == []


# --- the base -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "field"), [('architecture = "qwen2"', "architecture"), ("n_layers = 3", "n_layers"), ("n_embd = 64", "n_embd")]
)
def test_base_of_another_shape_is_refused(said: str, field: str, write_pack: WritePack, adapter_bytes: bytes, base: BaseShapes) -> None:
    here = replace(base, n_layers=2, n_embd=32)
    folder = write_pack(SMALL + f'adapter = {{ file = "x.gguf" }}\n[base]\n{said}', x=adapter_bytes)
    assert errors(folder, here) == [("character.toml", f"base.{field}")]
    assert warnings(folder) == []
    text = write_pack(SMALL + f"[base]\n{said}", name="text")
    assert warnings(text, here) == []  # no adapter, nothing that was trained on it


def test_base_of_another_hash_is_warned_of_where_hashes_are_known(write_pack: WritePack, adapter_bytes: bytes, base: BaseShapes) -> None:
    folder = write_pack(SMALL + f'adapter = {{ file = "x.gguf" }}\n[base]\nhash = "{"AB" * 32}"', x=adapter_bytes)
    assert warnings(folder, base) == []
    assert warnings(folder, replace(base, hashes=frozenset({"cd" * 32, "ab" * 32}))) == []
    (problem,) = warnings(folder, replace(base, hashes=frozenset({"cd" * 32})))
    assert (problem.field, problem.is_error) == ("base.hash", False)
    assert "Tiny Base" in problem.problem


def test_dimensions_that_are_not_known_are_not_compared(write_pack: WritePack, adapter_bytes: bytes, base: BaseShapes) -> None:
    assert (base.n_layers, base.n_embd) == (0, 0)
    assert warnings(write_pack(SMALL + 'adapter = { file = "x.gguf" }\n[base]\nn_layers = 30\nn_embd = 576', x=adapter_bytes), base) == []


# --- lore ---------------------------------------------------------------------------------------------------------


def test_lore_of_files_comes_after_that_of_the_manifest_in_order(write_pack: WritePack) -> None:
    folder = write_pack('lore_files = ["b.toml", "a.toml", "b.toml"]\n' + SMALL + '[[lore]]\ntext = "one"')
    (folder / "a.toml").write_text('[[lore]]\ntext = "four"')
    (folder / "b.toml").write_bytes(b'\xef\xbb\xbf[[lore]]\r\ntext = "two"\r\n[[lore]]\r\ntext = "three"')
    assert [entry.text for entry in load_character(folder).lore] == ["one", "two", "three", "four"]


def test_problems_of_a_lore_file_are_told_with_its_name(write_pack: WritePack) -> None:
    folder = write_pack('lore_files = ["a.toml", "b.toml", "c.toml", "../d.toml", "e.toml"]\n' + SMALL)
    (folder / "a.toml").write_text('[[lore]]\ntxt = "x"\n[[lore]]\ntext = "y"\nregex = true\nkeys = ["("]')
    (folder / "b.toml").write_text("[[lore")
    (folder / "c.toml").write_bytes(b"#" * (form.MAX_LORE_FILE_BYTES + 1))
    (folder / "e.toml").write_text('mood = "x"\n[[lore]]\ntext = "fine"')
    assert errors(folder) == [
        ("a.toml", "lore[1].text"),
        ("a.toml", "lore[2].keys[1]"),
        ("b.toml", ""),
        ("character.toml", "lore_files[3]"),
        ("character.toml", "lore_files[4]"),
    ]
    _, problems = examine_pack(folder)
    assert [(problem.file, problem.field) for problem in problems if not problem.is_error] == [
        ("a.toml", "lore[1].txt"),
        ("e.toml", "mood"),
    ]


def test_lore_and_patterns_of_all_files_together_are_bounded(write_pack: WritePack) -> None:
    folder = write_pack('lore_files = ["a.toml", "b.toml"]\n' + SMALL)
    (folder / "a.toml").write_text('[[lore]]\ntext = "x"\n' * 1000)
    (folder / "b.toml").write_text('[[lore]]\ntext = "x"\n' * 24)
    assert len(load_character(folder).lore) == form.MAX_LORE
    (folder / "b.toml").write_text('[[lore]]\ntext = "x"\n' * 25)
    assert errors(folder) == [("character.toml", "lore_files")]
    for name in ("a", "b"):
        (folder / f"{name}.toml").write_text(f"[[lore]]\ntext = 'x'\nregex = true\nkeys = {['a|b'] * 64}\n" * 2 + '[[lore]]\ntext = "y"')
    assert load_character(folder).lore
    (folder / "b.toml").write_text(f"[[lore]]\ntext = 'x'\nregex = true\nkeys = {['a|b'] * 64}\nsecondary = ['c']\n" * 2)
    assert errors(folder) == [("character.toml", "lore")]


def test_lore_files_are_bounded_together(write_pack: WritePack) -> None:
    folder = write_pack('lore_files = ["a.toml", "b.toml", "c.toml"]\n' + SMALL)
    for name in "ab":
        (folder / f"{name}.toml").write_bytes(b"#" * (form.MAX_LORE_BYTES // 2))
    (folder / "c.toml").write_bytes(b"")
    assert load_character(folder)
    (folder / "c.toml").write_bytes(b"#")
    assert errors(folder) == [("character.toml", "lore_files")]


def test_patterns_of_all_files_together_are_tried_no_more_often_than_a_pack_may_have_some(
    write_pack: WritePack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(form.patterns, "compiled", lambda pattern, *, case_sensitive: tried.append(pattern))
    folder = write_pack(f"lore_files = {[f'{n}.toml' for n in range(16)]}\n" + SMALL)
    for n in range(16):
        (folder / f"{n}.toml").write_text(f"[[lore]]\ntext = 'x'\nregex = true\nkeys = {['a|b'] * 64}\n" * 2)
    assert errors(folder) == [("character.toml", "lore")]
    assert len(tried) == form.MAX_REGEX_KEYS


def test_classes_in_the_patterns_of_a_pack_are_bounded_together(write_pack: WritePack) -> None:
    lore = "[[lore]]\ntext = 'x'\nregex = true\nkeys = ['" + r"[\pL\PL]" * 4 + "']\n"
    folder = write_pack("lore_files = ['a.toml']\n" + SMALL + lore * 2)
    (folder / "a.toml").write_text(lore * 2)
    assert len(load_character(folder).lore) == 4
    (folder / "a.toml").write_text(lore * 3)
    assert errors(folder) == [("character.toml", "lore")]


def test_lore_file_in_an_archive_is_read_and_one_that_lies_about_its_size_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.persona"
    path.write_bytes(zipped({"character.toml": 'lore_files = ["a.toml"]\n' + SMALL, "a.toml": '[[lore]]\ntext = "x"'}))
    assert [entry.text for entry in load_character(path).lore] == ["x"]
    path.write_bytes(zipped({"character.toml": 'lore_files = ["a.toml"]\n' + SMALL, "a.toml": b"#" * 5_000_000}))
    assert errors(path) == [("", "")]  # five megabytes out of five thousand bytes


# --- portrait -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [PNG, b"\xff\xd8\xff\xe0" + b"\0" * 20, b"RIFF\0\0\0\0WEBPVP8 "])
def test_portrait_of_a_known_kind_is_the_characters(head: bytes, write_pack: WritePack) -> None:
    folder = write_pack('portrait = "face.png"\n' + SMALL)
    (folder / "face.png").write_bytes(head)
    assert load_character(folder).portrait == "face.png"
    assert warnings(folder) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.png", b"", "not in the pack"),
        ("../face.png", b"", "leads out"),
        ("face.png", b"", "no PNG"),
        ("face.png", b"<svg/>", "no PNG"),
        ("face.png", PNG.ljust(MAX_PORTRAIT_BYTES + 1), "more than"),
    ],
)
def test_portrait_that_cannot_be_used_is_warned_of_and_left_out(name: str, content: bytes, said: str, write_pack: WritePack) -> None:
    folder = write_pack(f'portrait = "{name}"\n' + SMALL)
    (folder / "face.png").write_bytes(content)
    (problem,) = warnings(folder)
    assert (problem.file, problem.field) == ("character.toml", "portrait")
    assert said in problem.problem
    assert load_character(folder).portrait == ""
