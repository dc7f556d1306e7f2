"""Thousands of tangled lives: whatever happens in whatever order, the books stay right and every turn ends once."""

from __future__ import annotations

from random import Random

import pytest

from personae.scheduler import host, seating
from personae.scheduler.actions import EndTurn
from personae.scheduler.events import AdapterRetired
from personae.scheduler.referee import Referee
from personae.types import AdapterKey, AdapterUse, FinishReason, MixMode, Priority, TurnId
from tests.scheduler.stage import Stage

SEEDS, BATCHES, EVENTS = 2000, 16, 50
TAIL, LONG_TAIL = (201, 202, 203), tuple(range(210, 222))
CUT_SHORT = (FinishReason.CANCELLED, FinishReason.INTERRUPTED, FinishReason.DEADLINE, FinishReason.TIME)


@pytest.fixture(autouse=True)
def short_prompts_are_worth_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WORTH_KEEPING", 4)
    monkeypatch.setattr(seating, "CLEARLY", 3)


class Tangle:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.stage = Stage(
            n_slots=self.random.choice((1, 1, 2, 3)),
            end_every=self.random.choice((0, 5, 11)),
            n_ctx=self.random.choice((40, 60, 400)),
            is_up=False,
            can_cut=self.random.random() < 0.8,
            can_cut_moved=self.random.random() < 0.7,
            mode=self.random.choice(list(MixMode)),
            tells_bytes=self.random.random() < 0.7,
            step_ms=self.random.choice((10.0, 30.0, 100.0)),
            min_chunk=self.random.choice((1, 4)),
            prefill_chunk=self.random.choice((4, 8, 64)),
            max_adapters=self.random.choice((1, 2, 3, 8)),
            max_waiting=self.random.choice((2, 5, 100)),
            ageing_ms=self.random.choice((200.0, 5000.0)),
            pace_ms=self.random.choice((0.0, 40.0, 200.0)),
            kv_ram=self.random.choice((0, 300, 1000, 1 << 30)),
            adapter_ram=self.random.choice((0, 50, 100, 150, 1 << 30)),
        )
        self.histories: dict[str, tuple[int, ...]] = {}
        self.turns: dict[str, TurnId] = {}
        self.shared = tuple(self.random.choices(range(1, 50), k=8))  # a beginning that several NPCs have in common
        self.keys = [AdapterKey(f"key{n}") for n in range(5)]
        self.stage.engine.sizes = {key: self.random.choice((10, 50, 50, 60, 120)) for key in self.keys}
        self.stage.told_sizes = {key: self.random.choice((0, 20, 60)) for key in self.keys if self.random.random() < 0.2}
        self.voices = [(), *(self.voice() for _ in range(self.random.choice((0, 1, 2, 4, 8))))]
        self.priorities = self.random.choice((list(Priority), [Priority.PLAYER, *[Priority.AMBIENT] * 3]))
        self.is_hasty = self.random.random() < 0.3  # deadlines pass
        self.killers: set[AdapterKey] = set()  # the engine dies of them, while they are loaded or in the first step

        self.referee = Referee(self.stage.config)
        self.stage.witnesses.append(self.referee.saw)
        if self.random.random() < 0.8:
            self.stage.start()

    def voice(self) -> tuple[AdapterUse, ...]:
        keys = self.random.sample(self.keys, self.random.choice((1, 1, 2, 2, 3)))
        return tuple(AdapterUse(key, self.random.choice((1.0, 1.0, 0.5))) for key in keys)

    def live(self) -> None:
        for _ in range(EVENTS):
            self.stage.now_ms += self.random.choice((0.0, 1.0, 10.0, 150.0 if self.is_hasty else 20.0))
            self.random.choice(self.can_happen())()
            if self.stage.is_up:
                self.stage.check_books()

    def can_happen(self) -> list[object]:
        stage, engine = self.stage, self.stage.engine
        happenings = [self.ask] * 5 + [self.warm, self.cancel, self.npc_goes, self.retire, self.turn_bad, stage.tick]
        happenings += [self.save_kv, self.load_kv] if self.random.random() < 0.5 else []
        happenings += [self.load_adapter] * 3 if engine.loading else []
        happenings += [stage.told_of_file] * 2 if engine.filed else []
        if engine.faults or engine.moved:  # told before the step that came after it
            happenings += ([stage.fault] * 6 if engine.faults else []) + ([stage.told_of_kv] * 9 if engine.moved else [])
        elif engine.steps:
            happenings += [self.step] * 16
        if not stage.is_up:
            happenings += [stage.start] * 4
        elif self.random.random() < 0.05:
            happenings += [stage.lose]
        return happenings

    def ask(self, **more: object) -> None:
        npc = f"npc{self.random.randrange(7)}"
        heard = tuple(self.random.choices(range(1, 50), k=self.random.randint(1, 6)))
        prompt = self.past(npc) + heard
        if self.random.random() < 0.1:
            prompt = prompt[: self.random.randint(0, len(prompt))]  # an edit, or none of it left
        voice = self.random.choice(self.voices)
        chosen: dict[str, object] = {
            "priority": self.random.choice(self.priorities),
            "max_tokens": self.random.randint(1, 12),
            "max_seconds": self.random.choice((0.05 if self.is_hasty else 5.0, 1.0, 60.0)),
            "tail": self.random.choice(((), TAIL, TAIL, LONG_TAIL)),
            "max_kv": self.random.choice((0, 0, 0, 0, 25, 40)),
            "first_ms": self.random.choice((None, None, None, 300.0, 30.0 if self.is_hasty else 3000.0)),
            "end_ms": self.random.choice((None, None, None, 500.0, 50.0 if self.is_hasty else 5000.0)),
        }
        turn = self.stage.ask(npc, prompt, voice, **{**chosen, **more})
        self.turns[npc] = turn
        self.stage.engine.bad_begins |= {turn} if self.random.random() < 0.03 else set()
        self.histories[npc] = prompt[-30:] if len(prompt) > 34 else prompt

    def warm(self) -> None:
        self.ask(draws=False)

    def past(self, npc: str) -> tuple[int, ...]:
        """The prompt before this one; usually with the reply and its tail behind it, as a history has them."""
        past, ended = self.histories.get(npc, self.shared), self.stage.ended.get(self.turns.get(npc, TurnId(0)))
        if isinstance(ended, EndTurn) and self.random.random() < 0.8:
            asked = self.stage.asked[self.turns[npc]]
            past = asked.prompt + ended.reply + asked.tail
        return past if len(past) <= 34 else past[-30:]

    def cancel(self) -> None:
        turn = TurnId(self.random.randint(0, len(self.stage.asked) + 1))
        self.stage.cancel(turn, self.random.choice((FinishReason.CANCELLED, FinishReason.INTERRUPTED)))

    def npc_goes(self) -> None:
        self.stage.despawn(f"npc{self.random.randrange(7)}")

    def save_kv(self) -> None:
        self.stage.save_kv(f"npc{self.random.randrange(7)}", f"{self.random.randrange(9)}.kv")

    def load_kv(self) -> None:
        path = self.random.choice([*sorted(self.stage.engine.files), "missing.kv"])
        self.stage.load_kv(f"npc{self.random.randrange(7)}", path)

    def retire(self) -> None:
        self.stage.tell(AdapterRetired(self.stage.now_ms, self.random.choice(self.keys)))

    def load_adapter(self) -> None:
        is_fatal = self.stage.engine.loading[0].key in self.killers and self.random.random() < 0.5
        self.stage.lose() if is_fatal else self.stage.load()

    def step(self) -> None:
        engine = self.stage.engine
        here = {use.key for speaker in engine.speakers.values() if speaker.slot is not None for use in speaker.order.voice}
        self.stage.lose() if here & self.killers else self.stage.step()

    def turn_bad(self) -> None:
        engine = self.stage.engine
        engine.bad_keys ^= {self.random.choice(self.keys)}
        engine.bad_slots ^= {self.random.randrange(4)}
        engine.bad_paths ^= {f"{self.random.randrange(9)}.kv"}
        engine.bad_draws = set(engine.speakers) if self.random.random() < 0.3 else set()
        engine.has_host_memory = self.random.random() < 0.7
        self.killers = {self.random.choice(self.keys[:2])} if self.random.random() < 0.4 else set()

    def end(self) -> None:
        if not self.stage.is_up:
            self.stage.start()
        self.stage.settle()
        self.stage.check_books()
        assert self.stage.ended.keys() == self.stage.asked.keys(), "a turn was left without an end"
        assert self.stage.scheduler.next_deadline_ms() is None
        assert self.referee.owed() == []
        assert not self.stage.kv_asked, "somebody waits to hear what became of an NPC's KV"
        for turn, ended in self.stage.ended.items():
            assert self.stage.code(turn) != "engine_failed", f"turn {turn} was left out of no report"
            if isinstance(ended, EndTurn):
                self.check_reply(turn, ended)

    def check_reply(self, turn: TurnId, ended: EndTurn) -> None:
        reply, finish = self.stage.expected(turn)
        if ended.finish in CUT_SHORT:
            assert ended.reply == reply[: len(ended.reply)], f"turn {turn} said what a fresh NPC would not"
        else:
            assert (ended.reply, ended.finish) == (reply, finish), f"turn {turn} said what a fresh NPC would not"
        assert ended.usage.prompt == ended.usage.reused + ended.usage.prefilled
        assert ended.usage.reply == len(ended.reply)
        assert (ended.ttft_ms >= 0) == (turn in self.stage.spoken)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_any_tangle_of_events_leaves_the_books_right_and_ends_every_turn_once(batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        tangle = Tangle(seed)
        try:
            tangle.live()
            tangle.end()
        except AssertionError as wrong:
            pytest.fail(f"seed {seed}: {wrong}\n{tangle.stage.scheduler.story()}")


def test_the_same_events_give_the_same_actions() -> None:
    def story(seed: int) -> str:
        tangle = Tangle(seed)
        tangle.live()
        return tangle.stage.scheduler.story()

    assert story(7) == story(7)
