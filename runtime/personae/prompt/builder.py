"""Builds prompts for one model. Puts together what plan.py chose; refuses to know who asks and what it built before.

`build` is a pure function of its arguments: the same persona, lines and reserve give the same tokens, whatever was built in between.
That makes it safe to rebuild after barge-in, an edit or a load, and lets the scheduler find what a slot already holds by comparing tokens.

Rules that always hold
- A prompt fits: its tokens and the reserve are at most `room`, and that is at most n_ctx.
- No text of a player, a writer or a model is parsed for control tokens or run by jinja2.
- While nothing is cut anew, prompt n+1 begins with prompt n, the tokens drawn after it, and the tail of prompt n.
- Lore that comes to mind stands in the newest message, then stays there: it is no exception to the rule above.
- While nothing is cut anew and nobody new speaks, a prompt begins with the `head` of the talk before its line.
- Nothing of the template can fail here: it was tried at construction (scaffold.py).

Examples are real exchanges before the talk, not prose in the system text: a small model imitates what an assistant has said far better
than what it was told about it, and adapters are trained on exchanges too. The price: it may take an example for something that happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from personae.errors import AskedWrong
from personae.prompt.cuts import cuts_of, notes_of
from personae.prompt.lorebook import Library
from personae.prompt.page import Page, Setting
from personae.prompt.parts import Line, Persona, Prompt, Receipt, Stretch, Tokenizer
from personae.prompt.plan import Material, Plan, lore_at, plan_of, system_of
from personae.prompt.scaffold import BUILT_IN_STOPS, scaffold_of
from personae.prompt.talk import clean, n_lines_until

MINIMAL_LINE = 24  # tokens of a short sentence, in and out: a persona that leaves less than this cannot be talked to
MINIMAL_REPLY = 24


class PromptBuilder:
    """`template`: instead of the model's own; "" for the built-in one. `now`: read once, for templates that write a date.

    `room` is the most tokens of prompt and reply together, where a turn has a limit below the context's (`Limits.max_kv`); None or 0:
    the whole context. More than the context is the context.
    """

    def __init__(
        self, vocabulary: Tokenizer, *, n_ctx: int, template: str | None = None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        special = {f"{name}_token": vocabulary.token_text(name) for name in ("bos", "eos")}
        adopted = scaffold_of(vocabulary.chat_template if template is None else template, special, now)
        self._n_ctx = n_ctx
        self._setting = Setting(adopted.scaffold, vocabulary)
        self._library = Library()
        self.template_kind = adopted.kind  # "model", "folded" or "builtin"
        self.template_note = adopted.note  # why it is not the model's template as it stands; "" when it is
        # Texts that end a reply where the vocabulary may have no end token for the scaffold in use.
        self.stops: tuple[str, ...] = BUILT_IN_STOPS if adopted.kind == "builtin" else ()

    def check(self, persona: Persona, *, room: int | None = None) -> None:
        """AskedWrong `persona_too_long` when the core leaves no room for even a short exchange. All else can be cut; the core can't."""
        most = self._most(room)
        needed = self._setting.frame_cost(self._setting.system(clean(persona.core)))
        left = most - MINIMAL_LINE - MINIMAL_REPLY
        if needed > left:
            raise AskedWrong(
                "persona_too_long",
                f"The persona of {persona.name!r} needs {needed} tokens; {self._named(most)} has room for {max(0, left)} "
                f"beside a line and a reply of {MINIMAL_LINE} tokens each.",
                f"Shorten the core of the persona, or {self._larger(most)}.",
                needed=needed,
                room=max(0, left),
                n_ctx=self._n_ctx,
                most=most,
            )

    def build(self, persona: Persona, lines: Sequence[Line], reserve: int, *, room: int | None = None) -> Prompt:
        """The prompt for a reply to the last line, or to a silence when that is the NPC's own.

        `reserve`: tokens kept free for the reply. AskedWrong `text_too_long` when the newest line cannot fit, whatever else is cut;
        `persona_too_long` when the core is to blame.
        """
        return self._lay(persona, lines, self._for_reply(persona, lines), max(reserve, 0), self._most(room))

    def annotated(self, persona: Persona, lines: Sequence[Line], reserve: int, *, room: int | None = None) -> list[Stretch]:
        """The tokens of `build` as stretches that say what they are. Arguments and errors as there."""
        material = self._for_reply(persona, lines)
        return self._page(material, self._plan(persona, material, max(reserve, 0), self._most(room))).stretches

    def head(self, persona: Persona, lines: Sequence[Line], reserve: int, *, room: int | None = None) -> Prompt:
        """What every next prompt of this NPC begins with, up to where the content of the next line would stand.

        To prefill it is to warm the NPC. Arguments and errors as for `build`; `lines` are what it has heard and said so far. It holds
        as long as the next line is no longer than its room, so that nothing is cut anew, and comes from somebody who has spoken
        already, from the first to speak, or from nobody: one speaker needs no name, and a second one puts names to the lines before
        (talk.py). With two speakers or more in the talk, the names are there whoever comes. A line not yet answered is in it, and
        whatever would stand behind that line is not: the reply may come next, or somebody's line. A guess that turns out wrong is cut
        from the KV like any other tail: it costs prefill and nothing else.
        """
        material = Material.before_next(persona, self._library.of(persona.lore), lines)
        return self._lay(persona, lines, material, max(reserve, 0), self._most(room))

    def _for_reply(self, persona: Persona, lines: Sequence[Line]) -> Material:
        return Material.for_reply(persona, self._library.of(persona.lore), lines)

    def _lay(self, persona: Persona, lines: Sequence[Line], material: Material, reserve: int, most: int) -> Prompt:
        plan = self._plan(persona, material, reserve, most)
        page = self._page(material, plan)
        tokens, cuts, notes = page.tokens(), cuts_of(self._setting, material, plan), notes_of(self._setting, material, plan)
        receipt = Receipt(len(tokens), most - reserve, reserve, self.template_kind, page.parts(), cuts, notes)
        n_cut = n_lines_until(lines, sum(beat.n_lines for beat in material.past[: plan.start]))
        return Prompt(tokens, receipt, self._setting.turn if material.newest else (), n_cut)

    def _plan(self, persona: Persona, material: Material, reserve: int, most: int) -> Plan:
        plan = plan_of(self._setting, material, most - reserve, most)
        if plan is None:
            raise self._too_long(persona, material, reserve, most)
        return plan

    def _page(self, material: Material, plan: Plan) -> Page:
        page = Page(self._setting)
        page.system(system_of(self._setting, material, plan))
        for example in material.examples[: plan.n_examples]:
            page.example(example)
        n_past = len(material.past)
        for place in range(plan.start, n_past):
            beat = material.past[place]
            is_open = material.newest is None and place == n_past - 1 and beat.reply is None
            page.lore(lore_at(material, plan, place))
            (page.heard if is_open else page.beat)(beat)
        if material.newest is not None:
            page.lore(lore_at(material, plan, n_past))
            page.newest(material.newest)
        return page

    def _too_long(self, persona: Persona, material: Material, reserve: int, most: int) -> AskedWrong:
        """Why not even core and newest line fit: which of persona and line is to blame."""
        self.check(persona, room=most)
        needed = len(self._setting.of(material.newest.heard)) if material.newest else 0
        room = max(0, most - reserve - self._setting.frame_cost(self._setting.system(material.core)))
        return AskedWrong(
            "text_too_long",
            f"The line has {needed} tokens; beside the persona of {persona.name!r} and {reserve} tokens for the reply, "
            f"{self._named(most)} has room for {room}.",
            "Shorten the line, or ask for a shorter reply.",
            needed=needed,
            room=room,
            n_ctx=self._n_ctx,
            most=most,
            reserve=reserve,
        )

    def _most(self, room: int | None) -> int:
        return min(room or self._n_ctx, self._n_ctx)

    def _named(self, most: int) -> str:
        return f"the context of {most} tokens" if most == self._n_ctx else f"the turn's limit of {most} tokens (max_kv)"

    def _larger(self, most: int) -> str:
        return "start the service with a larger context" if most == self._n_ctx else "give the turn a larger max_kv"
