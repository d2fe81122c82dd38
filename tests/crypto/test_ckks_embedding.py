"""The canonical embedding, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.crypto.ckks.layout import SLOTS, coefficients, real_slots, sums
from securefed.crypto.lattice.ring import DEGREE as RING

ZETA = np.exp(1j * np.pi / RING)


def complexes(count: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=count) + 1j * generator.normal(size=count)


def value_at(polynomial: np.ndarray, exponent: int) -> complex:
    """The definition: a polynomial at a power of the root."""
    powers = np.exp(1j * np.pi * ((np.arange(len(polynomial)) * exponent) % (2 * RING)) / RING)
    return complex(polynomial @ powers)


def test_slots_are_values_at_the_roots() -> None:
    slots = complexes(SLOTS)
    polynomial = coefficients(slots)
    assert polynomial.shape == (RING,)
    for t in (0, 1, 2, 17, 1024, SLOTS - 1):
        assert abs(value_at(polynomial, 4 * t + 1) - slots[t]) < 1e-10


@pytest.mark.parametrize("groups", [1, 2, 32, 1024, SLOTS])
def test_coefficients_at_multiples_of_the_stride_are_sums_of_slots(groups: int) -> None:
    slots, stride = complexes(SLOTS, groups), SLOTS // groups
    expected = slots.reshape(stride, groups).sum(axis=0)
    result = sums(coefficients(slots)[::stride], stride)
    assert np.abs(result - expected).max() < 1e-9
    again = coefficients(expected / stride)
    assert np.abs(again - coefficients(slots)[::stride]).max() < 1e-12


def test_half_of_the_coefficients_give_real_slots() -> None:
    slots = complexes(SLOTS).real
    polynomial = coefficients(slots)
    assert np.abs(real_slots(polynomial[:SLOTS]) - slots).max() < 1e-10
    # What is not looked at is determined by what is.
    assert np.abs(polynomial[SLOTS + 1 :] + polynomial[SLOTS - 1 : 0 : -1]).max() < 1e-12
    assert abs(polynomial[SLOTS]) < 1e-12
