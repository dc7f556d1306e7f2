"""`personae doctor`: looks for what keeps the service from running well, and says it in plain words with what to do about it.

It decides what needs attention; it repairs nothing. Whatever is native is asked in a child process, so that a build that dies of its own
code is a finding and not the end of the doctor. Exit code 0: all is well. 1: something needs attention.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import queue
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from personae import __version__
from personae.cli import cpu, ports
from personae.cli.models import AUTO, FAKE, find_model, format_for
from personae.cli.serve import DEFAULT_CHARACTERS, DEFAULT_PORT
from personae.engine.batch import EngineReady, Result
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae.errors import PersonaeError
from personae.packs.loader import load_cast
from personae.service.engine_host import EngineDied, EngineProcess, engine_environment
from personae.types import MixMode, ModelCard

START_S = 120.0
GRACE_S = 5.0
TURNS = 3  # of the measurement: about half a minute for a small model on two cores
WORTH_S = 0.10  # a setup must be faster by this share before changing to it is advised
_ASK_BUILD = "from personae.engine.llama import api; api.start(); print(api.TESTED_VERSION); print(api.system_info())"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` only where something is to be done."""

    about: str
    text: str
    is_well: bool = True
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="smollm2 or the path of a GGUF file (default: smollm2)")
    parser.add_argument("--characters", type=Path, metavar="DIR", help="folder of character packs (default: ./characters where it exists)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="measure nothing")


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in examine(args):
        findings.append(finding)
        if not args.json:
            print(_shown(finding), flush=True)
    is_well = all(finding.is_well for finding in findings)
    if args.json:
        print(json.dumps({"is_well": is_well, "findings": [asdict(finding) for finding in findings]}))
    else:
        print("All is well." if is_well else "Something needs attention: see the lines marked with !.")
    return 0 if is_well else 1


def _shown(finding: Finding) -> str:
    mark = " " if finding.is_well else "!"
    remedy = f"\n  {'':<11}-> {finding.remedy}" if finding.remedy else ""
    return f"{mark} {finding.about:<11}{finding.text}{remedy}"


def examine(args: argparse.Namespace) -> Iterator[Finding]:
    """Everything, the quick things first."""
    yield Finding("versions", f"personae {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    build = ask_build()
    yield from build_findings(build, cpu.cpu_flags())
    yield mixer_finding()
    yield Finding("cores", f"{physical_cores()} physical; the engine uses those that are idle, unless told otherwise (--threads)")
    yield waiting_finding()
    yield port_finding(args.port)
    yield from pack_findings(args.characters or DEFAULT_CHARACTERS, is_asked_for=args.characters is not None)
    yield from _of_model(args, can_measure=build.is_there and not args.quick)


# --- the build --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Build:
    """What is installed of llama.cpp. `description` is empty when it could not even be asked; `fault` says why."""

    version: str = ""  # "": llama-cpp-python is not installed
    tested: str = ""
    description: str = ""
    fault: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.description)


def ask_build() -> Build:
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return Build()
    asked = subprocess.run([sys.executable, "-P", "-c", _ASK_BUILD], capture_output=True, encoding="utf-8", errors="replace", check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines()
        return Build(version, fault=said[-1] if said else f"it ended with code {asked.returncode}")
    tested, description = asked.stdout.strip().splitlines()[-2:]
    return Build(version, tested, description)


def build_findings(build: Build, flags: frozenset[str]) -> Iterator[Finding]:
    if not build.version:
        yield Finding("llama.cpp", "llama-cpp-python is not installed.", False, "pip install 'personae[engine]'")
        return
    rebuild = cpu.rebuild_command(flags, build.tested or build.version)
    if not build.is_there:
        yield Finding("llama.cpp", f"llama-cpp-python {build.version} cannot be loaded: {build.fault}.", False, rebuild)
        return
    yield _version_finding(build)
    yield _features_finding(build, flags, rebuild)


def _version_finding(build: Build) -> Finding:
    if build.version == build.tested:
        return Finding("llama.cpp", f"llama-cpp-python {build.version}, the tested version")
    text = f"llama-cpp-python {build.version}; the mixer was tested with {build.tested} alone. Its self-check decides whether it is used."
    return Finding("llama.cpp", text, False, f"pip install llama-cpp-python=={build.tested}")


def _features_finding(build: Build, flags: frozenset[str], rebuild: str) -> Finding:
    features = cpu.build_features(build.description)
    if "AMX_INT8" in features:
        text = "The build has AMX code, which dies at the first decode; the engine goes around it, and loses the fastest kernels."
        return Finding("build", text, False, rebuild)
    lacking = cpu.missing(flags, features)
    if lacking:
        return Finding("build", f"This CPU has {', '.join(lacking)}, and the build does not use it.", False, rebuild)
    return Finding("build", build.description)


def mixer_finding() -> Finding:
    try:
        kernels = importlib.import_module("personae.engine._mixer").use_kernels(None)
    except ImportError as error:
        text = f"The mixer is not compiled ({error}): voices are decoded one after another."
        return Finding("mixer", text, False, "Install a C compiler, then: PERSONAE_REQUIRE_MIXER=1 pip install --force-reinstall personae")
    return Finding("mixer", f"compiled, kernels: {kernels}")


# --- the machine ------------------------------------------------------------------------------------------------------


def waiting_finding() -> Finding:
    """As the engine's process will have it."""
    environment = engine_environment(0, os.environ)
    policy, spin = environment.get("OMP_WAIT_POLICY"), environment.get("GOMP_SPINCOUNT")
    text = f"threads that wait: {f'OMP_WAIT_POLICY={policy}' if policy else f'spin {spin} times, then sleep'}"
    if (policy or "").upper() == "ACTIVE":
        remedy = "Unset OMP_WAIT_POLICY: threads that spin for ever take the game's cores."
        return Finding("waiting", f"{text}, as your environment says", False, remedy)
    return Finding("waiting", text)


def port_finding(port: int) -> Finding:
    if ports.is_free(port):
        return Finding("port", f"{port} is free")
    who = ports.holder(port)
    model = _service_at(port)
    if model:
        return Finding("port", f"{port}: a Personae service with {model} is running{f', {who}' if who else ''}")
    return Finding("port", f"{port} is taken{f' by {who}' if who else ''}.", False, "End that program, or serve elsewhere: --port 0")


def _service_at(port: int) -> str:
    """The model of the Personae service there; "" when it is none."""
    try:
        from personae_client import Client, PersonaeError

        with Client(f"tcp://127.0.0.1:{port}", name="doctor", timeout=1.0) as client:
            return client.welcome.model.name
    except (ImportError, PersonaeError):
        return ""


# --- packs ------------------------------------------------------------------------------------------------------------


def pack_findings(folder: Path, *, is_asked_for: bool) -> Iterator[Finding]:
    if not folder.is_dir():
        remedy = "--characters takes the folder that holds the packs." if is_asked_for else ""
        yield Finding("packs", f"There is no folder {folder}.", not is_asked_for, remedy)
        return
    try:
        cast = load_cast(folder)
    except PersonaeError as error:
        yield Finding("packs", error.message, False, error.hint)
        return
    yield Finding("packs", f"{len(cast.characters)} in {folder}: {', '.join(cast.characters) or 'none'}")
    for problem in cast.problems:
        place = f"{problem.pack}/{problem.file}" if problem.file else problem.pack
        what = f"{problem.field}: {problem.problem}" if problem.field else problem.problem
        yield Finding("packs", f"{place}: {what}", not problem.is_error, problem.remedy)


# --- the model --------------------------------------------------------------------------------------------------------


def _of_model(args: argparse.Namespace, *, can_measure: bool) -> Iterator[Finding]:
    try:
        path = find_model(args.model)
    except PersonaeError as error:
        yield Finding("model", error.message, False, error.hint)
        return
    settings = EngineSettings(model=str(path))
    started = start_engine(settings)
    if isinstance(started, EngineDied):
        yield Finding("engine", f"It does not start with {path.name}: {started.reason}.", False, started.hint)
        return
    yield from engine_findings(started)
    if can_measure and path != Path(FAKE):
        yield from _measured(path, settings, format_for(args.model, AUTO))


def start_engine(settings: EngineSettings) -> ModelCard | EngineDied:
    """Start an engine as the service would, hear what it says of itself, and end it."""
    posted: queue.SimpleQueue[Result | EngineDied] = queue.SimpleQueue()
    engine = EngineProcess(settings, {}, posted.put)
    try:
        first = posted.get(timeout=START_S)
    except queue.Empty:
        return EngineDied(f"it was not ready within {START_S:.0f} s")
    finally:
        engine.close(GRACE_S)
    if isinstance(first, EngineReady):
        return first.card
    return first if isinstance(first, EngineDied) else EngineDied(f"it said {type(first).__name__} first")


def engine_findings(card: ModelCard) -> Iterator[Finding]:
    about = card.details.get("description") or card.architecture
    yield Finding("model", f"{card.name} ({about}), {card.n_slots} slots of {card.n_ctx} tokens")
    if card.mode is MixMode.MIXED:
        yield Finding("engine", f"mixed mode: all voices in one decode. Self-check: {card.details.get('self_check', 'not needed')}")
    else:
        remedy = "See bindings/PROTOCOL.md for what grouped mode means; replies are the same, and later."
        yield Finding("engine", f"grouped mode, one decode for each voice: {card.mode_reason}.", False, remedy)


def _measured(path: Path, settings: EngineSettings, format: str) -> Iterator[Finding]:
    """`format`: what `serve` runs. Imported here: it loads llama.cpp into this process, and wants the engine's environment before."""
    os.environ.update(engine_environment(physical_cores(), os.environ))
    from personae.cli.bench import speeds
    from personae.engine.llama import formats

    now = speeds.Setup(format, settings.flash_attention, physical_cores())
    try:
        models = {name: formats.resolve(path, name, physical_cores()) for name in formats.FORMATS}
        measured = speeds.measure(models, sorted({1, now.threads}), (False, True), TURNS)
    except PersonaeError as error:
        yield Finding("speed", f"Not measured: {error.message}", False, error.hint)
        return
    yield speed_finding({setup: speed.report()[f"step_{speeds.ROWS}_ms"] for setup, speed in measured.items()}, now)


def speed_finding(step_ms: dict[Any, float], now: Any) -> Finding:
    """`step_ms`: a step of eight voices, by bench.speeds.Setup. Advice keeps the threads of now: the load decides on them."""
    best = min(step_ms, key=lambda setup: step_ms[setup])
    best_alike = min((setup for setup in step_ms if setup.threads == now.threads), key=lambda setup: step_ms[setup])
    text = f"eight voices a step: {step_ms[now]:.0f} ms now ({_setup(now)}); fastest here {step_ms[best]:.0f} ms ({_setup(best)})"
    if step_ms[best_alike] > step_ms[now] * (1 - WORTH_S):
        return Finding("speed", text)
    remedy = (
        f"{step_ms[best_alike]:.0f} ms on as many threads with {_setup(best_alike)}; `personae bench formats` says what it does to voices"
    )
    return Finding("speed", text, remedy=remedy)


def _setup(setup: Any) -> str:
    flash = "with" if setup.flash else "without"
    return f"--format {setup.format}, {setup.threads} thread{'s' if setup.threads > 1 else ''}, {flash} flash attention"
