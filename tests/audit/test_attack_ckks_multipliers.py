"""CKKS and BFV: the key-holder computes the requester's multipliers from what surrounds the masked value.

A sent ciphertexts under its own key, B returned a combination of them with private multipliers under a mask.
A ciphertext has two more places that the multipliers went through: c1, and the noise.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMask, CkksMasked
from securefed.crypto.ckks.form import Noise
from securefed.crypto.lattice.ring import PRIMES, RING
from securefed.crypto.wire import Frame, Kind
from tests.audit.naive import bfv
from tests.audit.naive.ckks import DEGREE, Block, Chain, Lab
from tests.audit.ring import Residues, centred, from_residues, invert, ntt, ntt_inverse, slots_of_coefficients
from tests.audit.views import canonical, ckks_secret, masked_phase

FIXED = FixedPoint(bound=1.0, fraction_bits=32)
COUNT = 6


def multipliers_from_c1(sent: Residues, returned: Residues, prime: int) -> Residues:
    """Anybody who sees both ciphertexts gets B's multiplier polynomial, modulo one prime: c1' = t c1.

    Takes c1 in NTT form. Returns the coefficients of t, centred.
    """
    return centred(ntt_inverse(returned * invert(sent, prime) % prime, prime), prime)


def scalars_from_c1(sent: Sequence[Residues], returned: Residues, prime: int) -> list[int] | None:
    """The same for a sum over several ciphertexts with one number each, from as many coefficients of c1.

    Gaussian elimination modulo the prime. None when the answer does not fit all the other coefficients too.
    """
    count = len(sent)
    rows = [[int(c[i]) for c in sent] + [int(returned[i])] for i in range(count)]
    for pivot in range(count):
        swap = next(i for i in range(pivot, count) if rows[i][pivot] % prime)
        rows[pivot], rows[swap] = rows[swap], rows[pivot]
        inverse = pow(rows[pivot][pivot], -1, prime)
        rows[pivot] = [v * inverse % prime for v in rows[pivot]]
        for i in range(count):
            if i != pivot:
                factor = rows[i][pivot]
                rows[i] = [(v - factor * w) % prime for v, w in zip(rows[i], rows[pivot], strict=True)]
    answer = [row[-1] for row in rows]
    rebuilt = np.array(sent, dtype=object).T @ np.array(answer, dtype=object)
    return answer if ((rebuilt - returned) % prime == 0).all() else None


def scalars_from_noise(sent: Sequence[Residues], returned: Residues) -> NDArray[np.float64]:
    """The key-holder has the noise of its own ciphertexts and of the answer. It gets one number for each.

    The noise of the answer is the same combination, plus that of one fresh encryption. Least squares:
    thousands of equations, few unknowns.
    """
    design = np.array([noise.astype(np.float64) for noise in sent]).T
    return np.asarray(np.linalg.lstsq(design, returned.astype(np.float64), rcond=None)[0])


def test_bfv_multipliers_from_c1() -> None:
    holder, multipliers = bfv.Holder(), [secrets.randbits(16) + 1 for _ in range(COUNT)]
    sent = [holder.encrypt(holder.uniform()) for _ in multipliers]
    combined = holder.combination(sent, multipliers)
    c1 = [holder.c1(c) for c in sent]
    assert scalars_from_c1(c1, holder.c1(holder.masked_by_addition(combined)), bfv.PRIMES[0]) == multipliers
    assert scalars_from_c1(c1, holder.c1(holder.masked_by_encryption(combined)), bfv.PRIMES[0]) is None


def test_bfv_multipliers_from_noise() -> None:
    holder, multipliers = bfv.Holder(), [secrets.randbits(16) + 1 for _ in range(COUNT)]
    sent = [holder.encrypt(holder.uniform()) for _ in multipliers]
    masked = holder.masked_by_encryption(holder.combination(sent, multipliers))
    found = scalars_from_noise([holder.noise(c) for c in sent], holder.noise(masked))
    assert np.rint(found).astype(int).tolist() == multipliers


def test_ckks_multipliers_from_c1() -> None:
    lab = Lab(Chain((60, 60, 60), 40))
    generator, prime = np.random.default_rng(2), lab.chain.primes[0]
    multipliers = generator.normal(size=DEGREE // 2)
    sent = lab.encrypt(generator.normal(size=DEGREE // 2))
    answer = lab.product(sent, multipliers, 2.0**32)
    lab.add_float_mask(answer, 2.0**14)
    found = multipliers_from_c1(Block.of(sent).c1[0], Block.of(answer).c1[0], prime)
    slots = slots_of_coefficients(found.astype(np.float64) * 2.0**-32).real
    assert np.abs(slots - multipliers).max() < 1e-6


def multipliers_of_ours(sent: Residues, returned: Residues) -> Residues:
    """The same from c1 of two of our ciphertexts, (5, N) coefficients from 0: modulo q."""
    found = [
        multipliers_from_c1(ntt(a, prime), ntt(b, prime), prime)
        for a, b, prime in zip(sent, returned, PRIMES, strict=True)
    ]
    return from_residues(np.array(found, dtype=object), PRIMES)


def sent_without_zeros(holder: KeyHolder, values: NDArray[np.float64]) -> tuple[CkksEncrypted, Residues]:
    """A ciphertext as it arrives, and its c1. One in a hundred has a zero: those are drawn again."""
    while True:
        sent = holder.public.load(holder.encrypt(values, FIXED).to_bytes())
        assert isinstance(sent, CkksEncrypted)
        c1 = canonical(sent.residues[:, 1, 0])
        if all(ntt(part, prime).all() for part, prime in zip(c1, PRIMES, strict=True)):
            return sent, c1


def test_ckks_multipliers_of_ours_do_not_show_in_c1(ckks: KeyHolder) -> None:
    generator = np.random.default_rng(9)
    sent, c1 = sent_without_zeros(ckks, generator.uniform(-1, 1, 2048))
    product = sent.contract(generator.normal(size=(1, 2, 2048)))
    assert isinstance(product, CkksEncrypted)
    # Before it leaves, the product is as naive as any: its multiplier polynomial has coefficients far below
    # q.
    bare = multipliers_of_ours(c1, canonical(product.residues[:, 1, 0]))
    assert 0 < np.abs(bare).max() < 2**28
    masked = ckks.public.load_masked(product.mask()[0].to_bytes())
    assert isinstance(masked, CkksMasked)
    found = multipliers_of_ours(c1, canonical(masked.c1[:, 0]))
    assert (found == bare).sum() == 0
    # Uniform: of 4096 coefficients the largest is near q/2, and none is small.
    assert np.abs(found).max() > RING.modulus * 0.49
    assert np.abs(found).min() > 2**60


def encryptions_of_zero(holder: KeyHolder) -> tuple[list[CkksEncrypted], list[Residues]]:
    """What A sends, and the noise of each, which A alone knows: with no message, the phase is noise.

    A message of zero is the clean case: the value that B computes is zero whatever its multipliers are, so
    whatever A learns of them it learns from noise.
    """
    encrypted = [holder.encrypt(np.zeros(2048), FIXED) for _ in range(COUNT)]
    sent = [each for each in encrypted if isinstance(each, CkksEncrypted)]
    secret = ckks_secret(holder)
    phases = [RING.reduced(each.residues[:, 0] + secret._times(each.residues[:, 1])) for each in sent]
    return sent, [RING.centred(phase)[0].astype(int).astype(object) for phase in phases]


def combination(sent: Sequence[CkksEncrypted], multipliers: Sequence[float]) -> tuple[CkksMasked, CkksMask]:
    """The sum of ciphertexts times one number each. B's own products have more multipliers, and few sums."""
    terms = [
        RING.scaled(encrypted.residues, round(t * 2**26))
        for encrypted, t in zip(sent, multipliers, strict=True)
    ]
    form = sent[0].form
    form = replace(form, scale=form.scale + 26, noise=Noise(len(sent), 26))
    masked, mask = CkksEncrypted(sent[0].public, form, RING.reduced(sum(terms, np.zeros(1)))).mask()
    assert isinstance(masked, CkksMasked)
    assert isinstance(mask, CkksMask)
    return masked, mask


def recovered(
    noises: Sequence[Residues], returned: Residues, masked: CkksMasked, truth: Sequence[float]
) -> int:
    """How many of the multipliers least squares finds to one percent."""
    places = masked.layout.places[0]
    found = scalars_from_noise([noise[places] for noise in noises], returned) * 2.0**-26
    return int(np.sum(np.abs(found - truth) < 0.01))


def test_ckks_multipliers_of_ours_do_not_show_in_noise(ckks: KeyHolder) -> None:
    """For an opening the uniform mask covers the noise too; for a disclosure the requester's flood does."""
    truth = np.random.default_rng(10).uniform(-1, 1, COUNT).tolist()
    sent, noises = encryptions_of_zero(ckks)
    assert 2 < np.std([n.astype(np.float64) for n in noises]) < 5
    masked, mask = combination(sent, truth)
    primes = np.array(PRIMES, dtype=object)[:, None]

    def minus(a: Residues, b: Any) -> Residues:
        return from_residues((a - canonical(b)) % primes, PRIMES)

    seen = masked_phase(ckks, ckks.public.load_masked(masked.to_bytes()))
    # With the bare mask, which only B has, A would have all of them: the value 0 and the noise around it.
    assert recovered(noises, minus(seen, mask._residues), masked, truth) == COUNT
    # What A has of an opening: the estimates are off by 2^30 and more, and right to one percent never.
    assert recovered(noises, from_residues(seen, PRIMES), masked, truth) == 0
    # What A has of a disclosure.
    disclosed = Frame.from_bytes(mask.disclose(), Kind.DISCLOSURE).payload[16:]
    residues = RING.from_bytes(disclosed, (masked.layout.coefficients,))
    returned = minus(seen, residues)
    assert recovered(noises, returned, masked, truth) == 0
    assert np.std(returned.astype(np.float64)) < 2.0**75  # the mask did come off: this is noise and flood
