"""A reply on its way, for asyncio. Decides how a Link's thread wakes an event loop: `call_soon_threadsafe`, nothing else.

No socket is registered with the loop, so that it works with every loop on every system, Windows' default one included.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Self

from personae_client._errors import PersonaeError
from personae_client._link import Link
from personae_client._requests import cancel_fields
from personae_client._session import Exchange
from personae_client._types import Cancelled, Delta, Done, Message

AsyncCall = Callable[[str, Message], Awaitable[Message]]


class Bell:
    """An asyncio.Event that any thread may ring."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._event.clear()
            if not is_so():  # it may have become so, and have rung, before the clear
                await self._event.wait()


class AsyncStream:
    """A reply on its way: `async for delta in stream`, or `done = await stream`.

    A task that is cancelled while it awaits the stream cancels the turn: nobody is left to hear it. Breaking out of `async for` does not;
    use `async with`, or call `cancel`.
    """

    def __init__(self, link: Link, call: AsyncCall, kind: str, npc: str, fields: Message) -> None:
        self._link, self._call = link, call
        self.npc = npc
        self._bell = Bell()
        self._listeners: list[Callable[[], None]] = [self._bell.ring]
        self._exchange: Exchange = link.ask(kind, fields, self._ring)

    def __await__(self) -> Generator[Any, None, Done]:
        return self._whole().__await__()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        await self._bell.wait_until(lambda: self._has_news)
        delta = self._link.take(self._exchange)
        if delta is None:
            self._exchange.result()
            raise StopAsyncIteration
        return delta

    async def wait(self) -> Done:
        """Wait for the end; deltas stay to be read. Unlike `await stream`, a cancelled waiter leaves the turn alone."""
        await self._ended()
        return Done.of(self._exchange.result())

    async def _ended(self) -> None:
        await self._bell.wait_until(lambda: self.is_over)

    async def text(self) -> str:
        """Wait for the end; the whole reply, whatever was read of it before."""
        return (await self).text

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

    async def cancel(self, *, heard_chars: int | None = None, heard_sentences: int | None = None) -> Cancelled:
        """Ask the service to end it. False when it had ended by itself. The stream then ends with finish "cancelled".

        `heard_...`: how much of the reply was shown or voiced; the rest never happened. Also after the end: voices are slower than models.
        """
        if self.is_over and heard_chars is None and heard_sentences is None:
            return Cancelled(False, 0)
        try:
            return Cancelled.of(await self._call("cancel", cancel_fields(heard_chars, heard_sentences, turn=self._exchange.id)))
        except PersonaeError as error:
            if error.code == "unknown_turn":
                return Cancelled(False, 0)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._let_go()

    def __repr__(self) -> str:
        return f"<AsyncStream {self._exchange.id} of {self.npc!r}, {'over' if self.is_over else 'open'}>"

    async def _whole(self) -> Done:
        try:
            return await self.wait()
        except asyncio.CancelledError:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Cancel without waiting for the answer."""
        if not self.is_over:
            with contextlib.suppress(PersonaeError):
                self._link.ask("cancel", {"turn": self._exchange.id})

    def _ring(self) -> None:
        for ring in tuple(self._listeners):
            ring()

    @property
    def _has_news(self) -> bool:
        return bool(self._exchange.deltas) or self._exchange.is_over

    @property
    def _is_read(self) -> bool:
        return self._exchange.is_over and not self._exchange.deltas
