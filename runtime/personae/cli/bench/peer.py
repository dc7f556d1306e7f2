"""Side by side with a llama-server: the same model file, adapters, prompts, lengths, sampling and threads; ours through the socket.

Eight NPCs with eight different adapters are spoken to at once, in rounds that take turns. Cold: each has a persona that neither side has
seen. Warm: the same NPCs are spoken to again, after the pause in which a player reads; both keep what they hold of the first turn, and
may use the pause. `last_first_token_s` is how long the last of the eight lets the player wait for its first token. One round is run first
and not counted: it loads adapters and pays for first decodes.

The adapters are random, of one rank, so that replies have full length on both sides whatever the model is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, paired_ratio, rounded
from personae.cli.bench.house import House, speak_to_all, write_pack
from personae.cli.bench.llama_server import LlamaServer
from personae.cli.bench.options import add_count, add_format, add_threads
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.cli.models import AUTO
from personae.engine.factory import make_vocabulary
from personae.engine.settings import EngineSettings
from personae.prompt import Line, Persona, PromptBuilder
from personae_client import Client

N_CTX = 1024
LINES = ("Good evening. What do you know of the old tower?", "And who lives there now?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PATH", help="a llama-server that you have built")
    add_count(parser, "npcs", 8, 64, "that are spoken to at once")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "tokens", 32, 512, "of every reply")
    add_count(parser, "rounds", 3, 50, "of each side")
    add_count(parser, "pause-ms", 1000, 60_000, "between the two lines of a round, on both sides")
    add_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = model_file(args, args.threads)
    settings = EngineSettings(model=str(model), n_slots=args.npcs, n_ctx=N_CTX, threads=args.threads)
    with scratch_folder() as name:
        folder = Path(name)
        with Stage(model, args.threads) as stage:
            adapters = stage.random_adapters([args.rank] * args.npcs, folder)
        for number in range(args.rounds + 1):
            for npc, adapter in enumerate(adapters):
                write_pack(folder / "characters", _name(number, npc), _persona(number, npc), adapter)
        theirs = _Theirs(PromptBuilder(make_vocabulary(str(model)), n_ctx=N_CTX), args)
        ours = _Ours(args)
        with House(settings, folder / "characters") as house, _server(args, model, adapters) as server:
            for number in range(args.rounds + 1):
                sides = [lambda n: ours.run(house.client, n), lambda n: theirs.run(server, n)]
                for side in sides if number % 2 else reversed(sides):
                    side(number)
            return _report(ours.took, theirs.took, args, house.client.stats())


def _server(args: argparse.Namespace, model: Path, adapters: Sequence[Path]) -> LlamaServer:
    return LlamaServer(args.llama_server, model, adapters, n_ctx=N_CTX, threads=args.threads)


def _name(number: int, npc: int) -> str:
    return f"r{number}n{npc}"


def _persona(number: int, npc: int) -> str:
    return f"{number * 64 + npc + 1} is your number, and you keep an inn."


@dataclass(slots=True)
class Took:
    """Of each round, the first included."""

    tokens_per_s: list[float] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0

    def note(self, n_tokens: int, seconds: float, cold_s: float, warm_s: float) -> None:
        self.tokens_per_s.append(n_tokens / seconds)
        self.cold_s.append(cold_s)
        self.warm_s.append(warm_s)


class _Ours:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.took = Took()

    def run(self, client: Client, number: int) -> None:
        npcs = [client.spawn(_name(number, npc)) for npc in range(self._args.npcs)]
        cold = speak_to_all(client, npcs, LINES[0], self._args.tokens)
        time.sleep(self._args.pause_ms / 1e3)
        warm = speak_to_all(client, npcs, LINES[1], self._args.tokens)
        for npc in npcs:
            npc.despawn()
        self.took.prompt_tokens = cold.dones[0].usage.prompt
        self.took.note(cold.n_tokens + warm.n_tokens, cold.seconds + warm.seconds, max(cold.first_s), max(warm.first_s))


class _Theirs:
    """The prompts are ours, token for token; the second repeats the tokens that were drawn, so that their cache finds them."""

    def __init__(self, builder: PromptBuilder, args: argparse.Namespace) -> None:
        self._builder, self._args = builder, args
        self.took = Took()

    def run(self, server: LlamaServer, number: int) -> None:
        said = [Line("Player", line, False) for line in LINES]
        cold = server.ask_all([self._prompt(number, npc, said[:1]) for npc in range(self._args.npcs)], self._args.tokens)
        replies = [Line(_name(number, npc), one.text, True, one.tokens) for npc, one in enumerate(cold.all)]
        talks = [[said[0], reply, said[1]] for reply in replies]
        time.sleep(self._args.pause_ms / 1e3)
        warm = server.ask_all([self._prompt(number, npc, talk) for npc, talk in enumerate(talks)], self._args.tokens)
        waits = [max(one.first_s for one in answers.all) for answers in (cold, warm)]
        self.took.note(cold.n_tokens + warm.n_tokens, cold.seconds + warm.seconds, *waits)

    def _prompt(self, number: int, npc: int, lines: Sequence[Line]) -> tuple[int, ...]:
        prompt = self._builder.build(Persona(_name(number, npc), _persona(number, npc)), lines, self._args.tokens)
        self.took.prompt_tokens = len(prompt.tokens) if len(lines) == 1 else self.took.prompt_tokens
        return prompt.tokens


def _report(ours: Took, theirs: Took, args: argparse.Namespace, stats: dict[str, Any]) -> dict[str, Any]:
    def both(of_ours: Sequence[float], of_theirs: Sequence[float]) -> dict[str, float]:
        return {"personae": rounded(median(of_ours[1:])), "llama_server": rounded(median(of_theirs[1:]))}

    return {
        "tokens_ratio": rounded(paired_ratio(ours.tokens_per_s[1:], theirs.tokens_per_s[1:])),
        "cold_wait_ratio": rounded(paired_ratio(theirs.cold_s[1:], ours.cold_s[1:])),
        "warm_wait_ratio": rounded(paired_ratio(theirs.warm_s[1:], ours.warm_s[1:])),
        "tokens_per_s": both(ours.tokens_per_s, theirs.tokens_per_s),
        "last_first_token_s": {"cold": both(ours.cold_s, theirs.cold_s), "warm": both(ours.warm_s, theirs.warm_s)},
        "prompt_tokens": {"personae": ours.prompt_tokens, "llama_server": theirs.prompt_tokens},
        "npcs": args.npcs,
        "rank": args.rank,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "pause_ms": args.pause_ms,
        "threads": args.threads,
        "mode": stats["mode"],
        "format": args.format,
        "model": stats["model"]["name"],
    }
