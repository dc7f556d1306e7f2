"""What lore may take of a prompt, what gives way to what, and what the receipt says of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from personae.errors import AskedWrong
from personae.prompt import LoreState, PromptBuilder
from personae.prompt.lorebook import MOST_ALWAYS_BYTES, MOST_AT_ONCE, MOST_KEY_CHARS, Lorebook
from personae.prompt.mind import Attention, Mind, Recall
from personae.prompt.talk import Beat
from tests.prompt.lines import Entry, Exchange, cut, part
from tests.prompt.lore import MILL, RIVER, TOKENIZER, WIDE, Rules, ann, in_it, npc, prompts_of, states, with_lore

# --- room -----------------------------------------------------------------------------------------------------------


def long(name: str, priority: int = 0, **fields: object) -> Entry:
    return Entry(f"{name} " + "x" * 60, name, priority, keys=(name,), **fields)  # type: ignore[arg-type]


TIGHT = Rules(tokens=205, recursion=0)  # two of these and their headings


def test_no_tokens_for_lore_is_no_lore() -> None:
    prompt = WIDE.build(with_lore(MILL, Entry("Old.", "old"), rules=Rules(tokens=0)), [ann("the mill")], 100)
    assert (part(prompt, "lore"), states(prompt)) == (0, {"mill": "left_out", "old": "left_out"})
    assert cut(prompt, "lore") == 2


def test_the_writer_sets_the_room_of_lore_up_to_half_of_what_core_and_style_leave() -> None:
    lore = [Entry(f"e{n} " + "x" * 90, f"e{n}", keys=("go",)) for n in range(40)]
    builder = PromptBuilder(TOKENIZER, n_ctx=2048)
    taken = [
        part(builder.build(with_lore(*lore, rules=Rules(tokens=tokens)), [ann("go")], 50), "lore") for tokens in (300, None, 700, 9999)
    ]
    assert taken == sorted(set(taken))
    assert taken[0] <= 300
    assert taken[1] <= 2048 // 5
    assert 2048 // 3 < taken[3] <= 2048 // 2


def test_higher_priority_makes_what_is_lower_give_way_even_what_is_always_known() -> None:
    persona = with_lore(long("low", 0, constant=True), long("other", 0, constant=True), long("high", 5), rules=TIGHT)
    assert states(WIDE.build(persona, [ann("hi")], 100)) == {"low": "constant", "other": "constant"}
    assert states(WIDE.build(persona, [ann("high")], 100)) == {"low": "constant", "high": "key", "other": "left_out"}


def test_of_one_priority_what_is_always_known_stays() -> None:
    persona = with_lore(long("keyed"), long("low", constant=True), long("other", constant=True), long("third", constant=True), rules=TIGHT)
    assert states(WIDE.build(persona, [ann("keyed")], 100))["keyed"] == "left_out"


def test_of_one_priority_what_was_touched_last_stays() -> None:
    persona = with_lore(*(long(f"w{n}") for n in range(3)), rules=TIGHT)
    lines = [ann("w0"), npc("Yes."), ann("w1"), npc("Yes.")]
    assert states(WIDE.build(persona, lines, 100)) == {"w0": "key", "w1": "key"}
    assert states(WIDE.build(persona, [*lines, ann("w2")], 100)) == {"w1": "key", "w2": "key", "w0": "left_out"}
    assert states(WIDE.build(persona, [*lines, ann("w0"), npc("Yes."), ann("w2")], 100)) == {"w0": "key", "w2": "key", "w1": "left_out"}


def test_lore_that_gives_way_makes_room_for_more_than_the_next_one() -> None:
    builder = PromptBuilder(TOKENIZER, n_ctx=16_384)
    persona = with_lore(*(long(f"w{n}") for n in range(60)), rules=Rules(tokens=900, recursion=0))
    prompts = prompts_of(builder, persona, [(f"w{turn}", "ok") for turn in range(60)])
    moves = sum(after.tokens[: len(known)] != known for (_, known), (after, _) in pairwise(prompts))
    assert cut(prompts[-1][0], "lore") > 45
    assert 5 < moves < 60 // 2
    assert all(f"w{turn}" in in_it(prompt) for turn, (prompt, _) in enumerate(prompts))


def test_a_long_line_takes_the_room_of_the_past_and_examples_before_lore_of_the_lowest_priority() -> None:
    builder = PromptBuilder(TOKENIZER, n_ctx=900)
    lore = (long("low", 0), long("high", 2), Entry("Always. " + "y" * 50, "always", 1))
    persona = replace(with_lore(*lore, rules=Rules(tokens=400)), examples=[Exchange("Bed?", "Two coins.")])
    gone = []
    for length in range(1, 900, 7):
        try:
            prompt = builder.build(persona, [ann("Hi."), npc("Yes?"), ann("low high " + "x" * length)], 100)
        except AskedWrong:
            break
        assert prompt.receipt.total <= 800
        gone.append((cut(prompt, "history"), cut(prompt, "examples"), *sorted(set(states(prompt)) - in_it(prompt))))
    order = list(dict.fromkeys(gone))
    assert order[0] == (0, 0)
    assert list(dict.fromkeys(each[2:] for each in order)) == [(), ("low",), ("always", "low"), ("always", "high", "low")]
    assert all(each[:2] == (2, 1) or each[1:2] == (1,) for each in order if len(each) > 2)


def test_a_hundred_turns_of_lore_always_fit_and_history_only_moves_on() -> None:
    persona = with_lore(*(long(f"w{n}", n % 3) for n in range(20)), rules=Rules(recursion=2))
    for n_ctx in (400, 700, 1500):
        turns = [(f"w{turn * 7 % 20} and " + "on " * (turn % 5), f"w{turn * 3 % 20}") for turn in range(100)]
        prompts = [prompt for prompt, _ in prompts_of(PromptBuilder(TOKENIZER, n_ctx=n_ctx), persona, turns)]
        assert all(len(prompt.tokens) <= n_ctx - 60 for prompt in prompts)
        cuts = [cut(prompt, "history") for prompt in prompts]
        assert cuts == sorted(cuts)
        assert min(n_ctx - 60 - len(prompt.tokens) for prompt in prompts[50:]) < n_ctx // 3  # it does not forget more than it must


def recall_of(book: Lorebook, texts: list[str], costs: dict[int, int], room: int, rules: Rules) -> Mind:
    beats = [Beat(text, 2, "Hm.") for text in texts]
    return Recall(Attention(book, rules, beats), costs.__getitem__, room, book.always).since(0)


def test_a_past_is_held_to_need_as_much_for_lore_as_it_ever_did() -> None:
    book = Lorebook([Entry(f"t{n}", keys=(f"w{n}",)) for n in range(3)])
    mind = recall_of(book, ["w0", "w1", "w2"], {0: 50, 1: 50, 2: 10}, 100, Rules(scan_lines=1))
    assert (mind.ranked, mind.beats, mind.n_tokens) == ((2, 1), {1: 1, 2: 2}, 100)


def test_what_is_brought_along_counts_as_touched_before_all_that_the_talk_touches_now_and_after_all_it_touched_before() -> None:
    book = Lorebook([Entry("t", keys=("old",)), Entry("brought", keys=("w1",)), Entry("t", keys=("brought",)), Entry("t", keys=("new",))])
    texts = ["old", "-", "-", "w1", "-", "-", "new"]
    for n_beats, ranked in ((4, (1, 2, 0)), (6, (1, 2, 0)), (7, (3, 1, 2, 0))):
        assert recall_of(book, texts[:n_beats], dict.fromkeys(range(4), 1), 100, Rules(scan_lines=3)).ranked == ranked


# --- the receipt ----------------------------------------------------------------------------------------------------


def test_the_receipt_says_what_became_of_each_entry_and_why() -> None:
    persona = with_lore(
        Entry("Old.", "inn"),
        Entry("By the river.", "the mill", keys=("Mill", "wheel")),
        RIVER,
        Entry("z" * 500, "saga", keys=("saga",)),
        Entry("Never.", keys=("dragon",)),
        Entry("Off.", enabled=False),
        rules=Rules(tokens=400),
    )
    lines = [ann("Tell me a saga, and I tell you what I saw behind the mill last night, when all were asleep.")]
    wire = WIDE.build(persona, lines, 100).receipt.to_wire()["lore"]
    assert [(note["name"], note["state"], note["tokens"]) for note in wire] == [
        ("inn", "constant", 4),
        ("the mill", "key", 14),
        ("river", "brought", 19),
        ("saga", "left_out", 501),
        ("", "silent", 0),
        ("", "off", 0),
    ]
    assert [note["why"] for note in wire] == [
        "always known",
        "“Mill” in “…at I saw behind the mill last night, whe…”",
        "brought by the mill",
        f"no room: {1 + 500 + 2 + len('What comes to mind:')} tokens; all lore may take 400",
        "1 not touched",
        "1 switched off",
    ]
    assert all(type(note["state"]) is str for note in wire)


def test_the_receipt_names_the_newest_line_that_touched_an_entry_where_it_came_to_mind() -> None:
    entry = Entry("Ghosts.", "ghosts", keys=("mill", "wheel"), secondary=("night",))
    notes = WIDE.build(with_lore(entry), [ann("the mill"), npc("the wheel"), ann("night")], 100).receipt.lore
    assert [note.why for note in notes] == ["“wheel” in “the wheel”"]


def test_stretches_say_what_they_are() -> None:
    persona = replace(with_lore(MILL, Entry("Old.", "inn")), style="Gruff.", examples=[Exchange("Bed?", "Two.")], memories=["Ann paid."])
    lines = [ann("Hi."), npc("Yes?"), ann("The mill?")]
    stretches = WIDE.annotated(persona, lines, 100)
    assert [(each.part, each.name, TOKENIZER.show(each.tokens)) for each in stretches if each.part != "scaffold"] == [
        ("persona", "", "You are Greta."),
        ("style", "", "Gruff."),
        ("lore", "inn", "Old."),
        ("memory", "", "What you remember:\nAnn paid."),
        ("examples", "player", "Bed?"),
        ("examples", "reply", "Two."),
        ("history", "heard", "Hi."),
        ("history", "reply", "Yes?"),
        ("lore", "", "What comes to mind:"),
        ("lore", "mill", "\nThe mill burnt down."),
        ("line", "heard", "The mill?"),
    ]
    assert tuple(token for each in stretches for token in each.tokens) == WIDE.build(persona, lines, 100).tokens


def test_stretches_are_refused_where_the_prompt_would_be() -> None:
    with pytest.raises(AskedWrong, match="line has 500 tokens"):
        PromptBuilder(TOKENIZER, n_ctx=300).annotated(with_lore(MILL), [ann("x" * 500)], 50)


def test_every_entry_that_was_not_looked_at_is_in_the_receipt_with_a_reason() -> None:
    half = MOST_ALWAYS_BYTES // 2
    at_once = [Entry("t", f"{n}", keys=("mill",), priority=-n) for n in range(MOST_AT_ONCE + 1)]
    many_keys = Entry("t", "keys", keys=("river", "x" * MOST_KEY_CHARS))
    persona = with_lore(
        *at_once, many_keys, *(Entry("t" * half, f"long {n}") for n in range(3)), Entry("t", "quiet", keys=("fire",), priority=9)
    )
    receipt = WIDE.build(persona, [ann("The mill?")], 100).receipt
    why = {note.name: note.why for note in receipt.lore if note.state == LoreState.LEFT_OUT}
    assert why[f"{MOST_AT_ONCE}"] == "more than 32 were touched at once: those of the highest priority came to mind"
    assert why["long 2"] == "not looked at: the texts of all lore are too long together"
    assert why["keys"] == why["quiet"] == "not looked for: keys are too many, or regular expressions too large, together"
    assert sorted(note.name for note in receipt.lore) == sorted(entry.name for entry in persona.lore)
    assert next(cut for cut in receipt.cuts if cut.part == "lore").tokens is None
