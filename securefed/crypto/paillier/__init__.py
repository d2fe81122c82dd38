"""The Paillier scheme: exact sums and products by plain integers, on gmpy2.

primes    primes and n-th residues
keys      the proof of a modulus, public and secret keys
arrays    one value a ciphertext
powers    products of powers
masking   packing, masks and openings
"""

from __future__ import annotations

from securefed.crypto.paillier.arrays import PaillierEncrypted
from securefed.crypto.paillier.keys import (
    PaillierPublicKey,
    PaillierSecretKey,
    generate_secret_key,
    strong_parameters,
)
from securefed.crypto.paillier.masking import PaillierMask, PaillierMasked, PaillierOpened

__all__ = [
    "PaillierEncrypted",
    "PaillierMask",
    "PaillierMasked",
    "PaillierOpened",
    "PaillierPublicKey",
    "PaillierSecretKey",
    "generate_secret_key",
    "strong_parameters",
]
