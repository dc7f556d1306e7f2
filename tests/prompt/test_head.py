"""What every next prompt begins with, and talk that never ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.prompt import Line, Persona, Prompt, PromptBuilder
from tests.prompt.byte_tokenizer import ByteTokenizer
from tests.prompt.lines import Entry, Exchange, cut, part
from tests.prompt.templates import CHATML, INST, NO_SYSTEM, USABLE

GRETA = Persona(
    "Greta",
    "You are Greta, who keeps the inn.",
    "Gruff.",
    [Exchange("Bed?", "Two.")],
    [Entry("The inn is old.")],
    ["Ann paid."],
)
WIDE = [PromptBuilder(ByteTokenizer(template, adds_bos=True), n_ctx=8192) for template in USABLE.values()]
NARROW = [PromptBuilder(ByteTokenizer(template), n_ctx=600) for template in USABLE.values()]

some_text = st.sampled_from(["Hi.", "Ale, please!", " ", "", "Thunder.", "a\n\nb", "on and on " * 12])
drawn = st.none() | st.binary(min_size=1, max_size=6).map(tuple)


def lines_of(speakers: list[str]) -> st.SearchStrategy[list[Line]]:
    heard = st.builds(Line, st.sampled_from(speakers), some_text, st.just(False))
    said = st.builds(Line, st.just("Greta"), some_text, st.just(True), drawn)
    return st.lists(heard | said, max_size=12)


def begins_with(prompt: Prompt, head: Prompt) -> bool:
    return prompt.tokens[: len(head.tokens)] == head.tokens


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(st.sampled_from(WIDE), lines_of(["Ann"]), some_text)
def test_head_is_what_every_next_prompt_begins_with(builder: PromptBuilder, lines: list[Line], text: str) -> None:
    head = builder.head(GRETA, lines, 100)
    assert begins_with(builder.build(GRETA, [*lines, Line("Ann", text, False)], 100), head)
    assert begins_with(builder.build(GRETA, lines, 100), head)  # the NPC goes on of its own accord
    assert head.receipt.total == len(head.tokens) == sum(part.tokens for part in head.receipt.parts)


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(st.sampled_from(WIDE), lines_of(["Ann", "Tom", ""]), st.sampled_from(["Ann", "Tom", "Eve", ""]))
def test_with_two_speakers_in_the_talk_it_does_not_matter_who_comes(builder: PromptBuilder, lines: list[Line], speaker: str) -> None:
    lines = [*lines, Line("Ann", "Hi.", False), Line("Greta", "Yes?", True), Line("Tom", "Hey.", False)]
    assert begins_with(builder.build(GRETA, [*lines, Line(speaker, "And me.", False)], 100), builder.head(GRETA, lines, 100))


def test_second_speaker_puts_names_to_the_lines_before_and_that_is_all_it_costs() -> None:
    builder = WIDE[0]
    lines = [Line("Greta", "Come in!", True), Line("Ann", "Hi.", False), Line("Greta", "Yes?", True)]
    head = builder.head(GRETA, lines, 100)
    unnamed = builder.head(GRETA, lines[:1], 100)
    prompt = builder.build(GRETA, [*lines, Line("Tom", "Hey.", False)], 100)
    assert not begins_with(prompt, head)
    assert begins_with(prompt, unnamed)


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(st.sampled_from(NARROW), lines_of(["Ann"]), some_text, st.sampled_from([None, 400]))
def test_head_holds_until_something_is_cut_anew(builder: PromptBuilder, lines: list[Line], text: str, room: int | None) -> None:
    head = builder.head(GRETA, lines, 60, room=room)
    prompt = builder.build(GRETA, [*lines, Line("Ann", text, False)], 60, room=room)
    assert len(head.tokens) <= (room or 600) - 60
    if prompt.receipt.cuts == head.receipt.cuts:
        assert begins_with(prompt, head)


def test_head_ends_where_the_next_line_begins() -> None:
    tokenizer = ByteTokenizer(CHATML)
    builder = PromptBuilder(tokenizer, n_ctx=900)
    persona = Persona("Greta", "Core.")
    empty = "{<|im_start|>}system\nCore.{<|im_end|>}\n{<|im_start|>}user\n"
    assert tokenizer.show(builder.head(persona, [], 50).tokens) == empty
    answered = [Line("Ann", "Hi.", False), Line("Greta", "Yes?", True)]
    expected = empty + "Hi.{<|im_end|>}\n{<|im_start|>}assistant\nYes?{<|im_end|>}\n{<|im_start|>}user\n"
    assert tokenizer.show(builder.head(persona, answered, 50).tokens) == expected


def test_head_holds_a_line_not_yet_answered_and_nothing_behind_it() -> None:
    tokenizer = ByteTokenizer(CHATML)
    head = PromptBuilder(tokenizer, n_ctx=900).head(Persona("Greta", "Core."), [Line("Ann", "Hi.", False), Line("Ann", "Hey?", False)], 50)
    assert tokenizer.show(head.tokens).endswith("user\nHi.\n\nHey?")
    assert (part(head, "history"), part(head, "line"), head.tail) == (7, 0, ())


def test_two_npcs_of_one_pack_share_their_beginning() -> None:
    builder = WIDE[0]
    fresh = builder.head(GRETA, [], 100)
    assert begins_with(builder.head(GRETA, [Line("Tom", "Hey.", False)], 100), fresh)


# --- lines that are not in the prompt --------------------------------------------------------------------------------


def test_cut_lines_are_counted_as_the_caller_counts_them(greta: Persona) -> None:
    tokenizer = ByteTokenizer(CHATML)
    builder = PromptBuilder(tokenizer, n_ctx=512)
    lines = []
    for turn in range(40):
        lines += [Line("Ann", f"Line {turn}.", False), Line("Ann", " ", False), Line("Greta", f"Reply {turn}.", True)]
        prompt = builder.build(greta, [*lines, Line("Ann", "Now?", False)], 60)
        shown, n_cut = tokenizer.show(prompt.tokens), prompt.n_cut_lines
        assert not any(line.text in shown for line in lines[:n_cut] if line.text.strip())
        assert all(line.text in shown for line in lines[n_cut:] if line.text.strip())
        assert bool(n_cut) == bool(cut(prompt, "history"))
    assert prompt.n_cut_lines > 60


# --- talk for ever ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, NO_SYSTEM, INST], ids=["chatml", "strict", "no generation prompt"])
def test_five_hundred_turns_in_a_tiny_context(template: str) -> None:
    tokenizer = ByteTokenizer(template)
    builder = PromptBuilder(tokenizer, n_ctx=256)
    persona = replace(GRETA, memories=[f"Ann came {n} times." for n in range(6)], lore=[Entry("z" * 90, "saga"), Entry("Old.", "inn")])
    lines: list[Line] = []
    prompts = []
    for turn in range(500):
        lines += heard_in(turn)
        prompts.append(builder.build(persona, lines, 40))
        if turn % 10 == 0:
            assert len(builder.head(persona, lines, 40).tokens) <= 216
        lines.append(Line("Greta", f"ok {turn}", True, tuple(f"ok {turn}".encode())))
    for prompt in prompts:
        assert len(prompt.tokens) == prompt.receipt.total <= 216
        assert "You are Greta, who keeps the inn." in tokenizer.show(prompt.tokens)
        assert part(prompt, "history") + part(prompt, "line") > 0
        assert "saga" in next(each.names for each in prompt.receipt.cuts if each.part == "lore")
    assert cut(prompts[-1], "history") > 600
    assert all(before.n_cut_lines <= after.n_cut_lines + 12 for before, after in pairwise(prompts))  # a long line may go again


def heard_in(turn: int) -> list[Line]:
    """Player's lines of many lengths, silences, and things that are only witnessed."""
    if turn % 7 == 3:
        return []
    observed = [Line("", f"Thunder {n}.", False) for n in range(turn % 3)]
    return [*observed, Line("Ann", f"Line {turn}" + " on" * (turn * 5 % 30), False)]
