"""A draw is what its settings say: judged against NumPy's own distribution, on logits made up here and on a tiny model's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.engine.llama.model import Model
from personae.engine.llama.sampling import Candidates, LlamaSampler
from personae.errors import AskedWrong, WorldFailed
from personae.types import FinishReason, SamplingParams
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import GREEDY, House, begin_turn, prompt
from tests.tiny import TinyModel
from tests.tiny.stock import stock_greedy
from tests.tiny.vocabulary import FIRST_BYTE, IM_END, N_VOCAB

Logits = NDArray[np.float32]

OPEN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)  # nothing is cut
N_WORDS = 50_000  # a vocabulary of the size of real ones, for draws without a model
N_DRAWS = 2000
A, B, X = (FIRST_BYTE + ord(letter) for letter in "abx")


@pytest.fixture(scope="module")
def tiny(llama: TinyModel) -> Any:
    model = Model(str(llama.path))
    yield model
    model.close()


@pytest.fixture(scope="module")
def big(tiny: Model) -> Any:
    """What a sampler asks of a model, with a vocabulary that no tiny model has."""
    return SimpleNamespace(n_vocab=N_WORDS, n_ctx_train=512, vocab=tiny.vocab)


def some_logits(n: int, seed: int = 0, spread: float = 3.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def draws(model: Any, params: SamplingParams, logits: Logits, n: int, accepted: Sequence[int] = ()) -> list[int]:
    """n draws from the same logits by one sampler."""
    sampler = LlamaSampler(model, params, Candidates(len(logits)))
    for token in accepted:
        sampler.accept(token)
    drawn = [sampler.draw(logits) for _ in range(n)]
    sampler.close()
    sampler.close()
    return drawn


def share(logits: Logits, params: SamplingParams) -> NDArray[np.float64]:
    """The distribution that the settings mean: top-k, top-p, min-p, then temperature."""
    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k or None]
    p = softmax(logits[kept])
    if params.top_p < 1:
        n = int(np.searchsorted(np.cumsum(p), params.top_p)) + 1
        kept, p = kept[:n], p[:n]
    kept = kept[p >= params.min_p * p[0]]
    result = np.zeros(len(logits))
    result[kept] = softmax(logits[kept] / params.temperature)
    return result


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    p = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(p / p.sum())


# --- greedy, seeds, distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [N_VOCAB, N_WORDS])
def test_greedy_is_the_likeliest_token(n: int, tiny: Model, big: Any) -> None:
    for seed in range(30):
        logits = some_logits(n, seed)
        assert draws(tiny if n == N_VOCAB else big, GREEDY, logits, 1) == [logits.argmax()]


@pytest.mark.parametrize("n", [N_VOCAB, N_WORDS])
def test_a_seed_gives_the_same_tokens_twice_and_another_seed_others(n: int, tiny: Model, big: Any) -> None:
    model, logits = (tiny if n == N_VOCAB else big), some_logits(n)
    first, again, other = (draws(model, replace(SamplingParams(top_k=0, min_p=0), seed=seed), logits, 40) for seed in (7, 7, 8))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63])
def test_every_seed_can_be_repeated(seed: int, tiny: Model) -> None:
    """llama.cpp takes 2^32 - 1 for "by chance"."""
    params = replace(OPEN, seed=seed)
    assert draws(tiny, params, some_logits(N_VOCAB), 30) == draws(tiny, params, some_logits(N_VOCAB), 30)


SETTINGS = {
    "open": OPEN,
    "hot": replace(OPEN, temperature=2.0),
    "cold": replace(OPEN, temperature=0.3),
    "top_k": replace(OPEN, top_k=5),
    "top_k_of_one": replace(OPEN, top_k=1),
    "top_p": replace(OPEN, top_p=0.7),
    "min_p": replace(OPEN, min_p=0.1),
    "all": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
    "more_than_there_are": replace(OPEN, top_k=100_000),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_follow_the_distribution_that_the_settings_mean(name: str, tiny: Model) -> None:
    """2000 draws under a fixed seed: nothing outside the support, and every frequency within four deviations."""
    params, logits = replace(SETTINGS[name], seed=11), some_logits(N_VOCAB, seed=5)
    wanted = share(logits, params)
    counts = Counter(draws(tiny, params, logits, N_DRAWS))
    assert set(counts) <= set(np.flatnonzero(wanted))
    seen = np.array([counts[token] for token in range(N_VOCAB)]) / N_DRAWS
    assert (np.abs(seen - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / N_DRAWS) + 1e-3).all()


# --- the cut before the chain -------------------------------------------------------------------------------------


NO_BIAS = ((17, 0.0),)  # lifts nothing, and makes the chain see the whole vocabulary
PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "repeat": {"repeat_penalty": 1.3, "repeat_last_n": 64},
    "frequency": {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 2},
    "dry_of_single_tokens": {"dry_multiplier": 50.0, "dry_allowed_length": 0, "dry_base": 1.0},
    "reward_for_repeating": {"repeat_penalty": 0.2, "repeat_last_n": 64},
    "reward_for_frequency": {"frequency_penalty": -5.0},
    "reward_for_presence": {"presence_penalty": -5.0, "repeat_last_n": -1},
}


def what_was_heard(logits: Logits, seed: int, rewarded: bool) -> list[int]:
    """Nearly all of the likeliest, and a phrase of them that has begun again: penalties turn the order round.

    `rewarded`: some from far below the cut, which a reward lifts over all.
    """
    rng, best = np.random.default_rng(seed), np.argsort(-logits)
    heard = best[1500:1540] if rewarded else [*rng.permutation(best[:420]), *best[:4], *best[:4], *best[:3]]
    return [int(token) for token in heard]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", PENALTIES)
def test_leaving_out_the_unlikely_changes_no_draw(name: str, greedy: bool, big: Any) -> None:
    params = replace(SamplingParams(temperature=0 if greedy else 1.2, top_k=30, seed=3), **PENALTIES[name])
    for seed in range(4):
        logits = some_logits(N_WORDS, seed, spread=1.0)
        heard = what_was_heard(logits, seed, rewarded="reward" in name)
        cut, whole = (draws(big, replace(params, logit_bias=bias), logits, 25, heard) for bias in ((), NO_BIAS))
        assert cut == whole


def test_ties_are_kept_together(big: Any) -> None:
    logits = np.zeros(N_WORDS, np.float32)
    logits[[5, 40_000, 49_999]] = 1.0
    assert set(draws(big, replace(OPEN, top_k=3, seed=1), logits, 200)) == {5, 40_000, 49_999}
    assert draws(big, replace(OPEN, top_k=10, seed=1), np.zeros(N_WORDS, np.float32), 5)


# --- penalties, bias ----------------------------------------------------------------------------------------------


def two_horses(gap: float = 0.5) -> Logits:
    """A is the likeliest, B just behind."""
    logits = np.full(N_VOCAB, -20, np.float32)
    logits[A], logits[B] = 4, 4 - gap
    return logits


def test_repetition_penalty_counts_what_was_accepted(tiny: Model) -> None:
    params = replace(GREEDY, repeat_penalty=1.5)
    assert draws(tiny, params, two_horses(), 1) == [A]
    assert draws(tiny, params, two_horses(), 1, [A]) == [B]
    assert draws(tiny, replace(params, repeat_last_n=2), two_horses(), 1, [A, X, X]) == [A]
    assert draws(tiny, replace(params, repeat_last_n=-1), two_horses(), 1, [A] + [X] * 300) == [B]
    assert draws(tiny, replace(params, repeat_last_n=0), two_horses(), 1, [A]) == [A]


def test_repetition_penalty_counts_what_was_drawn(tiny: Model) -> None:
    assert draws(tiny, replace(GREEDY, presence_penalty=1.0), two_horses(), 3) == [A, B, A]
    assert draws(tiny, replace(GREEDY, frequency_penalty=0.4), two_horses(), 4) == [A, A, B, A]


def test_dry_stops_a_phrase_that_comes_again(tiny: Model) -> None:
    phrase = prompt("the rain in ")
    heard = [*phrase, A, X, *phrase]
    params = replace(GREEDY, dry_multiplier=1.0)
    assert draws(tiny, params, two_horses(), 1, heard) == [B]
    assert draws(tiny, params, two_horses(), 1, phrase) == [A]
    assert draws(tiny, replace(params, dry_last_n=4), two_horses(), 1, heard) == [A]
    assert draws(tiny, replace(params, dry_last_n=0), two_horses(), 1, heard) == [A]


def test_logit_bias_lifts_and_forbids(tiny: Model) -> None:
    assert draws(tiny, replace(GREEDY, logit_bias=((B, 1.0),)), two_horses(), 1) == [B]
    assert draws(tiny, replace(GREEDY, logit_bias=((X, 100.0), (A, -100.0))), two_horses(), 1) == [X]
    assert A not in draws(tiny, replace(OPEN, seed=1, logit_bias=((A, -float("inf")),)), two_horses(), 100)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31 - 1])
def test_a_bias_on_a_token_that_is_none_changes_nothing(token: int, tiny: Model) -> None:
    assert draws(tiny, replace(GREEDY, logit_bias=((token, 100.0),)), two_horses(), 1) == [A]


# --- grammar ------------------------------------------------------------------------------------------------------

YES_OR_NO = 'root ::= "yes" | "no"'
DEAD_END = 'root ::= "a" <[99999]>'  # after the a, no token of this vocabulary goes on


def text_of(tokens: Sequence[int]) -> str:
    return bytes(token - FIRST_BYTE for token in tokens if FIRST_BYTE <= token < FIRST_BYTE + 256).decode()


def byte_logits(n: int = N_VOCAB, seed: int = 0) -> Logits:
    """Merged tokens are left out, so that a text can be read off the ids."""
    logits = some_logits(n, seed)
    logits[FIRST_BYTE + 256 :] = -50
    return logits


@pytest.mark.parametrize("params", [GREEDY, replace(OPEN, seed=4), SamplingParams(seed=4)])
def test_a_grammar_constrains_every_draw_and_then_ends(params: SamplingParams, tiny: Model) -> None:
    for seed in range(10):
        sampler = LlamaSampler(tiny, replace(params, grammar=YES_OR_NO), Candidates(N_VOCAB))
        drawn = []
        while not drawn or drawn[-1] != IM_END:
            drawn.append(sampler.draw(byte_logits(seed=seed + len(drawn))))
        sampler.close()
        assert text_of(drawn) in ("yes", "no")


BAD_GRAMMARS = {
    "nothing": "",
    "no_rule": "just some text",
    "no_root": 'reply ::= "yes"',
    "undefined_rule": "root ::= answer",
    "unclosed": 'root ::= ("yes"',
    "unclosed_text": 'root ::= "yes',
    "left_recursion": 'root ::= root "a" | "b"',
    "for_ever": 'root ::= (""|"a")* ""*',
    "too_many_repeats": 'root ::= "a"{99999}',
    "a_lone_surrogate": "root ::= \ud800",
    "too_deep": "root ::= " + "(" * 30_000,  # alone, this overflows the stack of llama.cpp's parser
}


@pytest.mark.parametrize("name", BAD_GRAMMARS)
def test_a_grammar_that_cannot_be_compiled_is_refused(name: str, tiny: Model) -> None:
    with pytest.raises(AskedWrong) as refusal:
        LlamaSampler(tiny, replace(GREEDY, grammar=BAD_GRAMMARS[name]), Candidates(N_VOCAB))
    assert (refusal.value.code, bool(refusal.value.hint)) == ("bad_grammar", True)


def test_a_grammar_that_allows_nothing_more_is_an_error_of_that_draw(tiny: Model) -> None:
    for params in (GREEDY, replace(OPEN, seed=1), SamplingParams(seed=1)):
        sampler = LlamaSampler(tiny, replace(params, grammar=DEAD_END), Candidates(N_VOCAB))
        assert sampler.draw(two_horses()) == A
        with pytest.raises(AskedWrong) as nothing:
            sampler.draw(two_horses())
        assert nothing.value.code == "grammar_error"
        sampler.close()


@pytest.mark.parametrize("params", [GREEDY, replace(OPEN, seed=1), SamplingParams(seed=1), replace(GREEDY, grammar=YES_OR_NO)])
@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_a_failure_and_no_crash(params: SamplingParams, what: float, tiny: Model) -> None:
    sampler = LlamaSampler(tiny, params, Candidates(N_VOCAB))
    with pytest.raises(WorldFailed, match="not numbers") as failed:
        sampler.draw(np.full(N_VOCAB, what, np.float32))
    sampler.close()
    assert failed.value.code == "engine_failed"


# --- through the loop: one turn's sampler is no other turn's ------------------------------------------------------


@pytest.fixture
def house(llama: TinyModel, start: Start) -> House:
    return House(start(llama.path))


def finish(house: House, turn: int, first: int, reason: FinishReason | None) -> tuple[list[int], FinishReason]:
    drawn = [first]
    while reason is None:
        (row,) = house.step(turn).rows
        drawn.append(row.token)
        reason = row.finish
    return drawn, reason


def reply(house: House, turn: int, slot: int, line: str, **more: Any) -> tuple[list[int], FinishReason]:
    (row,) = house.begin(turn, slot, prompt(line), **more).rows
    return finish(house, turn, row.token, row.finish)


def test_a_bad_grammar_faults_its_turn_before_it_begins_and_nobody_else(house: House, llama: TinyModel) -> None:
    (row,) = house.begin(1, 0, prompt(), max_tokens=10).rows
    house.do(begin_turn(2, 1, sampling=replace(GREEDY, grammar="root ::= (")))
    fault = house.fault()
    assert (fault.turn, fault.code) == (2, "bad_grammar")
    assert finish(house, 1, row.token, row.finish)[0] == stock_greedy(llama.path, prompt(), 10)
    assert reply(house, 3, 1, "Hm?", max_tokens=5)[0] == stock_greedy(llama.path, prompt("Hm?"), 5)


def test_a_grammar_without_continuation_ends_that_turn_alone(house: House, llama: TinyModel) -> None:
    house.begin(1, 0, prompt(), max_tokens=20)
    (row,) = house.begin(2, 1, prompt("Say a."), sampling=replace(GREEDY, grammar=DEAD_END)).rows
    assert row.token == A
    done = house.step(1, 2)
    assert [(fault.turn, fault.code) for fault in done.faults] == [(2, "grammar_error")]
    assert [row.turn for row in done.rows] == [1]
    drawn = stock_greedy(llama.path, prompt(), 20)
    assert done.rows[0].token == drawn[1]
    assert finish(house, 1, done.rows[0].token, None)[0] == drawn[1:]


def test_the_second_reply_under_a_grammar_is_as_good_as_the_first(house: House) -> None:
    params = replace(GREEDY, grammar=YES_OR_NO)
    replies = [reply(house, turn, 0, "Is it?", sampling=params) for turn in (1, 2, 3)]
    assert [reason for _, reason in replies] == [FinishReason.END] * 3
    assert replies[0] == replies[1] == replies[2]
    text = "".join(house.backend.vocabulary.piece(token).decode() for token in replies[0][0])
    assert text in ("yes", "no")


def test_two_turns_under_grammars_do_not_share_their_state(house: House) -> None:
    params = replace(GREEDY, grammar='root ::= "abcdef"')
    house.begin(1, 0, prompt("One."), sampling=params)
    house.step(1)
    house.begin(2, 1, prompt("Two."), sampling=params)
    texts = {1: b"", 2: b""}
    while rows := house.step(1, 2).rows:
        for row in rows:
            texts[int(row.turn)] += house.backend.vocabulary.piece(row.token)
    assert (texts[1], texts[2]) == (b"cdef", b"bcdef")


def test_penalties_see_the_prompt_and_the_prefix_that_was_kept(house: House) -> None:
    """The likeliest first token is put into the prompt; a strong penalty on it must make another one win."""
    params = replace(GREEDY, presence_penalty=50.0)
    favourite = reply(house, 1, 0, "Hm?", max_tokens=1)[0][0]
    heard = [favourite, *prompt("Hm?")]
    (row,) = house.begin(2, 1, heard, max_tokens=1).rows
    shunned = row.token
    (row,) = house.begin(3, 2, [shunned, *heard], max_tokens=1, sampling=params).rows
    assert row.token not in {shunned, *heard}
    (row,) = house.begin(4, 2, heard[-1:], keep=len(heard), history=[shunned, *heard[:-1]], max_tokens=1, sampling=params).rows
    assert row.token not in {shunned, *heard}


def test_the_seed_of_a_turn_decides_its_reply(house: House) -> None:
    params = replace(OPEN, temperature=1.5, seed=5)
    first, again = (reply(house, turn, turn, "Well?", max_tokens=12, sampling=params) for turn in (1, 2))
    other = reply(house, 3, 3, "Well?", max_tokens=12, sampling=replace(params, seed=6))
    assert first == again
    assert first != other
