"""CKKS on SEAL's low-level binding: thousands of values a ciphertext, approximate, opened as exact phases."""

from __future__ import annotations

from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMask, CkksMasked, CkksOpened
from securefed.crypto.ckks.keys import CkksPublicKey, CkksSecretKey, generate_secret_key
from securefed.crypto.ckks.layout import PARAMETERS, RING

__all__ = [
    "CkksEncrypted",
    "CkksMask",
    "CkksMasked",
    "CkksOpened",
    "CkksPublicKey",
    "CkksSecretKey",
    "generate_secret_key",
    "strong_parameters",
]


def strong_parameters() -> dict[str, str]:
    """Return the parameter set of documented strength (docs/security.md), by fingerprint."""
    return {PARAMETERS.hex(): f"ckks, ring {RING}, the pinned parameter set"}
