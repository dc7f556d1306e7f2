"""How long a player waits for the first token while nobody, some and all of the others speak; and who waits when one adapter is in demand.

In every round the crowd of ambient turns grows from none to all slots, or shrinks, and at each size a player's line is said twice: to an
NPC that was spoken to before, of whose prompt only the new line is missing, and to a new one, whose whole prompt is. The crowd
speaks all the time, each with an adapter of its own, in replies that do not end before the round does; who has ended is asked again,
and a line during which somebody fell silent is said once more (`thin_crowds` counts those where that did not help). `ttft_ms` is what
`done` reports: from the service hearing the line to its first token.

`ttft_ratio_16_over_0` is of the NPC that was spoken to before: what players notice most. Alone, it prefills some twenty tokens; in
a full house it also waits for the end of the step under way, for a slot, and for its KV from host memory. The new NPC's is beside it.

`longest_step_over_target` is of the longest step of the counted rounds, what was moved before it included.

`max_wait_over_mean`: twice as many turns as slots, all ambient, one after another from each NPC; half of them with one adapter, the others
each with its own. Waits are from the line to the slot, averaged for each adapter: the longest of these over their mean.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, paired_ratio, percentile, rounded
from personae.cli.bench.house import SAMPLING, House, write_pack
from personae.cli.bench.options import add_count, add_format, add_serving_threads, whole
from personae.cli.bench.pour import Waits, pour
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.cli.models import AUTO
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae_client import Client, Npc, Stream

N_CTX = 1024
PERSONA = "You are a teller of long tales in the tavern of the old town, and you never come to an end."
LINE = "Tell me more of the road to the north, friend."
PLAYERS_TOKENS = 8  # of the replies to the player: their length is not measured
SETTLE_S = 0.3  # that a crowd speaks before a line is said
MOST_TRIES = 5  # for one line, when somebody of the crowd falls silent in it
FOREVER_S = 600.0
KNOWN, NEW = "known", "new"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "slots", 16, 64, "and as many in the whole crowd")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "tokens", 640, 900, "of every ambient reply")
    add_count(parser, "rounds", 6, 100, "after one that is not counted")
    add_count(parser, "pour-s", 15, 600, "seconds in which one adapter is in demand")
    parser.add_argument("--step-ms", type=whole(1, 10_000), default=100, help="as `serve` has it (default: %(default)s)")
    add_serving_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = model_file(args, physical_cores())
    settings = EngineSettings(model=str(model), n_slots=args.slots, n_ctx=N_CTX, threads=args.threads)
    with scratch_folder() as name:
        _write_cast(Path(name), model, args)
        with House(settings, Path(name) / "characters", "--step-ms", str(args.step_ms)) as house:
            play = _Play(house.client, args)
            play.round(0)
            before = house.client.stats()
            rounds = [play.round(number) for number in range(1, args.rounds + 1)]
            after = house.client.stats()
            play.crowd.resize(0)
            waits = one_in_demand(house.client, args)
            return (
                _waited(rounds, args.slots)
                | _steps(before, after, args.step_ms)
                | waits.report()
                | _setting(args, after)
                | {"thin_crowds": play.n_thin}
            )


def _write_cast(folder: Path, model: Path, args: argparse.Namespace) -> None:
    names = [*(_teller(i) for i in range(args.slots)), KNOWN, NEW]
    with Stage(model, physical_cores()) as stage:
        adapters = stage.random_adapters([args.rank] * len(names), folder)
    for name, adapter in zip(names, adapters, strict=True):
        write_pack(folder / "characters", name, PERSONA, adapter)


def _teller(number: int) -> str:
    return f"teller{number}"


# --- a player and a crowd ---------------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Ambient turns that go on and on. `streams[i]` is what teller i says; over when it is to be asked again."""

    client: Client
    tokens: int
    npcs: list[Npc] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not any(stream.is_over for stream in self.streams)

    def resize(self, n: int) -> None:
        """Returns when all of `n` speak."""
        while len(self.npcs) > n:
            self.streams.pop().cancel()
            self.npcs.pop().despawn()
        for number in range(len(self.npcs), n):
            self.npcs.append(self.client.spawn(_teller(number)))
            self.streams.append(self._tell(self.npcs[-1]))
        self.keep()

    def keep(self) -> None:
        """Ask those who have ended, and wait until everybody has begun. A new NPC each: nobody's context is ever full."""
        for i, stream in enumerate(self.streams):
            if stream.is_over:
                stream.wait()  # raises what it ended by, if that was no end
                character = self.npcs[i].card.character
                self.npcs[i].despawn()
                self.npcs[i] = self.client.spawn(character)
                self.streams[i] = self._tell(self.npcs[i])
        for stream in self.streams:
            next(stream, None)

    def _tell(self, npc: Npc) -> Stream:
        return npc.say(LINE, priority="ambient", max_tokens=self.tokens, max_seconds=FOREVER_S, sampling=SAMPLING)


Waited = dict[tuple[str, int], float]  # (known or new, size of the crowd) -> ms to the first token


class _Play:
    def __init__(self, client: Client, args: argparse.Namespace) -> None:
        self._client = client
        self.crowd = Crowd(client, args.tokens)
        self._sizes = sizes(args.slots)
        self.n_thin = 0  # lines during which somebody of the crowd fell silent, however often they were said

    def round(self, number: int) -> Waited:
        """Every size once, by turns upwards and downwards. The NPC that was spoken to before is another one in each round, so that its
        history is as long in all of them."""
        waited: Waited = {}
        known = self._client.spawn(KNOWN)
        known.say(LINE, max_tokens=PLAYERS_TOKENS).wait()
        for size in self._sizes if number % 2 == 0 else reversed(self._sizes):
            self.crowd.resize(size)
            waited[KNOWN, size] = self._ask(known)
            waited[NEW, size] = self._ask(None)
        known.despawn()
        return waited

    def _ask(self, npc: Npc | None) -> float:
        """Ms to the first token of a player's line, to a new NPC if `npc` is None."""
        for _ in range(MOST_TRIES):
            self.crowd.keep()
            time.sleep(SETTLE_S)
            asked = npc or self._client.spawn(NEW)
            done = asked.say(LINE, priority="player", max_tokens=PLAYERS_TOKENS, sampling=SAMPLING).wait()
            if npc is None:
                asked.despawn()
            if self.crowd.is_whole:
                return done.timing.ttft_ms
        self.n_thin += 1
        return done.timing.ttft_ms


def sizes(slots: int) -> list[int]:
    """Of the crowd: none, a quarter, half, all."""
    return sorted({0, slots // 4, slots // 2, slots})


# --- one adapter in demand --------------------------------------------------------------------------------------------


def one_in_demand(client: Client, args: argparse.Namespace) -> Waits:
    npcs = [client.spawn(_teller(0 if i % 2 else 1 + (i // 2) % max(1, args.slots - 1))) for i in range(2 * args.slots)]
    return pour(npcs, LINE, args.pour_s)


# --- the report -------------------------------------------------------------------------------------------------------


def _waited(rounds: Sequence[Waited], slots: int) -> dict[str, Any]:
    def ratio(which: str) -> float:
        return rounded(paired_ratio([waited[which, slots] for waited in rounds], [waited[which, 0] for waited in rounds]))

    def shown(which: str, size: int) -> dict[str, float]:
        of_size = [waited[which, size] for waited in rounds]
        return {"median": rounded(median(of_size)), "p95": rounded(percentile(of_size, 0.95))}

    return {
        f"ttft_ratio_{slots}_over_0": ratio(KNOWN),
        f"ttft_ratio_{slots}_over_0_new": ratio(NEW),
        "ttft_ms": {which: {str(size): shown(which, size) for size in sizes(slots)} for which in (KNOWN, NEW)},
    }


def _steps(before: dict[str, Any], after: dict[str, Any], step_ms: int) -> dict[str, Any]:
    """Of the steps between two `stats`."""
    lengths = [stats["scheduler"]["engine"]["by_ms"] for stats in (before, after)]
    counted = {int(ms): times - lengths[0].get(ms, 0) for ms, times in lengths[1].items()}
    each = sorted(ms for ms, times in counted.items() for _ in range(times))
    return {
        "longest_step_over_target": rounded(each[-1] / step_ms),
        "step_over_target_p99": rounded(percentile(each, 0.99) / step_ms),
        "steps": len(each),
        "step_ms": step_ms,
    }


def _setting(args: argparse.Namespace, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "pauses": stats["scheduler"].get("pauses", 0),
        "slots": args.slots,
        "rank": args.rank,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "mode": stats["mode"],
        "format": args.format,
        "model": stats["model"]["name"],
    }
