"""What a say becomes, and what its client hears: the book of open turns by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import AdapterFile, Character
from personae.prompt import PromptBuilder
from personae.scheduler.actions import EndTurn, FailTurn, Speak
from personae.service.npcs import Npc, Npcs
from personae.service.sessions import Session
from personae.service.turns import Turns, others_of
from personae.types import AdapterKey, AdapterUse, FinishReason, Limits, Piece, Priority, TurnId, Usage
from personae.wire.messages import Say

N_CTX = 512
VOICE = AdapterFile(Path("/packs/guard/voice.gguf"), 0.5, AdapterKey("ab" * 32))
GUARD = Character("guard", "Guard", "You guard the gate.", Path("/packs/guard"), "00")


def say(**fields: object) -> Say:
    return Say.model_validate({"id": 7, "npc": "guard", "text": "Open the gate!", **fields})


@pytest.fixture
def npc() -> Npc:
    return Npcs(most=1, most_lines=10).spawn(GUARD, None, "Tom")


@pytest.fixture
def session() -> Session:
    return Session("s", "test", b"r", 0.0)


@pytest.fixture
def turns() -> Turns:
    vocabulary = FakeVocabulary()
    return Turns(vocabulary, PromptBuilder(vocabulary, n_ctx=N_CTX), n_ctx=N_CTX, seed=1)


def ended(turn: TurnId, finish: FinishReason = FinishReason.END, reply: bytes = b"") -> EndTurn:
    return EndTurn(turn, finish, Usage(), tuple(reply), 0.0, 1.0, 2.0)


def test_the_next_prompt_begins_with_this_one_its_reply_and_its_tail(turns, npc, session) -> None:
    asked = turns.ask(say(), npc, GUARD, session, 0.0)
    turns.speak(Speak(asked.turn, (Piece("No."),)))
    turns.end(ended(asked.turn, reply=b"No."))
    known = asked.prompt + tuple(b"No.") + asked.tail
    assert asked.tail
    again = turns.ask(say(id=8, text="Why?"), npc, GUARD, session, 0.0)
    assert again.prompt[: len(known)] == known
    assert bytes(token for token in again.prompt[len(known) :] if token < 256).startswith(b"Why?")


def test_adapter_is_the_one_the_pack_has_when_the_turn_is_asked(turns, npc, session) -> None:
    asked = turns.ask(say(), npc, GUARD, session, 0.0)
    assert (asked.adapter, asked.adapter_path) == (None, "")
    turns.end(ended(asked.turn))
    changed = turns.ask(say(), npc, replace(GUARD, adapter=VOICE, name="Captain"), session, 0.0)
    assert changed.adapter == AdapterUse(VOICE.key, 0.5)
    assert changed.adapter_path == str(VOICE.path)
    _, done = turns.end(ended(changed.turn))
    assert done["adapter"] == VOICE.key
    assert npc.name == "Captain"


def test_request_overrides_the_pack_and_the_pack_the_service(turns, npc, session) -> None:
    pack = replace(GUARD, limits={"max_tokens": 30}, sampling={"temperature": 0.1, "top_k": 5}, stop=("##",))
    asked = turns.ask(say(max_seconds=2.0, stop=["!"], sampling={"top_k": 9}, priority="ambient"), npc, pack, session, 0.0)
    assert asked.limits == Limits(30, 2.0)
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.min_p) == (0.1, 9, 0.05)
    assert asked.rules.stop == ("##", "!")
    assert asked.rules.others == ("Tom",)
    assert asked.priority is Priority.AMBIENT


def test_long_reply_is_promised_half_of_the_context_at_the_most(turns, npc, session) -> None:
    asked = turns.ask(say(max_tokens=4096), npc, GUARD, session, 0.0)
    assert asked.limits.max_tokens == 4096
    assert len(asked.prompt) <= N_CTX // 2


def test_refused_say_leaves_npc_and_session_as_they_were(turns, npc, session) -> None:
    with pytest.raises(AskedWrong) as refusal:
        turns.ask(say(text="x" * 600), npc, GUARD, session, 0.0)
    assert refusal.value.code == "text_too_long"
    assert (npc.turn, session.open, len(turns), session.last_say) == (None, {}, 0, 0)


def test_text_is_the_pieces_joined_and_speech_leaves_narration_out(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, GUARD, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("*nods*", "narration"), Piece(" Aye."))))
    _, deltas = turns.speak(Speak(turn, (Piece(" Pass."),)))
    assert deltas == [{"type": "delta", "id": 7, "npc": "guard", "text": " Pass.", "kind": "speech"}]
    _, done = turns.end(ended(turn, reply=b"*nods* Aye. Pass."))
    assert (done["text"], done["speech"]) == ("*nods* Aye. Pass.", "Aye. Pass.")


def test_failed_turn_is_one_error_and_leaves_no_line(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, GUARD, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("Ha"),)))
    _, error = turns.fail(FailTurn(turn, "engine_lost", "Gone.", "Again.", 300))
    assert (error["id"], error["code"], error["retry_after_ms"]) == (7, "engine_lost", 300)
    assert (npc.lines, npc.turn, session.open) == ([], None, {})
    assert turns.end(ended(turn)) is None
    assert turns.fail(FailTurn(turn, "internal", "")) is None


def test_turns_of_a_lost_connection_end_in_silence_and_still_count_as_heard(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, GUARD, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("Who goes"),)))
    assert turns.mute(session) == [turn]
    assert session.open == {}
    assert turns.speak(Speak(turn, (Piece(" there"),))) is None
    assert turns.end(ended(turn, FinishReason.CANCELLED)) is None
    assert [line.text for line in npc.lines] == ["Open the gate!", "Who goes"]


def test_npc_may_not_speak_for_those_who_spoke_to_it_but_may_begin_with_its_own_name(turns, npc, session) -> None:
    for speaker in ("Ada", "Guard", "Ada"):
        asked = turns.ask(say(speaker=speaker), npc, GUARD, session, 0.0)
        turns.speak(Speak(asked.turn, (Piece("Hm."),)))
        turns.end(ended(asked.turn, reply=b"Hm."))
    assert others_of(npc, npc.lines[0]) == ("Tom", "Ada")
