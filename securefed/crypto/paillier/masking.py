"""Masks and openings: exact, packed, one uniform integer mod n per ciphertext.

Several integers share a plaintext, each in a slot of w bits: P = v_0 + v_1 * 2**w + v_2 * 2**(2 w) + ... P is
signed, and taken mod n for encryption.

The requester packs its results (Horner's rule on ciphertexts: c_hi ** (2**w) * c_lo). It multiplies each
packed ciphertext by (1 + n * mask) * r**n, with the mask uniform mod n and r uniform in Z_n*, and sends it.
The key-holder decrypts to value + mask mod n, which is uniform for every value, and returns that. It learns
the shape and the number of ciphertexts. The requester subtracts mod n, unpacks and decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import gmpy2
import numpy as np
from gmpy2 import mpz

from securefed.crypto.fixed import Floats
from securefed.crypto.scheme import Framed, Mask, Masked, Opened
from securefed.crypto.wire import Frame, Kind
from securefed.errors import CapacityError, FormatError, MaskError, RangeError, ShapeError, WrongKey

if TYPE_CHECKING:
    from securefed.crypto.paillier.arrays import Extent
    from securefed.crypto.paillier.keys import PaillierPublicKey

SHORT = 64
"""A mask uniform mod n is practically never this many bits shorter than n."""
MOST_FRACTION_BITS = 8192


def slots_for(modulus_bits: int, width: int) -> int:
    """Return the number of slots of this width in a plaintext, sign included; at least one."""
    return max(1, (modulus_bits - 2) // width)


def pack(values: Sequence[int], width: int) -> mpz:
    """Return the signed integer sum of values[j] * 2**(width * j).

    Raises CapacityError unless every |value| is below 2**(width - 1). A larger one would silently change its
    neighbour's slot.
    """
    half = mpz(1) << (width - 1)
    shifted = [value + half for value in values]
    if min(shifted) <= 0 or max(shifted) >= 2 * half:
        raise CapacityError(
            f"a value reaches {max(abs(v) for v in values)}, a slot of {width} bits holds less than {half}"
        )
    return gmpy2.pack(shifted, width) - _offset(width, len(values))


def unpack(packed: int, width: int, count: int) -> list[int]:
    """Return the `count` values of a packed integer. Raises RangeError if it has a remainder."""
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


@dataclass(frozen=True)
class PackedLayout:
    """The places of values in the plaintexts of a masked block. Only the requester needs it."""

    modulus_bits: int
    shape: tuple[int, ...]
    width: int
    fraction_bits: int
    magnitude: int

    @classmethod
    def of(
        cls, modulus_bits: int, shape: tuple[int, ...], extent: Extent, width: int | None = None
    ) -> PackedLayout:
        """Return the tightest layout for an extent, or the one with that slot width."""
        tight = extent.magnitude.bit_length() + 2
        return cls(modulus_bits, shape, width or tight, extent.fraction_bits, extent.magnitude)

    @property
    def slots(self) -> int:
        return slots_for(self.modulus_bits, self.width)

    @property
    def ciphertexts(self) -> int:
        return -(-prod(self.shape) // self.slots)

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


def pack_ciphertexts(
    public: PaillierPublicKey, ciphertexts: Sequence[mpz], layout: PackedLayout
) -> list[mpz]:
    slots = layout.slots
    groups = [list(ciphertexts[i : i + slots]) for i in range(0, len(ciphertexts), slots)]
    return public.mapper.map(horner, [(public.square, layout.width, group) for group in groups])


def mask_packed(
    public: PaillierPublicKey,
    packed: Sequence[mpz],
    layout: PackedLayout,
    masks: Sequence[mpz],
    residues: Sequence[mpz],
) -> tuple[PaillierMasked, PaillierMask]:
    """Mask each packed ciphertext with one mask mod n and one n-th residue."""
    n, square = public.n, public.square
    hidden = [
        c * (1 + n * mask) % square * residue % square
        for c, mask, residue in zip(packed, masks, residues, strict=True)
    ]
    masked = PaillierMasked(public, layout.shape, hidden)
    masked.origin = "computed" if 1 in residues else "re-randomised"
    return masked, PaillierMask(public, layout, masks)


class Integers(Framed):
    """A list of integers, row by row: ciphertexts mod n**2, or plaintexts mod n."""

    public: PaillierPublicKey
    kind: ClassVar[Kind]
    numbers: tuple[int, int, int, int] = (0, 0, 0, 0)
    """The numbers of the frame."""

    def __init__(self, public: PaillierPublicKey, shape: tuple[int, ...], integers: Sequence[mpz]) -> None:
        self.public, self.shape, self.integers = public, shape, list(integers)

    def to_bytes(self) -> bytes:
        opened = self.kind is Kind.OPENED
        width = self.public.plaintext_bytes if opened else self.public.ciphertext_bytes
        payload = join_integers(self.integers, width)
        return self.public.frame(self.kind, payload, self.shape, self.numbers).to_bytes()

    @property
    def ciphertexts(self) -> int:
        return len(self.integers)

    def repeated(self) -> int:
        """Count ciphertexts that share r: (1 + n m) r**n mod n is r**n mod n for every m."""
        return len(self.integers) - len({c % self.public.n for c in self.integers})


class PaillierMasked(Integers, Masked):
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

    @classmethod
    def from_frame(cls, public: PaillierPublicKey, frame: Frame) -> PaillierMasked:
        _expect_no_numbers(frame)
        count = _block_count(frame, public.ciphertext_bytes)
        return cls(public, frame.shape, public.read_ciphertexts(frame.payload, count))


class PaillierOpened(Integers, Opened):
    """Integers value + mask mod n, uniform without the mask."""

    kind = Kind.OPENED

    def plus(self, units: Sequence[int], fraction_bits: int, width: int) -> PaillierOpened:
        """Add noise to values in slots of that width, at the agreed scale."""
        slots, n = slots_for(self.public.bits, width), self.public.n
        addends = [pack(units[i : i + slots], width) for i in range(0, len(units), slots)]
        if len(addends) != len(self.integers):
            raise ShapeError(f"{len(self.integers)} plaintexts for {len(units)} values of {width} bits")
        total = [(p + addend) % n for p, addend in zip(self.integers, addends, strict=True)]
        return PaillierOpened(self.public, self.shape, total)

    @classmethod
    def from_frame(cls, public: PaillierPublicKey, frame: Frame) -> PaillierOpened:
        _expect_no_numbers(frame)
        return cls(public, frame.shape, _read_plaintexts(public, frame))


class PaillierMask(Mask):
    """The integers that hide one block, and the layout of the values under them."""

    def __init__(self, public: PaillierPublicKey, layout: PackedLayout, masks: Sequence[mpz]) -> None:
        super().__init__()
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
    if len(payload) != count * width:
        raise FormatError(
            f"{len(payload)} bytes of integers given, {count * width} expected for {count} of {width} bytes"
        )
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


def _expect_no_numbers(frame: Frame) -> None:
    if any(frame.numbers):
        raise FormatError(f"numbers {frame.numbers} in a masked frame, where all have to be 0")
