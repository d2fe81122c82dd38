"""n-th residues mod n**2: the randomness of Paillier ciphertexts, drawn by anybody and, faster, by the
key's owner.
 A ciphertext of m is (1 + n m) * r**n mod n**2 with r uniform in Z_n*. What the sampler has to produce is
r**n.

*Anybody* draws r and raises it to the n-th power.
 *The owner* draws from the same distribution by knowing its structure. r**n mod n**2 depends on r mod n
alone, and r -> r**n is one to one because gcd(n, phi(n)) = 1 (checked for every key): r**n is uniform over
the phi(n) n-th residues. By the Chinese remainder theorem that group is the product of the n-th residues
mod p**2 and those mod q**2. Z_{p^2}* is cyclic of order p (p - 1) and gcd(n, p (p - 1)) = p, so the n-th
residues mod p**2 are the p-th residues, the subgroup of order p - 1. Uniform there, in two ways:

- g**x with x uniform mod p - 1 and g = a**p mod p**2 for a generator a of Z_p*: a fixed base, hence table
  look-ups and one multiplication for every eight bits of x. It takes the factors of p - 1, which keys made
  here have.
- y**p with y uniform in 1 .. p - 1, one to one again: for keys from elsewhere.
 Both give exactly the standard distribution; neither is the short-exponent variant of Damgard, Jurik and
Nielsen, and no assumption is added.
 *The multiplication.* An element of order p - 1 is w = a (1 + p e) mod p**2 with a < p, and its e adds up
under products. So a product of table entries (a_i, e_i) is prod a_i, held as c + p u, times 1 + p sum e_i,
and one step costs two products and two reductions of the size of p instead of one of each at twice the
size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import gmpy2
from gmpy2 import mpz

from securefed.crypto.paillier.primes import FactoredPrime, PrimePair
from securefed.crypto.randomness import ByteSource, _below_from, uniform_units

__all__ = ["OwnerResidues", "PublicResidues", "Residues", "invert_all"]

Entry = tuple[mpz, mpz]


class Residues(Protocol):
    """Draws n-th residues mod n**2, independent and uniform."""

    def draw(self, count: int) -> list[mpz]: ...


class PublicResidues:
    """r**n with r uniform in Z_n*: what everybody can do."""

    def __init__(self, n: mpz) -> None:
        self._n = n
        self._square = n * n

    def draw(self, count: int) -> list[mpz]:
        return self._powers(uniform_units(self._n, count))

    def _powers(self, units: Sequence[mpz]) -> list[mpz]:
        """r**n for each r; GMP runs without the interpreter's lock."""
        return list(gmpy2.powmod_base_list(list(units), self._n, self._square))


class OwnerResidues:
    """The same distribution for whoever knows p and q. Tables are built at the first draw and stay in this process."""

    def __init__(self, primes: PrimePair) -> None:
        self._p = _sampler(primes.p)
        self._q = _sampler(primes.q)
        self._q_square = primes.q.p**2
        self._p_square = primes.p.p**2
        self._lift = gmpy2.invert(self._q_square, self._p_square)

    def draw(self, count: int) -> list[mpz]:
        return self._draw_from(os.urandom, count)

    def _draw_from(self, source: ByteSource, count: int) -> list[mpz]:
        self._p.prepare()
        self._q.prepare()
        return [self._residue(self._p.choose(source), self._q.choose(source)) for _ in range(count)]

    def _residue(self, choice_p: mpz, choice_q: mpz) -> mpz:
        """The residue that belongs to one choice at each prime: every residue to exactly one pair of choices."""
        mod_p, mod_q = self._p.residue(choice_p), self._q.residue(choice_q)
        return mod_q + self._q_square * ((mod_p - mod_q) * self._lift % self._p_square)


class _AtPrime(Protocol):
    """p-th residues mod p**2, each the image of exactly one choice."""

    def prepare(self) -> None: ...

    def choose(self, source: ByteSource) -> mpz: ...

    def residue(self, choice: mpz) -> mpz: ...


def _sampler(prime: FactoredPrime) -> _AtPrime:
    return _FixedBase(prime) if prime.factored else _Power(prime.p)


class _Power:
    """y -> y**p mod p**2."""

    def __init__(self, p: mpz) -> None:
        self._p = p
        self._square = p * p

    def prepare(self) -> None:
        return None

    def choose(self, source: ByteSource) -> mpz:
        return _below_from(source, self._p - 1) + 1

    def residue(self, choice: mpz) -> mpz:
        return gmpy2.powmod(choice, self._p, self._square)


class _FixedBase:
    """x -> g**x mod p**2, g of order p - 1, by windows of one byte."""

    def __init__(self, prime: FactoredPrime) -> None:
        self._prime = prime
        self._p = prime.p
        self._bytes = (self._p.bit_length() + 7) // 8
        self._rows: list[list[Entry]] = []

    def prepare(self) -> None:
        if not self._rows:
            self._rows = self._tables()

    def choose(self, source: ByteSource) -> mpz:
        return _below_from(source, self._p - 1)

    def residue(self, choice: mpz) -> mpz:
        self.prepare()
        p, divmod_ = self._p, gmpy2.f_divmod
        c, u, e = mpz(1), mpz(0), mpz(0)
        for row, digit in zip(self._rows, choice.to_bytes(self._bytes, "little"), strict=True):
            factor, part = row[digit]
            carry, c = divmod_(c * factor, p)
            u = (u * factor + carry) % p
            e += part
        return c + p * ((u + c * e) % p)

    def _tables(self) -> list[list[Entry]]:
        """rows[i][d] stands for g**(d * 256**i)."""
        p = self._p
        square = p * p
        step = gmpy2.powmod(self._prime.primitive_root(), p, square)
        rows = []
        for _ in range(self._bytes):
            powers = [mpz(1)]
            for _ in range(255):
                powers.append(powers[-1] * step % square)
            step = powers[-1] * step % square
            inverses = invert_all([power % p for power in powers], p)
            rows.append([(w % p, w // p * inverse % p) for w, inverse in zip(powers, inverses, strict=True)])
        return rows


def invert_all(units: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """The inverse of each, for one inversion and three multiplications a unit (Montgomery's trick)."""
    products = [mpz(1)]
    for unit in units:
        products.append(products[-1] * unit % modulus)
    inverse = gmpy2.invert(products[-1], modulus)
    inverses = [mpz(0)] * len(units)
    for i in range(len(units) - 1, -1, -1):
        inverses[i] = inverse * products[i] % modulus
        inverse = inverse * units[i] % modulus
    return inverses
