"""The referee lets every right answer pass, and has a sentence for each wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from personae.engine import batch
from personae.engine.batch import AdapterLoaded, BeginTurn, ExtendSlot, Order, PrefillChunk, RowDone, RunStep, StepDone
from personae.scheduler import Scheduler
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, KvSaved, SetAside, Speak
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    KvLoadAsked,
    KvReported,
    KvSaveAsked,
    NpcGone,
    StepReported,
    Tick,
    TurnAsked,
)
from personae.scheduler.referee import Referee
from personae.scheduler.settings import SchedulerConfig
from personae.types import (
    AdapterKey,
    AdapterSource,
    AdapterUse,
    FinishReason,
    Limits,
    NpcId,
    ReplyRules,
    SamplingParams,
    Slot,
    Stash,
    TurnId,
    Usage,
    Voice,
)
from tests.scheduler.stage import Stage

PROMPT = (1, 2, 3, 4)
A, B = AdapterKey("a"), AdapterKey("b")
VOICE, WHISPER, OTHER, CHORUS = (AdapterUse(A),), (AdapterUse(A, 0.5),), (AdapterUse(B),), (AdapterUse(A), AdapterUse(B))


def asked(turn: int, npc: str = "mira", prompt: Sequence[int] = PROMPT, voice: Voice = (), **more: Any) -> TurnAsked:
    sources = tuple(AdapterSource(use.key, f"{use.key}.gguf", 10) for use in voice)
    return TurnAsked(
        1.0, TurnId(turn), NpcId(npc), tuple(prompt), voice, sources, SamplingParams(), ReplyRules(), Limits(), tail=(8, 9), **more
    )


def begin(turn: int, slot: int = 0, keep: Sequence[int] = (), voice: Voice = ()) -> BeginTurn:
    return BeginTurn(TurnId(turn), Slot(slot), len(keep), voice, SamplingParams(), ReplyRules(), Limits(), tuple(keep))


def chunk(turn: int, tokens: Sequence[int], *, last: bool = True) -> PrefillChunk:
    return PrefillChunk(TurnId(turn), tuple(tokens), last)


def ended(turn: int, reply: Sequence[int] = (), finish: FinishReason = FinishReason.END) -> EndTurn:
    return EndTurn(TurnId(turn), finish, Usage(reply=len(reply)), tuple(reply), 0.0, 0.0, 0.0)


class Case:
    """A referee, and short words for what it is shown."""

    def __init__(self, *, can_cut: bool = True, config: SchedulerConfig | None = None) -> None:
        self.referee = Referee(config)
        self.referee.saw(EngineStarted(0.0, 3, 20, can_cut), [])

    def ask(self, event: TurnAsked, *orders: Order) -> Case:
        self.referee.saw(event, [Command(order) for order in orders])
        return self

    def order(self, *orders: Order) -> Case:
        self.referee.saw(Tick(1.0), [Command(order) for order in orders])
        return self

    def tell(self, *news: Action) -> Case:
        self.referee.saw(Tick(1.0), news)
        return self

    def report(self, *rows: tuple[int, int], prefilled: Sequence[tuple[int, int]] = (), orders: Sequence[Order] = (), **more: Any) -> Case:
        drawn = tuple(RowDone(TurnId(turn), token) for turn, token in rows)
        step = StepDone(drawn, tuple((TurnId(turn), n) for turn, n in prefilled), **more)
        self.referee.saw(StepReported(2.0, step), [Command(order) for order in orders])
        return self

    def load(self, voice: Voice, n_bytes: int = 10) -> Case:
        """For a turn that does not live to speak."""
        self.ask(asked(99, "nobody", voice=voice), *(batch.LoadAdapter(use.key, f"{use.key}.gguf") for use in voice))
        for use in voice:
            self.referee.saw(AdapterReported(1.0, AdapterLoaded(use.key, n_bytes, 1, 1.0)), [])
        return self.tell(FailTurn(TurnId(99), "busy", "No."))

    def speaking(self, turn: int = 1, npc: str = "mira", slot: int = 0, voice: Voice = ()) -> Case:
        """Its prompt is in its slot, and 7 was drawn."""
        self.ask(asked(turn, npc, voice=voice), begin(turn, slot, voice=voice), RunStep(prefill=(chunk(turn, PROMPT),)))
        return self.report((turn, 7), prefilled=[(turn, 4)])

    def parked(self, turn: int = 1, npc: str = "mira", slot: int = 0, voice: Voice = ()) -> Case:
        """The same, and the turn has ended there."""
        self.speaking(turn, npc, slot, voice)
        self.referee.saw(Tick(3.0), [Command(batch.DropTurn(TurnId(turn))), ended(turn, (7,), FinishReason.CANCELLED)])
        return self


def test_an_ordinary_life_passes() -> None:
    case = Case().speaking()
    case.order(RunStep(decode=(TurnId(1),)))
    case.referee.saw(
        StepReported(3.0, StepDone((RowDone(TurnId(1), 6, (), FinishReason.END),))),
        [
            Command(RunStep(extend=(ExtendSlot(Slot(0), 5, (8, 9)),))),
            Speak(TurnId(1), (), True),
            ended(1, (7,)),
        ],
    )
    case.report(extended=((Slot(0), 2),))
    case.ask(asked(2, prompt=(*PROMPT, 7, 8, 9, 5)), begin(2, keep=(*PROMPT, 7, 8, 9)), RunStep(prefill=(chunk(2, (5,)),)))
    assert case.referee.owed() == ["Turn 2 of NPC 'mira' has not ended."]
    assert case.referee.ended == {"end": 1}


def test_a_paused_turn_goes_on_from_its_stash() -> None:
    case = Case().speaking()
    case.order(batch.PauseTurn(TurnId(1)), batch.StashSlot(Slot(0), Stash(1)))
    case.speaking(2, "tom")
    case.order(batch.FetchStash(Stash(1), Slot(1)), batch.ResumeTurn(TurnId(1), Slot(1), 4, PROMPT), RunStep(decode=(TurnId(2), TurnId(1))))
    case.report((2, 5), (1, 5))


def test_orders_in_the_middle_of_a_step_are_obeyed_after_it() -> None:
    case = Case().speaking()
    case.order(RunStep(decode=(TurnId(1),)))
    case.referee.saw(NpcGone(3.0, NpcId("mira")), [Command(batch.DropTurn(TurnId(1))), Command(batch.ClearSlot(Slot(0))), ended(1, (7,))])
    case.report((1, 5))
    case.speaking(2, "tom")


WRONG: dict[str, tuple[str, Any]] = {
    "a second step": ("a second step", lambda case: case.speaking().order(RunStep(decode=(TurnId(1),)), RunStep(decode=(TurnId(1),)))),
    "begun mid-step": (
        "in the middle of a step",
        lambda case: case.speaking().order(RunStep(decode=(TurnId(1),))).ask(asked(2, "tom"), begin(2, 1)),
    ),
    "an empty step": ("an empty step", lambda case: case.order(RunStep())),
    "slot taken": ("turn 1 is open in slot 0", lambda case: case.speaking().ask(asked(2, "tom"), begin(2, 0))),
    "keeps too much": (
        "keeps 5 tokens of slot 0, which holds 4",
        lambda case: case.parked().ask(asked(2, prompt=(*PROMPT, 5, 6)), begin(2, 0, (*PROMPT, 5))),
    ),
    "keeps other tokens": ("keeps other tokens than slot 0 holds", lambda case: case.parked().ask(asked(2), begin(2, 0, (1, 3)))),
    "another's words": (
        "keeps tokens that are not its NPC's own: they were of NPC 'mira'",
        lambda case: case.parked().ask(asked(2, "tom", (1, 2, 9, 9)), begin(2, 0, (1, 2, 3))),
    ),
    "another's words by way of a copy": (
        "they were of NPC 'mira'",
        lambda case: case.parked().ask(asked(2, "tom", (1, 9, 9)), batch.CopySlot(Slot(0), Slot(1), 2), begin(2, 1, (1, 2))),
    ),
    "another adapter": (
        "made under another adapter",
        lambda case: case.load(VOICE).parked(voice=VOICE).ask(asked(2), begin(2, 0, (1, 2))),
    ),
    "another scale": (
        "made under another adapter or scale",
        lambda case: case.load(VOICE).parked(voice=VOICE).ask(asked(2, voice=WHISPER), begin(2, 0, (1,), WHISPER)),
    ),
    "adapter not its own": ("another voice than its NPC's", lambda case: case.load(VOICE).ask(asked(1), begin(1, voice=VOICE))),
    "adapter not there": ("is not resident", lambda case: case.ask(asked(1, voice=VOICE), begin(1, voice=VOICE))),
    "adapter freed": (
        "is freed while turn 1 speaks with it",
        lambda case: case.load(VOICE).speaking(voice=VOICE).order(batch.FreeAdapter(A)),
    ),
    "half a voice": ("is not resident", lambda case: case.load(VOICE).ask(asked(1, voice=CHORUS), begin(1, voice=CHORUS))),
    "half a voice freed": (
        "is freed while turn 1 speaks with it",
        lambda case: case.load(CHORUS).speaking(voice=CHORUS).order(batch.FreeAdapter(B)),
    ),
    "half a voice kept": (
        "made under another adapter",
        lambda case: case.load(CHORUS).parked(voice=CHORUS).ask(asked(2, voice=VOICE), begin(2, 0, (1,), VOICE)),
    ),
    "loaded for nobody": ("no turn wants it", lambda case: case.order(batch.LoadAdapter(A, "a.gguf"))),
    "loaded from elsewhere": ("which no turn names", lambda case: case.ask(asked(1, voice=VOICE), batch.LoadAdapter(A, "b.gguf"))),
    "adapter loaded twice": ("is loaded twice", lambda case: case.load(VOICE).load(VOICE)),
    "nothing left to draw from": ("nothing left to draw", lambda case: case.parked().ask(asked(2), begin(2, 0, PROMPT))),
    "not asked": ("was not asked, or has ended", lambda case: case.order(begin(9))),
    "two turns of an NPC": ("of the same NPC is open", lambda case: case.speaking().ask(asked(2), begin(2, 1))),
    "decoded before its prompt is there": (
        "has no token to feed",
        lambda case: case.ask(asked(1), begin(1), RunStep(decode=(TurnId(1),))),
    ),
    "rows out of order": (
        "rows are not in order of slots",
        lambda case: case.speaking(1, slot=1).speaking(2, "tom", 0).order(RunStep(decode=(TurnId(1), TurnId(2)))),
    ),
    "wrong chunk": ("other tokens than its next", lambda case: case.ask(asked(1), begin(1), RunStep(prefill=(chunk(1, (2, 3)),)))),
    "chunk that should draw": (
        "does not draw",
        lambda case: case.ask(asked(1), begin(1), RunStep(prefill=(chunk(1, PROMPT, last=False),))),
    ),
    "chunk of a warm turn draws": ("draws", lambda case: case.ask(asked(1, draws=False), begin(1), RunStep(prefill=(chunk(1, PROMPT),)))),
    "paused turn in a step": (
        "is in a step and paused",
        lambda case: case.speaking().order(batch.PauseTurn(TurnId(1)), RunStep(decode=(TurnId(1),))),
    ),
    "resumed and not paused": (
        "is resumed and not paused",
        lambda case: case.speaking().order(batch.ResumeTurn(TurnId(1), Slot(1), 0)),
    ),
    "resumed on less than is decoded": (
        "on other tokens than its own",
        lambda case: case.speaking().order(
            batch.PauseTurn(TurnId(1)), batch.ResumeTurn(TurnId(1), Slot(0), 2, (1, 2)), RunStep(decode=(TurnId(1),))
        ),
    ),
    "extended by a stranger's words": (
        "by what NPC 'mira' will not say",
        lambda case: case.parked().order(RunStep(extend=(ExtendSlot(Slot(0), 4, (7, 5)),))),
    ),
    "extended under a turn": ("is open in slot 0", lambda case: case.speaking().order(RunStep(extend=(ExtendSlot(Slot(0), 4, (7,)),)))),
    "stash that is not there": ("is fetched and not there", lambda case: case.order(batch.FetchStash(Stash(3), Slot(0)))),
    "stash that could not be made": (
        "is fetched and not there",
        lambda case: stash_failed(case.parked()).order(batch.FetchStash(Stash(1), Slot(1))),
    ),
    "stash named twice": (
        "is used again",
        lambda case: case.parked().order(batch.StashSlot(Slot(0), Stash(1)), batch.StashSlot(Slot(0), Stash(1))),
    ),
    "copied onto a speaker": ("is open in slot 0", lambda case: case.speaking().order(batch.CopySlot(Slot(1), Slot(0), 1))),
    "cleared under a speaker": ("is open in slot 0", lambda case: case.speaking().order(batch.ClearSlot(Slot(0)))),
    "engine not told": ("the engine was not told", lambda case: case.speaking().tell(ended(1, (7,)))),
    "ended twice": ("was not asked or has ended", lambda case: case.parked().tell(FailTurn(TurnId(1), "busy", "No."))),
    "says what was not drawn": ("not what was drawn", lambda case: case.speaking().tell(ended(1, (8,)))),
    "first word twice": ("first word twice", lambda case: case.speaking().tell(Speak(TurnId(1), (), True), Speak(TurnId(1), (), True))),
    "kept of an NPC that is gone": (
        "still holds what was said to NPC 'mira'",
        lambda case: case.parked().referee.saw(NpcGone(4.0, NpcId("mira")), []),
    ),
    "set aside and loaded": (
        "was set aside and is loaded again",
        lambda case: case.tell(SetAside(A, "a.gguf")).order(batch.LoadAdapter(A, "a.gguf")),
    ),
    "written for nobody": (
        "for which nobody asked",
        lambda case: case.parked().order(batch.WriteKv("file", Slot(0), None, PROMPT, ())),
    ),
    "written as another's": ("for which nobody asked", lambda case: write_for(case.parked(), "tom")),
    "read for nobody": ("is read and nobody asked", lambda case: case.order(batch.ReadKv("file", Stash(1)))),
    "an answer to no save": ("to no save", lambda case: case.tell(KvSaved(NpcId("mira"), "file", 1, 1))),
    "engine down": ("goes to an engine that is down", lambda case: lost(case).order(batch.ClearSlot(Slot(0)))),
    "slot full": (
        "more than a slot holds",
        lambda case: case.ask(asked(1, prompt=range(21)), begin(1), RunStep(prefill=(chunk(1, range(21)),))),
    ),
    "engine prefills what it was not told": (
        "which it was not told",
        lambda case: case.speaking().order(RunStep(decode=(TurnId(1),))).report(prefilled=[(1, 2)]),
    ),
}


def stash_failed(case: Case) -> Case:
    case.order(batch.StashSlot(Slot(0), Stash(1)))
    case.referee.saw(KvReported(4.0, batch.SlotStashed(Stash(1), 0, 0)), [])
    return case


def write_for(case: Case, npc: str) -> None:
    case.referee.saw(KvSaveAsked(4.0, NpcId(npc), "file"), [Command(batch.WriteKv("file", Slot(0), None, PROMPT, ()))])


def lost(case: Case) -> Case:
    case.referee.saw(EngineGone(4.0, "exit status 1"), [])
    return case


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_objected_to(name: str) -> None:
    sentence, do = WRONG[name]
    with pytest.raises(AssertionError) as objection:
        do(Case())
    assert sentence in str(objection.value)


def test_memory_that_cannot_be_cut_is_not_cut() -> None:
    case = Case(can_cut=False).parked()
    with pytest.raises(AssertionError, match="cannot be cut"):
        case.ask(asked(2), begin(2, 0, (1, 2)))


def test_limits_are_judged_where_they_are_known() -> None:
    case = Case(config=SchedulerConfig(max_adapters=1, kv_ram=10)).parked()
    with pytest.raises(AssertionError, match="2 adapters are more than may be"):
        case.load(VOICE).load(OTHER)
    case.order(batch.StashSlot(Slot(0), Stash(1)))
    with pytest.raises(AssertionError, match="stashes have 11 bytes"):
        case.referee.saw(KvReported(4.0, batch.SlotStashed(Stash(1), 4, 11)), [])


def test_bytes_of_adapters_are_judged_when_they_are_ordered_and_when_they_have_come() -> None:
    config = SchedulerConfig(adapter_ram=25)
    Case(config=config).load(VOICE).load(OTHER)
    with pytest.raises(AssertionError, match="adapters have 26 bytes, more than they may"):
        Case(config=config).load(VOICE, 16).load(OTHER)
    with pytest.raises(AssertionError, match="adapters have 30 bytes, more than they may"):
        Case(config=config).load(VOICE, 10).load(OTHER, 20)


def test_one_voice_alone_may_pass_the_limit_of_bytes() -> None:
    config = SchedulerConfig(adapter_ram=15)
    case = Case(config=config).load(CHORUS, 20).order()
    with pytest.raises(AssertionError, match="are not one voice alone"):
        case.ask(asked(1, voice=(AdapterUse(AdapterKey("c")),)), batch.LoadAdapter(AdapterKey("c"), "c.gguf"))


def test_an_engine_takes_all_it_held_with_it() -> None:
    case = Case().speaking()
    case.referee.saw(EngineGone(4.0, "exit status 1"), [FailTurn(TurnId(1), "engine_lost", "It is gone.")])
    case.referee.saw(EngineStarted(5.0, 3, 20), [])
    case.parked(2)
    assert case.referee.owed() == []


def test_kv_that_was_read_belongs_to_whoever_asked() -> None:
    case = Case()
    case.referee.saw(KvLoadAsked(1.0, NpcId("mira"), "file"), [Command(batch.ReadKv("file", Stash(1)))])
    case.referee.saw(KvReported(2.0, batch.KvRead("file", Stash(1), (1, 2, 3))), [])
    assert case.referee.owed() == ["Nobody told what became of the load of NPC 'mira'."]
    case.ask(asked(1), batch.FetchStash(Stash(1), Slot(0)), begin(1, 0, (1, 2, 3)))


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_a_scheduler_that_works(seed: int) -> None:
    random = Random(seed)
    stage = Stage(n_slots=2, n_ctx=60, kv_ram=random.choice((0, 1 << 20)))
    referee = Referee(stage.config)
    told = stage.tell

    def tell(event: Any) -> list[Action]:
        actions = told(event)
        referee.saw(event, actions)
        return actions

    stage.tell = tell  # type: ignore[method-assign]
    referee.saw(EngineStarted(stage.now_ms, 2, 60), [])
    for _ in range(30):
        stage.ask(f"npc{random.randrange(4)}", tuple(random.choices(range(1, 4), k=random.randint(4, 40))), max_tokens=3)
        for _ in range(random.randrange(4)):
            if stage.can_step:
                stage.step()
    stage.settle()
    assert referee.owed() == []
    assert referee.ended.total() == len(stage.asked)


def test_row_that_ends_a_turn_needs_no_drop() -> None:
    case = Case().speaking()
    case.order(RunStep(decode=(TurnId(1),)))
    row = replace(RowDone(TurnId(1), 5), finish=FinishReason.LENGTH)
    case.referee.saw(StepReported(3.0, StepDone((row,))), [ended(1, (7, 5), FinishReason.LENGTH)])


def test_two_npcs_may_read_one_file_and_one_of_them_go() -> None:
    config = SchedulerConfig()
    scheduler, referee, path = Scheduler(config), Referee(config), "village.kv"
    events: list[Event] = [
        EngineStarted(0.0, 2, 400),
        *(KvLoadAsked(1.0, NpcId(npc), path) for npc in ("bob", "ann")),
        *(KvReported(2.0, batch.KvRead(path, Stash(n), (1, 2, 3), n_bytes=30)) for n in (1, 2)),
        NpcGone(3.0, NpcId("bob")),
    ]
    for event in events:
        referee.saw(event, scheduler.handle(event))
    assert not referee.owed()
