"""The one parameter set: ring, primes, scales, security margins. Both sides build it from this file.

The ring is Z_q[X] / (X^N + 1) with N = 8192. The chain is three 60-bit primes, 180 bits of the 218 that the
homomorphic encryption standard allows at this N for 128-bit security; the last prime serves key switching
only, so data live modulo q = p0 * p1, just under 2^120. Nothing of a context is ever taken from a peer:
frames carry a hash of the name and the primes, and a mismatch is refused.

Values are scaled to at most 1 and then by 2^76, multipliers likewise by 2^32; products are not rescaled, so
they sit at 2^108. What is left below q/2 is for sums, and what lies between the noise and 2^76 is for the
flooding at openings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import tenseal.sealapi as seal

from securefed.crypto.errors import BadKey
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
    "Engine",
    "engine",
    "galois_element",
    "wide_engine",
]

NAME = "ckks-8192-60-60-60"
RING = 8192
SLOTS = RING // 2
PRIMES = (0xFFFFFFFFFFD8001, 0xFFFFFFFFFFE8001, 0xFFFFFFFFFFFC001)
DATA_PRIMES = PRIMES[:2]
_FOURTH_PRIME = 0xFFFFFFFFFFC4001
PARAMETERS = fingerprint(NAME.encode(), *(prime.to_bytes(8, "little") for prime in PRIMES))

DATA_BITS = 76
MULTIPLIER_BITS = 32
LEAST_MULTIPLIER_BITS = 16
CAPACITY_BITS = 118.0
"""A coefficient of a result stays below 2^118; flooding has the rest of q/2, which is above 2^118.99."""
ALIGNMENT_BITS = 4
"""How far apart the private scales of two products may lie for their sum (declared always, used or not)."""

ERROR_DEVIATION = 3.2
"""Of the errors that hide messages and keys (the standard's 8 / sqrt(2 pi))."""
SECURITY_BITS = 40
"""s: statistical security of the flooding."""
MOST_REPLIES = 1 << 20
"""tau: openings that one key answers; then it has to be replaced."""

LEAST_STRIDE = 4
GALOIS_STRIDES = tuple(1 << k for k in range(12, LEAST_STRIDE.bit_length() - 1, -1))
"""A merge halves the stride of the useful coefficients, from one of these; each takes one Galois key."""


def galois_element(stride: int) -> int:
    """The exponent of the automorphism that keeps X^(stride * k) and negates X^(stride/2 + stride * k)."""
    return 1 + 2 * RING // stride


@dataclass(frozen=True)
class Engine:
    """SEAL's objects for the parameter set; nothing in them belongs to a key."""

    context: Any
    evaluator: Any
    encoder: Any
    data_id: tuple[int, ...]
    key_id: tuple[int, ...]


@cache
def engine() -> Engine:
    """Built once in each process, from the constants above."""
    return _engine(PRIMES, seal.SEC_LEVEL_TYPE.TC128)


@cache
def wide_engine() -> Engine:
    """Data modulo all three primes, for transforming the parts of a key: nothing is encrypted in it."""
    return _engine((*PRIMES, _FOURTH_PRIME), seal.SEC_LEVEL_TYPE.NONE)


def _engine(primes: tuple[int, ...], security: Any) -> Engine:
    chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    chosen.set_poly_modulus_degree(RING)
    chosen.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
    context = seal.SEALContext(chosen, True, security)
    if not context.parameters_set():
        raise BadKey(f"SEAL refuses the parameter set {NAME}: {context.parameters_error_message()}")
    return Engine(
        context,
        seal.Evaluator(context),
        seal.CKKSEncoder(context),
        tuple(context.first_parms_id()),
        tuple(context.key_parms_id()),
    )
