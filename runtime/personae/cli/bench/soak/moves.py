"""What the players of a soak do, by chance: talk, break in, break off, look on, rewrite, save, restore, die. Judges no answer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from personae.cli.bench.soak.cast import TRADES, Secrets, is_wanderer, trade_of
from personae.cli.bench.soak.players import Asked, Crowd, Player
from personae.cli.bench.soak.swaps import Swaps
from personae.cli.bench.soak.wardrobe import MOODS

HOT = 40  # NPCs that are talked to most; with more of them than slots, none is in its slot for long
OPEN = 28  # turns that are kept open: more than slots
BREATH_S = 0.2  # between two moves while so many are open: else a slow model's turns would all be broken off by somebody
FLOOD = 32  # says at once, now and then: with those that are open, more than may wait
SILENCE_S = 9.0  # well over three heartbeats
SAVES = ("first", "second", "third")
LINES = (
    "Good evening. Is there any news from the north?",
    "I have come a long way, and I am as hungry as a wolf.",
    "Who was that man who left just now?",
    "They say that the bridge is out. Is that true?",
    "Tell me more.",
    "Wait.",
)
PRIORITIES = (None, None, "player", "scene", "ambient")
SPEAKERS = (None, None, None, "Mira", "Old Tom")


class Moves:
    """`npcs`: by their numbers. `kill_every_s`: how long an engine is left alive."""

    def __init__(self, crowd: Crowd, npcs: list[str], secrets: Secrets, swaps: Swaps, random: Random, kill_every_s: float) -> None:
        self.made: Counter[str] = Counter()
        self._crowd = crowd
        self._npcs = npcs
        self._secrets = secrets
        self._swaps = swaps
        self._random = random
        self._kill_every_s = kill_every_s
        self._due_s = 0.0
        self._kill_due_s = time.monotonic() + kill_every_s * 0.7
        self._document: dict[str, Any] | None = None  # the newest that a client took with it
        self._table: dict[Callable[[Player], object], int] = {
            self._say: 40,
            self._break_in: 12,
            self._cancel: 16,
            self._observe: 8,
            self._warm: 6,
            self._rewrite: 8,
            self._remember: 4,
            self._begin_life_anew: 3,
            self._save: 2,
            self._restore: 3,
            self._ask_around: 3,
            self._die: 1,
            self._fall_silent: 1,
            self._flood: 1,
        }

    def make_one(self) -> None:
        """If it is time for one, and anybody is there to make it."""
        self._bring_back()
        self._kill_engine_when_due()
        self._swaps.make_one()
        players = self._crowd.living()
        if not players:
            return
        is_full = self._crowd.n_open >= OPEN
        if is_full and time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + BREATH_S
        left_out: list[Callable[..., object]] = [self._say] if is_full else []
        if any(player.silent_until_s for player in self._crowd.players):
            left_out.append(self._fall_silent)
        moves = [move for move in self._table if move not in left_out]
        (move,) = self._random.choices(moves, [self._table[move] for move in moves])
        self.made[move.__name__.strip("_")] += 1
        move(self._random.choice(players))

    # --- talk -----------------------------------------------------------------------------------------------------------

    def _npc(self) -> str:
        random = self._random
        return random.choice(self._npcs[:HOT]) if random.random() < 0.7 else random.choice(self._npcs)

    def _words(self, npc: str) -> str:
        """Mostly with the NPC's secret in it."""
        line = self._random.choice(LINES)
        return f"{line} Between us, the word is {self._secrets.of(npc)}." if self._random.random() < 0.7 else line

    def _say(self, player: Player, npc: str | None = None, **fields: Any) -> None:
        random, npc = self._random, npc or self._npc()
        text = None if random.random() < 0.08 else self._words(npc)
        asked = {
            "speaker": random.choice(SPEAKERS) if text else None,
            "priority": random.choice(PRIORITIES),
            "max_tokens": random.choice((1, 8, 24, 48)),
            "max_seconds": random.choice((1.0, 20.0, 20.0)),
            "max_kv": random.choice((None,) * 9 + (300,)),
            "deadline": self._deadline(),
            "mood": self._mood(),
            "stop": ["the word"] if random.random() < 0.05 else None,
            "sampling": {"temperature": 1.0, "seed": random.randrange(1 << 30)},
            **fields,
        }
        player.ask("say", npc=npc, text=text, **asked)

    def _mood(self) -> str | None:
        return self._random.choice((None, None, *MOODS))

    def _deadline(self) -> dict[str, float] | None:
        random = self._random
        if random.random() < 0.8:
            return None
        kinds = random.choice((("first_ms",), ("end_ms",), ("first_ms", "end_ms")))
        return {kind: random.choice((20.0, 200.0, 2000.0)) for kind in kinds}

    def _heard(self) -> dict[str, int] | None:
        random = self._random
        if random.random() < 0.3:
            return None
        return {"chars": random.randrange(60)} if random.random() < 0.5 else {"sentences": random.randrange(3)}

    def _break_in(self, player: Player) -> None:
        """A line to somebody who is speaking."""
        speaking = self._disturbed()
        if speaking:
            mid_reply = self._random.choice((None, "interrupt", "queue", "refuse"))
            self._say(player, self._random.choice(speaking), mid_reply=mid_reply, heard=self._heard())

    def _cancel(self, player: Player) -> None:
        turns = [id for id, asked in player.asked.items() if asked.kind in ("say", "warm") and not _is_spared(id)]
        speaking = self._disturbed()
        if turns and self._random.random() < 0.6:
            player.ask("cancel", turn=self._random.choice(turns), heard=self._heard())
        elif speaking:
            player.ask("cancel", npc=self._random.choice(speaking), heard=self._heard())

    def _disturbed(self) -> list[str]:
        """NPCs that speak, and may be broken in upon."""
        open_asked = (item for player in self._crowd.players if player is not self._crowd.ear for item in player.asked.items())
        return [asked.npc for id, asked in open_asked if asked.kind == "say" and asked.npc and not _is_spared(id)]

    def _warm(self, player: Player) -> None:
        player.ask("warm", npc=self._npc(), mood=self._mood(), priority=self._random.choice(PRIORITIES))

    def _flood(self, player: Player) -> None:
        for _ in range(FLOOD):
            self._say(player, max_tokens=8)

    # --- what NPCs know -------------------------------------------------------------------------------------------------

    def _observe(self, player: Player) -> None:
        npcs = self._random.sample(self._npcs[:HOT], self._random.randint(1, 5))
        text = self._words(npcs[0]) if len(npcs) == 1 else self._random.choice(LINES)
        player.ask("observe", npcs=npcs, text=text, speaker=self._random.choice(SPEAKERS))

    def _rewrite(self, player: Player) -> None:
        random, npc = self._random, self._npc()
        lines = [{"speaker": "Mira", "text": self._words(npc), "is_npc": False}, {"speaker": "I", "text": "So it is.", "is_npc": True}]
        change: dict[str, Any] = random.choice(
            (
                {},
                {"keep": random.randrange(12)},
                {"edit": {"at": -random.randint(1, 4), "text": self._words(npc)}},
                {"lines": lines * random.randrange(4)},
            )
        )
        player.ask("history", npc=npc, **change)

    def _remember(self, player: Player) -> None:
        npc = self._npc()
        player.ask("memories", npc=npc, set=[self._words(npc)] * self._random.randrange(3) if self._random.random() < 0.7 else None)

    def _begin_life_anew(self, player: Player) -> None:
        npc = self._npc()
        number = self._npcs.index(npc)
        player.ask("despawn", npc=npc)
        player.ask("spawn", character=self._random.choice(TRADES) if is_wanderer(number) else trade_of(number), npc=npc)

    # --- saves ----------------------------------------------------------------------------------------------------------

    def _save(self, player: Player) -> None:
        npcs = self._random.sample(self._npcs[:HOT], 8)
        if self._random.random() < 0.3:
            player.ask("save", self._keep_document, npcs=npcs)
        else:
            player.ask("save", npcs=npcs, name=self._random.choice(SAVES), kv=self._random.random() < 0.7)

    def _keep_document(self, asked: Asked, done: dict[str, Any]) -> None:
        self._document = done["document"]

    def _restore(self, player: Player) -> None:
        if self._document is not None and self._random.random() < 0.3:
            player.ask("restore", document=self._document, replace=True)
        else:
            player.ask("restore", name=self._random.choice(SAVES), replace=self._random.random() < 0.8)

    def _ask_around(self, player: Player) -> None:
        player.ask(self._random.choice(("characters", "ping")))

    # --- deaths ---------------------------------------------------------------------------------------------------------

    def _die(self, player: Player) -> None:
        self._crowd.hang_up(player, random_byte=self._random.randrange(256))

    def _fall_silent(self, player: Player) -> None:
        """It neither reads nor speaks, and its connection stays. One at a time: the others keep the service busy."""
        player.silent_until_s = time.monotonic() + SILENCE_S
        player.asked.clear()

    def _bring_back(self) -> None:
        for player in self._crowd.players:
            if player.silent_until_s and time.monotonic() >= player.silent_until_s:
                self._crowd.hang_up(player)
            if player.line is None:
                self._crowd.connect(player, session=player.former if self._random.random() < 0.5 else None)

    def _kill_engine_when_due(self) -> None:
        """Only one that is warm: an engine that dies before it is ready is one that the model kills."""
        pid = self._crowd.engine.get("pid")
        if time.monotonic() < self._kill_due_s or not self._crowd.is_warm or not pid:
            return
        self._kill_due_s = time.monotonic() + self._kill_every_s
        self._crowd.is_warm = False
        self._crowd.engine = {}
        self.made["kill_engine"] += 1
        with contextlib.suppress(ProcessLookupError):  # it has died of itself meanwhile
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _is_spared(request: int) -> bool:
    """Three of five turns are let alone: where every reply is cut off, hardly a slot is ever parked or put aside."""
    return request % 5 < 3
