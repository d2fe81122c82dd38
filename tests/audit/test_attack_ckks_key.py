"""CKKS: the requester computes the key-holder's secret key from what it is answered (Li and Micciancio 2021).

A decryption shows m + noise, and the noise is c0 + c1 s - m: linear in the key. Floats of 53 bits show it
to the last unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.ckks.arrays import CkksMasked, CkksOpened
from securefed.crypto.ckks.form import flood_deviation
from securefed.crypto.lattice.ring import DEGREE as OURS
from securefed.crypto.lattice.ring import PRIMES, RING
from tests.audit.chance import chi_square, chi_square_range
from tests.audit.naive.ckks import DEGREE, Chain, FloatHolder, Floats
from tests.audit.ring import (
    Residues,
    centred,
    coefficients_of_slots,
    from_residues,
    invert,
    ntt,
    ntt_inverse,
    slots_of_coefficients,
)
from tests.audit.views import canonical, ckks_secret, masked_phase


@dataclass(frozen=True)
class Reply:
    """One opening as its requester has it, modulo one prime. The ciphertext is in NTT form."""

    c0: Residues
    c1: Residues
    symmetric: Residues
    """phase + phase(1/X), coefficients."""


def key_from_two_replies(replies: Sequence[Reply], prime: int) -> Residues:
    """The requester has two openings. It gets A's whole secret key, at all N points of the transform.

    Real parts of slots say phase(z) + phase(1/z) and no more, so each opening is one equation in s(z) and
    s(1/z); two openings are two equations. In SEAL's order the partner of point i is point N-1-i.
    """
    (a, b, e), (c, d, f) = (
        (r.c1, r.c1[::-1], (ntt(r.symmetric % prime, prime) - r.c0 - r.c0[::-1]) % prime) for r in replies[:2]
    )
    return np.asarray((e * d - f * b) % prime * invert((a * d - c * b) % prime, prime) % prime)


def symmetric_of_floats(reply: Floats, scale: float) -> Residues:
    """phase + phase(1/X), to the unit, from the floats that `decrypt()` returned."""
    rounded = np.rint(coefficients_of_slots(2.0 * scale * reply))
    return np.array([int(v) for v in rounded], dtype=object)


def symmetric(phase: Residues) -> Residues:
    """phase + phase(1/X) from coefficients: X^-k is -X^(N-k)."""
    return np.asarray(phase - np.concatenate([-phase[:1], phase[:0:-1]]))


@pytest.mark.parametrize(
    ("chain", "mask"),
    [(Chain((60, 40, 60), 40), 2.0**11), (Chain((60, 50, 60), 50), 2.0**2)],
    ids=["40 bits", "50 bits"],
)
def test_two_float_replies_give_the_whole_key(chain: Chain, mask: float) -> None:
    """Masks leave a float's last digits room: at 2^14 times the scale rounding came near to going wrong."""
    generator = np.random.default_rng(1)
    holder, prime = FloatHolder(chain), chain.primes[0]
    residuals = generator.uniform(-1, 1, DEGREE // 2)
    encrypted = holder.encrypt(residuals)
    replies = []
    for _ in range(2):
        sent, block, _ = holder.masked_product(encrypted, generator.normal(size=DEGREE // 2), mask)
        reply = symmetric_of_floats(holder.open(sent), chain.scale)
        replies.append(Reply(block.c0[0], block.c1[0], reply))
    key = key_from_two_replies(replies, prime)
    assert (key == ntt(holder.true_key() % prime, prime)).all()

    # And with it, everything: A's residuals, from the ciphertext that B was given to work on.
    block = holder.read(encrypted)
    phase = centred(ntt_inverse((block.c0[0] + block.c1[0] * key) % prime, prime), prime)
    stolen = slots_of_coefficients(phase.astype(np.float64) / chain.scale).real
    assert np.abs(stolen - residuals).max() < 1e-6


def full_opening(holder: KeyHolder, generator: np.random.Generator) -> tuple[CkksMasked, Residues, Residues]:
    """An honest opening of ours that returns all N coefficients, the most any does: 4096 outputs.

    What B sent, what it was answered, and (nobody has it) what the answer would be without the flood.
    """
    encrypted = holder.encrypt([0.7], FixedPoint(bound=1.0))
    masked, _ = holder.public.load(encrypted.to_bytes()).contract(generator.normal(size=(1, OURS, 1))).mask()
    assert isinstance(masked, CkksMasked)
    assert masked.layout.places[0].tolist() == list(range(OURS))
    opened = holder.open(holder.public.load_masked(masked.to_bytes()))
    assert isinstance(opened, CkksOpened)
    return masked, canonical(opened.residues), masked_phase(holder, masked)


def test_two_replies_of_ours_give_nothing(ckks: KeyHolder) -> None:
    generator, prime = np.random.default_rng(4), PRIMES[0]
    replies, unflooded = [], []
    for _ in range(2):
        masked, opened, phase = full_opening(ckks, generator)
        c0, c1 = (ntt(canonical(block)[0], prime) for block in (masked.c0, masked.c1[:, 0]))
        replies.append(Reply(c0, c1, symmetric(opened[0])))
        unflooded.append(Reply(c0, c1, symmetric(phase[0])))
    truth = ntt(ckks_secret(ckks)._secret.astype(object) % prime, prime)
    # The flood is all there is between B and the key ...
    assert (key_from_two_replies(unflooded, prime) == truth).all()
    # ... and with it none of 4096 points is right but by luck: three are in 2^-30 of all runs.
    assert (key_from_two_replies(replies, prime) == truth).sum() <= 2


def test_the_flood_is_wide_gaussian_and_fresh(ckks: KeyHolder) -> None:
    """B sees flood + noise. It has to be as wide as claimed in all its bits, and new in every reply."""
    generator, q = np.random.default_rng(5), RING.modulus
    floods = []
    for _ in range(2):
        masked, opened, phase = full_opening(ckks, generator)
        floods.append(from_residues((opened - phase) % np.array(PRIMES, dtype=object)[:, None], PRIMES))
        layout = masked.layout
        sigma = flood_deviation(masked.noise, layout.coefficients, layout.units, layout.levels)
    scaled = [(flood / sigma).astype(np.float64) for flood in floods]
    # Moments of N unit normals, within 6 standard errors; 7 for the fourth, whose tail is heavier.
    for values in scaled:
        assert abs(values.mean()) < 6 / np.sqrt(OURS)
        assert abs((values**2).mean() - 1) < 6 * np.sqrt(2 / OURS)
        assert abs((values**4).mean() - 3) < 7 * np.sqrt(96 / OURS)
    assert abs((scaled[0] * scaled[1]).mean()) < 6 / np.sqrt(OURS)
    # The low byte of each: a flood of 53 significant bits would be 0 there.
    low, high = chi_square_range(256)
    assert low < chi_square([int(v) % 256 for flood in floods for v in flood], 256) < high
    assert sigma < q / 16
