"""Random numbers from the operating system's generator. All protecting randomness is drawn here.

*Integers* of Paillier and of exact Gaussian noise come from `os.urandom` itself. Candidates above the bound
are rejected, never reduced, so draws are exactly uniform.

*Arrays* of the lattice schemes come from the key stream of AES-256 in counter mode under a fresh seed of 32
bytes. The same key stream expands public seeds, as FrodoKEM-AES does. docs/security.md has the distributions.

Functions take the byte source as an argument, or wrap one that does, for known-answer tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod, sqrt

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.errors import RangeError

ByteSource = Callable[[int], bytes]
"""count -> that many bytes; `os.urandom` except in known-answer tests."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SEED_BYTES = 32
ERROR_BITS = 42
ERROR_DEVIATION = (ERROR_BITS / 4) ** 0.5
NORMAL_DEVIATION = 500_000
PIECE = 1 << 13
"""Numbers that are worked on at a time: they stay in the processor's cache."""
ANGLE_BITS = 12
"""The highest bits of an angle, which a table has."""
NORMAL_PIECE = 1 << 12
"""Pairs of normals that are drawn at a time: they stay in the processor's cache."""
# The parts of a wide Gaussian: see `gaussian_integers`. Each shift is the deviation below it less three bits.
_LOWEST, _MIDDLE, _MIDDLE_SHIFT, _TOP_SHIFT = 2.0**10, 2.0**40, 7, 44
MOST_DEVIATION_BITS = 95
"""Above, the steps of the highest part would be wider than what blurs them."""
NOTHING = memoryview(bytes(1 << 18))
"""What key streams encrypt. Fresh memory for it would take longer than the cipher."""


def uniform_many_below(bound: int, count: int) -> list[mpz]:
    """Draw independent numbers, each uniform in [0, bound)."""
    limit = mpz(bound)
    return [below_from(os.urandom, limit) for _ in range(count)]


def bits_from(source: ByteSource, bits: int) -> mpz:
    size = (bits + 7) // 8
    return mpz.from_bytes(source(size), "big") >> (8 * size - bits)


def below_from(source: ByteSource, bound: mpz) -> mpz:
    if bound < 1:
        raise RangeError(f"bound: {bound} given, at least 1 is allowed")
    bits = int(bound - 1).bit_length()
    if bits == 0:
        return mpz(0)
    while (value := bits_from(source, bits)) >= bound:  # fewer than two turns on average
        pass
    return value


def unit_from(source: ByteSource, modulus: mpz) -> mpz:
    while gmpy2.gcd(value := below_from(source, modulus), modulus) != 1:
        pass
    return value


def key_stream(seed: bytes, label: bytes = b"") -> ByteSource:
    """Return the key stream of AES-256-CTR under a seed of 32 bytes, as a source of bytes.

    Up to 8 bytes of `label` tell streams of one seed apart. They are the upper half of the counter.
    """
    start = label.ljust(8, b"\0") + bytes(8)
    stream = Cipher(algorithms.AES(seed), modes.CTR(start)).encryptor()
    return lambda count: stream.update(NOTHING[:count] if count <= len(NOTHING) else bytes(count))


def secret_bytes() -> ByteSource:
    """Return a source of secret bytes under a fresh seed from the operating system."""
    return key_stream(os.urandom(SEED_BYTES))


def errors(source: ByteSource, *shape: int) -> NDArray[np.int8]:
    """Draw centred binomials: the number of ones among 42 bits, less 21."""
    drawn = np.empty(prod(shape), dtype=np.int8)
    for start in range(0, len(drawn), PIECE):
        piece = drawn[start : start + PIECE]
        words = np.frombuffer(source(8 * len(piece)), dtype="<u8") & np.uint64((1 << ERROR_BITS) - 1)
        np.bitwise_count(words, out=piece.view(np.uint8))
        piece -= ERROR_BITS // 2
    return drawn.reshape(shape)


def ternary(source: ByteSource, count: int) -> NDArray[np.int8]:
    """Draw from -1, 0 and 1 uniformly. Two bits of each byte count; three of their four values are taken."""
    drawn: list[NDArray[np.int8]] = []
    while sum(map(len, drawn)) < count:
        digits = np.frombuffer(source(count + count // 2), dtype=np.int8) & np.int8(3)
        drawn.append(digits[digits < 3])
    return np.concatenate(drawn)[:count] - np.int8(1)


_ANGLES = 2 * np.pi * np.arange(1 << ANGLE_BITS) / float(1 << ANGLE_BITS)
_COSINES, _SINES = np.cos(_ANGLES), np.sin(_ANGLES)


def normal_pairs(source: ByteSource, pairs: int, deviation: float) -> tuple[Floats, Floats]:
    """Draw normals in pairs (Box and Muller): r cos a of each, and r sin a.

    - r is sqrt(-2 log u) deviations, for u = (k + 1/2) 2**-63 as a float64, k uniform on 63 bits.
    - a is uniform on 2**64 angles: one of 4,096 from a table, and a rest below 0.0008 by its series.

    The tail ends at 9.4 deviations. docs/proofs.md says how accurate pairs have to be, and why these are.
    """
    words = np.frombuffer(source(16 * pairs), dtype="<u8").reshape(2, pairs)
    uniform = ((words[0] >> np.uint64(1)).view(np.int64) + 0.5) * 2.0**-63
    radii = np.sqrt(np.log(uniform) * (-2.0 * deviation**2))
    # The lower bits with a sign, so that the rest is small.
    rests = (words[1] << np.uint64(ANGLE_BITS)).view(np.int64) * (2 * np.pi * 2.0 ** -(64 + ANGLE_BITS))
    places = (words[1] >> np.uint64(64 - ANGLE_BITS)).view(np.int64)
    along, across = radii * _COSINES[places], radii * _SINES[places]
    squares = rests * rests
    turn, side = 1 - squares / 2, rests * (1 - squares / 6)
    return along * turn - across * side, across * turn + along * side


def normals(source: ByteSource, count: int, out: Floats | None = None) -> Floats:
    """Draw normals of deviation 500,000, rounded: the first of each pair, then the second."""
    halves = (np.empty(count) if out is None else out.reshape(-1, copy=False)).reshape(2, count // 2)
    for start in range(0, count // 2, NORMAL_PIECE):
        piece = halves[:, start : start + NORMAL_PIECE]
        for half, drawn in zip(piece, normal_pairs(source, piece.shape[1], NORMAL_DEVIATION), strict=True):
            np.rint(drawn, out=half)
    return halves.reshape(-1)


def gaussian_integers(source: ByteSource, count: int, deviation: float) -> tuple[Integers, int, Integers]:
    """Draw rounded Gaussians of any deviation up to 2**95, as sums of rounded floats (docs/proofs.md).

    Returns (high, shift, low): the samples are high * 2**shift + low.
    """
    if not 0 < deviation <= 2.0**MOST_DEVIATION_BITS:
        raise RangeError(f"deviation: {deviation:.3g} given, up to 2^{MOST_DEVIATION_BITS} is allowed")

    def rounded(part: float) -> Integers:
        pairs = normal_pairs(source, (count + 1) // 2, part)
        return np.rint(np.concatenate(pairs)[:count]).astype(np.int64)

    if deviation <= _LOWEST:
        return rounded(deviation), 0, np.zeros(count, dtype=np.int64)
    low = rounded(_LOWEST)
    if deviation <= 8 * 2.0**_MIDDLE_SHIFT * _MIDDLE:
        return rounded(sqrt(deviation**2 - _LOWEST**2) / 2.0**_MIDDLE_SHIFT), _MIDDLE_SHIFT, low
    low += rounded(_MIDDLE) << _MIDDLE_SHIFT
    below = _LOWEST**2 + (2.0**_MIDDLE_SHIFT * _MIDDLE) ** 2
    return rounded(sqrt(deviation**2 - below) / 2.0**_TOP_SHIFT), _TOP_SHIFT, low
