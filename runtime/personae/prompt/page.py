"""Lays the pieces of one prompt in order. Decides where each token stands and which part it is counted to; decides no cut.

    opening  core  [+ style]  after_system  (player lead reply turn)*  (heard [lead reply turn])*  newest line  generation
             '-- system ---'                '------ examples ------'  '------- history -------'

Costs are sums of pieces, each tokenized by itself: so what the budget adds up is what the page holds, to the token, and a prompt
extends the one before it. A reply the model drew goes back after `generation`, which it was drawn after, not after `lead`: where
the two differ (a blank; an empty think block) its KV would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from personae.prompt.parts import PARTS, Example, Part, Tokenizer
from personae.prompt.scaffold import Scaffold
from personae.prompt.talk import Beat, clean
from personae.prompt.tokens import ContentTokens
from personae.types import Token

Tokens = tuple[Token, ...]
BLANK_LINE = "\n\n"  # between two contents of one message


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

    def frame_cost(self, core: str, style: str) -> int:
        """Tokens of everything but examples, past and newest line."""
        joint = self.blank_line if core and style else ()
        pieces = (self.opening, self.of(core), joint, self.of(style), self.after(not core and not style), self.generation)
        return sum(map(len, pieces))

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
        self._tokens: list[Token] = []
        self._n_tokens = dict.fromkeys(PARTS, 0)
        self._n_texts = dict.fromkeys(PARTS, 0)

    def system(self, core: str, style: str) -> None:
        self._scaffold(self._setting.opening)
        self._content("persona", self._setting.of(core), 1 if core else 0)
        if style:
            self._scaffold(self._setting.blank_line if core else ())
            self._content("style", self._setting.of(style))
        self._scaffold(self._setting.after(not core and not style))

    def example(self, example: Example) -> None:
        player, reply = self._setting.of_example(example)
        self._content("examples", player)
        self._scaffold(self._setting.lead)
        self._content("examples", reply, 0)
        self._scaffold(self._setting.turn)

    def beat(self, beat: Beat) -> None:
        self._content("history", self._setting.of(beat.heard), beat.n_lines)
        if beat.reply is None:
            self._scaffold(self._setting.blank_line)
            return
        self._scaffold(self._setting.before_reply(beat))
        self._content("history", self._setting.reply(beat), 0)
        self._scaffold(self._setting.turn)

    def newest(self, beat: Beat) -> None:
        self._content("line", self._setting.of(beat.heard), beat.n_lines)
        self._scaffold(self._setting.generation)

    def tokens(self) -> Tokens:
        return tuple(self._tokens)

    def parts(self) -> tuple[Part, ...]:
        return tuple(Part(part, self._n_tokens[part], self._n_texts[part]) for part in PARTS)

    def _scaffold(self, tokens: Sequence[Token]) -> None:
        self._content("scaffold", tokens)

    def _content(self, part: str, tokens: Sequence[Token], n_texts: int = 1) -> None:
        self._tokens += tokens
        self._n_tokens[part] += len(tokens)
        self._n_texts[part] += n_texts


def _tokenize(tokenizer: Tokenizer, piece: str) -> Tokens:
    return tuple(tokenizer.tokenize(piece, special=True)) if piece else ()


def _with_bos(opening: Tokens, tokenizer: Tokenizer) -> Tokens:
    """Exactly one BOS where the model wants one, whether or not the template writes it."""
    bos = _tokenize(tokenizer, tokenizer.token_text("bos"))
    brings_it = opening[: len(bos)] == bos
    return opening if brings_it or not tokenizer.adds_bos else bos + opening
