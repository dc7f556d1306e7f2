"""How an engine is to be started: what the command line decided and the engine process is told. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    model: str  # path of a GGUF file, or "fake" for the deterministic backend
    n_slots: int = 8
    n_ctx: int = 2048  # tokens of one slot
    threads: int = 0  # 0: as many as the machine has cores that nobody else uses, measured while it runs
    mode: str = "auto"  # "auto": mixed, or grouped when the self-check fails; "mixed": fail instead; "grouped"
    n_gpu_layers: int = 0
    max_adapters: int = 256  # resident at once
    prefill_chunk: int = 256  # most tokens of one prefill decode
    flash_attention: bool = False  # `personae doctor` measures whether it is faster here; the answer differs by CPU and context
    fake_step_ms: float = 0.0  # what a step of the fake backend takes
    fake_can_cut: bool = True  # False: its memory forgets a sequence wholly or not at all, as recurrent models do
