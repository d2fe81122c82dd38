"""Many products of powers at once: out[a] = prod over i of base[i] ** t[a, i] mod n**2.

Half-size factors. Every base is x = r (1 + n e) mod n**2 with r = x mod n, and the e add up under products:

    prod x_i ** t_i  =  prod r_i ** t_i  *  (1 + n * sum t_i e_i)

The sum takes small multiples of integers mod n and costs almost nothing. A factor r_i below n makes a step of
the product (multiply and reduce mod n**2) cost 0.6 of one with a factor below n**2.

A count of multiplications picks one of three methods and its window for each shape:

- *Straus* with sliding signed windows (wNAF): a table of odd powers of each base, shared by all outputs. Each
  output takes one squaring a bit and one step per non-zero digit, bits / (w + 1) of them a term.
- *Pippenger*: for each output and window, bases are multiplied into the bucket of their digit. Running
  products combine the buckets. No tables; bits / w steps a term, and 2**w for the buckets. For many rows.
- *Direct*, for multipliers that are all 0, 1 or -1: plain products.

Straus and direct keep two accumulators an output for the signs of digits, and end with one inversion of all
negative ones. Pippenger takes the bases' inverses, which the half-size form needs anyway. Zero multipliers
cost nothing. The result does not depend on method, window or worker, since residues mod n**2 have one
representation.

Bases are units mod n**2, validated on arrival. GMP aborts the process on some calls with a base that has no
inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.paillier.residues import invert_all

__all__ = ["ExponentColumn", "Plan", "choose_plan", "column_powers", "powers"]

Integers = NDArray[np.int64]

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
STRAUS_WINDOWS = range(2, 9)
PIPPENGER_WINDOWS = range(2, 13)


@dataclass(frozen=True)
class Plan:
    """The method and window for one column."""

    method: str
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
    twos = _common_twos(exponents)
    exponents = exponents >> twos
    bits = int(np.max(np.abs(exponents))).bit_length()
    plan = choose_plan(exponents.shape, int(np.count_nonzero(exponents)), bits, n.bit_length() // 4)
    results = METHODS[plan.method](bases, exponents, n, plan.window, bits)
    return [gmpy2.powmod(result, mpz(1) << twos, n * n) for result in results] if twos else results


def _common_twos(exponents: Integers) -> int:
    merged = int(np.bitwise_or.reduce(np.abs(exponents), axis=None))
    return (merged & -merged).bit_length() - 1


def choose_plan(shape: tuple[int, ...], terms: int, bits: int, width: int) -> Plan:
    """Return the cheapest plan for exponents with `terms` non-zeros and residues of `width` bytes."""
    outputs, rows = shape
    if bits == 1:
        return Plan("direct", 1, float(terms))
    plans = []
    for window in STRAUS_WINDOWS:
        entries = 1 << (window - 2)
        if window > 2 and rows * entries * (width + 150) > MOST_TABLE_BYTES:
            break
        tables = rows * (HALVING + TABLE_ENTRY * (entries - (entries == 1)))
        digits = terms * (bits + 1) / (window + 1)
        plans.append(
            Plan("straus", window, tables + TABLE_STEP * digits + outputs * (2 * SQUARING * bits + 3))
        )
    for window in PIPPENGER_WINDOWS:
        levels = -(-bits // window)
        sizes = [1 << (window - 1)] * (levels - 1) + [1 << (bits - window * (levels - 1))]
        digits = terms * (1 + (levels - 1) * (1 - 2.0**-window))
        # The first factor of a bucket is put there, not multiplied.
        first = outputs * sum(min(size, terms / outputs) for size in sizes)
        plans.append(
            Plan(
                "pippenger",
                window,
                rows * HALVING + STEP * (digits - first) + outputs * (2 * sum(sizes) + SQUARING * bits),
            )
        )
    return min(plans, key=lambda plan: plan.cost)


@dataclass(frozen=True)
class _Halves:
    """Each base as r (1 + n e) mod n**2, and its inverse as s (1 + n f)."""

    r: list[mpz]
    e: list[mpz]
    s: list[mpz]
    f: list[mpz]

    @classmethod
    def of(cls, bases: list[mpz], n: mpz) -> _Halves:
        parts = [gmpy2.f_divmod(base, n) for base in bases]
        r = [low for _, low in parts]
        s = invert_all(r, n)
        e = [high * inverse % n for (high, _), inverse in zip(parts, s, strict=True)]
        # r s = 1 + k n, hence 1 / r = s (1 - k n) mod n**2.
        f = [-part - low * inverse // n for part, low, inverse in zip(e, r, s, strict=True)]
        return cls(r, e, s, f)


def _direct(bases: list[mpz], exponents: Integers, n: mpz, _window: int, _bits: int) -> list[mpz]:
    square = n * n
    above, below = [], []
    for line in exponents:
        positive = negative = mpz(1)
        for i in np.flatnonzero(line > 0).tolist():
            positive = positive * bases[i] % square
        for i in np.flatnonzero(line < 0).tolist():
            negative = negative * bases[i] % square
        above.append(positive)
        below.append(negative)
    return _quotients(above, below, square)


def _quotients(above: list[mpz], below: list[mpz], square: mpz) -> list[mpz]:
    if all(b == 1 for b in below):
        return above
    return [a * b % square for a, b in zip(above, invert_all(below, square), strict=True)]


def _straus(bases: list[mpz], exponents: Integers, n: mpz, window: int, bits: int) -> list[mpz]:
    square = n * n
    tables = _odd_powers(_Halves.of(bases, n), n, 1 << (window - 2))
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
    return _quotients(above, below, square)


def _in_parts(exponents: Integers, digits_of: Callable[[Integers], NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the (digits, rows) of each output. All digits at once would take several times the memory."""
    size = max(1, DIGITS_AT_ONCE // exponents.shape[1])
    for start in range(0, len(exponents), size):
        digits = digits_of(exponents[start : start + size])
        yield from (digits[:, output] for output in range(digits.shape[1]))


def _odd_powers(halves: _Halves, n: mpz, entries: int) -> list[list[tuple[mpz, mpz]]]:
    """Return base, base**3, base**5, ... for each base, as pairs (r, e)."""
    tables = []
    for r, e, s in zip(halves.r, halves.e, halves.s, strict=True):
        table = [(r, e)]
        if entries > 1:
            # r and s = 1/r mod n move on together: r r' = q n + r'' is r'' (1 + n q / r'') mod n**2.
            carry, step = gmpy2.f_divmod(r * r, n)
            back = s * s % n
            share = 2 * e + carry * back
            for _ in range(entries - 1):
                carry, r = gmpy2.f_divmod(r * step, n)
                s = s * back % n
                e = (e + share + carry * s) % n
                table.append((r, e))
        tables.append(table)
    return tables


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


def _pippenger(bases: list[mpz], exponents: Integers, n: mpz, window: int, bits: int) -> list[mpz]:
    square = n * n
    halves = _Halves.of(bases, n)
    levels = -(-bits // window)
    weights = 1 << (window * np.arange(levels, dtype=np.int64))
    results = []
    for digits in _in_parts(exponents, lambda some: _fixed_digits(some, window, levels)):
        result = mpz(1)
        for level in range(levels - 1, -1, -1):
            if result != 1:
                result = gmpy2.powmod(result, 1 << window, square)
            line = digits[level]
            places = np.flatnonzero(line)
            if places.size:
                result = result * _buckets(halves, places.tolist(), line[places].tolist(), square) % square
        # How often each base and each inverse went in.
        ups = np.maximum(digits, 0).T @ weights
        downs = np.maximum(-digits, 0).T @ weights
        part = sum(map(mpz.__mul__, halves.e, map(mpz, ups.tolist())), mpz(0))
        part += sum(map(mpz.__mul__, halves.f, map(mpz, downs.tolist())), mpz(0))
        results.append(result * (1 + n * (part % n)) % square)
    return results


def _buckets(halves: _Halves, places: list[int], digits: list[int], square: mpz) -> mpz:
    """Return prod of r[places[k]] ** digits[k], with s for r where a digit is negative."""
    r, s = halves.r, halves.s
    buckets: list[mpz | None] = [None] * (max(max(digits), -min(digits)) + 1)
    for i, digit in zip(places, digits, strict=True):
        if digit > 0:
            bucket = buckets[digit]
            buckets[digit] = r[i] if bucket is None else bucket * r[i] % square
        else:
            bucket = buckets[-digit]
            buckets[-digit] = s[i] if bucket is None else bucket * s[i] % square
    running = total = mpz(1)
    for bucket in reversed(buckets[1:]):
        if bucket is not None:
            running = running * bucket % square
        total = total * running % square
    return total


def _fixed_digits(exponents: Integers, window: int, levels: int) -> NDArray[np.int64]:
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


METHODS: dict[str, Callable[[list[mpz], Integers, mpz, int, int], list[mpz]]] = {
    "direct": _direct,
    "straus": _straus,
    "pippenger": _pippenger,
}
