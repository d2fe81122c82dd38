"""The plain numbers of a contraction, block by block.

    result[a, j] = sum over i of multipliers[j, a, i] * encrypted[i, j]        (columns, outputs, rows)

Where every column has its own multipliers this tensor is larger than all else. A hidden layer of 64 over
1,000 columns and as many rows takes half a gigabyte. So a contraction asks for blocks, and nobody stores the
whole. All blocks have one scale, from `largest`, which a first pass computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from securefed.crypto.errors import ShapeError

__all__ = ["BLOCK_ENTRIES", "EVERY", "Multipliers", "Scaled", "as_multipliers"]

Floats = NDArray[np.float64]
BLOCK_ENTRIES = 1 << 16
"""Numbers in a block, unless its user needs a larger one: 512 KiB."""
EVERY = slice(None)


class Multipliers(ABC):
    """A tensor that computes its blocks on demand."""

    shape: tuple[int, int, int]

    @abstractmethod
    def block(self, columns: slice, outputs: slice) -> Floats:
        """Return those columns and outputs, with all rows."""

    def blocks(self) -> Iterator[tuple[slice, slice, Floats]]:
        """Yield the tensor in blocks."""
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
        """Return the whole tensor."""
        return np.asarray(self.block(EVERY, EVERY), dtype=dtype)


class Whole(Multipliers):
    """A tensor that is in memory."""

    def __init__(self, values: Floats) -> None:
        columns, outputs, rows = values.shape
        self.shape, self._values = (columns, outputs, rows), values

    def block(self, columns: slice, outputs: slice) -> Floats:
        return self._values[columns, outputs]


class Scaled(Multipliers):
    """Multipliers times a power of two for each output."""

    def __init__(self, multipliers: Multipliers, powers: Floats) -> None:
        self.shape, self._multipliers, self._powers = multipliers.shape, multipliers, powers

    def block(self, columns: slice, outputs: slice) -> Floats:
        block: Floats = self._multipliers.block(columns, outputs) * self._powers[columns, outputs, None]
        return block

    @cached_property
    def largest(self) -> Floats:
        largest: Floats = self._multipliers.largest * self._powers
        return largest


def as_multipliers(values: ArrayLike | Multipliers) -> Multipliers:
    if isinstance(values, Multipliers):
        return values
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 3:
        raise ShapeError(f"multipliers: shape {array.shape} given, (columns, outputs, rows) expected")
    return Whole(array)


def _cuts(count: int, each: int) -> list[slice]:
    """Cut `count` items of `each` entries into runs that fit a block."""
    size = max(1, BLOCK_ENTRIES // max(1, each))
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]
