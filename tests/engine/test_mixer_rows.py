"""What the mixer adds to the rows of a decode is the sum over each row's voice, in both forms of a site, on any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.engine import _mixer
from personae.engine.mixer import Sites, reference_delta, tables
from personae.packs.lora import Lora, Matrix
from personae.types import AdapterKey
from tests.engine.graph import CODES, Rows, Site

NAME, OTHER = "blk.0.attn_q.weight", "blk.0.attn_k.weight"
N_IN, N_OUT = 45, 70  # no multiples of a vector or of a panel
SITES = Sites({NAME: (N_IN, N_OUT), OTHER: (N_IN, N_IN)})
RANKS = (3, 16, 1, 33)  # of the four adapters
FORMS = {"whole": (2, True), "whole_on_one": (1, True), "halves": (5, True), "halves_elsewhere": (2, False), "halves_on_one": (1, False)}

Part = tuple[int, float]  # which adapter, its scale
SOLO: tuple[Part, ...] = ((0, 1.0),)
PAIR: tuple[Part, ...] = ((0, 0.5), (1, -1.25))
TRIO: tuple[Part, ...] = ((1, 1.0), (2, 3.0), (3, 0.25))
ALL: tuple[Part, ...] = ((0, 1.0), (1, 0.5), (2, -2.0), (3, 0.75))
CAST = (ALL, ALL, ALL, (), PAIR, PAIR, TRIO, SOLO, ALL, (), (), SOLO)  # neighbours that share a voice, and some that do not


def draw(*dims: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, *dims]).standard_normal(dims)


def matrix(rank: int, n_in: int, n_out: int) -> Matrix:
    a, b = draw(rank, n_in, seed=1).astype(np.float16), draw(n_out, rank, seed=2).astype(np.float16)
    return Matrix(a, b, 1.5)


MATRICES = [matrix(rank, N_IN, N_OUT) for rank in RANKS]


def adapter(matrices: dict[str, Matrix]) -> _mixer.Adapter:
    return tables(Lora(Path("a.gguf"), AdapterKey("0" * 64), None, 1, matrices, ()), SITES)


ADAPTERS = [adapter({NAME: one}) for one in MATRICES]
ELSEWHERE = adapter({OTHER: matrix(5, N_IN, N_IN)})
X, RES = draw(len(CAST), N_IN, seed=3).astype(np.float32), draw(len(CAST), N_OUT, seed=4).astype(np.float32)


def parts(voice: Sequence[Part]) -> _mixer.Parts:
    return tuple((ADAPTERS[i], scale) for i, scale in voice)


def run(
    voices: Sequence[_mixer.Parts], form: str = "whole", *, x: Rows = X, res: Rows = RES, wants: Sequence[bool] = (True,) * len(CAST)
) -> Rows:
    threads, in_place = FORMS[form]
    mixer = _mixer.Mixer(SITES.as_list(), CODES, threads)
    site = Site(NAME, x, res, in_place=in_place)
    site.show_to(mixer)
    assert site.form == form.split("_")[0]
    mixer.set_rows(list(voices), list(wants))
    out = site.run(threads)
    assert mixer.counts() == {"rewritten": 1, "broken": 0, "misfits": 0}
    return out


def assert_sum(got: Rows, voice: Sequence[Part], x: Rows, res: Rows) -> None:
    """Within float32 rounding of what could be added up at all."""
    if not voice:
        assert np.array_equal(got, res)
        return
    terms = [(Matrix(np.abs(MATRICES[i].a), np.abs(MATRICES[i].b), MATRICES[i].scale), abs(scale)) for i, scale in voice]
    wanted = res + reference_delta([(MATRICES[i], scale) for i, scale in voice], x)
    assert (np.abs(got - wanted) <= 2e-5 * (np.abs(res) + reference_delta(terms, np.abs(x)))).all()


@pytest.mark.parametrize("form", FORMS)
def test_each_row_gets_the_sum_of_its_own_voice(form: str) -> None:
    out = run([parts(voice) for voice in CAST], form)
    for row, voice in enumerate(CAST):
        assert_sum(out[row], voice, X[row], RES[row])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_rows_of_one_voice_of_any_number_of_parts_are_each_its_sum(n: int, form: str) -> None:
    out = run([parts(ALL[:n])] * len(CAST), form)
    for row in range(len(CAST)):
        assert_sum(out[row], ALL[:n], X[row], RES[row])


def test_every_form_and_every_kernel_set_gives_each_row_the_same_bits_in_any_company() -> None:
    """The same within a kernel set; another set rounds otherwise."""
    for name in ("plain", None):
        _mixer.use_kernels(name)
        usual = run([parts(voice) for voice in CAST])
        for form in FORMS:
            assert np.array_equal(run([parts(voice) for voice in CAST], form), usual)
            for others in ((), SOLO, ALL):
                out = run([parts(ALL if row == 2 else others) for row in range(len(CAST))], form)
                assert np.array_equal(out[2], usual[2])


@pytest.mark.parametrize("form", FORMS)
def test_only_rows_whose_logits_are_wanted_are_there_after_the_last_attention(form: str) -> None:
    wants = [row % 3 != 1 for row in range(len(CAST))]  # 8 of 12
    kept = np.flatnonzero(wants)
    out = run([parts(voice) for voice in CAST], form, x=X[kept], res=RES[kept], wants=wants)
    for at, row in enumerate(kept):
        assert_sum(out[at], CAST[row], X[row], RES[row])


@pytest.mark.parametrize("form", FORMS)
def test_a_part_that_does_not_touch_a_matrix_adds_nothing_to_it(form: str) -> None:
    usual = run([parts(PAIR)] * len(CAST), form)
    first, second = parts(PAIR)
    assert np.array_equal(run([(first, (ELSEWHERE, 7.0), second)] * len(CAST), form), usual)
    assert np.array_equal(run([((ELSEWHERE, 7.0),)] * len(CAST), form), RES)


@pytest.mark.parametrize("form", FORMS)
def test_a_voice_of_two_is_the_adapter_that_their_ranks_make_together(form: str) -> None:
    one, two = MATRICES[0], MATRICES[1]
    b = np.concatenate([one.b * np.float16(0.5), two.b * np.float16(-2.0)], axis=1)
    whole = adapter({NAME: Matrix(np.concatenate([one.a, two.a]), b, 1.5)})
    together = run([((whole, 1.0),)] * len(CAST), form)
    apart = run([parts(((0, 0.5), (1, -2.0)))] * len(CAST), form)
    assert np.allclose(apart, together, rtol=1e-5, atol=2e-4)
    assert not np.array_equal(apart, RES)


def test_a_graph_laid_out_once_serves_the_voices_of_every_later_decode() -> None:
    """And whoever has fewer parts than the row before it on the same scratch hears nothing of them."""
    mixer, site = _mixer.Mixer(SITES.as_list(), CODES, 5), Site(NAME, X, RES, in_place=False)
    site.show_to(mixer)
    for voice in (ALL, SOLO, PAIR, (), TRIO):
        mixer.set_rows([parts(voice)] * len(CAST), [True] * len(CAST))
        out = site.run(5)
        for row in range(len(CAST)):
            assert_sum(out[row], voice, X[row], RES[row])


def test_rows_that_are_not_those_of_the_graph_are_counted_and_left_alone() -> None:
    mixer, site = _mixer.Mixer(SITES.as_list(), CODES, 1), Site(NAME, X, RES, in_place=True)
    site.show_to(mixer)
    mixer.set_rows([parts(ALL)] * 3, [True, False, True])
    assert np.array_equal(site.run(1), RES)
    assert mixer.counts()["misfits"] == 1
