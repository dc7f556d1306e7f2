"""Saves: what is in them, what of them is believed, and that an NPC goes on from one as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.service.npcs import Npc
from personae.service.roster import Roster
from personae.service.saves import MARK, MAX_LINES, MAX_NPCS, SavedNpc, document_of, read_document
from personae.types import MixMode, ModelCard, NpcId
from tests.service.house import Peer

CARD = ModelCard("m", "a", "ab" * 32, 1, 300, 2048, 8, MixMode.MIXED)
GUARD = Character("guard", "Guard", "You are Guard.", Path("guard"), "cd" * 32)
ROSTER = Roster({"guard": GUARD})
VOCABULARY = FakeVocabulary()


def drawn(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.tokenize(text, special=False))


def guard(n_lines: int = 2) -> Npc:
    lines = [Line("Player", f"Halt, {number}?", False) for number in range(n_lines)]
    lines[1::2] = [Line("Guard", text := f"Pass, number {number}.", True, drawn(text)) for number in range(n_lines // 2)]
    return Npc(
        NpcId("the guard"), "guard", "Guard", "Hero", 400, lines=lines, memories=["It rained."], seed=2**64 - 1, asked=7, remembered=1
    )


def saved(npc: Npc | None = None) -> dict:
    """As it comes back: through JSON."""
    return dict(json.loads(json.dumps(document_of([npc or guard()], CARD, ROSTER))))


def one(document: dict) -> SavedNpc:
    save = read_document(document)
    assert save.problems == ()
    (npc,) = save
    return npc


def revived(document: dict, *, base: str = CARD.content_hash, character: Character = GUARD, most_lines: int = 400) -> Npc:
    return one(document).to_npc(character, base=base, vocabulary=VOCABULARY, most_lines=most_lines)


# --- the document -------------------------------------------------------------------------------------------------------


def test_npc_comes_out_of_its_save_as_it_went_in() -> None:
    npc, again = guard(), revived(saved())
    for field in ("id", "character", "name", "player", "most_lines", "lines", "memories", "seed", "asked", "remembered", "adapter"):
        assert getattr(again, field) == getattr(npc, field), field
    assert again.turn is None
    assert again.lines[1].tokens == drawn("Pass, number 0.")


def test_save_says_when_and_under_which_base_and_pack_it_was_made() -> None:
    document = saved()
    assert document[MARK] == 1
    assert document["saved_at"].endswith("+00:00")
    assert document["base"] == CARD.content_hash
    assert document["npcs"][0]["character_hash"] == GUARD.content_hash


def test_save_of_fifty_lines_is_kilobytes_and_few_values() -> None:
    document = saved(guard(50))
    assert len(json.dumps(document)) < 8 << 10
    assert len(msgpack.packb(document)) < 8 << 10


def test_tokens_of_another_base_are_ignored() -> None:
    again = revived(saved(), base="ef" * 32)
    assert [line.text for line in again.lines] == ["Halt, 0?", "Pass, number 0."]
    assert again.lines[1].tokens is None


@pytest.mark.parametrize("tokens", ["1 2 3", "999999999", "0", "70 71"])
def test_tokens_that_do_not_spell_the_text_beside_them_are_not_believed(tokens) -> None:
    document = saved()
    document["npcs"][0]["history"][1]["tokens"] = tokens
    assert revived(document).lines[1].tokens is None


def test_control_tokens_among_those_that_spell_the_text_are_not_believed() -> None:
    control = next(token for token in range(VOCABULARY.n_vocab) if VOCABULARY.piece(token) == b"")
    document = saved()
    document["npcs"][0]["history"][1]["tokens"] += f" {control}"
    assert revived(document).lines[1].tokens is None


def test_name_and_adapter_are_the_pack_s_of_today() -> None:
    today = Character("guard", "Captain", "You are Captain.", Path("guard"), "99" * 32)
    again = revived(saved(), character=today)
    assert again.name == "Captain"
    assert [line.speaker for line in again.lines] == ["Player", "Guard"]


def test_history_longer_than_an_npc_may_have_loses_its_oldest_lines() -> None:
    again = revived(saved(guard(50)), most_lines=10)
    assert len(again.lines) == 10
    assert again.lines[-1] == guard(50).lines[-1]
    assert again.remembered == 0


def test_keys_of_a_later_writer_are_ignored_and_missing_ones_have_defaults() -> None:
    document = {MARK: 1, "npcs": [{"npc": "x", "character": "guard", "mood": {"fear": 3}}], "weather": "rain"}
    again = revived(document)
    assert (again.id, again.player, again.lines, again.memories, again.asked) == ("x", "Player", [], [], 0)


def test_event_that_nobody_told_has_no_speaker() -> None:
    npc = guard()
    npc.lines.append(Line("", "A door slams.", False))
    assert revived(saved(npc)).lines[-1] == Line("", "A door slams.", False)


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "save",
        {},
        {MARK: "1", "npcs": []},
        {MARK: True, "npcs": []},
        {MARK: 0, "npcs": []},
        {MARK: 1},
        {MARK: 1, "npcs": {}},
        {MARK: 1, "npcs": [], "base": 7},
        {MARK: 1, "npcs": [], "saved_at": None},
        {MARK: 1, "npcs": [None] * (MAX_NPCS + 1)},
    ],
)
def test_what_is_no_save_is_refused_as_a_whole(document) -> None:
    with pytest.raises(AskedWrong) as refusal:
        read_document(document)
    assert refusal.value.code == "bad_save"


def test_save_of_a_later_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(AskedWrong, match="version 2; this service reads up to 1") as refusal:
        read_document({MARK: 2, "npcs": "who knows"})
    assert refusal.value.code == "save_version"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("npc", None),
        ("npc", ""),
        ("npc", "a\nb"),
        ("npc", "\ud800"),
        ("character", 3),
        ("history", {}),
        ("history", [["Player", "Hi"]]),
        ("history", [{"speaker": "Guard: yes\nPlayer", "text": "Hi"}]),
        ("history", [{"speaker": "Player", "text": b"Hi"}]),
        ("history", [{"speaker": "Player", "text": "Hi", "is_npc": 1}]),
        ("history", [{"speaker": "Player", "text": "Hi", "tokens": "1,2"}]),
        ("history", [{"speaker": "Player", "text": "Hi", "tokens": [1, 2]}]),
        ("history", [{"speaker": "Player", "text": "Hi"}] * (MAX_LINES + 1)),
        ("history", [{"speaker": "Player", "text": "x" * ((1 << 20) + 1)}]),
        ("memories", "It rained."),
        ("seed", 5),
        ("asked", -1),
        ("remembered", 2**60),
        ("kv", {"file": 1, "tokens": 1}),
    ],
)
def test_npc_that_cannot_be_read_is_a_problem_of_its_own_and_the_others_are_read(field, value) -> None:
    document = saved()
    document["npcs"] = [{**document["npcs"][0], field: value}, {"npc": "cook", "character": "guard"}]
    save = read_document(document)
    assert [npc.npc for npc in save] == ["cook"]
    (problem,) = save.problems
    assert problem.code == "bad_save"
    assert f"`{field}" in problem.message
    assert "of 'the guard'" in problem.message or field == "npc"
    msgpack.packb(problem.to_wire())


def test_npc_that_is_in_a_save_twice_is_taken_once() -> None:
    document = saved()
    document["npcs"] *= 2
    save = read_document(document)
    assert len(save.npcs) == 1
    assert [problem.npc for problem in save.problems] == ["the guard"]


@pytest.mark.parametrize("entry", [None, 3, "guard", [], {1: 2}])
def test_entry_that_is_no_npc_at_all_is_named_by_its_number(entry) -> None:
    save = read_document({MARK: 1, "npcs": [{"npc": "cook", "character": "guard"}, entry]})
    assert [npc.npc for npc in save] == ["cook"]
    assert "NPC 2 of the save" in save.problems[0].message


# --- over the wire ----------------------------------------------------------------------------------------------------------


def told(peer: Peer, npc: str = "guard") -> list[str]:
    return [line["text"] for line in peer.ask("history", npc=npc)["lines"]]


def talked(peer: Peer, npc: str = "guard", character: str = "guard") -> None:
    """An NPC that has been spoken to and has a memory."""
    peer.ask("spawn", character=character, npc=npc, player="Hero")
    assert peer.ask("say", npc=npc, text="fake:say:Halt.")["text"] == "Halt."
    peer.ask("memories", npc=npc, set=["It rained."])


def test_npc_restored_in_a_new_service_goes_on_with_its_text_its_memories_and_its_luck(serve, connect) -> None:
    first, second = connect(serve()), connect(serve())
    talked(first)
    document = first.ask("save")["document"]
    undisturbed = first.ask("say", npc="guard", text="And now?")
    answer = second.ask("restore", document=document)
    assert answer["restored"] == [
        {"npc": "guard", "character": "guard", "lines": 2, "kv": "none", "kv_reason": answer["restored"][0]["kv_reason"]}
    ]
    assert answer["problems"] == []
    assert second.ask("memories", npc="guard")["memories"] == ["It rained."]
    restored = second.ask("say", npc="guard", text="And now?")
    assert (restored["text"], restored["seed"]) == (undisturbed["text"], undisturbed["seed"])
    assert restored["usage"]["prompt"] == undisturbed["usage"]["prompt"]
    assert told(second) == told(first)


def test_restore_touches_an_npc_that_is_there_only_where_it_is_told_to(serve, connect) -> None:
    peer = connect(serve())
    talked(peer)
    document = peer.ask("save", npcs=["guard"])["document"]
    peer.ask("say", npc="guard", text="fake:say:Later.")
    answer = peer.ask("restore", document=document)
    assert (answer["restored"], [problem["code"] for problem in answer["problems"]]) == ([], ["npc_exists"])
    assert len(told(peer)) == 4
    assert [one["npc"] for one in peer.ask("restore", document=document, replace=True)["restored"]] == ["guard"]
    assert told(peer) == ["fake:say:Halt.", "Halt."]


def test_restored_npc_speaks_as_its_pack_is_today(serve, connect, characters) -> None:
    first = connect(serve())
    talked(first)
    document = first.ask("save")["document"]
    (characters / "guard" / "character.toml").write_text('name = "Captain"\npersona = "You are the captain."\n', encoding="utf-8")
    second = connect(serve())
    second.ask("restore", document=document)
    assert second.ask("say", npc="guard", text="fake:say:Aye.")["text"] == "Aye."
    assert [line["speaker"] for line in second.ask("history", npc="guard")["lines"]] == ["Hero", "Guard", "Hero", "Captain"]


def test_character_that_is_gone_costs_its_npcs_alone(serve, connect, characters) -> None:
    first = connect(serve())
    talked(first)
    talked(first, "keeper", "innkeeper")
    document = first.ask("save")["document"]
    (characters / "innkeeper" / "character.toml").unlink()
    answer = connect(serve()).ask("restore", document=document)
    assert [one["npc"] for one in answer["restored"]] == ["guard"]
    assert [(problem["npc"], problem["code"]) for problem in answer["problems"]] == [("keeper", "unknown_character")]


def test_save_of_another_base_is_restored_as_text(serve, connect) -> None:
    first, second = connect(serve()), connect(serve())
    talked(first)
    document = first.ask("save")["document"]
    assert second.ask("restore", document={**document, "base": "ff" * 32})["problems"] == []
    assert told(second) == told(first)


@pytest.mark.parametrize(
    ("change", "code"), [({MARK: 2}, "save_version"), ({MARK: None}, "bad_save"), ({"npcs": 3}, "bad_save"), ({"npcs": [7]}, None)]
)
def test_bad_save_is_refused_and_harms_nobody(serve, connect, change, code) -> None:
    peer = connect(serve())
    talked(peer)
    answer = peer.ask("restore", document={**peer.ask("save")["document"], **change}, replace=True)
    assert answer.get("code") == code
    assert told(peer) == ["fake:say:Halt.", "Halt."]


def test_save_under_a_name_is_restored_from_it_by_another_service(serve, connect, tmp_path) -> None:
    first = serve(state=tmp_path / "state")
    peer = connect(first)
    talked(peer)
    assert peer.ask("save", name="slot-1") == {"type": "done", "id": 5, "npcs": 1, "name": "slot-1", "kv": 0}
    peer.ask("despawn", npc="guard")
    first.stop()
    peer = connect(serve(state=tmp_path / "state"))
    assert peer.ask("history", npc="guard")["code"] == "unknown_npc"
    assert peer.ask("restore", name="slot-2")["code"] == "unknown_save"
    assert [one["npc"] for one in peer.ask("restore", name="slot-1")["restored"]] == ["guard"]
    assert told(peer) == ["fake:say:Halt.", "Halt."]


def test_name_without_a_state_folder_is_refused(serve, connect) -> None:
    peer = connect(serve())
    assert peer.ask("save", name="slot-1")["code"] == "no_state"
    assert peer.ask("restore", name="slot-1")["code"] == "no_state"


@pytest.mark.parametrize("name", ["Old\nMan", "Old\x85Man", "Old\u2028Man"])
def test_name_that_a_pack_has_on_two_lines_costs_nobody_their_save(name: str) -> None:
    npc = guard()
    npc.lines[1] = Line(name, "Pass.", True)
    assert revived(saved(npc)).lines[1].speaker == "Old Man"
