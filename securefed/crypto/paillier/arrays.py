"""Arrays of Paillier ciphertexts, one value each: operations without the secret key, masks and openings.

    E(a) * E(b) = E(a + b)        E(a) * (1 + n b) = E(a + b)        E(a) ** t = E(a t)        all mod n**2

Results of arithmetic are exact integers at a known scale. They are not re-randomised, and leave only by
`mask`: the key-holder can read multipliers out of randomness that was only raised to powers. Scale and bounds
(`Extent`) follow from declared ranges and operations, never from values. They are checked against the key
before any computation, so nothing wraps.

In a masked block several integers share a plaintext, each in a slot of w bits: P = v_0 + v_1 * 2**w + ...,
signed, by Horner's rule on ciphertexts (c_hi ** (2**w) * c_lo). The requester multiplies each packed
ciphertext by (1 + n * mask) * r**n, with the mask uniform mod n and r uniform in Z_n*. The key-holder gets
value + mask mod n, which is uniform for every value. It learns the shape and the number of ciphertexts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from math import frexp, isfinite, ldexp, prod
from typing import TYPE_CHECKING, ClassVar, Self

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
from securefed.crypto.paillier.powers import PowerColumn, column_powers, cut_column
from securefed.crypto.randomness import uniform_many_below
from securefed.crypto.scheme import Encrypted, Framed, Mask, Masked, Opened, progress
from securefed.crypto.wire import NO_NUMBERS, Frame, Kind, Numbers, Shape, check_length
from securefed.errors import CapacityError, FormatError, MaskError, RangeError, ShapeError, WrongKey

if TYPE_CHECKING:
    from securefed.crypto.paillier.keys import PaillierPublicKey

SHORT = 64
"""A mask uniform mod n is practically never this many bits shorter than n."""
MOST_FRACTION_BITS = 8192
MOST_MAGNITUDE_BITS = 1 << 15


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

    A private limit is 2**24 for all multipliers, so that the size of a masked result says nothing about them.
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


# Packing


def slots_for(modulus_bits: int, width: int) -> int:
    """Return the number of slots of this width in a plaintext, sign included; at least one."""
    return max(1, (modulus_bits - 2) // width)


def unpack(packed: int, width: int, count: int) -> list[int]:
    """Return the `count` values of a packed integer. Raises RangeError if it has a remainder."""
    # Half a slot added everywhere turns the centred digits with their borrows into plain digits at once.
    half = 1 << (width - 1)
    lifted = packed + half * (((mpz(1) << (width * count)) - 1) // ((mpz(1) << width) - 1))
    if lifted < 0 or lifted.bit_length() > width * count:
        raise RangeError(
            f"a remainder is left above the last of {count} slots of {width} bits: another plan's plaintext"
        )
    digits = [int(digit) - half for digit in gmpy2.unpack(lifted, width)]
    return digits + [-half] * (count - len(digits))


@dataclass
class PackedLayout:
    """The places of values in the plaintexts of a masked block. Only the requester needs it."""

    modulus_bits: int
    shape: Shape
    width: int
    fraction_bits: int
    magnitude: int

    def __post_init__(self) -> None:
        self.slots = slots_for(self.modulus_bits, self.width)
        self.ciphertexts = -(-prod(self.shape) // self.slots)

    @classmethod
    def of(cls, bits: int, shape: Shape, extent: Extent) -> PackedLayout:
        """Return the tightest layout for an extent."""
        width = extent.magnitude.bit_length() + 2
        return cls(bits, shape, width, extent.fraction_bits, extent.magnitude)

    def decode(self, plaintexts: Sequence[mpz], n: mpz) -> Floats:
        """Return the values in plaintexts mod n, or raise MaskError if those fit no value under this mask."""
        integers: list[int] = []
        for plaintext in plaintexts:
            count = min(self.slots, prod(self.shape) - len(integers))
            signed = plaintext - n if 2 * plaintext > n else plaintext
            try:
                integers += unpack(signed, self.width, count) if count > 1 else [int(signed)]
            except RangeError as error:
                raise MaskError(f"the opening does not fit this mask: {error}") from None
        if max(abs(integer) for integer in integers) > self.magnitude:
            raise MaskError("the opening does not fit this mask: a value is larger than it can be")
        up, down = 1 << max(0, -self.fraction_bits), 1 << max(0, self.fraction_bits)
        try:
            # Correctly rounded to float64.
            values = [integer * up / down for integer in integers]
        except OverflowError:
            raise RangeError("an opened value is beyond float64") from None
        return np.array(values, dtype=np.float64).reshape(self.shape)


def horner(item: tuple[mpz, int, list[mpz]]) -> mpz:
    """Return one ciphertext of sum m_j * 2**(width * j), from (n**2, width, ciphertexts of the m_j)."""
    square, width, group = item
    shift = mpz(1) << width
    packed = group[-1]
    for ciphertext in reversed(group[:-1]):
        packed = gmpy2.powmod(packed, shift, square) * ciphertext % square
    return packed


def pack_ciphertexts(public: PaillierPublicKey, ciphertexts: list[mpz], layout: PackedLayout) -> list[mpz]:
    groups = [ciphertexts[i : i + layout.slots] for i in range(0, len(ciphertexts), layout.slots)]
    return public.mapper.map(horner, [(public.square, layout.width, group) for group in groups])


def mask_packed(
    public: PaillierPublicKey,
    packed: Sequence[mpz],
    layout: PackedLayout,
    masks: Sequence[mpz],
    residues: Sequence[mpz],
) -> tuple[PaillierMasked, PaillierMask]:
    """Mask each packed ciphertext with one mask mod n and one n-th residue."""
    again = [c * residue % public.square for c, residue in zip(packed, residues, strict=True)]
    masked = PaillierMasked(public, layout.shape, public.combine(masks, again))
    masked.origin = "computed" if 1 in residues else "re-randomised"
    return masked, PaillierMask(public, layout, masks)


class PaillierIntegers(Framed):
    """A list of integers, row by row: ciphertexts mod n**2, or plaintexts mod n."""

    public: PaillierPublicKey
    kind: ClassVar[Kind]
    numbers: Numbers = NO_NUMBERS
    """The numbers of the frame."""

    def __init__(self, public: PaillierPublicKey, shape: Shape, integers: Sequence[mpz]) -> None:
        self.public, self.shape, self.integers = public, shape, list(integers)
        self.ciphertexts = len(self.integers)

    def to_bytes(self) -> bytes:
        opened = self.kind is Kind.OPENED
        width = self.public.plaintext_bytes if opened else self.public.ciphertext_bytes
        payload = join_integers(self.integers, width)
        return self.public.frame(self.kind, payload, self.shape, self.numbers).to_bytes()

    def repeated(self) -> int:
        """Count ciphertexts that share r: (1 + n m) r**n mod n is r**n mod n for every m."""
        return len(self.integers) - len({c % self.public.n for c in self.integers})

    @classmethod
    def from_frame(cls, public: PaillierPublicKey, frame: Frame) -> Self:
        if any(frame.numbers):
            raise FormatError(f"numbers {frame.numbers} in a masked frame, where all have to be 0")
        if cls.kind is Kind.OPENED:
            return cls(public, frame.shape, _read_plaintexts(public, frame))
        count = _block_count(frame, public.ciphertext_bytes)
        return cls(public, frame.shape, public.read_ciphertexts(frame.payload, count))


# Arrays and masks


class PaillierEncrypted(PaillierIntegers, Encrypted):
    """Ciphertexts row by row, with the public extent of the integers in them."""

    kind = Kind.ENCRYPTED

    def __init__(
        self, public: PaillierPublicKey, shape: Shape, ciphertexts: Sequence[mpz], extent: Extent
    ) -> None:
        super().__init__(public, shape, ciphertexts)
        self.extent, self.bound, self.numbers = extent, extent.bound, extent.numbers()
        self.fraction_bits = self.unit_bits = extent.fraction_bits

    def mask(self) -> tuple[PaillierMasked, PaillierMask]:
        layout = PackedLayout.of(self.public.bits, self.shape, self.extent)
        masks = uniform_many_below(self.public.n, layout.ciphertexts)
        residues = self.public.draw(layout.ciphertexts)
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

    def add_units(self, units: Sequence[int]) -> PaillierEncrypted:
        """Add plain integers at the array's own scale, up to its bound."""
        extent = self.public.admit(self.extent.plus_plain())
        return PaillierEncrypted(self.public, self.shape, self.public.combine(units, self.integers), extent)

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


class PaillierMasked(PaillierIntegers, Masked):
    """A packed and re-randomised block of value + mask."""

    kind = Kind.MASKED

    def fresh_parts(self) -> list[bytes]:
        return [c.to_bytes(self.public.ciphertext_bytes, "big") for c in self.integers]

    def check_room(self, width: int) -> None:
        entries = prod(self.shape)
        most = -(-entries // slots_for(self.public.bits, width))
        if self.ciphertexts > most:
            raise ShapeError(
                f"{self.ciphertexts} ciphertexts to open for {entries} values, "
                f"as agreed they take at most {most}"
            )


class PaillierOpened(PaillierIntegers, Opened):
    """Integers value + mask mod n, uniform without the mask."""

    kind = Kind.OPENED


class PaillierMask(Mask):
    """The integers that hide one block, and the layout of the values under them."""

    def __init__(self, public: PaillierPublicKey, layout: PackedLayout, masks: Sequence[mpz]) -> None:
        self._public, self._layout, self._masks = public, layout, list(masks)

    def _remove(self, opened: PaillierOpened) -> Floats:
        if opened.public.key_id != self._public.key_id:
            raise WrongKey(f"opened under {opened.public!r}, this mask is for {self._public!r}")
        plaintexts = opened.integers
        if opened.shape != self._layout.shape or len(plaintexts) != len(self._masks):
            raise MaskError(
                f"an opening of shape {opened.shape} in {len(plaintexts)} parts given, "
                f"this mask is for {self._layout.shape} in {len(self._masks)}"
            )
        n, pairs = self._public.n, zip(plaintexts, self._masks, strict=True)
        return self._layout.decode([(plaintext - mask) % n for plaintext, mask in pairs], n)

    def _material(self) -> list[bytes]:
        return [mask.to_bytes(self._public.plaintext_bytes, "big") for mask in self._masks]

    def _narrow(self) -> int:
        return sum(mask.bit_length() < self._public.bits - SHORT for mask in self._masks)

    def _disclose(self) -> bytes:
        payload = join_integers(self._masks, self._public.plaintext_bytes)
        numbers = (self._layout.fraction_bits, self._layout.width, self._layout.magnitude.bit_length(), 0)
        return self._public.frame(Kind.DISCLOSURE, payload, self._layout.shape, numbers).to_bytes()


def read_disclosure(masked: PaillierMasked, disclosure: bytes) -> PaillierMask:
    """Parse the disclosed mask of a block, and check it before the block is opened."""
    public = masked.public
    frame = public.arrived_frame(disclosure, Kind.DISCLOSURE)
    fraction_bits, width, bits, spare = frame.numbers
    if abs(fraction_bits) > MOST_FRACTION_BITS or not 1 <= bits <= min(width - 2, public.bits - 1) or spare:
        raise FormatError(f"a disclosure with layout {frame.numbers} given: not one of this key")
    layout = PackedLayout(public.bits, frame.shape, width, fraction_bits, (1 << bits) - 1)
    masks = _read_plaintexts(public, frame)
    if frame.shape != masked.shape or not len(masks) == masked.ciphertexts == layout.ciphertexts:
        raise MaskError(
            f"a disclosure for shape {frame.shape} in {len(masks)} parts given, "
            f"the block has shape {masked.shape} in {masked.ciphertexts}"
        )
    return PaillierMask(public, layout, masks)


def join_integers(integers: Iterable[mpz], width: int) -> bytes:
    """Encode integers as fixed-width big-endian bytes."""
    return b"".join(integer.to_bytes(width, "big") for integer in integers)


def split_integers(payload: bytes, count: int, width: int) -> list[mpz]:
    check_length(f"{count} integers", payload, count * width)
    return [mpz.from_bytes(payload[i : i + width], "big") for i in range(0, len(payload), width)]


def _read_plaintexts(public: PaillierPublicKey, frame: Frame) -> list[mpz]:
    count = _block_count(frame, public.plaintext_bytes)
    plaintexts = split_integers(frame.payload, count, public.plaintext_bytes)
    for index, plaintext in enumerate(plaintexts):
        if plaintext >= public.n:
            raise RangeError(f"plaintext {index} of {count} is not below n")
    return plaintexts


def _block_count(frame: Frame, width: int) -> int:
    """Return the number of integers in the payload: at least one, at most one per value."""
    count, rest = divmod(len(frame.payload), width)
    if rest or not count:
        raise FormatError(f"{len(frame.payload)} bytes of integers given, a multiple of {width} expected")
    if count > prod(frame.shape):
        raise ShapeError(
            f"{count} ciphertexts for {prod(frame.shape)} values given, at most one each is allowed"
        )
    return count
