"""RLWE with exact integers in coefficients: hidden arrays (securefed.crypto.hidden)."""

from __future__ import annotations

from securefed.crypto.rlwe.keys import RlwePublicKey, RlweSecretKey, generate_secret_key

__all__ = ["RlwePublicKey", "RlweSecretKey", "generate_secret_key"]
