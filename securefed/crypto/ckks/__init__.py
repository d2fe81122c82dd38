"""CKKS on SEAL's low-level binding: thousands of values a ciphertext, approximate, opened as exact phases."""

from __future__ import annotations

from securefed.crypto.ckks.arrays import (
    CkksEncrypted,
    CkksMask,
    CkksMasked,
    CkksOpened,
    answer_bytes,
    encrypted_bytes,
    masked_bytes,
)
from securefed.crypto.ckks.keys import CkksPublicKey, CkksSecretKey, generate_secret_key
from securefed.crypto.ckks.layout import PARAMETERS, RING, CkksLayout, RowLayout

__all__ = [
    "MOST_PUBLIC_BYTES",
    "CkksEncrypted",
    "CkksMask",
    "CkksMasked",
    "CkksOpened",
    "CkksPublicKey",
    "CkksSecretKey",
    "generate_secret_key",
    "most_bytes",
    "strong_parameters",
]


def strong_parameters() -> dict[str, str]:
    """Return the parameter set of documented strength (docs/security.md), by fingerprint."""
    return {PARAMETERS.hex(): f"ckks, ring {RING}, the pinned parameter set"}


MOST_PUBLIC_BYTES = 8 << 20
HEAD_BYTES = 1024


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    """Return the most bytes of a frame with an array, or with so many sums over its rows."""
    rows = RowLayout(shape)
    layout: CkksLayout = rows.contracted(sums) if sums else rows
    return HEAD_BYTES + max(encrypted_bytes(layout, False), masked_bytes(layout), answer_bytes(layout))
