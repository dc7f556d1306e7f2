"""Talk to NPCs that live in a Personae service.

    with Client("tcp://127.0.0.1:7777", name="my game") as client:
        npc = client.spawn("innkeeper")
        for delta in npc.say("Good evening"):
            print(delta.text, end="")

`AsyncClient` is the same with await. Every failure is a `PersonaeError` with a `code`, a `message` and a `hint`.
"""

from __future__ import annotations

from personae_client._asyncio import AsyncClient, AsyncNpc, AsyncStream
from personae_client._errors import (
    AdapterRefused,
    Busy,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    EngineLost,
    NpcBusy,
    PackInvalid,
    PersonaeError,
    Timeout,
    Unauthorized,
    UnknownCharacter,
    UnknownNpc,
    UnsupportedVersion,
    WrongServer,
)
from personae_client._sync import Client, Npc, Stream
from personae_client._types import Character, Characters, Delta, Done, Event, Line, Model, NpcCard, PackProblem, Timing, Usage, Welcome

__version__ = "0.1.0"

__all__ = [
    "AdapterRefused",
    "AsyncClient",
    "AsyncNpc",
    "AsyncStream",
    "Busy",
    "Character",
    "Characters",
    "Client",
    "Closed",
    "ConnectionFailed",
    "ConnectionLost",
    "Delta",
    "Done",
    "EngineLost",
    "Event",
    "Line",
    "Model",
    "Npc",
    "NpcBusy",
    "NpcCard",
    "PackInvalid",
    "PackProblem",
    "PersonaeError",
    "Stream",
    "Timeout",
    "Timing",
    "Unauthorized",
    "UnknownCharacter",
    "UnknownNpc",
    "UnsupportedVersion",
    "Usage",
    "Welcome",
    "WrongServer",
]
