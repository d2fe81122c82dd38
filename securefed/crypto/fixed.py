"""Fixed point with one public scale.

A real number v becomes the integer round(v * 2**fraction_bits). The scale belongs to the whole array and is
public. So a ciphertext says nothing about the magnitude of its value, unlike one with an exponent per number
(phe). Values outside the declared range raise; nothing is clipped and nothing wraps.

Multipliers are plaintext numbers of one party. They get a number of significant bits relative to the largest
of them (`exponent_for`). The exponent stays with that party unless it chooses a public `FixedPoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, isfinite, ldexp

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.crypto.errors import RangeError, ShapeError

__all__ = ["PRIVATE_BITS", "FixedPoint", "checked_addend", "checked_array", "exponent_for"]

# Encoded values are held in int64 arrays; one bit for the sign and one to spare.
MOST_BITS = 62
PRIVATE_BITS = 24
"""Significant bits of multipliers whose scale stays with their party, relative to the largest of them."""


def checked_array(values: ArrayLike, what: str = "values") -> NDArray[np.float64]:
    """Return `values` as float64. Raises unless they have 1 or 2 dimensions and are finite and not empty."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: not an array of real numbers ({error})") from None
    if array.ndim not in (1, 2):
        raise ShapeError(f"{what}: {array.ndim} dimensions given, 1 or 2 are allowed")
    if array.size == 0:
        raise ShapeError(f"{what}: the array of shape {array.shape} is empty")
    if not np.isfinite(array).all():
        bad = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
        raise RangeError(
            f"{what}: {bad} of {array.size} entries are NaN or infinite; only finite numbers are allowed"
        )
    return array


def checked_addend(values: ArrayLike, shape: tuple[int, ...], bound: float) -> NDArray[np.float64]:
    """Return the addend of an encrypted array: one number for all entries or one for each, up to its
    bound.
    """
    if np.ndim(values) == 0:
        values = np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
    array = checked_array(values, "addend")
    if array.shape != shape:
        raise ShapeError(f"addend: shape {array.shape} given, {shape} expected")
    largest = float(np.max(np.abs(array)))
    if largest > bound:
        raise RangeError(f"addend: magnitude up to {largest:.6g} given, at most {bound:.6g} is allowed")
    return array


@dataclass(frozen=True)
class FixedPoint:
    """A public range and precision: |value| <= bound, in steps of 2**-fraction_bits."""

    bound: float = 1.0
    fraction_bits: int = 32

    def __post_init__(self) -> None:
        if not (isinstance(self.bound, int | float) and isfinite(self.bound) and self.bound > 0):
            raise RangeError(f"bound: {self.bound!r} given, a finite number above 0 is allowed")
        if not isinstance(self.fraction_bits, int) or isinstance(self.fraction_bits, bool):
            raise RangeError(f"fraction_bits: {self.fraction_bits!r} given, a whole number is allowed")
        if not 1 <= self.magnitude_bits <= MOST_BITS:
            raise RangeError(
                f"bound {self.bound!r} with {self.fraction_bits} fraction bits takes"
                f" {self.magnitude_bits} bits, 1 to {MOST_BITS} are allowed"
            )

    @property
    def scale(self) -> float:
        return float(2.0**self.fraction_bits)

    @property
    def magnitude_bits(self) -> int:
        """V such that every encoded integer is below 2**V in magnitude."""
        return round(ldexp(self.bound, self.fraction_bits)).bit_length()

    def check(self, values: NDArray[np.float64], what: str = "values") -> None:
        largest = float(np.max(np.abs(values)))
        if largest > self.bound:
            raise RangeError(
                f"{what}: magnitude up to {largest:.6g} given, at most {self.bound:.6g} was declared"
            )

    def encode(self, values: ArrayLike, what: str = "values") -> NDArray[np.int64]:
        array = checked_array(values, what)
        self.check(array, what)
        return np.rint(array * self.scale).astype(np.int64)

    def decode(self, integers: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(integers).astype(np.float64) / self.scale


def exponent_for(largest: float, bits: int) -> int:
    """Return the largest e with rint(largest * 2**e) < 2**bits; 0 for 0."""
    if largest == 0.0:
        return 0
    exponent = bits - frexp(largest)[1]
    # Rounded up to a power of two, it takes a bit more.
    return exponent - 1 if np.rint(np.ldexp(largest, exponent)) >= 2.0**bits else exponent
