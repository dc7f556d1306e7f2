"""Decides what becomes of a `say` or a `warm`: which prompt, voice and settings its turn gets, and what its client hears of it.

It knows no socket and no scheduler: it makes the scheduler's event of a request, and the client's messages of the scheduler's answers.

Rules that always hold
- A turn is in the book from the moment it is asked until its one `done` or `error`; the session points at it just as long. The NPC points
  at it while it is the scheduler's; before that it waits in the NPC's queue.
- A turn that waits gets its prompt when its time comes: it answers what the NPC has heard by then, as the character is by then.
- A turn that has begun keeps the character it began with, whatever becomes of the pack.
- A refusal leaves book, NPC and session as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from personae.engine.backend import Vocabulary
from personae.errors import PersonaeError
from personae.packs.character import AdapterFile, Character, Mood
from personae.prompt import Line, Prompt, PromptBuilder
from personae.scheduler.actions import EndTurn, FailTurn, Speak
from personae.scheduler.events import TurnAsked
from personae.service.manners import Queues, npc_busy, priority_of
from personae.service.npcs import Npc
from personae.service.open_turn import OpenTurn, done_of
from personae.service.roster import Roster, persona_of
from personae.service.sessions import Session
from personae.service.voices import PASSING, RETRY_MS, Adapters, NoAdapters, Spoken, mood_of, spoken_with
from personae.types import Deadlines, FinishReason, Limits, Priority, ReplyRules, SamplingParams, TurnId, Usage
from personae.wire import replies
from personae.wire.messages import Say, Warm


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that a turn is to be, before anything is changed."""

    character: Character
    mood: Mood | None
    line: Line | None
    limits: Limits
    prompt: Prompt
    spoken: Spoken


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that is out of the book, and what its client is to be told: nobody when `session` is None."""

    npc: Npc
    session: Session | None
    messages: list[dict[str, Any]]
    has_changed_npc: bool


class Turns:
    """The book of open turns."""

    def __init__(
        self, vocabulary: Vocabulary, prompts: PromptBuilder, roster: Roster, *, n_ctx: int, adapters: Adapters | None = None
    ) -> None:
        """`adapters` None: nobody has any."""
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._roster = roster
        self._n_ctx = n_ctx
        self._adapters: Adapters = adapters or NoAdapters()
        self._open: dict[TurnId, OpenTurn] = {}
        self._queues: Queues[OpenTurn] = Queues()
        self._freed: deque[Npc] = deque()
        self._asked = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTurn]:
        return iter(tuple(self._open.values()))

    def __getitem__(self, turn: TurnId) -> OpenTurn:
        return self._open[turn]

    def next_number(self) -> TurnId:
        """A turn of the service's own may be none of this book; its number is still its alone."""
        self._asked += 1
        return TurnId(self._asked)

    # --- beginning --------------------------------------------------------------------------------------------------------

    def check(self, request: Say | Warm, npc: Npc) -> None:
        """AskedWrong when no turn can be made of it, as far as can be told now."""
        self._plan(request, npc)

    def ask(self, request: Say | Warm, npc: Npc, session: Session, at_ms: float) -> TurnAsked:
        """Open a turn of an NPC that is free. AskedWrong when the prompt cannot be made."""
        if npc.turn is not None:
            raise npc_busy(npc.id, "speaking")
        plan = self._plan(request, npc)
        return self._begin(self._enter(request, npc, session, at_ms, plan), plan)

    def wait(self, request: Say, npc: Npc, session: Session, at_ms: float, *, first: bool = False) -> OpenTurn:
        """Open a turn of an NPC that is speaking. AskedWrong as `ask`, and `npc_busy` when too many wait."""
        if not first:
            self._queues.check_room(npc.id)
        turn = self._enter(request, npc, session, at_ms, self._plan(request, npc))
        turn.cuts_last = request.heard is not None
        self._queues.join(turn, first=first)
        return turn

    def next_up(self) -> OpenTurn | None:
        """A turn that waited and whose NPC has come free: it waits no longer, and is to be begun."""
        while self._freed:
            npc = self._freed.popleft()
            if npc.turn is None and (turn := self._queues.take(npc.id)) is not None:
                return turn
        return None

    def begin(self, turn: OpenTurn) -> TurnAsked:
        """The turn that was next. AskedWrong when its prompt cannot be made any more, or its pack has gone."""
        if turn.cuts_last and isinstance(turn.request, Say) and turn.request.heard is not None:
            self.check(turn.request, turn.npc)  # one that is refused has cut nothing
            turn.npc.cut_heard(turn.request.heard)
        return self._begin(turn, self._plan(turn.request, turn.npc))

    def files_in_use(self) -> list[AdapterFile]:
        """Of turns that have begun: packs may name others by now."""
        return [file for turn in self for file in turn.files]

    def is_waiting(self, turn: TurnId) -> bool:
        return turn in self._open and self._open[turn] in self._queues

    def waiting_for(self, npc: Npc) -> tuple[OpenTurn, ...]:
        return self._queues.of(npc.id)

    def is_quiet(self, npc: Npc) -> bool:
        """Whether nothing of it is open."""
        return npc.turn is None and not self._queues.of(npc.id)

    def overdue(self, at_ms: float) -> list[EndTurn]:
        """How turns end that have waited too long, whatever the scheduler and the engine do."""
        return [self.end_of_waiting(turn, turn.due[1], at_ms) for turn in self._queues.overdue(at_ms)]

    def end_of_waiting(self, turn: OpenTurn, finish: FinishReason, at_ms: float) -> EndTurn:
        waited_ms = at_ms - turn.asked_ms
        return EndTurn(turn.turn, finish, Usage(), (), waited_ms, -1.0, waited_ms)

    def next_deadline_ms(self) -> float | None:
        return self._queues.next_deadline_ms()

    def _enter(self, request: Say | Warm, npc: Npc, session: Session, at_ms: float, plan: _Plan) -> OpenTurn:
        number = self.next_number()
        due = due_of(at_ms, plan.limits, deadlines_of(request))
        turn = OpenTurn(number, request, session, npc, at_ms, due, plan.line, plan.character.fallback)
        self._open[number] = turn
        session.open[request.id] = number
        session.last_say = max(session.last_say, request.id)
        return turn

    def _begin(self, turn: OpenTurn, plan: _Plan) -> TurnAsked:
        npc, request, character, prompt = turn.npc, turn.request, plan.character, plan.prompt
        voice, sources = plan.spoken.voice, plan.spoken.sources
        sampling = self._sampling(request, plan, npc)
        self._roster.note_use([source.key for source in sources])
        npc.begin(turn.turn)
        npc.adapter, npc.name = voice[0].key if voice else None, character.name
        npc.asked += not turn.is_warm
        turn.voice, turn.files = voice, plan.spoken.files
        turn.fallback, turn.seed = character.fallback, sampling.seed or 0
        turn.receipt, turn.n_cut_lines = prompt.receipt.to_wire(), npc.n_trimmed + prompt.n_cut_lines
        return TurnAsked(
            turn.asked_ms,
            turn.turn,
            npc.id,
            prompt.tokens,
            voice,
            sources,
            sampling,
            self._rules(request, character, npc, plan.line),
            plan.limits,
            priority_of(request, npc.player) if isinstance(request, Say) else request.priority or Priority.AMBIENT,
            () if turn.is_warm else prompt.tail,
            deadlines_of(request),
            draws=not turn.is_warm,
        )

    def _plan(self, request: Say | Warm, npc: Npc) -> _Plan:
        character = self._roster.of_npc(npc.id, npc.character)
        mood = mood_of(character, request.mood)
        limits, persona = limits_of(request, character), persona_of(character, npc.memories, mood)
        room = min(limits.max_kv or self._n_ctx, self._n_ctx)
        reserve = min(limits.max_tokens, room // 2)  # a longer reply is not promised its room: it ends where the context does
        if isinstance(request, Warm):
            head = self._prompts.head(persona, npc.lines, reserve, room=room)
            return _Plan(character, mood, None, limits, head, spoken_with(character, mood, self._adapters))
        line = None if request.text is None else Line(request.speaker or npc.player, request.text, False)
        lines = npc.lines if line is None else [*npc.lines, line]
        prompt = self._prompts.build(persona, lines, reserve, room=room)
        return _Plan(character, mood, line, limits, prompt, spoken_with(character, mood, self._adapters))

    def _sampling(self, request: Say | Warm, plan: _Plan, npc: Npc) -> SamplingParams:
        """The request's own, else the mood's, else the pack's, else the service's."""
        of_mood = plan.mood.sampling if plan.mood is not None else {}
        sampling = replace(SamplingParams(), **{**plan.character.sampling, **of_mood})
        if isinstance(request, Say) and request.sampling is not None:
            sampling = request.sampling.apply_to(sampling)
        return sampling if sampling.seed is not None else replace(sampling, seed=npc.turn_seed)

    def _rules(self, request: Say | Warm, character: Character, npc: Npc, line: Line | None) -> ReplyRules:
        if isinstance(request, Warm):
            return ReplyRules()
        return ReplyRules((*self._prompts.stops, *character.stop, *(request.stop or ())), others_of(npc, line))

    # --- what comes of it -------------------------------------------------------------------------------------------------

    def speak(self, action: Speak) -> tuple[Session, list[dict[str, Any]]] | None:
        """The deltas of a turn, None when it is not open."""
        turn = self._open.get(action.turn)
        if turn is None or turn.is_muted:
            return None
        turn.pieces += ((piece.text, piece.kind) for piece in action.pieces)
        return turn.session, [replies.delta(turn.request.id, turn.npc.id, piece.text, piece.kind) for piece in action.pieces if piece.text]

    def end(self, action: EndTurn) -> Ended | None:
        """The turn ended as turns do: history is written, and its `done` is due. None when it is not open."""
        turn = self._open.get(action.turn)
        if turn is None:
            return None
        fallback = self._fall_back(turn) if action.finish is FinishReason.DEADLINE else None
        messages = [] if fallback is None else [replies.delta(turn.request.id, turn.npc.id, turn.pieces[-1][0])]
        if not turn.is_warm:
            self._commit(turn, action)
        messages.append(done_of(turn, action, fallback))
        return self._close(turn, messages, has_changed_npc=not turn.is_warm)

    def fail(self, action: FailTurn) -> Ended | None:
        """The turn could not be done: history stays as it was, and the luck of this turn is used up."""
        turn = self._open.get(action.turn)
        if turn is None:
            return None
        if turn.text.strip():
            turn.npc.is_unsaid = True
        retry_ms = RETRY_MS if action.code in PASSING else action.retry_after_ms
        failure = PersonaeError(action.code, action.message, action.hint, retry_after_ms=retry_ms)
        return self._close(turn, [replies.error(turn.request.id, failure)], has_changed_npc=turn.is_begun and not turn.is_warm)

    def mute(self, session: Session) -> list[TurnId]:
        """The session's open turns, which from now on are nobody's: its ids are free for the new connection."""
        muted = list(session.open.values())
        session.open.clear()
        for turn in muted:
            self._open[turn].is_muted = True
        return muted

    def _commit(self, turn: OpenTurn, action: EndTurn) -> None:
        npc, text = turn.npc, turn.heard_text
        if turn.is_begun:
            npc.unseen = max(0, turn.n_cut_lines - npc.n_trimmed)
        drawn = action.reply if text == turn.text else ()
        is_answer = npc.commit(turn.turn, turn.line, text, action.finish, drawn, self._vocabulary)
        if turn.text.strip():
            npc.is_unsaid = not is_answer
        turn.session.note_spoken(turn.request.id, npc.id, turn.turn)

    def _fall_back(self, turn: OpenTurn) -> str | None:
        """Speak the pack's next line of those for replies that come too late; None: it has none, or nobody is there to hear it."""
        if turn.is_warm or turn.is_muted or not turn.fallback:
            return None
        line = turn.fallback[turn.npc.n_fallbacks % len(turn.fallback)]
        turn.npc.n_fallbacks += 1
        turn.pieces.append((f" {line}" if turn.text else line, "speech"))
        return line

    def _close(self, turn: OpenTurn, messages: list[dict[str, Any]], *, has_changed_npc: bool) -> Ended:
        del self._open[turn.turn]
        self._queues.leave(turn)
        if turn.is_begun:
            turn.npc.settle()
        self._freed.append(turn.npc)
        if turn.is_muted:
            return Ended(turn.npc, None, [], has_changed_npc)
        del turn.session.open[turn.request.id]
        return Ended(turn.npc, turn.session, messages, has_changed_npc)


def limits_of(request: Say | Warm, character: Character) -> Limits:
    """The request's own, else the pack's, else the service's."""
    usual = replace(Limits(), **character.limits)
    if isinstance(request, Warm):
        return usual
    return Limits(request.max_tokens or usual.max_tokens, request.max_seconds or usual.max_seconds, request.max_kv or usual.max_kv)


def deadlines_of(request: Say | Warm) -> Deadlines:
    if isinstance(request, Warm) or request.deadline is None:
        return Deadlines()
    return Deadlines(request.deadline.first_ms, request.deadline.end_ms)


def due_of(asked_ms: float, limits: Limits, deadlines: Deadlines) -> tuple[float, FinishReason]:
    """When a turn without a word is over, and how. A promise that is missed at the same instant counts as missed."""
    promised = [ms for ms in (deadlines.first_ms, deadlines.end_ms) if ms is not None]
    longest_ms = limits.max_seconds * 1000.0
    if promised and min(promised) <= longest_ms:
        return asked_ms + min(promised), FinishReason.DEADLINE
    return asked_ms + longest_ms, FinishReason.TIME


def others_of(npc: Npc, heard: Line | None) -> tuple[str, ...]:
    """Whoever spoke to this NPC: it must not speak for them. Once each; never its own name, which it may well begin with."""
    lines = npc.lines if heard is None else [heard, *npc.lines]
    speakers = [npc.player, *(line.speaker for line in lines if not line.is_npc)]
    return tuple(speaker for speaker in dict.fromkeys(speakers) if speaker and speaker != npc.name)
