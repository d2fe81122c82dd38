"""The Paillier scheme: exact sums and products by plain integers, on gmpy2.

primes    primes and n-th residues
keys      the proof of a modulus, public and secret keys
arrays    one value a ciphertext
powers    products of powers
masking   packing, masks and openings
"""

from __future__ import annotations

from math import prod

from securefed.crypto.paillier.arrays import PaillierEncrypted
from securefed.crypto.paillier.keys import (
    MOST_BITS,
    PaillierPublicKey,
    PaillierSecretKey,
    generate_secret_key,
    strong_parameters,
)
from securefed.crypto.paillier.masking import PaillierMask, PaillierMasked, PaillierOpened

__all__ = [
    "MOST_PUBLIC_BYTES",
    "PaillierEncrypted",
    "PaillierMask",
    "PaillierMasked",
    "PaillierOpened",
    "PaillierPublicKey",
    "PaillierSecretKey",
    "generate_secret_key",
    "most_bytes",
    "strong_parameters",
]

MOST_PUBLIC_BYTES = 1 << 16
"""A modulus, and the roots that prove it."""


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    """Return the most bytes of a frame with an array, or with so many sums over its rows.

    Every value has a ciphertext of its own, under the largest key that is allowed.
    """
    columns = shape[1] if len(shape) == 2 else 1
    return 1024 + 2 * (MOST_BITS // 8) * (sums * columns if sums else prod(shape))
