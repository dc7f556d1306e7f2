"""The client for asyncio: the same calls, awaited. Decides what is awaited and for how long, not how a loop is woken."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self, Unpack

from personae_client._async_stream import AsyncStream, Bell
from personae_client._errors import PersonaeError
from personae_client._link import Link
from personae_client._requests import (
    SayOptions,
    cancel_fields,
    ids_of,
    lines_fields,
    observe_fields,
    say_fields,
    spawn_fields,
    too_slow,
    warm_fields,
)
from personae_client._saves import Restored, Saved, restores
from personae_client._session import State
from personae_client._sync import DEFAULT_ENDPOINT, DEFAULT_TIMEOUT_S
from personae_client._types import (
    Cancelled,
    Characters,
    Delta,
    Done,
    Event,
    Line,
    Message,
    NpcCard,
    Welcome,
    float_of,
    maps_of,
    texts_of,
)


async def _wait_for_any(streams: list[AsyncStream], bell: Bell) -> None:
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

    async def spawn(self, character: str, npc: str | None = None, *, player: str | None = None, greeting: int | None = None) -> AsyncNpc:
        """Make an NPC. It lives in the service until `despawn`, whatever becomes of this connection.

        `greeting`: which of the character's, from 0, for those that have several; None: the usual one.
        """
        return AsyncNpc(self, NpcCard.of(await self._call("spawn", spawn_fields(character, npc, player, greeting))))

    def npc(self, id: str) -> AsyncNpc:
        """A handle for an NPC that exists already. Asks nothing: a wrong id shows as UnknownNpc when it is used."""
        return AsyncNpc(self, self._link.session.npcs.get(id) or NpcCard(id))

    def npcs(self) -> list[AsyncNpc]:
        """The NPCs this client has spawned or restored, and not despawned."""
        return [AsyncNpc(self, card) for card in tuple(self._link.session.npcs.values())]

    async def characters(self) -> Characters:
        return Characters.of(await self._call("characters", {}))

    async def subscribe_packs(self, wanted: bool = True) -> bool:
        """From now on `take_events` tells of packs that come, change and go while the service runs: see `Event.pack_change`. Holds for
        this client until it is taken back, through every reconnect."""
        return (await self._call("subscribe", {"packs": wanted})).get("packs") is True

    async def observe(self, npcs: Iterable[AsyncNpc | str], text: str, *, speaker: str | None = None) -> None:
        """These NPCs, and nobody else, hear it without answering. `speaker` None: it is an event, told by nobody."""
        await self._call("observe", observe_fields(npcs, text, speaker))

    async def save(self, npcs: Iterable[AsyncNpc | str] | None = None, *, name: str | None = None, kv: bool = False) -> Saved:
        """What these NPCs, None: all, have heard and remember. With `name` the service keeps it; with `kv` what it computed, too."""
        return Saved.of(await self._call("save", {"npcs": None if npcs is None else ids_of(npcs), "name": name, "kv": kv or None}))

    async def restore(
        self,
        document: Message | None = None,
        *,
        name: str | None = None,
        npcs: Iterable[AsyncNpc | str] | None = None,
        replace: bool = False,
    ) -> Restored:
        """NPCs of a save are there again, with today's packs. Look at `problems`: an NPC that exists is one, unless `replace`.

        A document that is larger than a request may be is given back in several; when one of them fails, those before it are restored.
        """
        wanted = None if npcs is None else ids_of(npcs)
        return Restored.of([await self._call("restore", one) for one in restores(document, name, wanted, replace, self.welcome.limits)])

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
        pending, bell = list(streams), Bell()
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
        """What has happened since the last call: from the service, and "connection_lost" and "reconnected". The newest 256 are kept."""
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
        bell = Bell()
        exchange = self._link.ask(kind, fields, bell.ring)
        try:
            await asyncio.wait_for(bell.wait_until(lambda: exchange.is_over), self._timeout)
        except TimeoutError:
            raise too_slow(kind, self._timeout) from None
        finally:
            if not exchange.is_over:
                self._link.forget(exchange)
        return exchange.result()


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

    def say(self, text: str | None = None, **options: Unpack[SayOptions]) -> AsyncStream:
        """Say something to it; sent at once. `async for` gives the deltas, `await` the Done. `text` None: it goes on of its own accord."""
        return AsyncStream(self._client._link, self._client._call, "say", self.id, say_fields(self.id, text, options))

    async def cancel(self, *, heard_chars: int | None = None, heard_sentences: int | None = None) -> Cancelled:
        """End whatever it is saying, whoever asked. False when it was silent.

        `heard_...`: how much of its reply, or of its last one, was shown or voiced; the rest never happened.
        """
        return Cancelled.of(await self._client._call("cancel", cancel_fields(heard_chars, heard_sentences, npc=self.id)))

    async def observe(self, text: str, *, speaker: str | None = None) -> None:
        """It hears this and does not answer. `speaker` None: it is an event, told by nobody."""
        await self._client.observe([self.id], text, speaker=speaker)

    async def history(self) -> list[Line]:
        """Oldest first."""
        return await self._history({"npc": self.id})

    async def keep_history(self, n: int) -> list[Line]:
        """Only the first `n` lines stay; returns them. Like the other changes it raises NpcBusy while the NPC speaks."""
        return await self._history({"npc": self.id, "keep": n})

    async def edit_line(self, at: int, text: str) -> list[Line]:
        """Another text for one line, -1 being the newest; returns all of them."""
        return await self._history({"npc": self.id, "edit": {"at": at, "text": text}})

    async def set_history(self, lines: Iterable[Line]) -> list[Line]:
        """All of it anew."""
        return await self._history(lines_fields(self.id, lines))

    async def memories(self) -> list[str]:
        """What it remembers apart from the lines of its history."""
        return texts_of(await self._client._call("memories", {"npc": self.id}), "memories")

    async def set_memories(self, memories: Iterable[str]) -> list[str]:
        """These, instead of those there were; they count from its next turn."""
        return texts_of(await self._client._call("memories", {"npc": self.id, "set": list(memories)}), "memories")

    async def warm(self, *, mood: str | None = None, priority: str | None = None) -> Done:
        """Prepare it for its next turn, and wait until it is: finish "warm". A task that is cancelled meanwhile ends it."""
        return await AsyncStream(self._client._link, self._client._call, "warm", self.id, warm_fields(self.id, mood, priority))

    async def despawn(self) -> None:
        await self._client._call("despawn", {"npc": self.id})

    async def _history(self, fields: Message) -> list[Line]:
        return [Line.of(one) for one in maps_of(await self._client._call("history", fields), "lines")]

    def __repr__(self) -> str:
        return f"<AsyncNpc {self.id!r}>"
