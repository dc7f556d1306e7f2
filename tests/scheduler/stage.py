"""A stage on which a scheduler plays against an engine and a clock.

Every event goes through `tell`, which checks what must hold for any answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from personae.engine.batch import BeginTurn, SlotStashed, StashSlot
from personae.scheduler import Scheduler, SchedulerConfig
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, KvLoaded, KvSaved, SetAside, Speak
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    KvLoadAsked,
    KvReported,
    KvSaveAsked,
    NpcGone,
    StepReported,
    Tick,
    TurnAsked,
    TurnCancelled,
)
from personae.types import (
    AdapterKey,
    AdapterSource,
    AdapterUse,
    Deadlines,
    FinishReason,
    Limits,
    MixMode,
    NpcId,
    Priority,
    ReplyRules,
    SamplingParams,
    TurnId,
    Usage,
    Voice,
    voice_of,
)
from tests.scheduler.model_engine import ADAPTER_BYTES, ModelEngine, fresh_reply

Parts = str | AdapterUse | tuple[str | AdapterUse, ...] | None  # of a voice; a name is an adapter at scale 1


def voice_of_parts(parts: Parts) -> Voice:
    each = parts if isinstance(parts, tuple) else () if parts is None else (parts,)
    return voice_of(AdapterUse(AdapterKey(part)) if isinstance(part, str) else part for part in each)


class Stage:
    def __init__(
        self,
        n_slots: int = 2,
        n_ctx: int = 400,
        is_up: bool = True,
        end_every: int = 0,
        can_cut: bool = True,
        can_cut_moved: bool = True,
        mode: MixMode = MixMode.MIXED,
        tells_bytes: bool = True,
        **settings: Any,
    ) -> None:
        self.config = SchedulerConfig(**{"pace_ms": 0.0, **settings})  # 0: every voice in every step, so that steps can be counted
        self.scheduler = Scheduler(self.config)
        self.can_cut_moved = can_cut_moved
        self.engine = ModelEngine(n_slots, n_ctx, self.config.max_adapters, end_every, can_cut, mode, tells_bytes=tells_bytes)
        self.now_ms = 1000.0
        self.asked: dict[TurnId, TurnAsked] = {}
        self.ended: dict[TurnId, EndTurn | FailTurn] = {}
        self.spoken: dict[TurnId, list[Speak]] = {}
        self.set_aside: list[SetAside] = []
        self.kv_asked: list[tuple[type[Any], NpcId, str]] = []  # the answers still owed
        self.kv_answers: list[KvSaved | KvLoaded] = []
        self.told_sizes: dict[AdapterKey, int] = {}  # what files say, where that is not the truth
        self.witnesses: list[Callable[[Event, list[Action]], None]] = []
        self.is_up = False
        if is_up:
            self.start()

    def tell(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event)
        for saw in self.witnesses:
            saw(event, actions)
        kinds = [isinstance(action, Command) for action in actions]
        assert kinds == sorted(kinds, reverse=True), "orders go first"
        for action in actions:
            self._take(action)
        self.scheduler.validate()
        self._check_host_memory()
        return actions

    def _take(self, action: Action) -> None:
        if isinstance(action, Command):
            assert self.is_up, "an order to an engine that is down"
            self.engine.obey(action.order)
            return
        if isinstance(action, SetAside):
            self.set_aside.append(action)
        elif isinstance(action, KvSaved | KvLoaded):
            self.kv_asked.remove((type(action), action.npc, action.path))
            self.kv_answers.append(action)
        else:
            self._take_news(action)

    def _take_news(self, action: Speak | EndTurn | FailTurn) -> None:
        assert action.turn in self.asked, "news of a turn nobody asked"
        assert action.turn not in self.ended, f"turn {action.turn} ended twice"
        if isinstance(action, Speak):
            assert action.first == (action.turn not in self.spoken), "first and only first is first"
            self.spoken.setdefault(action.turn, []).append(action)
        else:
            self.ended[action.turn] = action

    def _check_host_memory(self) -> None:
        """Nothing is kept that nobody knows of, and no more than may be: by what was reported."""
        engine, host = self.engine, self.scheduler._books.host
        known, arriving = set(host._stashes), {each.stash for each in engine.filed if hasattr(each, "stash")}
        untold = {each.stash for each in engine.moved if isinstance(each, SlotStashed)}
        if self.is_up:
            assert set(engine.stashes) <= known | arriving, "a stash is kept that nobody knows of"
            assert known <= set(engine.stashes) | untold, "a stash is known that nobody keeps"
            n_bytes = sum(engine.n_bytes(stash) for stash in engine.stashes if stash not in untold | arriving)
            assert n_bytes <= self.config.kv_ram, "stashes have more bytes than they may"

    def start(self) -> list[Action]:
        old = self.engine
        self.engine = new = ModelEngine(old.n_slots, old.n_ctx, old.max_adapters, old.end_every, old.can_cut, old.mode)
        new.bad_keys, new.files, new.tells_bytes, new.sizes = old.bad_keys, old.files, old.tells_bytes, old.sizes
        self.is_up = True
        n_bytes = new.token_bytes if new.tells_bytes else 0
        return self.tell(EngineStarted(self.now_ms, new.n_slots, new.n_ctx, new.can_cut, new.mode, n_bytes, self.can_cut_moved))

    def lose(self) -> list[Action]:
        self.is_up = False
        self.engine.steps.clear()
        self.engine.loading.clear()
        self.engine.faults.clear()
        self.engine.moved.clear()
        self.engine.filed.clear()
        return self.tell(EngineGone(self.now_ms, "exit status -6"))

    def ask(
        self,
        npc: str,
        prompt: tuple[int, ...] | range = range(1, 9),
        adapter: Parts = None,
        *,
        priority: Priority = Priority.PLAYER,
        max_tokens: int = 5,
        max_seconds: float = 60.0,
        tail: tuple[int, ...] = (),
        max_kv: int = 0,
        first_ms: float | None = None,
        end_ms: float | None = None,
        draws: bool = True,
    ) -> TurnId:
        turn = TurnId(len(self.asked) + 1)
        voice = voice_of_parts(adapter)
        self.asked[turn] = TurnAsked(
            self.now_ms,
            turn,
            NpcId(npc),
            tuple(prompt),
            voice,
            self.sources(voice),
            SamplingParams(),
            ReplyRules(),
            Limits(max_tokens, max_seconds, max_kv),
            priority,
            tail,
            Deadlines(first_ms, end_ms),
            draws,
        )
        self.answer = self.tell(self.asked[turn])
        return turn

    def sources(self, voice: Voice) -> tuple[AdapterSource, ...]:
        sizes = {**self.engine.sizes, **self.told_sizes}
        return tuple(AdapterSource(use.key, f"{use.key}.gguf", sizes.get(use.key, ADAPTER_BYTES)) for use in voice)

    def warm(self, npc: str, prompt: tuple[int, ...] | range = range(1, 9), adapter: Parts = None, **more: Any) -> TurnId:
        return self.ask(npc, prompt, adapter, draws=False, **{"priority": Priority.AMBIENT, **more})

    def cancel(self, turn: TurnId, finish: FinishReason = FinishReason.CANCELLED) -> list[Action]:
        return self.tell(TurnCancelled(self.now_ms, turn, finish))

    def despawn(self, npc: str) -> list[Action]:
        return self.tell(NpcGone(self.now_ms, NpcId(npc)))

    def save_kv(self, npc: str, path: str) -> list[Action]:
        self.kv_asked.append((KvSaved, NpcId(npc), path))
        return self.tell(KvSaveAsked(self.now_ms, NpcId(npc), path))

    def load_kv(self, npc: str, path: str) -> list[Action]:
        self.kv_asked.append((KvLoaded, NpcId(npc), path))
        return self.tell(KvLoadAsked(self.now_ms, NpcId(npc), path))

    def tick(self, passed_ms: float = 0.0) -> list[Action]:
        self.now_ms += passed_ms
        return self.tell(Tick(self.now_ms))

    @property
    def can_step(self) -> bool:
        return bool(self.engine.steps)

    def step(self, passed_ms: float = 10.0) -> list[Action]:
        """Deliver the report of the step under way."""
        self.now_ms += passed_ms
        return self.tell(StepReported(self.now_ms, self.engine.steps.popleft()))

    def load(self) -> list[Action]:
        """Deliver the fate of the adapter ordered first."""
        return self.tell(AdapterReported(self.now_ms, self.engine.load_one()))

    def fault(self) -> list[Action]:
        return self.tell(FaultReported(self.now_ms, self.engine.faults.popleft()))

    def told_of_kv(self) -> list[Action]:
        """Deliver what became of KV that was to be moved."""
        return self.tell(KvReported(self.now_ms, self.engine.moved.popleft()))

    def told_of_file(self) -> list[Action]:
        return self.tell(KvReported(self.now_ms, self.engine.filed.popleft()))

    def settle(self, most_steps: int = 2000) -> None:
        """Go on until nothing is under way."""
        for _ in range(most_steps):
            if self.engine.faults:
                self.fault()
            elif self.engine.moved:
                self.told_of_kv()
            elif self.engine.filed:
                self.told_of_file()
            elif self.engine.loading:
                self.load()
            elif self.engine.steps:
                self.step()
            else:
                return
        raise AssertionError(f"still at work after {most_steps} steps")

    def orders(self, kind: type[Any]) -> list[Any]:
        return [order for order in self.engine.log if isinstance(order, kind)]

    def begun(self, turn: TurnId) -> BeginTurn:
        (begun,) = [order for order in self.orders(BeginTurn) if order.turn == turn]
        return begun

    def has_begun(self, turn: TurnId) -> bool:
        return any(order.turn == turn for order in self.orders(BeginTurn))

    def stashed(self) -> list[StashSlot]:
        return self.orders(StashSlot)

    def usage(self, turn: TurnId) -> Usage:
        ended = self.ended[turn]
        assert isinstance(ended, EndTurn), ended
        return ended.usage

    def code(self, turn: TurnId) -> str:
        """How the turn ended: the finish reason, or the error code."""
        ended = self.ended[turn]
        return ended.finish if isinstance(ended, EndTurn) else ended.code

    def reply(self, turn: TurnId) -> tuple[int, ...]:
        ended = self.ended[turn]
        assert isinstance(ended, EndTurn), ended
        return ended.reply

    def expected(self, turn: TurnId) -> tuple[tuple[int, ...], FinishReason]:
        return fresh_reply(self.asked[turn], self.engine.n_ctx, self.engine.end_every)

    def check_books(self) -> None:
        """What the scheduler knows of a slot is a prefix of what is there, and all of it where nothing faulted and no step is under way."""
        for place in self.scheduler._books.slots:
            cells = self.engine.kv[place.slot]
            if place.npc is None and place.turn is not None:
                continue  # its NPC is gone: cleared, and in the books until the report
            held, is_tainted = cells[: len(place.known)], place.slot in self.engine.tainted
            known = place.known[: len(cells)] if is_tainted else place.known
            assert known == [cell.token for cell in held], f"slot {place.slot} holds other tokens than known"
            assert {cell.voice for cell in held} <= {place.voice}, f"slot {place.slot} holds KV of another voice than known"
            if not self.engine.steps and not is_tainted:
                assert len(place.known) == len(cells), f"slot {place.slot} holds {len(cells)} tokens, known are {len(place.known)}"
        for stashed in self.scheduler._books.host._stashes.values():
            held = list(self.engine.stashes.get(stashed.stash, ()))[: len(stashed.tokens)]
            known = list(stashed.tokens[: len(held)])
            assert known == [cell.token for cell in held], f"stash {stashed.stash} holds other tokens than known"
            assert {cell.voice for cell in held} <= {stashed.voice}, f"stash {stashed.stash} holds KV of another voice than known"
