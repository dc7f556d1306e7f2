"""What of a reply is shown: torn characters, thoughts, stop strings, other speakers, circles, narration."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.engine.text import Pushed, ReplyText
from personae.types import FinishReason, Piece, ReplyRules

LINE = "I have told you before that the bridge is out."  # 46 characters


def told(*tokens: str | bytes, stop: tuple[str, ...] = (), others: tuple[str, ...] = ()) -> tuple[list[str], FinishReason | None]:
    """(the deltas, the finish) of a reply that arrives in these tokens and is then closed."""
    pieces, finish = pieces_of(tokens, ReplyRules(stop, others))
    return [piece.text for piece in pieces], finish


def pieces_of(tokens: tuple[str | bytes, ...] | list[bytes], rules: ReplyRules) -> tuple[list[Piece], FinishReason | None]:
    reply = ReplyText(rules)
    pieces: list[Piece] = []
    for token in tokens:
        pushed = reply.push(token.encode() if isinstance(token, str) else token)
        pieces += pushed.pieces
        if pushed.finish:
            break
    pieces += reply.close()
    return pieces, reply.finish


def text_of(*tokens: str | bytes, **rules: tuple[str, ...]) -> str:
    return "".join(told(*tokens, **rules)[0])


def kinds(*tokens: str) -> list[tuple[str, str]]:
    """Runs of one kind each, whatever the deltas were."""
    pieces, _ = pieces_of(tokens, ReplyRules())
    return [(kind, "".join(piece.text for piece in run)) for kind, run in groupby(pieces, lambda piece: piece.kind)]


# --- UTF-8 and blanks ---------------------------------------------------------------------------------------------


def test_character_torn_over_tokens_is_shown_once_it_is_whole() -> None:
    assert told(b"a\xf0", b"\x9f\x90", b"\x89", b"b")[0] == ["a", "🐉", "b"]


def test_bytes_that_can_never_be_a_character_become_replacement_characters() -> None:
    assert text_of(b"a\xffb", b"\xf0\x9f", b"c") == "a�b�c"
    assert text_of(b"a\xf0\x9f") == "a�"


def test_reply_has_no_blanks_around_it_and_keeps_those_within() -> None:
    assert told(" \n", " Hello", " ", "\n\n", "there", "  ", "\n") == (["Hello", " \n\nthere"], None)


# --- thoughts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["think", "thinking", "THINK"])
def test_thought_is_never_shown_however_its_tags_are_torn(tag: str) -> None:
    reply = f"<{tag}>They <b>want</b> ale.</{tag}>\n\nAle?"
    assert text_of(reply) == text_of(*reply) == "Ale?"


def test_unclosed_thought_is_dropped() -> None:
    assert text_of("Well. ", "<thi", "nk>I do not know", " this one") == "Well."


def test_what_only_looks_like_a_tag_is_text() -> None:
    assert text_of("a <", "b> <thin", "ker> 1 <", " 2 <th") == "a <b> <thinker> 1 < 2 <th"


def test_stray_closing_tag_is_dropped_alone() -> None:
    assert text_of("Hm.</th", "ink> Yes.") == "Hm. Yes."


def test_taking_a_thought_out_makes_no_new_tag() -> None:
    reply = "a<thi<think>x</think>nk>b</think>c"
    assert text_of(reply) == text_of(*reply) == "ac"


# --- stop strings -------------------------------------------------------------------------------------------------


def test_head_of_a_stop_string_is_held_back_and_released_if_it_was_none() -> None:
    assert told("Hello <", "|im", "age", stop=("<|im_end|>",)) == (["Hello", " <|image"], None)


def test_stop_string_over_tokens_ends_the_reply_and_none_of_it_leaks() -> None:
    assert told("Hello <", "|im_e", "nd|> more", stop=("<|im_end|>",)) == (["Hello"], FinishReason.STOP)


def test_first_stop_string_to_be_complete_wins() -> None:
    assert told("abcdef", stop=("bcde", "cd")) == (["ab"], FinishReason.STOP)
    assert told("abcdef", stop=("cd", "bcd")) == (["a"], FinishReason.STOP)


def test_held_back_text_belongs_to_a_reply_that_ends() -> None:
    assert told("Bye EN", stop=("END",)) == (["Bye", " EN"], None)


def test_newline_as_stop_string_survives_a_reply_that_begins_with_one() -> None:
    assert told("\n\n", "One line.\nTwo", stop=("\n",)) == (["One line."], FinishReason.STOP)


def test_stop_string_that_only_the_end_completes_is_found() -> None:
    assert told("a <", stop=("<",)) == (["a"], FinishReason.STOP)


def test_empty_stop_strings_and_names_mean_nothing() -> None:
    assert told("Hello: you", stop=("",), others=("", " ")) == (["Hello: you"], None)


# --- other speakers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cue", ["Mara:", "MARA:", "**Mara:**", "**mara**:", "*Mara*:", "[Mara]:", "  Mara:", "Mara：", "Mara :"])
def test_reply_is_cut_at_the_cue_of_another(cue: str) -> None:
    reply = f"Good evening.\n{cue} And to you."
    assert told(reply, others=("Mara", "Player"))[1] is FinishReason.SPEAKER
    assert text_of(reply, others=("Mara",)) == text_of(*reply, others=("Mara",)) == "Good evening."


def test_names_within_a_line_and_longer_names_are_no_cues() -> None:
    reply = "I like Mara: she sings.\nMarable: a town.\nMara sings. Mar"
    assert told(reply, others=("Mara",)) == ([reply], None)


def test_line_is_held_back_only_while_it_may_become_a_cue() -> None:
    assert told("Ma", "rt", "in:", others=("Mara",))[0] == ["Mart", "in:"]
    assert told("Ma", others=("Mara",))[0] == ["Ma"]


def test_reply_that_is_a_cue_at_once_is_empty() -> None:
    assert told("Player: hi", others=("Player",)) == ([], FinishReason.SPEAKER)


def test_name_that_folds_to_more_characters_is_found() -> None:
    assert told("Ja.\nSTRASSE: Nein.", others=("Straße",)) == (["Ja."], FinishReason.SPEAKER)


# --- circles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit", [LINE + " ", LINE + "\n", "very ", "ha", "!", "我说过桥断了。", "Left, then right.\nRight, then left, I said.\n"]
)
def test_circle_is_ended_soon(unit: str) -> None:
    text, finish = "".join(told(*[unit] * 300)[0]), told(*[unit] * 300)[1]
    assert finish is FinishReason.REPETITION
    assert len(text) <= max(3 * len(unit), 120) + 64


def test_circle_of_sentences_ends_with_a_whole_one() -> None:
    assert text_of("So. ", *[LINE + " "] * 9) == "So. " + " ".join([LINE] * 3)


@pytest.mark.parametrize(
    "refrain",
    [
        "Fight for the king! " * 3,
        "Ha! " * 20,
        f"{LINE} {LINE}",
        "".join(f"Verse {n} is of the number {n}.\nWith a hey and a ho and a hey nonny no!\n" for n in "abcdefgh"),
        "".join(f"{n} bottles of ale on the wall.\n" for n in range(99, 60, -1)),
        "Nooooooooooooooooooooooo!",
    ],
)
def test_refrain_is_no_circle(refrain: str) -> None:
    deltas, finish = told(*refrain)
    assert ("".join(deltas), finish) == (refrain.strip(), None)


# --- narration ----------------------------------------------------------------------------------------------------


def test_text_between_asterisks_is_narration() -> None:
    assert kinds("*si", "ghs*", " Well. *He nods.*") == [("narration", "*sighs*"), ("speech", " Well. "), ("narration", "*He nods.*")]


@pytest.mark.parametrize(
    "speech", ["**Never** again", "2 * 3 and 2*3", "* a list\n* of two", "\\*not\\*", "***", "a *stray\nand more*", "*unclosed", "Hm *"]
)
def test_other_asterisks_are_speech(speech: str) -> None:
    assert kinds(*speech) == kinds(speech) == [("speech", speech)]


def test_emphasis_within_a_narration_is_narration() -> None:
    text = "*he **really** nods* Yes."
    assert kinds(*text) == [("narration", "*he **really** nods*"), ("speech", " Yes.")]


def test_narration_is_not_kept_from_the_player_until_it_ends() -> None:
    long = "*The innkeeper wipes the counter, looks up and"
    pieces, _ = pieces_of([long.encode()], ReplyRules())
    reply = ReplyText(ReplyRules())
    assert reply.push(long.encode()).pieces == (Piece(long, "narration"),)
    assert pieces == [Piece(long, "narration")]
    assert kinds(*long, "\nWell?") == [("narration", long), ("speech", "\nWell?")]


def test_nothing_comes_out_after_the_end() -> None:
    reply = ReplyText(ReplyRules(stop=("x",)))
    assert reply.push(b"ax").finish is FinishReason.STOP
    assert reply.push(b"more") == Pushed((), FinishReason.STOP)
    assert reply.close() == ()


# --- whatever the tokens ------------------------------------------------------------------------------------------

SCRAPS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<thi",
        "nk>",
        "<",
        "*",
        "**",
        "\n",
        " ",
        "Mara:",
        "Mara",
        "ma",
        "STOP",
        "ST",
        "END",
        "ND",
        "a",
        "é",
        "🐉",
        LINE,
        "ha ",
        ".",
    ]
).map(str.encode)
REPLIES = st.lists(SCRAPS | st.binary(max_size=3), max_size=60).map(b"".join)
RULES = ReplyRules(stop=("STOP", "END", "TEN", "*\n"), others=("Mara", "m"))


def cut_at(reply: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(reply) + 1) for place in places), len(reply)]
    return [reply[a:b] for a, b in pairwise(edges)]


def runs(pieces: list[Piece]) -> list[tuple[str, str]]:
    return [(kind, "".join(piece.text for piece in run)) for kind, run in groupby(pieces, lambda piece: piece.kind)]


@settings(derandomize=True, max_examples=400, deadline=None)
@given(REPLIES, st.lists(st.integers(0, 10_000), max_size=20))
def test_what_is_shown_does_not_depend_on_how_bytes_are_cut_into_tokens(reply: bytes, places: list[int]) -> None:
    whole, finish = pieces_of([reply], RULES)
    for tokens in (cut_at(reply, places), [bytes((byte,)) for byte in reply]):
        pieces, other_finish = pieces_of(tokens, RULES)
        assert (runs(pieces), other_finish) == (runs(whole), finish)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(REPLIES)
def test_every_reply_keeps_the_promises_of_its_rules(reply: bytes) -> None:
    pieces, _ = pieces_of([bytes((byte,)) for byte in reply], RULES)
    text = "".join(piece.text for piece in pieces)
    assert all(piece.text and piece.text.encode() for piece in pieces)
    assert text == text.strip()
    assert not any(stop in text for stop in RULES.stop)
    assert "<think>" not in text
    assert not any(line.strip(" \t\r").casefold().startswith(("mara:", "m:")) for line in text.split("\n"))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["ha", "na na", LINE, "No. ", "\n", "x", "我"]), min_size=20, max_size=120),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_circles_are_seen_at_the_same_place_however_they_arrive(words: list[str], places: list[int]) -> None:
    reply = "".join(word * (1 + len(word) % 3) for word in words).encode()
    assert "".join(p.text for p in pieces_of(cut_at(reply, places), ReplyRules())[0]) == "".join(
        p.text for p in pieces_of([reply], ReplyRules())[0]
    )
