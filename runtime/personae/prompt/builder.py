"""Builds prompts for one model. Decides what persona and talk become within a budget; refuses to know who asks and what it built before.

`build` is a pure function of its arguments: the same persona, lines and reserve give the same tokens, whatever was built in between.
That makes it safe to rebuild after barge-in, an edit or a load, and lets the scheduler find what a slot already holds by comparing tokens.

Rules that always hold
- A prompt fits: its tokens and the reserve are at most n_ctx.
- No text of a player, a writer or a model is parsed for control tokens or run by jinja2.
- While nothing is cut anew, prompt n+1 begins with prompt n, the tokens drawn after it, and the tail of prompt n.
- Nothing of the template can fail here: it was tried at construction (scaffold.py).

Examples are real exchanges before the talk, not prose in the system text: a small model imitates what an assistant has said far better
than what it was told about it, and adapters are trained on exchanges too. The price: it may take an example for something that happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from personae.errors import AskedWrong
from personae.prompt import budget as rules
from personae.prompt.page import Page, Setting
from personae.prompt.parts import Cut, Example, Line, Persona, Prompt, Receipt, Tokenizer
from personae.prompt.scaffold import BUILT_IN_STOPS, scaffold_of
from personae.prompt.talk import Beat, beats_of, clean

MINIMAL_LINE = 24  # tokens of a short sentence, in and out: a persona that leaves less than this cannot be talked to
MINIMAL_REPLY = 24
SAMPLE = "Good evening. What have you got to eat?"  # shows how dense a model's tokens are


@dataclass(frozen=True, slots=True)
class _Talk:
    """Persona and lines, cleaned: what could be in the prompt."""

    core: str
    style: str
    examples: tuple[Example, ...]
    past: list[Beat]
    newest: Beat

    @staticmethod
    def of(persona: Persona, lines: Sequence[Line]) -> _Talk:
        *past, newest = beats_of(lines)
        examples = tuple(example for example in persona.examples if clean(example.player) and clean(example.reply))
        return _Talk(clean(persona.core), clean(persona.style), examples, past, newest)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a prompt will hold: style or "", so many of the first examples, the past from beat `start` on."""

    style: str
    n_examples: int
    start: int


class PromptBuilder:
    """`template`: instead of the model's own; "" for the built-in one. `now`: read once, for templates that write a date."""

    def __init__(
        self, vocabulary: Tokenizer, *, n_ctx: int, template: str | None = None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        special = {f"{name}_token": vocabulary.token_text(name) for name in ("bos", "eos")}
        adopted = scaffold_of(vocabulary.chat_template if template is None else template, special, now)
        self._n_ctx = n_ctx
        self._setting = Setting(adopted.scaffold, vocabulary)
        self.template_kind = adopted.kind  # "model", "folded" or "builtin"
        self.template_note = adopted.note  # why it is not the model's template as it stands; "" when it is
        # Texts that end a reply where the vocabulary may have no end token for the scaffold in use.
        self.stops: tuple[str, ...] = BUILT_IN_STOPS if adopted.kind == "builtin" else ()

    def check(self, persona: Persona) -> None:
        """AskedWrong `persona_too_long` when the core leaves no room for even a short exchange. Style and examples can be cut; it can't."""
        needed = self._setting.frame_cost(clean(persona.core), "")
        room = self._n_ctx - MINIMAL_LINE - MINIMAL_REPLY
        if needed > room:
            raise AskedWrong(
                "persona_too_long",
                f"The persona of {persona.name!r} needs {needed} tokens; a context of {self._n_ctx} tokens has room for {room} "
                f"beside a line and a reply of {MINIMAL_LINE} tokens each.",
                "Shorten the core of the persona, or start the service with a larger context.",
                needed=needed,
                room=room,
                n_ctx=self._n_ctx,
            )

    def build(self, persona: Persona, lines: Sequence[Line], reserve: int) -> Prompt:
        """`reserve`: tokens kept free for the reply. AskedWrong `text_too_long` when the newest line cannot fit, whatever else is cut."""
        budget = self._n_ctx - max(reserve, 0)
        talk = _Talk.of(persona, lines)
        plan = self._plan(talk, budget)
        if plan is None:
            raise self._too_long(persona, talk, budget)

        page = Page(self._setting)
        page.system(talk.core, plan.style)
        for example in talk.examples[: plan.n_examples]:
            page.example(example)
        for beat in talk.past[plan.start :]:
            page.beat(beat)
        page.newest(talk.newest)
        tokens = page.tokens()
        receipt = Receipt(len(tokens), budget, self._n_ctx - budget, self.template_kind, page.parts(), self._cuts(talk, plan))
        return Prompt(tokens, receipt, self._setting.turn)

    def _plan(self, talk: _Talk, budget: int) -> _Plan | None:
        """None: core and newest line alone do not fit. The order of cutting is explained in budget.py."""
        frame, line = self._setting.frame_cost(talk.core, talk.style), len(self._setting.of(talk.newest.heard))
        if frame + line > budget:
            fits_bare = self._setting.frame_cost(talk.core, "") + line <= budget
            return _Plan("", 0, len(talk.past)) if fits_bare else None
        costs = [self._setting.example_cost(example) for example in talk.examples]
        n_examples = rules.n_examples_within(costs, min(rules.examples_share(self._n_ctx - frame), budget - frame - line))
        frame += sum(costs[:n_examples])
        return _Plan(talk.style, n_examples, self._start(talk, budget - frame - line, self._n_ctx - frame))

    def _start(self, talk: _Talk, room: int, full_room: int) -> int:
        """The first beat of the past that stays: from there on it fits in `room`. `full_room` depends on neither line nor reserve."""
        newest_first = (self._setting.beat_cost(beat) for beat in reversed(talk.past))
        start = len(talk.past) - rules.n_newest_within(newest_first, room)
        return rules.first_mark(self._estimates(talk), start, rules.stretch_of(full_room)) if start else 0

    def _estimates(self, talk: _Talk) -> list[int]:
        known = (SAMPLE, talk.core)  # the core is probably in the language of the talk, and may be short
        tokens_per_byte = sum(len(self._setting.of(text)) for text in known) / sum(len(text.encode()) for text in known)
        return [self._setting.beat_estimate(beat, tokens_per_byte) for beat in talk.past]

    def _cuts(self, talk: _Talk, plan: _Plan) -> tuple[Cut, ...]:
        left_out = talk.examples[plan.n_examples :]
        n_tokens = sum(self._setting.example_cost(example) for example in left_out)
        n_style = len(self._setting.of(talk.style))
        n_lines = sum(beat.n_lines for beat in talk.past[: plan.start])
        cuts = (
            Cut("history", n_lines, None, "the talk is longer than its room: the oldest lines went"),
            Cut("examples", len(left_out), n_tokens, "examples have a share of the context, and yield to a long line: the last went"),
            Cut("style", int(plan.style != talk.style), n_style, "the newest line needs the room"),
        )
        return tuple(cut for cut in cuts if cut.count)

    def _too_long(self, persona: Persona, talk: _Talk, budget: int) -> AskedWrong:
        """Why not even core and newest line fit: which of persona and line is to blame."""
        self.check(persona)
        needed, room = len(self._setting.of(talk.newest.heard)), max(0, budget - self._setting.frame_cost(talk.core, ""))
        return AskedWrong(
            "text_too_long",
            f"The line has {needed} tokens; beside the persona of {persona.name!r} and {self._n_ctx - budget} tokens for the reply, "
            f"the context of {self._n_ctx} tokens has room for {room}.",
            "Shorten the line, or ask for a shorter reply.",
            needed=needed,
            room=room,
            n_ctx=self._n_ctx,
            reserve=self._n_ctx - budget,
        )
