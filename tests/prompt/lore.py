"""Short words for talks in which lore comes to mind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from personae.prompt import Line, LoreState, Persona, Prompt, PromptBuilder
from tests.prompt.byte_tokenizer import ByteTokenizer
from tests.prompt.lines import Entry, cut
from tests.prompt.templates import CHATML


@dataclass(frozen=True)
class Rules:
    tokens: int | None = None
    scan_lines: int = 4
    recursion: int = 1


TOKENIZER = ByteTokenizer(CHATML)
WIDE = PromptBuilder(TOKENIZER, n_ctx=8192)
GRETA = Persona("Greta", "You are Greta.")
MILL = Entry("The mill burnt\n\ndown.", "mill", keys=("mill",))
RIVER = Entry("The river is deep.", "river", keys=("river",))


def ann(text: str) -> Line:
    return Line("Ann", text, False)


def npc(text: str, tokens: tuple[int, ...] | None = None) -> Line:
    return Line("Greta", text, True, tokens)


def with_lore(*entries: Entry, rules: Rules | None = None) -> Persona:
    return replace(GRETA, lore=entries, lore_rules=rules or Rules())


def shown(prompt: Prompt) -> str:
    return TOKENIZER.show(prompt.tokens)


def states(prompt: Prompt) -> dict[str, str]:
    return {note.name: note.state.value for note in prompt.receipt.lore if note.name}


def prompts_of(
    builder: PromptBuilder, persona: Persona, turns: list[tuple[str, str]], reserve: int = 60
) -> list[tuple[Prompt, tuple[int, ...]]]:
    """Each prompt of a talk, and what is known of the next one before its line is."""
    lines: list[Line] = []
    prompts = []
    for text, reply in turns:
        lines.append(ann(text or "?"))
        prompt = builder.build(persona, lines, reserve)
        drawn = tuple(f" {reply}!".encode())
        prompts.append((prompt, prompt.tokens + drawn + prompt.tail))
        lines.append(npc(f"{reply}!", drawn))
        head = builder.head(persona, lines, reserve)
        if nothing_went(prompt, head):
            assert head.tokens == prompts[-1][1]
    return prompts


def in_it(prompt: Prompt) -> set[str]:
    left_out = {LoreState.LEFT_OUT, LoreState.SILENT, LoreState.OFF}
    return {note.name for note in prompt.receipt.lore if note.state not in left_out}


def nothing_went(before: Prompt, after: Prompt) -> bool:
    cuts = [tuple(cut(prompt, part) for part in ("history", "examples", "memory", "style")) for prompt in (before, after)]
    return cuts[0] == cuts[1] and in_it(before) <= in_it(after)
