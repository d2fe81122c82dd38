"""Masks that are floats: 53 significant bits over something longer.

The key-holder opens value + mask. The mask ends at its last significant bit and the value does not: what lies
below is in the clear, and is enough to tell which of several inputs B has.
"""

from __future__ import annotations

import secrets

import gmpy2
import numpy as np
import phe

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.ckks.arrays import CkksMask, CkksMasked
from securefed.crypto.lattice.ring import DEGREE as OURS
from securefed.crypto.lattice.ring import PRIMES
from securefed.crypto.wire import Kind
from tests.audit.chance import chi_square, chi_square_range, most_by_luck
from tests.audit.lowbits import closest_by_low_bits
from tests.audit.naive.ckks import DEGREE, Chain, Lab
from tests.audit.naive.paillier import float_masked
from tests.audit.ring import Residues, from_residues
from tests.audit.views import canonical, masked_phase, paillier_factors, paillier_wire

GUESSES = 8
TRIALS = 24
LABELS = 64
FIXED = FixedPoint(bound=1.0, fraction_bits=32)


def labels_from_low_bits(opened: list[int], own: list[int], bits: int) -> list[int]:
    """A sent [[u_i]], B returned [[-y_i/2 u_i + mask]]. A has the opened integers and its own u_i.

    It gets every label y_i, because -y_i/2 u_i is one of two known integers and shows below the mask.
    """
    labels = []
    for seen, value in zip(opened, own, strict=True):
        guesses = [np.array([-value // 2], dtype=object), np.array([value // 2], dtype=object)]
        labels.append((1, -1)[closest_by_low_bits(np.array([seen], dtype=object), guesses, bits)])
    return labels


def labels_from_randomness(sent: list[int], returned: list[int], factor: list[int], n: int) -> list[int]:
    """Anybody on the wire has ciphertexts before and after, and the factor of u_i but for y_i.

    Without re-randomisation c'_i / c_i^(-f) and c'_i / c_i^f are (1 + n mask): one of them is 1 mod n, and
    the answers fall into two clusters.
    """
    labels = []
    for before, after, power in zip(sent, returned, factor, strict=True):
        positive = gmpy2.powmod(before, power, n)
        labels.append(-1 if after % n == positive else 1 if after * positive % n == 1 else 0)
    return labels


def test_labels_under_float_masks(phe_key: phe.PaillierPrivateKey) -> None:
    generator = np.random.default_rng(6)
    values, labels = generator.uniform(-1, 1, LABELS), generator.choice([-1, 1], LABELS).tolist()
    opened, own, sent, returned, factors = [], [], [], [], []
    for value, label in zip(values.tolist(), labels, strict=True):
        number = phe_key.public_key.encrypt(value)
        sent.append(int(number.ciphertext(be_secure=False)))
        seen = float_masked(phe_key, number, -0.5 * label)
        opened.append(seen.mantissa)
        # The exponents of phe are public: A knows at which scale its own number would stand there.
        own.append(int(np.ldexp(value, 60)) << (-seen.exponent - 60))
        returned.append(seen.ciphertext)
        half = phe.EncodedNumber.encode(phe_key.public_key, 0.5)
        factors.append(half.encoding << (4 * (number.exponent + half.exponent) - seen.exponent))
    # The mask is a multiple of 2^-42, and what stands below that is bare.
    assert labels_from_low_bits(opened, own, -seen.exponent - 42) == labels
    assert labels_from_randomness(sent, returned, factors, int(phe_key.public_key.n)) == labels


def test_labels_under_masks_of_ours(paillier: KeyHolder) -> None:
    generator = np.random.default_rng(7)
    values, labels = generator.uniform(-1, 1, LABELS), generator.choice([-1, 1], LABELS).tolist()
    n = int(np.prod(np.array(paillier_factors(paillier), dtype=object)))
    opened, sent, returned = [], [], []
    for value, label in zip(values, labels, strict=True):
        blob = paillier.encrypt([value], FIXED).to_bytes()
        masked, _ = paillier.public.load(blob).contract([[[-0.5 * label]]]).mask()
        sent += paillier_wire(paillier, blob, Kind.ENCRYPTED)
        returned += paillier_wire(paillier, masked.to_bytes(), Kind.MASKED)
        opened += paillier_wire(paillier, paillier.open(masked).to_bytes(), Kind.OPENED)
    own = [2 * int(v) for v in FIXED.encode(values)]  # the multiplier is -y at one more fraction bit
    by_luck = most_by_luck(LABELS, 0.5)
    for bits in (8, 16, 32, 64):
        right = sum(a == b for a, b in zip(labels_from_low_bits(opened, own, bits), labels, strict=True))
        assert LABELS - by_luck <= right <= by_luck
    assert labels_from_randomness(sent, returned, [1] * LABELS, n) == [0] * LABELS


def test_ckks_float_mask_leaves_the_low_bits_bare() -> None:
    """A finds which of eight rows B multiplied by, from the low 24 bits of the phase's coefficients."""
    lab = Lab(Chain((60, 60, 60), 40))
    generator = np.random.default_rng(3)
    sent = lab.encrypt(generator.normal(size=DEGREE // 2))
    rows = generator.normal(size=(GUESSES, DEGREE // 2))
    guesses = [from_residues(lab.phase(lab.product(sent, row, 2.0**40)), lab.chain.primes) for row in rows]
    for truth in range(GUESSES):
        answer = lab.product(sent, rows[truth], 2.0**40)
        lab.add_encrypted_zero(answer)
        lab.add_float_mask(answer, 2.0**14)
        phase = from_residues(lab.phase(answer), lab.chain.primes)
        assert closest_by_low_bits(phase, guesses, 24) == truth


def test_ckks_float_masks_beyond_half_of_q_wrap_without_a_word() -> None:
    """Hiding all of the phase with floats takes masks as large as q, and value + mask then leaves q."""
    lab = Lab(Chain((60, 40, 60), 40))
    half = lab.chain.primes[0] / lab.chain.scale / 2
    value, mask = np.full(DEGREE // 2, 0.7 * half), np.full(DEGREE // 2, 0.4 * half)
    answer = lab.encrypt(value)
    lab.evaluator.mod_switch_to_next_inplace(answer)
    lab.evaluator.add_plain_inplace(answer, lab.encode_at(mask, answer))
    assert np.abs(lab.decode(answer) - mask - value).min() > half


def ours_phase(holder: KeyHolder, blob: bytes, row: np.ndarray) -> tuple[Residues, Residues]:
    """(5, coefficients) of B's answer as A sees them, and the same without the mask."""
    masked, mask = holder.public.load(blob).contract(row[None]).mask()
    assert isinstance(masked, CkksMasked)
    assert isinstance(mask, CkksMask)
    seen = masked_phase(holder, holder.public.load_masked(masked.to_bytes()))
    primes = np.array(PRIMES, dtype=object)[:, None]
    return seen, (seen - canonical(mask._residues)) % primes


def test_ckks_masks_of_ours_leave_nothing_bare(ckks: KeyHolder) -> None:
    generator = np.random.default_rng(8)
    blob = ckks.encrypt(generator.uniform(-1, 1, 16), FIXED).to_bytes()
    rows = generator.normal(size=(GUESSES, 64, 16))
    guesses = [from_residues(ours_phase(ckks, blob, row)[1], PRIMES) for row in rows]
    right = 0
    for truth in [secrets.randbelow(GUESSES) for _ in range(TRIALS)]:
        seen, bare = ours_phase(ckks, blob, rows[truth])
        # Without the mask the attack works on our layout too.
        assert closest_by_low_bits(from_residues(bare, PRIMES), guesses, 24) == truth
        right += closest_by_low_bits(from_residues(seen, PRIMES), guesses, 24) == truth
    assert right <= most_by_luck(TRIALS, 1 / GUESSES)


def test_ckks_masked_coefficients_of_ours_are_uniform(ckks: KeyHolder) -> None:
    """The lowest and the highest byte of what A sees, modulo each prime, over 2 x 4096 coefficients."""
    blob = ckks.encrypt([1.0], FIXED).to_bytes()
    seen = np.concatenate([ours_phase(ckks, blob, np.ones((OURS, 1)))[0] for _ in range(2)], axis=1)
    low, high = chi_square_range(256)
    for residues, prime in zip(seen, PRIMES, strict=True):
        assert low < chi_square(residues % 256, 256) < high
        assert low < chi_square(residues * 256 // prime, 256) < high


def test_ckks_masks_of_ours_wrap_and_come_off(ckks: KeyHolder) -> None:
    """Uniform modulo q, masks wrap all the time; removed modulo q, that changes nothing."""
    value = np.full(4096, FIXED.bound)
    for _ in range(4):
        masked, mask = ckks.encrypt(value, FIXED).mask()
        assert np.abs(mask.remove(ckks.open(masked)) - value).max() < 2.0**-16
