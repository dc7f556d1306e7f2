"""Whether the service stays right for as long as one likes: a thousand NPCs on sixteen slots, and clients with bad manners.

Players talk, break in, cancel, rewrite histories, save, restore, flood the queue, fall silent and die; the engine is killed now and then.
Packs change under them: other words, other adapters, new packs, broken ones, packs that go and come back.
Memory is short everywhere: contexts of a few lines, fewer adapters than voices, little host memory. Meanwhile and afterwards:

- every request gets exactly one terminal message, and the text of a reply is its deltas;
- a referee judges every order to the engine (scheduler/referee.py); everything is recorded, and played again at the end, where the
  scheduler must take the same decisions and `validate()` must pass after every event;
- text and voice of a turn are of one version of its pack: of the new one when it was asked after that was told, and it ends as it began;
  every swap is told once, and an NPC is refused only while its pack is away or being swapped (playbill.py);
- adapters of old versions are out of memory, and out of the folder where archives are unpacked;
- each NPC is told a secret, which is in no prompt and no reply of another;
- when all have had their say, no turn waits and no slot is at work;
- memory is flat after warm-up;
- half-way and at the end the service is started again over its state, with other words in the packs and one pack away, and when that is
  back every history is as it was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from personae.cli.bench.options import add_count, add_format, whole
from personae.cli.bench.soak.cast import TRADES, Secrets, bystander_of, npc_name, packs_of, trade_of
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.inn import Inn
from personae.cli.bench.soak.moves import Moves
from personae.cli.bench.soak.passing import PassingFolder
from personae.cli.bench.soak.playbill import Playbill
from personae.cli.bench.soak.players import Asked, Crowd
from personae.cli.bench.soak.swaps import N_VOICES, Swaps
from personae.cli.bench.soak.watch import Scales
from personae.cli.models import AUTO, FAKE
from personae.cli.rerun import Broken, Rerun
from personae.config import ServiceConfig
from personae.engine.factory import make_vocabulary
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae.packs.lora_writer import random_pairs, write_lora

PLAYERS = 8
PHASES = 2  # the service is started again after each
QUIET_S = 90.0  # for all that is open to end, once nobody asks any more
ASKED_AT_ONCE = 40
ASKED_AFTER = 3  # times, for what somebody took along
FAKE_STEP_MS = 4.0
KILLS_EVERY_S, KILLS = 17.0, 8  # of the engine, at the most: where it is killed all the time, nobody has his say
MAX_ADAPTERS = 4
ADAPTERS_IN_RAM = 3.5  # of the size of one: less than packs name, and less than the voice of one of them
NOT_DONE: list[str] = []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, help="of play (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0, 1 << 32), default=1, help="of what players do (default: %(default)s)")
    add_count(parser, "npcs", 1000, 4000, "in the service")
    add_count(parser, "slots", 16, 64, "of the engine")
    add_count(parser, "ctx", 512, 1 << 16, "tokens of a slot")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave state, packs and records there, for `personae replay`")
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    from personae.cli.bench.stage import scratch_folder

    with scratch_folder() as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        return Soak(args, folder).run()


@dataclass(slots=True)
class Totals:
    """Over all runs of the service."""

    events: int = 0
    orders: int = 0
    steps: int = 0
    prompts: int = 0
    validated: int = 0


class Soak:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._failures, self._scales, self._totals = Failures(), Scales(), Totals()
        self._random = Random(args.seed)
        self._npcs = [npc_name(i) for i in range(args.npcs)]
        self._bystanders = [bystander_of(trade) for trade in TRADES]
        self._secrets = Secrets([*self._npcs, *self._bystanders], self._random)
        self._playbill = Playbill(packs_of(args.npcs), self._failures)
        self._passing = PassingFolder(folder / "passing")
        model, adapters = _model(args, folder)
        self._config = _config(args, folder, model, max(path.stat().st_size for path in adapters))
        self._vocabulary = make_vocabulary(model)
        self._crowd = crowd = Crowd(PLAYERS, self._secrets, self._playbill, self._failures)
        self._swaps = Swaps(folder / "characters", adapters, crowd, self._playbill, self._secrets, self._failures, self._random)
        crowd.hear_packs, crowd.lose_ear = self._swaps.hear, self._swaps.forget
        kill_every_s = max(KILLS_EVERY_S, args.minutes * 60 / KILLS)
        self._moves = Moves(crowd, self._npcs, self._secrets, self._swaps, self._random, kill_every_s)
        self._stats: dict[str, Any] = {}
        self._most_unpacked = 0

    def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        histories: dict[str, Any] = {}
        with self._passing:
            for phase in range(PHASES + 1):
                if self._is_over:
                    break
                inn = self._open(phase)
                try:
                    histories = self._perform(inn, phase, histories)
                finally:
                    self._end(inn)
        self._crowd.close()
        return self._report(time.monotonic() - began_s)

    def _perform(self, inn: Inn, phase: int, histories: dict[str, Any]) -> dict[str, Any]:
        """`histories`: how the service before left them. Returns how this one does."""
        self._greet(inn)
        if phase == 0:
            self._spawn_all()
        else:
            self._swaps.is_quiet = True
            self._mend_packs()
            self._compare(histories, self._histories())
            self._swaps.is_quiet = False
        if phase == PHASES:
            return histories
        self._play(self._args.minutes * 60 / PHASES)
        self._mend_packs()
        self._quiesce()
        self._look_for_leftovers(inn)
        return self._histories()

    # --- one run of the service -------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Something went wrong: the rest would tell nothing new."""
        return self._failures.n > 0

    def _open(self, phase: int) -> Inn:
        if phase > 0:
            self._swaps.take_one_away()
        self._swaps.open()
        config = replace(self._config, record=self._folder / f"run-{phase}.record")
        return Inn(config, self._vocabulary, self._secrets, self._playbill, self._failures)

    def _greet(self, inn: Inn) -> None:
        self._crowd.endpoint, self._crowd.engine, self._crowd.is_warm = inn.endpoint, {}, False
        for player in self._crowd.players:
            self._crowd.hang_up(player)
            self._crowd.connect(player)
        self._crowd.listen_until(self._crowd.is_answered, QUIET_S)

    def _play(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not self._is_over:
            self._moves.make_one()
            self._crowd.listen()
            self._scales.weigh(self._crowd.engine.get("pid"))

    def _mend_packs(self) -> None:
        """All that was done to packs is told, and all of them are there and whole."""
        for is_mended in (False, True):
            self._crowd.listen_until(lambda: self._playbill.all_settled, QUIET_S)
            if not is_mended and not self._is_over:
                self._swaps.mend_all()

    def _look_for_leftovers(self, inn: Inn) -> None:
        """Nothing is at work: what is in memory is named by a pack, and what was unpacked is an archive's that is there."""
        if self._is_over:
            return
        self._swaps.is_quiet = True
        self._swaps.change_one()
        self._crowd.listen_until(lambda: self._playbill.all_settled, QUIET_S)
        self._swaps.is_quiet = False
        stale = inn.watcher.referee.engine.adapters.resident - self._swaps.named
        if stale:
            self._failures.note(f"{len(stale)} adapters are in memory that no pack names any more.")
        if not self._crowd.listen_until(lambda: self._passing.n_adapters() <= self._swaps.n_unpacked, QUIET_S):
            self._failures.note(f"{self._passing.n_adapters()} adapters lie unpacked, and archives name {self._swaps.n_unpacked}.")
        self._most_unpacked = max(self._most_unpacked, self._passing.n_adapters())

    def _quiesce(self) -> None:
        """Nobody asks any more. All that was asked is answered, and then nothing is at work."""
        crowd = self._crowd
        self._reconnect()
        if not crowd.listen_until(crowd.is_answered, QUIET_S):
            for player in crowd.players:
                for request, asked in player.asked.items():
                    self._failures.note(f"Request {request} of {player.name}, a {asked.kind}, got no terminal message.")
        if not crowd.listen_until(self._is_quiet, QUIET_S):
            self._failures.note(f"Nobody asks for anything, and yet: {_at_work(self._stats)}.")

    def _reconnect(self) -> None:
        """Whoever died, or looked silent to the service on a crowded machine."""
        for player in self._crowd.players:
            if not player.is_known:
                self._crowd.hang_up(player)
                self._crowd.connect(player)
        self._crowd.listen_until(lambda: all(player.is_known for player in self._crowd.players), QUIET_S)

    def _is_quiet(self) -> bool:
        self._ask_all("stats", [{}], lambda _, done: self._stats.update(done))
        return bool(self._stats) and not any(_at_work(self._stats).values())

    def _end(self, inn: Inn) -> None:
        for player in self._crowd.players:
            self._crowd.hang_up(player)
        inn.stop()
        if self._passing.n_adapters():
            self._failures.note(f"{self._passing.n_adapters()} adapters lie unpacked when the service has ended.")
        referee, totals = inn.watcher.referee, self._totals
        if not inn.watcher.is_broken:
            for sentence in referee.owed():
                self._failures.note(f"When the service ended: {sentence}")
        totals.events += referee.n_events
        totals.orders += referee.engine.n_orders
        totals.steps += referee.engine.n_steps
        totals.prompts += inn.watcher.n_prompts
        if not self._is_over:
            self._play_again(inn.record)

    def _play_again(self, record: Path) -> None:
        try:
            played = Rerun(record).follow()
        except Broken as broken:
            self._failures.note(f"Played again, after event {broken.at_event}: {broken.why}.")
            return
        self._totals.validated += played.events
        if played.differs_at is not None:
            self._failures.note(f"Played again, the scheduler decides otherwise at event {played.differs_at}.")

    # --- asking in order ----------------------------------------------------------------------------------------------------

    def _ask_all(self, kind: str, requests: Sequence[dict[str, Any]], told: Any) -> None:
        """Each by one of the players, not too many at once."""
        crowd = self._crowd
        for start in range(0, len(requests), ASKED_AT_ONCE):
            for request in requests[start : start + ASKED_AT_ONCE]:
                players = crowd.living()
                if not players:
                    self._failures.note("No client is connected.")
                    return
                self._random.choice(players).ask(kind, told, **request)
            if not crowd.listen_until(lambda: not _owes(crowd, kind), QUIET_S):
                self._failures.note(f"Some of {len(requests)} requests of kind {kind} got no answer.")
                return

    def _spawn_all(self) -> None:
        spawns = [{"npc": npc, "character": trade_of(i)} for i, npc in enumerate(self._npcs)]
        spawns += [{"npc": bystander_of(trade), "character": trade} for trade in TRADES]
        self._ask_all("spawn", spawns, None)

    def _histories(self) -> dict[str, Any]:
        """npc -> its lines and memories. One whose second spawn was refused is not there.

        A player that is taken for dead takes what it had asked along, so whoever is missing is asked after again.
        """
        found: dict[str, Any] = {}

        def note(asked: Asked, done: dict[str, Any]) -> None:
            found.setdefault(done["npc"], {})[asked.kind] = done["lines"] if asked.kind == "history" else done["memories"]

        for kind in ("history", "memories"):
            for _ in range(ASKED_AFTER):
                missing = [{"npc": npc} for npc in (*self._npcs, *self._bystanders) if kind not in found.get(npc, {})]
                self._reconnect()
                self._ask_all(kind, missing, note)
        return found

    def _compare(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        for npc in sorted(before.keys() | after.keys()):
            if before.get(npc) != after.get(npc):
                was, now = before.get(npc, {}), after.get(npc, {})
                differ = [
                    f"{kind} {was.get(kind)!r} and now {now.get(kind)!r}"
                    for kind in ("history", "memories")
                    if was.get(kind) != now.get(kind)
                ]
                self._failures.note(f"NPC '{npc}' is another after the service was started again: {'; '.join(differ)[:2000]}.")

    # --- the report ---------------------------------------------------------------------------------------------------------

    def _report(self, seconds: float) -> dict[str, Any]:
        crowd, totals, args = self._crowd, self._totals, self._args
        memory = self._scales.report(self._failures)
        return {
            "passed": self._failures.n == 0,
            "failures": self._failures.told,
            "n_failures": self._failures.n,
            "minutes": args.minutes,
            "seconds": round(seconds, 1),
            "seed": args.seed,
            "model": Path(self._config.engine.model).name,
            "npcs": args.npcs,
            "slots": args.slots,
            "n_ctx": args.ctx,
            "clients": PLAYERS,
            "kv_ram": self._config.kv_ram,
            "moves": dict(sorted(self._moves.made.items())),
            "answers": dict(sorted(crowd.requests.items())),
            "finishes": dict(sorted(crowd.finishes.items())),
            "fallbacks": crowd.fallbacks,
            "errors": dict(sorted(crowd.errors.items())),
            "swaps": dict(sorted(self._swaps.made.items())),
            "n_swaps": self._swaps.made.total(),
            "removals": self._swaps.made["removed"] + self._swaps.made["guest_left"],
            **self._playbill.report(),
            "adapter_ram": self._config.adapter_ram,
            "most_adapter_bytes": crowd.most_adapter_bytes,
            "most_unpacked": self._most_unpacked,
            "engine_kills": self._moves.made["kill_engine"],
            "service_restarts": PHASES,
            "events": totals.events,
            "orders": totals.orders,
            "steps": totals.steps,
            "prompts_read": totals.prompts,
            "refereed_events": totals.events,
            "validated_events": totals.validated,
            "rss": memory,
            "scheduler": _of_interest(self._stats),
            "not_done": NOT_DONE,
        }


def _owes(crowd: Crowd, kind: str) -> bool:
    return any(asked.kind == kind for player in crowd.players for asked in player.asked.values())


def _at_work(stats: dict[str, Any]) -> dict[str, int]:
    """What must be nothing when nobody asks. A slot that is neither parked nor empty is at work."""
    scheduler = stats["scheduler"]
    names = ("waiting", "paused", "speaking", "prefilling")
    return {name: scheduler[name] for name in names if name in scheduler} | {"turns": stats["turns"]}


def _of_interest(stats: dict[str, Any]) -> dict[str, Any]:
    scheduler = stats.get("scheduler", {})
    return {
        name: value
        for name, value in scheduler.items()
        if name in ("evictions", "parked", "host", "pauses", "copies", "reuse", "kv", "adapters")
    }


def _config(args: argparse.Namespace, folder: Path, model: str, adapter_bytes: int) -> ServiceConfig:
    """Everything is short: it is at its limits that a service goes wrong. `adapter_bytes`: of one."""
    engine = EngineSettings(
        model=model, n_slots=args.slots, n_ctx=args.ctx, threads=physical_cores(), max_adapters=MAX_ADAPTERS, fake_step_ms=FAKE_STEP_MS
    )
    return ServiceConfig(
        engine=engine,
        characters=folder / "characters",
        state=folder / "state",
        kv_ram=24_000 if model == FAKE else Path(model).stat().st_size // 3,
        adapter_ram=int(adapter_bytes * ADAPTERS_IN_RAM),
        heartbeat_ms=2_000,
        drain_ms=500,
        max_queue=32,
        max_history_lines=40,
        max_npcs=args.npcs + 64,
        seed=args.seed,
        engine_restarts=1000,
        restart_backoff_ms=(100, 500),
    )


def _model(args: argparse.Namespace, folder: Path) -> tuple[str, list[Path]]:
    """What the engine is to load, and an adapter for each voice."""
    if args.model == FAKE:
        return FAKE, [_small_adapter(folder / f"{i}.gguf", i) for i in range(N_VOICES)]
    from personae.cli.bench.stage import Stage, model_file

    model = model_file(args, physical_cores())
    with Stage(model, physical_cores()) as stage:
        return str(model), stage.random_adapters([4] * N_VOICES, folder)


def _small_adapter(path: Path, seed: int) -> Path:
    """For the fake engine, which takes any: one that a pack may name."""
    pairs = random_pairs({"blk.0.attn_q.weight": (8, 8)}, 1, 1.0, np.random.default_rng(seed))
    write_lora(path, "fake", 1.0, pairs)
    return path
