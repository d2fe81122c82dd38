"""An array of Paillier ciphertexts, one value each, and its operations without the secret key.

    E(a) * E(b) = E(a + b)        E(a) * (1 + n b) = E(a + b)        E(a) ** t = E(a t)        all mod n**2

Results of arithmetic are exact integers at a known scale. They are not re-randomised, and leave only by
`mask`: the key-holder can read multipliers out of randomness that was only raised to powers. Scale and bounds
(`Extent`) follow from declared ranges and operations, never from values. They are checked against the key
before any computation, so nothing wraps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from math import frexp, isfinite, ldexp, prod
from typing import TYPE_CHECKING

import gmpy2
import numpy as np
from gmpy2 import mpz

from securefed.crypto.fixed import (
    BLOCK_ENTRIES,
    EVERY,
    PRIVATE_BITS,
    FixedPoint,
    Floats,
    Multipliers,
    exponent_for,
)
from securefed.crypto.paillier.masking import (
    MOST_FRACTION_BITS,
    Integers,
    PackedLayout,
    PaillierMask,
    PaillierMasked,
    mask_packed,
    pack_ciphertexts,
)
from securefed.crypto.paillier.powers import PowerColumn, column_powers, cut_column
from securefed.crypto.randomness import uniform_many_below
from securefed.crypto.scheme import Encrypted, progress
from securefed.crypto.wire import Frame, Kind
from securefed.errors import CapacityError, FormatError

if TYPE_CHECKING:
    from securefed.crypto.paillier.keys import PaillierPublicKey

MOST_MAGNITUDE_BITS = 1 << 15

Numbers = tuple[int, int, int, int]


@dataclass(frozen=True)
class Extent:
    """Scale and bounds of numbers integer * 2**-fraction_bits; `magnitude`: the bound of integers."""

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

    def times(self, scale: FixedPoint, terms: int = 1) -> Extent:
        """Return the extent of a sum of `terms` products with multipliers of that scale."""
        magnitude = self.magnitude * _largest(scale.bound, scale.fraction_bits) * terms
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
        # The bound may be what integers of that many bits stand for and not more: addends go up to it.
        if frexp(bound)[1] + fraction_bits > bits + 1:
            raise FormatError(
                f"a bound of {bound:.3g} at {fraction_bits} fraction bits given for {bits} bits"
            )
        return cls(fraction_bits, (1 << bits) - 1, bound)


def multiplier_scale(multipliers: Multipliers, fixed: FixedPoint | None) -> FixedPoint:
    """Return the public scale `fixed`, or a private one of 24 significant bits.

    A private limit is 2**24 for all multipliers, so the number of ciphertexts of a masked result says nothing
    about them. The bound is the power of two of the scale.
    """
    if fixed is not None:
        return fixed
    exponent = exponent_for(float(multipliers.largest.max()), PRIVATE_BITS)
    if PRIVATE_BITS - exponent >= 1024:
        raise CapacityError("multipliers up to the end of float64 given: no extent has a finite bound")
    return FixedPoint(ldexp(1.0, PRIVATE_BITS - exponent), exponent)


def to_integers(values: Floats, fraction_bits: int) -> list[int]:
    """Return round(value * 2**fraction_bits) of each value, of any size, row by row."""
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(values.ravel(), fraction_bits))
    if not np.isfinite(scaled).all():
        raise CapacityError(f"values with {fraction_bits} fraction bits are beyond any plaintext")
    return [int(value) for value in scaled.tolist()]


def _largest(bound: float, fraction_bits: int) -> int:
    """Return the integer of largest magnitude that encodes a number up to `bound`."""
    top, bottom = bound.as_integer_ratio()
    return max(1, round(Fraction(top << max(0, fraction_bits), bottom << max(0, -fraction_bits))))


class PaillierEncrypted(Integers, Encrypted):
    """Ciphertexts row by row, with the public extent of the integers in them."""

    kind = Kind.ENCRYPTED

    def __init__(
        self, public: PaillierPublicKey, shape: tuple[int, ...], ciphertexts: Sequence[mpz], extent: Extent
    ) -> None:
        super().__init__(public, shape, ciphertexts)
        self.extent, self.bound, self.numbers = extent, extent.bound, extent.numbers()

    @property
    def fraction_bits(self) -> int:
        return self.extent.fraction_bits

    def mask(self, width: int | None = None) -> tuple[PaillierMasked, PaillierMask]:
        if width is not None and width < self.extent.magnitude.bit_length() + 2:
            raise CapacityError(f"slots of {width} bits given, these values take more")
        layout = PackedLayout.of(self.public.bits, self.shape, self.extent, width)
        count = layout.ciphertexts
        return self._mask_with(layout, uniform_many_below(self.public.n, count), self.public.draw(count))

    def _mask_with(
        self, layout: PackedLayout, masks: Sequence[mpz], residues: Sequence[mpz]
    ) -> tuple[PaillierMasked, PaillierMask]:
        packed = pack_ciphertexts(self.public, self.integers, layout)
        return mask_packed(self.public, packed, layout, masks, residues)

    @classmethod
    def from_frame(cls, public: PaillierPublicKey, frame: Frame) -> PaillierEncrypted:
        extent = Extent.from_numbers(frame.numbers)
        if extent.magnitude.bit_length() > public.bits - 1:
            raise FormatError(f"integers of {extent.magnitude.bit_length()} bits announced for {public!r}")
        ciphertexts = public.read_ciphertexts(frame.payload, prod(frame.shape))
        return cls(public, frame.shape, ciphertexts, extent)

    def _add(self, other: PaillierEncrypted) -> PaillierEncrypted:
        fraction_bits = max(self.fraction_bits, other.fraction_bits)
        extent = self.public.admit(self.extent.scaled(fraction_bits).plus(other.extent.scaled(fraction_bits)))
        square = self.public.square
        pairs = zip(self._at(fraction_bits), other._at(fraction_bits), strict=True)
        return PaillierEncrypted(self.public, self.shape, [a * b % square for a, b in pairs], extent)

    def _at(self, fraction_bits: int) -> list[mpz]:
        """Return the ciphertexts at a finer scale."""
        if fraction_bits == self.fraction_bits:
            return self.integers
        shift = mpz(1) << (fraction_bits - self.fraction_bits)
        return list(gmpy2.powmod_base_list(self.integers, shift, self.public.square))

    def _add_plain(self, values: Floats) -> PaillierEncrypted:
        return self.add_units(to_integers(values, self.fraction_bits))

    @property
    def unit_bits(self) -> int:
        return self.fraction_bits

    def add_units(self, units: Sequence[int]) -> PaillierEncrypted:
        """Add plain integers at the array's own scale, up to its bound."""
        extent = self.public.admit(self.extent.plus_plain())
        n, square = self.public.n, self.public.square
        sums = [c * (1 + n * m) % square for c, m in zip(self.integers, units, strict=True)]
        return PaillierEncrypted(self.public, self.shape, sums, extent)

    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> PaillierEncrypted:
        scale = multiplier_scale(multipliers, fixed)
        extent = self.public.admit(self.extent.times(scale, self.rows))
        columns, outputs, rows = multipliers.shape
        mapper = self.public.mapper
        # A column is cut only when there are fewer columns than workers.
        slices = min(outputs, -(-mapper.workers // columns))
        work = progress(self._pieces(multipliers, scale, slices), "multiplying", columns * slices)
        # Enough for every worker, and else no more than a block: engines take all that they get at once.
        at_once = max(mapper.workers, BLOCK_ENTRIES * slices // (outputs * rows))
        flat: list[mpz] = []
        while pieces := list(islice(work, at_once)):
            flat += chain.from_iterable(mapper.map(column_powers, pieces))
        by_row = [flat[j * outputs + a] for a in range(outputs) for j in range(columns)]
        shape = (outputs, columns) if len(self.shape) == 2 else (outputs,)
        return PaillierEncrypted(self.public, shape, by_row, extent)

    def _pieces(self, multipliers: Multipliers, scale: FixedPoint, slices: int) -> Iterator[PowerColumn]:
        columns = multipliers.shape[0]
        bits = max(1, (_largest(scale.bound, scale.fraction_bits) - 1).bit_length())
        for j in range(columns):
            (block,) = multipliers.block(slice(j, j + 1), EVERY)
            integers = np.rint(np.ldexp(block, scale.fraction_bits)).astype(np.int64)
            yield from cut_column(self.public.n, self.integers[j::columns], integers, bits, slices)
