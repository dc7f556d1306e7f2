from __future__ import annotations

from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.service.npcs import Npc, Npcs
from personae.types import FinishReason

VOCABULARY = FakeVocabulary()
HEARD = Line("Player", "Good evening.", False)


def character(name: str = "innkeeper", greeting: str = "") -> Character:
    return Character(name, name.title(), "You keep the inn.", Path("/packs") / name, "00", greeting=greeting)


@pytest.fixture
def npcs() -> Npcs:
    return Npcs(most=3, most_lines=8)


@pytest.fixture
def npc(npcs) -> Npc:
    return npcs.spawn(character(), None, None)


def commit(npc: Npc, reply: str, finish: FinishReason = FinishReason.END, drawn: str | None = None) -> None:
    npc.commit(HEARD, reply, finish, tuple((reply if drawn is None else drawn).encode()), VOCABULARY)


def test_greeting_is_the_first_line(npcs) -> None:
    npc = npcs.spawn(character(greeting="Come in."), None, None)
    assert npc.lines == [Line("Innkeeper", "Come in.", True)]


def test_ids_are_the_character_s_own_then_numbered(npcs) -> None:
    assert [npcs.spawn(character(), None, None).id for _ in range(3)] == ["innkeeper", "innkeeper-2", "innkeeper-3"]


def test_taken_id_and_full_house_are_refused_by_name(npcs) -> None:
    npcs.spawn(character(), "Mira", None)
    with pytest.raises(AskedWrong, match="'Mira'") as refusal:
        npcs.spawn(character(), "Mira", None)
    assert refusal.value.code == "npc_exists"
    npcs.spawn(character(), None, None)
    npcs.spawn(character(), None, None)
    with pytest.raises(AskedWrong) as refusal:
        npcs.spawn(character(), None, None)
    assert refusal.value.code == "too_many_npcs"


def test_despawned_npc_is_unknown(npcs, npc) -> None:
    npcs.despawn(npc.id)
    with pytest.raises(AskedWrong) as refusal:
        npcs[npc.id]
    assert refusal.value.code == "unknown_npc"


@pytest.mark.parametrize("finish", [FinishReason.END, FinishReason.LENGTH])
def test_whole_reply_keeps_the_tokens_it_was_drawn_as(npc, finish) -> None:
    commit(npc, "Evening.", finish, drawn=" Evening.\n")
    assert npc.lines == [HEARD, Line("Innkeeper", "Evening.", True, tuple(b" Evening.\n"))]


@pytest.mark.parametrize(
    ("finish", "drawn"),
    [
        (FinishReason.END, "<think>hm</think>Evening."),
        (FinishReason.STOP, "Evening."),
        (FinishReason.SPEAKER, "Evening.\nPlayer:"),
        (FinishReason.CANCELLED, "Evening."),
        (FinishReason.TIME, "Evening."),
    ],
)
def test_reply_that_was_cut_or_filtered_is_kept_as_text(npc, finish, drawn) -> None:
    commit(npc, "Evening.", finish, drawn)
    assert npc.lines == [HEARD, Line("Innkeeper", "Evening.", True, None)]


def test_reply_torn_within_a_character_is_kept_as_text(npc) -> None:
    npc.commit(HEARD, "Gr�", FinishReason.LENGTH, tuple("Grü".encode()[:-1]), VOCABULARY)
    assert npc.lines[1].tokens is None


def test_cancelled_before_a_word_was_heard_leaves_no_trace(npc) -> None:
    commit(npc, "", FinishReason.CANCELLED)
    assert npc.lines == []


def test_reply_in_circles_is_not_remembered_but_the_question_is(npc) -> None:
    commit(npc, "The bridge is out. The bridge is out.", FinishReason.REPETITION)
    assert npc.lines == [HEARD]


def test_silence_is_no_line(npc) -> None:
    commit(npc, " \n", FinishReason.END)
    assert npc.lines == [HEARD]


def test_history_is_bounded_and_its_oldest_lines_go_several_at_once(npc) -> None:
    for number in range(4):
        commit(npc, f"Reply {number}.")
    assert len(npc.lines) == 8
    commit(npc, "Reply 4.")
    assert [line.text for line in npc.lines if line.is_npc] == ["Reply 1.", "Reply 2.", "Reply 3.", "Reply 4."]
