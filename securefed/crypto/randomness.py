"""Random integers from the operating system's generator.

All protecting randomness is drawn here: masks uniform mod n, units mod n, exponents, prime candidates, exact
Gaussian noise. The public uniform functions read `os.urandom`. Each wraps a function that takes the byte
source as an argument, for known-answer tests. Candidates above the bound are rejected, never reduced, so
draws are exactly uniform.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from secrets import randbelow

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import RangeError
from securefed.errors import SettingError

__all__ = [
    "ByteSource",
    "discrete_gaussian",
    "uniform_many_below",
    "uniform_units",
]

ByteSource = Callable[[int], bytes]
"""count -> that many bytes; `os.urandom` except in known-answer tests."""


def uniform_many_below(bound: int, count: int) -> list[mpz]:
    """Draw independent numbers, each uniform in [0, bound)."""
    limit = mpz(bound)
    return [_below_from(os.urandom, limit) for _ in range(count)]


def uniform_units(modulus: int, count: int) -> list[mpz]:
    """Draw independent numbers, each uniform among the residues coprime to the modulus."""
    whole = mpz(modulus)
    return [_unit_from(os.urandom, whole) for _ in range(count)]


def _bits_from(source: ByteSource, bits: int) -> mpz:
    if bits < 1:
        raise RangeError(f"bits: {bits} given, at least 1 is allowed")
    size = (bits + 7) // 8
    return mpz.from_bytes(source(size), "big") >> (8 * size - bits)


def _below_from(source: ByteSource, bound: mpz) -> mpz:
    if bound < 1:
        raise RangeError(f"bound: {bound} given, at least 1 is allowed")
    bits = int(bound - 1).bit_length()
    if bits == 0:
        return mpz(0)
    while True:  # fewer than two turns on average: the bound has its top bit set
        value = _bits_from(source, bits)
        if value < bound:
            return value


def _unit_from(source: ByteSource, modulus: mpz) -> mpz:
    if modulus < 2:
        raise RangeError(f"modulus: {modulus} given, at least 2 is allowed")
    while True:
        value = _below_from(source, modulus)
        if gmpy2.gcd(value, modulus) == 1:
            return value


def discrete_gaussian(deviation: int) -> int:
    """Draw an integer x with probability proportional to exp(-x**2 / (2 deviation**2)), exactly.

    (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020, algorithms 1 to 3.)
    Uniform integers decide everything. Floating-point noise would leave the last bits of an exact sum
    unchanged.
    """
    if not isinstance(deviation, int) or isinstance(deviation, bool) or deviation < 1:
        raise SettingError(f"deviation: {deviation!r} given, an integer of at least 1 is allowed")
    scale, square = deviation + 1, deviation * deviation
    while True:
        number = _discrete_laplace(scale)
        if _with_exp((abs(number) * scale - square) ** 2, 2 * square * scale * scale):
            return number


def _discrete_laplace(scale: int) -> int:
    """Draw x with probability proportional to exp(-|x| / scale)."""
    while True:
        low = randbelow(scale)
        if not _with_exp(low, scale):
            continue
        high = 0
        while _with_exp(1, 1):
            high += 1
        size, negative = low + scale * high, bool(randbelow(2))
        if size or not negative:  # there is one 0
            return -size if negative else size


def _with_exp(numerator: int, denominator: int) -> bool:
    """Return True with probability exp(-numerator / denominator)."""
    while numerator > denominator:
        if not _with_small_exp(1, 1):
            return False
        numerator -= denominator
    return _with_small_exp(numerator, denominator)


def _with_small_exp(numerator: int, denominator: int) -> bool:
    """Return True with probability exp(-numerator / denominator) for a ratio of at most 1.

    It is the parity of how often a chance of numerator / (denominator k) comes true.
    """
    times = 1
    while randbelow(denominator * times) < numerator:
        times += 1
    return times % 2 == 1
