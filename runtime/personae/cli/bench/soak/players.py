"""The clients of a soak, and their books: what each has asked, and that every request gets exactly one terminal message.

It decides nothing about what is asked (moves.py does). A client that dies takes its open requests with it: nobody is owed an answer then.
"""

from __future__ import annotations

import selectors
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from personae.cli.bench.soak.cast import Secrets
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.line import Line
from personae.cli.bench.soak.playbill import Playbill
from personae.types import MAX_VOICE_PARTS

OURS = {"internal", "engine_failed", "bad_message", "bad_request", "bad_frame", "too_large", "state_unusable", "unsupported_version"}
"""Codes that mean that the service, or this soak, did something wrong. All others are answers that some move asks for."""
PING_S = 0.5  # of silence, after which a client that lives says so
POLL_S = 0.01

Told = Callable[["Asked", dict[str, Any]], None]


@dataclass(slots=True)
class Asked:
    """A request that has had no terminal message yet."""

    kind: str
    npc: str | None
    text: str = ""  # of its deltas
    told: Told | None = None  # given the `done`, and nothing where it is an error
    character: str | None = None
    seed: int | None = None
    tick: int = 0  # of the playbill, when it was asked


class Player:
    """One client: a connection, and what is open on it. `line` None: it is dead."""

    def __init__(self, name: str, tick: Callable[[], int] = lambda: 0) -> None:
        """`tick`: as of the playbill."""
        self.name = name
        self._tick = tick
        self.line: Line | None = None
        self.asked: dict[int, Asked] = {}
        self.session: str | None = None
        self.former: str | None = None  # the session it had before it hung up
        self.silent_until_s = 0.0
        self.said_s = 0.0
        self._last_id = 0

    @property
    def lives(self) -> bool:
        return self.line is not None and self.line.is_open and self.silent_until_s == 0.0

    @property
    def is_known(self) -> bool:
        """Its hello has been answered."""
        return self.lives and self.session is not None

    def ask(self, kind: str, told: Told | None = None, **fields: Any) -> int:
        assert self.line is not None
        self._last_id += 1
        seed = (fields.get("sampling") or {}).get("seed")
        self.asked[self._last_id] = Asked(kind, fields.get("npc"), "", told, fields.get("character"), seed, self._tick())
        self.said_s = time.monotonic()
        self.line.say({"type": kind, "id": self._last_id, **{name: value for name, value in fields.items() if value is not None}})
        return self._last_id

    def forget(self) -> None:
        """Hung up: nothing is owed to it any more."""
        if self.line is not None:
            self.line.close()
        self.former = self.session or self.former
        self.line, self.session, self.silent_until_s = None, None, 0.0
        self.asked.clear()


class Crowd:
    """All players, played by one thread. One more, the ear, does nothing by chance: it lives all the time and hears of packs."""

    def __init__(self, n_players: int, secrets: Secrets, playbill: Playbill, failures: Failures) -> None:
        self.ear = Player("ear", lambda: playbill.tick)
        self.players = [*(Player(f"player {i}", lambda: playbill.tick) for i in range(n_players)), self.ear]
        self.hear_packs: Callable[[dict[str, Any]], object] = lambda _: None  # given each event of packs that the ear hears
        self.lose_ear: Callable[[], object] = lambda: None
        self.most_adapter_bytes = 0
        self.endpoint = ""
        self.requests: Counter[str] = Counter()  # kind -> terminal messages
        self.errors: Counter[str] = Counter()  # code
        self.finishes: Counter[str] = Counter()
        self.fallbacks = 0
        self.engine: dict[str, Any] = {}  # of the newest stats
        self.is_warm = False
        self._stats_due_s = 0.0
        self._secrets = secrets
        self._playbill = playbill
        self._failures = failures
        self._selector = selectors.DefaultSelector()

    @property
    def n_open(self) -> int:
        """Turns that are being waited for."""
        return sum(asked.kind in ("say", "warm") for player in self.players for asked in player.asked.values())

    def is_answered(self) -> bool:
        """Everybody is connected, and nobody waits for anything but what is always asked for."""
        kinds = {asked.kind for player in self.players for asked in player.asked.values()}
        return all(player.is_known for player in self.players) and kinds <= {"stats", "ping"}

    def living(self) -> list[Player]:
        """Those that play."""
        return [player for player in self.players if player.is_known and player is not self.ear]

    def connect(self, player: Player, *, session: str | None = None) -> None:
        player.line = Line(self.endpoint)
        self._selector.register(player.line.socket, selectors.EVENT_READ, player)
        player.ask("hello", lambda _, done: self._is_known_now(player, str(done["session"])), v=1, client=player.name, session=session)

    def _is_known_now(self, player: Player, session: str) -> None:
        player.session = session
        if player is self.ear:
            player.ask("subscribe", packs=True)

    def hang_up(self, player: Player, *, random_byte: int = 255) -> None:
        """`random_byte` below 128: in the middle of a frame."""
        if player.line is not None:
            self._selector.unregister(player.line.socket)
            player.line.die(random_byte)
            if player is self.ear:
                self.lose_ear()
        player.forget()

    def close(self) -> None:
        for player in self.players:
            self.hang_up(player)
        self._selector.close()

    def listen(self, timeout_s: float = POLL_S) -> None:
        """Read what has come, for so long at the most; keep the connections of those that live."""
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        for player in self.players:
            if not player.lives:
                continue
            assert player.line is not None
            if player in ready:
                for message in player.line.hear():
                    self._take(player, message)
            player.line.push()
            if not player.line.is_open:
                self._failures.note(f"The service hung up on {player.name}.")
                self.hang_up(player)
            elif player.is_known and time.monotonic() - player.said_s > PING_S:
                player.ask("ping")
        self._look_after_engine()

    def _look_after_engine(self) -> None:
        """Which process it is: somebody always knows."""
        players = self.living()
        if players and time.monotonic() >= self._stats_due_s:
            self._stats_due_s = time.monotonic() + PING_S
            players[0].ask("stats", self._note_stats)

    def listen_until(self, is_so: Callable[[], bool], patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > deadline:
                return False
            self.listen()
        return True

    # --- what comes -----------------------------------------------------------------------------------------------------

    def _take(self, player: Player, message: dict[str, Any]) -> None:
        kind, request = message["type"], message.get("id", 0)
        if kind == "event":
            self._note_event(player, message)
        elif kind == "error" and request == 0:
            self._failures.note(f"{player.name} is told: {message.get('message')}")
        elif request not in player.asked:
            self._failures.note(f"{player.name} gets a {kind} for request {request}, which has ended or was never made.")
        elif kind == "delta":
            player.asked[request].text += message["text"]
        else:
            self._close(player, player.asked.pop(request), message)

    def _close(self, player: Player, asked: Asked, message: dict[str, Any]) -> None:
        self.requests[asked.kind] += 1
        if message["type"] == "error":
            self._note_error(player, asked, message)
            return
        if asked.kind in ("say", "warm"):
            self._note_turn(asked, message)
        if asked.told is not None:
            asked.told(asked, message)

    def _note_error(self, player: Player, asked: Asked, message: dict[str, Any]) -> None:
        self.errors[message["code"]] += 1
        self._playbill.refuses(asked, message)
        if message["code"] in OURS:
            self._failures.note(f"A {asked.kind} is answered {message['code']}: {message['message']}")
        if message["code"] == "busy" and not message.get("retry_after_ms"):
            self._failures.note("A client is told `busy`, and not when to come again.")
        if message["code"] == "hello_first" and player.line is not None:
            self.hang_up(player)  # it was starved for so long that it looked silent

    def _note_turn(self, asked: Asked, done: dict[str, Any]) -> None:
        self.finishes[done["finish"]] += 1
        if asked.kind == "warm":
            return
        self._playbill.ends(asked, done)
        self.fallbacks += bool(done.get("fallback"))
        if done["text"] != asked.text:
            self._failures.note(f"The deltas of a turn of NPC '{asked.npc}' are not its text: {asked.text!r}, {done['text']!r}.")
        for other in self._secrets.told_by_others(str(asked.npc), done["text"]):
            self._failures.note(f"NPC '{asked.npc}' says what NPC '{other}' was told.")

    def _note_event(self, player: Player, message: dict[str, Any]) -> None:
        if message["event"] == "pack" and player is self.ear:
            self.hear_packs(message)
        if message["event"] in ("warm", "engine_lost"):
            self.is_warm = message["event"] == "warm"

    def _note_stats(self, asked: Asked, done: dict[str, Any]) -> None:
        self.engine = done["engine"]
        self.is_warm = self.engine["state"] == "warm"
        adapters = done["scheduler"]["adapters"]
        self.most_adapter_bytes = max(self.most_adapter_bytes, adapters["bytes_resident"])
        if adapters["bytes_resident"] > adapters["budget_bytes"] and adapters["resident"] > MAX_VOICE_PARTS:
            self._failures.note(f"{adapters['resident']} adapters have {adapters['bytes_resident']} bytes of {adapters['budget_bytes']}.")
