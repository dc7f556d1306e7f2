"""The client for plain threads: blocking calls over a Link. Decides what blocks and for how long; the protocol is in `_session.py`.

Every object here may be used from several threads at once. Streams that are open together fill up by themselves, whichever is read.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from personae_client._errors import PersonaeError, Timeout
from personae_client._link import Link
from personae_client._session import Exchange, State
from personae_client._types import Characters, Delta, Done, Event, Line, Message, NpcCard, Welcome, float_of, maps_of

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7777"
DEFAULT_TIMEOUT_S = 10.0


class Client:
    """A connection to a Personae service, made when this returns. Use it in a `with`, or call `close`.

    `timeout` is in seconds: for connecting, for every request that is not a `say`, and for how long a request waits for a lost
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

    def spawn(self, character: str, npc: str | None = None, *, player: str | None = None) -> Npc:
        """Make an NPC. It lives in the service until `despawn`, whatever becomes of this connection."""
        return Npc(self, NpcCard.of(self._call("spawn", {"character": character, "npc": npc, "player": player})))

    def npc(self, id: str) -> Npc:
        """A handle for an NPC that exists already. Asks nothing: a wrong id shows as UnknownNpc when it is used."""
        return Npc(self, self._link.session.npcs.get(id) or NpcCard(id))

    def npcs(self) -> list[Npc]:
        """The NPCs this client has spawned and not despawned."""
        return [Npc(self, card) for card in tuple(self._link.session.npcs.values())]

    def characters(self) -> Characters:
        return Characters.of(self._call("characters", {}))

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
        """What has happened since the last call: from the service, and "connection_lost" and "reconnected". The newest hundred are kept."""
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
        return result_of(exchange)


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
    ) -> Stream:
        """Say something to it. Returns at once; the reply comes whether or not it is read. None: the pack's or the service's own."""
        return Stream(self._client, self.id, say_fields(self.id, text, speaker, priority, max_tokens, max_seconds, stop, sampling))

    def cancel(self) -> bool:
        """End whatever it is saying, whoever asked. False when it was silent."""
        return self._client._call("cancel", {"npc": self.id}).get("cancelled") is True

    def history(self) -> list[Line]:
        return [Line.of(one) for one in maps_of(self._client._call("history", {"npc": self.id}), "lines")]

    def despawn(self) -> None:
        self._client._call("despawn", {"npc": self.id})

    def __repr__(self) -> str:
        return f"<Npc {self.id!r}>"


class Stream:
    """A reply on its way. Iterate for its deltas, or call `text()`; leaving a `with` cancels what has not ended."""

    def __init__(self, client: Client, npc: str, fields: Message) -> None:
        self._client = client
        self.npc = npc
        self._exchange = client._link.ask("say", fields)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        """Waits for the next delta. At the end StopIteration, or the failure when it did not end well."""
        link = self._client._link
        link.wait(lambda: self._has_news)
        delta = link.take(self._exchange)
        if delta is None:
            result_of(self._exchange)
            raise StopIteration
        return delta

    def take(self) -> list[Delta]:
        """The deltas that are there, without waiting: for a frame loop. Look at `is_over` for the end."""
        taken = []
        while (delta := self._client._link.take(self._exchange)) is not None:
            taken.append(delta)
        return taken

    def wait(self) -> Done:
        """Wait for the end; deltas stay to be read."""
        self._client._link.wait(lambda: self._exchange.is_over)
        return Done.of(result_of(self._exchange))

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

    def cancel(self) -> bool:
        """Ask the service to end it. False when it had ended by itself. The stream then ends with finish "cancelled"."""
        if self.is_over:
            return False
        try:
            return self._client._call("cancel", {"turn": self._exchange.id}).get("cancelled") is True
        except PersonaeError as error:
            if error.code == "unknown_turn":
                return False
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.is_over:
            with contextlib.suppress(PersonaeError):
                self._client._link.ask("cancel", {"turn": self._exchange.id})

    def __repr__(self) -> str:
        return f"<Stream {self._exchange.id} of {self.npc!r}, {'over' if self.is_over else 'open'}>"

    @property
    def _has_news(self) -> bool:
        return bool(self._exchange.deltas) or self._exchange.is_over

    @property
    def _is_read(self) -> bool:
        return self._exchange.is_over and not self._exchange.deltas


def say_fields(
    npc: str,
    text: str,
    speaker: str | None,
    priority: str | None,
    max_tokens: int | None,
    max_seconds: float | None,
    stop: Sequence[str] | None,
    sampling: Mapping[str, float] | None,
) -> Message:
    """Fields of a say as the wire wants them. A lone string as `stop` means itself and not its letters."""
    stops = None if stop is None else [stop] if isinstance(stop, str) else list(stop)
    return {
        "npc": npc,
        "text": text,
        "speaker": speaker,
        "priority": priority,
        "max_tokens": max_tokens,
        "max_seconds": max_seconds,
        "stop": stops,
        "sampling": None if sampling is None else dict(sampling),
    }


def result_of(exchange: Exchange) -> Message:
    """The `done` of an exchange that is over; raises its failure."""
    if exchange.failure is not None:
        raise exchange.failure.with_traceback(None)  # it may be raised many times
    assert exchange.done is not None
    return exchange.done


def too_slow(kind: str, timeout: float) -> PersonaeError:
    return Timeout("timeout", f"The service did not answer {kind} within {timeout:g} s.", "It may have been carried out all the same.")


def _fields(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("type", "id")}
