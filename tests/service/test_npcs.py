from __future__ import annotations

from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.service.npcs import Npc, Npcs
from personae.types import FinishReason, NpcId, TurnId
from personae.wire.messages import Heard

VOCABULARY = FakeVocabulary()
HEARD = Line("Player", "Good evening.", False)
TURN = TurnId(1)


def character(name: str = "innkeeper", greeting: str = "") -> Character:
    return Character(name, name.title(), "You keep the inn.", Path("/packs") / name, "00", greeting=greeting)


@pytest.fixture
def npcs() -> Npcs:
    return Npcs(most=3, most_lines=8)


@pytest.fixture
def npc(npcs) -> Npc:
    return npcs.spawn(character(), None, None)


def commit(npc: Npc, reply: str, finish: FinishReason = FinishReason.END, drawn: str | None = None) -> None:
    npc.commit(TURN, HEARD, reply, finish, tuple((reply if drawn is None else drawn).encode()), VOCABULARY)


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
    npc.commit(TURN, HEARD, "Gr�", FinishReason.LENGTH, tuple("Grü".encode()[:-1]), VOCABULARY)
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


# --- what is witnessed while it speaks ----------------------------------------------------------------------------------


def texts(npc: Npc) -> list[str]:
    return [line.text for line in npc.lines]


def test_what_is_witnessed_in_mid_reply_stands_after_the_reply(npc) -> None:
    npc.begin(TURN)
    npc.witness(Line("", "The door slams.", False))
    assert texts(npc) == ["The door slams."]  # at once, so that it is not lost whatever becomes of the turn
    commit(npc, "Evening.")
    assert texts(npc) == ["Good evening.", "Evening.", "The door slams."]


def test_turn_that_never_began_is_put_at_the_end(npc) -> None:
    npc.begin(TURN)
    npc.witness(Line("Ada", "Hm.", False))
    npc.commit(TurnId(2), Line("Bo", "Hurry up.", False), "A moment!", FinishReason.DEADLINE, (), VOCABULARY)
    assert npc.turn == TURN
    commit(npc, "Evening.")
    assert texts(npc) == ["Good evening.", "Evening.", "Hm.", "Hurry up.", "A moment!"]


def test_history_that_is_trimmed_in_mid_reply_keeps_the_reply_in_its_place(npc) -> None:
    for number in range(3):
        commit(npc, f"Reply {number}.")
    npc.begin(TURN)
    for number in range(3):
        npc.witness(Line("", f"Event {number}.", False))
    assert len(npc.lines) == 7
    commit(npc, "Late.")
    assert texts(npc)[-4:] == ["Late.", "Event 0.", "Event 1.", "Event 2."]


# --- what was heard -------------------------------------------------------------------------------------------------------


def spoken(npcs: Npcs, reply: str = "One. Two. Three.") -> Npc:
    npc = npcs.spawn(character(), None, None)
    commit(npc, reply)
    return npc


def test_reply_is_cut_to_what_was_heard_and_is_text_from_then_on(npcs) -> None:
    npc = spoken(npcs)
    assert npc.lines[1].tokens is not None
    assert npc.cut_last(Heard(sentences=2)) == len(" Three.")
    assert npc.lines == [HEARD, Line("Innkeeper", "One. Two.", True)]


def test_reply_that_was_heard_to_its_end_keeps_its_tokens(npcs) -> None:
    npc = spoken(npcs)
    assert npc.cut_last(Heard(chars=16)) == npc.cut_last(Heard(sentences=9)) == 0
    assert npc.lines[1].tokens is not None


def test_reply_of_which_nothing_was_heard_never_happened_and_the_question_goes_with_it_if_it_is_taken_back(npcs) -> None:
    spoken_over, taken_back = spoken(npcs), spoken(npcs)
    assert spoken_over.cut_last(Heard(chars=0)) == 16
    assert spoken_over.lines == [HEARD]
    assert taken_back.cut_last(Heard(chars=0), with_question=True) == 16
    assert taken_back.lines == []


def test_reply_that_answered_nothing_takes_no_line_of_another_with_it(npcs) -> None:
    npc = npcs.spawn(character(), None, None)
    npc.witness(Line("Ada", "Quiet tonight.", False))
    npc.commit(TURN, None, "Indeed.", FinishReason.END, (), VOCABULARY)
    assert npc.cut_last(Heard(chars=0), with_question=True) == 7
    assert texts(npc) == ["Quiet tonight."]


def test_nothing_is_cut_when_somebody_has_spoken_since(npcs) -> None:
    npc = spoken(npcs)
    npc.witness(Line("Ada", "Hm.", False))
    assert npc.cut_last(Heard(chars=0)) == 0
    assert texts(npc)[1] == "One. Two. Three."


def test_interrupted_before_a_word_was_heard_keeps_the_question(npc) -> None:
    commit(npc, "", FinishReason.INTERRUPTED)
    assert npc.lines == [HEARD]


# --- memories and edits ---------------------------------------------------------------------------------------------------


def test_memory_of_lines_counts_on_when_the_oldest_of_them_go(npc) -> None:
    for number in range(4):
        commit(npc, f"Reply {number}.")
    npc.unseen = 6
    edition, until = npc.edition, npc.n_trimmed + 6
    commit(npc, "Reply 4.")  # two lines go
    assert npc.unseen == 4
    assert npc.remember("They talked.", edition, until)
    assert (npc.memories, npc.remembered) == (["They talked."], 4)


def test_memory_of_a_history_that_was_rewritten_meanwhile_is_dropped(npc) -> None:
    commit(npc, "Evening.")
    edition = npc.edition
    npc.rewrite(npc.lines[:1])
    assert not npc.remember("They talked.", edition, 2)
    assert npc.memories == []


def test_memories_are_bounded_and_the_oldest_goes(npc) -> None:
    for number in range(70):
        npc.remember(f"Memory {number}.", npc.edition, 0)
    assert (len(npc.memories), npc.memories[0], npc.memories[-1]) == (64, "Memory 6.", "Memory 69.")


def test_edit_below_what_is_summed_up_lets_it_be_summed_up_again(npc) -> None:
    for number in range(3):
        commit(npc, f"Reply {number}.")
    npc.remembered = 4
    npc.rewrite([*npc.lines[:2], Line("Player", "Something else.", False), *npc.lines[3:]])
    assert npc.remembered == 2
    npc.rewrite(npc.lines[:1])
    assert npc.remembered == 1


# --- seeds and restored NPCs ----------------------------------------------------------------------------------------------


def test_seeds_of_turns_follow_from_the_npc_and_the_number_of_the_turn() -> None:
    one, same, other = (Npc(NpcId(name), "c", "C", "P", 8, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    same.asked = one.asked = 3
    assert one.turn_seed == same.turn_seed
    assert len({one.turn_seed, other.turn_seed, Npc(NpcId("a"), "c", "C", "P", 8, seed=5).turn_seed}) == 3
    assert 0 <= one.turn_seed <= 2**32 - 2


def test_seed_of_an_npc_is_drawn_by_chance_unless_the_service_has_one() -> None:
    def seed_of(service: int | None, npc_id: str) -> int:
        return Npcs(most=1, most_lines=8, seed=service).spawn(character(), npc_id, None).seed

    assert seed_of(1, "mira") == seed_of(1, "mira")
    assert len({seed_of(1, "mira"), seed_of(2, "mira"), seed_of(1, "tom")}) == 3
    assert seed_of(None, "mira") != seed_of(None, "mira")


def test_restored_npc_is_taken_in_under_the_same_rules(npcs, npc) -> None:
    restored = Npc(NpcId("mira"), "innkeeper", "Mira", "Tom", 8)
    npcs.adopt(restored)
    assert npcs["mira"] is restored
    assert list(npcs) == [npc, restored]
    with pytest.raises(AskedWrong, match="'mira'"):
        npcs.adopt(Npc(NpcId("mira"), "innkeeper", "Mira", "Tom", 8))


def test_history_that_is_given_back_as_it_was_keeps_tokens_and_what_is_summed_up(npcs) -> None:
    npc = spoken(npcs)
    npc.remembered = 2
    npc.rewrite([*(Line(line.speaker, line.text, line.is_npc) for line in npc.lines), Line("Ada", "Hm.", False)])
    assert npc.remembered == 2
    assert npc.lines[1].tokens is not None
