"""How much of a text was heard: characters and sentences, in the scripts that games are written in."""

from __future__ import annotations

import time

import pytest

from personae.service.heard import heard_part, sentence_ends


def sentences(text: str) -> list[str]:
    start, found = 0, []
    for end in sentence_ends(text):
        found.append(text[start:end].strip())
        start = end
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Halt! Who goes there?", ["Halt!", "Who goes there?"]),
        ("No end to it", ["No end to it"]),
        ("Well... I do not know… Perhaps.", ["Well...", "I do not know…", "Perhaps."]),
        ("What?! Never.", ["What?!", "Never."]),
        ('He said "Run!" and ran. "Now?" "Now."', ['He said "Run!"', "and ran.", '"Now?"', '"Now."']),
        ("“Come in.” ‘Sit down.’ (Quietly.) Eat.", ["“Come in.”", "‘Sit down.’", "(Quietly.)", "Eat."]),
        ("*wipes a mug.* Evening.", ["*wipes a mug.*", "Evening."]),
        ("Mr. Brown met Dr. Grey. They left.", ["Mr. Brown met Dr. Grey.", "They left."]),
        ("J. R. Ward pays 3.50 a night. Cheap!", ["J. R. Ward pays 3.50 a night.", "Cheap!"]),
        ("It was I. You knew.", ["It was I.", "You knew."]),
        ("旅人よ。何が欲しい？水だ！", ["旅人よ。", "何が欲しい？", "水だ！"]),
        ("「入れ。」と彼は言った。", ["「入れ。」", "と彼は言った。"]),
        ("ماذا تريد؟ اذهب.", ["ماذا تريد؟", "اذهب."]),
        ("वह गया। फिर आया॥", ["वह गया।", "फिर आया॥"]),
        ("One line\nAnother line\n\nA third", ["One line", "Another line", "A third"]),
        ("Done.  \n", ["Done."]),
        ("", []),
        (" \n ", []),
        ("...", ["..."]),
    ],
)
def test_sentences_end_where_a_voice_pauses(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_ends_ascend_and_the_last_is_that_of_what_can_be_seen() -> None:
    text = 'A. "B?" C… 旅。\n\nD  '
    ends = list(sentence_ends(text))
    assert ends == sorted(set(ends))
    assert ends[-1] == len(text.rstrip())


@pytest.mark.parametrize(
    ("chars", "expected"),
    [(0, ""), (1, "G"), (5, "Grüße"), (7, "Grüße,"), (8, "Grüße, 旅"), (10, "Grüße, 旅人! "), (99, "Grüße, 旅人! ")],
)
def test_characters_are_code_points_and_no_space_is_left_at_the_cut(chars: int, expected: str) -> None:
    assert heard_part("Grüße, 旅人! ", chars=chars) == expected


@pytest.mark.parametrize(("n", "expected"), [(0, ""), (1, "Halt!"), (2, "Halt! Who goes there?"), (3, "Halt! Who goes there?")])
def test_so_many_sentences_from_the_start(n: int, expected: str) -> None:
    assert heard_part("Halt! Who goes there?", sentences=n) == expected


def test_text_heard_to_its_end_is_left_as_it_was() -> None:
    assert heard_part("Halt! \n", sentences=1) == heard_part("Halt! \n", chars=5) == "Halt! \n"
    assert heard_part("", chars=3) == heard_part("", sentences=0) == ""


@pytest.mark.parametrize("text", ["." * 40_000 + "x", ".*" * 20_000 + "x", "a. " * 20_000, "!" * 40_000 + '"' * 20_000 + "x"])
def test_text_of_nothing_but_marks_is_counted_in_a_moment(text: str) -> None:
    began = time.process_time()
    list(sentence_ends(text))
    assert time.process_time() - began < 2.0  # a minute when every mark was looked at from every other
