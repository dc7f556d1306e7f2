"""The last events and what was answered to each, for people who ask how it came to this. Keeps references, and writes only when asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from personae.scheduler.actions import Action, Command
from personae.scheduler.events import Event

LENGTH = 200  # events remembered: a dozen seconds of a busy service
LONG = 6  # a longer run of tokens is written as its length
LEFT_OUT = {"at_ms", "sampling", "rules", "history"}  # nothing here is decided by them


class Story:
    def __init__(self) -> None:
        self._told: deque[tuple[Event, tuple[Action, ...]]] = deque(maxlen=LENGTH)

    def note(self, event: Event, actions: tuple[Action, ...]) -> None:
        self._told.append((event, actions))

    def __str__(self) -> str:
        return "\n".join(line for event, actions in self._told for line in _lines(event, actions))


def _lines(event: Event, actions: tuple[Action, ...]) -> Iterator[str]:
    yield f"{event.at_ms:12.1f}  {_written(event)}"
    for action in actions:
        yield f"{'':14}-> {_written(action.order if isinstance(action, Command) else action)}"


def _written(value: object) -> str:
    if is_dataclass(value):
        shown = ((field.name, getattr(value, field.name)) for field in fields(value) if field.name not in LEFT_OUT)
        return f"{type(value).__name__}({', '.join(f'{name}={_written(each)}' for name, each in shown if each not in (None, '', ()))})"
    if isinstance(value, tuple | list):
        return _written_run(value)
    if isinstance(value, str):
        return f"{value[:12]}…" if len(value) > 40 else value
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _written_run(run: tuple[object, ...] | list[object]) -> str:
    if len(run) > LONG and all(isinstance(each, int) for each in run):
        return f"<{len(run)} tokens {run[0]}..{run[-1]}>"
    return f"[{', '.join(_written(each) for each in run)}]"
