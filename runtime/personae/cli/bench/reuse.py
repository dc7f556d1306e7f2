"""What an NPC does not compute again: on its second turn, after it gave its slot away, and when another of its pack was there before it.

`prefilled_over_new`: tokens prefilled on the second turn of an NPC that was left alone in its slot, over the tokens that are new in its
prompt: prompt(2) - prompt(1) - reply(1), the template around the new line counted. Below 1 where the head of the template was read ahead.
`fetched_over_new`: the same after so many others have spoken that it had to give its slot away; `fetched_from` says where its KV came from.

`copy_over_prefill`: of two new NPCs whose packs have personas of one length and the same adapter, one pack having an NPC that was spoken to
(with another line), the other none; in pairs that take turns, nothing else under way. Timed is `ttft_ms` as `done` reports it: from the
service hearing the first line that the new NPC is told to its first token. So both times hold the prefill of that line, one
the copy of the persona's KV and the other its prefill; `copied_from` says whether it was one.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, paired_ratio, rounded
from personae.cli.bench.house import SAMPLING, House, write_pack
from personae.cli.bench.options import add_count, add_format, add_serving_threads
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.cli.models import AUTO
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae_client import Client, Done, Npc

N_CTX = 1024
LINES = ("Who goes there?", "And what did you see on the road tonight, in all that rain?")
SENTENCE = "You have kept the inn at the bridge since the war, and you know everybody who ever crossed it by name and by debt. "
ALONE_S = 0.3  # after a reply, in which what is certain to follow is read ahead


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "slots", 3, 64, "fewer than there are NPCs")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "tokens", 16, 256, "of every reply")
    add_count(parser, "rounds", 5, 100, "after one that is not counted")
    add_count(parser, "sentences", 8, 24, "of the personas that are copied or not, about thirty tokens each")
    add_serving_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = model_file(args, physical_cores())
    settings = EngineSettings(model=str(model), n_slots=args.slots, n_ctx=N_CTX, threads=args.threads)
    with scratch_folder() as name:
        _write_cast(Path(name), model, args)
        with House(settings, Path(name) / "characters") as house:
            play = _Play(house.client, args)
            for number in range(args.rounds + 1):
                play.round(number)
            return play.report() | _setting(args, house.client.stats())


def _write_cast(folder: Path, model: Path, args: argparse.Namespace) -> None:
    """The keeper and those who take its slot, each with an adapter; and two packs for each round, which share one."""
    speakers = ["keeper", *_others(args.slots)]
    with Stage(model, physical_cores()) as stage:
        own, shared = stage.random_adapters([args.rank] * len(speakers), folder), folder / f"0-rank{args.rank}.gguf"
    for name, adapter in zip(speakers, own, strict=True):
        write_pack(folder / "characters", name, _persona(name, 1), adapter)
    for name in (name for number in range(args.rounds + 1) for name in _pair(number)):
        write_pack(folder / "characters", name, _persona(name, args.sentences), shared)


def _persona(name: str, n_sentences: int) -> str:
    """All different from the first word on."""
    return f"{name} is what they call you. " + SENTENCE * n_sentences


def _others(n: int) -> list[str]:
    return [f"other{i}" for i in range(n)]


def _pair(number: int) -> tuple[str, str]:
    """(a pack that has an NPC when the time is taken, one that has none); names of one length."""
    return f"old{number:03}", f"new{number:03}"


@dataclass
class _Play:
    client: Client
    args: argparse.Namespace
    parked: list[float] = field(default_factory=list)  # prefilled over new
    fetched: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)  # of what was fetched
    copy_ms: list[float] = field(default_factory=list)
    prefill_ms: list[float] = field(default_factory=list)
    copied: Counter[str] = field(default_factory=Counter)  # sources of those whose pack was there
    prompt_tokens: int = 0

    def round(self, number: int) -> None:
        """The first one pays for adapters and is not counted."""
        parked, _ = self._second_turn(crowded=False)
        fetched, done = self._second_turn(crowded=True)
        copy, prefill = self._spawns(number)
        if number == 0:
            return
        self.parked.append(parked)
        self.fetched.append(fetched)
        self.sources[done.usage.source] += 1
        self.copy_ms.append(copy.timing.ttft_ms)
        self.prefill_ms.append(prefill.timing.ttft_ms)
        self.copied[copy.usage.source] += 1
        self.prompt_tokens = prefill.usage.prompt

    def _second_turn(self, *, crowded: bool) -> tuple[float, Done]:
        """(prefilled over new, the second turn). `crowded`: everybody else has spoken meanwhile, and there are more of them than slots."""
        keeper = self.client.spawn("keeper")
        first = self._say(keeper, LINES[0])
        if crowded:
            for name in _others(self.args.slots):
                self._say(self.client.spawn(name), LINES[0])
        second = self._say(keeper, LINES[1])
        self._leave()
        new = second.usage.prompt - first.usage.prompt - first.usage.reply
        return second.usage.prefilled / new, second

    def _say(self, npc: Npc, line: str) -> Done:
        done = npc.say(line, max_tokens=self.args.tokens, sampling=SAMPLING).wait()
        time.sleep(ALONE_S)
        return done

    def _leave(self) -> None:
        for npc in self.client.npcs():
            npc.despawn()

    def _spawns(self, number: int) -> tuple[Done, Done]:
        """The first turns of two NPCs: (its pack has another, its pack has none)."""
        old, new = _pair(number)
        self._say(self.client.spawn(old), LINES[1])
        dones = {name: self._say(self.client.spawn(name), LINES[0]) for name in ((old, new) if number % 2 else (new, old))}
        self._leave()
        return dones[old], dones[new]

    def report(self) -> dict[str, Any]:
        return {
            "prefilled_over_new": rounded(max(self.parked)),
            "fetched_over_new": rounded(max(self.fetched)),
            "fetched_from": dict(self.sources),
            "copy_over_prefill": rounded(paired_ratio(self.copy_ms, self.prefill_ms)),
            "copy_ms": rounded(median(self.copy_ms)),
            "prefill_ms": rounded(median(self.prefill_ms)),
            "copied_from": dict(self.copied),
            "persona_tokens": self.prompt_tokens,
        }


def _setting(args: argparse.Namespace, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "slots": args.slots,
        "rank": args.rank,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "mode": stats["mode"],
        "format": args.format,
        "model": stats["model"]["name"],
    }
