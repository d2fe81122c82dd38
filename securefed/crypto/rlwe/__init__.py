"""RLWE with exact integers in coefficients: hidden arrays (securefed.crypto.hidden)."""

from __future__ import annotations

from securefed.crypto.rlwe.keys import RlwePublicKey, RlweSecretKey, generate_secret_key
from securefed.crypto.rlwe.ring import HIDDEN

__all__ = ["RlwePublicKey", "RlweSecretKey", "generate_secret_key", "strong_parameters"]


def strong_parameters() -> dict[str, str]:
    """The parameter set of documented strength (docs/security.md), by fingerprint."""
    return {HIDDEN.parameters.hex(): f"rlwe, ring {HIDDEN.degree}, the pinned set {HIDDEN.name}"}
