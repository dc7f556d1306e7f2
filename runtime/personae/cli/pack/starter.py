"""The text of a new pack: a character.toml that teaches its own form, and two lines for training. Decides wording alone; writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from personae.packs.toml_text import toml_text

_TEMPLATE = """\
#:schema {schema}
# Save this file while a game runs: from its next line on the character is what you wrote.
manifest = 1
{name}
# For whoever chooses a character, never for the model.
{description}
{author}
{licence}

# Who the character is, addressed as you. The model reads it first, and it is never cut: keep it to what matters in every talk.
{persona}

# How it speaks. Short sentences work best, here and in its mouth.
{style}

# What it says before anybody has spoken.
{greeting}

# What it says when a reply would come too late, whatever was asked.
{fallback}

# Two or three examples teach a voice better than any description.
# [[examples]]
# player = "Do you have a room?"
# reply = "For you? Always. And who's that waiting outside, then?"

# What it knows of its world, one thing an entry. With keys it comes to mind only where the talk touches them.
# [[lore]]
# name = "the cellar"
# text = "The cellar has been locked since the flood. Only you have the key."
# keys = ["cellar", "flood"]

# A voice of its own: a LoRA adapter for the model that the game runs.
# [adapter]
# file = "adapter.gguf"
"""
_SHOWN = {
    "description": "An innkeeper who knows everybody's business.",
    "author": "you",
    "licence": "CC BY 4.0",
    "style": "Warm and nosy. Two sentences at the most.",
    "greeting": "Come in, you're letting the rain in.",
    "fallback": ["One moment.", "Let me think."],
}


def character_toml(answers: Mapping[str, str], *, schema: str) -> str:
    """`schema`: path of the JSON Schema, as seen from the pack. What has no answer stands there as a comment that shows it."""
    keys = re.findall(r"\{(\w+)\}", _TEMPLATE)
    values = {key: _entry(key, answers.get(key, "")) for key in keys if key != "schema"}
    return _TEMPLATE.format(schema=schema, **values)


def lines_jsonl(answers: Mapping[str, str]) -> bytes:
    name = answers["name"]
    lines = (("Hello there.", answers.get("greeting") or "Well met."), ("Who are you?", f"They call me {name}."))
    return "".join(json.dumps({"player": player, "reply": reply}, ensure_ascii=False) + "\n" for player, reply in lines).encode()


def display_name(pack: str) -> str:
    """`old-marta` -> `Old Marta`. Capitals that somebody wrote stay."""
    words = re.split(r"[-_ ]+", pack)
    return " ".join(word if word != word.lower() else word[:1].upper() + word[1:] for word in words if word) or pack


def _entry(key: str, text: str) -> str:
    return toml_text({key: text}).strip() if text else "# " + toml_text({key: _SHOWN[key]}).strip()
