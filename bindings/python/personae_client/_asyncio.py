"""The client for asyncio: the same calls, awaited. Decides how a Link's thread wakes an event loop: `call_soon_threadsafe`, nothing else.

No socket is registered with the loop, so that it works with every loop on every system, Windows' default one included.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from personae_client._errors import PersonaeError
from personae_client._link import Link
from personae_client._session import Exchange, State
from personae_client._sync import DEFAULT_ENDPOINT, DEFAULT_TIMEOUT_S, result_of, say_fields, too_slow
from personae_client._types import Characters, Delta, Done, Event, Line, Message, NpcCard, Welcome, float_of, maps_of


class _Bell:
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


async def _wait_for_any(streams: list[AsyncStream], bell: _Bell) -> None:
    await bell.wait_until(lambda: not streams or any(stream._has_news for stream in streams))


class AsyncClient:
    """A connection to a Personae service, made by `async with` or `await connect()`. `timeout` as in `Client`."""

    def __init__(
        self, endpoint: str = DEFAULT_ENDPOINT, *, token: str | None = None, name: str = "python", timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._timeout = timeout
        self._link = Link(endpoint, token, name, timeout)
        self._finalizer = weakref.finalize(self, self._link.abandon)

    async def connect(self) -> None:
        """Raises ConnectionFailed, WrongServer, Unauthorized or UnsupportedVersion, or what the service says to hello."""
        try:
            await asyncio.to_thread(self._link.open)
        except asyncio.CancelledError:
            self._link.abandon()
            raise

    async def spawn(self, character: str, npc: str | None = None, *, player: str | None = None) -> AsyncNpc:
        """Make an NPC. It lives in the service until `despawn`, whatever becomes of this connection."""
        return AsyncNpc(self, NpcCard.of(await self._call("spawn", {"character": character, "npc": npc, "player": player})))

    def npc(self, id: str) -> AsyncNpc:
        """A handle for an NPC that exists already. Asks nothing: a wrong id shows as UnknownNpc when it is used."""
        return AsyncNpc(self, self._link.session.npcs.get(id) or NpcCard(id))

    def npcs(self) -> list[AsyncNpc]:
        """The NPCs this client has spawned and not despawned."""
        return [AsyncNpc(self, card) for card in tuple(self._link.session.npcs.values())]

    async def characters(self) -> Characters:
        return Characters.of(await self._call("characters", {}))

    async def stats(self) -> Message:
        return {key: value for key, value in (await self._call("stats", {})).items() if key not in ("type", "id")}

    async def ping(self) -> float:
        """The service's steady clock, in milliseconds."""
        return float_of(await self._call("ping", {}), "at_ms")

    async def shutdown(self) -> None:
        """Ask the service to end its turns and exit."""
        await self._call("shutdown", {})

    async def gather(self, *streams: AsyncStream) -> list[Done]:
        """Wait for all of them. Raises the first failure in order, after every stream has ended."""
        for stream in streams:
            await stream._ended()
        return [await stream.wait() for stream in streams]

    async def stream_all(self, streams: Iterable[AsyncStream]) -> AsyncIterator[tuple[AsyncStream, Delta]]:
        """Deltas of many streams as they come. A stream that fails just ends: see its `failure`."""
        pending, bell = list(streams), _Bell()
        for stream in pending:
            stream._listeners.append(bell.ring)
        while pending:
            arrived = [(stream, delta) for stream in pending if (delta := self._link.take(stream._exchange)) is not None]
            for one in arrived:
                yield one
            if not arrived:
                pending = [stream for stream in pending if not stream._is_read]
                await _wait_for_any(pending, bell)

    @property
    def welcome(self) -> Welcome:
        """What the service said of itself when the connection was last made: model, mode, slots, limits."""
        if self._link.session.welcome is None:
            raise PersonaeError("not_connected", "The client is not connected yet.", "Use `async with`, or await connect() first.")
        return self._link.session.welcome

    @property
    def is_connected(self) -> bool:
        return self._link.session.state is State.OPEN

    @property
    def is_warm(self) -> bool:
        """Whether the first decode has been paid for."""
        return self._link.session.is_warm

    def take_events(self) -> list[Event]:
        """What has happened since the last call: from the service, and "connection_lost" and "reconnected". The newest hundred are kept."""
        return self._link.take_events()

    async def close(self) -> None:
        """Cancel open turns and disconnect, within a second. NPCs stay. A second call is harmless."""
        self._finalizer.detach()
        await asyncio.to_thread(self._link.close)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _call(self, kind: str, fields: Message) -> Message:
        bell = _Bell()
        exchange = self._link.ask(kind, fields, bell.ring)
        try:
            await asyncio.wait_for(bell.wait_until(lambda: exchange.is_over), self._timeout)
        except TimeoutError:
            raise too_slow(kind, self._timeout) from None
        finally:
            if not exchange.is_over:
                self._link.forget(exchange)
        return result_of(exchange)


class AsyncNpc:
    """An NPC in the service. A handle: making or losing one changes nothing there. Stays valid across reconnects."""

    def __init__(self, client: AsyncClient, card: NpcCard) -> None:
        self._client = client
        self.card = card
        self.id = card.npc

    @property
    def name(self) -> str:
        return self.card.name or self.id

    @property
    def greeting(self) -> str:
        return self.card.greeting

    def say(
        self,
        text: str,
        *,
        speaker: str | None = None,
        priority: str | None = None,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        stop: Sequence[str] | None = None,
        sampling: Mapping[str, float] | None = None,
    ) -> AsyncStream:
        """Say something to it; sent at once. `async for` gives the deltas, `await` the Done."""
        return AsyncStream(self._client, self.id, say_fields(self.id, text, speaker, priority, max_tokens, max_seconds, stop, sampling))

    async def cancel(self) -> bool:
        """End whatever it is saying, whoever asked. False when it was silent."""
        return (await self._client._call("cancel", {"npc": self.id})).get("cancelled") is True

    async def history(self) -> list[Line]:
        return [Line.of(one) for one in maps_of(await self._client._call("history", {"npc": self.id}), "lines")]

    async def despawn(self) -> None:
        await self._client._call("despawn", {"npc": self.id})

    def __repr__(self) -> str:
        return f"<AsyncNpc {self.id!r}>"


class AsyncStream:
    """A reply on its way: `async for delta in stream`, or `done = await stream`.

    A task that is cancelled while it awaits the stream cancels the turn: nobody is left to hear it. Breaking out of `async for` does not;
    use `async with`, or call `cancel`.
    """

    def __init__(self, client: AsyncClient, npc: str, fields: Message) -> None:
        self._client = client
        self.npc = npc
        self._bell = _Bell()
        self._listeners: list[Callable[[], None]] = [self._bell.ring]
        self._exchange: Exchange = client._link.ask("say", fields, self._ring)

    def __await__(self) -> Generator[Any, None, Done]:
        return self._whole().__await__()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        await self._bell.wait_until(lambda: self._has_news)
        delta = self._client._link.take(self._exchange)
        if delta is None:
            result_of(self._exchange)
            raise StopAsyncIteration
        return delta

    async def wait(self) -> Done:
        """Wait for the end; deltas stay to be read. Unlike `await stream`, a cancelled waiter leaves the turn alone."""
        await self._ended()
        return Done.of(result_of(self._exchange))

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

    async def cancel(self) -> bool:
        """Ask the service to end it. False when it had ended by itself. The stream then ends with finish "cancelled"."""
        if self.is_over:
            return False
        try:
            return (await self._client._call("cancel", {"turn": self._exchange.id})).get("cancelled") is True
        except PersonaeError as error:
            if error.code == "unknown_turn":
                return False
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
                self._client._link.ask("cancel", {"turn": self._exchange.id})

    def _ring(self) -> None:
        for ring in tuple(self._listeners):
            ring()

    @property
    def _has_news(self) -> bool:
        return bool(self._exchange.deltas) or self._exchange.is_over

    @property
    def _is_read(self) -> bool:
        return self._exchange.is_over and not self._exchange.deltas
