"""Placeholders become fixed text, once, in bounded time, and nothing is ever run."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.packs.cards.macros import MAX_DEPTH, Macros


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("Hi {{user}}, I am {{char}}.", "Hi the player, I am Mira."),
        ("{{Char}} {{ USER }} <user> <BOT> <Char>", "Mira the player the player Mira Mira"),
        ("{{user}}'s sword, {{char}}'s gate", "the player's sword, Mira's gate"),
        ("{{random:a,b,c}} {{pick::x, y::z}} {{random: a\\,b ,c}}", "a x, y a,b"),
        ("{{random:{{char}},b}}", "Mira"),
        ("{{roll:6}} {{roll:d20}} {{roll: 2d6}} {{roll:1}} {{roll:x}}", "3 10 3 1 1"),
        ("a{{// a secret {{user}} }}b{{comment: c}}d{{hidden_key:e}}f{{original}}g", "abdfg"),
        ("{{reverse:Hello}}", "olleH"),
        ("a{{newline}}b{{noop}}", "a\nb"),
        ("{{time}} and {{getvar::x}}", "{{time}} and {{getvar::x}}"),
        ("{{{char}}} {{{{char}}}}", "{Mira} {{Mira}}"),
        ("{{char {{user}} }} {{", "{{char the player }} {{"),
        ("}} {{char", "}} {{char"),
        ("{{}} {{ }} {{:}} {{::}}", "{{}} {{ }} {{:}} {{::}}"),
        ("${7*7} {% for x in y %} {{7*7}} {{''.__class__}}", "${7*7} {% for x in y %} {{7*7}} {{''.__class__}}"),
    ],
)
def test_each_placeholder_becomes_what_it_should(text: str, becomes: str) -> None:
    assert Macros("Mira").replaced(text) == becomes


def test_the_character_addresses_the_player() -> None:
    spoken = Macros("Mira").spoken_to()
    assert spoken.replaced("*{{char}} looks at {{user}} and takes {{user}}'s hand.*") == "*Mira looks at you and takes your hand.*"


def test_a_name_that_is_a_placeholder_is_never_looked_at_again() -> None:
    assert Macros("{{user}}").replaced("I am {{char}}.") == "I am {{user}}."
    assert Macros("a,b::c").replaced("{{random:{{char}} x,d}}") == "a,b::c x"
    assert Macros("x}}{{user").replaced("{{char}}") == "x}}{{user"


def test_what_was_met_is_counted_for_the_notes_and_names_are_not() -> None:
    macros = Macros("Mira")
    macros.replaced("{{char}} {{user}} {{random:a}} {{roll:6}} {{roll:6}} {{time}}")
    assert macros.met == {"{{random}}": 1, "{{roll}}": 2, "{{time}}": 1}


@pytest.mark.parametrize(
    "text", ["{{" * 200_000, "{ {{random:" * 50_000, "}}" * 200_000, "{{random:" + "a," * 200_000 + "}}", "{{char}}" * 50_000]
)
def test_time_is_in_proportion_to_the_text(text: str) -> None:
    began = time.process_time()
    Macros("M" * 80).replaced(text)
    assert time.process_time() - began < 5  # quadratic would be minutes


def test_placeholders_within_each_other_are_followed_so_far_and_no_further() -> None:
    text = "{{reverse: " * (MAX_DEPTH + 3) + "x" + "}}" * (MAX_DEPTH + 3)
    assert "x" in Macros("Mira").replaced(text)


@settings(max_examples=300, deadline=None)
@given(st.text("{}:/,a\\ <>charusendompickroll6", max_size=80))
def test_no_text_makes_it_fail_and_the_same_text_always_gives_the_same(text: str) -> None:
    assert Macros("Mira").replaced(text) == Macros("Mira").replaced(text)
