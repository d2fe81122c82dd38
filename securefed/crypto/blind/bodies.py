"""c1 of a reply in bytes: the highest 70 of its 105 bits.

What is cut off is multiplied by s when a reply is read: rounding to 2**35 becomes an error of about 2**39
(`noise`). In products with 70 fraction bits that is 2**-31. 70 bits are three limbs and a third of one. The
thirds of three coefficients make a limb.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind.shares import LIMB_BITS, LIMB_MASK, LIMBS
from securefed.crypto.errors import FormatError

__all__ = ["CUT_BITS", "KEPT_LIMBS", "bodies_from_bytes", "bodies_to_bytes", "body_bytes"]

KEPT_LIMBS = 4
"""Limbs that are kept, the lowest in part."""
THIRD_BITS = LIMB_BITS // 3
CUT_BITS = LIMBS * LIMB_BITS - (KEPT_LIMBS - 1) * LIMB_BITS - THIRD_BITS
"""Bits that are rounded away."""

Limbs = NDArray[np.int64]


def body_bytes(count: int) -> int:
    """The length of `bodies_to_bytes` for one polynomial of so many coefficients."""
    return 8 * _words(count)


def _words(count: int) -> int:
    return -(-((KEPT_LIMBS - 1) * count + -(-count // 3)) // 3)


def bodies_to_bytes(limbs: Limbs) -> bytes:
    """Round limbs (4, polynomials, coefficients), the highest 84 bits, to 70 bits, and pack them.

    Polynomials follow one another. The limbs are overwritten.
    """
    _, polynomials, count = limbs.shape
    limbs[0] += 1 << (LIMB_BITS - THIRD_BITS - 1)
    for limb in range(KEPT_LIMBS - 1):
        limbs[limb + 1] += limbs[limb] >> LIMB_BITS
        limbs[limb] &= LIMB_MASK
    limbs[KEPT_LIMBS - 1] &= LIMB_MASK
    rest, words = -(-count // 3), _words(count)
    thirds = np.zeros((polynomials, 3 * rest), dtype=np.int64)
    thirds[:, :count] = limbs[0] >> (LIMB_BITS - THIRD_BITS)
    flat = np.zeros((polynomials, 3 * words), dtype=np.int64)
    for limb in range(1, KEPT_LIMBS):
        flat[:, (limb - 1) * count : limb * count] = limbs[limb]
    together = flat[:, (KEPT_LIMBS - 1) * count : (KEPT_LIMBS - 1) * count + rest]
    for place in (2, 1, 0):
        together <<= THIRD_BITS
        together |= thirds[:, place * rest : (place + 1) * rest]
    packed = flat[:, 2 * words :].copy()
    for place in (1, 0):
        packed <<= LIMB_BITS
        packed |= flat[:, place * words : (place + 1) * words]
    data: bytes = packed.astype("<i8", copy=False).tobytes()
    return data


def bodies_from_bytes(data: bytes | memoryview, shape: tuple[int, int]) -> Limbs:
    """Read what `bodies_to_bytes` packed: limbs (4, polynomials, coefficients).

    Raises
    ------
    FormatError for another length or content.
    """
    polynomials, count = shape
    rest, words = -(-count // 3), _words(count)
    if len(data) != 8 * words * polynomials:
        raise FormatError(f"polynomials: {len(data)} bytes given, {8 * words * polynomials} are due")
    packed = np.frombuffer(data, dtype="<i8").reshape(polynomials, words)
    if packed.size and int(packed.min()) < 0:
        raise FormatError("polynomials: a bit is set that no number has")
    flat = np.empty((polynomials, 3 * words), dtype=np.int64)
    for place in range(3):
        part = flat[:, place * words : (place + 1) * words]
        np.right_shift(packed, LIMB_BITS * place, out=part)
        part &= LIMB_MASK
    limbs = np.empty((KEPT_LIMBS, polynomials, count), dtype=np.int64)
    for limb in range(1, KEPT_LIMBS):
        limbs[limb] = flat[:, (limb - 1) * count : limb * count]
    together = flat[:, (KEPT_LIMBS - 1) * count : (KEPT_LIMBS - 1) * count + rest]
    for place in range(3):
        part = limbs[0, :, place * rest : (place + 1) * rest]
        part[...] = together[:, : part.shape[1]] >> (THIRD_BITS * place) & ((1 << THIRD_BITS) - 1)
    limbs[0] <<= LIMB_BITS - THIRD_BITS
    return limbs
