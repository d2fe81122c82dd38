"""Many products of powers at once: out[a] = prod over i of base[i] ** t[a, i] mod n**2.

The number of steps follows from public sizes: zeros cost as much as other exponents. Which table entry or
bucket is read depends on the exponents, so caches may still show something.

Factors are below n where possible, and Pippenger's buckets collect equal digits of exponents (docs/proofs.md,
products of powers). Every bucket begins with the same filler, which is divided out, and 0 has a bucket that
nobody reads.

Bases are units mod n**2, validated on arrival: GMP aborts the process on some calls with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import mul

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.paillier.primes import invert_all
from securefed.crypto.shares import LIMB_BITS, WIDTH, carry, constant, from_integers, shift_right

Integers = NDArray[np.int64]

# Costs in multiplications mod n**2, measured at 2048 and 3072 bits; they only have to rank the windows.
STEP = 0.6
"""Multiplication by a half-size factor."""
SQUARING = 0.87
DIGITS_AT_ONCE = 1 << 13
"""Exponents whose digits are in memory at once, whole outputs."""
WINDOWS = range(2, 13)


@dataclass
class Cut:
    """How exponents are cut into digits.

    All but the highest digit are from -2**(w - 1) to 2**(w - 1) - 1. The highest takes the rest, with its
    sign.
    """

    window: int
    bits: int
    """Exponents are at most 2**bits in magnitude, or of 105 bits (104)."""

    def __post_init__(self) -> None:
        self.levels = -(-self.bits // self.window)
        # Halves of the lower levels add up to less than 2/3 of the highest level's unit, so its digit does
        # not exceed the exponent's own highest bits.
        lower = self.levels - 1
        self.tops = [1 << (self.window - 1)] * lower + [1 << (self.bits - self.window * lower)]
        """The largest magnitude of each level's digits."""

    def weighted(self, numbers: list[int]) -> int:
        """Return the exponent that has these numbers as digits."""
        return sum(number << (self.window * level) for level, number in enumerate(numbers))

    def cost(self, rows: int) -> float:
        """Return the cost of one output of so many rows, in multiplications mod n**2."""
        return STEP * rows * self.levels + 2 * sum(self.tops) + SQUARING * self.bits


def choose_cut(rows: int, bits: int) -> Cut:
    """Return the cheapest cut for exponents of so many bits."""
    return min((Cut(window, bits) for window in WINDOWS), key=lambda cut: cut.cost(rows))


def digits_of(exponents: Integers, cut: Cut) -> Integers:
    """Return the digits, (levels, ...), of exponents in limbs (5, ...), as the numbers nearest to 0.

    With 105 bits they are right modulo 2**105, and of magnitude below 2**105. Half of every lower level's
    range is added first, which turns signed digits into plain ones.
    """
    *lower, _ = cut.tops
    moved = carry(exponents + constant(cut.weighted(lower), exponents))
    digits = np.empty((cut.levels, *exponents.shape[1:]), dtype=np.int64)
    for level, half in enumerate(lower):
        digits[level] = (shift_right(moved, cut.window * level)[0] & (2 * half - 1)) - half
    place = cut.window * len(lower)
    highest, sign = shift_right(moved, place)[0], min(LIMB_BITS, WIDTH - place) - 1
    digits[-1] = highest - (highest >> sign << (sign + 1))
    return digits


@dataclass(frozen=True)
class PowerColumn:
    """One piece of work, picklable: a column's bases and the exponents of some outputs."""

    n: mpz
    bases: list[mpz]
    exponents: Integers
    """(outputs, rows), or (5, outputs, rows) in limbs."""
    cut: Cut

    def digits(self) -> Iterator[Integers]:
        """Yield the (levels, rows) digits of each output. All at once would take several times the memory."""
        size = max(1, DIGITS_AT_ONCE // len(self.bases))
        for start in range(0, self.exponents.shape[-2], size):
            some = self.exponents[..., start : start + size, :]
            digits = digits_of(some if some.ndim == 3 else from_integers(some), self.cut)
            yield from digits.transpose(1, 0, 2)


def cut_column(
    n: mpz, bases: list[mpz], exponents: Integers, bits: int, slices: int
) -> Iterator[PowerColumn]:
    """Cut a column into `slices` pieces of work. A column's outputs share work, so few are better."""
    outputs = exponents.shape[-2]
    size = -(-outputs // slices)
    cut = choose_cut(len(bases), bits)
    for start in range(0, outputs, size):
        yield PowerColumn(n, bases, exponents[..., start : start + size, :], cut)


@dataclass(frozen=True)
class Halves:
    """Each base as r (1 + n e) mod n**2, and its inverse as s (1 + n f)."""

    r: list[mpz]
    e: list[mpz]
    s: list[mpz]
    f: list[mpz]

    @classmethod
    def of(cls, bases: list[mpz], n: mpz) -> Halves:
        parts = [gmpy2.f_divmod(base, n) for base in bases]
        r = [low for _, low in parts]
        s = invert_all(r, n)
        e = [high * inverse % n for (high, _), inverse in zip(parts, s, strict=True)]
        # r s = 1 + k n, hence 1 / r = s (1 - k n) mod n**2.
        f = [-part - low * inverse // n for part, low, inverse in zip(e, r, s, strict=True)]
        return cls(r, e, s, f)


def column_powers(column: PowerColumn) -> list[mpz]:
    """Return the product of powers of each output. It is a top-level function for other processes."""
    return _products(column, Halves.of(column.bases, column.n))


def _products(column: PowerColumn, halves: Halves) -> list[mpz]:
    n, cut, rows = column.n, column.cut, len(column.bases)
    square, step, place = n * n, mpz(1) << cut.window, np.arange(rows)
    factors, shares = halves.r + halves.s, halves.e + halves.f
    filler = gmpy2.powmod(3, 2 * n.bit_length(), square)
    inside = cut.weighted([top * (top + 1) // 2 for top in cut.tops])
    surplus = gmpy2.invert(gmpy2.powmod(filler, inside, square), square)
    products = []
    for digits in column.digits():
        product, part = mpz(1), mpz(0)
        for line, top in zip(digits[::-1], cut.tops[::-1], strict=True):
            product, part = gmpy2.powmod(product, step, square), part << cut.window
            sizes = np.abs(line).tolist()
            # Negative digits take the inverse, which lies `rows` places further on.
            chosen = np.where(line < 0, place + rows, place).tolist()
            part += sum(map(mul, map(shares.__getitem__, chosen), sizes))
            buckets = [filler] * (top + 1)
            for index, size in zip(chosen, sizes, strict=True):
                buckets[size] = buckets[size] * factors[index] % square
            # The product of bucket[d] ** d.
            running = mpz(1)
            for bucket in reversed(buckets[1:]):
                running = running * bucket % square
                product = product * running % square
        products.append(product * (1 + n * (part % n)) % square * surplus % square)
    return products
