"""What has been done to packs, what was told of it, and so which version an NPC may speak by, and what it may be refused for.

It touches no file and asks nothing. Time is counted in events told, a *tick* each: the service takes a pack over and tells of it in one
breath, so whoever asks after the event is answered by the new version, and whoever asked before it, by either. Told on two threads: the
service's says what a turn began with, the players' all else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.wardrobe import Version, whose
from personae.types import AdapterUse, Voice, voice_of

EVENT_S = 30.0  # from a swap until it is told; a busy machine looks when it can
OF_GONE = {"character_gone": ("say", "warm"), "unknown_character": ("spawn", "restore")}
OF_SWAPPED = ("adapter_changed", "adapter_missing", "adapter_unreadable")
NEVER = ("unknown_mood", "pack_invalid")  # no move asks for these
WITH_A_TIME = ("adapter_changed",)

Begun = tuple[str, int, Voice]  # pack, year, voice


class Question(Protocol):
    """A request, as far as packs are concerned."""

    kind: str
    npc: str | None
    character: str | None
    seed: int | None
    tick: int


@dataclass(slots=True)
class _Played:
    version: Version
    until: int | None = None  # the tick from which on nobody begins with it


@dataclass(slots=True)
class _Awaited:
    change: str
    due_s: float
    version: Version | None  # None: there is none, or the old one
    is_sure: bool = True  # False: nobody listened for a while


class Playbill:
    """`packs`: by NPC, of those who keep to theirs."""

    def __init__(self, packs: Mapping[str, str], failures: Failures) -> None:
        self.tick = 0
        self.told: Counter[str] = Counter()  # events, by what they told
        self.refusals: Counter[str] = Counter()  # for a pack's sake, by code
        self.n_judged = self.n_late = self.n_in_mood = self.n_with_lore = 0
        self._packs = packs
        self._failures = failures
        self._played: dict[str, list[_Played]] = {}
        self._awaited: dict[str, _Awaited] = {}
        self._settled: dict[str, int] = {}  # the tick of what was told last, by pack
        self._back: dict[str, int | None] = {}  # of packs that were away: since when they are not; None: they are
        self._begun: dict[tuple[str, int], Begun] = {}

    # --- what is done to packs ---------------------------------------------------------------------------------------------

    def open(self, versions: Mapping[str, Version], away: set[str]) -> None:
        """The service starts with these and tells nobody."""
        self.tick += 1
        for pack in self._played:
            self._retire(pack)
        for pack, version in versions.items():
            if pack in away:
                self._back[pack] = None
            else:
                self._played.setdefault(pack, []).append(_Played(version))

    def will(self, change: str, pack: str, version: Version | None = None) -> None:
        """It is about to be done to a pack of which nothing is awaited."""
        assert pack not in self._awaited, f"two swaps of {pack} at once"
        self._awaited[pack] = _Awaited(change, time.monotonic() + EVENT_S, version)
        if change == "removed":
            self._back[pack] = None
        if version is not None:
            self._played.setdefault(pack, []).append(_Played(version))

    def is_settled(self, pack: str) -> bool:
        return pack not in self._awaited

    @property
    def all_settled(self) -> bool:
        self._look_for_overdue()
        return not self._awaited

    def take(self, event: Mapping[str, Any]) -> str | None:
        """An event of packs. Returns what it tells of, or None where nobody expected it."""
        change, pack = event["change"], event["character"]
        self.tick += 1
        self.told[change] += 1
        awaited = self._awaited.pop(pack, None)
        if awaited is None or awaited.change != change:
            due = f"{awaited.change} is awaited" if awaited else "nothing was done to it"
            self._failures.note(f"Pack '{pack}' is told to be {change}, and {due}: {event['problems']}.")
            return None
        if change == "refused" and not event["kept"]:
            self._failures.note(f"The last good version of pack '{pack}' is not kept.")
        self._note_settled(pack, awaited)
        return str(change)

    def lose_ear(self) -> None:
        """Nobody heard what was told for a while."""
        for awaited in self._awaited.values():
            awaited.is_sure = False

    def _look_for_overdue(self) -> None:
        for pack, awaited in list(self._awaited.items()):
            if time.monotonic() < awaited.due_s:
                continue
            if awaited.is_sure:
                self._failures.note(f"Nobody was told within {EVENT_S:.0f} s that pack '{pack}' is {awaited.change}.")
            self.tick += 1
            del self._awaited[pack]
            self._note_settled(pack, awaited)

    def _note_settled(self, pack: str, awaited: _Awaited) -> None:
        self._settled[pack] = self.tick
        if awaited.change != "refused":
            self._retire(pack, but=awaited.version)
        if awaited.change == "added" and pack in self._back:
            self._back[pack] = self.tick

    def _retire(self, pack: str, but: Version | None = None) -> None:
        for played in self._played.get(pack, ()):
            if played.until is None and played.version is not but:
                played.until = self.tick

    # --- what NPCs speak by -----------------------------------------------------------------------------------------------

    def begins(self, npc: str, seed: int | None, prompt: str, voice: Voice) -> None:
        """A turn, on the service's thread; `seed` None: one that only prepares. Text and voice have to be of one version."""
        found = whose(prompt)
        if found is None:
            self._failures.note(f"A prompt of NPC '{npc}' has no persona.")
            return
        pack, year = found
        if pack != self._packs.get(npc, pack):
            self._failures.note(f"NPC '{npc}' is asked as '{pack}', and is of '{self._packs[npc]}'.")
        versions = [played.version for played in tuple(self._played.get(pack, ())) if played.version.year == year]
        if not any(voice in version.voices() for version in versions):
            self._failures.note(f"NPC '{npc}' is asked with the text of '{pack}' of {year} and a voice that is not of it.")
        if seed is not None:
            self._begun[npc, seed] = pack, year, voice

    def ends(self, asked: Question, done: Mapping[str, Any]) -> None:
        """A say, as its client hears of it."""
        begun = self._take_begun(asked)
        if begun is None:
            return  # it ended while it waited for its turn
        pack, year, voice = begun
        mood = done["mood"]
        self.n_judged += 1
        self.n_in_mood += mood is not None
        self.n_with_lore += any(note["state"] in ("key", "brought") for note in done["receipt"]["lore"])
        if voice_of(AdapterUse(part["adapter"], part["scale"]) for part in done["voice"]) != voice:
            self._failures.note(f"A turn of NPC '{asked.npc}' ends in another voice than it began with.")
        fitting = [each for each in self._played.get(pack, ()) if each.version.year == year and each.version.voice(mood) == voice]
        if not fitting:
            self._failures.note(f"NPC '{asked.npc}' is {mood or 'as always'}, and has not that voice of '{pack}' of {year}.")
        elif not any(each.until is None or each.until > asked.tick for each in fitting):
            self._failures.note(f"NPC '{asked.npc}' speaks by '{pack}' of {year}, of which it was told before that it is no more.")
        self.n_late += bool(fitting) and all(each.until is not None for each in fitting)

    def _take_begun(self, asked: Question) -> Begun | None:
        return None if asked.npc is None or asked.seed is None else self._begun.pop((asked.npc, asked.seed), None)

    # --- what they are refused for ----------------------------------------------------------------------------------------

    def refuses(self, asked: Question, error: Mapping[str, Any]) -> None:
        self._take_begun(asked)
        code, pack = error["code"], asked.character or self._packs.get(asked.npc or "")
        if code in NEVER:
            self._failures.note(f"A {asked.kind} is answered {code}: {error['message']}")
        elif code in OF_GONE:
            is_due = asked.kind in OF_GONE[code] and self._was_away(pack, asked.tick)
            self._note_refusal(is_due, asked, error, "away")
        elif code in OF_SWAPPED:
            self._note_refusal(self._was_swapped(pack, asked.tick), asked, error, "swapped")
            if code in WITH_A_TIME and not error.get("retry_after_ms"):
                self._failures.note(f"A client is told `{code}`, and not when to come again.")

    def _note_refusal(self, is_due: bool, asked: Question, error: Mapping[str, Any], how: str) -> None:
        self.refusals[error["code"]] += 1
        if not is_due:
            whom = f"of NPC '{asked.npc}' " if asked.npc else ""
            self._failures.note(f"A {asked.kind} {whom}is answered {error['code']}, and its pack was not {how}: {error['message']}")

    def _was_away(self, pack: str | None, since: int) -> bool:
        """At any time since then. `pack` None: whichever."""
        away = self._back.values() if pack is None else [self._back.get(pack, -1)]
        return any(back is None or back > since for back in away)

    def _was_swapped(self, pack: str | None, since: int) -> bool:
        packs = [*self._settled, *self._awaited] if pack is None else [pack]
        return any(pack in self._awaited or self._settled.get(pack, -1) > since for pack in packs)

    def report(self) -> dict[str, Any]:
        return {
            "pack_events": dict(sorted(self.told.items())),
            "refusals_by_packs": dict(sorted(self.refusals.items())),
            "turns_judged": self.n_judged,
            "turns_of_old_versions": self.n_late,
            "turns_in_mood": self.n_in_mood,
            "turns_with_keyed_lore": self.n_with_lore,
        }
