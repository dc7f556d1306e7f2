"""NPCs that speak on the bare engine: EngineLoop and a real backend in this process, ordered about directly. No service, no scheduler.

Prompts are random tokens: what they cost is what any prompt of that length costs. What the loop reports is read here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personae.cli.bench.house import SAMPLING
from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    BeginTurn,
    ClearSlot,
    DropTurn,
    FreeAdapter,
    LoadAdapter,
    PrefillChunk,
    Result,
    RowDone,
    RunStep,
    StepDone,
    TurnFaulted,
)
from personae.engine.factory import make_backend
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.errors import WorldFailed
from personae.packs.lora import adapter_key
from personae.types import AdapterKey, AdapterUse, Limits, ReplyRules, SamplingParams, Slot, Token, TurnId

_FOREVER = 1 << 30


class Choir:
    def __init__(self, settings: EngineSettings) -> None:
        self._chunk = settings.prefill_chunk
        self._backend = make_backend(settings)
        self._backend.warm_up()
        self.loop = EngineLoop(self._backend, self._hear, prefill_chunk=settings.prefill_chunk)
        self.speaking: dict[TurnId, Slot] = {}
        self.loaded: dict[AdapterKey, AdapterLoaded] = {}
        self._step = StepDone()
        self._last_turn = 0

    @property
    def card(self) -> Any:
        return self._backend.card

    # --- speaking -------------------------------------------------------------------------------------------------

    def begin(self, slot: int, prompt: Sequence[Token], adapter: AdapterKey | None, max_tokens: int = _FOREVER) -> None:
        """Open a turn and prefill its prompt, which draws the first token."""
        self._last_turn += 1
        turn = TurnId(self._last_turn)
        voice = (AdapterUse(adapter),) if adapter else ()
        sampling = SamplingParams(**SAMPLING, seed=self._last_turn)  # type: ignore[arg-type]
        self.loop.handle(BeginTurn(turn, Slot(slot), 0, voice, sampling, ReplyRules(), Limits(max_tokens)))
        self.speaking[turn] = Slot(slot)
        for at in range(0, len(prompt), self._chunk):
            part = tuple(prompt[at : at + self._chunk])
            self._run(RunStep(prefill=(PrefillChunk(turn, part, at + len(part) == len(prompt)),)))

    def step(self) -> StepDone:
        """One token of everybody who speaks."""
        return self._run(RunStep(decode=tuple(self.speaking)))

    def silence(self) -> None:
        for turn, slot in self.speaking.items():
            self.loop.handle(DropTurn(turn))
            self.loop.handle(ClearSlot(slot))
        self.speaking.clear()

    def _run(self, order: RunStep) -> StepDone:
        self.loop.handle(order)
        return self._step

    # --- adapters -------------------------------------------------------------------------------------------------

    def ask_for(self, path: Path) -> AdapterKey:
        """Order an adapter; the loop's own thread reads it, and `loop.settle` installs it between steps."""
        key = adapter_key(path)
        self.loop.handle(LoadAdapter(key, str(path)))
        return key

    def load(self, paths: Sequence[Path]) -> list[AdapterKey]:
        """Order, and wait for all of them."""
        keys = [self.ask_for(path) for path in paths]
        self.loop.settle(block=True)
        return keys

    def free(self, key: AdapterKey) -> None:
        self.loop.handle(FreeAdapter(key))
        self.loaded.pop(key, None)

    def close(self) -> None:
        self.loop.close()

    # --- what the loop says ---------------------------------------------------------------------------------------

    def _hear(self, result: Result) -> None:
        match result:
            case StepDone(rows, _, faults):
                self._step = result
                for row in rows:
                    self._note(row)
                for fault in faults:
                    raise _fault(fault)
            case AdapterLoaded(key):
                self.loaded[key] = result
            case AdapterRefused() | TurnFaulted():
                raise _fault(result)

    def _note(self, row: RowDone) -> None:
        if row.finish:
            self.speaking.pop(row.turn)


def _fault(result: AdapterRefused | TurnFaulted) -> WorldFailed:
    return WorldFailed("engine_failed", f"The engine refused: {result.message}", result.hint)


def timed(call: Any) -> float:
    """Milliseconds of a call."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3
