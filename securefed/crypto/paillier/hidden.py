"""Hidden arrays under Paillier: one value a ciphertext as operands, slots of packed ciphertexts as results.

Exact, so there is no noise to hide. Slots are wide enough for value + mask (`Range.masked`) and a sign; what
leaves its declared range by more than the slack runs into its neighbour, and the key-holder then finds slots
where no honest value leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.errors import CapacityError, FormatError, ShapeError, WrongKey
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.hidden import (
    EVERY,
    HiddenArray,
    HiddenBlock,
    HiddenSum,
    PlainMatrix,
    Range,
    Result,
    Wide,
    draw_masks,
    slack_for,
)
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
from securefed.crypto.paillier.proof import roots_needed
from securefed.crypto.randomness import uniform_many_below
from securefed.crypto.wire import Frame, Kind

if TYPE_CHECKING:
    from securefed.crypto.paillier.public import PaillierPublicKey

__all__ = [
    "PaillierArray",
    "PaillierBlock",
    "PaillierLayout",
    "PaillierSum",
    "extent_of",
    "pack_integers",
    "slot_width",
]


def extent_of(range_: Range) -> Extent:
    return Extent(range_.fraction_bits, 1 << range_.bits, float(2.0 ** (range_.bits - range_.fraction_bits)))


class PaillierLayout:
    """What hidden arrays take under Paillier, from the key's size, shapes and ranges alone. Bytes are those
    of payloads, without a frame's header.
    """

    scoring_lift: int = 0
    chains: int = 0
    lending_slack: int = slack_for(1 << 32)
    bits: int
    """Of the modulus."""

    @property
    def wraps(self) -> int:
        return 0

    @property
    def plaintext_bytes(self) -> int:
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        return 2 * self.plaintext_bytes

    def room(self, range_: Range, slack: int) -> int:
        return self.bits - 2 - slot_width(range_, slack)

    def blocks_for(self, size: int, rows: int, *, rough: bool = False) -> int:
        return 1

    def places(self, rows: int, blocks: int) -> tuple[int, NDArray[np.intp]]:
        return rows, np.arange(rows)

    def strides_for(self, results: Iterable[Result]) -> tuple[int, ...]:
        return ()

    def array_ciphertexts(self, shape: tuple[int, int], blocks: int) -> int:
        return shape[0] * shape[1]

    def array_bytes(self, shape: tuple[int, int], blocks: int, seeded: bool) -> int:
        return self.array_ciphertexts(shape, blocks) * self.ciphertext_bytes

    def sum_ciphertexts(self, shape: tuple[int, int], range_: Range, slack: int) -> int:
        """Packed into slots."""
        return -(-shape[0] * shape[1] // slots_for(self.bits, slot_width(range_, slack)))

    def sum_bytes(self, shape: tuple[int, int], range_: Range, slack: int) -> int:
        return self.sum_ciphertexts(shape, range_, slack) * self.ciphertext_bytes

    def opened_bytes(self, shape: tuple[int, int], ciphertexts: int) -> int:
        return ciphertexts * self.plaintext_bytes

    def key_bytes(self) -> int:
        """n, and the roots of its proof."""
        return (1 + roots_needed(self.bits)) * self.plaintext_bytes

    def switching_bytes(self, strides: Sequence[int]) -> int:
        return 0

    def check_range(self, range_: Range, numbers: int) -> Range:
        return Range(range_.fraction_bits, self.bits - 6)  # one sum a plaintext

    def slot_bits(self, range_: Range, slack: int) -> int:
        return slot_width(range_, slack)


def slot_width(range_: Range, slack: int) -> int:
    """Bits of a slot: value + mask, and a sign."""
    return range_.masked(slack).bits + 2


class PaillierArray(HiddenArray):
    """Operands, row by row."""

    def __init__(
        self, public: PaillierPublicKey, shape: tuple[int, int], range_: Range, ciphertexts: Sequence[mpz]
    ) -> None:
        self.public, self.shape, self.range = public, shape, range_
        self._encrypted = PaillierEncrypted(public, shape, ciphertexts, public.admit(extent_of(range_)))

    @property
    def ciphertexts(self) -> int:
        return self._encrypted.ciphertexts

    def repeated(self) -> int:
        return self._encrypted.repeated()

    def packed(self) -> PaillierSum:
        return PaillierSum(self.public, self.shape, self.range, encrypted=self._encrypted)

    def add_plain(self, integers: Wide, range_: Range) -> Self:
        if integers.shape != self.shape:
            raise ShapeError(f"integers of shape {integers.shape} given, {self.shape} expected")
        n, square = self.public.n, self.public.square
        pairs = zip(self._encrypted._ciphertexts, integers.ravel().tolist(), strict=True)
        result = type(self)(self.public, self.shape, range_, [c * (1 + n * m) % square for c, m in pairs])
        result.origin = "arrived" if self.origin == "arrived" else "computed"
        return result

    def _product(self, matrix: PlainMatrix) -> PaillierSum:
        fixed = FixedPoint(2.0 ** (matrix.bits - matrix.fraction_bits), matrix.fraction_bits)
        whole = matrix.part(EVERY, EVERY)
        multipliers = np.broadcast_to(whole, (self.shape[1], *whole.shape))
        found: Any = self._encrypted.contract(multipliers, fixed)
        extent = found.extent
        range_ = Range(extent.fraction_bits, extent.magnitude.bit_length())
        return PaillierSum(self.public, (matrix.shape[0], self.shape[1]), range_, encrypted=found)

    def to_bytes(self) -> bytes:
        return self._encrypted.to_bytes()

    @classmethod
    def from_bytes(
        cls, public: PaillierPublicKey, blob: bytes, shape: tuple[int, int], range_: Range
    ) -> PaillierArray:
        """In the agreed range and at the agreed scale, whatever the frame says."""
        found: Any = public.load(blob, shape)
        if found.fraction_bits != range_.fraction_bits:
            raise ShapeError(f"ciphertexts at another scale than the agreed 2**-{range_.fraction_bits}")
        array = cls(public, shape, range_, found._ciphertexts)
        array.origin = "arrived"
        return array


class PaillierSum(HiddenSum):
    """Results: one a ciphertext until `within` packs them into slots for the range of a run."""

    def __init__(
        self,
        public: PaillierPublicKey,
        shape: tuple[int, int],
        range_: Range,
        *,
        encrypted: PaillierEncrypted | None = None,
        packed: Sequence[mpz] = (),
        slack: int = 0,
    ) -> None:
        self.public, self.shape, self.range, self.slack = public, shape, range_, slack
        self._encrypted, self._packed = encrypted, list(packed)

    @property
    def width(self) -> int:
        return slot_width(self.range, self.slack)

    @property
    def slots(self) -> int:
        return slots_for(self.public.bits, self.width)

    @property
    def entries(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def ciphertexts(self) -> int:
        return self._encrypted.ciphertexts if self._encrypted is not None else len(self._packed)

    def repeated(self) -> int:
        return repeated(self._packed, self.public.n)

    def within(self, range_: Range, slack: int) -> Self:
        if range_.fraction_bits != self.range.fraction_bits:
            raise ShapeError(
                f"sums at {self.range.fraction_bits} fraction bits given, {range_.fraction_bits} agreed"
            )
        if self._encrypted is None:
            raise ShapeError("these sums are packed already")
        sums = type(self)(self.public, self.shape, range_, slack=slack)
        if sums.width > self.public.bits - 2:
            raise CapacityError(f"slots of {sums.width} bits: not with {self.public!r}")
        cells, slots = self._encrypted._ciphertexts, sums.slots
        groups = [(self.public.square, sums.width, cells[i : i + slots]) for i in range(0, len(cells), slots)]
        sums._packed = self.public.mapper.map(horner, groups)
        return sums

    def _like(self, packed: Sequence[mpz]) -> Self:
        return type(self)(self.public, self.shape, self.range, packed=packed, slack=self.slack)

    def __add__(self, other: Self) -> Self:
        if other.public.key_id != self.public.key_id:
            raise WrongKey(f"arrays under two keys do not add up: {self.public!r} and {other.public!r}")
        if self._encrypted is not None and other._encrypted is not None:
            found: Any = self._encrypted + other._encrypted
            range_ = Range(found.extent.fraction_bits, found.extent.magnitude.bit_length())
            return type(self)(self.public, self.shape, range_, encrypted=found)
        if (other.shape, other.range, other.slack) != (self.shape, self.range, self.slack):
            raise ShapeError(f"sums {self.shape} at {self.range} and {other.shape} at {other.range}")
        square = self.public.square
        return self._like([a * b % square for a, b in zip(self._packed, other._packed, strict=True)])

    def add_plain(self, integers: Wide) -> Self:
        plain = pack_integers(self, integers)
        n, square = self.public.n, self.public.square
        return self._like([c * (1 + n * m) % square for c, m in zip(self._packed, plain, strict=True)])

    def rerandomise(self) -> Self:
        square = self.public.square
        residues = self.public.draw(len(self._packed))
        fresh = self._like([c * r % square for c, r in zip(self._packed, residues, strict=True)])
        fresh.origin = "computed" if 1 in residues else "re-randomised"
        return fresh

    def hide(self) -> tuple[PaillierBlock, Wide]:
        masks = draw_masks(self.shape, self.range.bits + self.slack).wide()
        return PaillierBlock(self.add_plain(masks).rerandomise()), masks

    def lend(self) -> tuple[PaillierBlock, Wide]:
        """Two keys have two moduli: only masks that do not wrap add up under another one."""
        return self.hide()

    def mask(self) -> tuple[PaillierMasked, PaillierMask]:
        layout = Layout(
            self.public.bits, self.shape, self.width, self.range.fraction_bits, 1 << (self.width - 2)
        )
        masks = uniform_many_below(self.public.n, len(self._packed))
        return mask_packed(self.public, self._packed, layout, masks, self.public.draw(len(self._packed)))

    def to_bytes(self) -> bytes:
        return self.frame(Kind.ENCRYPTED)

    def frame(self, kind: Kind) -> bytes:
        payload = join_integers(self._packed, self.public.ciphertext_bytes)
        numbers = (self.range.fraction_bits, self.range.bits, self.slack, 0)
        return self.public.frame(kind, payload, self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(
        cls, public: PaillierPublicKey, frame: Frame, shape: tuple[int, int], range_: Range, slack: int
    ) -> PaillierSum:
        if frame.shape != shape or frame.numbers != (range_.fraction_bits, range_.bits, slack, 0):
            raise FormatError(
                f"sums of shape {frame.shape} with numbers {frame.numbers} given: not what was agreed"
            )
        sums = cls(public, shape, range_, slack=slack)
        sums._packed = public.read_ciphertexts(frame.payload, public.sum_ciphertexts(shape, range_, slack))
        return sums


class PaillierBlock(HiddenBlock):
    """Slots of value + mask."""

    public: PaillierPublicKey

    def __init__(self, sums: PaillierSum) -> None:
        self.public, self.shape, self.range = sums.public, sums.shape, sums.range
        self.slack, self.origin, self.sums = sums.slack, sums.origin, sums

    @property
    def ciphertexts(self) -> int:
        return self.sums.ciphertexts

    def repeated(self) -> int:
        return self.sums.repeated()

    def to_bytes(self) -> bytes:
        return self.sums.frame(Kind.MASKED)

    def masked(self) -> PaillierMasked:
        return PaillierMasked(self.public, self.shape, self.sums._packed)

    def read(self, plaintexts: Sequence[mpz]) -> Wide:
        """value + mask of every slot, from decrypted plaintexts mod n, whatever they are."""
        sums, n = self.sums, self.public.n
        integers: list[int] = []
        for plaintext in plaintexts:
            count = min(sums.slots, sums.entries - len(integers))
            signed = plaintext - n if 2 * plaintext > n else plaintext
            whole = 1 << (sums.width * count)
            integers += unpack((signed + whole // 2) % whole - whole // 2, sums.width, count)
        return np.array(integers, dtype=object).reshape(self.shape)


def pack_integers(sums: PaillierSum, integers: Wide) -> list[mpz]:
    """Integers in the slots of such sums, as plaintexts."""
    if integers.shape != sums.shape:
        raise ShapeError(f"integers of shape {integers.shape} given, {sums.shape} expected")
    flat: list[int] = integers.ravel().tolist()
    return [pack(flat[i : i + sums.slots], sums.width) for i in range(0, len(flat), sums.slots)]
