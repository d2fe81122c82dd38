"""Many products of powers at once: out[a] = prod over i of base[i] ** t[a, i] mod n**2.

| function | exponents | time |
|---|---|---|
| `powers` | int64, this party's own and known to nobody else | zeros cost nothing |
| `digit_powers` | up to 105 bits, of blind training | follows from public sizes alone |

Half-size factors. Every base is x = r (1 + n e) mod n**2 with r = x mod n, and the e add up under products:

    prod x_i ** t_i  =  prod r_i ** t_i  *  (1 + n * sum t_i e_i)

The sum costs almost nothing. A factor r_i below n makes a step of the product (multiply and reduce mod n**2)
cost 0.6 of one with a factor below n**2.

A count of multiplications picks a method and its window for each shape:

- *Straus*, for few rows: a table of powers of each base, shared by all outputs. `powers` has sliding signed
  windows (wNAF) and two accumulators for the signs. `digit_powers` has fixed windows: a digit d costs a
  product with base ** (d + 2**(w - 1) + 1), so no entry is 1, and the common surplus is divided out.
- *Pippenger*, for many rows: bases are multiplied into the bucket of their digit's magnitude, negative ones
  as inverses. Running products combine the buckets. In `digit_powers` every bucket begins with the same
  filler, which is divided out, and 0 has a bucket that nobody reads.

In `digit_powers` the number of steps is the same for all exponents of a size. Which table entry or bucket is
read depends on the digits, so caches may still show something. Results do not depend on method, window or
worker. Bases are units mod n**2, validated on arrival: GMP aborts the process on some calls with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import mul
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.paillier.primes import invert_all
from securefed.crypto.shares import LIMBS, WIDTH, Share, carry, from_integer, shift_right

Integers = NDArray[np.int64]
Tables = list[list[tuple[mpz, mpz]]]

# Costs in multiplications mod n**2, measured at 2048 and 3072 bits; they only have to rank the plans.
STEP = 0.6
"""Multiplication by a half-size factor in cache."""
TABLE_STEP = 0.75
"""Multiplication by a half-size factor from a large table."""
SQUARING = 0.87
HALVING = 1.8
"""Conversion of one base into half-size form."""
TABLE_ENTRY = 1.4
MOST_TABLE_BYTES = 1 << 28
DIGITS_AT_ONCE = 1 << 13
"""Exponents whose digits are in memory at once, whole outputs."""
SLIDING_WINDOWS = range(2, 9)
FIXED_WINDOWS = range(2, 8)
BUCKET_WINDOWS = range(2, 13)


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


def _tables(halves: Halves, n: mpz, entries: int, *, odd: bool) -> Tables:
    """Return base, base**2, base**3, ... of each base, or its odd powers alone, as pairs (r, e)."""
    tables = []
    for r, e, s in zip(halves.r, halves.e, halves.s, strict=True):
        table, step, share, back = [(r, e)], r, e, s
        if odd and entries > 1:
            carried, step = gmpy2.f_divmod(r * r, n)
            back = s * s % n
            share = 2 * e + carried * back
        for _ in range(entries - 1):
            # r r' = q n + r'' is r'' (1 + n q / r'') mod n**2, and s = 1 / r mod n moves along.
            carried, r = gmpy2.f_divmod(r * step, n)
            s = s * back % n
            e = (e + share + carried * s) % n
            table.append((r, e))
        tables.append(table)
    return tables


# Exponents of this party alone


@dataclass(frozen=True)
class Plan:
    """The method and window for one column."""

    straus: bool
    window: int
    cost: float
    """Cost in multiplications mod n**2."""


@dataclass(frozen=True)
class ExponentColumn:
    """One piece of work: a column's bases and the exponents of some outputs, picklable."""

    n: mpz
    bases: list[mpz]
    exponents: Integers
    """(outputs, rows)"""


def column_powers(column: ExponentColumn) -> list[mpz]:
    """Compute one piece of work. It is a top-level function for other processes."""
    return powers(column.bases, column.exponents, column.n)


def powers(bases: list[mpz], exponents: Integers, n: mpz) -> list[mpz]:
    """Return prod over i of bases[i] ** exponents[a, i] mod n**2, for every a."""
    used = np.flatnonzero(exponents.any(axis=0))
    if used.size == 0:
        return [mpz(1)] * exponents.shape[0]
    bases, exponents = [bases[i] for i in used.tolist()], exponents[:, used]
    # A common power of two is cheaper at the end.
    merged = int(np.bitwise_or.reduce(np.abs(exponents), axis=None))
    twos = (merged & -merged).bit_length() - 1
    exponents = exponents >> twos
    bits = int(np.max(np.abs(exponents))).bit_length()
    plan = choose_plan(exponents.shape, int(np.count_nonzero(exponents)), bits, n.bit_length() // 4)
    results = (_sliding if plan.straus else _sparse_buckets)(bases, exponents, n, plan.window, bits)
    return [gmpy2.powmod(result, mpz(1) << twos, n * n) for result in results] if twos else results


def choose_plan(shape: tuple[int, ...], terms: int, bits: int, width: int) -> Plan:
    """Return the cheapest plan for exponents with `terms` non-zeros and residues of `width` bytes."""
    outputs, rows = shape
    plans = []
    for window in SLIDING_WINDOWS:
        entries = 1 << (window - 2)
        if window > 2 and rows * entries * (width + 150) > MOST_TABLE_BYTES:
            break
        tables = rows * (HALVING + TABLE_ENTRY * (entries - (entries == 1)))
        digits = terms * (bits + 1) / (window + 1)
        each = 2 * SQUARING * bits + 3
        plans.append(Plan(True, window, tables + TABLE_STEP * digits + outputs * each))
    for window in BUCKET_WINDOWS:
        levels = -(-bits // window)
        sizes = [1 << (window - 1)] * (levels - 1) + [1 << (bits - window * (levels - 1))]
        digits = terms * (1 + (levels - 1) * (1 - 2.0**-window))
        # The first factor of a bucket is put there, not multiplied.
        first = outputs * sum(min(size, terms / outputs) for size in sizes)
        each = 2 * sum(sizes) + SQUARING * bits
        plans.append(Plan(False, window, rows * HALVING + STEP * (digits - first) + outputs * each))
    return min(plans, key=lambda plan: plan.cost)


def _in_parts(exponents: Integers, digits_of: Callable[[Integers], NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the (digits, rows) of each output. All digits at once would take several times the memory."""
    size = max(1, DIGITS_AT_ONCE // exponents.shape[1])
    for start in range(0, len(exponents), size):
        digits = digits_of(exponents[start : start + size])
        yield from (digits[:, output] for output in range(digits.shape[1]))


def _sliding(bases: list[mpz], exponents: Integers, n: mpz, window: int, bits: int) -> list[mpz]:
    square = n * n
    tables = _tables(Halves.of(bases, n), n, 1 << (window - 2), odd=True)
    above, below = [], []
    for digits in _in_parts(exponents, lambda some: _sliding_digits(some, window, bits)):
        positive = negative = mpz(1)
        part = mpz(0)
        for position in range(bits, -1, -1):
            if positive != 1:
                positive = positive * positive % square
            if negative != 1:
                negative = negative * negative % square
            part += part
            line = digits[position]
            places = np.flatnonzero(line)
            for i, digit in zip(places.tolist(), line[places].tolist(), strict=True):
                if digit > 0:
                    factor, share = tables[i][digit >> 1]
                    positive = positive * factor % square
                    part += share
                else:
                    factor, share = tables[i][-digit >> 1]
                    negative = negative * factor % square
                    part -= share
        above.append(positive * (1 + n * (part % n)) % square)
        below.append(negative)
    return [a * b % square for a, b in zip(above, invert_all(below, square), strict=True)]


def _sliding_digits(exponents: Integers, window: int, bits: int) -> NDArray[np.int16]:
    """Return digits with exponents = sum of digits[j] * 2**j, each 0 or odd and below 2**(window - 1) in
    magnitude.
    """
    left = np.abs(exponents)
    sign = np.sign(exponents).astype(np.int16)
    digits = np.zeros((bits + 1, *exponents.shape), dtype=np.int16)
    for position in range(bits + 1):
        low = left & ((1 << window) - 1)
        digit = np.where(low & 1, np.where(low >= 1 << (window - 1), low - (1 << window), low), 0)
        left = (left - digit) >> 1
        digits[position] = digit * sign
    return digits


def _sparse_buckets(bases: list[mpz], exponents: Integers, n: mpz, window: int, bits: int) -> list[mpz]:
    square, halves, rows = n * n, Halves.of(bases, n), len(bases)
    factors, shares = halves.r + halves.s, halves.e + halves.f
    levels = -(-bits // window)
    weights = 1 << (window * np.arange(levels, dtype=np.int64))
    results = []
    for digits in _in_parts(exponents, lambda some: _bucket_digits(some, window, levels)):
        result = mpz(1)
        for level in range(levels - 1, -1, -1):
            if result != 1:
                result = gmpy2.powmod(result, 1 << window, square)
            places = np.flatnonzero(digits[level])
            if places.size:
                line = digits[level, places]
                sizes = np.abs(line).tolist()
                chosen = np.where(line < 0, places + rows, places).tolist()
                product = _bucketed(factors, chosen, sizes, [None] * (max(sizes) + 1), square)
                result = result * product % square
        # How often each base and each inverse went in.
        times = [
            *(np.maximum(digits, 0).T @ weights).tolist(),
            *(np.maximum(-digits, 0).T @ weights).tolist(),
        ]
        part = sum(map(mul, shares, map(mpz, times)), mpz(0))
        results.append(result * (1 + n * (part % n)) % square)
    return results


def _bucketed(
    factors: list[mpz], chosen: list[int], sizes: list[int], buckets: list[mpz | None], square: mpz
) -> mpz:
    """Multiply factors into the buckets of their digits d, and return the product of bucket[d] ** d."""
    for index, size in zip(chosen, sizes, strict=True):
        bucket = buckets[size]
        buckets[size] = factors[index] if bucket is None else bucket * factors[index] % square
    running = total = mpz(1)
    for bucket in reversed(buckets[1:]):
        if bucket is not None:
            running = running * bucket % square
        total = total * running % square
    return total


def _bucket_digits(exponents: Integers, window: int, levels: int) -> Integers:
    """Return digits with exponents = sum of digits[l] * 2**(window * l).

    All but the top digits are at most 2**(window - 1) in magnitude. The top one takes the last carry.
    """
    left = np.abs(exponents)
    sign = np.sign(exponents)
    digits = np.zeros((levels, *exponents.shape), dtype=np.int64)
    for level in range(levels - 1):
        low = left & ((1 << window) - 1)
        digit = np.where(low >= 1 << (window - 1), low - (1 << window), low)
        left = (left - digit) >> window
        digits[level] = digit * sign
    digits[levels - 1] = left * sign
    return digits


# Exponents of blind training


@dataclass(frozen=True)
class Cut:
    """How exponents are cut into digits from -2**(w - 1) to 2**(w - 1) - 1, and which method takes them."""

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


def choose_cut(rows: int, outputs: int, bits: int, modulus_bits: int) -> Cut:
    """Return the cheapest cut for so many exponents of so many bits."""
    options: list[tuple[float, Cut]] = []
    for window in FIXED_WINDOWS:
        entries = 1 << window
        if window > 2 and rows * entries * (modulus_bits // 4 + 150) > MOST_TABLE_BYTES:
            break
        cut = Cut(True, window, bits)
        each = TABLE_STEP * rows * cut.levels + SQUARING * bits + 2
        options.append((rows * (HALVING + TABLE_ENTRY * entries) + outputs * each + 2 * SQUARING * bits, cut))
    for window in BUCKET_WINDOWS:
        cut = Cut(False, window, bits)
        each = STEP * rows * cut.levels + 2 * sum(cut.tops) + SQUARING * bits
        options.append((rows * HALVING + outputs * each + SQUARING * bits, cut))
    return min(options, key=lambda pair: pair[0])[1]


def digits_of(exponents: Share, cut: Cut) -> Integers:
    """Return the digits, (levels, outputs, rows), of (5, rows, outputs) exponents nearest to 0.

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
class DigitColumn:
    """One piece of work, picklable: a column of bases and the digits of some outputs."""

    n: mpz
    bases: list[mpz]
    digits: Integers
    cut: Cut


def digit_powers(column: DigitColumn) -> list[mpz]:
    """Return the product of powers of each output. It is a top-level function for other processes."""
    method = _fixed if column.cut.straus else _full_buckets
    return method(Halves.of(column.bases, column.n), column.digits, column.n, column.cut)


def _fixed(halves: Halves, digits: Integers, n: mpz, cut: Cut) -> list[mpz]:
    square, step = n * n, mpz(1) << cut.window
    tables = _tables(halves, n, 1 << cut.window, odd=False)
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


def _full_buckets(halves: Halves, digits: Integers, n: mpz, cut: Cut) -> list[mpz]:
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
            part += sum(map(mul, map(shares.__getitem__, chosen), sizes))
            buckets: list[mpz | None] = [filler] * (cut.tops[level] + 1)
            product = product * _bucketed(factors, chosen, sizes, buckets, square) % square
        products.append(product * (1 + n * (part % n)) % square * surplus % square)
    return products
