"""Randomness that protects: uniform residues, rounded Gaussians, secret keys, seeded expansion.

All of it from the operating system (`os.urandom`), except `expand`, which turns a published seed into the
public half of a ciphertext or key.
"""

from __future__ import annotations

import hashlib
import os
from math import floor, log2

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.ckks.parameters import ERROR_DEVIATION, PRIMES, RING
from securefed.crypto.ckks.residues import Integers, Words, from_pieces

__all__ = ["SEED_BYTES", "errors", "expand", "gaussian", "gaussian_integers", "normal", "ternary", "uniform"]

SEED_BYTES = 32
_LOW60 = np.uint64((1 << 60) - 1)
# Significant bits that a Gaussian takes from floating point; below them it is filled up with uniform bits.
_FLOAT_BITS = 48


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

    A float64 has no more than 53 significant bits, and a flood whose low bits are all zero would leave what
    lies there bare. So a deviation above 2^49 is cut: high is a rounded Gaussian of deviation * 2^-shift (48
    to 49 bits), low is uniform over 2^shift. The density is that of the Gaussian averaged over cells of
    width 2^shift; its logarithm is off by at most |z| * 2^-48 at z deviations, which costs at most 2^-90 of
    divergence a sample, that is nothing over 2^20 replies of 2^13 samples.
    """
    shift = max(0, floor(log2(deviation)) - _FLOAT_BITS)
    high = np.rint(normal(count) * (deviation / 2.0**shift)).astype(np.int64)
    if shift == 0:
        return high, 0, np.zeros(count, dtype=np.int64)
    return high, shift, (_words(count) & np.uint64((1 << shift) - 1)).view(np.int64)


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
