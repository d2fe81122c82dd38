"""Products of powers: every window agrees with one pow per term."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import shares
from securefed.crypto.paillier import powers
from securefed.crypto.paillier.powers import (
    WINDOWS,
    Cut,
    Halves,
    PowerColumn,
    choose_cut,
    column_powers,
    cut_column,
    digits_of,
)
from securefed.crypto.shares import WIDTH

N = mpz(0xC57665EF6AE364F4555607AB86494D25 * 0xC27125374415D6E0F4C8B66AD09ED491)
SQUARE = N * N


def naive(bases: list[mpz], exponents: list[list[int]]) -> list[int]:
    results = []
    for line in exponents:
        result = 1
        for base, exponent in zip(bases, line, strict=True):
            result = result * pow(int(base), exponent, int(SQUARE)) % int(SQUARE)
        results.append(result)
    return results


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[mpz], np.ndarray, int]:
    outputs, rows = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    bits = draw(st.sampled_from([1, 2, 7, 24, 40, 62]))
    largest = 1 << bits
    entry = st.one_of(st.integers(-largest, largest), st.sampled_from([0, 1, -1, largest, -largest]))
    flat = draw(st.lists(entry, min_size=outputs * rows, max_size=outputs * rows))
    seeds = draw(st.lists(st.integers(2, 1 << 500), min_size=rows, max_size=rows))
    bases = [mpz(seed) % SQUARE if mpz(seed) % N else mpz(2) for seed in seeds]
    return bases, np.array(flat, dtype=np.int64).reshape(outputs, rows), bits


@settings(deadline=None, max_examples=60)
@given(problems(), st.integers(1, 4))
def test_pieces_of_a_column_are_right(problem: tuple[list[mpz], np.ndarray, int], slices: int) -> None:
    bases, exponents, bits = problem
    pieces = cut_column(N, bases, exponents, bits, min(slices, len(exponents)))
    products = [power for piece in pieces for power in column_powers(piece)]
    assert products == naive(bases, exponents.tolist())


@pytest.mark.parametrize("window", WINDOWS)
@settings(deadline=None, max_examples=15)
@given(problem=problems())
def test_every_window_is_right(window: int, problem: tuple[list[mpz], np.ndarray, int]) -> None:
    bases, exponents, bits = problem
    column = PowerColumn(N, bases, exponents, Cut(window, bits))
    assert column_powers(column) == naive(bases, exponents.tolist())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bits", [1, 18, 84, 102, 103, 104])
def test_digits_are_those_of_plain_integers(window: int, bits: int) -> None:
    """Up to 103 bits exactly. With 104 bits, numbers modulo 2**105, they are within 2**105."""
    drawn = [secrets.randbelow(2 * (1 << bits) + 1) - (1 << bits) for _ in range(27)]
    drawn[:5] = 1 << bits, -(1 << bits), 0, 1, -1
    limbs = np.stack([shares.from_integer(number) for number in drawn], axis=1)
    cut = Cut(window, bits)
    digits = digits_of(limbs.reshape(-1, 3, 9), cut)
    for level, top in zip(digits, cut.tops, strict=True):
        assert int(np.abs(level).max()) <= top
    made = [cut.weighted(each) for each in digits.reshape(cut.levels, -1).T.tolist()]
    if bits < 104:
        assert made == drawn
    assert all((a - b) % (1 << WIDTH) == 0 and abs(a) < 1 << WIDTH for a, b in zip(made, drawn, strict=True))


def test_exponents_in_limbs_are_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powers, "DIGITS_AT_ONCE", 4)
    bases, exponents = [mpz(3), mpz(5)], np.array([[123456, -654321], [0, 7], [-1, 1], [2, 3]])
    for form in (exponents, shares.from_integers(exponents)):
        assert column_powers(PowerColumn(N, bases, form, Cut(4, 24))) == naive(bases, exponents.tolist())


class Counted:
    """A factor that counts what is multiplied by it."""

    def __init__(self, value: mpz, tally: list[int]) -> None:
        self._value, self._tally = value, tally

    def __rmul__(self, other: mpz) -> mpz:
        self._tally[0] += 1
        return other * self._value


def test_zeros_take_as_many_steps_as_anything() -> None:
    rows, cut = 20, Cut(4, 20)
    bases = [mpz(secrets.randbelow(int(N) - 1) + 1) for _ in range(rows)]
    halves, rng, steps = Halves.of(bases, N), np.random.default_rng(5), []
    for exponents in (np.zeros((2, rows), int), np.ones((2, rows), int), rng.integers(-9e5, 9e5, (2, rows))):
        tally = [0]

        def wrap(values: list[mpz], tally: list[int] = tally) -> Any:
            return [Counted(value, tally) for value in values]

        column = PowerColumn(N, bases, exponents, cut)
        powers._products(column, Halves(wrap(halves.r), halves.e, wrap(halves.s), halves.f))
        steps.append(tally[0])
    assert steps == [2 * rows * cut.levels] * 3


@pytest.mark.parametrize(("rows", "bits"), [(16, 24), (64, 24), (1032, 24), (4096, 24), (21, 104)])
def test_the_window_follows_the_shape(rows: int, bits: int) -> None:
    cut = choose_cut(rows, bits)
    # Below one multiplication a bit and term, far below in fact.
    assert cut.cost(rows) < bits * rows
    assert cut.window >= choose_cut(rows // 2, bits).window
