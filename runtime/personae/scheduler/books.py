"""All that the scheduler knows, in one place for those who decide, and the answer they are writing. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from personae.engine.batch import Order
from personae.scheduler.actions import Action, Command
from personae.scheduler.adapters import AdapterTable
from personae.scheduler.budget import StepBudget
from personae.scheduler.flight import Flight
from personae.scheduler.host import HostMemory
from personae.scheduler.ledger import Ledger
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.scheduler.slots import SlotTable
from personae.scheduler.waiting import WaitingLine
from personae.types import MixMode, NpcId, TurnId


class Books:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.line = WaitingLine(config)
        self.slots = SlotTable()
        self.host = HostMemory(config.kv_ram)
        self.adapters = AdapterTable(config.max_adapters, config.adapter_ram)
        self.ledger = Ledger()
        self.budget = StepBudget(config)
        self.turns: dict[TurnId, Sequence] = {}  # those that are open
        self.of_npc: dict[NpcId, Sequence] = {}  # its open turn
        self.flight: Flight | None = None  # the step under way
        self.n_ctx: int | None = None  # None: the engine is down
        self.mode = MixMode.MIXED
        self.now_ms = 0.0
        self.stirred = False  # the line may move: something other than plain tokens has happened since turns could last begin
        self.answer = Answer()

    @property
    def is_idle(self) -> bool:
        """The engine is up and no step is under way."""
        return self.n_ctx is not None and self.flight is None


@dataclass(slots=True)
class Answer:
    """To one event. Orders go first, so that the engine is at work before anybody is told anything."""

    orders: list[Action] = field(default_factory=list)
    news: list[Action] = field(default_factory=list)

    def order(self, *orders: Order) -> None:
        self.orders += map(Command, orders)

    def tell(self, news: Action) -> None:
        self.news.append(news)

    def add(self, *actions: Action) -> None:
        """Orders and news, each to its own."""
        for action in actions:
            (self.orders if isinstance(action, Command) else self.news).append(action)
