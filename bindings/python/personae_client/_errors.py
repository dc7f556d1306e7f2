"""Every failure a caller can meet, as a type and a stable code. Decides which codes have a class of their own; the rest are PersonaeError.

PersonaeError
├── Busy, NpcBusy, UnknownCharacter, UnknownNpc, UnknownMood, CharacterGone,
│   PackInvalid, AdapterRefused, EngineLost                                 said by the service
├── Unauthorized, UnsupportedVersion, WrongServer, ConnectionFailed         there is no session
└── ConnectionLost, Timeout, Closed                                         there was one
"""

# ruff: noqa: N818  the name says what happened

from __future__ import annotations

from typing import Any


class PersonaeError(Exception):
    """A failure with a stable `code` (bindings/PROTOCOL.md, section 5, and the README), one sentence, and what to do about it."""

    def __init__(self, code: str, message: str, hint: str = "", **details: Any) -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class Busy(PersonaeError):
    """The service's queue is full. Ask again after `retry_after_ms`."""

    @property
    def retry_after_ms(self) -> int:
        after = self.details.get("retry_after_ms")
        return after if isinstance(after, int) else 1000


class NpcBusy(PersonaeError):
    """The NPC is still answering: wait for its end, or cancel it."""


class UnknownCharacter(PersonaeError):
    """There is no usable pack of that name."""


class UnknownNpc(PersonaeError):
    """There is no NPC of that id; the service may have been started anew."""


class UnknownMood(PersonaeError):
    """The character has no mood of that name; the hint lists those it has."""


class CharacterGone(PersonaeError):
    """The NPC's pack was taken out of the service's folder. It keeps its history, and speaks on when the pack is back."""


class PackInvalid(PersonaeError):
    """The character's pack cannot be used; `problems` says why, in words for its writer."""

    @property
    def problems(self) -> list[dict[str, Any]]:
        listed = self.details.get("problems")
        return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


class AdapterRefused(PersonaeError):
    """The character's adapter cannot be used; `code` (adapter_...) says why."""


class EngineLost(PersonaeError):
    """The engine died while this was in flight. It is being started again and NPCs keep their memory: say it again."""


class Unauthorized(PersonaeError):
    """The token is missing or wrong."""


class UnsupportedVersion(PersonaeError):
    """Client and service have no protocol version in common."""


class WrongServer(PersonaeError):
    """Somebody answers at the endpoint, but it is not a Personae service. Nothing but a greeting was sent."""


class ConnectionFailed(PersonaeError):
    """No service was found at the endpoint in time."""


class ConnectionLost(PersonaeError):
    """The connection broke while this was in flight. The client is connecting again by itself."""


class Timeout(PersonaeError):
    """The service lives but did not answer in time."""


class Closed(PersonaeError):
    """The client was closed."""


_KINDS: dict[str, type[PersonaeError]] = {
    "busy": Busy,
    "npc_busy": NpcBusy,
    "unknown_character": UnknownCharacter,
    "unknown_npc": UnknownNpc,
    "unknown_mood": UnknownMood,
    "character_gone": CharacterGone,
    "pack_invalid": PackInvalid,
    "engine_lost": EngineLost,
    "unauthorized": Unauthorized,
    "unsupported_version": UnsupportedVersion,
}


def from_wire(message: dict[str, Any]) -> PersonaeError:
    """The error an `error` message stands for."""
    known = {"type", "id", "code", "message", "hint"}
    code, text, hint = (str(message.get(key) or "") for key in ("code", "message", "hint"))
    kind = _KINDS.get(code) or (AdapterRefused if code.startswith("adapter_") else PersonaeError)
    details = {key: value for key, value in message.items() if key not in known and isinstance(key, str)}
    return kind(code or "internal", text or f"The service refused with {code!r}.", hint, **details)
