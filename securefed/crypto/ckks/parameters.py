"""The one parameter set: ring, primes, scales, security margins. Both sides build it from this file.

The ring is Z_q[X] / (X^N + 1) with N = 8192. The chain is three 60-bit primes, 180 bits of the 218 that the
homomorphic encryption standard allows at this N for 128-bit security. The last prime serves key switching
only, so data are modulo q = p0 * p1, just under 2^120. No part of a context is accepted from a peer. Frames
have a hash of the name and the primes, and a mismatch is refused.

Values are scaled to at most 1 and then by 2^76, multipliers by 2^32. Products are not rescaled, so they are
at 2^108. The room below q/2 is for sums. The room between the noise and 2^76 is for flooding at openings.
"""

from __future__ import annotations

from securefed.crypto.lattice.sampling import ERROR_DEVIATION
from securefed.crypto.lattice.word_ring import DATA_PRIMES, DEGREE, PRIMES
from securefed.crypto.wire import fingerprint

__all__ = [
    "ALIGNMENT_BITS",
    "CAPACITY_BITS",
    "DATA_BITS",
    "DATA_PRIMES",
    "ERROR_DEVIATION",
    "GALOIS_STRIDES",
    "LEAST_MULTIPLIER_BITS",
    "LEAST_STRIDE",
    "MOST_REPLIES",
    "MULTIPLIER_BITS",
    "NAME",
    "PARAMETERS",
    "PRIMES",
    "RING",
    "SECURITY_BITS",
    "SLOTS",
    "galois_element",
]

NAME = "ckks-8192-60-60-60"
RING = DEGREE
SLOTS = RING // 2
PARAMETERS = fingerprint(NAME.encode(), *(prime.to_bytes(8, "little") for prime in PRIMES))

DATA_BITS = 76
MULTIPLIER_BITS = 32
LEAST_MULTIPLIER_BITS = 16
CAPACITY_BITS = 118.0
"""A coefficient of a result stays below 2^118. Flooding has the rest of q/2, which is above 2^118.99."""
ALIGNMENT_BITS = 4
"""The most bits between the private scales of two products in a sum (always declared)."""

SECURITY_BITS = 40
"""s: statistical security of the flooding."""
MOST_REPLIES = 1 << 20
"""tau: openings that one key answers before it must be replaced."""

LEAST_STRIDE = 4
GALOIS_STRIDES = tuple(1 << k for k in range(12, LEAST_STRIDE.bit_length() - 1, -1))
"""A merge halves the stride of the useful coefficients, from one of these; each takes one Galois key."""


def galois_element(stride: int) -> int:
    """Return the exponent of the automorphism that keeps X^(stride * k) and negates X^(stride/2 + stride *
    k).
    """
    return 1 + 2 * RING // stride
