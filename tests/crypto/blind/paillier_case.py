"""Paillier with keys that are small enough for tests: two slots of uniform factors, four of others."""

from __future__ import annotations

from securefed.crypto.blind.paillier import paillier_scheme

SMALL_BITS = 512
PAILLIER_SMALL = paillier_scheme(SMALL_BITS, allow_small=True)
