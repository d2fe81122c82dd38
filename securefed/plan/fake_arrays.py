"""Encrypted arrays without values: their public numbers and their cost.

The schemes' own classes follow scales, ranges and layouts (Extent and PackedLayout of Paillier, ArrayForm and
RowLayout of CKKS). So an array has the ciphertexts and bytes of a real one, and fails where a real one fails.
Every opened value is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from securefed.crypto.ckks.arrays import answer_bytes, encrypted_bytes, masked_bytes
from securefed.crypto.ckks.form import ArrayForm, added, fresh_form, plain_added, product_form
from securefed.crypto.ckks.layout import RowLayout
from securefed.crypto.errors import BadKey, CapacityError
from securefed.crypto.fixed import FixedPoint, Multipliers
from securefed.crypto.paillier.arrays import Extent, multiplier_scale
from securefed.crypto.paillier.masking import PackedLayout
from securefed.crypto.scheme import FLOAT_BITS, Encrypted, Floats, Mask, Masked, Opened
from securefed.plan.meter import WORD

if TYPE_CHECKING:
    from securefed.plan.fake_keys import DryPublicKey

__all__ = ["CkksFigures", "DryEncrypted", "DryMask", "DryMasked", "DryOpened", "Figures", "PaillierFigures"]


@dataclass(frozen=True)
class Block:
    """A masked result: the sizes of its request and its answer. Bytes are those of payloads."""

    shape: tuple[int, ...]
    ciphertexts: int
    bytes: int
    opened_bytes: int
    inner: int = 0
    """Rows of its sums; 0 if it is no sum."""
    width: int = 0


@dataclass(frozen=True)
class PaillierFigures:
    """One value per ciphertext; masked results are packed."""

    key_bits: int
    shape: tuple[int, ...]
    extent: Extent
    inner: int = 0

    def __post_init__(self) -> None:
        bits = self.extent.magnitude.bit_length()
        if bits + 1 >= self.key_bits:
            raise CapacityError(f"integers of {bits} bits, signed, do not fit a key of {self.key_bits}")

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a plaintext. A ciphertext has twice as many."""
        return (self.key_bits + 7) // 8

    @property
    def bound(self) -> float:
        return self.extent.bound

    @property
    def ciphertexts(self) -> int:
        return int(np.prod(self.shape))

    @property
    def bytes(self) -> int:
        return self.ciphertexts * 2 * self.plaintext_bytes

    @property
    def unit_bits(self) -> int:
        return self.extent.fraction_bits

    def arrived(self) -> Self:
        return replace(self, extent=Extent.from_numbers(self.extent.numbers()))

    def plus(self, other: Self) -> Self:
        bits = max(self.extent.fraction_bits, other.extent.fraction_bits)
        return replace(self, extent=self.extent.scaled(bits).plus(other.extent.scaled(bits)))

    def plus_plain(self) -> Self:
        return replace(self, extent=self.extent.plus_plain())

    def contracted(self, multipliers: Multipliers, fixed: FixedPoint | None) -> Self:
        columns, outputs, rows = multipliers.shape
        extent = self.extent.times(multiplier_scale(multipliers, fixed), rows)
        shape = (outputs, columns) if len(self.shape) == 2 else (outputs,)
        return replace(self, shape=shape, extent=extent, inner=rows)

    def masked(self, width: int | None) -> Block:
        layout = PackedLayout.of(self.key_bits, self.shape, self.extent, width)
        opened = layout.ciphertexts * self.plaintext_bytes
        return Block(self.shape, layout.ciphertexts, 2 * opened, opened, self.inner, width=layout.width)


@dataclass(frozen=True)
class CkksFigures:
    """Thousands of values a ciphertext; an owner's fresh ones travel in half the bytes."""

    form: ArrayForm
    seeded: bool = False
    inner: int = 0

    @classmethod
    def fresh(cls, shape: tuple[int, ...], fixed: FixedPoint, seeded: bool) -> CkksFigures:
        return cls(fresh_form(shape, fixed), seeded)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.layout.shape

    @property
    def bound(self) -> float:
        return self.form.bound

    @property
    def ciphertexts(self) -> int:
        return self.form.layout.units

    @property
    def bytes(self) -> int:
        return encrypted_bytes(self.form.layout, self.seeded)

    unit_bits = FLOAT_BITS

    def arrived(self) -> Self:
        return self

    def plus(self, other: Self) -> Self:
        low, high = sorted((self.form, other.form), key=lambda form: form.scale)
        return replace(self, form=added(low, high)[0], seeded=False)

    def plus_plain(self) -> Self:
        return replace(self, form=plain_added(self.form), seeded=False)

    def contracted(self, multipliers: Multipliers, fixed: FixedPoint | None) -> Self:
        _, outputs, count = multipliers.shape
        rows = RowLayout(self.shape)
        largest = float(multipliers.largest.max())
        form, _ = product_form(self.form, rows.contracted(outputs), largest, fixed, rows.ciphertexts, count)
        return replace(self, form=form, seeded=False, inner=count)

    def masked(self, width: int | None) -> Block:
        layout = self.form.layout
        return Block(self.shape, layout.ciphertexts, masked_bytes(layout), answer_bytes(layout), self.inner)


Figures = PaillierFigures | CkksFigures
"""The public numbers of an encrypted array."""


class DryEncrypted(Encrypted):
    """An encrypted array without values."""

    def __init__(self, public: DryPublicKey, figures: Any) -> None:
        self.key, self.public, self.figures = public, public, figures
        self.shape, self.bound = figures.shape, figures.bound

    @property
    def ciphertexts(self) -> int:
        return int(self.figures.ciphertexts)

    def _note(self, name: str, **more: Any) -> None:
        self.key.note(name, self.shape, self.ciphertexts, **more)

    def _add(self, other: DryEncrypted) -> DryEncrypted:
        self._note("add")
        return DryEncrypted(self.key, self.figures.plus(other.figures))

    def _add_plain(self, values: object) -> DryEncrypted:
        self._note("plus")
        return DryEncrypted(self.key, self.figures.plus_plain())

    @property
    def unit_bits(self) -> int:
        return int(self.figures.unit_bits)

    def add_units(self, units: Sequence[int]) -> DryEncrypted:
        return self._add_plain(units)

    def _multiply(self, factors: Floats, fixed: FixedPoint | None) -> DryEncrypted:
        raise BadKey("a dry array is contracted, and not multiplied entry by entry")

    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> DryEncrypted:
        sums = DryEncrypted(self.key, self.figures.contracted(multipliers, fixed))
        sums._note("contract", inner=self.rows, terms=int(np.count_nonzero(multipliers)))
        return sums

    def rerandomise(self) -> DryEncrypted:
        self._note("draw")
        fresh = DryEncrypted(self.key, self.figures)
        fresh.origin = "re-randomised"
        return fresh

    def mask(self) -> tuple[DryMasked, DryMask]:
        return self._masked(None)

    def mask_slots(self, width: int) -> tuple[DryMasked, DryMask]:
        return self._masked(width)

    def _masked(self, width: int | None) -> tuple[DryMasked, DryMask]:
        block = self.figures.masked(width)
        self.key.note("mask", self.shape, block.ciphertexts, inner=block.inner, width=block.width)
        masked = DryMasked(self.key, block)
        masked.origin = "re-randomised"
        return masked, DryMask(self.key, block)

    def to_bytes(self) -> bytes:
        return self.key.meter.blank(self.figures.bytes, self.figures, self.ciphertexts)


class DryMasked(Masked):
    """A masked result without values."""

    def __init__(self, public: DryPublicKey, block: Block, blob: bytes = b"") -> None:
        self.public, self.key, self.block, self.shape = public, public, block, block.shape
        self._blob = blob or public.meter.blank(block.bytes, block, block.ciphertexts)

    @property
    def ciphertexts(self) -> int:
        return self.block.ciphertexts

    def to_bytes(self) -> bytes:
        self.key.note("sum bytes", self.shape, self.ciphertexts)
        return self._blob


class DryOpened(Opened):
    def __init__(self, public: DryPublicKey, block: Block, blob: bytes) -> None:
        self.public, self.block, self.shape, self._blob = public, block, block.shape, blob

    def plus(self, units: Sequence[int], fraction_bits: int, width: int) -> DryOpened:
        return self

    def to_bytes(self) -> bytes:
        return self._blob


class DryMask(Mask):
    """A mask that hides nothing."""

    def __init__(self, public: DryPublicKey, block: Block) -> None:
        super().__init__()
        self._public, self._block = public, block

    def _remove(self, opened: DryOpened) -> Floats:
        block = self._block
        self._public.note("unmask", block.shape, block.ciphertexts, inner=block.inner)
        return np.zeros(block.shape)

    def _material(self) -> list[bytes]:
        return [WORD]

    def _disclose(self) -> bytes:
        return self._public.meter.blank(self._block.opened_bytes)
