"""Plays a record again and looks at every answer. Decides when which result is delivered; what the engine does is the puppet's.

Everything that came from outside is handed to a new scheduler as it was. Results come from an engine that works off what this scheduler
orders, and are delivered at the moments at which those of the record were, so that both may differ from what was recorded and still have to
be right. After the last event whatever is under way is brought to its end.

`follow` instead hands over the recorded results too, and compares decisions. It stops where one differs: what was reported from there on
answers orders that nobody gave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from personae.cli.puppet import Puppet, Scripts
from personae.engine.batch import AdapterLoaded, AdapterRefused, EngineFailed, EngineReady, EngineWarm, Result, StepDone, TurnFaulted
from personae.errors import OurBug, PersonaeError
from personae.scheduler.actions import Action, Command
from personae.scheduler.core import Scheduler
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    KvReported,
    StepReported,
    Tick,
)
from personae.scheduler.referee import Referee
from personae.service.recorder import Header, Record, digest

STEP_MS = 10.0  # of the clock, while what is left is brought to its end
MOST_ROUNDS = 1_000_000  # then it never will


class Broken(Exception):  # noqa: N818  not of our errors: the command says what it means
    """A rule did not hold."""

    def __init__(self, why: str, at_event: int, story: str) -> None:
        super().__init__(why)
        self.why, self.at_event, self.story = why, at_event, story


@dataclass(slots=True)
class Played:
    """What a replay came to."""

    header: Header
    is_whole: bool = True  # the file ended between two events
    events: int = 0  # of the record
    turns: int = 0
    steps: int = 0
    orders: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # finish reason or error code -> turns
    engines: int = 0
    differs_at: int | None = None  # number of the event after which another decision was taken than then; only of `follow`


class Rerun:
    def __init__(self, path: Path) -> None:
        """WorldFailed `record_unreadable`."""
        self._path = path
        self._record = Record(path)
        config = self._record.header.config
        self._scheduler, self._referee, self._config = Scheduler(config), Referee(config), config
        self._played = Played(self._record.header)
        self._engine: Puppet | None = None
        self._now_ms = 0.0

    def play(self) -> Played:
        """Raises Broken."""
        scripts = Scripts.of(moment.event for moment in Record(self._path).moments())
        for moment in self._record.moments():
            self._played.events += 1
            self._hand_over(moment.event, scripts)
        self._bring_to_an_end()
        return self._summed_up()

    def follow(self) -> Played:
        """Raises Broken."""
        for moment in self._record.moments():
            self._played.events += 1
            if digest(self._tell(moment.event)) != moment.digest:
                self._played.differs_at = self._played.events
                break
        return self._summed_up()

    def _hand_over(self, event: Event, scripts: Scripts) -> None:
        match event:
            case StepReported() | FaultReported() | AdapterReported() | KvReported():
                if self._engine is not None:
                    for result in self._engine.take(_result_of(event)):
                        self._tell(_reported(result, event.at_ms))
            case EngineStarted():
                self._end_engine()
                self._engine = Puppet(event, self._config, scripts)
                self._tell(event)
            case EngineGone():
                self._end_engine()
                self._tell(event)
            case _:
                self._tell(event)

    def _tell(self, event: Event) -> list[Action]:
        self._now_ms = max(self._now_ms, event.at_ms)
        try:
            actions = self._scheduler.handle(event)
            self._referee.saw(event, actions)
            self._scheduler.validate()
            for action in actions:
                if isinstance(action, Command) and self._engine is not None:
                    self._engine.obey(action.order)
        except Exception as error:  # whatever it is: the event at which the service began anew is in its record
            raise self._broken(error) from error
        self._played.engines += isinstance(event, EngineStarted)
        return actions

    def _bring_to_an_end(self) -> None:
        for _ in range(MOST_ROUNDS):
            self._now_ms += STEP_MS
            results = self._engine.take_any() if self._engine is not None else []
            for result in results:
                self._tell(_reported(result, self._now_ms))
            if not results and not self._wait():
                break
        owed = self._referee.owed()
        if owed:
            raise self._broken(AssertionError(owed[0].rstrip(".")))

    def _wait(self) -> bool:
        """Let time pass until something is due. False: nothing ever will be."""
        due_ms = self._scheduler.next_deadline_ms()
        if due_ms is None:
            return False
        self._tell(Tick(max(self._now_ms, due_ms)))
        return True

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _broken(self, error: Exception) -> Broken:
        why = error.message if isinstance(error, PersonaeError) else str(error) or repr(error)
        return Broken(why, self._played.events, self._scheduler.story())

    def _summed_up(self) -> Played:
        self._end_engine()
        played, referee = self._played, self._referee
        played.is_whole = self._record.is_whole
        played.turns, played.ended = referee.ended.total() + len(self._scheduler.open_turns()), dict(referee.ended)
        played.steps, played.orders = referee.engine.n_steps, referee.engine.n_orders
        return played


def _result_of(event: StepReported | FaultReported | AdapterReported | KvReported) -> Result:
    match event:
        case StepReported(_, step):
            return step
        case FaultReported(_, fault):
            return fault
        case _:
            return event.result


def _reported(result: Result, at_ms: float) -> Event:
    match result:
        case StepDone():
            return StepReported(at_ms, result)
        case TurnFaulted():
            return FaultReported(at_ms, result)
        case AdapterLoaded() | AdapterRefused():
            return AdapterReported(at_ms, result)
        case EngineReady() | EngineWarm() | EngineFailed():
            raise OurBug("internal", f"A loop reports {result}.")
        case _:
            return KvReported(at_ms, result)
