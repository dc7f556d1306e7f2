"""What a say becomes, and what its client hears: the book of open turns by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import AdapterFile, Character, Mood
from personae.prompt import Line, PromptBuilder
from personae.scheduler.actions import EndTurn, FailTurn, Speak
from personae.service.npcs import Npc, Npcs
from personae.service.roster import Roster
from personae.service.sessions import Session
from personae.service.turns import Turns, due_of, others_of
from personae.types import AdapterKey, AdapterSource, AdapterUse, Deadlines, FinishReason, KvSource, Limits, Piece, Priority, TurnId, Usage
from personae.wire.messages import Heard, Say, Warm

N_CTX = 512
PACK = Path("/packs/guard")
VOICE = AdapterFile(PACK, "voice.gguf", 0.5, (1,), 100)
DIALECT = AdapterFile(PACK, "dialect.gguf", 1.0, (2,), 200)
GUARD = Character("guard", "Guard", "You guard the gate.", PACK, "00")


class Adapters:
    """Each file's key is its name's first letter; `refusal`: what the next look at a file comes to."""

    def __init__(self) -> None:
        self.refusal: AskedWrong | None = None

    def source(self, file: AdapterFile) -> AdapterSource:
        if self.refusal is not None:
            raise self.refusal
        return AdapterSource(key_of(file), f"/packs/{file.file}", file.n_bytes)

    def known(self, file: AdapterFile) -> AdapterSource | None:
        return self.source(file)


def key_of(file: AdapterFile) -> AdapterKey:
    return AdapterKey(file.file[0] * 64)


def say(**fields: object) -> Say:
    return Say.model_validate({"id": 7, "npc": "guard", "text": "Open the gate!", **fields})


@pytest.fixture
def npc() -> Npc:
    return Npcs(most=1, most_lines=10).spawn(GUARD, None, "Tom")


@pytest.fixture
def session() -> Session:
    return Session("s", "test", b"r", 0.0)


@pytest.fixture
def roster() -> Roster:
    """A test that wants another pack puts it here."""
    return Roster({"guard": GUARD})


@pytest.fixture
def adapters() -> Adapters:
    return Adapters()


@pytest.fixture
def turns(roster, adapters) -> Turns:
    vocabulary = FakeVocabulary()
    return Turns(vocabulary, PromptBuilder(vocabulary, n_ctx=N_CTX), roster, n_ctx=N_CTX, adapters=adapters)


def text_of(prompt: tuple[int, ...]) -> bytes:
    return bytes(token for token in prompt if token < 256)


def ended(turn: TurnId, finish: FinishReason = FinishReason.END, reply: bytes = b"") -> EndTurn:
    return EndTurn(turn, finish, Usage(), tuple(reply), 0.0, 1.0, 2.0)


def test_the_next_prompt_begins_with_this_one_its_reply_and_its_tail(turns, npc, session) -> None:
    asked = turns.ask(say(), npc, session, 0.0)
    turns.speak(Speak(asked.turn, (Piece("No."),)))
    turns.end(ended(asked.turn, reply=b"No."))
    known = asked.prompt + tuple(b"No.") + asked.tail
    assert asked.tail
    again = turns.ask(say(id=8, text="Why?"), npc, session, 0.0)
    assert again.prompt[: len(known)] == known
    assert bytes(token for token in again.prompt[len(known) :] if token < 256).startswith(b"Why?")


def test_voice_is_the_one_the_pack_has_when_the_turn_is_asked(turns, roster, npc, session) -> None:
    asked = turns.ask(say(), npc, session, 0.0)
    assert (asked.voice, asked.sources) == ((), ())
    turns.end(ended(asked.turn))
    roster.characters["guard"] = replace(GUARD, adapters=(VOICE,), name="Captain")
    changed = turns.ask(say(), npc, session, 0.0)
    assert changed.voice == (AdapterUse(key_of(VOICE), 0.5),)
    assert changed.sources == (AdapterSource(key_of(VOICE), "/packs/voice.gguf", 100),)
    assert turns.files_in_use() == [VOICE]
    (done,) = turns.end(ended(changed.turn)).messages
    assert done["adapter"] == key_of(VOICE)
    assert done["voice"] == [{"adapter": key_of(VOICE), "scale": 0.5}]
    assert npc.name == "Captain"


def test_several_adapters_are_one_voice_in_order_of_their_keys_each_with_its_source(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, adapters=(VOICE, DIALECT, replace(VOICE, scale=0.25)))
    asked = turns.ask(say(), npc, session, 0.0)
    assert asked.voice == (AdapterUse(key_of(DIALECT), 1.0), AdapterUse(key_of(VOICE), 0.75))
    assert [source.key for source in asked.sources] == [key_of(DIALECT), key_of(VOICE)]


def test_adapter_that_cancels_itself_out_is_none(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, adapters=(VOICE, replace(VOICE, scale=-0.5)))
    asked = turns.ask(say(), npc, session, 0.0)
    assert (asked.voice, asked.sources) == ((), ())


def test_adapter_that_is_being_replaced_is_the_request_s_error_and_passes(turns, roster, adapters, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, adapters=(VOICE,))
    adapters.refusal = AskedWrong("adapter_changed", "It has been replaced.", "Ask again.")
    with pytest.raises(AskedWrong) as refusal:
        turns.ask(say(), npc, session, 0.0)
    assert refusal.value.details["retry_after_ms"] > 0
    assert (npc.turn, session.open, len(turns)) == (None, {}, 0)
    adapters.refusal = None
    assert turns.ask(say(), npc, session, 0.0).voice


# --- moods ------------------------------------------------------------------------------------------------------------------

DRUNK = Mood("drunk", style="You slur.", adapters=(DIALECT,), sampling={"temperature": 1.5})


def test_mood_changes_style_voice_and_sampling_of_its_turn_alone(turns, roster, npc, session) -> None:
    sober = replace(GUARD, style="You bark.", adapters=(VOICE,), sampling={"temperature": 0.2, "top_k": 5})
    roster.characters["guard"] = replace(sober, moods={"drunk": DRUNK})
    drunk = turns.ask(say(mood="drunk", sampling={"min_p": 0.25}), npc, session, 0.0)
    assert drunk.voice == (AdapterUse(key_of(DIALECT), 1.0),)
    assert (drunk.sampling.temperature, drunk.sampling.top_k, drunk.sampling.min_p) == (1.5, 5, 0.25)
    assert b"You slur." in text_of(drunk.prompt)
    assert b"You bark." not in text_of(drunk.prompt)
    (done,) = turns.end(ended(drunk.turn)).messages
    assert (done["mood"], done["adapter"]) == ("drunk", key_of(DIALECT))
    usual = turns.ask(say(), npc, session, 0.0)
    assert (usual.voice, usual.sampling.temperature) == ((AdapterUse(key_of(VOICE), 0.5),), 0.2)
    assert b"You bark." in text_of(usual.prompt)
    (done,) = turns.end(ended(usual.turn)).messages
    assert done["mood"] is None


def test_mood_that_says_nothing_of_something_leaves_it_as_it_is(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, style="You bark.", adapters=(VOICE,), moods={"calm": Mood("calm")})
    asked = turns.ask(say(mood="calm"), npc, session, 0.0)
    assert asked.voice == (AdapterUse(key_of(VOICE), 0.5),)
    assert b"You bark." in text_of(asked.prompt)


def test_mood_without_adapters_speaks_with_the_base_alone(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, adapters=(VOICE,), moods={"possessed": Mood("possessed", adapters=())})
    assert turns.ask(say(mood="possessed"), npc, session, 0.0).voice == ()


def test_warm_is_for_the_mood_it_names(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, moods={"drunk": DRUNK})
    warm = turns.ask(Warm(id=7, npc="guard", mood="drunk"), npc, session, 0.0)
    assert warm.voice == (AdapterUse(key_of(DIALECT), 1.0),)
    (done,) = turns.end(ended(warm.turn, FinishReason.WARM)).messages
    assert done["mood"] == "drunk"
    asked = turns.ask(say(id=8, mood="drunk"), npc, session, 0.0)
    assert asked.prompt[: len(warm.prompt)] == warm.prompt


@pytest.mark.parametrize(("moods", "hint"), [({"drunk": DRUNK}, "Known are drunk."), ({}, "It has none.")])
def test_unknown_mood_is_refused_with_those_there_are(turns, roster, npc, session, moods, hint) -> None:
    roster.characters["guard"] = replace(GUARD, moods=moods)
    with pytest.raises(AskedWrong) as refusal:
        turns.ask(say(mood="drnk"), npc, session, 0.0)
    assert (refusal.value.code, refusal.value.hint) == ("unknown_mood", hint)
    assert len(turns) == 0


# --- packs that change ------------------------------------------------------------------------------------------------------


def test_turn_that_waited_has_the_pack_as_it_is_when_it_begins(turns, roster, npc, session) -> None:
    first = turns.ask(say(), npc, session, 0.0)
    turns.wait(say(id=8, text="Why?"), npc, session, 5.0)
    roster.characters["guard"] = replace(GUARD, persona="You are a ghost.", adapters=(VOICE,))
    turns.end(ended(first.turn, FinishReason.INTERRUPTED))
    asked = turns.begin(turns.next_up())
    assert b"You are a ghost." in text_of(asked.prompt)
    assert asked.voice == (AdapterUse(key_of(VOICE), 0.5),)


def test_npc_whose_pack_is_gone_is_refused_by_name_and_speaks_on_when_it_is_back(turns, roster, npc, session) -> None:
    turns.end(ended(turns.ask(say(), npc, session, 0.0).turn, FinishReason.INTERRUPTED))
    gone = roster.characters.pop("guard")
    with pytest.raises(AskedWrong) as refusal:
        turns.ask(say(), npc, session, 0.0)
    assert refusal.value.code == "character_gone"
    assert [line.text for line in npc.lines] == ["Open the gate!"]
    roster.characters["guard"] = gone
    assert turns.ask(say(), npc, session, 0.0).prompt


def test_open_turn_keeps_the_fallback_lines_it_began_with(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, fallback=("One moment.",))
    turn = turns.ask(say(deadline={"first_ms": 10}), npc, session, 0.0).turn
    del roster.characters["guard"]
    done = turns.end(ended(turn, FinishReason.DEADLINE)).messages[-1]
    assert done["fallback"] == "One moment."


# --- limits, texts, failures ------------------------------------------------------------------------------------------------


def test_request_overrides_the_pack_and_the_pack_the_service(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(
        GUARD, limits={"max_tokens": 30, "max_kv": 400}, sampling={"temperature": 0.1, "top_k": 5}, stop=("##",)
    )
    asked = turns.ask(say(max_seconds=2.0, stop=["!"], sampling={"top_k": 9}, priority="ambient"), npc, session, 0.0)
    assert asked.limits == Limits(30, 2.0, 400)
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.min_p) == (0.1, 9, 0.05)
    assert asked.rules.stop == ("##", "!")
    assert asked.rules.others == ("Tom",)
    assert asked.priority is Priority.AMBIENT


def test_long_reply_is_promised_half_of_the_context_at_the_most(turns, npc, session) -> None:
    asked = turns.ask(say(max_tokens=4096), npc, session, 0.0)
    assert asked.limits.max_tokens == 4096
    assert len(asked.prompt) <= N_CTX // 2


def test_refused_say_leaves_npc_and_session_as_they_were(turns, npc, session) -> None:
    with pytest.raises(AskedWrong) as refusal:
        turns.ask(say(text="x" * 600), npc, session, 0.0)
    assert refusal.value.code == "text_too_long"
    assert (npc.turn, session.open, len(turns), session.last_say) == (None, {}, 0, 0)


def test_text_is_the_pieces_joined_and_speech_leaves_narration_out(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("*nods*", "narration"), Piece(" Aye."))))
    _, deltas = turns.speak(Speak(turn, (Piece(" Pass."),)))
    assert deltas == [{"type": "delta", "id": 7, "npc": "guard", "text": " Pass.", "kind": "speech"}]
    (done,) = turns.end(ended(turn, reply=b"*nods* Aye. Pass.")).messages
    assert (done["text"], done["speech"]) == ("*nods* Aye. Pass.", "Aye. Pass.")


def test_failed_turn_is_one_error_and_leaves_no_line(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("Ha"),)))
    (error,) = turns.fail(FailTurn(turn, "engine_lost", "Gone.", "Again.", 300)).messages
    assert (error["id"], error["code"], error["retry_after_ms"]) == (7, "engine_lost", 300)
    assert (npc.lines, npc.turn, session.open) == ([], None, {})
    assert npc.asked == 1  # a fault that chance has drawn must not be drawn again
    assert turns.end(ended(turn)) is None
    assert turns.fail(FailTurn(turn, "internal", "")) is None


def test_who_speaks_while_an_adapter_is_replaced_is_told_when_to_ask_again(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    (error,) = turns.fail(FailTurn(turn, "adapter_changed", "It changed on disk.", "Ask again.")).messages
    assert error["retry_after_ms"] > 0


def test_turns_of_a_lost_connection_end_in_silence_and_still_count_as_heard(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("Who goes"),)))
    assert turns.mute(session) == [turn]
    assert session.open == {}
    assert turns.speak(Speak(turn, (Piece(" there"),))) is None
    assert turns.end(ended(turn, FinishReason.CANCELLED)).session is None
    assert [line.text for line in npc.lines] == ["Open the gate!", "Who goes"]


def test_npc_may_not_speak_for_those_who_spoke_to_it_but_may_begin_with_its_own_name(turns, npc, session) -> None:
    for speaker in ("Ada", "Guard", "Ada"):
        asked = turns.ask(say(speaker=speaker), npc, session, 0.0)
        turns.speak(Speak(asked.turn, (Piece("Hm."),)))
        turns.end(ended(asked.turn, reply=b"Hm."))
    assert others_of(npc, npc.lines[0]) == ("Tom", "Ada")


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, Priority.PLAYER),
        ({"speaker": "Tom"}, Priority.PLAYER),
        ({"speaker": "Ada"}, Priority.SCENE),
        ({"text": None}, Priority.AMBIENT),
        ({"text": None, "priority": "player"}, Priority.PLAYER),
    ],
)
def test_priority_is_by_who_speaks_unless_it_is_said(turns, npc, session, fields, priority) -> None:
    assert turns.ask(say(**fields), npc, session, 0.0).priority is priority


def test_limit_of_kv_bounds_prompt_and_reserve_together(turns, npc, session) -> None:
    npc.lines = [Line("Tom", f"Line {number} of a long evening at the gate.", False) for number in range(12)]
    asked = turns.ask(say(max_kv=200, max_tokens=50), npc, session, 0.0)
    assert asked.limits.max_kv == 200
    assert len(asked.prompt) + 50 <= 200


def test_seed_is_the_npc_s_own_and_another_for_each_turn(turns, npc, session) -> None:
    seeds = []
    for _ in range(2):
        expected = npc.turn_seed
        asked = turns.ask(say(), npc, session, 0.0)
        seeds.append(asked.sampling.seed)
        assert seeds[-1] == expected
        turns.end(ended(asked.turn))
    assert seeds[0] != seeds[1]
    assert npc.asked == 2
    assert turns.ask(say(sampling={"seed": 5}), npc, session, 0.0).sampling.seed == 5


def test_done_tells_where_the_kv_came_from_and_how_often_it_was_paused(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    usage = Usage(40, 30, 10, 5, KvSource.HOST)
    (done,) = turns.end(EndTurn(turn, FinishReason.END, usage, (), 1.0, 2.0, 9.0, n_pauses=2, paused_ms=4.5)).messages
    assert done["usage"] == {"prompt": 40, "reused": 30, "prefilled": 10, "reply": 5, "source": "host"}
    assert (done["timing"]["pauses"], done["timing"]["paused_ms"]) == (2, 4.5)
    assert [done["receipt"][name] for name in ("reused", "prefilled", "source")] == [30, 10, "host"]


# --- deadlines ------------------------------------------------------------------------------------------------------------


def test_missed_deadline_speaks_the_pack_s_next_line_and_remembers_it(turns, roster, npc, session) -> None:
    roster.characters["guard"] = replace(GUARD, fallback=("One moment.", "Hm?"))
    spoken = []
    for said in ("", "I was", ""):
        turn = turns.ask(say(deadline={"first_ms": 10}), npc, session, 0.0).turn
        turns.speak(Speak(turn, (Piece(said),) if said else ()))
        delta, done = turns.end(ended(turn, FinishReason.DEADLINE)).messages
        assert done["text"] == said + delta["text"] == npc.lines[-1].text
        assert (done["finish"], delta["kind"], done["speech"]) == ("deadline", "speech", done["text"])
        spoken.append((delta["text"], done["fallback"]))
    assert spoken == [("One moment.", "One moment."), (" Hm?", "Hm?"), ("One moment.", "One moment.")]


def test_missed_deadline_without_a_line_for_it_ends_with_what_was_said(turns, npc, session) -> None:
    turn = turns.ask(say(deadline={"end_ms": 10}), npc, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("I was"),)))
    (done,) = turns.end(ended(turn, FinishReason.DEADLINE)).messages
    assert (done["text"], done["fallback"], done["finish"]) == ("I was", None, "deadline")


def test_first_of_deadlines_and_seconds_ends_a_turn_that_waits() -> None:
    limits = Limits(max_seconds=2.0)
    assert due_of(100.0, limits, Deadlines()) == (2100.0, FinishReason.TIME)
    assert due_of(100.0, limits, Deadlines(500.0, 900.0)) == (600.0, FinishReason.DEADLINE)
    assert due_of(100.0, limits, Deadlines(None, 2000.0)) == (2100.0, FinishReason.DEADLINE)
    assert due_of(100.0, limits, Deadlines(None, 3000.0)) == (2100.0, FinishReason.TIME)


# --- turns that wait --------------------------------------------------------------------------------------------------------


def test_turn_that_waits_gets_its_prompt_and_seed_when_its_npc_is_free(turns, npc, session) -> None:
    first = turns.ask(say(), npc, session, 0.0)
    turns.wait(say(id=8, text="Why?"), npc, session, 5.0)
    assert turns.next_up() is None
    assert session.open == {7: 1, 8: 2}
    turns.speak(Speak(first.turn, (Piece("No."),)))
    turns.end(ended(first.turn, reply=b"No."))
    asked = turns.begin(turns.next_up())
    assert (asked.turn, asked.at_ms) == (2, 5.0)
    assert asked.prompt[: len(first.prompt) + 3] == first.prompt + tuple(b"No.")
    assert turns.next_up() is None


def test_turn_that_waits_too_long_ends_as_its_limits_say(turns, npc, session) -> None:
    turns.ask(say(), npc, session, 0.0)
    turns.wait(say(id=8, max_seconds=1.0), npc, session, 500.0)
    assert turns.next_deadline_ms() == 1500.0
    assert turns.overdue(1499.0) == []
    (end,) = turns.overdue(1500.0)
    (done,) = turns.end(end).messages
    assert (done["id"], done["finish"], done["text"], done["timing"]["total_ms"]) == (8, "time", "", 1000.0)
    assert turns.next_deadline_ms() is None
    assert npc.turn == 1


def test_no_more_than_eight_wait_but_whoever_interrupts_goes_first(turns, npc, session) -> None:
    first = turns.ask(say(), npc, session, 0.0)
    for number in range(8):
        turns.wait(say(id=8 + number), npc, session, 0.0)
    with pytest.raises(AskedWrong) as refusal:
        turns.wait(say(id=20), npc, session, 0.0)
    assert refusal.value.code == "npc_busy"
    assert 20 not in session.open
    turns.wait(say(id=21), npc, session, 0.0, first=True)
    turns.end(ended(first.turn, FinishReason.INTERRUPTED))
    assert turns.next_up().request.id == 21


# --- warm -------------------------------------------------------------------------------------------------------------------


def test_warm_asks_for_what_the_next_prompt_begins_with_and_draws_nothing(turns, npc, session) -> None:
    warm = turns.ask(Warm(id=7, npc="guard"), npc, session, 0.0)
    assert (warm.draws, warm.priority, warm.tail, npc.asked) == (False, Priority.AMBIENT, (), 0)
    ended_turn = turns.end(ended(warm.turn, FinishReason.WARM))
    (done,) = ended_turn.messages
    assert done.keys() == {"type", "id", "npc", "finish", "adapter", "voice", "mood", "usage", "timing", "receipt"}
    assert (npc.lines, npc.turn, ended_turn.has_changed_npc) == ([], None, False)
    assert turns.ask(say(id=8), npc, session, 0.0).prompt[: len(warm.prompt)] == warm.prompt


def test_reply_of_which_a_part_was_heard_is_cut_when_it_ends(turns, npc, session) -> None:
    turn = turns.ask(say(), npc, session, 0.0).turn
    turns.speak(Speak(turn, (Piece("Halt! Who goes there?"),)))
    turns[turn].heard = Heard(sentences=1)
    (done,) = turns.end(ended(turn, FinishReason.INTERRUPTED)).messages
    assert done["text"] == "Halt! Who goes there?"
    assert [line.text for line in npc.lines] == ["Open the gate!", "Halt!"]


def test_reply_that_failed_half_way_takes_none_before_it_along(turns, npc, session) -> None:
    for text, reply in (("Halt?", "Halt."), ("Open the gate!", "No.")):
        turn = turns.ask(say(text=text), npc, session, 0.0).turn
        turns.speak(Speak(turn, (Piece(reply),)))
        turns.end(ended(turn)) if reply == "Halt." else turns.fail(FailTurn(turn, "engine_lost", "It is gone.", ""))
    waiting = turns.ask(say(text="Well?"), npc, session, 0.0).turn
    heard = turns.wait(say(id=8, text="Now?", heard={"chars": 1}), npc, session, 0.0)
    turns.fail(FailTurn(waiting, "engine_lost", "It is gone.", ""))
    assert turns.next_up() is heard
    turns.begin(heard)
    assert [line.text for line in npc.lines] == ["Halt?", "Halt."]


def test_lines_that_went_for_good_meanwhile_are_not_counted_as_unseen(turns, npc, session) -> None:
    for number in range(9):
        npc.witness(Line("Ada", f"{number} " * 40, False))
    turn = turns.ask(say(text="Well?"), npc, session, 0.0).turn
    n_cut = turns[turn].n_cut_lines
    for _ in range(2):
        npc.witness(Line("Ada", "Hm.", False))
    assert n_cut > npc.n_trimmed > 0
    turns.speak(Speak(turn, (Piece("Aye."),)))
    turns.end(ended(turn))
    assert npc.unseen == n_cut - npc.n_trimmed
