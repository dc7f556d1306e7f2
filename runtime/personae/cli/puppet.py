"""An engine for replays: the real loop over the fake backend, saying what was drawn when the record was made.

It decides when nothing is delivered: results wait here until the replay asks for one. It knows no scheduler and reads no file: adapters are
believed to be as they were, and KV files are neither written nor read.

Tokens are those of the model that was recorded; the fake backend, which knows bytes, is given each modulo 256. All that it checks of its
callers (who may decode where, under which voice, in which order) it checks as always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from personae.engine.backend import DecodeReport, PreparedAdapter, Sampler
from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    BeginTurn,
    KvRead,
    KvWritten,
    Order,
    ReadKv,
    Result,
    StepDone,
    TurnFaulted,
    WriteKv,
)
from personae.engine.fake import FakeAdapter, FakeBackend, FakeSampler, FakeVocabulary
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.errors import AskedWrong
from personae.scheduler.events import AdapterReported, EngineStarted, Event, FaultReported, StepReported
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, FinishReason, MixMode, SamplingParams, Slot, Token, TurnId

ENDS = -1  # drawn where the script of a turn is over: an end of generation
NOT_IN_A_REPLAY = "a replay touches no file"


@dataclass(slots=True)
class Script:
    """What came of one turn in the record."""

    drawn: list[Token] = field(default_factory=list)
    fault: TurnFaulted | None = None  # after them
    cannot_begin: TurnFaulted | None = None


@dataclass(slots=True)
class Scripts:
    """All that an engine cannot know by itself, gathered from a record."""

    turns: dict[TurnId, Script] = field(default_factory=dict)
    loads: dict[AdapterKey, deque[AdapterRefused | None]] = field(default_factory=dict)  # in order; None: it was loaded
    sizes: dict[AdapterKey, int] = field(default_factory=dict)  # bytes of adapters that were ever loaded
    ends: set[Token] = field(default_factory=lambda: {ENDS})  # the model's end-of-generation tokens, as far as any was drawn

    @classmethod
    def of(cls, events: Iterable[Event]) -> Scripts:
        scripts = cls()
        for event in events:
            match event:
                case StepReported(_, step):
                    scripts._note_step(step)
                case FaultReported(_, fault):
                    scripts._of_turn(fault.turn).cannot_begin = fault
                case AdapterReported(_, result):
                    refused = result if isinstance(result, AdapterRefused) else None
                    scripts.loads.setdefault(result.key, deque()).append(refused)
                    if isinstance(result, AdapterLoaded):
                        scripts.sizes[result.key] = result.bytes_resident
        return scripts

    def _note_step(self, step: StepDone) -> None:
        for row in step.rows:
            self._of_turn(row.turn).drawn.append(row.token)
            if row.finish is FinishReason.END:
                self.ends.add(row.token)
        for fault in step.faults:
            self._of_turn(fault.turn).fault = fault

    def _of_turn(self, turn: TurnId) -> Script:
        return self.turns.setdefault(turn, Script())


class _Vocabulary(FakeVocabulary):
    def __init__(self, ends: set[Token]) -> None:
        self._ends = ends

    def piece(self, token: Token) -> bytes:
        return b"."

    def is_end(self, token: Token) -> bool:
        return token in self._ends


class _Sampler(FakeSampler):
    """Draws what was drawn."""

    def __init__(self, params: SamplingParams, script: Script) -> None:
        super().__init__(params)
        self._script = script
        self._n_drawn = 0

    def draw(self) -> Token:
        script, at = self._script, self._n_drawn
        if at >= len(script.drawn) and script.fault:
            raise AskedWrong(script.fault.code, script.fault.message, script.fault.hint)
        self._n_drawn += 1
        return script.drawn[at] if at < len(script.drawn) else ENDS


class _Backend(FakeBackend):
    def __init__(self, settings: EngineSettings, scripts: Scripts) -> None:
        super().__init__(settings)
        self.vocabulary = _Vocabulary(scripts.ends)
        self.beginning = TurnId(0)  # the turn whose sampler is made next
        self._scripts = scripts

    def prepare_adapter(self, key: AdapterKey, path: str) -> PreparedAdapter:
        outcomes = self._scripts.loads.get(key)
        refused = outcomes.popleft() if outcomes else None
        if refused:
            raise AskedWrong(refused.code, refused.message, refused.hint)
        return FakeAdapter(self._scripts.sizes.get(key, 0))

    def prefill(self, slot: Slot, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        super().prefill(slot, [token % 256 for token in tokens], wants_logits=wants_logits)

    def decode(self, rows: Sequence[tuple[Slot, Token]]) -> DecodeReport:
        return super().decode([(slot, token % 256) for slot, token in rows])

    def new_sampler(self, params: SamplingParams) -> Sampler:
        script = self._scripts.turns.get(self.beginning, Script())
        if script.cannot_begin:
            raise AskedWrong(script.cannot_begin.code, script.cannot_begin.message, script.cannot_begin.hint)
        return _Sampler(params, script)

    def sample(self, slot: Slot, sampler: Sampler) -> Token:
        assert isinstance(sampler, _Sampler)
        token = sampler.draw()
        sampler.accept(token)
        return token


class Puppet:
    """One life of an engine."""

    def __init__(self, started: EngineStarted, config: SchedulerConfig, scripts: Scripts) -> None:
        settings = EngineSettings(
            model="fake",
            n_slots=started.n_slots,
            n_ctx=started.n_ctx,
            mode="grouped" if started.mode is MixMode.GROUPED else "auto",
            max_adapters=max(1, config.max_adapters),
            prefill_chunk=config.prefill_chunk,
        )
        self._backend = _Backend(settings, scripts)
        self._results: deque[Result] = deque()
        self._loop = EngineLoop(self._backend, self._results.append, prefill_chunk=config.prefill_chunk)

    def obey(self, order: Order) -> None:
        match order:
            case BeginTurn(turn):
                self._backend.beginning = turn
                self._loop.handle(order)
            case WriteKv(path):
                self._results.append(KvWritten(path, 0, 0, NOT_IN_A_REPLAY))
            case ReadKv(path, stash):
                self._results.append(KvRead(path, stash, reason=NOT_IN_A_REPLAY))
            case _:
                self._loop.handle(order)

    def take(self, like: Result) -> list[Result]:
        """What has come, up to the first of the kind of `like`; [] when there is none of it."""
        if isinstance(like, AdapterLoaded | AdapterRefused):
            self._loop.settle(block=True)
        taken: list[Result] = []
        for result in self._results:
            taken.append(result)
            if _are_alike(result, like):
                break
        else:
            return []
        for _ in taken:
            self._results.popleft()
        if isinstance(like, StepDone) and isinstance(taken[-1], StepDone):
            taken[-1] = _timed_as(taken[-1], like)
        return taken

    def take_any(self) -> list[Result]:
        """All that has come, whatever it is."""
        self._loop.settle(block=True)
        taken = list(self._results)
        self._results.clear()
        return taken

    def close(self) -> None:
        self._loop.close()


def _are_alike(one: Result, other: Result) -> bool:
    are_adapters = isinstance(one, AdapterLoaded | AdapterRefused) and isinstance(other, AdapterLoaded | AdapterRefused)
    return are_adapters or type(one) is type(other)


def _timed_as(step: StepDone, recorded: StepDone) -> StepDone:
    """What the scheduler measures must not depend on how fast a replay runs."""
    return replace(
        step,
        decode_ms=recorded.decode_ms,
        prefill_ms=recorded.prefill_ms,
        extend_ms=recorded.extend_ms,
        moved_ms=recorded.moved_ms,
        threads=recorded.threads,
    )
