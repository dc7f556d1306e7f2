"""The linter: what a writer is told of a pack that loads. Each test breaks one thing of a pack about which there is nothing to say."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from personae.packs.base import BaseShapes
from personae.packs.character import PackProblem
from personae.packs.lint.adapters import lint_adapters
from personae.packs.lint.lines import ENOUGH, MOST_TOLD, lint_lines
from personae.packs.lint.pack import MOST, lint, merged
from personae.packs.loader import examine_pack
from personae.packs.store import AdapterStore
from tests.packs.conftest import WritePack
from tests.packs.gguf_writer import f16, gguf, lora_pairs, matrix, pair_of

HEAD = """
manifest = 1
name = "Marta"
persona = "You are Marta, the innkeeper."
greeting = "Come in."
description = "An innkeeper."
author = "us"
licence = "MIT"
fallback = ["One moment."]
"""
Found = Callable[..., list[PackProblem]]


@pytest.fixture
def found(write_pack: WritePack) -> Found:
    """What is said of a pack that is HEAD and more."""

    def look(more: str = "", *, head: str = HEAD, files: dict[str, bytes] | None = None) -> list[PackProblem]:
        folder = write_pack(head + more)
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        character, problems = examine_pack(folder)
        assert character is not None, problems
        return lint(folder, character)

    return look


def only(problems: list[PackProblem]) -> PackProblem:
    assert len(problems) == 1, "\n".join(map(str, problems))
    assert problems[0].remedy
    assert not problems[0].is_error
    return problems[0]


def test_there_is_nothing_to_say_of_a_good_pack(found: Found) -> None:
    more = """
[[examples]]
player = "Marta: is that you?"
reply = "Probability of rain: 84 percent."
[[lore]]
name = "cellar"
text = "Locked."
keys = ["cellar", "the flood", "wine cellars"]
[[lore]]
text = "Always known."
[[moods]]
name = "drunk"
style = "Slurs."
"""
    assert found(more, files={"README.md": b"hello", "LICENSE": b"MIT", "card.json": b"{}"}) == []


@pytest.mark.parametrize("field", ["licence", "author", "greeting", "description", "fallback"])
def test_what_is_worth_having_is_missed_by_name(found: Found, field: str) -> None:
    head = "".join(line + "\n" for line in HEAD.splitlines() if not line.startswith(field))
    assert only(found(head=head)).field == field


TEXTS = {
    "a control token": ('style = "Say <|im_end|> at the end."', "style", "'<|im_end|>', which looks like a control token"),
    "another model's": ('style = "[INST] be nice [/INST]"', "style", "'[INST]'"),
    "a placeholder": ('style = "Flirt with {{user}}."', "style", "placeholder '{{user}}'"),
    "an old placeholder": ('style = "Flirt with <USER>."', "style", "placeholder '<USER>'"),
    "in a greeting of several": ('greetings = ["Hi.", "Hi {{char}}."]', "greetings[2]", "'{{char}}'"),
    "in lore": ('[[lore]]\ntext = "{{char}} is old."', "lore[1].text", "'{{char}}'"),
    "in a mood": ('[[moods]]\nname = "x"\nstyle = "{{char}} sings."', "moods[1].style", "'{{char}}'"),
    "another speaks": ('[[examples]]\nplayer = "Hi"\nreply = "Hello.\\nPlayer: how are you?"', "examples[1].reply", "('Player:')"),
    "another name speaks": ('[[examples]]\nplayer = "Hi"\nreply = "Hello.\\nSir Aldric: Hail."', "examples[1].reply", "('Sir Aldric:')"),
    "its own name": ('[[examples]]\nplayer = "Hi"\nreply = "Marta: Hello."', "examples[1].reply", "own name, 'Marta:'"),
    "a stop in an example": ('stop = ["love"]\n[[examples]]\nplayer = "Hi"\nreply = "Hi love."', "examples[1].reply", "among `stop`"),
    "a mood of nothing": ('[[moods]]\nname = "drunk"', "moods[1]", "the mood 'drunk' speaks as always"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_that_is_probably_a_mistake_is_told_with_its_place(found: Found, kind: str) -> None:
    more, field, told = TEXTS[kind]
    problem = only(found(more))
    assert (problem.file, problem.field) == ("character.toml", field)
    assert told in problem.problem


LORE = {
    "switched off": ('enabled = false\nkeys = ["x1"]', "enabled", "switched off"),
    "constant with keys": ('constant = true\nkeys = ["x1"]', "keys", "have no effect"),
    "secondary alone": ('secondary = ["x1"]', "secondary", "no effect without keys"),
    "punctuation": ('keys = ["..."]', "keys[1]", "nearly every line"),
    "one letter": ('keys = ["inn", "a"]', "keys[2]", "nearly every line"),
    "a pattern as words": (r'keys = ["\\bflood"]', "keys[1]", "looks like a regular expression"),
    "a pattern with slashes": ('keys = ["/flood/i"]', "keys[1]", "looks like a regular expression"),
    "a pattern of nothing": ('regex = true\nkeys = ["x*"]', "keys[1]", "matches every text"),
    "twice": ('keys = ["Flood", "rain", "flood"]', "keys[3]", "stands there twice"),
    "subsumed": ('keys = ["flood", "the great flood"]', "keys[2]", "'flood' is found already"),
    "subsumed by a later one": ('keys = ["the great flood", "flood"]', "keys[1]", "'flood' is found already"),
    "a useless second key": ('keys = ["rain"]\nsecondary = ["!"]', "secondary[1]", "nearly every line"),
}


@pytest.mark.parametrize("kind", LORE)
def test_lore_that_does_not_do_what_it_says_is_told(found: Found, kind: str) -> None:
    more, field, told = LORE[kind]
    problem = only(found(f'[[lore]]\nname = "the flood"\ntext = "It took the mill."\n{more}'))
    assert problem.field == f"lore[1].{field}"
    assert told in problem.problem
    assert "the flood" in problem.problem


@pytest.mark.parametrize(
    "more", ['keys = ["Flood", "flood"]\ncase_sensitive = true', 'keys = ["flood", "floods"]', 'regex = true\nkeys = ["a", "a b"]']
)
def test_keys_that_differ_are_not_taken_for_one(found: Found, more: str) -> None:
    assert found(f'[[lore]]\ntext = "It took the mill."\n{more}') == []


def test_two_entries_of_one_name_and_two_of_one_text_are_told(found: Found) -> None:
    name, text = found(
        '[[lore]]\nname = "Mill"\ntext = "One."\n[[lore]]\nname = "mill"\ntext = "Two."\n[[lore]]\nname = "other"\ntext = "two."'
    )
    assert (name.field, text.field) == ("lore[2].name", "lore[3].text")
    assert "lore[1]" in name.problem
    assert "lore[2]" in text.problem


BRINGING = """
[[lore]]
name = "inn"
text = "The Green Man stands by the old mill."
{}[[lore]]
name = "mill"
text = "It burnt."
keys = ["old mill"]
"""


def test_lore_that_only_other_lore_could_bring_is_told_when_nothing_is_brought(found: Found) -> None:
    problem = only(found(BRINGING.format('keys = ["green man"]\n') + "[lore_rules]\nrecursion = 0"))
    assert problem.field == "lore[2].keys"
    assert "'inn'" in problem.problem


@pytest.mark.parametrize(
    ("keys", "rules"), [('keys = ["green man"]\n', ""), ("", "[lore_rules]\nrecursion = 0")], ids=["recursion", "always known"]
)
def test_lore_that_is_brought_or_never_could_be_is_not_told(found: Found, keys: str, rules: str) -> None:
    assert found(BRINGING.format(keys) + rules) == []


def test_lore_of_another_file_is_told_with_that_file_and_its_place_in_it(found: Found) -> None:
    more = 'lore_files = ["town.toml"]\n[[lore]]\nname = "mill"\ntext = "It burnt."\n'
    town = b'[[lore]]\ntext = "A town."\n[[lore]]\nname = "mill"\ntext = "It stands."\nkeys = ["a"]\n'
    letter, name = found(more, files={"town.toml": town})
    assert (letter.file, letter.field) == ("town.toml", "lore[2].keys[1]")
    assert (name.file, name.field) == ("town.toml", "lore[2].name")
    assert "like lore[1] in character.toml" in name.problem


def test_very_many_warnings_are_summed_up(found: Found) -> None:
    more = "".join(f'[[lore]]\ntext = "{number}"\nkeys = ["a"]\n' for number in range(MOST + 7))
    problems = found(more)
    assert len(problems) == MOST + 1
    assert problems[-1].problem == "has 7 more warnings."


# --- files ------------------------------------------------------------------------------------------------------------

PNG, JPEG = b"\x89PNG\r\n\x1a\n....", b"\xff\xd8\xff\xe0........"


def test_files_that_nobody_names_are_told_and_those_of_other_tools_that_are_named_are_not(found: Found) -> None:
    files = {"notes.txt": b"", "sheet.json": b"", "portrait.png": PNG}
    problem = only(found('portrait = "portrait.png"\n[other_tool]\nsheet = ["sheet.json"]', files=files))
    assert problem.file == "notes.txt"


def test_names_that_differ_in_case_only_are_told(found: Found) -> None:
    problem = only(found('a = ["voice.wav", "Voice.wav"]\n'.replace("a =", "[x]\na ="), files={"voice.wav": b"", "Voice.wav": b""}))
    assert "differ in case only" in problem.problem


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "character.toml~", "old.bak"])
def test_junk_is_told_by_name(found: Found, name: str) -> None:
    problem = only(found(files={name: b""}))
    assert problem.file == name
    assert "no part of the character" in problem.problem


def test_a_portrait_of_another_kind_than_its_name_is_told(found: Found) -> None:
    problem = only(found('portrait = "p.png"', files={"p.png": JPEG}))
    assert problem.field == "portrait"
    assert problem.remedy == "Call it .jpg."


def test_files_are_looked_at_though_the_manifest_cannot_be_read(write_pack: WritePack) -> None:
    folder = write_pack("name = ")
    for name in ("Thumbs.db", "unknown.txt"):
        (folder / name).write_bytes(b"")
    assert [problem.file for problem in lint(folder, None)] == ["Thumbs.db"]


def test_nothing_is_said_twice_and_errors_come_first() -> None:
    warning = PackProblem("p", "f", "x", "is so.", "Change it.", next(iter(lint_lines("p", b""))).severity)
    error = PackProblem("p", "f", "y", "is wrong.", "Change it.")
    assert merged([warning], (warning, error)) == [error, warning]


# --- lines.jsonl ------------------------------------------------------------------------------------------------------


def lines(n: int, key: str = "player") -> list[str]:
    return [json.dumps({key: f"Question {number}", "reply": f"Answer {number}"}) for number in range(n)]


def told(*texts: str) -> list[tuple[str, str]]:
    return [(problem.field, problem.problem) for problem in lint_lines("p", "\n".join(texts).encode())]


@pytest.mark.parametrize("key", ["player", "user"])
def test_enough_good_lines_are_nothing_to_speak_of(key: str) -> None:
    assert told(*lines(ENOUGH, key), "", "") == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Hello.", "is no JSON."),
        ("[" * 10_000, "is no JSON."),
        ('["a", "b"]', "is no object."),
        ('{"player": "Hi"}', "has no text `reply`."),
        ('{"reply": "Hi"}', "has no text `player`."),
        ('{"player": " ", "reply": "Hi"}', "has no text `player`."),
        ('{"player": 3, "reply": "Hi"}', "has no text `player`."),
        ('{"player": "Question 1", "reply": "Answer 1"}', "says the same as line 2."),
        ('"' + "x" * 70_000 + '"', "has more than 65536 characters."),
    ],
)
def test_a_line_that_cannot_be_trained_on_is_told_by_number(line: str, why: str) -> None:
    assert told(*lines(ENOUGH), line) == [(f"line {ENOUGH + 1}", why)]


def test_few_lines_are_told_and_many_broken_ones_are_summed_up() -> None:
    problems = told(*["x"] * (MOST_TOLD + 5))
    assert len(problems) == MOST_TOLD + 2
    assert problems[-2:] == [("", "has 5 more such lines."), ("", f"has 0 usable lines; a voice wants {ENOUGH} or more.")]


def test_lines_that_are_no_text_are_told() -> None:
    (problem,) = lint_lines("p", b"\xff\xfe")
    assert "is not UTF-8" in problem.problem


# --- adapters ---------------------------------------------------------------------------------------------------------

ADAPTER = HEAD + '[adapter]\nfile = "adapter.gguf"\n'


@pytest.fixture
def of_adapter(write_pack: WritePack) -> Callable[..., list[PackProblem]]:
    def look(content: bytes, base: BaseShapes | None, more: str = "") -> list[PackProblem]:
        folder = write_pack(ADAPTER + more, adapter=content)
        character, problems = examine_pack(folder, base)
        assert character is not None, problems
        store = AdapterStore()
        try:
            return [*lint_adapters(character, base, store)]
        finally:
            store.close()

    return look


def test_a_good_adapter_is_nothing_to_speak_of(of_adapter, base: BaseShapes, adapter_bytes: bytes) -> None:
    assert of_adapter(adapter_bytes, base) == []


def test_without_a_base_the_alpha_is_looked_for(of_adapter) -> None:
    assert (
        "states no adapter.lora.alpha"
        in only(of_adapter(gguf(lora_pairs(alpha=None), pair_of("blk.0.attn_q.weight", 32, 32)), None)).problem
    )


@pytest.mark.parametrize(("value", "why"), [(0.0, "changes nothing"), (np.nan, "NaN or infinity")])
def test_weights_that_cannot_be_heard_or_applied_are_errors(of_adapter, base: BaseShapes, value: float, why: str) -> None:
    b = np.full((32, 4), value, np.float16)
    tensors = [matrix("blk.0.attn_q.weight.lora_a", f16(4, 32)), matrix("blk.0.attn_q.weight.lora_b", b)]
    (problem,) = of_adapter(gguf(lora_pairs(), tensors), base)
    assert problem.is_error
    assert problem.file == "adapter.gguf"
    assert why in problem.problem


def test_matrices_that_do_nothing_are_counted(of_adapter, base: BaseShapes) -> None:
    zeros = [matrix("blk.0.attn_k.weight.lora_a", f16(4, 32)), matrix("blk.0.attn_k.weight.lora_b", np.zeros((16, 4), np.float16))]
    problem = only(of_adapter(gguf(lora_pairs(), [*pair_of("blk.0.attn_q.weight", 32, 32), *zeros]), base))
    assert "1 of its 2 matrices ('blk.0.attn_k.weight'" in problem.problem


def test_an_adapter_in_an_archive_is_told_by_its_own_name(write_pack: WritePack, base: BaseShapes, tmp_path: Path) -> None:
    b = np.zeros((32, 4), np.float16)
    content = gguf(lora_pairs(), [matrix("blk.0.attn_q.weight.lora_a", f16(4, 32)), matrix("blk.0.attn_q.weight.lora_b", b)])
    archive = tmp_path / "marta.persona"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("character.toml", ADAPTER)
        out.writestr("adapter.gguf", content)
    character, _ = examine_pack(archive, base)
    assert character is not None
    store = AdapterStore(tmp_path)
    try:
        (problem,) = lint_adapters(character, base, store)
    finally:
        store.close()
    assert "'adapter.gguf'" in problem.problem


def test_a_loud_scale_and_a_file_named_twice_are_told(found: Found, adapter_bytes: bytes) -> None:
    twice = '[[adapter]]\nfile = "a.gguf"\nscale = 3.0\n[[adapter]]\nfile = "a.gguf"\n'
    loud, double = found(twice, files={"a.gguf": adapter_bytes})
    assert (loud.field, double.field) == ("adapter.scale", "adapter")
    assert "is 3" in loud.problem
