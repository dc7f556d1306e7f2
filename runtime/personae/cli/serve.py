"""`personae serve`: decides what the command line means, and speaks to whoever started us. The service itself is in personae.service.

Standard output carries one JSON line when the service is ready and one when it is warm, and nothing else. Logs go to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any

from personae.cli.logs import log_to_stderr
from personae.cli.models import AS_IS, AUTO, FAKE, find_model, format_for
from personae.config import ServiceConfig
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae.errors import AskedWrong, PersonaeError

DEFAULT_PORT = 7777
DEFAULT_CHARACTERS = Path("characters")
FORMATS = (AUTO, AS_IS, "q4_0", "q8_0")  # of engine/llama/formats.py, which needs llama-cpp-python to be imported
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_TOKEN_BYTES = 255  # what PLAIN carries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="smollm2, the path of a GGUF file, or fake (default: smollm2)")
    parser.add_argument("--characters", type=Path, metavar="DIR", help="folder of character packs (default: ./characters where it exists)")
    parser.add_argument("--no-watch", action="store_true", help="packs that come, change or go are not noticed before the next start")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on; others than loopback need --token (default: 127.0.0.1)")
    parser.add_argument("--port", type=_whole(0, 65_535), default=DEFAULT_PORT, help="0 takes any free one (default: %(default)s)")
    parser.add_argument("--token", help="what every client must know; at most 255 bytes")
    parser.add_argument(
        "--format", choices=FORMATS, default=AUTO, help="convert the model once and keep it (default: q8_0 for smollm2, as-is for a path)"
    )
    parser.add_argument("--slots", type=_whole(1, 256), default=8, help="NPCs that speak at the same time (default: %(default)s)")
    parser.add_argument("--ctx", type=_whole(256, 1 << 20), default=2048, help="tokens of context for each (default: %(default)s)")
    parser.add_argument("--threads", type=_whole(1, 512), help="threads of the engine (default: as many as there are idle cores)")
    parser.add_argument("--flash", action="store_true", help="flash attention; `personae doctor` measures whether it is faster here")
    parser.add_argument("--gpu-layers", type=_whole(0, 10_000), default=0, metavar="N", help="layers on a GPU; voices are then grouped")
    parser.add_argument("--max-adapters", type=_whole(1, 4096), default=256, metavar="N", help="in memory at once (default: %(default)s)")
    parser.add_argument(
        "--adapter-ram",
        type=_size,
        default="1G",
        metavar="SIZE",
        help="memory for adapters, as 512M or 2G; those used longest ago make room for others (default: %(default)s)",
    )
    parser.add_argument("--mode", choices=("auto", "mixed", "grouped"), default="auto", help="how voices are decoded (default: auto)")
    parser.add_argument("--parent", type=_whole(1, 2**31 - 1), metavar="PID", help="exit when this process is gone")
    parser.add_argument("--step-ms", type=_whole(1, 10_000), default=100, help="what one step should take at most (default: %(default)s)")
    parser.add_argument(
        "--kv-ram",
        type=_size,
        default="1G",
        metavar="SIZE",
        help="memory for what NPCs without a slot have computed, as 512M or 2G; 0 computes it again (default: %(default)s)",
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="keep every NPC there, through a crash too (default: NPCs end with it)")
    parser.add_argument("--summarise", action="store_true", help="what a context has no room for is summed up into the NPC's memories")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write down what the scheduler sees, for `personae replay`; the file holds what players typed and NPCs said",
    )
    parser.add_argument(
        "--heartbeat", type=_whole(10, 600_000), default=5_000, metavar="MS", help="clients speak this often (default: %(default)s)"
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="(default: info)")
    parser.add_argument("--fake-step-ms", type=float, default=0.0, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    config = service_config(args)
    from personae.service.app import Service  # here, so that bad arguments are told before anything heavy is imported

    log = log_to_stderr(args.log_level)
    try:
        service = Service(config, announce=announce)
        for name in ("SIGTERM", "SIGINT", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: service.stop())
        service.run()
    finally:
        logging.root.removeHandler(log)
        log.close()
    return 0


def service_config(args: argparse.Namespace) -> ServiceConfig:
    if args.token is not None and not 1 <= len(args.token.encode()) <= MAX_TOKEN_BYTES:
        raise AskedWrong("bad_arguments", f"A token has 1 to {MAX_TOKEN_BYTES} bytes.", "Choose another.")
    source = find_model(args.model)
    model = in_format(source, format_for(args.model, args.format))
    engine = EngineSettings(
        model=str(model),
        n_slots=args.slots,
        n_ctx=args.ctx,
        threads=args.threads or 0,
        mode=args.mode,
        n_gpu_layers=args.gpu_layers,
        max_adapters=args.max_adapters,
        flash_attention=args.flash,
        fake_step_ms=args.fake_step_ms,
    )
    return ServiceConfig(
        engine=engine,
        characters=_characters(args.characters),
        host=args.host,
        port=args.port,
        token=args.token,
        step_ms=float(args.step_ms),
        kv_ram=args.kv_ram,
        adapter_ram=args.adapter_ram,
        base_hashes=_source_hash(source) if model != source else frozenset(),
        watch=not args.no_watch,
        state=args.state,
        record=args.record,
        summarise=args.summarise,
        heartbeat_ms=args.heartbeat,
        parent=args.parent,
    )


def in_format(model: Path, format: str) -> Path:
    """The file to load. A conversion that fails is no reason not to serve: the model is then used as it is."""
    if format == AS_IS or str(model) == FAKE:
        return model
    try:
        from personae.engine.llama.formats import resolve

        return resolve(model, format, physical_cores())
    except ModuleNotFoundError:  # llama-cpp-python is missing, which the engine will say itself
        return model
    except PersonaeError as failure:
        print(f"personae: {failure.message} The model is used as it is.", file=sys.stderr)
        return model


def _source_hash(source: Path) -> frozenset[str]:
    """Of the file that the model was converted from; resolving the format has read it already."""
    from personae.engine.llama.model import file_hash

    return frozenset({file_hash(source)})


def announce(line: dict[str, Any]) -> None:
    """One JSON line for the program that started us. It may have closed its end: that is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _characters(given: Path | None) -> Path | None:
    if given is None:
        return DEFAULT_CHARACTERS.resolve() if DEFAULT_CHARACTERS.is_dir() else None
    if not given.is_dir():
        raise AskedWrong("bad_arguments", f"There is no folder {given}.", "--characters takes the folder that holds the packs.")
    return given.resolve()


def _size(text: str) -> int:
    """An argparse type: bytes, or with K, M or G times 1024, its square or its cube."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 512M or 2G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def _whole(least: int, most: int) -> Any:
    """An argparse type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
        return number

    return parse
