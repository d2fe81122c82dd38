"""c1 of a reply in bytes: the highest 70 of its 105 bits, or the highest 42.

What is cut off is multiplied by s when a reply is read: rounding to 2**35 becomes an error of about 2**39
(tests/crypto/blind/noise.py). In products with 70 fraction bits that is 2**-31. Products with a right
factor of 67 bits in one piece have more noise than 42 bits of c1 bring, 2**67, and scores can bear it: they
have 95 fraction bits.

70 bits are three limbs and a third of one. The thirds of three coefficients make a limb. Bits that are not
sent tell nobody anything, so fewer of them need no argument.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind.shares import LIMB_BITS, LIMB_MASK
from securefed.crypto.errors import FormatError

__all__ = ["COARSE_BITS", "FINE_BITS", "bodies_from_bytes", "bodies_to_bytes", "body_bytes", "kept_limbs"]

FINE_BITS, COARSE_BITS = 70, 42
THIRD_BITS = LIMB_BITS // 3

Limbs = NDArray[np.int64]


def kept_limbs(bits: int) -> int:
    """Limbs that hold so many bits of a coefficient, the lowest in part."""
    return -(-bits // LIMB_BITS)


def body_bytes(count: int, bits: int) -> int:
    """The length of `bodies_to_bytes` for one polynomial of so many coefficients."""
    return 8 * _words(count, bits)


def _thirds(count: int, bits: int) -> int:
    """Limbs that the thirds of so many coefficients make."""
    return -(-count // 3) if bits % LIMB_BITS else 0


def _words(count: int, bits: int) -> int:
    return -(-(bits // LIMB_BITS * count + _thirds(count, bits)) // 3)


def bodies_to_bytes(limbs: Limbs, bits: int) -> bytes:
    """Round limbs (limbs, polynomials, coefficients), the highest of a number, to `bits`, and pack them.

    Polynomials follow one another. The limbs are overwritten.
    """
    kept, polynomials, count = limbs.shape
    whole, rest, words = bits // LIMB_BITS, _thirds(count, bits), _words(count, bits)
    flat = np.zeros((polynomials, 3 * words), dtype=np.int64)
    if rest:
        limbs[0] += 1 << (LIMB_BITS - THIRD_BITS - 1)
        for limb in range(kept - 1):
            limbs[limb + 1] += limbs[limb] >> LIMB_BITS
            limbs[limb] &= LIMB_MASK
        limbs[kept - 1] &= LIMB_MASK
        thirds = np.zeros((polynomials, 3 * rest), dtype=np.int64)
        thirds[:, :count] = limbs[0] >> (LIMB_BITS - THIRD_BITS)
        together = flat[:, whole * count : whole * count + rest]
        for place in (2, 1, 0):
            together <<= THIRD_BITS
            together |= thirds[:, place * rest : (place + 1) * rest]
    for limb in range(whole):
        flat[:, limb * count : (limb + 1) * count] = limbs[limb + kept - whole]
    packed = flat[:, 2 * words :].copy()
    for place in (1, 0):
        packed <<= LIMB_BITS
        packed |= flat[:, place * words : (place + 1) * words]
    data: bytes = packed.astype("<i8", copy=False).tobytes()
    return data


def bodies_from_bytes(data: bytes | memoryview, shape: tuple[int, int], bits: int) -> Limbs:
    """Read what `bodies_to_bytes` packed: limbs (limbs, polynomials, coefficients).

    Raises
    ------
    FormatError for another length or content.
    """
    polynomials, count = shape
    whole, rest, words = bits // LIMB_BITS, _thirds(count, bits), _words(count, bits)
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
    kept = kept_limbs(bits)
    limbs = np.empty((kept, polynomials, count), dtype=np.int64)
    for limb in range(whole):
        limbs[limb + kept - whole] = flat[:, limb * count : (limb + 1) * count]
    if rest:
        together = flat[:, whole * count : whole * count + rest]
        for place in range(3):
            part = limbs[0, :, place * rest : (place + 1) * rest]
            part[...] = together[:, : part.shape[1]] >> (THIRD_BITS * place) & ((1 << THIRD_BITS) - 1)
        limbs[0] <<= LIMB_BITS - THIRD_BITS
    return limbs
