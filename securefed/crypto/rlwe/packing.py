"""Where the entries of hidden arrays stand among the coefficients of polynomials.

*Operands.* A column is cut into `blocks` pieces of equal length; piece v becomes sum_j v_j X^j in a
ciphertext of its own.

*Products.* With D the length of a piece padded to a power of two and R >= D, the polynomial

    A(X) = sum over rows r and j of A[r, j] X^(r R - j)        (X^-j = -X^(N - j))

times sum_j v_j X^j has the inner product of row r at X^(r R); everything else lies between those places. A
*unit* holds N / R rows.

*Results.* Entry (i, column) of a result with n rows stands at i t + offset(column), t = N / (n padded),
whatever D is: results of parties with different numbers of columns add up. With R = max(D, t), unit u takes
the rows i = u' mod R / t, u' the bits of u in reverse; merging the units (`merging`) puts them at their
places. Where n is small, columns of the result share a ciphertext: they are merged like units, at offsets
below t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import ShapeError

__all__ = ["Block", "Packing", "operand_length", "padded", "strides_of"]


def padded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def operand_length(rows: int, blocks: int, degree: int) -> int:
    """Entries of a column in one ciphertext, where it is cut into at least `blocks` pieces."""
    return min(degree, max(1, padded(-(-rows // blocks))))


def _offset(index: int, stride: int) -> int:
    """Where a member ends up: its lowest bit moves it by stride / 2, the next by stride / 4, and so on."""
    place = 0
    while index:
        stride //= 2
        place += stride * (index & 1)
        index >>= 1
    return place


@dataclass(frozen=True)
class Block:
    """One ciphertext of a result: these rows of these columns."""

    first_row: int
    rows: int
    first_column: int
    columns: int
    stride: int
    """t: from one row to the next."""
    degree: int

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """(rows, columns) coefficients."""
        offsets = np.array([_offset(column, self.stride) for column in range(self.columns)], dtype=np.intp)
        return np.arange(self.rows, dtype=np.intp)[:, None] * self.stride + offsets

    def spacing(self, length: int) -> int:
        """R: from one row of a unit to the next, for operands of that length."""
        return max(length, self.stride)

    def unit_starts(self, length: int) -> list[int]:
        """The first row of every unit, whether the block has it or not."""
        spacing = self.spacing(length)
        return [_offset(unit, spacing) // self.stride for unit in range(spacing // self.stride)]

    def unit_rows(self, length: int) -> list[NDArray[np.intp]]:
        """The rows of every unit; empty where a unit has none."""
        starts = self.unit_starts(length)
        return [np.arange(start, self.rows, len(starts), dtype=np.intp) for start in starts]


@dataclass(frozen=True)
class Packing:
    """The ciphertexts of a result of this shape."""

    rows: int
    columns: int
    degree: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ShapeError(f"shape ({self.rows}, {self.columns}) is empty")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        found: list[Block] = []
        for row in range(0, self.rows, self.degree):
            rows = min(self.degree, self.rows - row)
            stride = self.degree // padded(rows)
            for column in range(0, self.columns, stride):
                columns = min(stride, self.columns - column)
                found.append(Block(row, rows, column, columns, stride, self.degree))
        return tuple(found)

    @property
    def entries(self) -> int:
        return self.rows * self.columns

    def strides(self, length: int) -> set[int]:
        """The strides of the merges that operands of that length lead to: each takes a Galois key."""
        found: set[int] = set()
        for block in self.blocks:
            stride = block.spacing(length)
            leaves = stride // block.stride * padded(block.columns)
            while leaves > 1:
                found.add(stride)
                stride, leaves = stride // 2, leaves // 2
        return found


def strides_of(shapes: set[tuple[int, int, int]], degree: int) -> tuple[int, ...]:
    """For results (rows, columns, length of the operand), largest first."""
    found: set[int] = set()
    for rows, columns, length in shapes:
        found |= Packing(rows, columns, degree).strides(length)
    return tuple(sorted(found, reverse=True))
