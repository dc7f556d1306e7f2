"""A service that is killed a hundred times under load has lost nothing that it had acknowledged.

Each life is a real `personae serve --state`. It is forked from a process that has imported it already, because importing it anew would be
most of what a life costs; the engine is a new process each time. A client keeps every NPC busy, with several requests open at once, until
the kill. The next life must show each NPC as the acknowledged requests left it, or as those that were open would have, the first of them
first.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import wait_until_gone
from tests.service.house import Peer, write_pack

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="SIGKILL, fork and a notice of when a process is gone")

LIVES = 100
SEED = 20_260
LONGEST_LIFE_S = 0.2  # of load
NPCS = tuple(f"npc {number}" for number in range(24))
MOST_OPEN = 2  # requests of one NPC
LONG = 30  # lines; then it is time to forget some

NURSERY = """
import json, os, sys
import personae.cli.serve, personae.service.app
from personae.cli.main import main
for line in sys.stdin:
    if not (child := os.fork()):
        os._exit(main(json.loads(line)))
    os.waitpid(child, 0)
    print(json.dumps({"event": "gone"}), flush=True)
"""


class Nursery:
    """Lives of `personae serve`, one after the other."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = json.dumps(["serve", *arguments]) + "\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def begin(self) -> dict[str, Any]:
        """Its ready line."""
        assert self._process.stdin
        self._process.stdin.write(self._arguments)
        self._process.stdin.flush()
        return self._until("ready")

    def kill(self, pid: int) -> None:
        """Returns when it is gone, and its lock with it."""
        os.kill(pid, signal.SIGKILL)
        self._until("gone")

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _until(self, event: str) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if (message := json.loads(line))["event"] == event:
                return dict(message)
        raise AssertionError("the nursery has ended")


@dataclass(frozen=True)
class Seen:
    """What an NPC knows."""

    lines: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Act:
    """A request, and what an NPC (None: there is none) is once it is done."""

    type: str
    fields: dict[str, Any]
    after: Seen | None


@dataclass
class Known:
    """An NPC as its client knows it: what was acknowledged, and what is open, the oldest first."""

    seen: Seen | None = None
    open: deque[tuple[int, Act]] = field(default_factory=deque)

    @property
    def expected(self) -> Seen | None:
        return self.open[-1][1].after if self.open else self.seen

    @property
    def possible(self) -> list[Seen | None]:
        return [self.seen, *(act.after for _, act in self.open)]


class Load:
    """Keeps every NPC busy. What it asks follows from the seed; what was acknowledged when the kill came is chance."""

    def __init__(self, seed: int) -> None:
        self.known = {npc: Known() for npc in NPCS}
        self.n_acknowledged = 0
        self._random = random.Random(seed)
        self._said = 0

    def run(self, peer: Peer, until_s: float) -> None:
        asked: dict[int, str] = {}
        for npc in NPCS:
            self._ask(peer, npc, asked)
        while (left_s := until_s - time.monotonic()) > 0:
            if peer.socket.poll(left_s * 1000) and (message := peer.next())["type"] in ("done", "error"):
                npc = asked.pop(message["id"])
                self._note(npc, message)
                self._ask(peer, npc, asked)

    def _note(self, npc: str, message: dict[str, Any]) -> None:
        known = self.known[npc]
        request, act = known.open.popleft()
        assert message["type"] == "done", (npc, act, message)
        assert message["id"] == request, f"{npc} was answered out of turn"
        known.seen = act.after
        self.n_acknowledged += 1

    def _ask(self, peer: Peer, npc: str, asked: dict[int, str]) -> None:
        known = self.known[npc]
        while len(known.open) < MOST_OPEN:
            act = self._next(known)
            if act is None:
                return
            request = peer.send(act.type, npc=npc, **act.fields)
            known.open.append((request, act))
            asked[request] = npc

    def _next(self, known: Known) -> Act | None:
        """None: what is open must end first. Only says wait for one another; whatever else changes an NPC wants it free."""
        seen = known.expected
        if seen is None:
            return None if known.open else Act("spawn", {"character": "guard"}, Seen())
        if any(act.type == "say" for _, act in known.open) or self._random.random() < 0.4:
            return self._say(seen) if len(seen.lines) < LONG or known.open else self._forget(seen)
        return None if known.open else self._change(seen)

    def _say(self, seen: Seen) -> Act:
        self._said += 1
        said, answer = f"fake:say:{self._said}", str(self._said)
        return Act("say", {"text": said, "mid_reply": "queue"}, replace(seen, lines=(*seen.lines, said, answer)))

    def _forget(self, seen: Seen) -> Act:
        keep = 2 * self._random.randrange(len(seen.lines) // 2)  # the fake model repeats all that nobody has answered yet
        return Act("history", {"keep": keep}, replace(seen, lines=seen.lines[:keep]))

    def _change(self, seen: Seen) -> Act:
        self._said += 1
        word = f"Change {self._said}."
        match self._random.randrange(4):
            case 0 if seen.lines:
                at = self._random.randrange(len(seen.lines))
                lines = (*seen.lines[:at], word, *seen.lines[at + 1 :])
                return Act("history", {"edit": {"at": at, "text": word}}, replace(seen, lines=lines))
            case 1:
                return Act("memories", {"set": [word]}, replace(seen, memories=(word,)))
            case 2 if seen.lines:
                return self._forget(seen)
        return Act("despawn", {}, None)


def shown(peer: Peer, npc: str) -> Seen | None:
    history, memories = peer.ask("history", npc=npc), peer.ask("memories", npc=npc)
    if history["type"] == "error":
        assert (history["code"], memories["code"]) == ("unknown_npc", "unknown_npc")
        return None
    return Seen(tuple(line["text"] for line in history["lines"]), tuple(memories["memories"]))


def check(peer: Peer, load: Load, life: int) -> None:
    state = peer.ask("stats")["state"]
    assert (state["shelved"], state["last_failure"]) == ([], "")
    for npc, known in load.known.items():
        now = shown(peer, npc)
        assert now in known.possible, f"life {life}, seed {SEED}: {npc} is {now}; acknowledged {known.seen}, open {list(known.open)}"
        known.seen = now
        known.open.clear()


@contextmanager
def living(nursery: Nursery) -> Iterator[Peer]:
    """A life to its kill."""
    ready = nursery.begin()
    peer = Peer(ready["endpoint"])
    try:
        peer.hello()
        engine = peer.ask("stats")["engine"]["pid"]
        yield peer
    finally:
        nursery.kill(ready["pid"])
        peer.close()
    wait_until_gone(engine)


def test_service_killed_a_hundred_times_under_load_keeps_every_acknowledged_turn(tmp_path: Path) -> None:
    write_pack(tmp_path / "characters", "guard")
    state = tmp_path / "state"
    nursery = Nursery(
        *("--model", "fake", "--port", "0", "--slots", "24", "--characters", str(tmp_path / "characters"), "--state", str(state))
    )
    load, chance = Load(SEED), random.Random(SEED)
    try:
        for life in range(LIVES + 1):
            with living(nursery) as peer:
                check(peer, load, life)
                load.run(peer, time.monotonic() + chance.uniform(0, LONGEST_LIFE_S))
    finally:
        nursery.close()
    assert load.n_acknowledged > 10 * LIVES, "that was no load"
    assert not list(state.rglob("*.damaged"))
