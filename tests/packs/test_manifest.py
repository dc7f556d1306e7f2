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
    assert (manifest.name, manifest.persona, manifest.examples, manifest.adapter) == ("Marta", "You are Marta.", [], [])


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


@pytest.mark.parametrize(
    ("written", "field", "remedy"),
    [
        ('[lore]\ntext = "x"', "lore", "Write [[lore]], in two brackets, and once for each of them."),
        ('[moods]\nname = "drunk"', "moods", "Write [[moods]], in two brackets, and once for each of them."),
        ('fallback = "One \\"moment\\"."', "fallback", 'Put it in brackets: fallback = ["One \\"moment\\"."]'),
        ('[[lore]]\ntext = "x"\nkeys = "cellar"', "lore[1].keys", 'Put it in brackets: keys = ["cellar"]'),
        ("tags = 3", "tags", 'Put it in brackets: tags = ["..."]'),
    ],
)
def test_one_where_a_list_belongs_is_told_with_how_a_list_is_written(written: str, field: str, remedy: str) -> None:
    _, problems = read(SMALL + written)
    assert [(problem.field, problem.remedy) for problem in problems] == [(field, remedy)]


def test_what_is_missing_is_told_as_something_to_do() -> None:
    _, problems = read('name = "Marta"')
    assert problems[0].remedy.startswith("Add persona. Who the character is, addressed as you.")


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


@pytest.mark.parametrize("written", ['[adapter]\nfile = "a.gguf"', '[[adapter]]\nfile = "a.gguf"', 'adapter = [{ file = "a.gguf" }]'])
def test_one_adapter_may_be_a_table_or_a_list(written: str) -> None:
    manifest, problems = read(SMALL + written)
    assert problems == []
    assert manifest is not None
    assert [(part.file, part.scale) for part in manifest.adapter] == [("a.gguf", 1.0)]


def test_mistakes_in_adapters_are_told_where_they_were_written() -> None:
    assert errors(SMALL + "[adapter]\nscale = 1").keys() == {"adapter.file"}
    assert errors(SMALL + '[[adapter]]\nfile = "a"\n[[adapter]]\nscale = 5').keys() == {"adapter[2].file", "adapter[2].scale"}
    assert errors(SMALL + '[[adapter]]\nfile = "a"\n' * 5).keys() == {"adapter"}
    assert errors(SMALL + 'adapter = ["a.gguf"]') == {"adapter[1]": "should be a table."}
    found = errors(SMALL + '[[moods]]\nname = "x"\nadapter = { scale = 1 }\n[[moods]]\nname = "y"\nadapter = [{ file = 3 }]')
    assert found.keys() == {"moods[1].adapter.file", "moods[2].adapter[1].file"}


def test_moods_are_read_and_an_empty_list_of_adapters_is_not_a_missing_one() -> None:
    manifest, problems = read(SMALL + '[[moods]]\nname = " drunk "\nadapter = []\nsampling.top_k = 3\n[[moods]]\nname = "sad"\nstyle = ""')
    assert problems == []
    assert manifest is not None
    drunk, sad = manifest.moods
    assert (drunk.name, drunk.style, drunk.adapter, drunk.sampling.top_k) == ("drunk", None, [], 3)
    assert (sad.name, sad.style, sad.adapter, sad.sampling.top_k) == ("sad", "", None, None)


def test_mistakes_in_moods_are_all_told_at_once() -> None:
    moods = [
        'name = "drunk"',
        'name = " Drunk "',
        'name = "two\\nlines"',
        'name = " "',
        'style = "x"',
        'name = "drunk"\nsampling.top_p = 3',
    ]
    found = errors(SMALL + "".join(f"[[moods]]\n{mood}\n" for mood in moods))
    assert found.keys() == {"moods[2].name", "moods[3].name", "moods[4].name", "moods[5].name", "moods[6].sampling.top_p"}
    assert "another mood" in found["moods[2].name"]
    assert errors(SMALL + "".join(f'[[moods]]\nname = "m{n}"\n' for n in range(33))).keys() == {"moods"}
    assert warnings(SMALL + '[[moods]]\nname = "x"\nsytle = "y"')["moods[1].sytle"].remedy == "Did you mean 'style'?"


def test_lore_with_keys_is_read_as_it_was_written() -> None:
    text = 'keys = ["flood ", "river"]\nsecondary = ["spring"]\nconstant = true\norder = 100\ncase_sensitive = true\nenabled = false'
    manifest, problems = read(SMALL + f'[[lore]]\ntext = "x"\n{text}\n[lore_rules]\ntokens = 64\nscan_lines = 2\nrecursion = 0')
    assert problems == []
    assert manifest is not None
    (entry,) = manifest.lore
    assert (entry.keys, entry.secondary, entry.order) == (["flood ", "river"], ["spring"], 100)
    assert (entry.constant, entry.case_sensitive, entry.regex, entry.enabled) == (True, True, False, False)
    assert (manifest.lore_rules.tokens, manifest.lore_rules.scan_lines, manifest.lore_rules.recursion) == (64, 2, 0)


@pytest.mark.parametrize("pattern", ["a(b", "(?<=a)b", r"(a)\1", "a{1,100000}", "((a{100}){100}){100}", "[z-a]"])
def test_key_that_is_no_regular_expression_is_told_with_its_entry(pattern: str) -> None:
    entry = f"[[lore]]\ntext = 'x'\nregex = true\nkeys = ['fine|too', '{pattern}']\n"
    ((field, said),) = errors(SMALL + '[[lore]]\ntext = "y"\n' + entry).items()
    assert field == "lore[2].keys[2]"
    assert "regular expression" in said
    problem = next(problem for problem in read(SMALL + entry)[1])
    assert "regex = false" in problem.remedy
    assert read(SMALL + entry.replace("regex = true", "regex = false"))[0] is not None


def test_mistakes_in_lore_do_not_hide_those_in_its_patterns() -> None:
    entry = '[[lore]]\nregex = true\nkeys = ["(", "", " ", 3]\nsecondary = [")"]\n[lore_rules]\nscan_lines = 0\nrecursion = 9\ntokens = 1'
    assert errors(SMALL + entry).keys() == {
        *("lore[1].text", "lore[1].keys[1]", "lore[1].keys[2]", "lore[1].keys[3]", "lore[1].keys[4]", "lore[1].secondary[1]"),
        *("lore_rules.scan_lines", "lore_rules.recursion", "lore_rules.tokens"),
    }


def test_patterns_of_a_pack_take_bounded_time() -> None:
    """Far more than a pack can have, each as costly as it may be: only as many are looked at."""
    start = time.perf_counter()
    heavy = "(" + "a?" * 200 + ")"
    read(SMALL + f"[[lore]]\ntext = 'x'\nregex = true\nkeys = {[heavy] * 64}\n" * 9)
    assert time.perf_counter() - start < 5


def test_base_is_read_in_small_letters_and_checked() -> None:
    manifest, _ = read(SMALL + f'[base]\narchitecture = "llama"\nhash = "{"AB" * 32}"\nn_layers = 30\nn_embd = 576')
    assert manifest is not None
    assert (manifest.base.hash, manifest.base.n_layers, manifest.base.n_embd) == ("ab" * 32, 30, 576)
    assert errors(SMALL + '[base]\nhash = "abc"\nn_layers = -1\nn_embd = "wide"').keys() == {"base.hash", "base.n_layers", "base.n_embd"}


def test_greetings_and_files_are_read_and_bounded() -> None:
    manifest, problems = read('greetings = [" Hello. "]\nportrait = "a.png"\nlore_files = ["x.toml"]\n' + SMALL)
    assert problems == []
    assert manifest is not None
    assert (manifest.greetings, manifest.portrait, manifest.lore_files) == (["Hello."], "a.png", ["x.toml"])
    assert errors(f'greetings = {["x"] * 65}\nportrait = "{"x" * 256}"\nlore_files = {["x"] * 17}\n' + SMALL).keys() == {
        *("greetings", "portrait", "lore_files")
    }


def test_unknown_keys_are_kept() -> None:
    manifest, _ = read(SMALL + "[extensions]\nother_tool = [1, 2]")
    assert manifest is not None
    assert manifest.model_extra == {"extensions": {"other_tool": [1, 2]}}


def test_newer_version_is_read_as_far_as_it_is_known_and_says_so() -> None:
    problem = warnings("manifest = 2\ntemper = 3\n" + SMALL)["manifest"]
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
        (b".".join([b"a"] * 30_000) + b" = 1", "29999 dots"),
        (b".".join([b"a", '"\u2028"'.encode()] * 10_000) + b" = 1", "19999 dots"),  # a line's end for Python and not for TOML
        (b"".join(b"k%d%s = 1\n" % (n, b".a" * 98) for n in range(30)), "2940 dots"),
        (b'x = ["""a"""""' + b", {a%s = 1}]" % (b".a" * 3000), "3000 dots"),  # two quotes belong to the text
        (b"x = 0x" + b"F" * 5000, "64 bits"),
        (b"x = [[{y = 9223372036854775808}]]", "64 bits"),
    ],
)
def test_what_is_no_toml_in_utf8_is_refused_in_words(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(content)


@pytest.mark.parametrize(
    "written",
    [
        'x = "{}"',
        "x = '{}'",
        'x = """\n\\"""{}"""""',
        "x = '''\n'{}'''''",
        "x = 1 # {}",
        'x = "\\"{}"',
        '"{}" = 1',
    ],
)
def test_dots_in_texts_and_comments_are_nobodys_business(written: str) -> None:
    assert decode(written.replace("{}", "Well... " * 3000).encode())


@pytest.mark.parametrize("opened", ['"""', "'''", '"', "'", '\\"""', '"\\', '""" ""\\'])
def test_texts_that_are_never_closed_are_refused_in_no_time(opened: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"not TOML|dots"):
        decode(("x = " + opened * (MAX_BYTES // 8)).encode())
    assert time.perf_counter() - start < 5


def test_numbers_of_64_bits_are_read() -> None:
    assert decode(b"x = [9223372036854775807, -9223372036854775808]")


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
