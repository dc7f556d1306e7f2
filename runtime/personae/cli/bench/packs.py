"""What packs cost: at start, while nobody speaks with them, when one is dropped into a running game, and when there are too many.

startup    200 packs against one, services started in turn: the time until `ready` and the memory of the service process, for each pack
drop-in    a pack with an adapter of its own is copied into the folder while seven NPCs speak. Time runs from the end of the copy to the
           newcomer's first token: the pack is noticed, has settled, is read, spawned, its adapter loaded, its prompt prefilled. The
           others' steps in that time are held against those just before (steps are known to 5 ms)
budget     50 voices, memory for 8, everybody asked again as soon as they have answered: all must be, and in turn
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.cli.bench.crowd import Crowd
from personae.cli.bench.figures import median, rounded
from personae.cli.bench.house import SAMPLING, House, write_pack
from personae.cli.bench.options import add_count, add_format, add_serving_threads
from personae.cli.bench.pour import pour
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.cli.models import AUTO
from personae.cli.private_service import PrivateService
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae.errors import WorldFailed
from personae_client import Client

N_CTX = 1024
SLOTS = 8
LINE = "Tell me more of the road to the north, friend."
PERSONA = "You are a teller of long tales in the tavern of the old town, and you never come to an end."
LORE = "The mill by the river burnt down last winter, and nobody knows who carried the lantern into it that night."
N_LORE = 12  # entries of an idle pack: about what a writer puts into one
CROWD_TOKENS = 600
ORDINARY_S = 2.0  # of steps before a pack is dropped in
PATIENCE_S = 30.0
POLL_S = 0.005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "packs", 200, 2000, "on disk")
    add_count(parser, "starts", 5, 50, "of a service with all of them, and as many with one")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "speaking", SLOTS - 1, 63, "NPCs while a pack is dropped in")
    add_count(parser, "dropins", 9, 100, "that are timed")
    add_count(parser, "voices", 50, 1000, "for the budget")
    add_count(parser, "budget", 8, 256, "adapters that there is memory for")
    add_count(parser, "pour-s", 90, 3600, "seconds of that")
    add_serving_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = model_file(args, physical_cores())
    with scratch_folder() as name:
        folder = Path(name)
        with Stage(model, physical_cores()) as stage:
            adapters = stage.random_adapters([args.rank] * max(args.voices, args.speaking + args.dropins), folder)
        settings = EngineSettings(
            model=str(model), n_slots=max(SLOTS, args.speaking + 1), n_ctx=N_CTX, threads=args.threads, max_adapters=4096
        )
        started = _Starts(settings, folder, adapters[0], args).report()
        dropped = _dropped_in(settings, folder, adapters, args)
        shared = _shared(settings, folder, adapters, args)
        setting = {"packs": args.packs, "rank": args.rank, "adapter_bytes": adapters[0].stat().st_size, "format": args.format}
        return started | dropped | shared | setting | {"model": model.name}


# --- at start ---------------------------------------------------------------------------------------------------------


class _Starts:
    """Services with all the packs and with one of them, started in turn."""

    def __init__(self, settings: EngineSettings, folder: Path, adapter: Path, args: argparse.Namespace) -> None:
        self._settings, self._rounds, self._n = settings, args.starts, args.packs
        self._many, self._one = folder / "many", folder / "one"
        for number in range(args.packs):
            _write_rich_pack(self._many, f"idle{number}", adapter)
        _write_rich_pack(self._one, "idle0", adapter)

    def report(self) -> dict[str, Any]:
        rounds = [(self._start(self._many), self._start(self._one)) for _ in range(self._rounds)]
        more = max(1, self._n - 1)
        ms = [(many[0] - one[0]) / more for many, one in rounds]
        kib = [(many[1] - one[1]) / 1024 / more for many, one in rounds]
        return {
            "startup_ms_per_pack": rounded(median(ms)),
            "idle_kib_per_pack": rounded(median(kib)),
            "startup_ms": {"all": rounded(median(many[0] for many, _ in rounds)), "one": rounded(median(one[0] for _, one in rounds))},
            "starts": self._rounds,
        }

    def _start(self, characters: Path) -> tuple[float, int]:
        """(ms from the process's start to `ready`, bytes of the service process once every adapter's key is known)."""
        began = time.perf_counter()
        with PrivateService(_arguments(self._settings, characters)) as service:
            service.wait_until_ready()
            ms = (time.perf_counter() - began) * 1e3
            with Client(service.endpoint, name="bench", timeout=60.0) as client:
                _wait_until(lambda: all(character.adapter for character in client.characters().characters), "all adapters were read")
                return ms, int(client.stats()["rss_bytes"])


def _arguments(settings: EngineSettings, characters: Path) -> list[str]:
    threads = ["--threads", str(settings.threads)] if settings.threads else []
    return ["--model", settings.model, "--characters", str(characters), "--ctx", str(settings.n_ctx), *threads]


def _write_rich_pack(folder: Path, name: str, adapter: Path) -> None:
    """A pack with as much text as a writer's: about 3 kB."""
    write_pack(folder, name, PERSONA * 4, adapter)
    lore = [f'[[lore]]\nname = "lore {number}"\nkeys = ["mill {number}", "river"]\ntext = {json.dumps(LORE)}' for number in range(N_LORE)]
    with (folder / name / "character.toml").open("a", encoding="utf-8") as manifest:
        manifest.write("\n".join(lore) + "\n")


# --- dropped in -------------------------------------------------------------------------------------------------------


def _dropped_in(settings: EngineSettings, folder: Path, adapters: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    characters, staging = folder / "tavern", folder / "staging"
    for number in range(args.speaking):
        write_pack(characters, f"teller{number}", PERSONA, adapters[number])
    for number in range(args.dropins):
        write_pack(staging, f"newcomer{number}", PERSONA, adapters[args.speaking + number])
    with House(settings, characters) as house:
        house.client.subscribe_packs()
        crowd = Crowd(house.client, CROWD_TOKENS)
        crowd.resize(args.speaking)
        _drop_in(house.client, crowd, staging, characters, 0)
        timed = [_drop_in(house.client, crowd, staging, characters, number) for number in range(1, args.dropins)]
        crowd.resize(0)
    return {
        "dropin_to_first_token_ms": rounded(median(each.first_ms for each in timed)),
        "dropin_to_known_ms": rounded(median(each.known_ms for each in timed)),
        "longest_extra_step_over_ordinary": rounded(max(each.extra(each.during) for each in timed)),
        "longest_extra_step_over_ordinary_before": rounded(max(each.extra(each.before) for each in timed)),
        "longest_step_ms": rounded(max(max(each.during) for each in timed)),
        "ordinary_step_ms": rounded(median(each.ordinary_ms for each in timed)),
        "dropins": len(timed),
        "speaking": args.speaking,
    }


@dataclass(frozen=True, slots=True)
class _Dropped:
    """Ms from the end of the copy until the pack was known, and to the first token. The lengths of all steps in the seconds before, and in
    that time, in ms."""

    known_ms: float
    first_ms: float
    before: Sequence[int]
    during: Sequence[int]

    @property
    def ordinary_ms(self) -> float:
        return median(self.before)

    def extra(self, steps: Sequence[int]) -> float:
        """By how much of an ordinary step the longest of these is longer."""
        return max(steps) / self.ordinary_ms - 1


def _drop_in(client: Client, crowd: Crowd, staging: Path, characters: Path, number: int) -> _Dropped:
    """The first of all is not to be counted: it pays for what is imported when the first pack comes."""
    name = f"newcomer{number}"
    crowd.keep()
    at_first = _steps(client)
    time.sleep(ORDINARY_S)
    before = _steps(client)
    shutil.copytree(staging / name, characters / name)
    copied = time.perf_counter()
    _wait_until(lambda: _is_known(client, name), f"pack {name} was noticed", POLL_S)
    known_ms = (time.perf_counter() - copied) * 1e3
    npc = client.spawn(name)
    stream = npc.say(LINE, max_tokens=8, sampling=SAMPLING)
    next(stream)
    first_ms = (time.perf_counter() - copied) * 1e3
    during = _difference(before, _steps(client))
    stream.wait()
    npc.despawn()
    return _Dropped(known_ms, first_ms, _difference(at_first, before), during)


def _is_known(client: Client, name: str) -> bool:
    events = client.take_events()
    return any(event.name == "pack" and event.details.get("character") == name for event in events)


def _steps(client: Client) -> Mapping[int, int]:
    """How many steps there were of each length, in ms rounded up to 5."""
    return {int(ms): int(times) for ms, times in client.stats()["scheduler"]["engine"]["by_ms"].items()}


def _difference(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    """The lengths of the steps between two of these."""
    return [ms for ms, times in after.items() for _ in range(times - before.get(ms, 0))]


def _wait_until(holds: Any, what: str, poll_s: float = 0.05) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise WorldFailed("service_lost", f"It was not seen within {PATIENCE_S:g} s that {what}.", "Is the machine very busy?")
        time.sleep(poll_s)


# --- more voices than memory ------------------------------------------------------------------------------------------


def _shared(settings: EngineSettings, folder: Path, adapters: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    characters = folder / "choir"
    for number in range(args.voices):
        write_pack(characters, f"voice{number}", PERSONA, adapters[number])
    budget = args.budget * _bytes_of_one(settings, folder / "tavern")
    with House(settings, characters, "--adapter-ram", str(budget)) as house:
        seen: list[dict[str, Any]] = []
        npcs = [house.client.spawn(f"voice{number}") for number in range(args.voices)]
        waits = pour(npcs, LINE, args.pour_s, lambda: seen.append(_adapters(house.client)))
        stats = _adapters(house.client)
    return {
        "voices": args.voices,
        "budget_adapters": args.budget,
        "answered": len(waits.answered),
        **waits.report(),
        "adapter_loads": stats["loads"],
        "most_resident_over_budget": rounded(max(each["bytes_resident"] for each in seen) / budget),
    }


def _bytes_of_one(settings: EngineSettings, characters: Path) -> int:
    """What one of these adapters takes in the engine's memory."""
    with House(settings, characters) as house:
        house.client.spawn("teller0").say(LINE, max_tokens=1).wait()
        return int(_adapters(house.client)["bytes_resident"])


def _adapters(client: Client) -> dict[str, Any]:
    stats: dict[str, Any] = client.stats()["scheduler"]["adapters"]
    return stats
