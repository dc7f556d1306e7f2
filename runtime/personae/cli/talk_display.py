"""How a conversation looks: replies that grow side by side on a terminal, finished lines everywhere else. Decides no word of it.

On a terminal all who speak grow at once, each under its name, in a region at the bottom that never outgrows the window; when the last has
ended the region gives way to the whole replies, which scroll like any other text. Without a terminal each reply is printed when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from personae.cli.terminal import printable
from personae.cli.voices import Voice, listen

SPARE_LINES = 2  # of the window: the prompt, and the line that the cursor stands in
GUTTER = 2


class Display:
    def __init__(self, console: Console, *, is_live: bool) -> None:
        self.console = console
        self.is_live = is_live and not console.is_dumb_terminal
        self.names_width = 0  # of the column of names, at least: lines of different people stand under one another

    def notice(self, text: str) -> None:
        """A word of ours, not of an NPC."""
        self.console.print(Text(printable(text), style="dim"), soft_wrap=not self.is_live)

    def complaint(self, text: str) -> None:
        self.console.print(Text(printable(text), style="yellow"), soft_wrap=not self.is_live)

    def said(self, label: str, colour: str, text: str | Text) -> None:
        """A whole line of somebody."""
        if self.is_live:
            self.console.print(self._lines([(label, colour, text if isinstance(text, Text) else Text(text))]))
        else:
            print(f"{label}: {text}", flush=True)

    def replies(self, voices: Sequence[Voice], names: Mapping[str, str], each_frame: Callable[[], None]) -> None:
        """Show them until the last has ended. `names`: by NPC id. `each_frame` may cancel them, or raise."""
        if self.is_live:
            self._grow(voices, names, each_frame)
        else:
            self._report(list(voices), names, each_frame)

    def _grow(self, voices: Sequence[Voice], names: Mapping[str, str], each_frame: Callable[[], None]) -> None:
        with Live(console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:

            def draw() -> None:
                each_frame()
                has_news = [voice.take_news() for voice in voices]
                if any(has_news):
                    live.update(self._growing(voices, names), refresh=True)

            listen(voices, draw)
        for voice in voices:
            self.said(names[voice.npc.id], voice.colour, _marked(voice))

    def _growing(self, voices: Sequence[Voice], names: Mapping[str, str]) -> RenderableType:
        """The newest lines of each, as many as the window holds."""
        width, height = self.console.size
        room = max(1, (height - SPARE_LINES) // len(voices))
        text_width = max(8, width - max(self.names_width, *map(cell_len, names.values())) - GUTTER)
        rows = []
        for voice in voices:
            lines = _marked(voice).wrap(self.console, text_width)
            rows.append((names[voice.npc.id], voice.colour, Text("\n").join(lines[-room:])))
        return self._lines(rows)

    def _report(self, silent: list[Voice], names: Mapping[str, str], each_frame: Callable[[], None]) -> None:
        voices = tuple(silent)

        def print_finished() -> None:
            each_frame()
            for voice in [voice for voice in silent if voice.is_heard_out]:
                silent.remove(voice)
                self.said(names[voice.npc.id], voice.colour, voice.line())

        listen(voices, print_finished)

    def _lines(self, rows: Sequence[tuple[str, str, Text]]) -> Table:
        """Names to the left, what is said to the right of them."""
        table = Table.grid(padding=(0, GUTTER), pad_edge=False)
        table.add_column(no_wrap=True, min_width=self.names_width)
        table.add_column(overflow="fold")
        for label, colour, text in rows:
            table.add_row(Text(label, style=colour), text)
        return table


def _marked(voice: Voice) -> Text:
    """The reply with its mark-up, and how it ended."""
    text = voice.reply.copy()
    text.rstrip()
    if not voice.is_heard_out:
        return text.append("▌", style=voice.colour)
    remark = voice.remark()
    return text.append(f" ({remark})" if remark else "", style="yellow")
