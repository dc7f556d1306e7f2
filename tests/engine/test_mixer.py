"""The C kernels say what NumPy says, keep what they are given, refuse what they cannot hold, and give memory back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.engine import _mixer
from personae.engine.mixer import Sites, reference_delta, tables, to_halves
from personae.packs.lora import Lora, Matrix
from personae.types import MAX_VOICE_PARTS, AdapterKey

RANKS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64, 255, 256)
WIDTHS = (1, 7, 31, 33, 48, 576)
SITE = "blk.0.attn_q.weight"
CODES = tuple(range(9))


def can_run(name: str) -> bool:
    try:
        return _mixer.use_kernels(name) == name
    except ValueError:
        return False
    finally:
        _mixer.use_kernels(None)


KERNELS = [name for name in ("plain", "avx2", "avx512", "neon") if can_run(name)]


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    yield _mixer.use_kernels(request.param)
    _mixer.use_kernels(None)


def draw(*dims: int, seed: int = 0, magnitude: float = 1.0, dtype: type = np.float16) -> NDArray[np.generic]:
    return (np.random.default_rng([seed, *dims]).standard_normal(dims) * magnitude).astype(dtype)


def a_matrix(rank: int, n_in: int, n_out: int, *, magnitude: float = 1.0, dtype: type = np.float16, scale: float = 1.5) -> Matrix:
    a, b = (draw(*dims, magnitude=magnitude, dtype=dtype, seed=seed) for seed, dims in enumerate(((rank, n_in), (n_out, rank))))
    return Matrix(a, b, scale)  # type: ignore[arg-type]


def adapter_of(matrix: Matrix) -> _mixer.Adapter:
    lora = Lora(Path("a.gguf"), AdapterKey("0" * 64), None, matrix.rank, {SITE: matrix}, ())
    return tables(lora, Sites({SITE: (matrix.a.shape[1], matrix.b.shape[0])}))


def said(matrix: Matrix, x: NDArray[np.float32], scale: float = 1.0) -> NDArray[np.float32]:
    n_out, n_in = matrix.b.shape[0], matrix.a.shape[1]
    return np.frombuffer(_mixer.delta(((adapter_of(matrix), scale),), 0, n_in, n_out, x.tobytes()), np.float32)


def assert_close(got: NDArray[np.float32], matrix: Matrix, x: NDArray[np.float32], scale: float = 1.0, within: float = 2e-5) -> None:
    """Within float32 rounding of what could be added up at all: sums that cancel are judged by their terms."""
    magnitude = reference_delta([(Matrix(np.abs(matrix.a), np.abs(matrix.b), abs(matrix.scale)), abs(scale))], np.abs(x))
    assert (np.abs(got - reference_delta([(matrix, scale)], x)) <= within * magnitude + 1e-30).all()


def test_this_cpu_runs_more_than_the_plain_kernels_on_the_machines_we_know() -> None:
    assert KERNELS[0] == "plain"
    assert _mixer.use_kernels(None) == KERNELS[-1]


@pytest.mark.parametrize("rank", RANKS)
def test_every_kernel_agrees_with_numpy_at_every_width(kernels: str, rank: int) -> None:
    for n_in in WIDTHS:
        for n_out in WIDTHS:
            matrix = a_matrix(rank, n_in, n_out)
            x = draw(n_in, seed=9, dtype=np.float32)
            assert_close(said(matrix, x, 0.75), matrix, x, 0.75)  # type: ignore[arg-type]


def test_kernels_agree_with_each_other_within_rounding() -> None:
    matrix, x = a_matrix(33, 576, 33), draw(576, dtype=np.float32)
    answers = []
    for name in KERNELS:
        _mixer.use_kernels(name)
        answers.append(said(matrix, x))  # type: ignore[arg-type]
    _mixer.use_kernels(None)
    assert all(np.allclose(answer, answers[0], rtol=1e-4, atol=1e-2) for answer in answers)


@pytest.mark.parametrize("a_size", [1e6, 1.0, 1e-7, 1e-30])
@pytest.mark.parametrize("b_size", [1e6, 1.0, 1e-7])
def test_huge_and_tiny_float32_weights_survive_the_halves(a_size: float, b_size: float) -> None:
    a, b = (draw(*dims, magnitude=size, dtype=np.float32) for dims, size in (((8, 48), a_size), ((33, 8), b_size)))
    matrix, x = Matrix(a, b, 1.0), draw(48, seed=3, dtype=np.float32)  # type: ignore[arg-type]
    assert_close(said(matrix, x), matrix, x, within=2**-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e6, 1.0, 1e-7])
def test_float32_weights_lose_only_the_rounding_of_a_half(size: float) -> None:
    weights = draw(50, 48, magnitude=size, dtype=np.float32)
    halves, exponent = to_halves(weights)
    back = np.ldexp(halves.astype(np.float64), -exponent)
    assert np.abs(halves).max() < 2**12
    assert (np.abs(back - weights) <= 2.0**-11 * np.abs(weights) + np.abs(weights).max() * 2.0**-36).all()


def test_values_of_bfloat16_are_kept_exactly() -> None:
    """8 bits of mantissa fit into 11, as long as nothing falls out at the bottom."""
    raw = draw(40, 40, magnitude=3e5, dtype=np.float32).view(np.uint32) & 0xFFFF0000
    weights = raw.view(np.float32)
    weights[np.abs(weights) < np.abs(weights).max() * 2.0**-20] = 0
    halves, exponent = to_halves(weights)
    assert np.array_equal(np.ldexp(halves.astype(np.float64), -exponent), weights.astype(np.float64))


def test_float16_weights_are_kept_bit_for_bit() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(64, -1)
    halves, exponent = to_halves(finite)
    assert exponent == 0
    assert halves.tobytes() == finite.tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (3, 40)])
def test_a_matrix_of_zeros_stays_zero(shape: tuple[int, int]) -> None:
    halves, exponent = to_halves(np.zeros(shape, np.float32))
    assert (exponent, halves.any()) == (0, False)


def test_every_finite_half_is_widened_exactly_by_every_kernel(kernels: str) -> None:
    """An A of one row picks each half in turn, subnormals and signed zeros too."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(-1, 1)  # B: n_out x 1
    matrix = Matrix(np.ones((1, 1), np.float16), finite, 1.0)
    got = said(matrix, np.ones(1, np.float32))
    assert np.array_equal(got, finite[:, 0].astype(np.float32))


# --- what it refuses ----------------------------------------------------------------------------------------------


def entry(site: int = 0, rank: int = 4, n_in: int = 8, n_out: int = 8, a: object = None, b: object = None) -> tuple[object, ...]:
    a = bytes(2 * rank * n_in) if a is None else a
    b = bytes(2 * rank * n_out) if b is None else b
    return site, rank, n_in, n_out, 1.0, a, b


BAD_MATRICES: dict[str, tuple[object, ...]] = {
    "a_too_short": entry(a=bytes(63)),
    "a_too_long": entry(a=bytes(65)),
    "b_too_short": entry(b=bytes(2)),
    "b_empty": entry(b=b""),
    "rank_0": entry(rank=0),
    "rank_257": entry(rank=257, n_in=1, n_out=1),
    "rank_negative": entry(a=b"", b=b"", rank=-1),
    "no_inputs": entry(n_in=0),
    "no_outputs": entry(n_out=0),
    "sizes_that_overflow": entry(rank=2, n_in=2**62, n_out=2**62, a=b"", b=b""),
    "too_wide": entry(rank=1, n_in=2**24 + 1, n_out=1, a=b""),
    "site_negative": entry(site=-1),
    "site_too_far": entry(site=2),
    "a_is_a_text": entry(a="a" * 64),
    "too_few_fields": (0, 4, 8, 8),
}


@pytest.mark.parametrize("name", BAD_MATRICES)
def test_a_matrix_that_lies_about_itself_is_refused(name: str) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        _mixer.Adapter(2, [entry(), BAD_MATRICES[name]])  # type: ignore[list-item]


def test_a_matrix_that_grows_while_it_is_read_is_refused() -> None:
    with pytest.raises(ValueError, match="grew"):
        _mixer.Adapter(2, [(0, Meddler(), 45, 70, 1.0, bytes(2 * 200 * 45), bytes(2 * 200 * 70))])  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [None, 7, b"matrix"])
def test_a_list_of_anything_else_is_refused(bad: object) -> None:
    with pytest.raises((TypeError, SystemError)):
        _mixer.Adapter(2, [bad])  # type: ignore[list-item]


@pytest.mark.parametrize("n_sites", [0, -1, _mixer.MAX_SITES + 1])
def test_an_adapter_of_no_sites_or_too_many_is_refused(n_sites: int) -> None:
    with pytest.raises(ValueError, match="n_sites"):
        _mixer.Adapter(n_sites, [])


def test_an_adapter_is_made_once() -> None:
    adapter = _mixer.Adapter(1, [entry()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="n_sites"):
        adapter.__init__(1, [entry()])  # type: ignore[misc, list-item]


def mixer(*shapes: tuple[int, int], threads: int = 1) -> _mixer.Mixer:
    return _mixer.Mixer([(f"blk.{i}.w", *shape) for i, shape in enumerate(shapes or ((8, 8), (8, 8)))], CODES, threads)


def adapter(*entries: tuple[object, ...], n_sites: int = 2) -> _mixer.Adapter:
    return _mixer.Adapter(n_sites, list(entries or (entry(),)))  # type: ignore[arg-type]


class Meddler:
    """Says something else whenever it is asked, and could change a list meanwhile."""

    n_asked = 0

    def __index__(self) -> int:
        self.n_asked += 1
        return 1 if self.n_asked == 1 else 200

    def __float__(self) -> float:
        return 1.0

    def __bool__(self) -> bool:
        return True


def alone(one: object, scale: object = 1.0) -> tuple[tuple[object, object]]:
    """A voice of one adapter."""
    return ((one, scale),)


BAD_ROWS: dict[str, Callable[[], tuple[object, object]]] = {
    "no_rows": lambda: ([], []),
    "too_many": lambda: ([()] * (_mixer.MAX_ROWS + 1), [True] * (_mixer.MAX_ROWS + 1)),
    "voices_short": lambda: ([()], [True, True]),
    "wants_short": lambda: ([(), ()], [True]),
    "not_an_adapter": lambda: ([alone("a")], [True]),
    "no_voice": lambda: ([None], [True]),
    "a_voice_that_can_be_changed": lambda: ([[(adapter(), 1.0)]], [True]),
    "a_part_that_can_be_changed": lambda: ([([adapter(), 1.0],)], [True]),
    "a_part_without_scale": lambda: ([((adapter(),),)], [True]),
    "of_other_site_count": lambda: ([alone(adapter(n_sites=3))], [True]),
    "of_other_shape": lambda: ([alone(adapter(entry(n_in=4)))], [True]),
    "of_other_shape_behind_a_good_one": lambda: ([alone(adapter()), alone(adapter(entry(site=1, n_out=64)))], [True] * 2),
    "of_other_shape_as_a_second_part": lambda: ([alone(adapter()) + alone(adapter(entry(site=1, n_out=64)))], [True]),
    "never_initialised": lambda: ([alone(_mixer.Adapter.__new__(_mixer.Adapter))], [True]),
    "scale_is_a_text": lambda: ([alone(adapter(), "x")], [True]),
    "scale_runs_code": lambda: ([alone(adapter(), Meddler())], [True]),
    "wants_runs_code": lambda: ([()], [Meddler()]),
    "tuples": lambda: (((),), (True,)),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_do_not_fit_are_refused(name: str) -> None:
    rows = mixer()
    with pytest.raises((ValueError, TypeError)):
        rows.set_rows(*BAD_ROWS[name]())  # type: ignore[arg-type]
    rows.set_rows([((adapter(), 1.0),), ()], [True, False])  # and it goes on


def test_the_most_rows_are_taken() -> None:
    one = adapter()
    mixer().set_rows([((one, 1.0),) * MAX_VOICE_PARTS] * _mixer.MAX_ROWS, [False] * _mixer.MAX_ROWS)


def test_a_voice_of_too_many_parts_is_out_of_range() -> None:
    """As many as the types allow, and no more."""
    assert _mixer.MAX_PARTS == MAX_VOICE_PARTS
    one = adapter()
    with pytest.raises(ValueError, match="5 parts; at most 4"):
        mixer().set_rows([(), ((one, 1.0),) * 5], [True, True])
    with pytest.raises(ValueError, match="5 parts; at most 4"):
        _mixer.delta(((one, 1.0),) * 5, 0, 8, 8, bytes(32))


BAD_MIXERS: dict[str, tuple[object, object, object]] = {
    "no_sites": ([], CODES, 1),
    "too_many_sites": ([("w", 1, 1)] * (_mixer.MAX_SITES + 1), CODES, 1),
    "no_threads": ([("w", 1, 1)], CODES, 0),
    "too_few_codes": ([("w", 1, 1)], CODES[:5], 1),
    "a_site_without_inputs": ([("w", 0, 1)], CODES, 1),
    "a_site_too_wide": ([("w", 1, 2**24 + 1)], CODES, 1),
    "a_name_too_long": ([("w" * 64, 1, 1)], CODES, 1),
    "a_name_that_is_a_number": ([(1, 1, 1)], CODES, 1),
}


@pytest.mark.parametrize("name", BAD_MIXERS)
def test_a_mixer_that_makes_no_sense_is_refused(name: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        _mixer.Mixer(*BAD_MIXERS[name])  # type: ignore[arg-type]


def test_a_mixer_that_was_never_initialised_takes_no_rows() -> None:
    empty = _mixer.Mixer.__new__(_mixer.Mixer)
    with pytest.raises(ValueError, match="initialised"):
        empty.set_rows([()], [True])
    assert empty.seen() == []
    with pytest.raises(ValueError, match="threads"):
        empty.set_threads(0)


@pytest.mark.parametrize(
    ("site", "n_in", "n_out", "n_x"), [(1, 8, 8, 8), (-1, 8, 8, 8), (0, 9, 8, 9), (0, 8, 99, 8), (0, 8, -1, 8), (0, 8, 8, 7)]
)
def test_delta_of_other_sizes_is_refused(site: int, n_in: int, n_out: int, n_x: int) -> None:
    with pytest.raises(ValueError, match=r"no matrix|holds"):
        _mixer.delta(((adapter(), 1.0),), site, n_in, n_out, bytes(4 * n_x))


def test_kernels_that_do_not_exist_are_refused_and_the_old_ones_stay() -> None:
    before = _mixer.use_kernels(None)
    with pytest.raises(ValueError, match="quantum"):
        _mixer.use_kernels("quantum")
    assert _mixer.use_kernels(None) == before


def test_no_tensor_is_no_crash() -> None:
    with pytest.raises(ValueError, match="no tensor"):
        _mixer.probe(0)


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_out", "padded"), [(1, 32), (32, 32), (33, 64), (576, 576)])
def test_padded_bytes_are_reported(n_out: int, padded: int) -> None:
    assert adapter_of(a_matrix(3, 7, n_out)).n_bytes == 2 * 3 * (7 + padded)


def test_rows_hold_their_adapters_until_the_next_rows() -> None:
    rows, held = mixer(), adapter()
    before = sys.getrefcount(held)
    rows.set_rows([((held, 1.0),), (), ((held, 0.5), (held, 0.25))], [True] * 3)
    assert sys.getrefcount(held) == before + 3
    rows.set_rows([()], [True])
    assert sys.getrefcount(held) == before


def test_refused_rows_let_the_old_ones_stand() -> None:
    rows, held = mixer(), adapter()
    before = sys.getrefcount(held)
    rows.set_rows([((held, 1.0),)], [True])
    with pytest.raises(TypeError):
        rows.set_rows([((held, 1.0),), (("x", 1.0),)], [True, True])  # type: ignore[list-item]
    assert sys.getrefcount(held) == before + 1


def test_a_mixer_that_goes_lets_its_rows_go() -> None:
    held = adapter()
    before = sys.getrefcount(held)
    rows = mixer()
    rows.set_rows([((held, 1.0),)], [True])
    del rows
    assert sys.getrefcount(held) == before


def test_making_an_adapter_keeps_no_reference_to_its_weights() -> None:
    a, b = bytearray(64), bytearray(64)
    before = sys.getrefcount(a), sys.getrefcount(b)
    made = adapter(entry(a=a, b=b))
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before
    a.extend(b"x")  # and no buffer is still locked
    with pytest.raises(ValueError, match="holds"):
        adapter(entry(a=a, b=b))
    a.extend(b"x")
    assert made.n_bytes == 2 * 4 * (8 + 32)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_thousand_adapters_leave_nothing_behind() -> None:
    big = entry(rank=64, n_in=2048, n_out=2048)  # half a megabyte of tables
    resident = lambda: int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096  # noqa: E731
    for _ in range(20):
        adapter(big)
    gc.collect()
    before = resident()
    for _ in range(1000):
        adapter(big)
        with pytest.raises(ValueError, match="holds"):
            adapter(big, entry(site=1, a=b"x"))
    assert resident() - before < 8 * 2**20
