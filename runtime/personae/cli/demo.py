"""`personae demo`: NPCs of several packs are spoken to at once and answer at once, side by side. Decides who plays and what is said.

It is a game like any other: it starts a service as a process of its own, connects, spawns, says, and shows what comes.
The first round reads every persona; in the later ones only the new line is read, since each NPC's KV is still there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from personae.cli.cast import find_cast
from personae.cli.demo_report import Report, Round, difference, drawn, mode_text
from personae.cli.demo_stage import Stage, can_show
from personae.cli.private_service import PrivateService
from personae.cli.terminal import COLOURS, client_failures, forgiving_streams, printable, watched
from personae.cli.voices import Voice, labels, listen
from personae.errors import AskedWrong
from personae_client import Client, Done

LINES = (
    "Good evening to all of you! Who are you, and what brings you to this tavern?",
    "What is the strangest thing you have ever seen?",
    "There is a dragon at the door! What shall we do?",
)
LEAST_NPCS, MOST_NPCS, USUAL_NPCS = 6, 24, 6
COUNT_EVERY_S = 0.5  # the figures at the foot of the picture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="smollm2, the path of a GGUF file, or fake (default: %(default)s)")
    parser.add_argument("--characters", type=Path, metavar="DIR", help="folder of character packs (default: the samples)")
    parser.add_argument("--npcs", type=int, default=USUAL_NPCS, metavar="N", help=f"{LEAST_NPCS} to {MOST_NPCS} (default: %(default)s)")
    parser.add_argument("--tokens", type=int, metavar="N", help="the most tokens of a reply (default: what each pack says)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine (default: as `personae serve`)")
    parser.add_argument("--mode", choices=("auto", "mixed", "grouped"), default="auto", help="how voices are decoded (default: auto)")
    parser.add_argument("--plain", action="store_true", help="print finished replies, without live panels")
    parser.add_argument("--json", action="store_true", help="print one JSON document, and nothing else")
    parser.add_argument("--fake-step-ms", type=float, default=0.0, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    _check(args)
    console = Console(highlight=False)
    with forgiving_streams(), client_failures():
        report, colours = _perform(args, console)
        if args.json:
            print(json.dumps(report.to_json(), ensure_ascii=False, indent=1))
        else:
            console.print(drawn(report, colours))
    return 0


def _check(args: argparse.Namespace) -> None:
    if not LEAST_NPCS <= args.npcs <= MOST_NPCS:
        raise AskedWrong(
            "bad_arguments", f"--npcs takes {LEAST_NPCS} to {MOST_NPCS}, not {args.npcs}.", "Fewer show nothing, more do not fit."
        )
    if args.tokens is not None and args.tokens < 1:
        raise AskedWrong("bad_arguments", f"--tokens takes 1 or more, not {args.tokens}.", "Leave it out for what each pack says.")


def _perform(args: argparse.Namespace, console: Console) -> tuple[Report, dict[str, str]]:
    with PrivateService(_service_arguments(args)) as service:
        with _waiting(console, args):
            service.wait_until_ready()
            service.wait_until_warm()
        with watched(service), Client(service.endpoint, name="personae demo") as client:
            voices = gather_cast(client, args.npcs)
            rounds = Play(console, service, client, voices, args.tokens).run(is_silent=args.json, is_plain=args.plain)
            report = Report.of(client.welcome, [voice.npc.card for voice in voices], rounds, client.stats()["threads"])
    return report, {voice.npc.id: voice.colour for voice in voices}


def _service_arguments(args: argparse.Namespace) -> list[str]:
    arguments = ["--model", args.model, "--characters", str(find_cast(args.characters)), "--slots", str(args.npcs), "--mode", args.mode]
    arguments += ["--fake-step-ms", str(args.fake_step_ms)]
    return arguments if args.threads is None else [*arguments, "--threads", str(args.threads)]


def _waiting(console: Console, args: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    """Something that moves while the model is loaded."""
    is_shown = console.is_terminal and not (args.plain or args.json)
    return console.status("Starting a service and loading the model...") if is_shown else contextlib.nullcontext()


def gather_cast(client: Client, n_npcs: int) -> list[Voice]:
    """The packs in turn, until there are enough. AskedWrong when there is no usable pack."""
    cast = client.characters()
    for problem in cast.problems:
        print(f"personae: pack {problem.pack}: {problem.problem} {problem.remedy}", file=sys.stderr)
    if not cast.characters:
        raise AskedWrong("bad_arguments", "There is no usable character pack.", "--characters takes a folder of packs.")
    ids = [character.id for character in cast.characters]
    colours = dict(zip(ids, cycle(COLOURS), strict=False))
    return [Voice(client.spawn(character), colours[character]) for character in islice(cycle(ids), n_npcs)]


# --- the play ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Play:
    console: Console
    service: PrivateService
    client: Client
    voices: Sequence[Voice]
    max_tokens: int | None  # of a reply; None: what the packs say

    def run(self, *, is_silent: bool, is_plain: bool) -> list[Round]:
        """All rounds, shown in the best way the terminal has."""
        if is_silent:
            return [self._round(line, self.service.check) for line in LINES]
        if is_plain or not can_show(self.console, len(self.voices)):
            return self._run_plain()
        rounds = self._run_live()
        for one in rounds:
            self._print_round(one)
        return rounds

    def _round(self, line: str, each_frame: Callable[[], None]) -> Round:
        """Raises the first failure once all have ended."""
        before = self._totals()
        for voice in self.voices:
            voice.ask(line, max_tokens=self.max_tokens)
        listen(self.voices, each_frame)
        return Round(line, tuple(_ending(voice) for voice in self.voices), difference(self._totals(), before))

    def _totals(self) -> dict[str, int]:
        """What the service has counted since it began."""
        return dict(self.client.stats()["totals"])

    def _run_live(self) -> list[Round]:
        rounds: list[Round] = []
        with Stage(self.console, self.client.welcome, self.voices) as stage:
            for number, line in enumerate(LINES, 1):
                stage.begin_round(f"({number}/{len(LINES)}) {line}")
                rounds.append(self._round(line, self._drawing(stage)))
        return rounds

    def _drawing(self, stage: Stage) -> Callable[[], None]:
        """What draws one round: whenever somebody said something, or there are new figures."""
        counters = Counters(self._totals)

        def each_frame() -> None:
            self.service.check()
            has_news = [voice.take_news() for voice in self.voices]
            if counters.update() or any(has_news):
                stage.counters = counters.text
                stage.draw()

        return each_frame

    def _run_plain(self) -> list[Round]:
        welcome, rounds = self.client.welcome, []
        print(f"{len(self.voices)} NPCs, one model: {welcome.model.name}. {mode_text(welcome)[0]}")
        for line in LINES:
            print(f"\nYou: {line}")
            open_voices = dict(zip(labels(self.voices), self.voices, strict=True))

            def each_frame(open_voices: dict[str, Voice] = open_voices) -> None:
                self.service.check()
                for label in [label for label, voice in open_voices.items() if voice.is_heard_out]:
                    print(f"{label}: {open_voices.pop(label).line()}", flush=True)

            rounds.append(self._round(line, each_frame))
        print()
        return rounds

    def _print_round(self, one: Round) -> None:
        """What was on the other screen, to stay: whole replies."""
        self.console.print(Text.assemble(("You  ", "bold cyan"), one.line))
        for voice, label, reply in zip(self.voices, labels(self.voices), one.replies, strict=True):
            self.console.print(Text.assemble((f"{label}  ", voice.colour), printable(reply.text.strip())))
        self.console.print()


def _ending(voice: Voice) -> Done:
    assert voice.stream is not None, "it was asked"
    return voice.stream.wait()


class Counters:
    """Live figures of one round, looked up now and then."""

    def __init__(self, totals: Callable[[], Mapping[str, int]]) -> None:
        self._totals, self._before = totals, totals()
        self._looked_s = 0.0
        self.text = ""

    def update(self) -> bool:
        """Whether the text is a new one."""
        if time.monotonic() - self._looked_s < COUNT_EVERY_S:
            return False
        self._looked_s = time.monotonic()
        self.text, was = counters_text(difference(self._totals(), self._before)), self.text
        return self.text != was


def counters_text(counted: Mapping[str, int]) -> str:
    decodes = counted["decodes"]
    if not decodes:
        return "reading"
    rows, mixed = counted["rows"] / decodes, counted["mixed_decodes"] / decodes
    return f"{decodes} decodes, {rows:.1f} NPCs in each, {mixed:.0%} with several voices"
