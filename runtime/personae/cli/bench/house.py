"""A service of its own for a benchmark: packs in a scratch folder, `personae serve` as a process, and a client in front of it.

It decides nothing that `serve` decides by itself, unless it is told to: what is measured is what players get.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.cli.private_service import PrivateService
from personae.engine.settings import EngineSettings
from personae_client import Client, Done, Npc, Stream

# Drawn from many words: replies then neither end early nor go in circles, so that every row is there to the end.
SAMPLING = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0}
EXIT_S = 10.0


def write_pack(folder: Path, name: str, persona: str, adapter: Path | None) -> None:
    """A character pack; the adapter is linked where the disk can, copied where it cannot."""
    pack = folder / name
    pack.mkdir(parents=True)
    lines = ["manifest = 1", f"name = {json.dumps(name)}", f"persona = {json.dumps(persona)}"]
    if adapter:
        lines += ["[adapter]", 'file = "adapter.gguf"']
        _link(adapter, pack / "adapter.gguf")
    (pack / "character.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


class House:
    """`personae serve` on a port of its own, with a client. Use it in a `with`: the process ends with it."""

    def __init__(self, settings: EngineSettings, characters: Path, *more: str) -> None:
        """Returns when the service is warm. Raises what kept it from starting. `more`: arguments for `serve`."""
        self._service = PrivateService([*_arguments(settings, characters), *more])
        try:
            self._service.wait_until_ready()
            self._service.wait_until_warm()
            self.client = Client(self._service.endpoint, name="bench", timeout=60.0)
        except BaseException:
            self._service.close()
            raise

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.client.close()
        finally:
            self._service.close()


def _arguments(settings: EngineSettings, characters: Path) -> list[str]:
    threads = ["--threads", str(settings.threads)] if settings.threads else []
    slots = ["--slots", str(settings.n_slots), "--ctx", str(settings.n_ctx)]
    return ["--model", settings.model, "--characters", str(characters), "--mode", settings.mode, *slots, *threads]


@dataclass(frozen=True, slots=True)
class Spoken:
    """What came of a round in which everybody was spoken to at once. Times as a client sees them."""

    seconds: float  # from the first word to the last reply's end
    first_s: tuple[float, ...]  # of each NPC: until its first word
    dones: tuple[Done, ...]

    @property
    def n_tokens(self) -> int:
        return sum(done.usage.reply for done in self.dones)

    @property
    def tokens_per_s(self) -> float:
        return self.n_tokens / self.seconds


def speak_to_all(client: Client, npcs: Sequence[Npc], text: str, max_tokens: int, seed: int = 1) -> Spoken:
    started = time.perf_counter()
    streams = [npc.say(text, max_tokens=max_tokens, sampling={**SAMPLING, "seed": seed + i}) for i, npc in enumerate(npcs)]
    first: dict[Stream, float] = {}
    for stream, _ in client.stream_all(streams):
        first.setdefault(stream, time.perf_counter() - started)
    dones = tuple(client.gather(*streams))
    ended = time.perf_counter() - started
    return Spoken(ended, tuple(first.get(stream, ended) for stream in streams), dones)
