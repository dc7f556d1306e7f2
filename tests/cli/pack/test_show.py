"""`personae pack show`: the prompt as the service would build it, to the token, and where its context goes."""

from __future__ import annotations

from personae.engine.factory import make_vocabulary
from personae.packs.loader import load_character
from personae.prompt import Line, PromptBuilder
from personae.service.roster import persona_of
from tests.cli.pack.conftest import Ended, Pack, Write
from tests.tiny import TinyModel, write_adapter

MORE = """
style = "Warm and nosy."
[[examples]]
player = "A room?"
reply = "Always, love."
[[lore]]
name = "the inn"
text = "The Green Man stands by the mill."
[[lore]]
name = "the cellar"
text = "The cellar is locked since the flood."
keys = ["cellar"]
[[lore]]
name = "the flood"
text = "It took the bridge."
keys = ["flood"]
[[lore]]
name = "the king"
text = "He is dead."
keys = ["king"]
[[moods]]
name = "drunk"
style = "Slurred and sad."
[limits]
max_tokens = 100
"""


def parts(ended: Ended) -> list[tuple[str, str]]:
    return [(stretch["part"], "".join(stretch["pieces"])) for stretch in ended.json["stretches"]]


def test_stretches_are_the_prompt_of_the_service_to_the_token(pack: Pack, write: Write, model: TinyModel) -> None:
    folder = write(MORE)
    ended = pack("show", folder, "--model", model.path, "--say", "What is in the cellar?", "--json")
    assert (ended.code, ended.error) == (0, "")
    character = load_character(folder)
    lines = [Line("Marta", "Come in.", True), Line("Player", "What is in the cellar?", False)]
    built = PromptBuilder(make_vocabulary(str(model.path)), n_ctx=2048).build(persona_of(character), lines, 100)
    shown = [token for stretch in ended.json["stretches"] for token in stretch["tokens"]]
    assert tuple(shown) == built.tokens
    assert ended.json["receipt"]["total"] == len(shown)
    assert all(len(stretch["tokens"]) == len(stretch["pieces"]) == stretch["n_tokens"] for stretch in ended.json["stretches"])


def test_text_stands_under_the_part_it_is_of(pack: Pack, write: Write) -> None:
    shown = parts(pack("show", write(MORE), "--model", "fake", "--say", "What is in the cellar?", "--json"))
    assert ("persona", "You are Marta, the innkeeper.") in shown
    assert ("style", "Warm and nosy.") in shown
    assert ("lore", "The Green Man stands by the mill.") in shown
    assert ("examples", "A room?") in shown
    assert ("history", "Come in.") in shown
    assert shown[-2] == ("line", "What is in the cellar?")
    assert shown[-1] == ("scaffold", "<|im_end|>\n<|im_start|>assistant\n")
    assert any(part == "lore" and "locked since the flood" in text for part, text in shown)


def test_lore_that_came_to_mind_says_why_and_the_rest_that_it_did_not(pack: Pack, write: Write) -> None:
    ended = pack("show", write(MORE), "--model", "fake", "--say", "What is in the cellar?")
    assert "the cellar: “cellar” in “What is in the cellar?”" in ended.words
    assert "the flood: " in ended.words
    assert "silent: 1 not touched" in ended.words


def test_mood_changes_the_style_and_an_unknown_one_is_refused_with_those_there_are(pack: Pack, write: Write) -> None:
    folder = write(MORE)
    shown = parts(pack("show", folder, "--model", "fake", "--mood", "drunk", "--json"))
    assert ("style", "Slurred and sad.") in shown
    ended = pack("show", folder, "--model", "fake", "--mood", "merry")
    assert ended.code == 4
    assert "Known are: drunk." in ended.error


def test_budget_adds_up_to_the_context(pack: Pack, write: Write) -> None:
    ended = pack("show", write(MORE), "--model", "fake", "--ctx", "1000")
    assert "budget: 1000 tokens, of which 100 are kept for the reply" in ended.out
    rows = [line.split() for line in ended.out.partition("budget:")[2].splitlines()[1:] if "%" in line]
    assert sum(int(row[1]) for row in rows) == 1000
    assert rows[-2][:2] == ["reply", "100"]
    assert rows[-1][0] == "free"


def test_what_has_no_room_is_told(pack: Pack, write: Write) -> None:
    lore = "".join(f'[[lore]]\nname = "fact {i}"\ntext = "{i} {"x" * 80}"\n' for i in range(4))
    ended = pack("show", write(lore), "--model", "fake", "--ctx", "1024")
    assert "left out" in ended.words
    assert "fact 3" in ended.words.partition("left out")[2]


def test_token_by_token_every_token_stands_between_bars(pack: Pack, write: Write, model: TinyModel) -> None:
    folder = write(head='persona = "You are Márta 🙂."\nname = "M"\n')
    ended = pack("show", folder, "--model", model.path, "--tokens")
    line = next(line for line in ended.out.splitlines() if line.startswith("persona"))
    vocabulary = make_vocabulary(str(model.path))
    assert line.count("│") == len(vocabulary.tokenize("You are Márta 🙂.", special=False))
    assert "á│" in line
    assert "🙂│" in line


def test_adapters_are_shown_with_rank_size_and_base(pack: Pack, write: Write, model: TinyModel, here) -> None:
    write_adapter(here / "a.gguf", model, rank=8, alpha=8.0)
    files = {"a.gguf": (here / "a.gguf").read_bytes()}
    folder = write('[[adapter]]\nfile = "a.gguf"\nscale = 0.5\n[[moods]]\nname = "plain"\nadapter = []\n', files=files)
    ended = pack("show", folder, "--model", "fake")
    assert "a.gguf, scale 0.5: rank 8" in ended.words
    assert "for llama" in ended.words
    assert "none: the base model's own voice" in pack("show", folder, "--model", "fake", "--mood", "plain").words


def test_what_the_player_says_is_never_a_control_token(pack: Pack, write: Write) -> None:
    ended = pack("show", write(), "--model", "fake", "--say", "<|im_end|>", "--json")
    (line,) = [stretch for stretch in ended.json["stretches"] if stretch["part"] == "line"]
    assert line["pieces"] == list("<|im_end|>")


def test_lines_fit_80_columns_and_hold_no_colour_nor_escape_codes(pack: Pack, write: Write) -> None:
    ended = pack("show", write(MORE), "--model", "fake", "--say", "What \x1b[31m is " + "this " * 60)
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "\x1b" not in ended.out


def test_a_broken_pack_shows_its_errors_and_ends_with_4(pack: Pack, write: Write) -> None:
    ended = pack("show", write(head="persona = 3\n"), "--model", "fake")
    assert ended.code == 4
    assert "character.toml: persona" in ended.out
    assert ended.error.startswith("personae: Pack 'marta' has 1 error.")


def test_a_context_too_small_for_the_persona_ends_with_4(pack: Pack, write: Write) -> None:
    ended = pack("show", write(), "--model", "fake", "--ctx", "64")
    assert ended.code == 4
    assert "The persona of 'Marta' needs" in ended.error


def test_a_reply_is_promised_half_of_a_small_context_as_the_service_does(pack: Pack, write: Write) -> None:
    ended = pack("show", write("[limits]\nmax_tokens = 4000\nmax_kv = 500\n"), "--model", "fake", "--ctx", "1000", "--json")
    receipt = ended.json["receipt"]
    assert (receipt["reserve"], receipt["budget"]) == (250, 250)


def test_without_a_model_there_is_nothing_to_show(pack: Pack, write: Write) -> None:
    ended = pack("show", write(), "--model", "none")
    assert ended.code == 4
    assert "--model" in ended.error
