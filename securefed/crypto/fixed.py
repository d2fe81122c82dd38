"""Fixed point with one public scale, and the plain numbers of a contraction.

A real number v becomes the integer round(v * 2**fraction_bits). The scale belongs to the whole array and is
public. So a ciphertext says nothing about the magnitude of its value. Values outside the declared range
raise; nothing is clipped and nothing wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import frexp, isfinite, ldexp

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from securefed.errors import RangeError, ShapeError

Floats = NDArray[np.float64]
MOST_BITS = 62
"""Encoded values are in int64 arrays: one bit for the sign and one to spare."""
PRIVATE_BITS = 24
"""Significant bits of multipliers whose scale stays with their party, relative to the largest of them."""
BLOCK_ENTRIES = 1 << 16
"""Numbers in a block of multipliers, unless its user needs a larger one: 512 KiB."""
EVERY = slice(None)


def checked_array(values: ArrayLike, what: str = "values") -> Floats:
    """Return `values` as float64. Raises unless they have 1 or 2 dimensions and are finite and not empty."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: not an array of real numbers ({error})") from None
    if array.ndim not in (1, 2):
        raise ShapeError(f"{what}: {array.ndim} dimensions given, 1 or 2 are allowed")
    if array.size == 0:
        raise ShapeError(f"{what}: the array of shape {array.shape} is empty")
    if bad := np.count_nonzero(~np.isfinite(array)):
        raise RangeError(
            f"{what}: {bad} of {array.size} entries are NaN or infinite; only finite numbers are allowed"
        )
    return array


def check_magnitude(values: Floats, bound: float, what: str = "values") -> None:
    largest = float(np.max(np.abs(values)))
    if largest > bound:
        raise RangeError(f"{what}: magnitude up to {largest:.6g} given, at most {bound:.6g} was declared")


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
        bits = round(ldexp(self.bound, self.fraction_bits)).bit_length()
        if not 1 <= bits <= MOST_BITS:
            raise RangeError(
                f"bound {self.bound!r} with {self.fraction_bits} fraction bits takes"
                f" {bits} bits, 1 to {MOST_BITS} are allowed"
            )

    @property
    def scale(self) -> float:
        return float(2.0**self.fraction_bits)

    def checked(self, values: ArrayLike) -> Floats:
        """Return values as an array that is in the declared range."""
        array = checked_array(values)
        check_magnitude(array, self.bound)
        return array

    def encode(self, values: ArrayLike) -> NDArray[np.int64]:
        return np.rint(self.checked(values) * self.scale).astype(np.int64)


def exponent_for(largest: float, bits: int) -> int:
    """Return the largest e with rint(largest * 2**e) < 2**bits; 0 for 0."""
    if largest == 0.0:
        return 0
    exponent = bits - frexp(largest)[1]
    # Rounded up to a power of two, it takes a bit more.
    return exponent - 1 if np.rint(np.ldexp(largest, exponent)) >= 2.0**bits else exponent


Block = Callable[[slice, slice], Floats]
"""(columns, outputs) -> those multipliers, with all rows."""


class Multipliers:
    """The (columns, outputs, rows) multipliers of a contraction, computed block by block on demand.

    A hidden layer of 64 over 1,000 columns and as many rows would take half a gigabyte.
    """

    def __init__(self, shape: tuple[int, int, int], block: Block) -> None:
        self.shape, self.block = shape, block

    def blocks(self) -> Iterator[tuple[slice, slice, Floats]]:
        columns, outputs, rows = self.shape
        for j in _cuts(columns, rows):
            for a in _cuts(outputs, rows * (j.stop - j.start)):
                yield j, a, self.block(j, a)

    @cached_property
    def largest(self) -> Floats:
        """(columns, outputs): the largest magnitude among the rows; not finite if one of them is not."""
        largest = np.zeros(self.shape[:2])
        for j, a, block in self.blocks():
            largest[j, a] = np.abs(block).max(axis=2)
        return largest

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        return np.asarray(self.block(EVERY, EVERY), dtype=dtype)

    def scaled(self, powers: Floats) -> Multipliers:
        """Return these times a power of two for each column and output."""
        product = Multipliers(self.shape, lambda j, a: self.block(j, a) * powers[j, a, None])
        product.largest = self.largest * powers
        return product


def as_multipliers(values: ArrayLike | Multipliers) -> Multipliers:
    if isinstance(values, Multipliers):
        return values
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 3:
        raise ShapeError(f"multipliers: shape {array.shape} given, (columns, outputs, rows) expected")
    columns, outputs, rows = array.shape
    return Multipliers((columns, outputs, rows), lambda j, a: array[j, a])


def _cuts(count: int, each: int) -> list[slice]:
    """Cut `count` items of `each` entries into runs that fit a block."""
    size = max(1, BLOCK_ENTRIES // max(1, each))
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]
