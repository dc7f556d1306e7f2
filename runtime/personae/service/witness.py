"""Who looks on while the scheduler decides: a recorder, a test that holds it to its rules, or nobody. Decides nothing itself.

A witness hears of everything and changes nothing. It is told on the service's own thread, so what it does with it must be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from personae.scheduler.actions import Action
from personae.scheduler.events import Event


class Witness(Protocol):
    def saw(self, event: Event, actions: Sequence[Action]) -> None:
        """The scheduler was handed `event` and answered with `actions`; nothing of them has been carried out yet. None at all: perhaps it
        failed over the event, and another scheduler begins after it."""
        ...


class NobodyWatches:
    def saw(self, event: Event, actions: Sequence[Action]) -> None:
        """Nobody looks."""


class Several:
    """Each is told in the order given here."""

    def __init__(self, *witnesses: Witness) -> None:
        self._witnesses = witnesses

    def saw(self, event: Event, actions: Sequence[Action]) -> None:
        for witness in self._witnesses:
            witness.saw(event, actions)
