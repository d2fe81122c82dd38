"""Values that pass through the key-holder and come back encrypted: masks that survive a shift and a new
layout.

Blind training keeps everything encrypted for the whole run. From time to time an array has to be brought
back to a smaller scale, or under another key. Its holder packs it, hides every slot under a statistical
mask and sends it to the key-holder, who reads the slots (value + mask), cuts low bits off and encrypts
what is left again. A mask uniform mod n would not survive that; here

    mask uniform in [0, 2**(bits + SLACK)),  |value| < 2**bits  while the declared range is kept,

so what the key-holder sees is within 2**-SLACK of a distribution that does not depend on the value. Slots
are wide enough that nothing carries even when a value is 2**SLACK times out of its declared range (a
diverging run): the key-holder then finds a slot outside of what an honest one can reach, and stops the run
(`Diverged`). Below that, each bit that a value is out of range takes one bit off the hiding.

Key-holder: learns the number of values, and the slots' sums with masks. Requester: learns nothing, all
stays encrypted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import ldexp
from typing import TYPE_CHECKING

from gmpy2 import mpz

from securefed.crypto.errors import CapacityError, Diverged, FormatError, RangeError, ShapeError, WrongKey
from securefed.crypto.packing import pack, slots_for, unpack
from securefed.crypto.paillier.encrypted import PaillierEncrypted
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.masking import (
    Layout,
    PaillierMask,
    PaillierMasked,
    horner,
    join_integers,
    mask_packed,
    repeated,
)
from securefed.crypto.randomness import uniform_bits, uniform_many_below
from securefed.crypto.scheme import Masked, Origin
from securefed.crypto.wire import Frame, Kind

if TYPE_CHECKING:
    from securefed.crypto.paillier.public import PaillierPublicKey

__all__ = ["SLACK", "HiddenSlots", "PaillierSlots", "add_integers", "bits_of", "pack_plain"]

SLACK = 40
"""Bits by which a mask is wider than the value that it hides."""


def add_integers(encrypted: PaillierEncrypted, integers: Sequence[int], extent: Extent) -> PaillierEncrypted:
    """Plain integers added at the array's own scale; `extent` is the result's."""
    public = encrypted.public
    extent = public.admit(extent)
    n, square = public.n, public.square
    sums = [c * (1 + n * m) % square for c, m in zip(encrypted._ciphertexts, integers, strict=True)]
    result = PaillierEncrypted(public, encrypted.shape, sums, extent)
    result.origin = "arrived" if encrypted.origin == "arrived" else "computed"
    return result


class PaillierSlots:
    """A vector packed into few ciphertexts, on its way to the key-holder.

    `bits`: the declared range, |value| < 2**bits in integer units. Slots leave room for values that are
    2**SLACK times larger than operations could make them from values in range (`reach`), and a mask.
    """

    def __init__(
        self,
        public: PaillierPublicKey,
        ciphertexts: Sequence[mpz],
        *,
        count: int,
        width: int,
        bits: int,
        fraction_bits: int,
    ) -> None:
        if not bits + SLACK + 2 <= width <= public.bits - 2:
            raise CapacityError(
                f"slots of {width} bits for values of {bits} bits and masks: not with {public!r}"
            )
        self.public = public
        self.count, self.width, self.bits, self.fraction_bits = count, width, bits, fraction_bits
        self.origin: Origin = "computed"
        self.shown = False
        self._ciphertexts = list(ciphertexts)

    @classmethod
    def pack(cls, encrypted: PaillierEncrypted, bound: float, reach: int | None = None) -> PaillierSlots:
        """Pack a vector whose values are declared to be within `bound`.

        `reach`: the magnitude in bits that slots have to hold without SLACK, at least the array's own
        extent; several parties that add their slots up agree on one.
        """
        public, extent = encrypted.public, encrypted.extent
        if len(encrypted.shape) != 1:
            raise ShapeError(f"a vector can be packed into slots, shape {encrypted.shape} given")
        bits = bits_of(bound, extent.fraction_bits)
        reach = max(reach or 0, bits, extent.magnitude.bit_length())
        width = reach + SLACK + 2
        slots = slots_for(public.bits, width)
        flat = encrypted._ciphertexts
        groups = [(public.square, width, flat[i : i + slots]) for i in range(0, len(flat), slots)]
        packed = public.mapper.map(horner, groups)
        return cls(
            public, packed, count=len(flat), width=width, bits=bits, fraction_bits=extent.fraction_bits
        )

    @property
    def ciphertexts(self) -> int:
        return len(self._ciphertexts)

    def repeated(self) -> int:
        return repeated(self._ciphertexts, self.public.n)

    def __add__(self, other: PaillierSlots) -> PaillierSlots:
        """The sum of two blocks that lie in the same way. The declared range stays: it is that of the sum."""
        if other.public.key_id != self.public.key_id:
            raise WrongKey(f"slots under two keys do not add up: {self.public!r} and {other.public!r}")
        if self._layout() != other._layout():
            raise ShapeError(f"slots {self._layout()} and {other._layout()} do not add up")
        square = self.public.square
        pairs = zip(self._ciphertexts, other._ciphertexts, strict=True)
        return self._with([a * b % square for a, b in pairs])

    def add_plain(self, integers: Sequence[int]) -> PaillierSlots:
        """Plain integers added slot by slot."""
        n, square = self.public.n, self.public.square
        plain = self._pack_plain(integers)
        return self._with([c * (1 + n * m) % square for c, m in zip(self._ciphertexts, plain, strict=True)])

    def rerandomise(self) -> PaillierSlots:
        square = self.public.square
        residues = self.public.draw(self.ciphertexts)
        fresh = self._with([c * r % square for c, r in zip(self._ciphertexts, residues, strict=True)])
        fresh.origin = "computed" if 1 in residues else "re-randomised"
        return fresh

    def hide(self) -> tuple[HiddenSlots, list[int]]:
        """Masked and re-randomised, for the key-holder; and the masks, to keep."""
        masks = [int(uniform_bits(self.bits + SLACK)) for _ in range(self.count)]
        hidden = self.add_plain(masks).rerandomise()
        return HiddenSlots(self.public, hidden), masks

    def mask(self) -> tuple[PaillierMasked, PaillierMask]:
        """Under a uniform mask, to be opened for the requester: as PaillierEncrypted.mask."""
        layout = Layout(
            self.public.bits, (self.count,), self.width, self.fraction_bits, 1 << (self.width - 2)
        )
        masks = uniform_many_below(self.public.n, self.ciphertexts)
        return mask_packed(self.public, self._ciphertexts, layout, masks, self.public.draw(self.ciphertexts))

    def to_bytes(self) -> bytes:
        """A packed block for a party without the key."""
        return self._frame(Kind.ENCRYPTED)

    def _frame(self, kind: Kind) -> bytes:
        payload = join_integers(self._ciphertexts, self.public.ciphertext_bytes)
        numbers = (self.fraction_bits, self.width, self.bits, SLOTS_MARK)
        return self.public.frame(kind, payload, (self.count,), numbers).to_bytes()

    @classmethod
    def from_bytes(
        cls, public: PaillierPublicKey, blob: bytes, expected: PaillierSlots | None = None
    ) -> PaillierSlots:
        """A packed block that arrived; `expected` is one that it has to lie like."""
        slots = _read(public, blob, Kind.ENCRYPTED)
        if expected is not None and slots._layout() != expected._layout():
            raise ShapeError(f"slots {slots._layout()} given, {expected._layout()} expected")
        return slots

    def _with(self, ciphertexts: Sequence[mpz]) -> PaillierSlots:
        return PaillierSlots(
            self.public,
            ciphertexts,
            count=self.count,
            width=self.width,
            bits=self.bits,
            fraction_bits=self.fraction_bits,
        )

    def _layout(self) -> tuple[int, int, int, int]:
        return self.count, self.width, self.bits, self.fraction_bits

    def _pack_plain(self, integers: Sequence[int]) -> list[mpz]:
        if len(integers) != self.count:
            raise ShapeError(f"{len(integers)} integers given for {self.count} slots")
        return pack_plain(self.public, integers, self.width)


def pack_plain(public: PaillierPublicKey, integers: Sequence[int], width: int) -> list[mpz]:
    """Integers in slots of that width, as plaintexts of this key."""
    slots = slots_for(public.bits, width)
    return [pack(integers[i : i + slots], width) for i in range(0, len(integers), slots)]


SLOTS_MARK = struct.unpack("<i", b"SLOT")[0]


def bits_of(bound: float, fraction_bits: int) -> int:
    """b with every |value| <= bound encoded below 2**b."""
    return (int(ldexp(bound, fraction_bits)) + 1).bit_length()


def _read(public: PaillierPublicKey, blob: bytes, kind: Kind) -> PaillierSlots:
    frame = Frame.from_bytes(blob, kind).expect(public.scheme, public.parameters, public.key_id)
    (count,) = frame.expect_array() if len(frame.shape) == 1 else (0,)
    fraction_bits, width, bits, mark = frame.numbers
    if (
        mark != SLOTS_MARK
        or count < 1
        or not 0 < bits < width <= public.bits
        or not 0 <= fraction_bits <= 900
    ):
        raise FormatError(f"numbers {frame.numbers} given: not a block of slots under {public!r}")
    number = -(-count // slots_for(public.bits, width))
    ciphertexts = public.read_ciphertexts(frame.payload, number)
    return PaillierSlots(
        public, ciphertexts, count=count, width=width, bits=bits, fraction_bits=fraction_bits
    )


class HiddenSlots(Masked):
    """Slots of value + mask: what a key-holder may read slot by slot."""

    public: PaillierPublicKey

    def __init__(self, public: PaillierPublicKey, slots: PaillierSlots) -> None:
        self.public = public
        self.shape = (slots.count,)
        self.slots = slots
        self.origin = slots.origin

    @property
    def ciphertexts(self) -> int:
        return self.slots.ciphertexts

    def repeated(self) -> int:
        return self.slots.repeated()

    def narrow(self, masks: Sequence[int]) -> int:
        """How many of its masks are no wider than the values: one of SLACK bits more is once in 2**SLACK."""
        return sum(mask.bit_length() <= self.slots.bits for mask in masks)

    def to_bytes(self) -> bytes:
        return self.slots._frame(Kind.MASKED)

    @classmethod
    def from_bytes(cls, public: PaillierPublicKey, blob: bytes) -> HiddenSlots:
        return cls(public, _read(public, blob, Kind.MASKED))

    def read(self, plaintexts: Sequence[mpz]) -> list[int]:
        """value + mask of every slot, from decrypted plaintexts mod n; Diverged where no honest value
        leads.
        """
        slots, n = self.slots, self.public.n
        integers: list[int] = []
        for plaintext in plaintexts:
            count = min(slots_for(self.public.bits, slots.width), slots.count - len(integers))
            signed = plaintext - n if 2 * plaintext > n else plaintext
            try:
                integers += unpack(signed, slots.width, count)
            except RangeError:
                raise Diverged(_diverged(slots.bits)) from None
        low, high = -(1 << slots.bits), (1 << (slots.bits + SLACK)) + (1 << slots.bits)
        if min(integers) < low or max(integers) > high:
            raise Diverged(_diverged(slots.bits))
        return integers


def _diverged(bits: int) -> str:
    return f"a value left its declared range of {bits} bits: training diverges, learning_rate is too large"
