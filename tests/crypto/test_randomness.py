"""Uniform integers: known answers from a given byte source, ranges, and a chi-square test for bias."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from itertools import count
from math import gcd

import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import randomness
from securefed.errors import RangeError


def scripted(*chunks: bytes) -> Callable[[int], bytes]:
    """A source that hands out these bytes, and fails when it is asked for other sizes or too often."""
    left = list(chunks)

    def source(count: int) -> bytes:
        chunk = left.pop(0)
        assert len(chunk) == count
        return chunk

    return source


def stream(seed: str) -> Callable[[int], bytes]:
    """A reproducible source."""
    calls = count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(size)


def test_bits_are_the_top_bits_of_big_endian_bytes() -> None:
    assert randomness.bits_from(scripted(b"\xff\x80"), 9) == 0b111111111
    assert randomness.bits_from(scripted(b"\x7f\x80"), 9) == 0b011111111
    assert randomness.bits_from(scripted(b"\x12\x34"), 16) == 0x1234


def test_candidates_at_or_above_the_bound_are_drawn_again() -> None:
    # Four bits for a bound of 10: 15, 10 and then 9.
    assert randomness.below_from(scripted(b"\xf0", b"\xa0", b"\x90"), randomness.mpz(10)) == 9


def test_units_are_drawn_again_until_coprime() -> None:
    # Mod 15: 5 and 0 are not units, 7 is.
    assert randomness.unit_from(scripted(b"\x50", b"\x00", b"\x70"), randomness.mpz(15)) == 7


def test_a_bound_of_one_takes_no_randomness() -> None:
    assert randomness.below_from(scripted(), randomness.mpz(1)) == 0


@pytest.mark.parametrize("bound", [7, 10, 16, 100])
def test_uniform_below_is_uniform(bound: int) -> None:
    source = stream(f"bound {bound}")
    draws = 200 * bound
    counts = Counter(int(randomness.below_from(source, randomness.mpz(bound))) for _ in range(draws))
    statistic = sum((counts[value] - 200) ** 2 / 200 for value in range(bound))
    # Mean bound - 1, variance 2 (bound - 1): six standard deviations above.
    assert statistic < bound - 1 + 6 * (2 * (bound - 1)) ** 0.5
    assert set(counts) == set(range(bound))


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 1 << 200))
def test_ranges_hold(bound: int) -> None:
    assert all(0 <= value < bound for value in randomness.uniform_many_below(bound, 3))
    assert all(gcd(int(randomness.unit_from(os.urandom, mpz(bound))), bound) == 1 for _ in range(3))


def test_draws_differ() -> None:
    assert len(set(randomness.uniform_many_below(1 << 128, 100))) == 100


@pytest.mark.parametrize("bound", [0, -3])
def test_impossible_bounds_are_refused(bound: int) -> None:
    with pytest.raises(RangeError, match=f"{bound} given"):
        randomness.uniform_many_below(bound, 1)
    with pytest.raises(RangeError, match=f"{bound} given"):
        randomness.unit_from(os.urandom, mpz(bound))
