"""Keys with given primes."""

from __future__ import annotations

from gmpy2 import mpz

from securefed.crypto.paillier.keys import PaillierSecretKey
from securefed.crypto.paillier.primes import FactoredPrime, PrimePair


def key_of(p: int, q: int, *, allow_small: bool = False) -> PaillierSecretKey:
    """A key whose owner does not know the factors of p - 1, as phe's does not."""
    return PaillierSecretKey(PrimePair(FactoredPrime(mpz(p)), FactoredPrime(mpz(q))), allow_small=allow_small)
