"""The demo's picture: every NPC in a panel of its own, side by side, while they speak. Decides where what goes on the screen.

Drawn on the terminal's other screen, whole pictures at a time: nothing scrolls, nothing flickers, and what was there before comes back.
A panel shows the end of what its NPC has said; what is older leaves at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from personae.cli.demo_report import ADAPTER_DIGITS, mode_text
from personae.cli.terminal import printable
from personae.cli.voices import Voice
from personae_client import Welcome

HEAD_LINES, FOOT_LINES = 2, 1
LEAST_WIDTH, LEAST_HEIGHT = 24, 4  # of a panel, its frame included
FRAME_WIDTH, FRAME_HEIGHT = 4, 2


@dataclass(frozen=True, slots=True)
class Grid:
    """Panels in rows; sizes in characters, frames included."""

    widths: tuple[int, ...]  # one a column
    heights: tuple[int, ...]  # one a row

    @classmethod
    def fit(cls, n_panels: int, width: int, height: int) -> Grid | None:
        """The one with the most room for text in its smallest panel. None: they do not fit."""
        grids = (cls._of(n_panels, columns, width, height) for columns in range(1, n_panels + 1))
        return max((grid for grid in grids if grid.is_readable), key=lambda grid: grid.room, default=None)

    @classmethod
    def _of(cls, n_panels: int, columns: int, width: int, height: int) -> Grid:
        return cls(_shares(width, columns), _shares(height, -(-n_panels // columns)))

    @property
    def is_readable(self) -> bool:
        return min(self.widths) >= LEAST_WIDTH and min(self.heights) >= LEAST_HEIGHT

    @property
    def room(self) -> int:
        return (min(self.widths) - FRAME_WIDTH) * (min(self.heights) - FRAME_HEIGHT)


def _shares(amount: int, parts: int) -> tuple[int, ...]:
    """As equal as whole numbers can be."""
    return tuple(amount * (part + 1) // parts - amount * part // parts for part in range(parts))


def can_show(console: Console, n_panels: int) -> bool:
    width, height = console.size
    return console.is_terminal and not console.is_dumb_terminal and Grid.fit(n_panels, width, height - HEAD_LINES - FOOT_LINES) is not None


@dataclass(slots=True)
class Stage:
    """Use in a `with`; `draw` when something has changed. `line`, `counters` and the voices are what is drawn."""

    console: Console
    welcome: Welcome
    voices: Sequence[Voice]
    line: str = ""  # the player's
    counters: str = ""  # live figures for the foot
    _earlier: dict[str, list[str]] = field(default_factory=dict)  # NPC id -> its replies in the rounds before
    _live: Live | None = None

    def __enter__(self) -> Self:
        self._live = Live(console=self.console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def begin_round(self, line: str) -> None:
        """Call it before the voices are asked: what they said last becomes the past."""
        self.line = line
        for voice in self.voices:
            if voice.reply.plain.strip():
                self._earlier.setdefault(voice.npc.id, []).append(voice.reply.plain)

    def draw(self) -> None:
        if self._live is not None:
            self._live.update(self.picture(), refresh=True)

    def picture(self) -> RenderableType:
        width, height = self.console.size
        grid = Grid.fit(len(self.voices), width, height - HEAD_LINES - FOOT_LINES)
        if grid is None:  # somebody made the window small meanwhile
            return Text("Too small a window: make it larger.", overflow="crop", no_wrap=True)
        return Group(self._head(), self._panels(grid), self._foot())

    def _head(self) -> Text:
        voices = {voice.npc.card.adapter for voice in self.voices}
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("personae", style="bold").append(
            f"  {len(self.voices)} NPCs, {len(voices)} voices, one model: {self.welcome.model.name}\n"
        )
        head.append("You  ", style="bold cyan").append(self.line)
        return head

    def _foot(self) -> Text:
        sentence, style = mode_text(self.welcome)
        foot = Text(no_wrap=True, overflow="ellipsis")
        foot.append(sentence if style else "mixed decode", style=style or "dim")
        return foot.append(f"  {self.counters}  Ctrl-C ends", style="dim")

    def _panels(self, grid: Grid) -> Table:
        table = Table.grid(padding=0, pad_edge=False)
        for width in grid.widths:
            table.add_column(width=width)
        for row, height in enumerate(grid.heights):
            seats = self.voices[row * len(grid.widths) : (row + 1) * len(grid.widths)]
            table.add_row(*(self._panel(voice, width, height) for voice, width in zip(seats, grid.widths, strict=False)))
        return table

    def _panel(self, voice: Voice, width: int, height: int) -> Panel:
        room = height - FRAME_HEIGHT
        lines = self._spoken(voice).wrap(self.console, width - FRAME_WIDTH)
        adapter = (voice.npc.card.adapter or "no adapter")[:ADAPTER_DIGITS]
        return Panel(
            Text("\n").join(lines[-room:]),
            title=Text.assemble((voice.npc.id, "bold"), printable(f" {voice.npc.name}")),
            title_align="left",
            subtitle=Text(adapter, style="dim"),
            subtitle_align="right",
            border_style=voice.colour if not voice.is_heard_out else f"dim {voice.colour}",
            width=width,
            height=height,
        )

    def _spoken(self, voice: Voice) -> Text:
        """All it has said, its greeting first: the past dim, the present as it is, and a mark while there is more to come."""
        spoken = Text()
        for past in (printable(voice.npc.greeting), *self._earlier.get(voice.npc.id, ())):
            spoken.append(past.strip() + "\n" if past else "", style="dim")
        spoken.append_text(voice.reply)
        if not voice.is_heard_out:
            spoken.append("..." if not voice.reply.plain else "▌", style=voice.colour)
        elif remark := voice.remark():
            spoken.append(f" ({remark})", style="yellow")
        return spoken
