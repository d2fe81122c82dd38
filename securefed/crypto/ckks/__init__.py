"""CKKS on SEAL's low-level binding: thousands of values a ciphertext, approximate, opened as exact phases."""

from __future__ import annotations

from securefed.crypto.ckks.encrypted import CkksEncrypted
from securefed.crypto.ckks.keys import CkksPublicKey, CkksSecretKey, generate_secret_key
from securefed.crypto.ckks.opening import CkksMask, CkksMasked, CkksOpened

__all__ = [
    "CkksEncrypted",
    "CkksMask",
    "CkksMasked",
    "CkksOpened",
    "CkksPublicKey",
    "CkksSecretKey",
    "generate_secret_key",
]
