"""Paillier as it is usually put together: correct results, and each time one protection too few.

The arithmetic is textbook (g = 1 + n) on gmpy2. Two of the variants are phe itself, used as its
documentation shows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import gmpy2
import phe
from gmpy2 import mpz


@dataclass(frozen=True)
class Key:
    """Both halves in one object; the attacks take from it what their observer has."""

    p: int
    q: int

    @property
    def n(self) -> int:
        return self.p * self.q

    def encrypt(self, message: int) -> int:
        n = mpz(self.n)
        return int((1 + n * message) * gmpy2.powmod(secrets.randbelow(self.n - 1) + 1, n, n * n) % (n * n))

    def decrypt(self, ciphertext: int) -> int:
        n, phi = mpz(self.n), mpz((self.p - 1) * (self.q - 1))
        return int((gmpy2.powmod(ciphertext, phi, n * n) - 1) // n * gmpy2.invert(phi, n) % n)


def generate(bits: int = 2048) -> Key:
    """Blum primes (3 mod 4), as the scheme of Damgard, Jurik and Nielsen asks for."""
    found: list[int] = []
    while len(found) < 2:
        start = (3 << (bits // 2 - 2)) | secrets.randbits(bits // 2 - 2)
        prime = int(gmpy2.next_prime(start))
        if prime % 4 == 3 and prime not in found:
            found.append(prime)
    return Key(*found)


def _times_plus(n: mpz, ciphertext: int, multiplier: int, addend: int) -> mpz:
    return gmpy2.powmod(ciphertext, multiplier, n * n) * (1 + n * addend) % (n * n)


def masked_only(n: int, ciphertext: int, multiplier: int) -> int:
    """[[multiplier * x + mask]], the mask uniform mod n: perfect for the value. Missing: re-randomisation."""
    return int(_times_plus(mpz(n), ciphertext, multiplier, secrets.randbelow(n)))


def djn_base(n: int) -> int:
    """h_s = (-x^2)^n, published with the key by the scheme of Damgard, Jurik and Nielsen."""
    x = secrets.randbelow(n - 1) + 1
    return int(gmpy2.powmod(-x * x % n, n, mpz(n) ** 2))


def masked_by_djn(n: int, h_s: int, ciphertext: int, multiplier: int) -> int:
    """As masked_only, times h_s^a with a short: fresh, but a square up to sign.

    Missing: half of the group. The randomness of an ordinary ciphertext is any unit; h_s generates units of
    Jacobi symbol 1 alone.
    """
    square = mpz(n) ** 2
    fresh = gmpy2.powmod(h_s, secrets.randbits(n.bit_length() // 2), square)
    return int(_times_plus(mpz(n), ciphertext, multiplier, secrets.randbelow(n)) * fresh % square)


def masked_twice(n: int, ciphertexts: tuple[int, int]) -> tuple[int, int]:
    """Two values re-randomised properly, under one mask. Missing: a fresh mask for the second."""
    mask, square = secrets.randbelow(n), mpz(n) ** 2
    fresh = [gmpy2.powmod(secrets.randbelow(n - 1) + 1, n, square) for _ in ciphertexts]
    first, second = (
        int(_times_plus(mpz(n), c, 1, mask) * r % square) for c, r in zip(ciphertexts, fresh, strict=True)
    )
    return first, second


class PheHolder:
    """A key-holder that hands whatever arrives to phe. Missing: any look at the ciphertext."""

    def __init__(self, private: phe.PaillierPrivateKey) -> None:
        self._private = private
        self.n = int(private.public_key.n)

    def open(self, ciphertext: int) -> int:
        return int(self._private.raw_decrypt(ciphertext))


@dataclass(frozen=True)
class FloatMasked:
    """What the key-holder of a float-masked product has: integer, binary exponent, ciphertext."""

    mantissa: int
    exponent: int
    ciphertext: int


def float_masked(
    private: phe.PaillierPrivateKey, encrypted: phe.EncryptedNumber, multiplier: float
) -> FloatMasked:
    """phe's product plus a float mask from -1024 to 1024, as in FATE's transfer learning, opened.

    Missing: the mask has 53 significant bits and the product many more, so the low ones are bare; and no
    re-randomisation.
    """
    mask = secrets.SystemRandom().uniform(-1024.0, 1024.0)
    result = encrypted * multiplier + mask
    ciphertext = int(result.ciphertext(be_secure=False))
    signed = int(private.raw_decrypt(ciphertext))
    if signed > private.public_key.n // 2:
        signed -= int(private.public_key.n)
    return FloatMasked(signed, int(result.exponent) * 4, ciphertext)  # phe counts in powers of 16
