"""Decides what becomes of a `say`: which prompt, adapter and settings its turn gets, and what its client hears of it.

It knows no socket and no scheduler: it makes the scheduler's event of a request, and the client's messages of the scheduler's answers.

Rules that always hold
- A turn is in the book from the moment it is asked until its one `done` or `error`; the NPC and the session point at it just as long.
- Nothing of the request is kept but what the end needs. A refusal leaves book, NPC and session as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong, PersonaeError
from personae.packs.character import Character
from personae.prompt import Line, Prompt, PromptBuilder
from personae.scheduler.actions import EndTurn, FailTurn, Speak
from personae.scheduler.events import TurnAsked
from personae.service.npcs import Npc
from personae.service.roster import persona_of
from personae.service.sessions import Session
from personae.types import AdapterUse, Limits, Priority, ReplyRules, SamplingParams, TurnId
from personae.wire import replies
from personae.wire.messages import Say

MAX_SEED = 2**32 - 2  # 2^32 - 1 asks llama.cpp for a random one


@dataclass(slots=True, eq=False)
class OpenTurn:
    """What the end of a turn needs to know of its beginning."""

    turn: TurnId
    request: int  # the id of the say
    session: Session
    npc: Npc
    heard: Line
    adapter: str | None
    seed: int
    receipt: dict[str, Any]
    is_muted: bool = False  # its connection is gone, and the session has another
    pieces: list[tuple[str, str]] = field(default_factory=list)  # text, kind: sent so far

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def speech(self) -> str:
        """What is to be voiced: narration left out."""
        return "".join(text for text, kind in self.pieces if kind == "speech").strip()


class Turns:
    """The book of open turns."""

    def __init__(self, vocabulary: Vocabulary, prompts: PromptBuilder, *, n_ctx: int, seed: int | None) -> None:
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._most_reserved = n_ctx // 2  # a longer reply is not promised its room: it ends where the context does
        self._random = random.Random(seed)
        self._open: dict[TurnId, OpenTurn] = {}
        self._asked = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTurn]:
        return iter(tuple(self._open.values()))

    def ask(self, say: Say, npc: Npc, character: Character, session: Session, at_ms: float) -> TurnAsked:
        """Open a turn. AskedWrong when the NPC is busy or the prompt cannot be made."""
        if npc.turn is not None:
            raise AskedWrong("npc_busy", f"{npc.id!r} is still speaking.", "Cancel that turn, or wait for its end.", retry_after_ms=500)
        heard = Line(say.speaker or npc.player, say.text, False)
        limits, sampling = limits_of(say, character), self._sampling(say, character)
        prompt = self._prompt(npc, character, heard, limits)
        use = AdapterUse(character.adapter.key, character.adapter.scale) if character.adapter else None
        self._asked += 1
        turn = TurnId(self._asked)
        self._open[turn] = OpenTurn(
            turn, say.id, session, npc, heard, use.key if use else None, sampling.seed or 0, prompt.receipt.to_wire()
        )
        session.open[say.id] = turn
        session.last_say = max(session.last_say, say.id)
        npc.turn, npc.adapter, npc.name = turn, use.key if use else None, character.name
        return TurnAsked(
            at_ms,
            turn,
            npc.id,
            prompt.tokens,
            use,
            str(character.adapter.path) if character.adapter else "",
            sampling,
            ReplyRules((*self._prompts.stops, *character.stop, *(say.stop or ())), others_of(npc, heard)),
            limits,
            say.priority or Priority.PLAYER,
            prompt.tail,
        )

    def speak(self, action: Speak) -> tuple[Session, list[dict[str, Any]]] | None:
        """The deltas of a turn, None when it is not open."""
        turn = self._open.get(action.turn)
        if turn is None or turn.is_muted:
            return None
        turn.pieces += ((piece.text, piece.kind) for piece in action.pieces)
        return turn.session, [replies.delta(turn.request, turn.npc.id, piece.text, piece.kind) for piece in action.pieces if piece.text]

    def end(self, action: EndTurn) -> tuple[Session, dict[str, Any]] | None:
        """The turn ended as turns do: history is written, and its `done` is due."""
        turn = self._close(action.turn)
        if turn is None:
            return None
        turn.npc.commit(turn.heard, turn.text, action.finish, action.reply, self._vocabulary)
        if turn.is_muted:
            return None
        usage = action.usage
        return turn.session, replies.done(
            turn.request,
            npc=turn.npc.id,
            text=turn.text,
            speech=turn.speech,
            finish=action.finish.value,
            adapter=turn.adapter,
            seed=turn.seed,
            usage={"prompt": usage.prompt, "reused": usage.reused, "prefilled": usage.prefilled, "reply": usage.reply},
            timing={"queued_ms": action.queued_ms, "ttft_ms": action.ttft_ms, "total_ms": action.total_ms},
            receipt=turn.receipt,
        )

    def fail(self, action: FailTurn) -> tuple[Session, dict[str, Any]] | None:
        """The turn could not be done: history stays as it was."""
        turn = self._close(action.turn)
        if turn is None or turn.is_muted:
            return None
        failure = PersonaeError(action.code, action.message, action.hint, retry_after_ms=action.retry_after_ms)
        return turn.session, replies.error(turn.request, failure)

    def mute(self, session: Session) -> list[TurnId]:
        """The session's open turns, which from now on are nobody's: its ids are free for the new connection."""
        muted = list(session.open.values())
        session.open.clear()
        for turn in muted:
            self._open[turn].is_muted = True
        return muted

    def _close(self, turn_id: TurnId) -> OpenTurn | None:
        turn = self._open.pop(turn_id, None)
        if turn is not None:
            turn.npc.turn = None
            if not turn.is_muted:
                del turn.session.open[turn.request]
        return turn

    def _prompt(self, npc: Npc, character: Character, heard: Line, limits: Limits) -> Prompt:
        reserve = min(limits.max_tokens, self._most_reserved)
        return self._prompts.build(persona_of(character), [*npc.lines, heard], reserve)

    def _sampling(self, say: Say, character: Character) -> SamplingParams:
        sampling = replace(SamplingParams(), **character.sampling)
        if say.sampling is not None:
            sampling = say.sampling.apply_to(sampling)
        return sampling if sampling.seed is not None else replace(sampling, seed=self._random.randint(0, MAX_SEED))


def limits_of(say: Say, character: Character) -> Limits:
    """The request's own, else the pack's, else the service's."""
    usual = replace(Limits(), **character.limits)
    return Limits(say.max_tokens or usual.max_tokens, say.max_seconds or usual.max_seconds)


def others_of(npc: Npc, heard: Line) -> tuple[str, ...]:
    """Whoever spoke to this NPC: it must not speak for them. Once each; never its own name, which it may well begin with."""
    speakers = [npc.player, heard.speaker, *(line.speaker for line in npc.lines if not line.is_npc)]
    return tuple(speaker for speaker in dict.fromkeys(speakers) if speaker != npc.name)
