"""What a writer may put into character.toml, and what they are told when it is something else."""

from __future__ import annotations

import time
from dataclasses import fields

import pytest

from personae.packs.character import PackProblem
from personae.packs.manifest import MAX_BYTES, MAX_PROBLEMS, Manifest, Sampling, TurnLimits, check, decode
from personae.types import Limits, SamplingParams

SMALL = 'name = "Marta"\npersona = "You are Marta."\n'


def read(text: str) -> tuple[Manifest | None, list[PackProblem]]:
    return check("inn", decode(text.encode()))


def errors(text: str) -> dict[str, str]:
    """field -> problem"""
    manifest, problems = read(text)
    assert manifest is None
    return {problem.field: problem.problem for problem in problems if problem.is_error}


def warnings(text: str) -> dict[str, PackProblem]:
    manifest, problems = read(text)
    assert manifest is not None, problems
    return {problem.field: problem for problem in problems}


def test_two_lines_make_a_character() -> None:
    manifest, problems = read(SMALL)
    assert problems == []
    assert manifest is not None
    assert (manifest.name, manifest.persona, manifest.examples, manifest.adapter) == ("Marta", "You are Marta.", [], None)


def test_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    table = decode(b"\xef\xbb\xbf" + 'name = "Märta"\r\npersona = """You\r\nare."""\r\n'.encode())
    assert table == {"name": "Märta", "persona": "You\nare."}


def test_blanks_around_prose_go_and_those_of_stop_texts_stay() -> None:
    manifest, _ = read('name = " Marta "\npersona = """\nYou are.\n"""\nstop = ["\\n", " Player:"]')
    assert manifest is not None
    assert (manifest.name, manifest.persona, manifest.stop) == ("Marta", "You are.", ["\n", " Player:"])


@pytest.mark.parametrize("spelling", ["licence", "license"])
def test_licence_is_read_in_both_spellings(spelling: str) -> None:
    manifest, problems = read(f'{SMALL}{spelling} = "MIT"')
    assert manifest is not None
    assert (manifest.licence, problems) == ("MIT", [])


def test_all_mistakes_are_told_at_once_each_with_its_field_and_remedy() -> None:
    text = """
        manifest = 0
        name = 7
        persona = "  "
        stop = ["ok", ""]
        colour = "red"
        [[examples]]
        player = "Hello"
        [[examples]]
        player = "Hello"
        reply = ""
        [adapter]
        scale = 9
        [sampling]
        temperature = "hot"
        top_p = 0
        min_p = nan
        seed = true
        [limits]
        max_tokens = 0
    """
    manifest, problems = read(text)
    assert manifest is None
    assert {problem.field for problem in problems} == {
        *("manifest", "name", "persona", "stop[2]", "colour", "examples[1].reply", "examples[2].reply"),
        *("adapter.file", "adapter.scale", "limits.max_tokens"),
        *("sampling.temperature", "sampling.top_p", "sampling.min_p", "sampling.seed"),
    }
    assert all(problem.remedy and problem.file == "character.toml" and problem.pack == "inn" for problem in problems)


def test_missing_and_empty_persona_are_refused_by_name() -> None:
    assert errors('name = "Marta"') == {"persona": "is missing."}
    assert errors('name = "Marta"\npersona = "\\n \\n"') == {"persona": "is empty."}


def test_number_out_of_range_is_told_with_range_and_value() -> None:
    assert errors(SMALL + "[sampling]\ntop_p = 1.5") == {"sampling.top_p": "should be less than or equal to 1, and is 1.5."}


def test_value_where_a_table_belongs_is_told_in_the_words_of_toml() -> None:
    found = errors(SMALL + 'adapter = "voice.gguf"\nsampling = []\nlimits = 3')
    assert found == dict.fromkeys(["adapter", "sampling", "limits"], "should be a table.")


@pytest.mark.parametrize("broken", ["Marta\\nBert", "Marta\\u2028Bert", "Marta\\u0085Bert"])
def test_name_that_could_forge_another_speaker_is_refused(broken: str) -> None:
    assert "one line" in errors(f'name = "{broken}"\npersona = "You are."')["name"]


def test_missing_name_is_warned_of() -> None:
    assert "called after its folder" in warnings('persona = "You are."')["name"].problem


@pytest.mark.parametrize(
    ("wrong", "field", "meant"),
    [
        ('persnoa = "x"', "persnoa", "persona"),
        ('Style = "x"', "Style", "style"),
        ("[sampling]\ntemprature = 1", "sampling.temprature", "temperature"),
        ("[limits]\nmax_token = 1", "limits.max_token", "max_tokens"),
        ('[[examples]]\nplayer = "a"\nreply = "b"\nnpc = "c"\nreplay = "d"', "examples[1].replay", "reply"),
        ('[adapter]\nfile = "a.gguf"\nscales = 1', "adapter.scales", "scale"),
    ],
)
def test_unknown_key_is_warned_of_with_the_nearest_known_one(wrong: str, field: str, meant: str) -> None:
    problem = warnings(SMALL + wrong)[field]
    assert not problem.is_error
    assert problem.remedy == f"Did you mean '{meant}'?"


def test_lore_is_read_in_the_order_of_its_writer() -> None:
    manifest, problems = read(SMALL + '[[lore]]\ntext = " The cellar is locked. "\npriority = -3\n[[lore]]\nname = "inn"\ntext = "Old."')
    assert problems == []
    assert manifest is not None
    assert [(entry.name, entry.text, entry.priority) for entry in manifest.lore] == [("", "The cellar is locked.", -3), ("inn", "Old.", 0)]


def test_mistakes_in_lore_fallback_and_limits_are_told_with_their_place() -> None:
    lore = '[[lore]]\ntext = "a"\npriority = 101\n[[lore]]\nname = "b"\n[[lore]]\ntext = ""\npriorty = 1\n[limits]\nmax_kv = 63'
    text = SMALL + f'fallback = ["Soon.", " ", "{"x" * 301}"]\n' + lore
    assert errors(text).keys() == {"fallback[2]", "fallback[3]", "lore[1].priority", "lore[2].text", "lore[3].text", "limits.max_kv"}
    problem = next(problem for problem in read(text)[1] if problem.field == "lore[3].priorty")
    assert problem.remedy == "Did you mean 'priority'?"


def test_too_much_lore_and_too_many_fallback_lines_are_refused() -> None:
    found = errors(SMALL + f"fallback = {['x'] * 17}\n" + '[[lore]]\ntext = "x"\n' * 257)
    assert found.keys() == {"fallback", "lore"}
    assert errors(SMALL + f'[[lore]]\ntext = "{"x" * 4001}"').keys() == {"lore[1].text"}


def test_unknown_keys_are_kept() -> None:
    manifest, _ = read(SMALL + "[extensions]\nother_tool = [1, 2]")
    assert manifest is not None
    assert manifest.model_extra == {"extensions": {"other_tool": [1, 2]}}


def test_newer_version_is_read_as_far_as_it_is_known_and_says_so() -> None:
    problem = warnings("manifest = 2\nmood = 3\n" + SMALL)["manifest"]
    assert "version 2" in problem.problem


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'name = "M\xe4rta"', "byte 10 is 0xE4"),
        ('name = "Marta"'.encode("utf-16"), "not UTF-8"),
        (b'name = "Marta\nx = 1', "line 1"),
        (b"name = 'a'\nname = 'b'\nx = 1", "line 2"),
        (b"x = " + b"9" * 5000, "not TOML"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (MAX_BYTES + 1), "more than"),
        (b".".join([b"a"] * 30_000) + b" = 1", "dots in line 1"),
    ],
)
def test_what_is_no_toml_in_utf8_is_refused_in_words(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(content)


def test_control_characters_are_refused() -> None:
    assert errors('name = "a\\u0000b"\npersona = "x\\u001b[31m"').keys() == {"name", "persona"}


def test_too_long_and_too_many_are_refused() -> None:
    found = errors(f'name = "{"n" * 81}"\npersona = "{"p" * 16_001}"\nstop = {["x"] * 17}\ntags = {["y"] * 33}')
    assert found.keys() == {"name", "persona", "stop", "tags"}


def test_endless_mistakes_end_in_a_bounded_list_and_time() -> None:
    start = time.perf_counter()
    _, problems = read(SMALL + "\n".join(f"persona_{n} = 1" for n in range(15_000)))
    assert len(problems) == MAX_PROBLEMS
    assert time.perf_counter() - start < 5


def test_sampling_and_limits_have_the_fields_of_the_engine() -> None:
    assert {field.name for field in fields(SamplingParams)} - set(Sampling.model_fields) == {"logit_bias", "grammar"}
    assert {field.name for field in fields(Limits)} == set(TurnLimits.model_fields)
    assert set(Sampling.model_fields) <= {field.name for field in fields(SamplingParams)}


def test_engine_defaults_are_within_the_ranges_of_the_form() -> None:
    defaults = {name: getattr(SamplingParams(), name) for name in Sampling.model_fields}
    Sampling.model_validate(defaults)
    limits = {name: getattr(Limits(), name) for name in TurnLimits.model_fields}
    assert limits.pop("max_kv") == 0  # no limit, which a writer says by leaving it out
    TurnLimits.model_validate(limits)
