"""Randomness: ranges, statistics at several sizes, and that low bits are filled.

The statistics have bounds of six deviations or more: a sound sampler fails them less than once in 10^8 runs.
"""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest

from securefed.crypto.lattice.ring import PRIMES, RING
from securefed.crypto.randomness import gaussian_integers, normal_pairs, secret_bytes
from securefed.errors import RangeError

SOURCE = secret_bytes()


def bit_counts(words: np.ndarray, bits: int) -> np.ndarray:
    return np.array([np.count_nonzero(words >> np.uint64(b) & np.uint64(1)) for b in range(bits)])


def within(result: float, expected: float, deviation: float, deviations: float = 6.0) -> bool:
    return abs(result - expected) <= deviations * deviation


def test_normal_numbers() -> None:
    drawn = np.concatenate(normal_pairs(SOURCE, 50_000, 1.0))
    count = len(drawn)
    assert within(drawn.mean(), 0, 1 / sqrt(count))
    assert within(drawn.var(), 1, sqrt(2 / count))
    assert within((drawn**4).mean(), 3, sqrt(96 / count))
    for z in (-2.5, -1.0, 0.0, 0.5, 2.0):
        share = (1 + erf(z / sqrt(2))) / 2
        assert within((drawn < z).mean(), share, sqrt(share * (1 - share) / count))
    half = count // 2
    assert within(float(np.mean(drawn[:half] * drawn[half:])), 0, 1 / sqrt(half))


def whole(parts: tuple[np.ndarray, int, np.ndarray]) -> list[int]:
    high, shift, low = parts
    return [h * 2**shift + v for h, v in zip(high.tolist(), low.tolist(), strict=True)]


@pytest.mark.parametrize("power", [1.7, 9.9, 10.1, 12, 40, 46, 49.9, 50.1, 60, 76, 85, 95])
def test_gaussians_of_every_size(power: float) -> None:
    deviation, count = 2.0**power, 20_000
    values = RING.centred(RING.whole(*gaussian_integers(SOURCE, count, deviation)))
    rounding = 1 / 12 / deviation**2
    assert within(values.mean() / deviation, 0, 1 / sqrt(count))
    assert within(values.var() / deviation**2, 1 + rounding, sqrt(2 / count))
    assert within((values**4).mean() / deviation**4, 3 + 6 * rounding, sqrt(96 / count), 8.0)
    for z in (-1.0, 0.5):
        share = (1 + erf(z / sqrt(2))) / 2
        edge = np.floor(z * deviation) + 0.5
        exact = (1 + erf(edge / deviation / sqrt(2))) / 2
        assert within((values < edge).mean(), exact, sqrt(share * (1 - share) / count))


@pytest.mark.parametrize("power", [3, 30, 76])
def test_the_same_integer_modulo_every_prime(power: int) -> None:
    parts = gaussian_integers(SOURCE, 50, 2.0**power)
    expected = [[v % p for v in whole(parts)] for p in PRIMES]
    residues = RING.whole(*parts)
    assert (np.abs(residues) <= (np.array(PRIMES)[:, None] - 1) / 2).all()
    assert (residues.astype(np.int64) % np.array(PRIMES)[:, None]).tolist() == expected


@pytest.mark.parametrize("power", [12, 40, 49, 55, 76, 85, 95])
def test_no_bit_of_a_wide_gaussian_is_uneven(power: int) -> None:
    """A float64 times 2^76 would end in 23 zeros, and leave the noise below them bare."""
    count = 200_000
    high, shift, low = gaussian_integers(SOURCE, count, 2.0**power)
    # The integer modulo 2^64, and its bits from 2^44 on: int64 wraps around as it should.
    bottom = (high.astype(np.uint64) << np.uint64(shift)) + low.astype(np.uint64)
    top = (high + (low >> shift)).astype(np.uint64)
    for bit, ones in enumerate(bit_counts(bottom, min(power - 2, 62))):
        assert within(ones, count / 2, sqrt(count) / 2), bit
    for bit, ones in enumerate(bit_counts(top, max(power - 2 - shift, 0))):
        assert within(ones, count / 2, sqrt(count) / 2), bit + shift


def test_one_float_alone_would_be_uneven() -> None:
    """What the sum of several avoids: rounded at 48 bits, every second integer is rarer."""
    drawn = np.rint(np.concatenate(normal_pairs(SOURCE, 400_000, 2.0**48))).astype(np.int64)
    assert not within(np.count_nonzero(drawn & 1), 400_000, sqrt(200_000))


def test_deviations_that_cannot_be_made() -> None:
    for bad in (0.0, -1.0, 2.0**96, float("inf")):
        with pytest.raises(RangeError, match="deviation"):
            gaussian_integers(SOURCE, 3, bad)
