"""A stage for the engine loop: the fake backend, the loop around it, and what it reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from personae.engine.batch import BeginTurn, ExtendSlot, Order, PrefillChunk, Result, RunStep, StepDone
from personae.engine.fake import FakeBackend, FakeSampler, FakeVocabulary
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.types import AdapterKey, AdapterUse, Limits, ReplyRules, SamplingParams, Slot, TurnId, Voice

SETTINGS = EngineSettings(model="fake", n_slots=4, n_ctx=512)
ADAPTER, OTHER_ADAPTER = AdapterKey("aaaaaa" + "0" * 58), AdapterKey("bbbbbb" + "1" * 58)
VOICE, OTHER_VOICE = (AdapterUse(ADAPTER),), (AdapterUse(OTHER_ADAPTER),)
NO_RULES = ReplyRules()
PLAIN = SamplingParams()


class WatchedBackend(FakeBackend):
    """The fake, with its calls in order and its samplers to look at."""

    def __init__(self, settings: EngineSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.decodes: list[list[tuple[int, int]]] = []
        self.together: list[list[tuple[int, Any]]] = []  # prefilled in one decode
        self.samplers: list[FakeSampler] = []

    def decode(self, rows: Any) -> Any:
        self.decodes.append(list(rows))
        return super().decode(rows)

    def prefill_alike(self, chunks: Any, *, wants_logits: bool) -> None:
        super().prefill_alike(chunks, wants_logits=wants_logits)
        self.together.append(list(chunks))

    def new_sampler(self, params: SamplingParams) -> Any:
        sampler = super().new_sampler(params)
        self.samplers.append(sampler)  # type: ignore[arg-type]
        return sampler


@dataclass
class Stage:
    backend: WatchedBackend
    results: list[Result] = field(default_factory=list)
    n_wakes: int = 0

    def __post_init__(self) -> None:
        self.loop = EngineLoop(self.backend, self.results.append, self._wake)

    def _wake(self) -> None:
        self.n_wakes += 1

    def do(self, *orders: Order) -> None:
        for order in orders:
            self.loop.handle(order)

    def step(self, decode: tuple[int, ...] = (), prefill: tuple[PrefillChunk, ...] = (), extend: tuple[ExtendSlot, ...] = ()) -> StepDone:
        self.do(RunStep(tuple(map(TurnId, decode)), prefill, extend))
        done = self.results.pop()
        assert isinstance(done, StepDone)
        return done

    def begin(self, turn: int, line: str, *, slot: int | None = None, voice: Voice = (), **more: Any) -> StepDone:
        """Begin a turn in an empty slot and prefill all of its prompt; the step that drew its first token."""
        self.do(begin_turn(turn, slot=turn if slot is None else slot, voice=voice, **more))
        return self.step(prefill=(chunk(turn, line),))

    def install(self, key: AdapterKey, path: Any) -> None:
        """Make an adapter resident, without a thread."""
        path.write_bytes(b"any")
        self.backend.install_adapter(key, self.backend.prepare_adapter(key, str(path)))

    def talk(self, turn: int, first: StepDone) -> tuple[str, Any]:
        """Step until the turn ends: (its text, why it ended)."""
        done, text = first, ""
        for _ in range(5000):
            (row,) = done.rows
            text += "".join(piece.text for piece in row.pieces)
            if row.finish:
                return text, row.finish
            done = self.step((turn,))
        raise AssertionError("the turn does not end")


def begin_turn(
    turn: int,
    *,
    slot: int,
    voice: Voice = (),
    keep: int = 0,
    history: tuple[int, ...] = (),
    max_tokens: int = 160,
    rules: ReplyRules = NO_RULES,
    sampling: SamplingParams = PLAIN,
) -> BeginTurn:
    return BeginTurn(TurnId(turn), Slot(slot), keep, voice, sampling, rules, Limits(max_tokens=max_tokens), history)


def prompt(line: str) -> tuple[int, ...]:
    return tuple(FakeVocabulary().tokenize(f"<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n", special=True))


def chunk(turn: int, line: str, last: bool = True) -> PrefillChunk:
    return PrefillChunk(TurnId(turn), prompt(line), last)
