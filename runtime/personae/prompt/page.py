"""Lays the pieces of one prompt in order. Decides where each token stands and which part it is counted to; decides no cut.

    opening  core [style] [lore]* [memories]  after_system  (player lead reply turn)*  (heard [lead reply turn])*  newest line  generation
             '--------- system ------------'                '------ examples ------'  '------- history -------'

Lore that came to mind at a beat stands before what was heard there, in the same message, under a heading of its own: it is read right
before it is needed, and stays where it is while the talk goes on behind it.

The system text goes from what never changes to what changes most: a new memory costs the prefill of what stands behind it.

Costs are sums of pieces, each tokenized by itself: so what the budget adds up is what the page holds, to the token, and a prompt
extends the one before it. A reply the model drew goes back after `generation`, which it was drawn after, not after `lead`: where
the two differ (a blank; an empty think block) its KV would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from personae.prompt.parts import PARTS, Example, Part, Stretch, Tokenizer
from personae.prompt.scaffold import Scaffold
from personae.prompt.talk import Beat, clean
from personae.prompt.tokens import ContentTokens
from personae.types import Token

Tokens = tuple[Token, ...]
BLANK_LINE = "\n\n"  # between two contents of one message
MEMORY_HEADING = "What you remember:"  # so that the model takes them for its past and not for orders
LORE_HEADING = "What comes to mind:"  # so that it takes them for its own thought and not for what somebody said

Named = tuple[str, str]  # a label and a text


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph of the system text: a blank line stands between two of them. Never empty."""

    part: str  # one of PARTS
    tokens: Tokens
    n_texts: int = 1
    name: str = ""


class Setting:
    """One scaffold in one model's tokens, and what contents cost in it."""

    def __init__(self, scaffold: Scaffold, tokenizer: Tokenizer) -> None:
        self.of = ContentTokens(tokenizer).of
        self.opening = _with_bos(_tokenize(tokenizer, scaffold.opening), tokenizer)
        self.lead = _tokenize(tokenizer, scaffold.lead)
        self.turn = _tokenize(tokenizer, scaffold.turn)
        self.generation = _tokenize(tokenizer, scaffold.generation)
        self.blank_line = self.of(BLANK_LINE)
        self.after_system = None if scaffold.after_system is None else _tokenize(tokenizer, scaffold.after_system)

    def after(self, system_is_empty: bool) -> Tokens:
        """What separates the system text from the first line."""
        if self.after_system is not None:
            return self.after_system
        return () if system_is_empty else self.blank_line

    def system(self, core: str, style: str = "", lore: Sequence[Named] = (), memories: Sequence[str] = ()) -> list[Block]:
        """Lore and memories in the order of the page."""
        texts = [("persona", "", core), ("style", "", style), *(("lore", label, text) for label, text in lore)]
        blocks = [Block(part, self.of(text), name=name) for part, name, text in texts if text]
        if memories:
            remembered = [self.of(MEMORY_HEADING), *map(self.of_item, memories)]
            blocks.append(Block("memory", tuple(token for piece in remembered for token in piece), len(memories)))
        return blocks

    def of_item(self, text: str) -> Tokens:
        """A paragraph under a heading."""
        return self.of(f"\n{text}")

    def frame_cost(self, system: Sequence[Block]) -> int:
        """Tokens of everything but examples, past and newest line."""
        joints = len(self.blank_line) * max(0, len(system) - 1)
        scaffold = len(self.opening) + len(self.after(not system)) + len(self.generation)
        return sum(len(block.tokens) for block in system) + joints + scaffold

    def block_cost(self, text: str) -> int:
        """Tokens by which one more paragraph makes the system text longer, the blank line before it included."""
        return len(self.of(text)) + len(self.blank_line)

    def item_cost(self, text: str, heading: str) -> int:
        """Tokens of a paragraph that has a heading, and a blank line behind it, to itself."""
        return len(self.of_item(text)) + self.block_cost(heading)

    def of_example(self, example: Example) -> tuple[Tokens, Tokens]:
        return self.of(clean(example.player)), self.of(clean(example.reply))

    def example_cost(self, example: Example) -> int:
        return sum(map(len, self.of_example(example))) + len(self.lead) + len(self.turn)

    def reply(self, beat: Beat) -> Tokens:
        """The tokens of a beat's answer. A drawn end token is left to the scaffold, which brings it."""
        if not beat.drawn:
            return self.of(beat.reply or "")
        ends_itself = self.turn[:1] == beat.drawn[-1:]
        return beat.drawn[:-1] if ends_itself else beat.drawn

    def before_reply(self, beat: Beat) -> Tokens:
        return self.generation if beat.drawn else self.lead

    def beat_cost(self, beat: Beat) -> int:
        heard = len(self.of(beat.heard))
        if beat.reply is None:
            return heard + len(self.blank_line)
        return heard + len(self.before_reply(beat)) + len(self.reply(beat)) + len(self.turn)

    def beat_estimate(self, beat: Beat, tokens_per_byte: float) -> int:
        """About what `beat_cost` would be, without tokenizing."""
        heard = 1 + int(beat.n_bytes_heard * tokens_per_byte)
        if beat.reply is None:
            return heard + len(self.blank_line)
        reply = len(beat.drawn) or 1 + int(beat.n_bytes_replied * tokens_per_byte)
        return heard + len(self.before_reply(beat)) + reply + len(self.turn)


class Page:
    """A prompt being laid, from left to right."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._n_texts = dict.fromkeys(PARTS, 0)
        self.stretches: list[Stretch] = []

    def system(self, system: Sequence[Block]) -> None:
        self._scaffold(self._setting.opening)
        for index, block in enumerate(system):
            self._scaffold(self._setting.blank_line if index else ())
            self._content(block.part, block.tokens, block.n_texts, block.name)
        self._scaffold(self._setting.after(not system))

    def example(self, example: Example) -> None:
        player, reply = self._setting.of_example(example)
        self._content("examples", player, 1, "player")
        self._scaffold(self._setting.lead)
        self._content("examples", reply, 0, "reply")
        self._scaffold(self._setting.turn)

    def lore(self, lore: Sequence[Named]) -> None:
        """What comes to mind at the beat that follows."""
        if lore:
            self._content("lore", self._setting.of(LORE_HEADING), 0)
            for label, text in lore:
                self._content("lore", self._setting.of_item(text), 1, label)
            self._scaffold(self._setting.blank_line)

    def beat(self, beat: Beat) -> None:
        self.heard(beat)
        if beat.reply is None:
            self._scaffold(self._setting.blank_line)
            return
        self._scaffold(self._setting.before_reply(beat))
        self._content("history", self._setting.reply(beat), 0, "reply")
        self._scaffold(self._setting.turn)

    def heard(self, beat: Beat) -> None:
        """The first half of a beat: whether it is answered is not said yet."""
        self._content("history", self._setting.of(beat.heard), beat.n_lines, "heard")

    def newest(self, beat: Beat) -> None:
        self._content("line", self._setting.of(beat.heard), beat.n_lines, "heard")
        self._scaffold(self._setting.generation)

    def tokens(self) -> Tokens:
        return tuple(token for stretch in self.stretches for token in stretch.tokens)

    def parts(self) -> tuple[Part, ...]:
        n_tokens = dict.fromkeys(PARTS, 0)
        for stretch in self.stretches:
            n_tokens[stretch.part] += len(stretch.tokens)
        return tuple(Part(part, n_tokens[part], self._n_texts[part]) for part in PARTS)

    def _scaffold(self, tokens: Tokens) -> None:
        self._content("scaffold", tokens, 1)

    def _content(self, part: str, tokens: Tokens, n_texts: int, name: str = "") -> None:
        self._n_texts[part] += n_texts
        if tokens:
            self.stretches.append(Stretch(part, name, tokens))


def _tokenize(tokenizer: Tokenizer, piece: str) -> Tokens:
    return tuple(tokenizer.tokenize(piece, special=True)) if piece else ()


def _with_bos(opening: Tokens, tokenizer: Tokenizer) -> Tokens:
    """Exactly one BOS where the model wants one, whether or not the template writes it."""
    bos = _tokenize(tokenizer, tokenizer.token_text("bos"))
    brings_it = opening[: len(bos)] == bos
    return opening if brings_it or not tokenizer.adds_bos else bos + opening
