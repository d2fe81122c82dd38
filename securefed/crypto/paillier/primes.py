"""Primes of Paillier keys, and the n-th residues mod n**2 that are the randomness of ciphertexts.

Primes have the form p = 2 k r + 1 with r prime and k small. It gives the owner the factors of p - 1, and so a
generator of Z_p*.

docs/proofs.md says how an owner draws r**n mod n**2 with r uniform in Z_n*, the randomness of a ciphertext,
faster than others: mod p**2 and mod q**2.

Every residue mod p**2 is a (1 + p e) with a < p, and the e add up under products. Tables have (a, e), so that
two table entries make one factor below p**2 without a reduction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import getitem

import gmpy2
from gmpy2 import mpz

from securefed.crypto.randomness import ByteSource, below_from, bits_from
from securefed.errors import BadKey

ROUNDS = 40
"""GMP's count: a Baillie-PSW test, then Miller-Rabin rounds above 24."""
MOST_COFACTOR_BITS = 24
SMALL_PRIMES_BELOW = 1 << 16
WORTH_TABLES = 256
"""Residues of one key from which tables of powers take less time than they save."""


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

    def primitive_root(self) -> mpz:
        """Return the least generator of Z_p*. All generators have the same powers."""
        if not self.cofactor:
            raise BadKey("the factors of p - 1 are not known for this prime")
        order = self.p - 1
        factors = {2, *_factors_of_small(self.cofactor), order // (2 * self.cofactor)}
        candidate = mpz(2)
        while any(gmpy2.powmod(candidate, order // factor, self.p) == 1 for factor in factors):
            candidate += 1
        return candidate


@dataclass(frozen=True)
class PrimePair:
    """The primes of a key. Raises BadKey unless they fit together."""

    p: FactoredPrime
    q: FactoredPrime

    def __post_init__(self) -> None:
        p, q = self.p.p, self.q.p
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

    @property
    def n(self) -> mpz:
        return self.p.p * self.q.p

    @classmethod
    def generate(cls, bits: int, source: ByteSource = os.urandom) -> PrimePair:
        """Draw primes whose product has exactly `bits` bits."""
        while True:
            p, q = _prime_from(source, bits - bits // 2), _prime_from(source, bits // 2)
            # Equal or too near each other: never at real sizes, common at toy sizes.
            with suppress(BadKey):
                if (p.p * q.p).bit_length() == bits:
                    return cls(p, q)


def _prime_from(source: ByteSource, bits: int) -> FactoredPrime:
    """Draw a prime of `bits` bits, its two top bits set, so that a product of two has all its bits."""
    cofactor_bits = max(1, min(20, bits // 4))
    low, high = (mpz(3) << (bits - 2)), (mpz(1) << bits)
    while True:
        # r has its size fixed, and k is drawn so that p falls where it should.
        r_bits = bits - 1 - cofactor_bits
        r = bits_from(source, r_bits) | 1 | (mpz(1) << (r_bits - 1))
        if not gmpy2.is_prime(r, 1):
            continue
        k_low, k_high = -(-(low - 1) // (2 * r)), (high - 2) // (2 * r)
        # A fresh r after a while: with toy sizes no k may fit at all.
        for _ in range(32 * bits):
            k = k_low + below_from(source, k_high - k_low + 1) if k_high > k_low else k_low
            p = 2 * k * r + 1
            if k > 0 and low <= p < high and gmpy2.is_prime(p, 1) and is_prime(r) and is_prime(p):
                return FactoredPrime(p, int(k))


# The owner


class Owner:
    """What the owner of p and q can do: draw residues faster, and decrypt."""

    def __init__(self, primes: PrimePair) -> None:
        p, q = primes.p.p, primes.q.p
        self._p, self._q = p, q
        self.powers: Maps = (_Power(p), _Power(q))
        factored = primes.p.cofactor and primes.q.cofactor
        self.tables: Maps = (_FixedBase(primes.p), _FixedBase(primes.q)) if factored else self.powers
        self._drawn = 0

    def draw(self, count: int, *, keep: bool = True) -> list[mpz]:
        """Draw residues. `keep`: many will follow, so tables are built. Else they are after many draws."""
        self._drawn += count
        tabled = keep or self._drawn >= WORTH_TABLES
        return self.draw_from(os.urandom, count, self.tables if tabled else self.powers)

    def draw_from(self, source: ByteSource, count: int, maps: Maps) -> list[mpz]:
        return self._residues([(maps[0].choose(source), maps[1].choose(source)) for _ in range(count)], maps)

    def _residues(self, choices: Sequence[tuple[mpz, mpz]], maps: Maps) -> list[mpz]:
        """Return the residues of choices at p and at q. Every residue has exactly one pair."""
        mod_p = maps[0].residues([choice for choice, _ in choices])
        mod_q = maps[1].residues([choice for _, choice in choices])
        return combined(mod_p, mod_q, self._p**2, self._q**2)

    def decrypt(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        p, q = self._p, self._q
        return combined(_decrypted(ciphertexts, p, q), _decrypted(ciphertexts, q, p), p, q)


def _decrypted(ciphertexts: Sequence[mpz], p: mpz, q: mpz) -> list[mpz]:
    # c**(p-1) = 1 + m n (p-1) = 1 - m q p mod p**2, hence m = -(that - 1)/p / q mod p.
    factor, square = gmpy2.invert(-q, p), p * p
    powers = gmpy2.powmod_base_list([c % square for c in ciphertexts], p - 1, square)
    return [(power - 1) // p * factor % p for power in powers]


def combined(mod_p: Sequence[mpz], mod_q: Sequence[mpz], p: mpz, q: mpz) -> list[mpz]:
    """Return the numbers below p q with these residues, by the Chinese remainder theorem."""
    lift = gmpy2.invert(q, p)
    return [b + q * ((a - b) * lift % p) for a, b in zip(mod_p, mod_q, strict=True)]


class _Power:
    """The map y -> y**p mod p**2. Each p-th residue is the image of exactly one choice."""

    def __init__(self, p: mpz) -> None:
        self._p = p
        self._square = p * p

    def choose(self, source: ByteSource) -> mpz:
        return below_from(source, self._p - 1) + 1

    def residues(self, choices: Sequence[mpz]) -> list[mpz]:
        return list(gmpy2.powmod_base_list(list(choices), self._p, self._square))


class _FixedBase:
    """The map x -> g**x mod p**2, with g of order p - 1, by windows of one byte."""

    def __init__(self, prime: FactoredPrime) -> None:
        self._prime = prime
        self._p = prime.p
        self._square = prime.p**2
        self._bytes = 2 * ((self._p.bit_length() + 15) // 16)
        self._factors: list[tuple[mpz, ...]] = []
        self._shares: list[tuple[mpz, ...]] = []

    def choose(self, source: ByteSource) -> mpz:
        return below_from(source, self._p - 1)

    def residues(self, choices: Sequence[mpz]) -> list[mpz]:
        if not self._factors:
            self._build_tables()
        return [self._power(choice) for choice in choices]

    def _power(self, choice: mpz) -> mpz:
        digits, square = choice.to_bytes(self._bytes, "little"), self._square
        power = mpz(1)
        factors: Iterator[mpz] = map(getitem, self._factors, digits)
        for first, second in zip(factors, factors, strict=True):
            power = power * (first * second) % square  # two at a time: their product is not yet above p**2
        part = sum(map(getitem, self._shares, digits), mpz(0))
        return power * (1 + self._p * part) % square

    def _build_tables(self) -> None:
        """Build a and e of g**(d * 256**i), for every place i and byte d."""
        p, square = self._p, self._square
        step = gmpy2.powmod(self._prime.primitive_root(), p, square)
        for _ in range(self._bytes):
            powers = [mpz(1)]
            for _ in range(255):
                powers.append(powers[-1] * step % square)
            step = powers[-1] * step % square
            factors = [power % p for power in powers]
            shares = [w // p * s % p for w, s in zip(powers, invert_all(factors, p), strict=True)]
            # Made anew and side by side: results of arithmetic lie scattered and keep room for larger ones,
            # and most of the time of a look-up goes into waiting for memory.
            pairs = [(mpz(int(a)), mpz(int(e))) for a, e in zip(factors, shares, strict=True)]
            self._factors.append(tuple(a for a, _ in pairs))
            self._shares.append(tuple(e for _, e in pairs))


Maps = tuple[_Power | _FixedBase, _Power | _FixedBase]
"""The maps from choices to residues mod p**2 and mod q**2."""


def invert_all(units: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """Return the inverse of each unit with one inversion in all (Montgomery's trick)."""
    products = [mpz(1)]
    for unit in units:
        products.append(products[-1] * unit % modulus)
    inverse = gmpy2.invert(products[-1], modulus)
    inverses = [mpz(0)] * len(units)
    for i in range(len(units) - 1, -1, -1):
        inverses[i] = inverse * products[i] % modulus
        inverse = inverse * units[i] % modulus
    return inverses
