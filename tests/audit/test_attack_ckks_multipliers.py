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

from securefed.crypto import Encrypted, FixedPoint, KeyHolder
from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMask, CkksMasked
from securefed.crypto.ckks.form import Noise
from securefed.crypto.ckks.layout import constant
from securefed.crypto.lattice.seal_ring import DATA_PRIMES, apply
from securefed.crypto.wire import Frame, Kind
from tests.audit.naive import bfv
from tests.audit.naive.ckks import DEGREE, Block, Chain, Lab
from tests.audit.ring import Residues, centred, from_residues, invert, ntt, ntt_inverse, slots_of_coefficients
from tests.audit.views import ckks_secret, masked_phase

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


def c1_of(encrypted: Encrypted) -> Residues:
    """In NTT form, modulo the first prime."""
    assert isinstance(encrypted, CkksEncrypted)
    (block,) = encrypted.residues()
    return np.asarray(block[1, 0].astype(object))


def test_ckks_multipliers_of_ours_do_not_show_in_c1(ckks: KeyHolder) -> None:
    generator, prime = np.random.default_rng(9), DATA_PRIMES[0]
    sent = ckks.public.load(ckks.encrypt(generator.uniform(-1, 1, 4096), FIXED).to_bytes())
    product = sent.contract(generator.normal(size=(1, 2, 4096)))
    # Before it leaves, the product is as naive as any: its multiplier polynomial has coefficients far below
    # q.
    bare = multipliers_from_c1(c1_of(sent), c1_of(product), prime)
    assert 0 < np.abs(bare).max() < 2**36
    masked = ckks.public.load_masked(product.mask()[0].to_bytes())
    assert isinstance(masked, CkksMasked)
    found = multipliers_from_c1(c1_of(sent), ntt(masked.c1[0, 0].astype(object), prime), prime)
    assert (found == bare).sum() == 0
    # Uniform: of 8192 coefficients the largest is near q/2, and none is small but one in 2^20.
    assert np.abs(found).max() > prime * 0.49
    assert (np.abs(found) < 2**36).sum() <= 2


def encryptions_of_zero(holder: KeyHolder) -> tuple[list[Encrypted], list[Residues]]:
    """What A sends, and the noise of each, which A alone knows: with no message, the phase is noise.

    A message of zero is the clean case: the value that B computes is zero whatever its multipliers are, so
    whatever A learns of them it learns from noise.
    """
    sent = [holder.encrypt(np.zeros(4096), FIXED) for _ in range(COUNT)]
    key, noises = ckks_secret(holder)._key.astype(object), []
    for encrypted in sent:
        assert isinstance(encrypted, CkksEncrypted)
        c0, c1 = encrypted.residues()[0].astype(object)
        phase = [ntt_inverse((c0[i] + c1[i] * key[i]) % p, p) for i, p in enumerate(DATA_PRIMES)]
        noises.append(from_residues(np.array(phase, dtype=object), DATA_PRIMES))
    return sent, noises


def combination(sent: Sequence[Encrypted], multipliers: Sequence[float]) -> tuple[CkksMasked, CkksMask]:
    """The sum of ciphertexts times one number each. B's own products have more multipliers, and few sums."""
    total: Any = None
    for encrypted, t in zip(sent, multipliers, strict=True):
        assert isinstance(encrypted, CkksEncrypted)
        term = apply("multiply_plain", encrypted._seal[0], constant(round(t * 2**32)))
        total = term if total is None else apply("add", total, term)
    form = sent[0].form  # type: ignore[attr-defined]
    form = replace(form, scale=form.scale + 32, noise=Noise(len(sent), 32))
    masked, mask = CkksEncrypted(sent[0].public, form, ciphertexts=[total]).mask()  # type: ignore[arg-type]
    assert isinstance(masked, CkksMasked)
    assert isinstance(mask, CkksMask)
    return masked, mask


def recovered(
    noises: Sequence[Residues], returned: Residues, masked: CkksMasked, truth: Sequence[float]
) -> int:
    """How many of the multipliers least squares finds to one percent."""
    places = masked.layout.places[0]
    found = scalars_from_noise([noise[places] for noise in noises], returned) * 2.0**-32
    return int(np.sum(np.abs(found - truth) < 0.01))


def test_ckks_multipliers_of_ours_do_not_show_in_noise(ckks: KeyHolder) -> None:
    """For an opening the uniform mask covers the noise too; for a disclosure the requester's flood does."""
    truth = np.random.default_rng(10).uniform(-1, 1, COUNT).tolist()
    sent, noises = encryptions_of_zero(ckks)
    assert 2 < np.std([n.astype(np.float64) for n in noises]) < 5
    masked, mask = combination(sent, truth)
    primes = np.array(DATA_PRIMES, dtype=object)[:, None]

    def minus(a: Residues, b: Any) -> Residues:
        return from_residues((a - b.astype(object)) % primes, DATA_PRIMES)

    seen = masked_phase(ckks, ckks.public.load_masked(masked.to_bytes()))
    # With the bare mask, which only B has, A would have all of them: the value 0 and the noise around it.
    assert recovered(noises, minus(seen, mask._residues), masked, truth) == COUNT
    # What A has of an opening: the estimates are off by 2^30 and more, and right to one percent never.
    assert recovered(noises, from_residues(seen, DATA_PRIMES), masked, truth) == 0
    # What A has of a disclosure.
    disclosed = Frame.from_bytes(mask.disclose(), Kind.DISCLOSURE).payload[16:]
    residues = np.frombuffer(disclosed, dtype="<u8").reshape(2, -1)
    returned = minus(seen, residues)
    assert recovered(noises, returned, masked, truth) == 0
    assert np.std(returned.astype(np.float64)) < 2.0**90  # the mask did come off: this is noise and flood
