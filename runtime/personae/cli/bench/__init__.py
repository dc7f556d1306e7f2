"""`personae bench NAME`: decides which benchmark runs, and how its result is shown. What is measured stands in one module for each.

A benchmark module has `add_arguments(parser)` and `run(args) -> dict`: plain JSON types, its names a promise. What they share:

- Compared things take turns in one process or side by side, step by step or round by round, so that a disturbance hits both.
- Figures are medians; ratios are medians of the ratios of neighbours in time, which neither an outlier nor a drift can bend. So a ratio
  is not quite the quotient of the two medians printed beside it.
- Above 1 is better for us in every ratio of throughputs or waits.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from personae.cli.bench.report import show
from personae.cli.main import Parser, command_module
from personae.engine.threads import physical_cores
from personae.service.engine_host import engine_environment

BENCHMARKS = {
    "mix": "a step with a different adapter in every row, against no adapters and against llama.cpp's own",
    "parity": "how far the mixer's logits are from llama.cpp's, on an F32 model",
    "service": "tokens through the socket against the engine alone",
    "neighbour": "the service beside a busy game",
    "adapter": "loading, replacing and freeing adapters while others speak",
    "formats": "number formats of the base, flash attention, threads, and what they do to the voices",
    "crowd": "a player's first token while none, some and all of the others speak, and waits when one adapter is in demand",
    "packs": "200 packs at start, one dropped into a running game, and more voices than there is memory for",
    "reuse": "what is not computed again on a second turn, without a slot, and for another NPC of a pack",
    "peer": "side by side with a llama-server",
    "soak": "a thousand NPCs, clients with bad manners and an engine that is killed: whether all stays right",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "benchmarks:\n" + "".join(f"  {name:<10} {line}\n" for name, line in BENCHMARKS.items())
    parser.add_argument("benchmark", choices=tuple(BENCHMARKS), metavar="NAME", help="which, see below; `personae bench NAME --help`")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="its options")


def run(args: argparse.Namespace) -> int:
    os.environ.update(engine_environment(physical_cores(), os.environ))  # before libgomp is loaded: the waiting policy of the product
    module = command_module(f"bench.{args.benchmark}")
    options = _options(args.benchmark, module, args.options)
    result: dict[str, Any] = module.run(options)
    show(result, as_json=options.json)
    return 0 if result.get("passed", True) else 1


def _options(name: str, module: Any, given: list[str]) -> argparse.Namespace:
    parser = Parser(prog=f"personae bench {name}", description=f"{BENCHMARKS[name]}.")
    parser.add_argument("--model", default="smollm2", help="smollm2 or the path of a GGUF file (default: smollm2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    module.add_arguments(parser)
    return parser.parse_args(given)
