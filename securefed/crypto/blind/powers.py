"""Products of powers mod n**2 whose steps depend on public sizes alone.

    out[j] = prod over r of base[r] ** exponent[r, j] mod n**2

The routines of securefed.crypto.paillier.multiexp skip what is 0, so that their time shows how sparse the
exponents are. The two methods here multiply once for every digit, whatever the digit is. They use the same
half-size factors: a base is r (1 + n e) mod n**2 with r below n, and the e add up.

Digits. An exponent is cut into windows of w bits with digits from -2**(w - 1) to 2**(w - 1) - 1.

- *Straus*, for few rows: a digit d costs a product with base ** (d + 2**(w - 1) + 1), from a table. The
  surplus of every digit is the same, so a fixed power of the product of all bases is divided out at the end.
- *Pippenger*, for many rows: a digit d costs a product with the bucket of its magnitude, and 0 has a bucket
  that nobody reads. Negative digits take the base's inverse.

In Straus's method no table entry is 1. In Pippenger's every bucket begins with the same full-size filler,
which is divided out at the end, so that an empty bucket costs what a full one costs. `choose` picks the
method and the window from sizes alone.

The number of steps is the same for all exponents of a size. Which table entry or bucket is read depends on
the digits, so caches may still show something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import mul

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.blind.shares import LIMBS, WIDTH, Share, carry, from_integer, shift_right
from securefed.crypto.paillier.multiexp import (
    HALVING,
    MOST_TABLE_BYTES,
    SQUARING,
    STEP,
    TABLE_ENTRY,
    TABLE_STEP,
    _Halves,
)

__all__ = ["Column", "Cut", "choose", "column_products", "digits_of"]

STRAUS_WINDOWS = range(2, 8)
PIPPENGER_WINDOWS = range(2, 13)
Digits = NDArray[np.int64]
"""(levels, outputs, rows), lowest level first."""


@dataclass(frozen=True)
class Cut:
    """How exponents are cut into digits, and which method takes them."""

    straus: bool
    window: int
    bits: int
    """Bits of an exponent with its sign, at most 105."""

    @property
    def levels(self) -> int:
        return -(-self.bits // self.window)

    @property
    def tops(self) -> list[int]:
        """Half the range of each level's digits. The highest level ends at 105 bits."""
        last = min(self.window, WIDTH - self.window * (self.levels - 1))
        return [1 << (self.window - 1)] * (self.levels - 1) + [1 << (last - 1)]

    def weighted(self, numbers: list[int]) -> int:
        """Return the exponent that has these numbers as digits."""
        return sum(number << (self.window * level) for level, number in enumerate(numbers))


def choose(rows: int, outputs: int, bits: int, modulus_bits: int) -> Cut:
    """Return the cheapest cut for so many exponents of so many bits."""
    options: list[tuple[float, Cut]] = []
    for window in STRAUS_WINDOWS:
        entries = 1 << window
        if window > 2 and rows * entries * (modulus_bits // 4 + 150) > MOST_TABLE_BYTES:
            break
        cut = Cut(True, window, bits)
        each = TABLE_STEP * rows * cut.levels + SQUARING * bits + 2
        options.append((rows * (HALVING + TABLE_ENTRY * entries) + outputs * each + 2 * SQUARING * bits, cut))
    for window in PIPPENGER_WINDOWS:
        cut = Cut(False, window, bits)
        each = STEP * rows * cut.levels + 2 * sum(cut.tops) + SQUARING * bits
        options.append((rows * HALVING + outputs * each + SQUARING * bits, cut))
    return min(options, key=lambda pair: pair[0])[1]


def digits_of(exponents: Share, cut: Cut) -> Digits:
    """Return the digits of (5, rows, outputs) exponents, each taken as the number nearest to 0.

    The digits make up the exponent exactly if its magnitude is at most 2**(cut.bits - 2). With 105 bits they
    make it up modulo 2**105, as a number of magnitude below 2**105.

    Half of every level's range is added first, which turns signed digits into plain ones. The halves below
    level k add up to less than 2/3 of 2**(w k), so a magnitude of 2**(bits - 2) stays within the range.
    """
    halves = from_integer(cut.weighted(cut.tops)).reshape(LIMBS, 1, 1)
    moved = carry(exponents + halves)
    digits = np.empty((cut.levels, exponents.shape[2], exponents.shape[1]), dtype=np.int64)
    for level, top in enumerate(cut.tops):
        digits[level] = (shift_right(moved, cut.window * level)[0] & (2 * top - 1)).T - top
    return digits


@dataclass(frozen=True)
class Column:
    """One piece of work, picklable: a column of bases and the digits of some outputs."""

    n: mpz
    bases: list[mpz]
    """Units mod n**2, validated when they arrived."""
    digits: Digits
    cut: Cut


def column_products(column: Column) -> list[mpz]:
    """Return the product of powers of each output. A top-level function, for other processes."""
    method = _straus if column.cut.straus else _pippenger
    return method(_Halves.of(column.bases, column.n), column.digits, column.n, column.cut)


def _straus(halves: _Halves, digits: Digits, n: mpz, cut: Cut) -> list[mpz]:
    square, step = n * n, mpz(1) << cut.window
    tables = list(_tables(halves, n, 1 << cut.window))
    shift = 1 << (cut.window - 1)
    every = mpz(1)
    for r in halves.r:
        every = every * r % square
    every = every * (1 + n * (sum(halves.e) % n)) % square
    surplus = gmpy2.invert(gmpy2.powmod(every, cut.weighted([shift + 1] * cut.levels), square), square)
    products = []
    for output in range(digits.shape[1]):
        product, part = mpz(1), mpz(0)
        for level in range(cut.levels - 1, -1, -1):
            if level < cut.levels - 1:
                product, part = gmpy2.powmod(product, step, square), part << cut.window
            for table, place in zip(tables, (digits[level, output] + shift).tolist(), strict=True):
                factor, share = table[place]
                product = product * factor % square
                part += share
        products.append(product * (1 + n * (part % n)) % square * surplus % square)
    return products


def _tables(halves: _Halves, n: mpz, entries: int) -> Iterator[list[tuple[mpz, mpz]]]:
    """base, base**2, ..., base**entries of each base, as pairs (r, e)."""
    for first, first_e, first_s in zip(halves.r, halves.e, halves.s, strict=True):
        r, e, s = first, first_e, first_s
        table = [(r, e)]
        for _ in range(entries - 1):
            # r r' = q n + r'' is r'' (1 + n q / r'') mod n**2, and s = 1 / r mod n moves along.
            high, r = gmpy2.f_divmod(r * first, n)
            s = s * first_s % n
            e = (e + first_e + high * s) % n
            table.append((r, e))
        yield table


def _pippenger(halves: _Halves, digits: Digits, n: mpz, cut: Cut) -> list[mpz]:
    square, step, rows = n * n, mpz(1) << cut.window, len(halves.r)
    factors, shares = halves.r + halves.s, halves.e + halves.f
    filler = gmpy2.powmod(3, 2 * n.bit_length(), square)
    inside = cut.weighted([top * (top + 1) // 2 for top in cut.tops])
    surplus = gmpy2.invert(gmpy2.powmod(filler, inside, square), square)
    place = np.arange(rows)
    products = []
    for output in range(digits.shape[1]):
        product, part = mpz(1), mpz(0)
        for level in range(cut.levels - 1, -1, -1):
            if level < cut.levels - 1:
                product, part = gmpy2.powmod(product, step, square), part << cut.window
            line = digits[level, output]
            sizes = np.abs(line).tolist()
            # Negative digits take the inverse, which lies `rows` places further on.
            chosen = np.where(line < 0, place + rows, place).tolist()
            buckets = [filler] * (cut.tops[level] + 1)
            for index, size in zip(chosen, sizes, strict=True):
                buckets[size] = buckets[size] * factors[index] % square
            part += sum(map(mul, map(shares.__getitem__, chosen), sizes))
            running = total = buckets[-1]
            for bucket in buckets[-2:0:-1]:
                running = running * bucket % square
                total = total * running % square
            product = product * total % square
        products.append(product * (1 + n * (part % n)) % square * surplus % square)
    return products
