from __future__ import annotations

from itertools import pairwise

import pytest

from personae.prompt import Line, PromptBuilder
from personae.prompt.summary import PIECE, summary_request, without_question
from tests.prompt.byte_tokenizer import ByteTokenizer
from tests.prompt.templates import CHATML

TALK = [
    Line("Greta", "Come in!", True, (1, 2)),
    Line("Ann", "A bed?\n\nFor two.", False),
    Line("", "Thunder.", False),
    Line("Ann", " ", False),
]


def test_everything_is_told_by_nobody_and_the_question_comes_last() -> None:
    persona, lines = summary_request("Greta", TALK)
    assert [line.text for line in lines[:-1]] == ['Greta said: "Come in!"', 'Ann said: "A bed? For two."', "Thunder."]
    assert "Greta learn" in lines[-1].text
    assert all(not line.is_npc and not line.speaker and line.tokens is None for line in lines)
    assert "two or three" in persona.core


@pytest.mark.parametrize("between", ["", ": ", " "])
def test_question_that_the_model_repeats_is_no_memory(between: str) -> None:
    question = summary_request("Greta", TALK)[1][-1].text
    assert without_question("Greta", f"{question}{between}Ann wants a bed.") == "Ann wants a bed."
    assert without_question("Greta", question.lower()) == ""
    assert without_question("Greta", "In two days Ann leaves.") == "In two days Ann leaves."


def test_summary_of_nothing_is_a_question_all_the_same() -> None:
    assert len(summary_request("Greta", [])[1]) == 1


def test_request_is_one_message_with_the_transcript_above_the_question() -> None:
    tokenizer = ByteTokenizer(CHATML)
    shown = tokenizer.show(PromptBuilder(tokenizer, n_ctx=2048).build(*summary_request("Greta", TALK), 100).tokens)
    assert shown.count("user\n") == 1
    assert '"\n\nThunder.\n\nIn two' in shown


def test_long_line_comes_in_pieces_that_lose_nothing_but_blanks() -> None:
    text = "word " * 300 + "x" * 1000
    pieces = [
        line.text.removeprefix('Ann said: "').removesuffix('"') for line in summary_request("Greta", [Line("Ann", text, False)])[1][:-1]
    ]
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("n_ctx", [384, 700, 2048])
def test_request_fits_however_long_the_talk_and_keeps_its_end(n_ctx: int) -> None:
    tokenizer = ByteTokenizer(CHATML)
    builder = PromptBuilder(tokenizer, n_ctx=n_ctx)
    lines = [Line("Ann", f"{turn} " + "so on " * (turn % 5), turn % 2 == 1) for turn in range(200)] + [Line("Ann", "and on " * 1000, False)]
    prompts = [builder.build(*summary_request("Greta", lines[:n]), 60) for n in (1, 5, 50, 200, 201)]
    assert all(prompt.receipt.total <= n_ctx - 60 for prompt in prompts)
    assert all("Greta learn" in tokenizer.show(prompt.tokens) for prompt in prompts)
    assert all(before.n_cut_lines <= after.n_cut_lines for before, after in pairwise(prompts))
