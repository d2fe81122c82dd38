"""The canonical embedding, against its definition and against SEAL's encoder."""

from __future__ import annotations

import numpy as np
import pytest
import tenseal.sealapi as seal

from securefed.crypto.ckks.layout import (
    RING,
    SLOTS,
    coefficients,
    real_slots,
    seal_order,
    sums,
)
from securefed.crypto.lattice.seal_ring import centred, engine, from_floats, from_ntt, plaintext, read, to_ntt

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
    for t in (0, 1, 2, 17, 2048, SLOTS - 1):
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


def test_seal_encodes_the_same_polynomial_in_its_own_order() -> None:
    slots = complexes(SLOTS)
    order, conjugated = seal_order()
    assert sorted(order.tolist()) == list(range(SLOTS))
    encoded = seal.Plaintext()
    engine().encoder.encode(
        np.where(conjugated, slots[order].conj(), slots[order]).tolist(), 2.0**40, encoded
    )
    theirs = centred(from_ntt(read(encoded.dyn_array()).reshape(1, 2, RING))[0])
    assert np.abs(theirs - coefficients(slots) * 2.0**40).max() <= 0.5 + 2.0**-4


def test_seal_decodes_what_is_written() -> None:
    slots = complexes(SLOTS).real
    order, _ = seal_order()
    encoded = plaintext(to_ntt(from_floats(coefficients(slots), 60)[None])[0])
    encoded.scale = 2.0**60
    assert np.abs(np.array(engine().encoder.decode_double(encoded)) - slots[order]).max() < 1e-9
