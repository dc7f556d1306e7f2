"""What the end of a turn needs to know of its beginning, and the message it ends in. Data and its shape; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from personae.packs.character import AdapterFile
from personae.prompt import Line
from personae.scheduler.actions import EndTurn
from personae.service.heard import heard_part
from personae.service.npcs import Npc
from personae.service.sessions import Session
from personae.service.voices import voice_to_wire
from personae.types import FinishReason, NpcId, TurnId, Voice
from personae.wire import replies
from personae.wire.messages import Heard, Say, Warm


@dataclass(slots=True, eq=False)
class OpenTurn:
    """A turn from its request to its one terminal message. It *waits* until its NPC has come free, and has no prompt before that."""

    turn: TurnId
    request: Say | Warm
    session: Session
    npc: Npc
    asked_ms: float
    due: tuple[float, FinishReason]  # when it ends though its time to begin has not come, and how
    line: Line | None  # what is said to the NPC; None: it goes on by itself
    fallback: tuple[str, ...]  # the lines of the pack for a reply that comes too late, as they were when it was asked or begun
    voice: Voice = ()
    files: tuple[AdapterFile, ...] = ()  # where its adapters lie
    seed: int = 0
    receipt: dict[str, Any] = field(default_factory=dict)
    n_cut_lines: int = 0  # lines that its prompt had no room for, counted from the first the NPC ever had
    heard: Heard | None = None  # how much of the reply was heard; None: all that was sent
    cuts_last: bool = False  # what it says was heard of the reply before it is still to be cut out of the history
    is_muted: bool = False  # its connection is gone, and the session has another
    pieces: list[tuple[str, str]] = field(default_factory=list)  # text, kind: sent so far

    @property
    def npc_id(self) -> NpcId:
        return self.npc.id

    @property
    def is_begun(self) -> bool:
        return self.npc.turn == self.turn

    @property
    def is_warm(self) -> bool:
        return isinstance(self.request, Warm)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def heard_text(self) -> str:
        return self.text if self.heard is None else heard_part(self.text, chars=self.heard.chars, sentences=self.heard.sentences)

    @property
    def n_unheard(self) -> int:
        """Characters that were sent and not heard."""
        return len(self.text) - len(self.heard_text)

    @property
    def speech(self) -> str:
        """What is to be voiced: narration left out."""
        return "".join(text for text, kind in self.pieces if kind == "speech").strip()


def done_of(turn: OpenTurn, end: EndTurn, fallback: str | None) -> dict[str, Any]:
    usage = end.usage
    spoken = {} if turn.is_warm else {"text": turn.text, "speech": turn.speech, "seed": turn.seed, "fallback": fallback}
    return replies.done(
        turn.request.id,
        npc=turn.npc.id,
        **spoken,
        finish=end.finish.value,
        adapter=turn.voice[0].key if turn.voice else None,
        voice=voice_to_wire(turn.voice),
        mood=turn.request.mood,
        usage={
            "prompt": usage.prompt,
            "reused": usage.reused,
            "prefilled": usage.prefilled,
            "reply": usage.reply,
            "source": usage.source.value,
        },
        timing={
            "queued_ms": end.queued_ms,
            "ttft_ms": end.ttft_ms,
            "total_ms": end.total_ms,
            "paused_ms": end.paused_ms,
            "pauses": end.n_pauses,
        },
        receipt={**turn.receipt, "reused": usage.reused, "prefilled": usage.prefilled, "source": usage.source.value},
    )
