"""What the demo measured, as numbers, as a table, as JSON. Decides how replies and the service's counters become figures; asks nobody.

Tokens a second of one NPC are counted from its first token on; those of the whole against the clock, prefill and waiting included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from personae_client import Done, NpcCard, Welcome

ADAPTER_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Round:
    """One line of the player and every NPC's answer, in the order of the cast."""

    line: str
    replies: tuple[Done, ...]
    counted: Mapping[str, int]  # the service's totals, what this round added: decodes, rows, mixed_decodes, ...

    @property
    def seconds(self) -> float:
        """Until the last reply had ended, by the service's clock."""
        return max(reply.timing.total_ms for reply in self.replies) / 1e3

    @property
    def tokens(self) -> int:
        return sum(reply.usage.reply for reply in self.replies)


@dataclass(frozen=True, slots=True)
class Part:
    """What one NPC did, over all rounds."""

    npc: str
    character: str
    name: str
    adapter: str  # SHA-256 hex; empty without
    first_ttft_ms: float  # in the first round: the persona had to be read
    later_ttft_ms: float  # mean of the others: only the new line had to
    tokens_per_s: float
    reused: int
    prefilled: int


@dataclass(frozen=True, slots=True)
class Whole:
    seconds: float
    tokens: int
    tokens_per_s: float
    later_tokens_per_s: float  # without the first round; so are the other later_
    decodes: int
    rows_per_decode: float
    later_rows_per_decode: float
    mixed_share: float  # of the decodes: those that held more than one adapter
    later_mixed_share: float
    adapters: int


@dataclass(frozen=True, slots=True)
class Report:
    welcome: Welcome
    threads: int
    rounds: tuple[Round, ...]
    parts: tuple[Part, ...]
    whole: Whole

    @classmethod
    def of(cls, welcome: Welcome, cards: Sequence[NpcCard], rounds: Sequence[Round], threads: int) -> Report:
        parts = tuple(_part(card, [one.replies[seat] for one in rounds]) for seat, card in enumerate(cards))
        return cls(welcome, threads, tuple(rounds), parts, _whole(rounds, parts))

    def to_json(self) -> dict[str, Any]:
        return {
            "model": asdict(self.welcome.model),
            "mode": self.welcome.mode,
            "mode_reason": self.welcome.mode_reason,
            "threads": self.threads,
            "npcs": [asdict(part) for part in self.parts],
            "whole": asdict(self.whole),
            "rounds": [_round_json(one) for one in self.rounds],
        }


def _part(card: NpcCard, replies: Sequence[Done]) -> Part:
    first, later = replies[0].timing.ttft_ms, [reply.timing.ttft_ms for reply in replies[1:]]
    speaking_ms = sum(reply.timing.total_ms - reply.timing.ttft_ms for reply in replies)
    return Part(
        npc=card.npc,
        character=card.character,
        name=card.name,
        adapter=replies[0].adapter or "",
        first_ttft_ms=round(first, 1),
        later_ttft_ms=round(sum(later) / max(1, len(later)), 1),
        tokens_per_s=_rate(sum(max(0, reply.usage.reply - 1) for reply in replies), speaking_ms / 1e3),
        reused=sum(reply.usage.reused for reply in replies),
        prefilled=sum(reply.usage.prefilled for reply in replies),
    )


def _whole(rounds: Sequence[Round], parts: Sequence[Part]) -> Whole:
    later = rounds[1:]
    return Whole(
        seconds=round(sum(one.seconds for one in rounds), 2),
        tokens=sum(one.tokens for one in rounds),
        tokens_per_s=_rate(sum(one.tokens for one in rounds), sum(one.seconds for one in rounds)),
        later_tokens_per_s=_rate(sum(one.tokens for one in later), sum(one.seconds for one in later)),
        decodes=sum(one.counted["decodes"] for one in rounds),
        rows_per_decode=round(per_decode(rounds, "rows"), 2),
        later_rows_per_decode=round(per_decode(later, "rows"), 2),
        mixed_share=round(per_decode(rounds, "mixed_decodes"), 3),
        later_mixed_share=round(per_decode(later, "mixed_decodes"), 3),
        adapters=len({part.adapter for part in parts if part.adapter}),
    )


def per_decode(rounds: Sequence[Round], total: str) -> float:
    return sum(one.counted[total] for one in rounds) / max(1, sum(one.counted["decodes"] for one in rounds))


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 1) if seconds > 0 else 0.0


def _round_json(one: Round) -> dict[str, Any]:
    replies = [{"npc": reply.npc, "text": reply.text, "finish": reply.finish, "seed": reply.seed} for reply in one.replies]
    return {"line": one.line, "seconds": round(one.seconds, 2), "replies": replies}


# --- for people -------------------------------------------------------------------------------------------------------


def drawn(report: Report, colours: Mapping[str, str]) -> RenderableType:
    """Table and summary; fits 80 columns. `colours`: of the NPCs, by id."""
    return Group(_table(report, colours), _summary(report))


def _table(report: Report, colours: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("NPC", no_wrap=True)
    table.add_column("character", no_wrap=True)
    table.add_column("adapter", no_wrap=True)
    for heading in ("1st word\nround 1", "1st word\nlater", "tokens/s\n", "prompt\nreused", "prompt\nread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in report.parts:
        table.add_row(*_cells(part), style=colours.get(part.npc, ""))
    return table


def _cells(part: Part) -> tuple[str, ...]:
    return (
        part.npc,
        part.character,
        part.adapter[:ADAPTER_DIGITS] or "none",
        _time(part.first_ttft_ms),
        _time(part.later_ttft_ms),
        f"{part.tokens_per_s:.1f}",
        str(part.reused),
        str(part.prefilled),
    )


def _time(ms: float) -> str:
    if ms < 0:
        return "-"
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1e3:.1f} s"


def _summary(report: Report) -> Text:
    whole, welcome = report.whole, report.welcome
    text = Text("\n")
    for name, value in (
        ("all together", f"{whole.tokens_per_s:.1f} tokens/s: {whole.tokens} tokens in {whole.seconds:.1f} s, the first reading included"),
        ("", f"{whole.later_tokens_per_s:.1f} tokens/s in the later rounds, when only the new line is read"),
        ("decodes", f"{whole.decodes}, of {whole.rows_per_decode:.1f} NPCs each on average; later {whole.later_rows_per_decode:.1f}"),
        ("mixed", f"{whole.mixed_share:.0%} of the decodes held more than one adapter; later {whole.later_mixed_share:.0%}"),
        ("adapters", f"{whole.adapters}, over one model in memory: {welcome.model.name}"),
        ("threads", str(report.threads)),
    ):
        text.append(f"{name:13}", style="bold").append(value + "\n")
    return text.append(f"{'mode':13}", style="bold").append(*mode_text(welcome))


def mode_text(welcome: Welcome) -> tuple[str, str]:
    """A sentence and its style. Grouped mode is never told in passing."""
    if welcome.mode == "mixed":
        return "mixed: all voices in one decode", ""
    reason = f", because {welcome.mode_reason}" if welcome.mode_reason else ""
    return f"{welcome.mode}: one decode for each adapter{reason}. The replies are the same, only slower.", "bold yellow"
