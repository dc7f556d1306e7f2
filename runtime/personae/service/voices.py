"""Decides under which adapters a turn speaks: its character's, or those of the mood it is asked in. Opens no file itself.

An adapter's key is its content's, so somebody has to read it once. The watcher does so ahead of time; only who speaks before that is kept
waiting here, for as long as the file takes to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from personae.errors import AskedWrong, PersonaeError
from personae.packs.character import AdapterFile, Character, Mood
from personae.types import AdapterSource, AdapterUse, Voice, voice_of

CHANGED = "adapter_changed"
PASSING = (CHANGED, "adapter_missing")  # refusals of an engine: the file was there when the pack was read, and somebody is changing it
RETRY_MS = 1000  # by then the watcher has seen what changed, and has read it


class Adapters(Protocol):
    """packs.store.AdapterStore is one."""

    def source(self, file: AdapterFile) -> AdapterSource: ...

    def known(self, file: AdapterFile) -> AdapterSource | None: ...


class NoAdapters:
    """Where there is nothing to read them from: a character with adapters cannot speak."""

    def source(self, file: AdapterFile) -> AdapterSource:
        raise AskedWrong("adapter_missing", f"The adapter {file.file!r} cannot be read here.", "Give the service a store of adapters.")

    def known(self, file: AdapterFile) -> AdapterSource | None:
        return None


@dataclass(frozen=True, slots=True)
class Spoken:
    """A voice, and where each of its adapters comes from, in its order."""

    voice: Voice = ()
    sources: tuple[AdapterSource, ...] = ()
    files: tuple[AdapterFile, ...] = ()


def mood_of(character: Character, name: str | None) -> Mood | None:
    """None: as always. AskedWrong `unknown_mood`."""
    if name is None:
        return None
    try:
        return character.moods[name]
    except KeyError:
        known = f"Known are {', '.join(character.moods)}." if character.moods else "It has none."
        raise AskedWrong("unknown_mood", f"{character.id!r} has no mood {name!r}.", known) from None


def spoken_with(character: Character, mood: Mood | None, adapters: Adapters) -> Spoken:
    """AskedWrong `adapter_missing`, `adapter_unreadable`, and `adapter_changed`, which passes."""
    files = character.adapters if mood is None or mood.adapters is None else mood.adapters
    sources = [_source(file, adapters) for file in files]
    uses = (AdapterUse(source.key, file.scale) for source, file in zip(sources, files, strict=True))
    voice = tuple(use for use in voice_of(uses) if use.scale)  # the same file twice may cancel out
    by_key = {source.key: source for source in sources}
    return Spoken(voice, tuple(by_key[use.key] for use in voice), tuple(files))


def spoken_if_known(character: Character, adapters: Adapters) -> Spoken:
    """For who only asks: what cannot be read now leaves it at the base model."""
    try:
        return spoken_with(character, None, adapters)
    except PersonaeError:
        return Spoken()


def voice_to_wire(voice: Voice) -> list[dict[str, Any]]:
    return [{"adapter": use.key, "scale": use.scale} for use in voice]


def files_to_wire(files: Sequence[AdapterFile], adapters: Adapters) -> list[dict[str, Any]]:
    """`adapter` None: nobody has read it yet."""
    return [{"file": file.file, "adapter": source.key if (source := adapters.known(file)) else None, "scale": file.scale} for file in files]


def _source(file: AdapterFile, adapters: Adapters) -> AdapterSource:
    try:
        return adapters.source(file)
    except AskedWrong as fault:
        if fault.code == CHANGED:
            fault.details.setdefault("retry_after_ms", RETRY_MS)
        raise
