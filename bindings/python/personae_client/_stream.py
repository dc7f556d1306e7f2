"""A reply on its way, for plain threads: blocking reads over a Link. Decides what waits; what is asked and answered, others know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from personae_client._errors import PersonaeError
from personae_client._link import Link
from personae_client._requests import cancel_fields
from personae_client._types import Cancelled, Delta, Done, Message

Call = Callable[[str, Message], Message]


class Stream:
    """A reply on its way. Iterate for its deltas, or call `text()`; leaving a `with` cancels what has not ended."""

    def __init__(self, link: Link, call: Call, kind: str, npc: str, fields: Message) -> None:
        self._link, self._call = link, call
        self.npc = npc
        self._exchange = link.ask(kind, fields)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        """Waits for the next delta. At the end StopIteration, or the failure when it did not end well."""
        self._link.wait(lambda: self._has_news)
        delta = self._link.take(self._exchange)
        if delta is None:
            self._exchange.result()
            raise StopIteration
        return delta

    def take(self) -> list[Delta]:
        """The deltas that are there, without waiting: for a frame loop. Look at `is_over` for the end."""
        taken = []
        while (delta := self._link.take(self._exchange)) is not None:
            taken.append(delta)
        return taken

    def wait(self) -> Done:
        """Wait for the end; deltas stay to be read."""
        self._link.wait(lambda: self._exchange.is_over)
        return Done.of(self._exchange.result())

    def text(self) -> str:
        """Wait for the end; the whole reply, whatever was read of it before."""
        return self.wait().text

    @property
    def done(self) -> Done | None:
        """How it ended; None while it is open, and when it failed."""
        return Done.of(self._exchange.done) if self._exchange.done is not None else None

    @property
    def failure(self) -> PersonaeError | None:
        """Why it failed; None while it is open, and when it ended well."""
        return self._exchange.failure

    @property
    def is_over(self) -> bool:
        """Whether it has ended. Deltas may still be there to be read."""
        return self._exchange.is_over

    def cancel(self, *, heard_chars: int | None = None, heard_sentences: int | None = None) -> Cancelled:
        """Ask the service to end it. False when it had ended by itself. The stream then ends with finish "cancelled".

        `heard_...`: how much of the reply was shown or voiced; the rest never happened. Also after the end: voices are slower than models.
        """
        if self.is_over and heard_chars is None and heard_sentences is None:
            return Cancelled(False, 0)
        try:
            return Cancelled.of(self._call("cancel", cancel_fields(heard_chars, heard_sentences, turn=self._exchange.id)))
        except PersonaeError as error:
            if error.code == "unknown_turn":
                return Cancelled(False, 0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.is_over:
            with contextlib.suppress(PersonaeError):
                self._link.ask("cancel", {"turn": self._exchange.id})

    def __repr__(self) -> str:
        return f"<Stream {self._exchange.id} of {self.npc!r}, {'over' if self.is_over else 'open'}>"

    @property
    def _has_news(self) -> bool:
        return bool(self._exchange.deltas) or self._exchange.is_over

    @property
    def _is_read(self) -> bool:
        return self._exchange.is_over and not self._exchange.deltas
