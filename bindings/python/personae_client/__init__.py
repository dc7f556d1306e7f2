"""Talk to NPCs that live in a Personae service.

    with Client("tcp://127.0.0.1:7777", name="my game") as client:
        npc = client.spawn("innkeeper")
        for delta in npc.say("Good evening"):
            print(delta.text, end="")

`AsyncClient` is the same with await. Every failure is a `PersonaeError` with a `code`, a `message` and a `hint`.
"""

from __future__ import annotations

from personae_client._async_stream import AsyncStream
from personae_client._asyncio import AsyncClient, AsyncNpc
from personae_client._errors import (
    AdapterRefused,
    Busy,
    CharacterGone,
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
    UnknownMood,
    UnknownNpc,
    UnsupportedVersion,
    WrongServer,
)
from personae_client._requests import SayOptions
from personae_client._saves import NotRestored, Restored, RestoredNpc, Saved
from personae_client._stream import Stream
from personae_client._sync import Client, Npc
from personae_client._types import (
    Cancelled,
    Character,
    Characters,
    Delta,
    Done,
    Event,
    Line,
    Model,
    NpcCard,
    PackChange,
    PackProblem,
    Timing,
    Usage,
    VoicePart,
    Welcome,
)

__version__ = "0.1.0"

__all__ = [
    "AdapterRefused",
    "AsyncClient",
    "AsyncNpc",
    "AsyncStream",
    "Busy",
    "Cancelled",
    "Character",
    "CharacterGone",
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
    "NotRestored",
    "Npc",
    "NpcBusy",
    "NpcCard",
    "PackChange",
    "PackInvalid",
    "PackProblem",
    "PersonaeError",
    "Restored",
    "RestoredNpc",
    "Saved",
    "SayOptions",
    "Stream",
    "Timeout",
    "Timing",
    "Unauthorized",
    "UnknownCharacter",
    "UnknownMood",
    "UnknownNpc",
    "UnsupportedVersion",
    "Usage",
    "VoicePart",
    "Welcome",
    "WrongServer",
]
