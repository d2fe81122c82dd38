"""What a Paillier ciphertext's randomness says about how it was computed.

The setting of every protocol here: A sends [[x]] under its own key, B multiplies by a private number and adds
a mask that is uniform mod n, A opens. The mask hides the value perfectly; these attacks read B's numbers from
the rest of the ciphertext.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import gmpy2
import numpy as np
import phe
import pytest
from gmpy2 import mpz

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.crypto.wire import Kind
from tests.audit.chance import most_by_luck
from tests.audit.naive import paillier as naive
from tests.audit.views import paillier_factors, paillier_wire

FIXED = FixedPoint(bound=1.0, fraction_bits=24)
BITS = 24
TRIALS = 200


def randomness(ciphertext: int, p: int, q: int) -> mpz:
    """r of c = (1 + m n) r^n, for whoever knows p and q: c is r^n mod n, and n is invertible modulo phi."""
    return gmpy2.powmod(ciphertext, gmpy2.invert(p * q, (p - 1) * (q - 1)), p * q)


def multiplier_from_randomness(sent: int, returned: int, p: int, q: int) -> int | None:
    """The key-holder has both ciphertexts and its primes. It gets B's multiplier t, because r' = r^t.

    Baby step, giant step: 2^12 of each for 24 bits, whatever the mask. None when no such t fits.
    """
    base, target = randomness(sent, p, q) % p, randomness(returned, p, q) % p
    steps, power = {}, mpz(1)
    for exponent in range(1 << (BITS // 2)):
        steps[power] = exponent
        power = power * base % p
    giant = gmpy2.invert(power, p)
    for stride in range(1 << (BITS // 2)):
        if target in steps:
            return (stride << (BITS // 2)) + steps[target]
        target = target * giant % p
    return None


def parity_from_jacobi(sent: int, returned: int, n: int) -> int | None:
    """Anybody on the wire has both ciphertexts and n. They get the parity of B's multiplier, without any key.

    The Jacobi symbol is multiplicative, and it is 1 for the mask and for h_s^a: that of c^t is (c/n)^t. None
    (nothing to see) when (c/n) = 1, as it is for half of all ciphertexts.
    """
    if gmpy2.jacobi(sent, n) == 1:
        return None
    return 1 if gmpy2.jacobi(returned, n) == -1 else 0


def addend_from_ratio(before: int, after: int, n: int) -> int | None:
    """Anybody who sees [[x]] before and after B added a plain number gets that number: c'/c = 1 + k n."""
    ratio = after * gmpy2.invert(before, mpz(n) ** 2) % mpz(n) ** 2
    quotient, rest = divmod(ratio - 1, n)
    return None if rest else int(quotient)


def some_multipliers(count: int) -> list[int]:
    """Of exactly 24 bits, so that a private scale leaves them as they are."""
    return [secrets.randbits(BITS - 1) | 1 << (BITS - 1) for _ in range(count)]


def ours_times(holder: KeyHolder, multiplier: int) -> tuple[int, int]:
    """A's ciphertext and B's masked product, both as they stand on the wire."""
    blob = holder.encrypt([0.5], FIXED).to_bytes()
    masked, _ = holder.public.load(blob).contract(np.full((1, 1, 1), float(multiplier))).mask()
    (sent,) = paillier_wire(holder, blob, Kind.ENCRYPTED)
    (returned,) = paillier_wire(holder, masked.to_bytes(), Kind.MASKED)
    return sent, returned


def test_multipliers_from_randomness(naive_paillier: naive.Key, paillier: KeyHolder) -> None:
    p, q = naive_paillier.p, naive_paillier.q
    for multiplier in some_multipliers(8):
        sent = naive_paillier.encrypt(secrets.randbits(24))
        returned = naive.masked_only(naive_paillier.n, sent, multiplier)
        assert multiplier_from_randomness(sent, returned, p, q) == multiplier

    p, q = paillier_factors(paillier)
    for multiplier in some_multipliers(8):
        sent, returned = ours_times(paillier, multiplier)
        assert multiplier_from_randomness(sent, returned, p, q) is None


def test_it_is_the_fresh_randomness_that_protects_ours(paillier: KeyHolder) -> None:
    """The same product of ours is broken before `mask` and whole after it."""
    multiplier = some_multipliers(1)[0] | 1  # powers of two go into the scale
    p, q = paillier_factors(paillier)
    encrypted = paillier.encrypt([0.5], FIXED)
    product = encrypted.contract(np.full((1, 1, 1), float(multiplier)))
    (sent,) = paillier_wire(paillier, encrypted.to_bytes(), Kind.ENCRYPTED)
    (bare,) = product.integers  # type: ignore[attr-defined]
    assert multiplier_from_randomness(sent, bare, p, q) == multiplier
    (masked,) = paillier_wire(paillier, product.mask()[0].to_bytes(), Kind.MASKED)
    assert multiplier_from_randomness(sent, masked, p, q) is None


def parities(pairs: Sequence[tuple[int, int, int]], n: int) -> tuple[int, int]:
    """Right guesses, and guesses made."""
    guesses = [(parity_from_jacobi(sent, returned, n), t & 1) for sent, returned, t in pairs]
    made = [guess == truth for guess, truth in guesses if guess is not None]
    return sum(made), len(made)


@pytest.mark.slow
def test_parities_from_jacobi(naive_paillier: naive.Key, paillier: KeyHolder) -> None:
    n = naive_paillier.n
    h_s, sent = naive.djn_base(n), naive_paillier.encrypt(1)
    while gmpy2.jacobi(sent, n) == 1:
        sent = naive_paillier.encrypt(1)
    pairs = [(sent, naive.masked_by_djn(n, h_s, sent, t), t) for t in some_multipliers(TRIALS)]
    assert parities(pairs, n) == (TRIALS, TRIALS)

    p, q = paillier_factors(paillier)
    right, made = parities([(*ours_times(paillier, t), t) for t in some_multipliers(TRIALS)], p * q)
    # Half of A's ciphertexts have symbol -1, and that is already a statement about the owner's encryption.
    assert TRIALS - most_by_luck(TRIALS, 0.5) <= made <= most_by_luck(TRIALS, 0.5)
    assert made - most_by_luck(made, 0.5) <= right <= most_by_luck(made, 0.5)


@pytest.mark.slow
def test_the_owner_s_and_the_public_randomness_look_the_same_to_the_owner(paillier: KeyHolder) -> None:
    """All four pairs of Legendre symbols, which only the owner can tell apart."""
    p, q = paillier_factors(paillier)
    public = load_public_key(paillier.public.to_bytes())
    count = 96
    quarter = most_by_luck(count, 0.25)
    for encrypted in (paillier.encrypt(np.zeros(count), FIXED), public.encrypt(np.zeros(count), FIXED)):
        drawn = paillier_wire(paillier, encrypted.to_bytes(), Kind.ENCRYPTED)
        kinds = [(gmpy2.legendre(c, p), gmpy2.legendre(c, q)) for c in drawn]
        assert all(0 < kinds.count((a, b)) <= quarter for a in (1, -1) for b in (1, -1))


def test_addends_from_ratios(phe_key: phe.PaillierPrivateKey, paillier: KeyHolder) -> None:
    n = int(phe_key.public_key.n)
    number = phe_key.public_key.encrypt(7)
    before, after = number.ciphertext(be_secure=False), (number + 3).ciphertext(be_secure=False)
    assert addend_from_ratio(before, after, n) == 3

    p, q = paillier_factors(paillier)
    encrypted = paillier.encrypt([0.25], FIXED)
    moved = encrypted + 0.125
    (before,) = paillier_wire(paillier, encrypted.to_bytes(), Kind.ENCRYPTED)
    (bare,) = moved.integers  # type: ignore[attr-defined]
    assert addend_from_ratio(before, bare, p * q) == 0.125 * FIXED.scale
    (masked,) = paillier_wire(paillier, moved.mask()[0].to_bytes(), Kind.MASKED)
    assert addend_from_ratio(before, masked, p * q) is None
