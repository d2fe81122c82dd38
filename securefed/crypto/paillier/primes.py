"""Primes for Paillier keys, of the form p = 2 k r + 1 with r prime and k small.

The form does not weaken the key: r has all but about 20 bits of p, so p - 1 is far from smooth, and p keeps
more than a thousand bits of entropy. It gives the owner the factors of p - 1 and so a generator of Z_p*. The
p-th residues mod p**2 are then powers of one fixed base (residues.py), which speeds up encryption.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import BadKey
from securefed.crypto.randomness import ByteSource, _below_from, _bits_from

__all__ = [
    "FactoredPrime",
    "PrimePair",
    "check_primes",
    "is_prime",
    "small_factor",
    "small_primes_below",
]

ROUNDS = 40
"""GMP's count: a Baillie-PSW test, then Miller-Rabin rounds above 24."""
MOST_COFACTOR_BITS = 24
SMALL_PRIMES_BELOW = 1 << 16


def is_prime(value: int) -> bool:
    return bool(gmpy2.is_prime(value, ROUNDS))


@cache
def _primorial(below: int) -> mpz:
    return gmpy2.primorial(below - 1)


def small_primes_below(bits: int) -> int:
    """Return the bound of trial division: 2**16, less for the toy keys of tests."""
    return min(SMALL_PRIMES_BELOW, 1 << max(2, bits // 4))


def small_factor(n: mpz) -> int:
    """Return the product of the small primes that divide n, or 1."""
    return int(gmpy2.gcd(n, _primorial(small_primes_below(n.bit_length()))))


def _factors_of_small(value: int) -> set[int]:
    factors, divisor = set(), 2
    while divisor * divisor <= value:
        while value % divisor == 0:
            factors.add(divisor)
            value //= divisor
        divisor += 1
    return factors | ({value} if value > 1 else set())


@dataclass(frozen=True)
class FactoredPrime:
    """A prime p and the k of p - 1 = 2 k r with r prime; k is 0 if the factors of p - 1 are unknown."""

    p: mpz
    cofactor: int = 0

    def __post_init__(self) -> None:
        if not is_prime(self.p):
            raise BadKey("a factor of the modulus is not prime")
        if self.cofactor:
            rest, remainder = divmod(self.p - 1, 2 * self.cofactor)
            if not 0 < self.cofactor < 1 << MOST_COFACTOR_BITS or remainder or not is_prime(rest):
                raise BadKey("the cofactor does not fit its prime: (p - 1) / 2k is not a prime")

    def __repr__(self) -> str:
        return f"<{int(self.p).bit_length()}-bit prime>"

    @property
    def factored(self) -> bool:
        return self.cofactor > 0

    def primitive_root(self) -> mpz:
        """Return the least generator of Z_p*. All generators have the same powers."""
        if not self.factored:
            raise BadKey("the factors of p - 1 are not known for this prime")
        order = self.p - 1
        factors = {2, *_factors_of_small(self.cofactor), order // (2 * self.cofactor)}
        candidate = mpz(2)
        while any(gmpy2.powmod(candidate, order // factor, self.p) == 1 for factor in factors):
            candidate += 1
        return candidate


@dataclass(frozen=True)
class PrimePair:
    """The checked primes of a key."""

    p: FactoredPrime
    q: FactoredPrime

    def __post_init__(self) -> None:
        check_primes(self.p.p, self.q.p)

    @property
    def n(self) -> mpz:
        return self.p.p * self.q.p

    @classmethod
    def generate(cls, bits: int) -> PrimePair:
        """Draw primes whose product has exactly `bits` bits, with the operating system's randomness."""
        return cls._generate_from(os.urandom, bits)

    @classmethod
    def _generate_from(cls, source: ByteSource, bits: int) -> PrimePair:
        while True:
            p = _prime_from(source, bits - bits // 2)
            q = _prime_from(source, bits // 2)
            if p.p == q.p or (p.p * q.p).bit_length() != bits:
                continue
            try:
                return cls(p, q)
            except BadKey:  # p and q too near each other: as good as never at real sizes, common at toy sizes
                continue


def check_primes(p: mpz, q: mpz) -> None:
    """Raise BadKey unless the two primes fit together."""
    n = p * q
    bits = n.bit_length()
    if p == q:
        raise BadKey("the two primes are the same: n is a square")
    if min(p.bit_length(), q.bit_length()) < bits // 2 - 8 or p % 2 == 0 or q % 2 == 0:
        raise BadKey(
            f"primes of {p.bit_length()} and {q.bit_length()} bits given, "
            f"two odd ones of about {bits // 2} bits are allowed"
        )
    if gmpy2.gcd(n, (p - 1) * (q - 1)) != 1:
        raise BadKey("n and phi(n) have a common factor: ciphertexts would not decrypt to one value")
    # FIPS 186-5, A.1.3: near primes are found by Fermat's method. Toy keys of tests are too short for it.
    if abs(p - q).bit_length() <= bits // 2 - 100:
        raise BadKey(
            f"the primes differ by {abs(p - q).bit_length()} bits, more than {bits // 2 - 100} are needed"
        )


def _prime_from(source: ByteSource, bits: int) -> FactoredPrime:
    """Draw a prime of exactly `bits` bits with its two top bits set, so that a product of two has all its
    bits.
    """
    cofactor_bits = max(1, min(20, bits // 4))
    low, high = (mpz(3) << (bits - 2)), (mpz(1) << bits)
    while True:
        # r has its size fixed, and k is drawn so that p falls where it should.
        r_bits = bits - 1 - cofactor_bits
        r = _bits_from(source, r_bits) | 1 | (mpz(1) << (r_bits - 1))
        if not gmpy2.is_prime(r, 1):
            continue
        k_low, k_high = -(-(low - 1) // (2 * r)), (high - 2) // (2 * r)
        # A fresh r after a while: with toy sizes no k may fit at all.
        for _ in range(32 * bits):
            k = k_low + _below_from(source, k_high - k_low + 1) if k_high > k_low else k_low
            p = 2 * k * r + 1
            if k > 0 and low <= p < high and gmpy2.is_prime(p, 1) and is_prime(r) and is_prime(p):
                return FactoredPrime(p, int(k))
