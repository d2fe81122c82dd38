"""A key that is made so that masked ciphertexts show multipliers: what the proof with every key is for.

n = p_1 ... p_45 q with primes p_i of 20 bits and q = 1 modulo all of them. Raising to the n-th power then
kills all elements of order P = p_1 ... p_45 modulo q, so whatever the requester re-randomises with, its
result raised to (q - 1) / P shows what the key-holder had planted in the ciphertexts that it sent: an element
of order P to the power of the requester's own numbers. P is smooth, so the logarithm is found prime by prime.
"""

from __future__ import annotations

from math import isqrt, prod

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.crypto.paillier.arrays import Extent, PaillierEncrypted
from securefed.crypto.paillier.keys import PaillierPublicKey, challenges, prove, roots_needed, verify
from securefed.crypto.wire import Frame, Kind
from securefed.errors import BadKey

FIXED = FixedPoint(bound=1.0, fraction_bits=24)
BITS = 2048
PEOPLE, COLUMNS = 8, 3


class CraftedKey:
    """What a malicious key-holder has."""

    def __init__(self, small: int) -> None:
        """With the first `small` primes above 2**19 in q - 1 and in n."""
        self.primes: list[mpz] = []
        found = mpz(1) << 19
        for _ in range(small):
            found = gmpy2.next_prime(found)
            self.primes.append(found)
        self.smooth = mpz(prod(self.primes))
        k = (mpz(3) << (BITS - 2)) // (2 * self.smooth * self.smooth)
        while not gmpy2.is_prime(2 * k * self.smooth + 1):
            k += 1
        self.q = 2 * k * self.smooth + 1
        self.n = self.smooth * self.q
        self.square = self.n**2

    def planted(self) -> mpz:
        """A unit mod n**2 that has order P mod q."""
        candidate = mpz(2)
        while True:
            element = gmpy2.powmod(candidate, (self.q - 1) // self.smooth, self.q)
            if all(gmpy2.powmod(element, self.smooth // p, self.q) != 1 for p in self.primes):
                break
            candidate += 1
        # 1 modulo everything else, so that it changes no value.
        rest = self.square // self.q**2
        lifted = gmpy2.powmod(element, self.q, self.q**2)  # the same order, mod q**2 too
        return (lifted * rest * gmpy2.invert(rest, self.q**2) + self.q**2 * gmpy2.invert(self.q**2, rest)) % (
            self.square
        )

    def read(self, masked: mpz, element: mpz) -> int:
        """The signed exponent of the planted element in a masked, re-randomised ciphertext."""
        power = (self.q - 1) // self.smooth
        base, target = gmpy2.powmod(element, power, self.q), gmpy2.powmod(masked, power, self.q)
        found = mpz(0)
        for p in self.primes:
            other = self.smooth // p
            log = logarithm(gmpy2.powmod(base, other, self.q), gmpy2.powmod(target, other, self.q), p, self.q)
            found += log * other * gmpy2.invert(other, p)
        found %= self.smooth
        return int(found - self.smooth if 2 * found > self.smooth else found)


def logarithm(base: mpz, target: mpz, order: mpz, modulus: mpz) -> int:
    """Baby step, giant step."""
    steps = isqrt(int(order)) + 1
    table, power = {}, mpz(1)
    for exponent in range(steps):
        table[power] = exponent
        power = power * base % modulus
    giant = gmpy2.invert(power, modulus)
    for stride in range(steps):
        if target in table:
            return stride * steps + table[target]
        target = target * giant % modulus
    raise ValueError("not a power of the base")


@pytest.fixture(scope="module")
def crafted() -> CraftedKey:
    return CraftedKey(45)


def a_gradient(public: PaillierPublicKey, key: CraftedKey, columns: np.ndarray) -> tuple[list[mpz], int, int]:
    """What the requester sends for opening, honestly, when its residuals carry a planted element; and by how
    many bits the columns and the people lie apart in the exponent.
    """
    element, width = key.planted(), Extent.fresh(FIXED).magnitude.bit_length() + 24 + 3 + 2
    apart = width * COLUMNS + 8
    residuals = public.encrypt(np.zeros(PEOPLE), FIXED)
    assert isinstance(residuals, PaillierEncrypted)
    for person in range(PEOPLE):
        if person * apart + apart < key.smooth.bit_length():  # there is room for some of them at a time
            planted = gmpy2.powmod(element, mpz(1) << (person * apart), key.square)
            residuals.integers[person] = residuals.integers[person] * planted % key.square
    arrived = public.load(residuals.to_bytes())
    masked, mask = (columns.T @ arrived).mask()
    return list(masked.integers), mask._layout.width, apart


def test_without_a_proof_the_key_holder_reads_people_through_masks(crafted: CraftedKey) -> None:
    naive = PaillierPublicKey(int(crafted.n), ())  # every other check passes
    columns = np.random.default_rng(1).normal(size=(PEOPLE, COLUMNS))
    (sent,), width, apart = a_gradient(naive, crafted, columns)
    exponent = crafted.read(sent, crafted.planted())
    read = []
    for _ in range(min(PEOPLE, (crafted.smooth.bit_length() - 1) // apart)):
        person = []
        below = centred(exponent, apart)
        exponent = (exponent - below) >> apart
        for _ in range(COLUMNS):
            value = centred(below, width)
            below = (below - value) >> width
            person.append(value)
        read.append(person)
    assert len(read) >= 4
    found = np.array(read, dtype=float)
    scale = columns[0, 0] / found[0, 0]  # the one number that stays with the requester
    np.testing.assert_allclose(found * scale, columns[: len(read)], atol=2 * np.abs(columns).max() / 2**23)


def centred(value: int, width: int) -> int:
    low = value % (1 << width)
    return low - (1 << width) if low >> (width - 1) else low


def frame_with(n: mpz, roots: tuple[mpz, ...]) -> bytes:
    return PaillierPublicKey(int(n), roots).to_bytes()


def test_the_crafted_key_is_refused_whatever_comes_with_it(crafted: CraftedKey, paillier: KeyHolder) -> None:
    honest = Frame.from_bytes(paillier.public.to_bytes(), Kind.PUBLIC_KEY)
    assert isinstance(paillier.public, PaillierPublicKey)
    needed = roots_needed(BITS)
    with pytest.raises(BadKey, match="roots of 256 bytes are due"):
        load_public_key(frame_with(crafted.n, ()))
    as_before = PaillierPublicKey(int(crafted.n), ())
    with pytest.raises(BadKey, match="without a proof"):
        load_public_key(as_before.frame(Kind.PUBLIC_KEY, as_before.n.to_bytes(BITS // 8, "big")).to_bytes())
    size = honest.numbers[0]
    assert size == BITS // 8
    borrowed = tuple(root % crafted.n for root in paillier.public._proof)
    for forged in (borrowed, tuple(challenges(crafted.n)), (mpz(1),) * needed):
        with pytest.raises(BadKey, match="proof is wrong"):
            load_public_key(frame_with(crafted.n, forged))


@pytest.mark.parametrize("small", [1, 45])
def test_the_maker_has_no_roots_to_show(small: int) -> None:
    """Also where one prime of 20 bits is common to n and phi(n): each challenge has a root with 2**-19."""
    key = CraftedKey(small)
    rooted = [x for x in challenges(key.n) if gmpy2.powmod(x, (key.q - 1) // key.smooth, key.q) == 1]
    assert rooted == []


def test_how_many_challenges_have_roots_by_luck() -> None:
    """The count that the number of roots is derived from, on a toy: n-th powers are 1/p of all units."""
    p = mpz(11)
    q = next(q for q in (2 * k * p + 1 for k in range(10**6, 10**7)) if gmpy2.is_prime(q))
    n = p * q
    powers = sum(gmpy2.powmod(x, (q - 1) // p, q) == 1 for x in range(1, 40_001))
    assert gmpy2.gcd(n, (p - 1) * (q - 1)) == p
    assert abs(powers - 40_000 / 11) < 5 * (40_000 / 11) ** 0.5


def test_thirteen_roots_at_real_sizes() -> None:
    assert [roots_needed(bits) for bits in (2048, 3072, 8192)] == [13, 13, 13]
    assert roots_needed(32) == 26  # trial division ends at 2**8 there


def test_an_honest_proof_is_bound_to_its_modulus(paillier: KeyHolder) -> None:
    assert isinstance(paillier.public, PaillierPublicKey)
    n, roots = paillier.public.n, paillier.public._proof
    verify(n, roots)
    for wrong in ((*roots[1:], roots[0]), roots[:-1], (roots[0] + n, *roots[1:]), (mpz(0), *roots[1:])):
        with pytest.raises(BadKey):
            verify(n, wrong)
    p, q = gmpy2.next_prime(mpz(1) << 140), gmpy2.next_prime(mpz(3) << 140)
    assert set(challenges(n)).isdisjoint(challenges(p * q))
    verify(p * q, prove(p, q))
