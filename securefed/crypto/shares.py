"""Whole numbers modulo 2**105 as arrays of five limbs of 21 bits.

A hidden number x is x = x_1 + x_2 modulo 2**105, with one share at each of two parties. Each share alone is
uniform. An array of numbers has the shape (5, ...) and dtype int64; limb l counts for 2**(21 l). A product of
two limbs stays below 2**42, so that matrix products run in float64 through BLAS and are exact.

`truncate` and `reduce_bits` depend on which party computes them: the first holder counts its share from 0,
the second one less 2**105.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.randomness import ByteSource
from securefed.crypto.wire import check_length
from securefed.errors import FormatError, ShapeError

LIMB_BITS = 21
LIMBS = 5
WIDTH = LIMB_BITS * LIMBS
"""w: shares are numbers modulo 2**w."""
LIMB_MASK = (1 << LIMB_BITS) - 1
EXACT_TERMS = 2048
"""Products of limbs that float64 adds up exactly: 2**42 each, 2**53 in all."""

Share = NDArray[np.int64]
Floats = NDArray[np.float64]


def carry(limbs: Share) -> Share:
    """Bring limbs of any sign and size below 2**62 back to 21 bits each, in place, modulo 2**105."""
    for limb in range(LIMBS - 1):
        limbs[limb + 1] += limbs[limb] >> LIMB_BITS
        limbs[limb] &= LIMB_MASK
    limbs[LIMBS - 1] &= LIMB_MASK
    return limbs


def zeros(*shape: int) -> Share:
    return np.zeros((LIMBS, *shape), dtype=np.int64)


def uniform(*shape: int) -> Share:
    """Draw numbers uniformly modulo 2**105 from the operating system's generator."""
    return uniform_from(os.urandom, *shape)


def uniform_from(source: ByteSource, *shape: int) -> Share:
    """Draw numbers uniformly modulo 2**105 from a given source of bytes."""
    count = int(np.prod(shape))
    words = np.frombuffer(source(16 * count), dtype="<u8").reshape(2, count)
    limbs = np.empty((LIMBS, count), dtype=np.int64)
    for limb in range(LIMBS):
        limbs[limb] = (words[limb // 3] >> np.uint64(LIMB_BITS * (limb % 3))) & np.uint64(LIMB_MASK)
    return limbs.reshape(LIMBS, *shape)


# Between shares and other numbers


def from_integer(number: int) -> Share:
    """Return the limbs of one Python integer: shape (5,)."""
    return np.array([(number >> (LIMB_BITS * limb)) & LIMB_MASK for limb in range(LIMBS)], dtype=np.int64)


def constant(number: int, beside: Share) -> Share:
    """Return the limbs of one Python integer, in a shape that adds to another share."""
    return from_integer(number).reshape(LIMBS, *(1 for _ in beside.shape[1:]))


def from_integers(integers: NDArray[np.int64]) -> Share:
    """Return the limbs of machine integers, of either sign."""
    whole = np.asarray(integers, dtype=np.int64)
    limbs = zeros(*whole.shape)
    limbs[0], limbs[1] = whole & LIMB_MASK, (whole >> LIMB_BITS) & LIMB_MASK
    limbs[2] = (whole >> (2 * LIMB_BITS)) & LIMB_MASK
    limbs[3:] = (whole >> 63) & LIMB_MASK
    return limbs


def to_integers(share: Share) -> list[int]:
    """Return Python integers in [0, 2**105), in order."""
    flat = share.reshape(LIMBS, -1).tolist()
    return [sum(limb << (LIMB_BITS * i) for i, limb in enumerate(limbs)) for limbs in zip(*flat, strict=True)]


def from_floats(values: Floats, fraction_bits: int) -> Share:
    """Return round(values * 2**fraction_bits) modulo 2**105; every bit of a float64 counts."""
    whole = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), fraction_bits))
    limbs = zeros(*whole.shape)
    for limb in range(LIMBS):
        # Exact: quotients and remainders by powers of two have no more bits than the number.
        limbs[limb] = np.mod(whole, 2.0**LIMB_BITS)
        whole = np.floor(np.ldexp(whole, -LIMB_BITS))
    return limbs


def to_floats(share: Share, fraction_bits: int) -> Floats:
    """Return the representative nearest to 0, times 2**-fraction_bits."""
    negative = (share[LIMBS - 1] >> (LIMB_BITS - 1)) & 1 == 1
    magnitude = carry(np.where(negative, -share, share))
    total: Floats = np.zeros(share.shape[1:])
    for limb in range(LIMBS):
        total += np.ldexp(magnitude[limb].astype(np.float64), LIMB_BITS * limb - fraction_bits)
    return np.where(negative, -total, total)


# Sums, shifts, products


def add(first: Share, *others: Share) -> Share:
    return carry(sum(others, first.copy()))


def subtract(first: Share, second: Share) -> Share:
    return carry(first - second)


def negate(share: Share) -> Share:
    return carry(-share)


def shift_left(share: Share, bits: int) -> Share:
    limb, rest = divmod(bits, LIMB_BITS)
    shifted = np.zeros_like(share)
    if limb < LIMBS:
        shifted[limb:] = share[: LIMBS - limb] << rest
    return carry(shifted)


def shift_right(share: Share, bits: int) -> Share:
    """Return floor(share / 2**bits) of the representative in [0, 2**105)."""
    limb, rest = divmod(bits, LIMB_BITS)
    shifted = np.zeros_like(share)
    for place in range(LIMBS - limb):
        shifted[place] = share[place + limb] >> rest
        if place + limb + 1 < LIMBS:
            shifted[place] |= (share[place + limb + 1] << (LIMB_BITS - rest)) & LIMB_MASK
    return shifted


def truncate(share: Share, bits: int, *, first: bool) -> Share:
    """Return this holder's share of the shared number / 2**bits.

    The two add up to the truncated number, one unit off at most. That is wrong with probability
    |number| / 2**105. Never use it on a trivial share (0 and the number itself): the 0 would count for
    -2**105.
    """
    shifted = shift_right(share, bits)
    return shifted if first else carry(shifted - constant(1 << (WIDTH - bits), shifted))


def reduce_bits(share: Share, bits: int, *, first: bool = True) -> Share:
    """Return the share modulo 2**bits: in [0, 2**bits) at the first holder, less 2**bits at the second."""
    limb, rest = divmod(bits, LIMB_BITS)
    reduced = share.copy()
    if limb < LIMBS:
        reduced[limb] &= (1 << rest) - 1
        reduced[limb + 1 :] = 0
    return reduced if first else carry(reduced - constant(1 << bits, reduced))


def times(share: Share, factors: NDArray[np.int64] | int) -> Share:
    """Return the share times public integers below 2**42 in magnitude, one for all or of its shape."""
    factor = np.asarray(factors, dtype=np.int64)
    sign, magnitude = np.sign(factor), np.abs(factor)
    if magnitude.size and int(magnitude.max()) >= 1 << (2 * LIMB_BITS):
        raise ShapeError(f"a factor of {int(magnitude.max())} given, less than 2**42 is allowed")
    low, high = magnitude & LIMB_MASK, magnitude >> LIMB_BITS
    upper = np.zeros_like(share)
    upper[1:] = share[:-1] * high
    return carry(sign * carry(carry(share * low) + carry(upper)))


def matmul(left: Share | Floats, right: Share | Floats) -> Share:
    """Return left @ right modulo 2**105, for (5, a, b) and (5, b, c), by BLAS."""
    if left.shape[2] != right.shape[1]:
        raise ShapeError(f"a product of {left.shape[1:]} and {right.shape[1:]} does not fit")
    rows, inner, columns = left.shape[1], left.shape[2], right.shape[2]
    wide_left = left.astype(np.float64, copy=False)
    # All limbs of the right factor stand side by side, so that one BLAS call serves them all.
    wide_right = np.ascontiguousarray(right.astype(np.float64).transpose(1, 0, 2))
    total = zeros(rows, columns)
    for start in range(0, inner, EXACT_TERMS):
        block = slice(start, start + EXACT_TERMS)
        for limb in range(LIMBS):
            count = LIMBS - limb
            beside = wide_right[block, :count].reshape(-1, count * columns)
            products = (wide_left[limb][:, block] @ beside).astype(np.int64).reshape(rows, count, columns)
            for other in range(count):
                total[limb + other] += products[:, other] & LIMB_MASK
                if limb + other + 1 < LIMBS:
                    total[limb + other + 1] += products[:, other] >> LIMB_BITS
    return carry(total)


def centred_digits(share: Share, count: int, bits: int) -> list[Floats]:
    """Return `count` digits of `bits` bits, centred on 0, lowest first.

    They add up to the number modulo 2**105 where they have at least 105 bits together. Otherwise they do if
    the representative nearest to 0 is at most 2**(count bits - 2) in magnitude.
    """
    if bits > 2 * LIMB_BITS:
        raise ShapeError(f"digits of {bits} bits given, at most {2 * LIMB_BITS} are allowed")
    half = sum(1 << (bits - 1 + bits * place) for place in range(count)) % (1 << WIDTH)
    moved = carry(share + constant(half, share))
    digits = []
    for place in range(count):
        low = shift_right(moved, bits * place)
        digit = (low[0] + (low[1] << LIMB_BITS)) & ((1 << bits) - 1)
        digits.append((digit - (1 << (bits - 1))).astype(np.float64))
    return digits


# Bytes


def size_in_bytes(count: int, limbs: int = LIMBS) -> int:
    """Return the length of `to_bytes` for so many numbers."""
    return 8 * -(-count * limbs // 3)


def numbers_in(size: int) -> int:
    """Return how many numbers `to_bytes` packed into so many bytes."""
    return 3 * (size // 8) // LIMBS


def to_bytes(share: NDArray[np.int64]) -> bytes:
    """Pack limbs below 2**21, three in eight bytes."""
    flat = np.ascontiguousarray(share).reshape(-1)
    count = -(-len(flat) // 3)
    words = np.zeros(count, dtype=np.int64)
    for place in (2, 1, 0):
        part = flat[place * count : (place + 1) * count]
        words <<= LIMB_BITS
        words[: len(part)] |= part
    data: bytes = words.astype("<i8", copy=False).tobytes()
    return data


def from_bytes(data: bytes | memoryview, shape: Sequence[int]) -> NDArray[np.int64]:
    """Read what `to_bytes` wrote; `shape` includes the limbs. Raises FormatError for anything else."""
    count = int(np.prod(shape))
    words_due = -(-count // 3)
    check_length("numbers", data, 8 * words_due)
    words = np.frombuffer(data, dtype="<i8")
    if words_due and int(words.min()) < 0:
        raise FormatError("numbers: a bit is set that no number has")
    flat = np.empty(3 * words_due, dtype=np.int64)
    for place in range(3):
        part = flat[place * words_due : (place + 1) * words_due]
        np.right_shift(words, LIMB_BITS * place, out=part)
        part &= LIMB_MASK
    return flat[:count].reshape(shape)
