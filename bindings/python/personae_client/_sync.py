"""The client for plain threads: blocking calls over a Link. Decides what blocks and for how long; the protocol is in `_session.py`.

Every object here may be used from several threads at once. Streams that are open together fill up by themselves, whichever is read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, Unpack

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
from personae_client._stream import Stream
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

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7777"
DEFAULT_TIMEOUT_S = 10.0


class Client:
    """A connection to a Personae service, made when this returns. Use it in a `with`, or call `close`.

    `timeout` is in seconds: for connecting, for every request that is not a `say` or `warm`, and for how long a request waits for a lost
    connection to come back. A `say` has no timeout of its own: the service ends every turn (`max_seconds`), and a service that falls
    silent is noticed by its heartbeat.
    """

    def __init__(
        self, endpoint: str = DEFAULT_ENDPOINT, *, token: str | None = None, name: str = "python", timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Raises ConnectionFailed, WrongServer, Unauthorized or UnsupportedVersion, or what the service says to hello."""
        self._timeout = timeout
        self._link = Link(endpoint, token, name, timeout)
        self._link.open()
        self._finalizer = weakref.finalize(self, self._link.abandon)

    def spawn(self, character: str, npc: str | None = None, *, player: str | None = None, greeting: int | None = None) -> Npc:
        """Make an NPC. It lives in the service until `despawn`, whatever becomes of this connection.

        `greeting`: which of the character's, from 0, for those that have several; None: the usual one.
        """
        return Npc(self, NpcCard.of(self._call("spawn", spawn_fields(character, npc, player, greeting))))

    def npc(self, id: str) -> Npc:
        """A handle for an NPC that exists already. Asks nothing: a wrong id shows as UnknownNpc when it is used."""
        return Npc(self, self._link.session.npcs.get(id) or NpcCard(id))

    def npcs(self) -> list[Npc]:
        """The NPCs this client has spawned or restored, and not despawned."""
        return [Npc(self, card) for card in tuple(self._link.session.npcs.values())]

    def characters(self) -> Characters:
        return Characters.of(self._call("characters", {}))

    def subscribe_packs(self, wanted: bool = True) -> bool:
        """From now on `take_events` tells of packs that come, change and go while the service runs: see `Event.pack_change`. Holds for
        this client until it is taken back, through every reconnect."""
        return (self._call("subscribe", {"packs": wanted})).get("packs") is True

    def observe(self, npcs: Iterable[Npc | str], text: str, *, speaker: str | None = None) -> None:
        """These NPCs, and nobody else, hear it without answering. `speaker` None: it is an event, told by nobody."""
        self._call("observe", observe_fields(npcs, text, speaker))

    def save(self, npcs: Iterable[Npc | str] | None = None, *, name: str | None = None, kv: bool = False) -> Saved:
        """What these NPCs, None: all, have heard and remember. With `name` the service keeps it; with `kv` what it computed, too."""
        return Saved.of(self._call("save", {"npcs": None if npcs is None else ids_of(npcs), "name": name, "kv": kv or None}))

    def restore(
        self,
        document: Message | None = None,
        *,
        name: str | None = None,
        npcs: Iterable[Npc | str] | None = None,
        replace: bool = False,
    ) -> Restored:
        """NPCs of a save are there again, with today's packs. Look at `problems`: an NPC that exists is one, unless `replace`.

        A document that is larger than a request may be is given back in several; when one of them fails, those before it are restored.
        """
        wanted = None if npcs is None else ids_of(npcs)
        return Restored.of([self._call("restore", fields) for fields in restores(document, name, wanted, replace, self.welcome.limits)])

    def stats(self) -> Message:
        return _fields(self._call("stats", {}))

    def ping(self) -> float:
        """The service's steady clock, in milliseconds."""
        return float_of(self._call("ping", {}), "at_ms")

    def shutdown(self) -> None:
        """Ask the service to end its turns and exit."""
        self._call("shutdown", {})

    def gather(self, *streams: Stream) -> list[Done]:
        """Wait for all of them. Raises the first failure in order, after every stream has ended."""
        self._link.wait(lambda: all(stream._exchange.is_over for stream in streams))
        return [stream.wait() for stream in streams]

    def stream_all(self, streams: Iterable[Stream]) -> Iterator[tuple[Stream, Delta]]:
        """Deltas of many streams as they come. A stream that fails just ends: see its `failure`."""
        pending = list(streams)
        while pending:
            arrived = [(stream, delta) for stream in pending if (delta := self._link.take(stream._exchange)) is not None]
            yield from arrived
            if not arrived:
                pending = [stream for stream in pending if not stream._is_read]
                self._wait_for_any(pending)

    @property
    def welcome(self) -> Welcome:
        """What the service said of itself when the connection was last made: model, mode, slots, limits."""
        assert self._link.session.welcome is not None  # __init__ has seen to it
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

    def close(self) -> None:
        """Cancel open turns and disconnect, within a second. NPCs stay. A second call is harmless."""
        self._finalizer.detach()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _wait_for_any(self, streams: list[Stream]) -> None:
        self._link.wait(lambda: not streams or any(stream._has_news for stream in streams))

    def _call(self, kind: str, fields: Message) -> Message:
        exchange = self._link.ask(kind, fields)
        if not self._link.wait(lambda: exchange.is_over, self._timeout):
            self._link.forget(exchange)
            raise too_slow(kind, self._timeout)
        return exchange.result()


class Npc:
    """An NPC in the service. A handle: making or losing one changes nothing there. Stays valid across reconnects."""

    def __init__(self, client: Client, card: NpcCard) -> None:
        self._client = client
        self.card = card
        self.id = card.npc

    @property
    def name(self) -> str:
        return self.card.name or self.id

    @property
    def greeting(self) -> str:
        return self.card.greeting

    def say(self, text: str | None = None, **options: Unpack[SayOptions]) -> Stream:
        """Say something to it. Returns at once; the reply comes whether or not it is read. `text` None: it goes on of its own accord."""
        return Stream(self._client._link, self._client._call, "say", self.id, say_fields(self.id, text, options))

    def cancel(self, *, heard_chars: int | None = None, heard_sentences: int | None = None) -> Cancelled:
        """End whatever it is saying, whoever asked. False when it was silent.

        `heard_...`: how much of its reply, or of its last one, was shown or voiced; the rest never happened.
        """
        return Cancelled.of(self._client._call("cancel", cancel_fields(heard_chars, heard_sentences, npc=self.id)))

    def observe(self, text: str, *, speaker: str | None = None) -> None:
        """It hears this and does not answer. `speaker` None: it is an event, told by nobody."""
        self._client.observe([self.id], text, speaker=speaker)

    def history(self) -> list[Line]:
        """Oldest first."""
        return self._history({"npc": self.id})

    def keep_history(self, n: int) -> list[Line]:
        """Only the first `n` lines stay; returns them. Like the other changes it raises NpcBusy while the NPC speaks."""
        return self._history({"npc": self.id, "keep": n})

    def edit_line(self, at: int, text: str) -> list[Line]:
        """Another text for one line, -1 being the newest; returns all of them."""
        return self._history({"npc": self.id, "edit": {"at": at, "text": text}})

    def set_history(self, lines: Iterable[Line]) -> list[Line]:
        """All of it anew."""
        return self._history(lines_fields(self.id, lines))

    def memories(self) -> list[str]:
        """What it remembers apart from the lines of its history."""
        return texts_of(self._client._call("memories", {"npc": self.id}), "memories")

    def set_memories(self, memories: Iterable[str]) -> list[str]:
        """These, instead of those there were; they count from its next turn."""
        return texts_of(self._client._call("memories", {"npc": self.id, "set": list(memories)}), "memories")

    def warm(self, *, mood: str | None = None, priority: str | None = None) -> Done:
        """Prepare it for its next turn, and wait until it is: finish "warm"."""
        return self.start_warm(mood=mood, priority=priority).wait()

    def start_warm(self, *, mood: str | None = None, priority: str | None = None) -> Stream:
        """The same without waiting: a stream without deltas."""
        return Stream(self._client._link, self._client._call, "warm", self.id, warm_fields(self.id, mood, priority))

    def despawn(self) -> None:
        self._client._call("despawn", {"npc": self.id})

    def _history(self, fields: Message) -> list[Line]:
        return [Line.of(one) for one in maps_of(self._client._call("history", fields), "lines")]

    def __repr__(self) -> str:
        return f"<Npc {self.id!r}>"


def _fields(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("type", "id")}
