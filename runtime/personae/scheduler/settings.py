"""How the scheduler is to decide: what the command line may change. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    step_ms: float = 100.0  # target of one step: a new line of the player is picked up within it
    pace_ms: float = 200.0  # while somebody waits for a first word, a voice that is heard goes on this often: 5 tokens/s, as people read
    min_chunk: int = 16  # fewer prompt tokens are not prefilled beside rows, unless they are all that is left: each chunk is a decode
    prefill_chunk: int = 256  # most tokens of one prefill decode; the engine's own setting of that name is the same number
    max_adapters: int = 256  # resident at once; 0: only turns without adapter are served
    kv_ram: int = 1 << 30  # bytes of host memory for the KV of NPCs without a slot; 0: none, they are prefilled again
    adapter_ram: int = 1 << 30  # bytes of resident adapters; one voice that is larger still speaks, alone
    max_waiting: int = 256  # turns without a slot; past it `busy`
    ageing_ms: float = 5000.0  # a waiting turn rises one priority class each time this has passed
    players_in_a_row: int = 3  # players that may begin while a turn that has risen to their class waits; then that turn goes first
    restart_hint_ms: int = 3000  # what a client is told to wait after the engine died: a restart and the load of a small model

    def __post_init__(self) -> None:
        assert self.min_chunk >= 1, "min_chunk must be at least 1"
        assert self.prefill_chunk >= 1, "prefill_chunk must be at least 1"
        assert self.max_adapters >= 0, "max_adapters must not be negative"
        assert self.adapter_ram >= 0, "adapter_ram must not be negative"
        assert self.max_waiting >= 1, "max_waiting must be at least 1"
        assert self.players_in_a_row >= 1, "players_in_a_row must be at least 1"
        assert self.ageing_ms > 0, "ageing_ms must be positive"
        assert self.step_ms > 0, "step_ms must be positive"
        assert self.pace_ms >= 0, "pace_ms must not be negative"
