"""The integers behind ciphertexts: their scale, their bound, and their places in plaintexts.

An extent follows from declared ranges and operations, never from values. It is checked against the key before
any computation: integers reach at most (n - 1) / 2 in magnitude, so that signs survive and nothing wraps.

Several integers share a plaintext, each in a slot of w bits: P = v_0 + v_1 * 2**w + v_2 * 2**(2 w) + ... P is
signed, and taken mod n for encryption. Unpacking goes from low to high. Each slot is centred around 0 and
passes its borrow to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import frexp, inf, isfinite, ldexp

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.errors import CapacityError, FormatError, RangeError, ShapeError
from securefed.crypto.fixed import PRIVATE_BITS, FixedPoint, exponent_for
from securefed.crypto.multipliers import Multipliers
from securefed.crypto.scheme import Floats

__all__ = [
    "Extent",
    "MultiplierScale",
    "from_integers",
    "multiplier_scale",
    "pack",
    "slots_for",
    "to_integers",
    "unpack",
]

MOST_FRACTION_BITS = 8192
MOST_MAGNITUDE_BITS = 1 << 15

Numbers = tuple[int, int, int, int]


@dataclass(frozen=True)
class Extent:
    """Scale and bounds of numbers integer * 2**-fraction_bits: `magnitude` of integers, `bound` of
    numbers.
    """

    fraction_bits: int
    magnitude: int
    bound: float

    @classmethod
    def fresh(cls, fixed: FixedPoint) -> Extent:
        return cls(fixed.fraction_bits, _largest(fixed.bound, fixed.fraction_bits), fixed.bound)

    def scaled(self, fraction_bits: int) -> Extent:
        """Return the extent of the same numbers in finer steps."""
        return Extent(fraction_bits, self.magnitude << (fraction_bits - self.fraction_bits), self.bound)

    def plus(self, other: Extent) -> Extent:
        """Return the extent of a sum of two arrays at one scale."""
        return Extent(self.fraction_bits, self.magnitude + other.magnitude, self.bound + other.bound)

    def plus_plain(self) -> Extent:
        """Return the extent of a sum with plain numbers up to the bound."""
        addend = max(self.magnitude, _largest(self.bound, self.fraction_bits))
        return Extent(self.fraction_bits, self.magnitude + addend, 2 * self.bound)

    def times(self, scale: MultiplierScale, terms: int = 1) -> Extent:
        """Return the extent of a sum of `terms` products with multipliers of that scale."""
        magnitude = self.magnitude * scale.limit * terms
        return Extent(self.fraction_bits + scale.fraction_bits, magnitude, self.bound * scale.bound * terms)

    def numbers(self) -> Numbers:
        """Return the numbers of a frame."""
        low, high = struct.unpack("<2i", struct.pack("<d", self.bound))
        return self.fraction_bits, self.magnitude.bit_length(), low, high

    @classmethod
    def from_numbers(cls, numbers: Numbers) -> Extent:
        """Return the extent that a frame announces. Magnitudes come back rounded up to a full bit."""
        fraction_bits, bits, low, high = numbers
        bound = float(struct.unpack("<d", struct.pack("<2i", low, high))[0])
        if abs(fraction_bits) > MOST_FRACTION_BITS:
            raise FormatError(f"fraction bits: {fraction_bits} given, up to {MOST_FRACTION_BITS} are allowed")
        if not 1 <= bits <= MOST_MAGNITUDE_BITS:
            raise FormatError(f"magnitude of {bits} bits given, 1 to {MOST_MAGNITUDE_BITS} are allowed")
        if not (isfinite(bound) and bound > 0):
            raise FormatError("bound: a finite number above 0 is allowed")
        extent = cls(fraction_bits, (1 << bits) - 1, bound)
        # The bound may be what integers of that many bits stand for and not more: addends go up to it.
        if frexp(bound)[1] + fraction_bits > bits + 1:
            raise FormatError(
                f"a bound of {bound:.3g} at {fraction_bits} fraction bits given for {bits} bits"
            )
        return extent


@dataclass(frozen=True)
class MultiplierScale:
    """The scale of plain multipliers, value ~ integer * 2**-fraction_bits, and their declared limits."""

    fraction_bits: int
    limit: int
    bound: float

    def integers(self, values: Floats) -> NDArray[np.int64]:
        return np.rint(np.ldexp(values, self.fraction_bits)).astype(np.int64)


def multiplier_scale(multipliers: Multipliers, fixed: FixedPoint | None) -> MultiplierScale:
    """Return the public scale `fixed`, or a private one of 24 significant bits.

    A private limit is 2**24 for all multipliers, so the number of ciphertexts of a masked result says nothing
    about them. The bound is the power of two of the scale.
    """
    if fixed is not None:
        limit = _largest(fixed.bound, fixed.fraction_bits)
        return MultiplierScale(fixed.fraction_bits, limit, fixed.bound)
    exponent = exponent_for(float(multipliers.largest.max()), PRIVATE_BITS)
    above = PRIVATE_BITS - exponent
    bound = ldexp(1.0, above) if above < 1024 else inf  # an extent without a finite bound is not admitted
    scale = MultiplierScale(exponent, 1 << PRIVATE_BITS, bound)
    # The last power of two that all have in common only costs squarings: it goes into the scale.
    return replace(scale, fraction_bits=exponent - _common_twos(multipliers, scale))


def _common_twos(multipliers: Multipliers, scale: MultiplierScale) -> int:
    merged = 0
    for _, _, block in multipliers.blocks():
        merged |= int(np.bitwise_or.reduce(np.abs(scale.integers(block)), axis=None))
        if merged & 1:
            break
    return max(0, (merged & -merged).bit_length() - 1)


def to_integers(values: Floats, fraction_bits: int) -> list[int]:
    """Return round(value * 2**fraction_bits) of each value, of any size, row by row."""
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(values.ravel(), fraction_bits))
    if not np.isfinite(scaled).all():
        raise CapacityError(f"values with {fraction_bits} fraction bits are beyond any plaintext")
    return [int(value) for value in scaled.tolist()]


def from_integers(integers: list[int], fraction_bits: int, shape: tuple[int, ...]) -> Floats:
    """Return integer * 2**-fraction_bits of each, correctly rounded to float64."""
    up, down = 1 << max(0, -fraction_bits), 1 << max(0, fraction_bits)
    try:
        return np.array([value * up / down for value in integers], dtype=np.float64).reshape(shape)
    except OverflowError:
        raise RangeError("an opened value is beyond float64") from None


def _largest(bound: float, fraction_bits: int) -> int:
    """Return the integer of largest magnitude that encodes a number up to `bound`."""
    top, bottom = bound.as_integer_ratio()
    return max(1, round(Fraction(top << max(0, fraction_bits), bottom << max(0, -fraction_bits))))


def slots_for(modulus_bits: int, width: int) -> int:
    """Return the number of slots of this width in a plaintext, sign included; at least one."""
    return max(1, (modulus_bits - 2) // width)


def pack(values: Sequence[int], width: int) -> mpz:
    """Return the signed integer sum of values[j] * 2**(width * j).

    Raises CapacityError unless every |value| is below 2**(width - 1). A larger one would silently change its
    neighbour's slot.
    """
    if not values:
        raise ShapeError("nothing to pack: the list of values is empty")
    if width < 2:
        raise RangeError(f"width: {width} given, at least 2 is allowed")
    half = mpz(1) << (width - 1)
    shifted = [value + half for value in values]
    if min(shifted) <= 0 or max(shifted) >= 2 * half:
        raise CapacityError(
            f"a value reaches {max(abs(v) for v in values)}, a slot of {width} bits holds less than {half}"
        )
    return gmpy2.pack(shifted, width) - _offset(width, len(values))


def unpack(packed: int, width: int, count: int) -> list[int]:
    """Return the `count` values of a packed integer. Raises RangeError if it has a remainder."""
    if count < 1:
        raise ShapeError(f"count: {count} given, at least 1 is allowed")
    if width < 2:
        raise RangeError(f"width: {width} given, at least 2 is allowed")
    # Half a slot added everywhere turns the centred digits with their borrows into plain digits at once.
    lifted = mpz(packed) + _offset(width, count)
    if lifted < 0 or lifted.bit_length() > width * count:
        raise RangeError(
            f"a remainder is left above the last of {count} slots of {width} bits: another plan's plaintext"
        )
    half = 1 << (width - 1)
    digits = [int(digit) - half for digit in gmpy2.unpack(lifted, width)]
    return digits + [-half] * (count - len(digits))


def _offset(width: int, count: int) -> mpz:
    """Return half a slot in each of `count` slots."""
    return (mpz(1) << (width - 1)) * (((mpz(1) << (width * count)) - 1) // ((mpz(1) << width) - 1))
