"""Packed arrays: many values a ciphertext, for what treats all of them alike.

Slots of one ciphertext share one multiplier, so a packed array can be added to, multiplied by one integer,
and masked, and no more: an operand whose entries meet different multipliers stays one value a ciphertext
(encrypted.py). Its `plan` says how much fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import gmpy2
from gmpy2 import mpz
from numpy.typing import ArrayLike

from securefed.crypto.errors import CapacityError, RangeError, ShapeError, WrongKey
from securefed.crypto.fixed import checked_addend
from securefed.crypto.packing import PackingPlan, pack
from securefed.crypto.paillier.extent import Extent, to_integers
from securefed.crypto.paillier.masking import Layout, PaillierMask, PaillierMasked, join_integers, mask_packed
from securefed.crypto.randomness import uniform_many_below
from securefed.crypto.wire import Kind

if TYPE_CHECKING:
    from securefed.crypto.paillier.public import PaillierPublicKey

__all__ = ["PaillierPacked"]


class PaillierPacked:
    """An encrypted array of which each ciphertext holds `plan.slots` values, row by row."""

    __array_ufunc__ = None

    def __init__(
        self,
        public: PaillierPublicKey,
        shape: tuple[int, ...],
        ciphertexts: Sequence[mpz],
        extent: Extent,
        plan: PackingPlan,
    ) -> None:
        self.public = public
        self.shape = shape
        self.extent = extent
        self.plan = plan
        self._ciphertexts = list(ciphertexts)

    @property
    def bound(self) -> float:
        """Public bound on every |value|."""
        return self.extent.bound

    @property
    def ciphertexts(self) -> int:
        return len(self._ciphertexts)

    def integers(self) -> list[int]:
        """The ciphertexts as whole numbers mod n**2."""
        return [int(c) for c in self._ciphertexts]

    def __add__(self, other: PaillierPacked | ArrayLike) -> PaillierPacked:
        """Sum, with a packed array of the same plan or with plain numbers up to the bound."""
        square = self.public.square
        if isinstance(other, PaillierPacked):
            extent = self._sum_extent(other)
            pairs = zip(self._ciphertexts, other._ciphertexts, strict=True)
            return self._make([a * b % square for a, b in pairs], extent)
        array = checked_addend(other, self.shape, self.bound)
        extent = self._admit(self.extent.plus_plain())
        n, slots = self.public.n, self.plan.slots
        integers = to_integers(array, self.extent.fraction_bits)
        plain = [pack(integers[i : i + slots], self.plan.width) for i in range(0, len(integers), slots)]
        pairs = zip(self._ciphertexts, plain, strict=True)
        return self._make([c * (1 + n * m) % square for c, m in pairs], extent)

    __radd__ = __add__

    def __mul__(self, factor: int) -> PaillierPacked:
        """Every value times one integer. The integer is public, as far as the extent of the result is."""
        if not isinstance(factor, int) or isinstance(factor, bool):
            raise RangeError(f"factor: {factor!r} given, a whole number is allowed")
        size = max(1, abs(factor))
        grown = Extent(self.extent.fraction_bits, self.extent.magnitude * size, self.extent.bound * size)
        extent = self._admit(grown)
        bases = self._ciphertexts
        if factor < 0:
            bases = [gmpy2.invert(c, self.public.square) for c in bases]
        return self._make(list(gmpy2.powmod_base_list(bases, abs(factor), self.public.square)), extent)

    __rmul__ = __mul__

    def rerandomise(self) -> PaillierPacked:
        """The same values under fresh randomness."""
        square = self.public.square
        pairs = zip(self._ciphertexts, self.public.draw(self.ciphertexts), strict=True)
        return self._make([c * residue % square for c, residue in pairs], self.extent)

    def mask(self) -> tuple[PaillierMasked, PaillierMask]:
        """Re-randomised and hidden under fresh uniform masks, for the key-holder; and the masks, to keep."""
        layout = Layout.of(self.public.bits, self.shape, self.extent, self.plan.width)
        masks = uniform_many_below(self.public.n, self.ciphertexts)
        return mask_packed(self.public, self._ciphertexts, layout, masks, self.public.draw(self.ciphertexts))

    def to_bytes(self) -> bytes:
        """A frame of kind ENCRYPTED that `PaillierPublicKey.load_packed` reads."""
        payload = join_integers(self._ciphertexts, self.public.ciphertext_bytes)
        return self.public.frame(
            Kind.ENCRYPTED, payload, self.shape, self.extent.numbers(self.plan.width)
        ).to_bytes()

    def _sum_extent(self, other: PaillierPacked) -> Extent:
        if other.public.key_id != self.public.key_id:
            raise WrongKey(f"arrays under two keys do not add up: {self.public!r} and {other.public!r}")
        if other.shape != self.shape:
            raise ShapeError(f"shapes {self.shape} and {other.shape} do not add up")
        if other.plan.width != self.plan.width or other.extent.fraction_bits != self.extent.fraction_bits:
            raise CapacityError(
                f"slots of {self.plan.width} and {other.plan.width} bits, or two scales, do not add up"
            )
        return self._admit(self.extent.plus(other.extent))

    def _admit(self, extent: Extent) -> Extent:
        self.plan.admit(extent.magnitude)
        return extent

    def _make(self, ciphertexts: Sequence[mpz], extent: Extent) -> PaillierPacked:
        return PaillierPacked(self.public, self.shape, ciphertexts, extent, self.plan)

    def __repr__(self) -> str:
        key = self.public.key_id.hex()[:8]
        return f"<paillier packed {self.shape} in {self.ciphertexts} ciphertexts under {key}>"
