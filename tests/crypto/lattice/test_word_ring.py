"""Arithmetic modulo the primes, against Python's integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto.lattice.seal_ring import (
    DATA_PRIMES,
    PRIMES,
    Words,
    add,
    centred,
    from_floats,
    from_pieces,
    multiply,
    subtract,
)

Q = DATA_PRIMES[0] * DATA_PRIMES[1]
edges = st.sampled_from([0, 1, 2, (1 << 30) - 1, 1 << 30, (1 << 59) + 1])


def residue_lists(count: int) -> st.SearchStrategy[list[list[int]]]:
    def of(prime: int) -> st.SearchStrategy[list[int]]:
        near = edges | edges.map(lambda e: prime - 1 - e)
        return st.lists(near | st.integers(0, prime - 1), min_size=count, max_size=count)

    return st.tuples(*(of(prime) for prime in PRIMES)).map(list)


def residues(integers: list[int], primes: tuple[int, ...] = DATA_PRIMES) -> Words:
    return np.array([[v % prime for v in integers] for prime in primes], dtype=np.uint64)


@given(residue_lists(6), residue_lists(6))
def test_sum_difference_and_product(a: list[list[int]], b: list[list[int]]) -> None:
    x, y = np.array(a, dtype=np.uint64), np.array(b, dtype=np.uint64)
    for operation, exact in ((add, int.__add__), (subtract, int.__sub__), (multiply, int.__mul__)):
        expected = [
            [exact(u, v) % p for u, v in zip(row, other, strict=True)]
            for row, other, p in zip(a, b, PRIMES, strict=True)
        ]
        assert operation(x, y).tolist() == expected


@given(st.lists(st.integers(-(2**60) + 1, 2**60 - 1), min_size=1, max_size=9), st.integers(1, 60), st.data())
def test_long_integers_from_pieces(high: list[int], shift: int, data: st.DataObject) -> None:
    low = [data.draw(st.integers(-(2**59) + 1, 2**60 - 1)) for _ in high]
    whole = [h * 2**shift + v for h, v in zip(high, low, strict=True)]
    pieces = np.array(high, dtype=np.int64), shift, np.array(low, dtype=np.int64)
    assert from_pieces(*pieces, primes=3).tolist() == residues(whole, PRIMES).tolist()


@given(st.lists(st.integers(-(2**59) + 1, 2**59 - 1), min_size=1, max_size=9))
def test_integers_below_the_primes(values: list[int]) -> None:
    assert from_pieces(np.array(values, dtype=np.int64), 0).tolist() == residues(values).tolist()


@given(st.lists(st.integers(-(2**118), 2**118), min_size=1, max_size=9))
def test_centred_representatives(values: list[int]) -> None:
    result = centred(residues(values))
    for value, float_value in zip(values, result.tolist(), strict=True):
        # One rounding of k, one of k * p0 (p0 is itself rounded) and one of the sum.
        assert abs(float_value - value) <= abs(value) * 2.0**-51


def test_small_numbers_come_back_exactly() -> None:
    values = [0, 1, -1, 2**40, -(2**40), 2**52 + 1, -(2**52) - 1]
    assert centred(residues(values)).tolist() == [float(v) for v in values]


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=9),
    st.integers(-20, 117),
    st.integers(-40, 40),
)
def test_floats_to_residues(values: list[float], bits: int, power: int) -> None:
    scaled = np.ldexp(np.array(values), power)
    result = centred(from_floats(scaled, bits - power))
    expected = np.ldexp(np.array(values), bits)
    largest = float(np.abs(expected).max())
    # Rounded to an integer, or to the 59th bit of the largest.
    assert np.abs(result - expected).max() <= 0.5 + largest * 2.0**-50


def test_errors_are_added_to_the_message() -> None:
    message, errors = np.array([0.75, -0.5, 0.0]), np.array([3, -11, -1])
    exact = [int(v * 2**76) + e for v, e in zip(message, errors.tolist(), strict=True)]
    assert from_floats(message, 76, errors).tolist() == residues(exact).tolist()
    assert from_floats(message, 8, errors).tolist() == residues([192 + 3, -128 - 11, -1]).tolist()


def test_the_modulus_has_room_for_what_is_promised() -> None:
    assert 2**119 < Q < 2**120
    assert all(2**60 - prime < 2**18 for prime in PRIMES)
