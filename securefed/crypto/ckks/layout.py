"""The places of an array's values in slots of ciphertexts and in coefficients of an opening.

`RowLayout` has one value a slot. With F the columns rounded up to a power of two, a value is at slot (row *
copies + copy) * F + column of its block. Arrays that do not fill a block are repeated (`copies`), so that one
product serves several outputs.

`SumLayout` is the layout of a contraction. A unit is one ciphertext whose slots contain products. The sums
over the slots j, j + G, j + 2G, ... (G = groups) are the results. Multipliers are complex, with one output in
the real and one in the imaginary part, and each copy takes another pair. So a unit has 2 * copies outputs in
its 2G useful coefficients, at multiples of the stride (N/2)/G. Merging puts the useful coefficients of many
units into one ciphertext.

Both define which coefficients an opening returns. For sums these are only the useful ones, so the requester
gets sums over rows and nothing finer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.ckks.embedding import Complex, Floats, real_slots, sum_coefficients, sums
from securefed.crypto.ckks.parameters import LEAST_STRIDE, RING, SLOTS
from securefed.crypto.errors import CapacityError, FormatError

__all__ = ["CkksLayout", "RowLayout", "SumLayout", "layout_of", "power_of_two"]


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _width(columns: int) -> int:
    if columns > SLOTS:
        raise CapacityError(f"{columns} columns given, at most {SLOTS} fit a ciphertext")
    return power_of_two(columns)


@dataclass(frozen=True)
class RowLayout:
    """One value a slot."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _width(self.columns)

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def columns(self) -> int:
        return self.shape[1] if len(self.shape) == 2 else 1

    @cached_property
    def width(self) -> int:
        return _width(self.columns)

    @cached_property
    def copies(self) -> int:
        return max(1, SLOTS // self.width // power_of_two(self.rows))

    @cached_property
    def height(self) -> int:
        """Rows of one block."""
        return SLOTS // self.width // self.copies

    @cached_property
    def ciphertexts(self) -> int:
        return -(-self.rows // self.height)

    @property
    def units(self) -> int:
        return self.ciphertexts

    code = 0
    levels = 0

    def slots(self, values: Floats) -> Floats:
        """Map (rows, columns) values to (blocks, slots)."""
        padded = np.zeros((self.ciphertexts * self.height, self.width))
        padded[: self.rows, : self.columns] = values.reshape(self.rows, self.columns)
        blocks = padded.reshape(self.ciphertexts, self.height, 1, self.width)
        shape = (self.ciphertexts, self.height, self.copies, self.width)
        return np.broadcast_to(blocks, shape).reshape(self.ciphertexts, SLOTS)

    @cached_property
    def places(self) -> list[NDArray[np.intp]]:
        """The returned coefficients of each ciphertext: half of them, since slots are real."""
        return [np.arange(SLOTS)] * self.ciphertexts

    @property
    def coefficients(self) -> int:
        return self.ciphertexts * SLOTS

    def values(self, opened: Floats) -> Floats:
        """Map returned coefficients to values, with the copies averaged."""
        slots = real_slots(opened.reshape(self.ciphertexts, SLOTS))
        shape = (self.ciphertexts * self.height, self.copies, self.width)
        table = slots.reshape(shape).mean(axis=1)[: self.rows, : self.columns]
        return np.ascontiguousarray(table).reshape(self.shape)

    def contracted(self, outputs: int) -> SumLayout:
        """Return the layout of the sums over the rows."""
        shape = (outputs, self.columns) if len(self.shape) == 2 else (outputs,)
        return SumLayout(shape, self.width * min(self.copies, power_of_two((outputs + 1) // 2)))


@dataclass(frozen=True)
class SumLayout:
    """Sums over slots before merging and opening."""

    shape: tuple[int, ...]
    groups: int

    @property
    def outputs(self) -> int:
        return self.shape[0]

    @property
    def columns(self) -> int:
        return self.shape[1] if len(self.shape) == 2 else 1

    @cached_property
    def width(self) -> int:
        return _width(self.columns)

    @cached_property
    def copies(self) -> int:
        return self.groups // self.width

    @cached_property
    def stride(self) -> int:
        return SLOTS // self.groups

    @cached_property
    def units(self) -> int:
        return -(-self.outputs // (2 * self.copies))

    @cached_property
    def units_each(self) -> int:
        """The most units of one merged ciphertext."""
        return max(1, self.stride // LEAST_STRIDE)

    @cached_property
    def ciphertexts(self) -> int:
        return -(-self.units // self.units_each)

    @property
    def code(self) -> int:
        return self.groups.bit_length()

    @property
    def levels(self) -> int:
        """The most merges in sequence."""
        return (min(self.units, self.units_each) - 1).bit_length()

    def members(self, ciphertext: int) -> range:
        """Return the units of one merged ciphertext."""
        start = ciphertext * self.units_each
        return range(start, min(self.units, start + self.units_each))

    @cached_property
    def places(self) -> list[NDArray[np.intp]]:
        """The returned coefficients of each merged ciphertext, unit by unit."""
        base = np.arange(2 * self.groups) * self.stride
        result: list[NDArray[np.intp]] = []
        for ciphertext in range(self.ciphertexts):
            offsets = np.array([self._offset(i) for i in range(len(self.members(ciphertext)))])
            result.append((offsets[:, None] + base).ravel())
        return result

    def _offset(self, member: int) -> int:
        """Return a unit's shift: bit i of `member` shifts by stride/2^(i+1)."""
        return sum(self.stride >> (i + 1) for i in range(member.bit_length()) if member >> i & 1)

    @property
    def coefficients(self) -> int:
        return self.units * 2 * self.groups

    def values(self, opened: Floats) -> Floats:
        """Map returned coefficients to sums."""
        results = sums(opened.reshape(self.units, 2 * self.groups), self.stride)
        pairs = results.reshape(self.units, self.copies, self.width)
        table = np.stack([pairs.real, pairs.imag], axis=1).reshape(-1, self.width)
        return np.ascontiguousarray(table[: self.outputs, : self.columns]).reshape(self.shape)

    def pairs(self, values: Floats) -> Complex:
        """Map (outputs, ...) to (units, copies, ...) complex numbers of two outputs each."""
        padded = np.zeros((self.units * 2 * self.copies, *values.shape[1:]))
        padded[: self.outputs] = values
        halves = padded.reshape(self.units, 2, self.copies, *values.shape[1:])
        return np.asarray(halves[:, 0] + 1j * halves[:, 1])

    def polynomials(self, values: Floats) -> Floats:
        """Return (units, N) coefficients of polynomials whose sums are `values`, as a plain addend."""
        table = np.zeros((self.outputs, self.width))
        table[:, : self.columns] = values.reshape(self.outputs, self.columns)
        useful = sum_coefficients(self.pairs(table).reshape(self.units, self.groups), self.stride)
        result = np.zeros((self.units, RING))
        result[:, :: self.stride] = useful
        return result


CkksLayout = RowLayout | SumLayout


def layout_of(shape: tuple[int, ...], code: int) -> CkksLayout:
    """Return the layout that a frame announces. Raises FormatError if it returns more than its shape
    needs.
    """
    if code == 0:
        return RowLayout(shape)
    width, outputs = _width(shape[1] if len(shape) == 2 else 1), shape[0]
    groups = 1 << (code - 1) if 0 < code <= SLOTS.bit_length() else 0
    if not width <= groups <= width * power_of_two((outputs + 1) // 2):
        raise FormatError(f"layout {code} is not one of an array of shape {shape}")
    return SumLayout(shape, groups)
