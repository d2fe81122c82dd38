"""Polynomials into SEAL through its encoder: every coefficient arrives as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest

from securefed.crypto.rlwe.ring import HIDDEN, PRODUCTS, Ring
from securefed.crypto.rlwe.sealed import EXACT_BITS, sealed


@pytest.mark.parametrize("ring", [HIDDEN, PRODUCTS], ids=lambda ring: ring.name)
@pytest.mark.parametrize("bits", [EXACT_BITS, EXACT_BITS + 1, 53])
def test_the_largest_coefficients_arrive_exactly(ring: Ring, bits: int) -> None:
    """Of random and of equal signs; beyond the bound another way is taken, which is exact too."""
    held, rng, largest = sealed(ring), np.random.default_rng(0), (1 << bits) - 1
    signs = np.where(rng.random((1, ring.degree)) < 0.5, 1, -1)
    alternating = np.resize([1, -1], (1, ring.degree))
    some = rng.integers(-largest, largest + 1, (1, ring.degree))
    polynomials = np.concatenate([largest * signs, np.full_like(some, largest), largest * alternating, some])
    ones = held.ciphertext(np.ones((2, len(ring.data_primes), ring.degree), np.uint64))
    due = held.to_ntt(ring.from_small(polynomials))
    for made, words in zip(held.plaintexts(polynomials), due, strict=True):
        assert np.array_equal(held.read(held.apply("multiply_plain", ones, made))[0], words)


def test_the_bound_leaves_rounding_room() -> None:
    norm = math.sqrt(PRODUCTS.degree) * 2.0**EXACT_BITS
    assert 2 * 5 * math.log2(PRODUCTS.degree) * 2.0**-53 * norm < 0.25
