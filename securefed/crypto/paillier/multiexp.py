"""Many products of powers at once: out[a] = prod over i of base[i] ** t[a, i] mod n**2.

Two methods, and a count of multiplications that picks one of them and its window for each shape:

- *Straus* with sliding signed windows (wNAF): a table of odd powers of each base, shared by all outputs;
  then for each output one squaring a bit and one multiplication per non-zero digit, about bits / (w + 1) of
  them a term. For few rows or many outputs.
- *Pippenger*: for each output and each window, bases are multiplied into the bucket of their digit, and the
  buckets are added up by running products. No tables, about bits / w multiplications a term and 2**w for
  the buckets. For many rows.
 Negative digits: Straus keeps two accumulators an output, and one inversion of all the negative ones ends
it; Pippenger inverts the bases, all with one inversion. Multipliers that are zero cost nothing. The result
does not depend on the method, the window or who did which part, since residues mod n**2 have one
representation.
 Bases are units mod n**2, validated when they arrived. (GMP aborts the process on some calls with a base
that has no inverse.)
"""

from __future__ import annotations

from dataclasses import dataclass

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto.paillier.residues import invert_all

__all__ = ["Column", "Plan", "choose_plan", "column_powers", "powers"]

Integers = NDArray[np.int64]

SQUARING = 0.85
"""Cost of a squaring, in multiplications (measured: reduction is most of either)."""
MOST_TABLE_BYTES = 1 << 28
STRAUS_WINDOWS = range(2, 9)
PIPPENGER_WINDOWS = range(2, 13)


@dataclass(frozen=True)
class Plan:
    """How to do one column."""

    method: str
    window: int
    cost: float
    """In multiplications mod n**2."""


@dataclass(frozen=True)
class Column:
    """One piece of work: a column's bases and the exponents of some outputs, picklable."""

    modulus: mpz
    bases: list[mpz]
    exponents: Integers
    """(outputs, rows)"""


def column_powers(column: Column) -> list[mpz]:
    """The piece of work itself; a top-level function, for other processes."""
    return powers(column.bases, column.exponents, column.modulus)


def powers(bases: list[mpz], exponents: Integers, modulus: mpz) -> list[mpz]:
    """prod over i of bases[i] ** exponents[a, i], for every a."""
    used = np.flatnonzero(exponents.any(axis=0))
    if used.size == 0:
        return [mpz(1)] * exponents.shape[0]
    bases, exponents = [bases[i] for i in used.tolist()], exponents[:, used]
    # A common power of two is cheaper at the end: 2**23 for every entry is what a sum over rows looks like.
    twos = _common_twos(exponents)
    exponents = exponents >> twos
    bits = int(np.max(np.abs(exponents))).bit_length()
    terms = int(np.count_nonzero(exponents))
    plan = choose_plan(exponents.shape[0], len(bases), terms, bits, modulus.bit_length() // 8)
    method = _straus if plan.method == "straus" else _pippenger
    results = method(bases, exponents, modulus, plan.window, bits)
    return [gmpy2.powmod(result, mpz(1) << twos, modulus) for result in results] if twos else results


def _common_twos(exponents: Integers) -> int:
    merged = int(np.bitwise_or.reduce(np.abs(exponents), axis=None))
    return (merged & -merged).bit_length() - 1


def choose_plan(outputs: int, rows: int, terms: int, bits: int, width: int) -> Plan:
    """The cheapest plan for that many non-zero terms with exponents of that many bits and residues of `width` bytes."""
    plans = []
    for window in STRAUS_WINDOWS:
        entries = 1 << (window - 2)
        if rows * entries * (width + 40) > MOST_TABLE_BYTES and window > 2:
            break
        tables = rows * (entries - 1 + (SQUARING if entries > 1 else 0.0))
        digits = terms * (bits / (window + 1) if bits > 1 else 1.0)
        plans.append(Plan("straus", window, tables + digits + outputs * (2 * SQUARING * bits + 3)))
    for window in PIPPENGER_WINDOWS:
        windows = max(1, -(-bits // window))
        top = bits - window * (windows - 1)
        per_row = terms / outputs
        # Half of the digits are skipped at the most; a bucket's first entry is free, and so is an empty bucket's first step.
        buckets = sum(
            min(per_row, half) * -1.0 + 2 * half for half in [1 << (window - 1)] * (windows - 1) + [1 << top]
        )
        digits = terms * (windows - 1) * (1 - 2.0**-window) + terms
        inverses = 3 * rows
        plans.append(
            Plan("pippenger", window, inverses + digits + outputs * (max(0.0, buckets) + SQUARING * bits))
        )
    return min(plans, key=lambda plan: plan.cost)


def _straus(bases: list[mpz], exponents: Integers, modulus: mpz, window: int, bits: int) -> list[mpz]:
    tables = _odd_powers(bases, modulus, 1 << (window - 2))
    digits = _sliding_digits(exponents, window, bits)
    above, below = [], []
    for output in range(exponents.shape[0]):
        positive = negative = mpz(1)
        for position in range(bits, -1, -1):
            if positive != 1:
                positive = positive * positive % modulus
            if negative != 1:
                negative = negative * negative % modulus
            line = digits[position, output]
            places = np.flatnonzero(line)
            for i, digit in zip(places.tolist(), line[places].tolist(), strict=True):
                if digit > 0:
                    positive = positive * tables[i][digit >> 1] % modulus
                else:
                    negative = negative * tables[i][-digit >> 1] % modulus
        above.append(positive)
        below.append(negative)
    inverses = invert_all(below, modulus)
    return [a * b % modulus for a, b in zip(above, inverses, strict=True)]


def _odd_powers(bases: list[mpz], modulus: mpz, entries: int) -> list[list[mpz]]:
    """base, base**3, base**5, ... for each base."""
    if entries == 1:
        return [[base] for base in bases]
    tables = []
    for base in bases:
        square = base * base % modulus
        table = [base]
        for _ in range(entries - 1):
            table.append(table[-1] * square % modulus)
        tables.append(table)
    return tables


def _sliding_digits(exponents: Integers, window: int, bits: int) -> NDArray[np.int16]:
    """digits[j] with exponents = sum of digits[j] * 2**j, every digit 0 or odd and below 2**(window - 1) in magnitude."""
    left = np.abs(exponents)
    sign = np.sign(exponents).astype(np.int16)
    digits = np.zeros((bits + 1, *exponents.shape), dtype=np.int16)
    for position in range(bits + 1):
        low = left & ((1 << window) - 1)
        digit = np.where(low & 1, np.where(low >= 1 << (window - 1), low - (1 << window), low), 0)
        left = (left - digit) >> 1
        digits[position] = digit * sign
    return digits


def _pippenger(bases: list[mpz], exponents: Integers, modulus: mpz, window: int, bits: int) -> list[mpz]:
    digits = _fixed_digits(exponents, window, bits)
    inverses = invert_all(bases, modulus) if int(digits.min()) < 0 else bases
    results = []
    for output in range(exponents.shape[0]):
        result = mpz(1)
        for level in range(digits.shape[0] - 1, -1, -1):
            if result != 1:
                result = gmpy2.powmod(result, 1 << window, modulus)
            line = digits[level, output]
            places = np.flatnonzero(line)
            if places.size:
                result = (
                    result
                    * _buckets(bases, inverses, places.tolist(), line[places].tolist(), modulus)
                    % modulus
                )
        results.append(result)
    return results


def _buckets(
    bases: list[mpz], inverses: list[mpz], places: list[int], digits: list[int], modulus: mpz
) -> mpz:
    """prod of bases[places[k]] ** digits[k]."""
    buckets: list[mpz | None] = [None] * (max(max(digits), -min(digits)) + 1)
    for i, digit in zip(places, digits, strict=True):
        base = bases[i]
        if digit < 0:
            base, digit = inverses[i], -digit
        held = buckets[digit]
        buckets[digit] = base if held is None else held * base % modulus
    running = total = mpz(1)
    for held in reversed(buckets[1:]):
        if held is not None:
            running = running * held % modulus
        total = total * running % modulus
    return total


def _fixed_digits(exponents: Integers, window: int, bits: int) -> NDArray[np.int32]:
    """digits[l] with exponents = sum of digits[l] * 2**(window * l); all but the top one between -2**(window-1) and 2**(window-1)."""
    levels = max(1, -(-bits // window))
    left = np.abs(exponents)
    sign = np.sign(exponents).astype(np.int32)
    digits = np.zeros((levels, *exponents.shape), dtype=np.int32)
    for level in range(levels - 1):
        low = left & ((1 << window) - 1)
        digit = np.where(low >= 1 << (window - 1), low - (1 << window), low)
        left = (left - digit) >> window
        digits[level] = digit * sign
    digits[levels - 1] = left * sign
    return digits
