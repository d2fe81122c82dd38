"""Where the entries of hidden arrays stand among the coefficients of polynomials.

*Operands.* A column is cut into `blocks` pieces of equal length; piece v becomes sum_j v_j X^j in a
ciphertext of its own.

*Products.* With D the length of a piece padded to a power of two and R >= D, the polynomial

    A(X) = sum over rows r and j of A[r, j] X^(r R - j)        (X^-j = -X^(N - j))

times sum_j v_j X^j has the inner product of row r at X^(r R); everything else lies between those places. A
*unit* holds N / R rows.

*Results.* Entry (i, column) of a result with n rows stands at i' t + offset(column), t = N / (n padded) and
i' the bits of i in reverse, whatever D is: results of parties with different numbers of columns add up. With
R = max(D, t), unit u takes the rows from u N / R on; merging the units (`merging`) puts them at their places,
and the last units, which may have no rows, take no merges. Where n is small, columns of the result share a
ciphertext: they are merged like units, at offsets below t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import ShapeError

__all__ = [
    "MERGE",
    "MOST_TURNS",
    "PLACES",
    "Block",
    "Packing",
    "operand_length",
    "padded",
    "reversed_bits",
    "strides_of",
    "turns_for",
]

PLACES = 1
"""The number of this way to place results; frames carry it, so that one of another way is refused."""


def padded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def operand_length(rows: int, blocks: int, degree: int) -> int:
    """Entries of a column in one ciphertext, where it is cut into at least `blocks` pieces."""
    return min(degree, max(1, padded(-(-rows // blocks))))


@cache
def reversed_bits(count: int) -> NDArray[np.intp]:
    """0, count / 2, count / 4, 3 count / 4, ...: the bits of 0 to count - 1 in reverse; a power of two."""
    found = np.zeros(1, dtype=np.intp)
    while len(found) < count:
        found = np.concatenate([2 * found, 2 * found + 1])
    return found


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
        rows = reversed_bits(self.degree // self.stride)[: self.rows] * self.stride
        return rows[:, None] + reversed_bits(self.stride)[: self.columns]

    def spacing(self, length: int) -> int:
        """R: from one row of a unit to the next, for operands of that length."""
        return max(length, self.stride)

    def unit_size(self, length: int) -> int:
        """Rows of a unit."""
        return self.degree // self.spacing(length)

    def units(self, length: int) -> int:
        """Units that have rows; merges take `spacing // stride` of them, a power of two."""
        return -(-self.rows // self.unit_size(length))


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

    @cached_property
    def order(self) -> NDArray[np.intp] | None:
        """Where entries that are listed by ciphertexts stand among all, listed by rows; None: at the same."""
        if self.columns == 1 or len(self.blocks) == 1:
            return None
        places = np.arange(self.entries, dtype=np.intp).reshape(self.rows, self.columns)
        parts = [
            places[b.first_row : b.first_row + b.rows, b.first_column : b.first_column + b.columns].ravel()
            for b in self.blocks
        ]
        return np.concatenate(parts)

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


MERGE, TURN, PRODUCT = 11, 10, 1
"""What they cost, about: a quarter of a millisecond is 1."""
MOST_TURNS = 64
WORTH_NOISE = 8 * MERGE
"""What turns have to save: they make a sum noisier."""


def turns_for(packing: Packing, length: int, pieces: int, most: int = MOST_TURNS) -> tuple[int, int]:
    """The cheapest number of turns of an operand (securefed.crypto.rlwe.products), and what it all costs."""

    def cost(turns: int) -> int:
        total = TURN * packing.columns * pieces * (turns - 1)
        for block in packing.blocks:
            group = min(turns, block.spacing(length) // block.stride)
            groups = -(-block.units(length) // group) * block.columns
            total += MERGE * (groups - 1) + PRODUCT * groups * group * pieces
        return total

    allowed = [1 << k for k in range(min(most, MOST_TURNS).bit_length())]
    least = min(map(cost, allowed))
    # Fewer turns are less noise, and less that every worker has to do.
    best = next(turns for turns in allowed if cost(turns) <= least * 1.05)
    if cost(1) - cost(best) < WORTH_NOISE:
        best = 1
    return best, cost(best)
