"""Persona and talk -> the tokens of one prompt, within a budget, with a receipt. The only door to jinja2.

    parts      what goes in and what comes out: Persona, Line, Prompt, Receipt
    sandbox    runs a chat template that came with a model file, within bounds
    scaffold   what the template writes between contents, found once when the model is loaded
    talk       lines -> beats: whoever speaks in whichever order becomes "heard, answered, heard, answered"
    keys       which words and phrases are in a text
    lorebook   which lore a text touches, and what that brings along
    mind       which lore is in a prompt, and at which beat of the talk
    plan       what of the persona and the talk will be in the prompt
    budget     which of them stay; numbers only
    cuts       what the receipt says of lore, and of all that is not in the prompt
    tokens     contents -> tokens, remembered
    page       lays the pieces of one prompt in order, and counts them
    builder    puts it together
    summary    asks a model for a memory of what was said; an ordinary persona and ordinary lines

A template never sees a word of the talk, and is never run while somebody waits for a reply.
"""

from personae.prompt.builder import PromptBuilder
from personae.prompt.parts import (
    Cut,
    Example,
    Line,
    Lore,
    LoreNote,
    LoreRules,
    LoreState,
    Part,
    Persona,
    Prompt,
    Receipt,
    Stretch,
    Tokenizer,
)

__all__ = [
    "Cut",
    "Example",
    "Line",
    "Lore",
    "LoreNote",
    "LoreRules",
    "LoreState",
    "Part",
    "Persona",
    "Prompt",
    "PromptBuilder",
    "Receipt",
    "Stretch",
    "Tokenizer",
]
