"""The Paillier scheme: exact sums and products by plain integers, on gmpy2.

keys        public.py (everybody), secret.py (the owner), primes.py (generation and checks),
            proof.py (that n and phi(n) have no factor in common)
randomness  residues.py (r**n, and the owner's way to it)
arrays      encrypted.py (one value a ciphertext), extent.py (scale, bounds, packing)
products    multiexp.py
openings    masking.py
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
