"""Randomness that protects: uniform residues, rounded Gaussians, secret keys, seeded expansion.

All of it from the operating system (`os.urandom`), except `expand`, which turns a published seed into the
public half of a ciphertext or key.
"""

from __future__ import annotations

import hashlib
import os
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.ckks.parameters import ERROR_DEVIATION, PRIMES, RING
from securefed.crypto.ckks.residues import Integers, Words, from_pieces
from securefed.crypto.errors import RangeError

__all__ = [
    "MOST_DEVIATION_BITS",
    "SEED_BYTES",
    "errors",
    "expand",
    "gaussian",
    "gaussian_integers",
    "normal",
    "ternary",
    "uniform",
]

SEED_BYTES = 32
_LOW60 = np.uint64((1 << 60) - 1)
# The parts of a wide Gaussian: see `gaussian_integers`. Each shift is the deviation below it less three bits.
_LOWEST, _MIDDLE, _MIDDLE_SHIFT, _TOP_SHIFT = 2.0**10, 2.0**40, 7, 44
MOST_DEVIATION_BITS = 95
"""Above, the steps of the highest part would be wider than what blurs them."""


def _words(count: int) -> Words:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def uniform(count: int, primes: int = 2) -> Words:
    """(primes, count) residues, uniform modulo each prime: 60 random bits, drawn again when not below it."""
    residues = (_words(primes * count) & _LOW60).reshape(primes, count)
    moduli = np.array(PRIMES[:primes], dtype=np.uint64)[:, None]
    while (again := residues >= moduli).any():
        residues[again] = _words(int(again.sum())) & _LOW60
    return residues


def expand(seed: bytes, polynomials: int, primes: int = 2, first: int = 0) -> Words:
    """(polynomials, primes, N) residues from a public seed: SHAKE-128, 60 bits of each word, rejection.

    For each polynomial and prime a stream of its own, a little longer than needed: a word is refused with a
    probability below 2^-42, so 8 spare words run out never (2^-300).
    """
    result = np.empty((polynomials, primes, RING), dtype=np.uint64)
    for i in range(polynomials):
        for j in range(primes):
            stream = hashlib.shake_128(seed + (first + i).to_bytes(4, "little") + bytes([j])).digest(
                8 * (RING + 8)
            )
            words = np.frombuffer(stream, dtype="<u8").astype(np.uint64) & _LOW60
            result[i, j] = words[words < PRIMES[j]][:RING]
    return result


def normal(count: int) -> NDArray[np.float64]:
    """Standard normal numbers by Box and Muller from 64-bit uniforms; the tail ends at 9.4."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log((_words(half).astype(np.float64) + 1.0) * 2.0**-64))
    angle = _words(half).astype(np.float64) * (2.0 * np.pi * 2.0**-64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def gaussian_integers(count: int, deviation: float) -> tuple[Integers, int, Integers]:
    """(high, shift, low) with high * 2^shift + low a rounded Gaussian of the given standard deviation.

    A float64 has 53 significant bits. One multiplied by 2^76 ends in zeros, and would leave what lies there
    bare; filled up with uniform bits it still shows steps where it was rounded (ties go to even numbers, so
    that every second step is a few percent lower), and noise could be told by how it moves them. So a wide
    Gaussian is the sum of up to three independent ones, each a rounded float times a power of two:

        2^44 * N(0, ..) + 2^7 * N(0, 2^40) + N(0, 2^10)      (the second from 2^10 on, the first from 2^50)

    The deviation of what lies below is eight steps of what lies above, which blurs the steps and whatever is
    uneven about them: a pattern of period two steps is damped by exp(-pi^2 8^2 / 2) < 2^-450, and the steps
    themselves by more. The lowest one has steps of 1, each made of 2^39 floats or more, so its probabilities
    are off by 2^-39 of themselves at most, and a sample's divergence by the square of that: 2^-78, over 2^20
    replies of 2^13 samples 2^-45.
    """
    if not 0 < deviation <= 2.0**MOST_DEVIATION_BITS:
        raise RangeError(f"deviation: {deviation:.3g} given, up to 2^{MOST_DEVIATION_BITS} is allowed")
    if deviation <= _LOWEST:
        return _rounded(count, deviation), 0, np.zeros(count, dtype=np.int64)
    low = _rounded(count, _LOWEST)
    if deviation <= 8 * 2.0**_MIDDLE_SHIFT * _MIDDLE:
        return _rounded(count, sqrt(deviation**2 - _LOWEST**2) / 2.0**_MIDDLE_SHIFT), _MIDDLE_SHIFT, low
    low += _rounded(count, _MIDDLE) << _MIDDLE_SHIFT
    below = _LOWEST**2 + (2.0**_MIDDLE_SHIFT * _MIDDLE) ** 2
    return _rounded(count, sqrt(deviation**2 - below) / 2.0**_TOP_SHIFT), _TOP_SHIFT, low


def _rounded(count: int, deviation: float) -> Integers:
    return np.rint(normal(count) * deviation).astype(np.int64)


def errors(count: int) -> Integers:
    """The small errors of encryptions and keys: rounded Gaussians of deviation 3.2."""
    return gaussian_integers(count, ERROR_DEVIATION)[0]


def gaussian(count: int, deviation: float, primes: int = 2) -> Words:
    """(primes, count) residues of one rounded Gaussian each, the same integer modulo every prime."""
    high, shift, low = gaussian_integers(count, deviation)
    return from_pieces(high, shift, low, primes)


def ternary(count: int) -> Integers:
    """Uniform over -1, 0, 1: bytes below 255, modulo 3."""
    kept = np.empty(0, dtype=np.uint8)
    while len(kept) < count:
        drawn = np.frombuffer(os.urandom(count + count // 64 + 16), dtype=np.uint8)
        kept = np.concatenate([kept, drawn[drawn < 255]])
    return (kept[:count] % 3).astype(np.int64) - 1
