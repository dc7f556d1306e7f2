"""One NPC as a terminal shows it: a name, a colour, and what it has said so far. Decides how a reply is marked up; draws nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from personae.cli.terminal import printable
from personae_client import Done, Npc, PersonaeError, Stream

FRAME_S = 0.08  # twelve pictures a second; the engine needs the core more than we do
CALM = {"end", "stop", "speaker", "length", "repetition"}  # ends of a reply that need no remark


@dataclass(slots=True)
class Voice:
    npc: Npc
    colour: str
    reply: Text = field(default_factory=Text)  # what is being said, or was said last
    stream: Stream | None = None
    is_heard_out: bool = True  # nothing more will come
    has_news: bool = False  # something to show since `take_news`
    mood: str | None = None  # in which it answers; None: as always

    @property
    def failure(self) -> PersonaeError | None:
        return self.stream.failure if self.stream else None

    @property
    def done(self) -> Done | None:
        return self.stream.done if self.stream else None

    def ask(self, text: str, *, speaker: str | None = None, max_tokens: int | None = None) -> None:
        """Say something to it. Whatever was said before is gone from here."""
        self.reply = Text()
        self.is_heard_out, self.has_news = False, True
        self.stream = self.npc.say(text, speaker=speaker, max_tokens=max_tokens, mood=self.mood)

    def hear(self) -> None:
        """Take in what has arrived. The end is looked at first: all that came before it is then there to be taken."""
        if self.stream is None or self.is_heard_out:
            return
        self.is_heard_out = self.stream.is_over
        deltas = self.stream.take()
        for delta in deltas:
            self.reply.append(printable(delta.text), style="italic dim" if delta.kind == "narration" else "")
        self.has_news = self.has_news or bool(deltas) or self.is_heard_out

    def take_news(self) -> bool:
        had_news, self.has_news = self.has_news, False
        return had_news

    def line(self) -> str:
        """The whole reply and how it ended, without mark-up."""
        remark = self.remark()
        return self.reply.plain.strip() + (f" ({remark})" if remark else "")

    def remark(self) -> str:
        """What is to be said of how the reply ended; empty: nothing."""
        if self.failure is not None:
            return str(self.failure)
        if self.done is None or self.done.finish in CALM:
            return "" if self.reply.plain.strip() or self.done is None else "says nothing"
        return {"cancelled": "interrupted", "time": "ran out of time", "context": "ran out of room"}.get(self.done.finish, "")


def listen(voices: Sequence[Voice], each_frame: Callable[[], None]) -> None:
    """Until all have ended and been heard to the end. `each_frame` may raise to leave; nothing is cancelled then."""
    while True:
        for voice in voices:
            voice.hear()
        each_frame()
        if all(voice.is_heard_out for voice in voices):
            return
        time.sleep(FRAME_S)


def labels(voices: Sequence[Voice]) -> list[str]:
    """A name for each that tells it from the others: its own, or with its id where two are called the same."""
    names = [voice.npc.name for voice in voices]
    return [printable(voice.npc.name if names.count(voice.npc.name) == 1 else f"{voice.npc.name} ({voice.npc.id})") for voice in voices]
