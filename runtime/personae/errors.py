"""Every failure that leaves a function of ours by exception, and the stable code it carries to the client.

    PersonaeError
    ├── AskedWrong       the request cannot be done as asked: the peer gets code and hint, nobody else notices
    ├── BrokeProtocol    the peer does not speak our wire: its session ends
    ├── WorldFailed      a file, a process, a machine: report it, retry where that can help
    └── OurBug           our own books are wrong: the open turns end with `internal`, the engine starts again

A code is a promise: clients switch on it, so it is never renamed. `bindings/PROTOCOL.md` lists each with its meaning.
The message names the thing ("adapter 'pirate.gguf'"); the hint says what to do. Neither holds a traceback or a secret.
"""

from __future__ import annotations

from typing import Any


class PersonaeError(Exception):
    """A failure with a stable `code`, one clear sentence, and what to do about it."""

    def __init__(self, code: str, message: str, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details  # plain msgpack types only, e.g. retry_after_ms

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, self.message, self.hint, self.details)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def _rebuild(kind: type[PersonaeError], code: str, message: str, hint: str, details: dict[str, Any]) -> PersonaeError:
    return kind(code, message, hint, **details)


class AskedWrong(PersonaeError):  # noqa: N818  the name is the sentence
    """The request cannot be done as asked."""


class BrokeProtocol(PersonaeError):  # noqa: N818
    """The peer does not speak our wire."""


class WorldFailed(PersonaeError):  # noqa: N818
    """Something outside this program did not hold."""


class OurBug(PersonaeError):  # noqa: N818
    """An invariant of ours is broken."""
