"""The plain numbers of a contraction, block by block.

    result[a, j] = sum over i of multipliers[j, a, i] * encrypted[i, j]        (columns, outputs, rows)

Where every column has multipliers of its own that tensor is larger than all else: a hidden layer of 64 over
1,000 columns and as many rows makes half a gigabyte of it out of a few megabytes. So whoever contracts asks
for the blocks that it works on, and nobody holds the whole. One scale serves all blocks: it follows from
`largest`, which is found in a first pass over them.
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
"""Numbers that a block has, where its user does not need a larger one: 512 KiB."""
EVERY = slice(None)


class Multipliers(ABC):
    """A tensor of which blocks are made when they are asked for."""

    shape: tuple[int, int, int]

    @abstractmethod
    def block(self, columns: slice, outputs: slice) -> Floats:
        """Those columns and outputs, all rows."""

    def blocks(self) -> Iterator[tuple[slice, slice, Floats]]:
        """All of them, one after the other."""
        columns, outputs, rows = self.shape
        for j in _cuts(columns, rows):
            for a in _cuts(outputs, rows * (j.stop - j.start)):
                yield j, a, self.block(j, a)

    @cached_property
    def largest(self) -> Floats:
        """(columns, outputs): the largest magnitude among the rows; not finite where one of them is not."""
        largest = np.zeros(self.shape[:2])
        for j, a, block in self.blocks():
            largest[j, a] = np.abs(block).max(axis=2)
        return largest

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        """The whole tensor, for those who look at it."""
        return np.asarray(self.block(EVERY, EVERY), dtype=dtype)


class Whole(Multipliers):
    """One that is there already."""

    def __init__(self, values: Floats) -> None:
        columns, outputs, rows = values.shape
        self.shape, self._values = (columns, outputs, rows), values

    def block(self, columns: slice, outputs: slice) -> Floats:
        return self._values[columns, outputs]


class Scaled(Multipliers):
    """Every output's multipliers times a power of two of its own."""

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
    """Runs of `count` things of `each` entries, with as many in a run as a block has room for."""
    size = max(1, BLOCK_ENTRIES // max(1, each))
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]
