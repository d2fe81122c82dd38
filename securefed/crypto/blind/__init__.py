"""The cryptography of blind training: additive shares, and the one product that needs encryption.

`shares` has arithmetic on shares modulo 2**105. `interface` defines `cross`, the product U'V of two private
matrices as shares; `rlwe` and `paillier` implement it. Nothing here decrypts on request: the
party with the key reads masked results only.
"""

from __future__ import annotations

from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    Operand,
    Product,
)

__all__ = [
    "NONCE_BYTES",
    "CrossKey",
    "CrossPublic",
    "CrossScheme",
    "Evaluation",
    "Operand",
    "Product",
]
