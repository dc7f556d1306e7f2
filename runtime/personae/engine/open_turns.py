"""The open turns: which slot each is in, what its sampler has heard, how far its KV reaches. Knows no step and no slot's content.

A turn's sequence is its prompt and what it drew. The last token drawn is not in KV until the next decode feeds it, so a turn that speaks
has KV for all positions but that one. What is in KV may shrink (a pause, a slot lost) and be prefilled again; what the sampler has heard
never does, or penalties would count a token twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from personae.engine.backend import Sampler
from personae.engine.batch import PrefillChunk
from personae.engine.text import ReplyText
from personae.errors import OurBug
from personae.types import AdapterKey, SamplingParams, Slot, Token, TurnId, Voice


@dataclass(slots=True)
class OpenTurn:
    turn: TurnId
    slot: Slot | None  # None: paused
    voice: Voice
    sampler: Sampler
    text: ReplyText
    look_back: int  # prompt tokens the penalties want to see; -1: all
    max_tokens: int
    most_kv: int  # tokens its slot may hold
    n_kv: int = 0  # tokens in its slot
    n_heard: int = 0  # positions whose tokens the sampler knows, the last one drawn among them
    n_drawn: int = 0
    last_token: Token = -1  # drawn and not yet in KV

    @property
    def place(self) -> Slot:
        """The slot of a turn that cannot be paused here."""
        if self.slot is None:
            raise OurBug("internal", f"A step names turn {self.turn}, which is paused.")
        return self.slot

    @property
    def can_speak(self) -> bool:
        """Whether all of its sequence but the token drawn last is in KV."""
        return self.n_drawn > 0 and self.n_kv == self.n_heard - 1

    @property
    def n_missing(self) -> int:
        """Of a turn that has drawn: tokens of its sequence that must be in KV again before it can speak."""
        return self.n_heard - 1 - self.n_kv

    def can_take(self, chunk: PrefillChunk) -> bool:
        """What a turn has said is prefilled again without drawing; past it there is nothing to prefill."""
        return self.n_drawn == 0 or (not chunk.last and len(chunk.tokens) <= self.n_missing)

    def hear(self, tokens: Sequence[Token], at: int) -> None:
        """Let the sampler know the tokens at these positions, as far as it looks back and does not know them yet."""
        fresh = tokens[max(0, self.n_heard - at) :]
        for token in fresh if self.look_back < 0 else fresh[max(0, len(fresh) - self.look_back) :]:
            self.sampler.accept(token)
        self.n_heard = max(self.n_heard, at + len(tokens))

    def drew(self, token: Token) -> None:
        """The sampler accepted it when it drew it."""
        self.last_token = token
        self.n_drawn += 1
        self.n_heard = self.n_kv + 1


class OpenTurns:
    def __init__(self) -> None:
        self._turns: dict[TurnId, OpenTurn] = {}

    def __iter__(self) -> Iterator[OpenTurn]:
        return iter(list(self._turns.values()))

    def get(self, turn: TurnId) -> OpenTurn | None:
        return self._turns.get(turn)

    def add(self, turn: OpenTurn) -> None:
        self._turns[turn.turn] = turn

    def end(self, turn: TurnId) -> None:
        """Unknown turns are harmless."""
        ended = self._turns.pop(turn, None)
        if ended:
            ended.sampler.close()

    def in_slot(self, slot: Slot) -> OpenTurn | None:
        return next((turn for turn in self._turns.values() if turn.slot == slot), None)

    def use_adapter(self, key: AdapterKey) -> bool:
        """Whether a turn in a slot speaks with it. A paused one needs it only when it is resumed."""
        return any(use.key == key for turn in self._turns.values() if turn.slot is not None for use in turn.voice)


def look_back(sampling: SamplingParams) -> int:
    """How many tokens before the next one the penalties of a turn look at; -1: all."""
    windows = [0]
    if sampling.repeat_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty:
        windows.append(sampling.repeat_last_n)
    if sampling.dry_multiplier:
        windows.append(sampling.dry_last_n)
    return -1 if min(windows) < 0 else max(windows)
