"""Who is in the conversation, in which mood, and to whom a line is said. Decides what the names in a line mean; draws nothing and reads no
key. Packs may change while we talk: what there is to say about that, it tells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import cycle

from personae.cli.cast import meant
from personae.cli.terminal import COLOURS
from personae.cli.voices import Voice, labels
from personae.errors import AskedWrong
from personae_client import Characters, Client, Npc, PackChange, PackProblem, UnknownCharacter
from personae_client import PersonaeError as ClientError


class Room:
    """The NPCs that we have spawned. Others may talk to a service at the same time: theirs are not ours to touch."""

    def __init__(self, client: Client, player: str | None = None) -> None:
        self.client = client
        client.subscribe_packs()
        self.cast: Characters = client.characters()
        self.voices: list[Voice] = []
        self._player = player
        self._colours = cycle(COLOURS)

    @property
    def character_ids(self) -> list[str]:
        return [character.id for character in self.cast.characters]

    def names(self) -> dict[str, str]:
        """What each is called here, by NPC id: different for each."""
        return dict(zip((voice.npc.id for voice in self.voices), labels(self.voices), strict=True))

    def add(self, character: str) -> Voice:
        """Another NPC, of a character by id or by name. AskedWrong, with the names there are."""
        try:
            npc = self._spawn(self._character_id(character))
        except UnknownCharacter as error:
            raise AskedWrong("bad_arguments", f"There is no character {character!r}.", meant(character, self.character_ids)) from error
        self.voices.append(Voice(npc, next(self._colours)))
        return self.voices[-1]

    def moods(self) -> dict[str, tuple[str, ...]]:
        """Of those who are here and have any, by NPC id."""
        moods = {character.id: character.moods for character in self.cast.characters}
        return {voice.npc.id: known for voice in self.voices if (known := moods.get(voice.npc.card.character))}

    def set_mood(self, mood: str | None) -> list[Voice]:
        """All who have that mood answer in it from now on, None: nobody is in any. AskedWrong when nobody has it."""
        moods = self.moods()
        meant_by = [voice for voice in self.voices if mood is None or mood in moods.get(voice.npc.id, ())]
        if not meant_by:
            known = sorted({name for names in moods.values() for name in names})
            raise AskedWrong("bad_arguments", f"Nobody here has a mood {mood!r}.", meant(mood or "", known) if known else "")
        for voice in meant_by:
            voice.mood = mood
        return meant_by

    def news(self) -> Iterator[str]:
        """What became of packs since it was asked last, a line each."""
        changes = [change for event in self.client.take_events() if (change := event.pack_change) is not None]
        if changes:
            self.cast = self.client.characters()
        for change in changes:
            yield f"pack {change.character}: {_told(change)}"
            yield from (f"  {in_words(problem)}" for problem in change.problems)

    def leave(self, name: str) -> Voice:
        """It is gone from the service, too."""
        voice = self[name]
        voice.npc.despawn()
        self.voices.remove(voice)
        return voice

    def close(self) -> None:
        """Leave the service as it was. It may be gone itself: no error then."""
        with contextlib.suppress(ClientError):
            while self.voices:
                self.voices.pop().npc.despawn()

    def __getitem__(self, name: str) -> Voice:
        voice = self.find(name)
        if voice is None:
            raise AskedWrong("bad_arguments", f"Nobody here is called {name!r}.", meant(name, [voice.npc.id for voice in self.voices]))
        return voice

    def find(self, name: str) -> Voice | None:
        """By id, by name, or by a word of the name; None when it is nobody's, or the word is of several."""
        wanted = name.strip().casefold()
        exact = [voice for voice in self.voices if wanted in (voice.npc.id.casefold(), voice.npc.name.casefold())]
        found = exact or [voice for voice in self.voices if wanted in voice.npc.name.casefold().split()]
        return found[0] if exact or len(found) == 1 else None

    def addressed(self, line: str) -> tuple[list[Voice], str]:
        """Who is meant, and what is said: `@pirate hello` and `pirate: hello` mean one, any other line everybody.

        Only `@` insists on a name: "Listen: there is a dragon" is no line to somebody called Listen.
        """
        if line.startswith("@"):
            name, _space, text = line[1:].partition(" ")
            return [self[name.rstrip(":,")]], text.strip()
        name, colon, text = line.partition(":")
        one = self.find(name) if colon else None
        return ([one], text.strip()) if one is not None else (list(self.voices), line)

    def _spawn(self, character: str) -> Npc:
        return self.client.spawn(character, player=self._player)

    def _character_id(self, wanted: str) -> str:
        """The id for an id or a name in any case; what is neither goes to the service as it is, which may know of newer packs."""
        known = {name.casefold(): character.id for character in self.cast.characters for name in (character.name, character.id)}
        return known.get(wanted.casefold(), wanted)


def in_words(problem: PackProblem) -> str:
    """`character.toml persona: is missing. Add persona.`"""
    place = " ".join(part for part in (problem.file, problem.field) if part)
    return f"{place + ': ' if place else ''}{problem.problem} {problem.remedy}"


def _told(change: PackChange) -> str:
    if change.change == "refused":
        return "its new version cannot be used; the last good one plays on" if change.kept else "it cannot be used"
    return {"added": "here now", "changed": "changed, from the next line on", "removed": "gone"}.get(change.change, change.change)
