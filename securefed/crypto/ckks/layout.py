"""The parameter set of CKKS, and the places of values in slots and coefficients.

*Parameters.* Both sides build the one set from this file, and compare its hash (docs/security.md). The ring
is that of blind training: N = 4096 and q just above 2^104 (securefed.crypto.lattice.ring). Values are scaled
to at most 1 and then by 2^74, multipliers by up to 2^26. Products are not rescaled, so they are at 2^100. The
room below q/2 is for sums. The room between the noise and 2^74 is for flooding at openings.

docs/proofs.md (places of values in CKKS) has the slots, and how merging puts the sums of many ciphertexts
into one. `RowLayout` has one value a slot: (row * copies + copy) * F + column of its block, with F the
columns rounded up to a power of two. Arrays that do not fill a block are repeated (`copies`), so that one
product serves several outputs. `SumLayout` is the layout of a contraction: an opening returns only the
coefficients that have sums over rows, so the requester gets nothing finer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.fixed import Floats
from securefed.crypto.lattice.ring import DEGREE, HALF, PRIMES, RING
from securefed.crypto.wire import fingerprint
from securefed.errors import CapacityError, FormatError

SLOTS = HALF
PARAMETERS = fingerprint(b"ckks-4096-5x21", *(prime.to_bytes(8, "little") for prime in PRIMES))
CAPACITY_BITS = 103.0
"""A coefficient of a result stays below 2^103. Flooding has the rest of q/2, which is above 2^103.4."""
LEAST_STRIDE = 4
GALOIS_STRIDES = tuple(1 << k for k in range(11, LEAST_STRIDE.bit_length() - 1, -1))
"""A merge halves the stride of the useful coefficients, from one of these; each takes one Galois key."""

Complex = NDArray[np.complex128]


# Slots and coefficients


@cache
def _turn(slots: int) -> Complex:
    """Return exp(i pi k / (2 * slots)) for k < slots, powers of the root of a ring of 2 * slots."""
    return np.asarray(np.exp(1j * np.pi * np.arange(slots) / (2 * slots)))


def coefficients(slots: Floats | Complex) -> Floats:
    """Return the (..., 2n) real coefficients of the polynomial with these (..., n) slots."""
    count = slots.shape[-1]
    turned = np.fft.fft(slots) * (np.conj(_turn(count)) / count)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def sums(useful: Floats, stride: int) -> Complex:
    """Return the (..., G) sums over slots j, j + G, ... from (..., 2G) useful coefficients."""
    groups = useful.shape[-1] // 2
    joined = (useful[..., :groups] + 1j * useful[..., groups:]) * _turn(groups)
    return np.asarray(np.fft.ifft(joined) * (groups * stride))


def real_slots(lower: Floats) -> Floats:
    """Return the slots of a polynomial with real slots, from its coefficients 0 .. N/2 - 1.

    Real slots mean p(X) = p(1/X), so coefficient N - k is minus coefficient k and coefficient N/2 is zero.
    """
    upper = np.zeros_like(lower)
    upper[..., 1:] = -lower[..., :0:-1]
    return sums(np.concatenate([lower, upper], axis=-1), 1).real


# Layouts


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


@dataclass
class Placed:
    """The common part of layouts: an array of this shape, of rows of values or outputs."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.rows, self.columns = self.shape if len(self.shape) == 2 else (*self.shape, 1)
        if self.columns > SLOTS:
            raise CapacityError(f"{self.columns} columns given, at most {SLOTS} fit a ciphertext")
        self.width = power_of_two(self.columns)


@dataclass
class RowLayout(Placed):
    code = 0
    levels = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.copies = max(1, SLOTS // self.width // power_of_two(self.rows))
        self.height = SLOTS // self.width // self.copies
        """Rows of one block."""
        self.ciphertexts = self.units = -(-self.rows // self.height)
        self.coefficients = self.ciphertexts * SLOTS

    def slots(self, values: Floats) -> Floats:
        """Map (rows, columns) values to (blocks, slots)."""
        padded = np.zeros((self.ciphertexts * self.height, self.width))
        padded[: self.rows, : self.columns] = values.reshape(self.rows, self.columns)
        blocks = padded.reshape(self.ciphertexts, self.height, 1, self.width)
        shape = (self.ciphertexts, self.height, self.copies, self.width)
        return np.broadcast_to(blocks, shape).reshape(self.ciphertexts, SLOTS)

    def polynomials(self, values: Floats) -> Floats:
        """Return (blocks, N) coefficients of the values, as a plain addend."""
        return coefficients(self.slots(values))

    @cached_property
    def places(self) -> list[NDArray[np.intp]]:
        """The returned coefficients of each ciphertext: half of them, since slots are real."""
        return [np.arange(SLOTS)] * self.ciphertexts

    def values(self, opened: Floats) -> Floats:
        """Map returned coefficients to values, with the copies averaged."""
        slots = real_slots(opened.reshape(self.ciphertexts, SLOTS))
        shape = (self.ciphertexts * self.height, self.copies, self.width)
        table = slots.reshape(shape).mean(axis=1)[: self.rows, : self.columns]
        return np.ascontiguousarray(table).reshape(self.shape)

    def contracted(self, outputs: int) -> SumLayout:
        """Return the layout of the sums over the rows.

        Fewer outputs than rows fill their units, or the real part of the last one. Other places would contain
        sums that nobody asked for: the values times the rounding of the multipliers (docs/proofs.md).
        """
        shape = (outputs, self.columns) if len(self.shape) == 2 else (outputs,)
        filled = outputs & -outputs if outputs < self.rows else outputs
        return SumLayout(shape, self.width * min(self.copies, filled, power_of_two((outputs + 1) // 2)))


@dataclass
class SumLayout(Placed):
    """Sums over slots before merging and opening."""

    groups: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.code, self.stride = self.groups.bit_length(), SLOTS // self.groups
        self.copies = self.groups // self.width
        self.units = -(-self.rows // (2 * self.copies))
        self.units_each = max(1, self.stride // LEAST_STRIDE)
        """The most units of one merged ciphertext."""
        self.ciphertexts = -(-self.units // self.units_each)
        self.levels = (min(self.units, self.units_each) - 1).bit_length()
        """The most merges in sequence."""
        self.coefficients = self.units * 2 * self.groups

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

    def values(self, opened: Floats) -> Floats:
        """Map returned coefficients to sums."""
        results = sums(opened.reshape(self.units, 2 * self.groups), self.stride)
        pairs = results.reshape(self.units, self.copies, self.width)
        table = np.stack([pairs.real, pairs.imag], axis=1).reshape(-1, self.width)
        return np.ascontiguousarray(table[: self.rows, : self.columns]).reshape(self.shape)

    def polynomials(self, values: Floats) -> Floats:
        """Return (units, N) coefficients of polynomials whose sums are `values`, as a plain addend."""
        table = np.zeros((self.units * 2 * self.copies, self.width))
        table[: self.rows, : self.columns] = values.reshape(self.rows, self.columns)
        halves = table.reshape(self.units, 2, self.groups)
        result = np.zeros((self.units, DEGREE))
        result[:, :: self.stride] = coefficients((halves[:, 0] + 1j * halves[:, 1]) / self.stride)
        return result


CkksLayout = RowLayout | SumLayout


def returned(layout: CkksLayout, polynomials: Floats) -> Floats:
    """Return the coefficients that an opening returns, (5, coefficients), of (5, ciphertexts, N)."""
    return np.concatenate([polynomials[:, i, places] for i, places in enumerate(layout.places)], axis=1)


def layout_of(shape: tuple[int, ...], code: int) -> CkksLayout:
    """Return the layout that a frame announces, or raise FormatError if it returns more than it should."""
    rows = RowLayout(shape)
    if code == 0:
        return rows
    groups = 1 << (code - 1) if 0 < code <= SLOTS.bit_length() else 0
    if not rows.width <= groups <= rows.width * power_of_two((rows.rows + 1) // 2):
        raise FormatError(f"layout {code} is not one of an array of shape {shape}")
    return SumLayout(shape, groups)


# Merging


def galois_element(stride: int) -> int:
    """Return the exponent of the automorphism that keeps X^(stride k) and negates X^(stride/2 + stride k)."""
    return 1 + 2 * DEGREE // stride


def turned(polynomials: Floats, element: int) -> Floats:
    """Return p(X^element) modulo X^N + 1 of polynomials (..., N)."""
    exponents = np.arange(DEGREE) * element % (2 * DEGREE)
    result = np.empty_like(polynomials)
    result[..., exponents % DEGREE] = np.where(exponents < DEGREE, polynomials, -polynomials)
    return result


def merge(units: Floats, stride: int, apply_galois: Callable[[Floats, int], Floats]) -> Floats:
    """Return one ciphertext with the useful coefficients of all units, at `SumLayout.places`.

    `units`: residues (5, 2, units, N). `apply_galois` takes a ciphertext, (5, 2, N), and a stride, and
    returns an encryption of the turned polynomial.
    """
    count = units.shape[2]
    undoing = pow(2, -(count - 1).bit_length(), RING.modulus)
    nodes = [RING.scaled(units[:, :, unit], undoing) for unit in range(count)]
    while len(nodes) > 1:
        half = stride // 2
        if len(nodes) % 2:
            nodes[-1] *= 2
            RING.reduced(nodes[-1])
        for i, (even, odd) in enumerate(zip(nodes[::2], nodes[1::2], strict=False)):
            moved = np.concatenate([-odd[..., -half:], odd[..., :-half]], axis=-1)
            nodes[2 * i] = RING.reduced(even + moved + apply_galois(even - moved, stride))
        nodes, stride = nodes[::2], half
    return nodes[0]
