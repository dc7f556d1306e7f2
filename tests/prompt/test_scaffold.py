from __future__ import annotations

import time
from datetime import datetime

import pytest

from personae.prompt import Line, Persona, PromptBuilder
from personae.prompt.scaffold import BUILT_IN, scaffold_of
from tests.prompt.byte_tokenizer import ByteTokenizer
from tests.prompt.templates import CHATML, DEAF, HEADERS, INST, NO_SYSTEM, THINKING, TRAINING, TYPED, UNUSABLE

PERSONA = Persona("Greta", "Core.")
TALK = [Line("Ann", "Hi.", False), Line("Greta", "Yes?", True), Line("Ann", "Ale!", False)]


def shown(template: str, *, bos: str = "<s>", adds_bos: bool = False, lines: list[Line] = TALK) -> str:
    tokenizer = ByteTokenizer(template, bos=bos, adds_bos=adds_bos)
    builder = PromptBuilder(tokenizer, n_ctx=4096, now=lambda: datetime(2031, 5, 4))
    return tokenizer.show(builder.build(PERSONA, lines, 100).tokens)


def test_chatml_is_used_as_it_is_and_the_default_system_prompt_stays_out() -> None:
    assert shown(CHATML) == (
        "{<|im_start|>}system\nCore.{<|im_end|>}\n{<|im_start|>}user\nHi.{<|im_end|>}\n{<|im_start|>}assistant\nYes?{<|im_end|>}\n"
        "{<|im_start|>}user\nAle!{<|im_end|>}\n{<|im_start|>}assistant\n"
    )


def test_headers_template_trims_and_dates_and_is_used_as_it_is() -> None:
    assert shown(HEADERS, bos="<|begin_of_text|>", adds_bos=True) == (
        "{<|begin_of_text|>}{<|start_header_id|>}system{<|end_header_id|>}\n\nToday: 04 May 2031\n\nCore.{<|eot_id|>}"
        "{<|start_header_id|>}user{<|end_header_id|>}\n\nHi.{<|eot_id|>}{<|start_header_id|>}assistant{<|end_header_id|>}\n\nYes?{<|eot_id|>}"
        "{<|start_header_id|>}user{<|end_header_id|>}\n\nAle!{<|eot_id|>}{<|start_header_id|>}assistant{<|end_header_id|>}\n\n"
    )


def test_template_without_system_role_gets_the_persona_in_the_first_user_message() -> None:
    assert shown(NO_SYSTEM, bos="<bos>", adds_bos=True) == (
        "{<bos>}{<start_of_turn>}user\nCore.\n\nHi.{<end_of_turn>}\n{<start_of_turn>}model\nYes?{<end_of_turn>}\n"
        "{<start_of_turn>}user\nAle!{<end_of_turn>}\n{<start_of_turn>}model\n"
    )


def test_persona_does_not_wander_to_the_last_line_with_a_template_that_puts_it_there() -> None:
    assert shown(INST, adds_bos=True) == "{<s>}{[INST]} Core.\n\nHi. {[/INST]} Yes?{</s>}{[INST]} Ale! {[/INST]}"


def test_reply_begins_where_an_answered_one_does_when_the_template_ignores_the_generation_prompt() -> None:
    assert shown(DEAF).endswith("Ale!{<|im_end|>}\n{<|im_start|>}assistant\n")


def test_npcs_do_not_think_aloud_where_the_template_lets_us_choose() -> None:
    assert shown(THINKING).endswith("{<|im_start|>}assistant\n<think>\n\n</think>\n\n")


def test_template_for_typed_parts_and_one_with_training_marks_are_used_as_they_are() -> None:
    assert shown(TYPED) == shown(TRAINING) == shown(CHATML)


@pytest.mark.parametrize(
    ("template", "kind"), [(CHATML, "model"), (HEADERS, "model"), (DEAF, "model"), (NO_SYSTEM, "folded"), (INST, "folded")]
)
def test_note_is_empty_only_when_the_template_is_used_as_it_stands(template: str, kind: str) -> None:
    builder = PromptBuilder(ByteTokenizer(template), n_ctx=512)
    assert builder.template_kind == kind
    assert (builder.template_note == "") == (kind == "model")
    assert builder.stops == ()


def test_note_quotes_what_the_template_objects_to() -> None:
    assert "System role not supported" in PromptBuilder(ByteTokenizer(NO_SYSTEM), n_ctx=512).template_note


@pytest.mark.parametrize("template", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_template_is_replaced_with_a_reason_and_in_bounded_time(template: str) -> None:
    started = time.monotonic()
    adopted = scaffold_of(template, {"bos_token": "", "eos_token": ""}, datetime.now)
    assert adopted.scaffold == BUILT_IN
    assert "cannot be used (" in adopted.note
    assert len(adopted.note) < 700
    assert time.monotonic() - started < 20


def test_template_fault_is_named() -> None:
    notes = {name: PromptBuilder(ByteTokenizer(UNUSABLE[name]), n_ctx=512).template_note for name in UNUSABLE}
    assert "changes a content" in notes["shouts"]
    assert "repeats a content" in notes["repeats"]
    assert "another order" in notes["reverses"]
    assert "length of the talk" in notes["counts"]
    assert "beyond all measure" in notes["nested loops"]
    assert "unsafe" in notes["class walk"]


def test_model_without_template_speaks_chatml_and_stops_at_its_marks() -> None:
    builder = PromptBuilder(ByteTokenizer(""), n_ctx=512)
    assert (builder.template_kind, builder.stops) == ("builtin", ("<|im_end|>", "<|im_start|>"))
    assert shown("") == shown(CHATML)


def test_template_given_by_hand_goes_before_the_models_own() -> None:
    assert PromptBuilder(ByteTokenizer(CHATML), n_ctx=512, template=NO_SYSTEM).template_kind == "folded"
    assert PromptBuilder(ByteTokenizer(NO_SYSTEM), n_ctx=512, template="").template_kind == "builtin"


def test_bos_is_brought_exactly_once_where_the_model_wants_one() -> None:
    assert shown(CHATML, adds_bos=True).startswith("{<s>}{<|im_start|>}system")
    assert shown(INST, adds_bos=True).count("{<s>}") == 1
    assert shown(INST, adds_bos=False).count("{<s>}") == 1  # the template's own
    assert "{<s>}" not in shown(CHATML)


def test_template_is_not_run_after_construction(tokenizer: ByteTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PromptBuilder(tokenizer, n_ctx=4096)
    monkeypatch.setattr("jinja2.Template.render", lambda *_: pytest.fail("rendered at play time"))
    for n_lines in range(30):
        builder.build(PERSONA, TALK * n_lines, 100)


def test_date_does_not_change_in_mid_talk() -> None:
    clock = iter(datetime(2031, 5, day) for day in range(1, 28))
    builder = PromptBuilder(ByteTokenizer(HEADERS), n_ctx=4096, now=lambda: next(clock))
    assert builder.build(PERSONA, TALK, 0) == builder.build(PERSONA, TALK, 0)
    assert next(clock).day == 2
