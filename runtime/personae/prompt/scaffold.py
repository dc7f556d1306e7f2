"""What a chat template writes between contents. Decides how a model's template is used; refuses to know any content.

The idea. The talk module gives every prompt one shape: system, then user and assistant in turn, ending with user. For chats of this one
shape a template is periodic: it writes an opening, then the same text before each reply and the same after it. So we render
a handful of trial chats whose contents are unique placeholders, cut the results at the placeholders, and check that one `Scaffold`
explains them all. From then on prompts are laid together from its five strings. A template that works in the trials cannot fail
in mid-talk, because it is never run again; and contents never meet jinja2 or the special-token parser.

One shape also settles what templates disagree about. "Roles must alternate", "the first must be user", "the last must be user": it
does, it is, it is. What is left is found by trying, most faithful first:

    model    the template as it is, persona as system message
    folded   no system role (or the system text is put elsewhere than at the front, as Mistral's does with the last line, which would
             move the persona at every turn and prefill it anew): the persona opens the first user message
    builtin  the template cannot be used: it changes, repeats or drops contents, or its scaffold depends on the length of the talk

Each way is tried with contents as strings, then as lists of typed parts, which is all that some templates for models with eyes accept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from personae.prompt.sandbox import Sandbox, TemplateRefused

TRIALS = (1, 0, 2, 3, 16)  # rounds before the last line; 1 first, because it shows every piece. 16 finds what is counted.


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The pieces of a prompt that are not content. They are tokenized with special tokens, each piece by itself."""

    opening: str  # before the first content
    after_system: str | None  # between system and first user content; None: folded, both are one content
    lead: str  # between a user content and the reply to it
    turn: str  # between a reply and the next user content
    generation: str  # after the last user content; the reply is drawn from here


@dataclass(frozen=True, slots=True)
class Adopted:
    """The scaffold in use, whose it is ("model", "folded", "builtin"), and why it is not the model's own as it stands ("" when it is)."""

    scaffold: Scaffold
    kind: str
    note: str = ""


# ChatML, the format most small instruct models know; a model without its control tokens reads them as odd but regular text.
BUILT_IN = Scaffold(
    opening="<|im_start|>system\n",
    after_system="<|im_end|>\n<|im_start|>user\n",
    lead="<|im_end|>\n<|im_start|>assistant\n",
    turn="<|im_end|>\n<|im_start|>user\n",
    generation="<|im_end|>\n<|im_start|>assistant\n",
)
BUILT_IN_STOPS = ("<|im_end|>", "<|im_start|>")

_FOLDED_NOTE = "the template keeps no system message at the front ({}): the persona opens the first user message"

Message = dict[str, Any]


def scaffold_of(template: str, special_tokens: dict[str, str], now: Callable[[], datetime]) -> Adopted:
    """`special_tokens`: bos_token and eos_token, as texts. Never raises: what cannot be used is replaced, and `note` says why."""
    if not template.strip():
        return Adopted(BUILT_IN, "builtin", "the model has no chat template: the built-in one (ChatML) is used")
    try:
        sandbox = Sandbox(template, now)
    except TemplateRefused as refusal:
        return _built_in(str(refusal))
    reasons: list[str] = []
    for kind, typed in (("model", False), ("folded", False), ("model", True), ("folded", True)):
        try:
            scaffold = _Trial(sandbox, template, special_tokens, folded=kind == "folded", typed=typed).scaffold()
            return Adopted(scaffold, kind, _FOLDED_NOTE.format(reasons[0]) if kind == "folded" else "")
        except TemplateRefused as refusal:
            reasons.append(str(refusal))
    return _built_in(reasons[0] if reasons[0] == reasons[1] else f"{reasons[0]}; without system message: {reasons[1]}")


def _built_in(reason: str) -> Adopted:
    return Adopted(BUILT_IN, "builtin", f"the model's chat template cannot be used ({reason}): the built-in one (ChatML) is used")


class _Trial:
    """One way of using a template, tried on chats of placeholders."""

    def __init__(self, sandbox: Sandbox, template: str, special_tokens: dict[str, str], *, folded: bool, typed: bool) -> None:
        self._sandbox = sandbox
        self._folded = folded
        self._typed = typed
        self._mark = hashlib.sha256(template.encode("utf-8", "replace")).hexdigest()[:12]  # no template holds its own hash
        self._constants = {"tools": None, "documents": None, "enable_thinking": False, **special_tokens}

    def scaffold(self) -> Scaffold:
        """TemplateRefused when the trials do not agree on one."""
        ignores_generation = self._render(1, generation=True) == self._render(1, generation=False)
        found = None
        for rounds in TRIALS:
            pieces = self._cut(self._render(rounds, generation=True), rounds)
            found = found or self._read(pieces, ignores_generation)
            if pieces != self._lay(found, rounds, pieces[-1] if ignores_generation else found.generation):
                raise TemplateRefused("what it writes around contents depends on the length of the talk")
        assert found is not None
        return found

    def _read(self, pieces: list[str], ignores_generation: bool) -> Scaffold:
        *head, lead, turn, generation = pieces
        if ignores_generation:
            # Then what stands before an answered reply is where a reply begins; but a blank at its end belongs to the reply's
            # first token, and a model asked to go on after a lone blank stammers.
            generation = lead.rstrip(" ")
        return Scaffold(head[0], None if self._folded else head[1], lead, turn, generation)

    def _lay(self, scaffold: Scaffold, rounds: int, generation: str) -> list[str]:
        head = [scaffold.opening] if scaffold.after_system is None else [scaffold.opening, scaffold.after_system]
        return [*head, *[scaffold.lead, scaffold.turn] * rounds, generation]

    def _render(self, rounds: int, *, generation: bool) -> str:
        roles = ["user", "assistant"] * rounds + ["user"]
        roles = roles if self._folded else ["system", *roles]
        messages = [{"role": role, "content": self._content(index)} for index, role in enumerate(roles)]
        return self._sandbox.run({"messages": messages, "add_generation_prompt": generation, **self._constants})

    def _content(self, index: int) -> str | list[Message]:
        text = self._placeholder(index)
        return [{"type": "text", "text": text}] if self._typed else text

    def _placeholder(self, index: int) -> str:
        """Survives `trim`; does not survive a change of case, escaping, JSON, or the loss of doubled blanks and line ends."""
        return f'Zz{self._mark}  <"&é\n\n{index:04d}>zZ'

    def _cut(self, text: str, rounds: int) -> list[str]:
        pieces, at = [], 0
        for index in range(2 * rounds + (1 if self._folded else 2)):
            placeholder = self._placeholder(index)
            if (n_found := text.count(placeholder)) != 1:
                raise TemplateRefused("it drops or changes a content" if n_found == 0 else "it repeats a content")
            found = text.find(placeholder)
            if found < at:
                raise TemplateRefused("it puts contents in another order")
            pieces.append(text[at:found])
            at = found + len(placeholder)
        return [*pieces, text[at:]]
