"""Packed Paillier arrays for measurements, with the example of a gradient's headroom.

A plan has room for `terms` values up to `magnitude`, each times an integer up to `multiplier`. Here values
have 24 bits, with room for sums of 1024 of them, each times a multiplier of 24 bits: slots of 61 bits, 33 in
a plaintext of a 2048-bit key. A plan without that room would pack more, and measure what no protocol uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.paillier.arrays import (
    Extent,
    PackedLayout,
    PaillierMask,
    PaillierMasked,
    mask_packed,
    slots_for,
)
from securefed.crypto.paillier.keys import BLOCK, PaillierSecretKey
from securefed.crypto.randomness import uniform_many_below
from securefed.errors import CapacityError

FIXED = FixedPoint(bound=1.0, fraction_bits=24)
TERMS = 1024
MULTIPLIER = 1 << 24


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
    return gmpy2.pack(shifted, width) - gmpy2.pack([half] * len(values), width)


def _width(magnitude: int) -> int:
    """Bits of a slot: those of the largest sum, a sign and one to spare."""
    return (magnitude * TERMS * MULTIPLIER).bit_length() + 2


def slots_of(secret: PaillierSecretKey) -> int:
    """Values in one ciphertext."""
    return slots_for(secret.public.bits, _width(Extent.fresh(FIXED).magnitude))


@dataclass(frozen=True)
class Packed:
    """An encrypted array with many values in a ciphertext."""

    secret: PaillierSecretKey
    values: int
    ciphertexts: list[mpz]

    def mask(self) -> tuple[PaillierMasked, PaillierMask]:
        """Re-randomise and hide the values under fresh uniform masks."""
        public, extent, count = self.secret.public, Extent.fresh(FIXED), len(self.ciphertexts)
        width, bits = _width(extent.magnitude), extent.fraction_bits
        layout = PackedLayout(public.bits, (self.values,), width, bits, extent.magnitude)
        masks = uniform_many_below(public.n, count)
        return mask_packed(public, self.ciphertexts, layout, masks, public.draw(count))


def encrypt_packed(secret: PaillierSecretKey, values: NDArray[np.float64]) -> Packed:
    """Encrypt as the key's owner, in blocks: nothing but the ciphertexts is ever there as a whole."""
    public, width, slots = secret.public, _width(Extent.fresh(FIXED).magnitude), slots_of(secret)
    if width > public.bits - 2:
        raise CapacityError(f"slots of {width} bits do not fit a key of {public.bits}")
    ciphertexts: list[mpz] = []
    for start in range(0, values.size, slots * BLOCK):
        integers = FIXED.encode(values[start : start + slots * BLOCK]).tolist()
        packed = [pack(integers[i : i + slots], width) for i in range(0, len(integers), slots)]
        ciphertexts += public.combine(packed, secret.draw(len(packed)))
    return Packed(secret, values.size, ciphertexts)
