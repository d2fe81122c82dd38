"""Products of powers: every method and window agrees with one pow per term."""

from __future__ import annotations

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto.paillier import powers as module
from securefed.crypto.paillier.powers import (
    BUCKET_WINDOWS,
    SLIDING_WINDOWS,
    ExponentColumn,
    choose_plan,
    column_powers,
    powers,
)

N = mpz(0xC57665EF6AE364F4555607AB86494D25 * 0xC27125374415D6E0F4C8B66AD09ED491)
SQUARE = N * N


def naive(bases: list[mpz], exponents: np.ndarray) -> list[int]:
    results = []
    for line in exponents.tolist():
        result = 1
        for base, exponent in zip(bases, line, strict=True):
            result = result * pow(int(base), exponent, int(SQUARE)) % int(SQUARE)
        results.append(result)
    return results


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[mpz], np.ndarray]:
    outputs, rows = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    bits = draw(st.sampled_from([1, 2, 7, 24, 40, 62]))
    largest = (1 << bits) - 1
    entry = st.one_of(st.integers(-largest, largest), st.sampled_from([0, 1, -1, largest, -largest]))
    flat = draw(st.lists(entry, min_size=outputs * rows, max_size=outputs * rows))
    seeds = draw(st.lists(st.integers(2, 1 << 500), min_size=rows, max_size=rows))
    bases = [mpz(seed) % SQUARE if mpz(seed) % N else mpz(2) for seed in seeds]
    return bases, np.array(flat, dtype=np.int64).reshape(outputs, rows)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_the_chosen_plan_is_right(problem: tuple[list[mpz], np.ndarray]) -> None:
    bases, exponents = problem
    assert powers(bases, exponents, N) == naive(bases, exponents)


@pytest.mark.parametrize(
    ("method", "window"),
    [("_sliding", w) for w in SLIDING_WINDOWS] + [("_sparse_buckets", w) for w in BUCKET_WINDOWS],
)
@settings(deadline=None, max_examples=15)
@given(problem=problems())
def test_every_method_and_window_is_right(
    method: str, window: int, problem: tuple[list[mpz], np.ndarray]
) -> None:
    bases, exponents = problem
    bits = max(1, int(np.abs(exponents).max()).bit_length())
    assert getattr(module, method)(bases, exponents, N, window, bits) == naive(bases, exponents)


def test_a_column_is_the_same_piece_of_work() -> None:
    bases = [mpz(3), mpz(5)]
    exponents = np.array([[123456, -654321]])
    assert column_powers(ExponentColumn(N, bases, exponents)) == naive(bases, exponents)


def test_zeros_everywhere_cost_nothing_and_give_one() -> None:
    assert powers([mpz(3), mpz(5)], np.zeros((4, 2), dtype=np.int64), N) == [1, 1, 1, 1]


def test_a_common_power_of_two_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over rows comes as 2**23 everywhere: it takes one step a row."""
    genuine, bits = choose_plan, []
    monkeypatch.setattr(module, "choose_plan", lambda *sizes: bits.append(sizes[2]) or genuine(*sizes))
    exponents = np.full((1, 5), 1 << 23)
    bases = [mpz(value) for value in (3, 5, 7, 11, 13)]
    assert powers(bases, exponents, N) == naive(bases, exponents)
    assert bits == [1]


def test_rows_without_a_multiplier_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, shapes = choose_plan, []
    monkeypatch.setattr(module, "choose_plan", lambda *sizes: shapes.append(sizes[0]) or genuine(*sizes))
    assert powers([mpz(3), mpz(5), mpz(7)], np.array([[0, 1, 0], [0, -1, 0]]), N) == [
        5,
        pow(5, -1, int(SQUARE)),
    ]
    assert shapes == [(2, 1)]


@pytest.mark.parametrize(
    ("outputs", "rows", "straus"),
    [(16, 16, True), (32, 64, True), (16, 1032, False), (50, 4096, False)],
)
def test_the_plan_follows_the_shape(outputs: int, rows: int, straus: bool) -> None:
    plan = choose_plan((outputs, rows), outputs * rows, 24, 512)
    assert plan.straus == straus
    assert plan.cost < 24 * outputs * rows  # below one multiplication a bit and term, far below in fact


def test_tables_are_bounded() -> None:
    """A million rows do not get tables of a gigabyte."""
    plan = choose_plan((1000, 1_000_000), 1_000_000_000, 24, 512)
    assert not plan.straus or plan.window == 2
