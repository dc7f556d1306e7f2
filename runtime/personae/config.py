"""How a service is to run: what the command line or a host program decided. Data only.

It knows no default that must be measured or looked up (the model's path, the number of cores): whoever builds it decides those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from personae.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    engine: EngineSettings
    characters: Path | None = None  # folder of packs; None: no characters, for tests of the wire alone
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port, announced in the ready line
    token: str | None = None  # PLAIN password that every client must bring; needed beyond the loopback
    step_ms: float = 100.0  # what a step should take at the most; prefill gets what the rows leave of it
    kv_ram: int = 1 << 30  # bytes of the engine's host memory for the KV of NPCs without a slot
    adapter_ram: int = 1 << 30  # bytes of adapters in the engine's memory; those used longest ago make room
    base_hashes: frozenset[str] = frozenset()  # SHA-256, hex, of files whose weights the model has in another format: packs may name them
    watch: bool = True  # packs that come, change or go in `characters` do so in the running service
    state: Path | None = None  # folder that holds every NPC at every moment; None: NPCs are gone with the service
    record: Path | None = None  # file for what the scheduler saw, to be replayed; None: not recorded
    summarise: bool = False  # what an NPC's context has no room for any more is summed up by the model into its memories
    heartbeat_ms: int = 5_000  # a client silent for three of these loses its open turns
    drain_ms: int = 3_000  # how long open turns may still speak after a shutdown is asked
    max_clients: int = 64
    max_npcs: int = 4_096
    max_queue: int = 256  # turns that may wait for a slot before a `say` is answered `busy`
    max_history_lines: int = 400  # of one NPC; the oldest go first
    parent: int | None = None  # pid of the game: the service ends when it is gone
    seed: int | None = None  # makes the seeds of turns repeatable; None: drawn by chance
    engine_restarts: int = 5  # quick deaths in a row before the engine is given up
    restart_backoff_ms: tuple[int, int] = (200, 5_000)  # first, longest
    environment: dict[str, str] = field(default_factory=dict)  # laid over the engine process's environment
