"""Holds the scheduler to its word, from outside: to its clients, who are owed one end for every turn, and to its engine.

It is fed with every event and every answer. It knows none of the scheduler's own books, so that both can be wrong independently; what the
engine holds by then, and whether an order can be obeyed at all, is for `engine_truth.py` to say. AssertionError says in a sentence what
should not have been answered.

Rules that always hold
- Every turn asked ends once, with the tokens that were drawn for it, and the engine is told of each end it did not make itself.
- A turn's first word is marked as the first, and no other.
- Nothing is held of an NPC that is gone. An adapter that was set aside is not loaded again.
- Stashes and adapters are within the memory they may have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from personae.engine.batch import LoadAdapter
from personae.scheduler import actions as act
from personae.scheduler import events as ev
from personae.scheduler.engine_truth import EngineTruth, Turn
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, NpcId, TurnId


class Referee:
    """A witness that objects. `config`: what the scheduler was told; None: its limits are not judged."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self._config = config
        self.n_events = 0
        self.ended: Counter[str] = Counter()  # finish reason or error code -> turns
        self._open: dict[TurnId, Turn] = {}
        self._kv_asked: Counter[tuple[str, NpcId, str]] = Counter()  # kind, whose, path
        self._set_aside: set[AdapterKey] = set()
        self._gone: set[NpcId] = set()
        self.engine = EngineTruth(self._open, self._who_asked, config)
        self._hear: dict[type, Callable[[Any], None]] = {
            ev.TurnAsked: self._asked,
            ev.AdapterRetired: lambda event: self._retired(event.key),
            ev.NpcGone: lambda event: self._gone.add(event.npc),
            ev.KvSaveAsked: lambda event: self._kv_asked.update([("save", event.npc, event.path)]),
            ev.KvLoadAsked: self._load_asked,
            ev.StepReported: lambda event: self.engine.step_done(event.step),
            ev.FaultReported: lambda event: self.engine.end_turn(event.fault.turn),
            ev.AdapterReported: lambda event: self.engine.adapters.reported(event.result),
            ev.KvReported: lambda event: self.engine.kv_reported(event.result),
            ev.EngineStarted: lambda event: self.engine.start(event),
            ev.EngineGone: lambda event: self.engine.forget(),
        }
        self._tell: dict[type, Callable[[Any], None]] = {
            act.Command: self._ordered,
            act.Speak: self._spoke,
            act.EndTurn: self._ended,
            act.FailTurn: lambda action: self._close(action.turn, action.code),
            act.SetAside: lambda action: self._set_aside.add(action.key),
            act.KvSaved: lambda action: self._answered("save", action),
            act.KvLoaded: lambda action: self._answered("load", action),
        }

    def saw(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """The scheduler was handed `event` and answered with `actions`. AssertionError: it should not have."""
        self.n_events += 1
        hear = self._hear.get(type(event))
        if hear is not None:  # else time or a cancel: nothing is judged by them
            hear(event)
        for action in actions:  # orders come first, and already follow from ends that are told behind them
            if isinstance(action, act.EndTurn):
                self._foresee(action)
        for action in actions:
            self._tell[type(action)](action)
        self._look_around()

    def owed(self) -> list[str]:
        """What was asked and has had no answer yet, a sentence each."""
        turns = [f"Turn {turn} of NPC '{each.asked.npc}' has not ended." for turn, each in self._open.items()]
        return turns + [f"Nobody told what became of the {kind} of NPC '{npc}'." for kind, npc, _ in self._kv_asked.elements()]

    # --- turns --------------------------------------------------------------------------------------------------------

    def _asked(self, asked: ev.TurnAsked) -> None:
        assert asked.turn not in self._open, f"turn {asked.turn} was asked twice"
        self._open[asked.turn] = Turn(asked)
        self._gone.discard(asked.npc)

    def _spoke(self, spoke: act.Speak) -> None:
        turn = self._known(spoke.turn)
        assert spoke.first != turn.has_spoken, f"turn {spoke.turn} {'says its first word twice' if spoke.first else 'has no first word'}"
        turn.has_spoken = True

    def _ended(self, ended: act.EndTurn) -> None:
        turn, reply, usage = self._known(ended.turn), list(ended.reply), ended.usage
        assert reply in (turn.drawn, turn.drawn[:-1]), f"the reply of turn {ended.turn} is not what was drawn for it"
        assert usage.prompt == usage.reused + usage.prefilled, f"turn {ended.turn} counts its prompt wrong: {usage}"
        assert usage.reply == len(reply), f"turn {ended.turn} counts its reply wrong: {usage}"
        self._close(ended.turn, ended.finish)

    def _foresee(self, ended: act.EndTurn) -> None:
        """What the NPC's next prompt will begin with, and its slot may be extended by."""
        asked = self._known(ended.turn).asked
        self.engine.note_next(ended.turn, asked.prompt + ended.reply + asked.tail)

    def _close(self, turn: TurnId, how: str) -> None:
        self._known(turn).has_ended = True
        del self._open[turn]
        self.ended[str(how)] += 1

    def _known(self, turn: TurnId) -> Turn:
        assert turn in self._open, f"there is news of turn {turn}, which was not asked or has ended"
        return self._open[turn]

    # --- KV in files --------------------------------------------------------------------------------------------------

    def _load_asked(self, event: ev.KvLoadAsked) -> None:
        asked = "load", event.npc, event.path
        self._kv_asked[asked] = self._kv_asked.pop(asked, 0) + 1  # the last one now
        self._gone.discard(event.npc)

    def _answered(self, kind: str, action: act.KvSaved | act.KvLoaded) -> None:
        asked = kind, action.npc, action.path
        assert self._kv_asked[asked] > 0, f"there is an answer to no {kind} of NPC '{action.npc}'"
        self._kv_asked[asked] -= 1

    def _who_asked(self, kind: str, path: str) -> list[NpcId]:
        return [npc for (asked, npc, where), n in self._kv_asked.items() if n > 0 and (asked, where) == (kind, path)]

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _retired(self, key: AdapterKey) -> None:
        """Whoever brings it again may try again."""
        self._set_aside.discard(key)
        self.engine.adapters.retired(key)

    def _ordered(self, command: act.Command) -> None:
        order = command.order
        if isinstance(order, LoadAdapter):
            assert order.key not in self._set_aside, f"adapter {order.key} was set aside and is loaded again"
        self.engine.take(order)

    def _look_around(self) -> None:
        """What must hold after every answer."""
        for turn in self.engine.not_told():
            raise AssertionError(f"turn {turn} has ended and the engine was not told")
        self.engine.adapters.judge()
        if not self.engine.is_settled:
            return
        for where, npc in self.engine.owners():
            assert npc not in self._gone, f"{where} still holds what was said to NPC '{npc}', which is gone"
        n_bytes = self.engine.stash_bytes()
        assert self._config is None or n_bytes <= self._config.kv_ram, f"stashes have {n_bytes} bytes, more than they may"
