"""The ring Z_q[X]/(X**8192 + 1), q a product of primes of 60 bits, in 64-bit words.

Every prime is 2**60 - delta with delta below 2**18. So 2**60 can be replaced by delta: products and long
integers are cut into pieces of 30 and 60 bits and folded. Arrays have the primes on their last axis but one,
(..., primes, coefficients), as SEAL stores them. Transforms are SEAL's (seal_bridge).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import BadCiphertext
from securefed.crypto.lattice.sampling import Integers, gaussian_integers
from securefed.crypto.randomness import ByteSource

__all__ = [
    "DATA_PRIMES",
    "DEGREE",
    "PRIMES",
    "Integers",
    "Words",
    "add",
    "centred",
    "check_residues",
    "expand",
    "from_floats",
    "from_pieces",
    "gaussian",
    "multiply",
    "subtract",
    "uniform",
]

Words = NDArray[np.uint64]

DEGREE = 8192
PRIMES = (0xFFFFFFFFFFD8001, 0xFFFFFFFFFFE8001, 0xFFFFFFFFFFFC001)
DATA_PRIMES = PRIMES[:2]
"""Those of q; the last prime serves key switching alone."""

_LOW30 = np.int64((1 << 30) - 1)
_LOW60 = np.int64((1 << 60) - 1)
_WORD = np.uint64((1 << 60) - 1)
_MODULI = np.array(PRIMES, dtype=np.int64)[:, None]
_DELTAS = (np.int64(1) << np.int64(60)) - _MODULI
# Bits that a float is rounded to before it is shifted: more than its own 53, and below every prime.
_MANTISSA = 59


def _moduli(like: NDArray[np.generic]) -> tuple[Integers, Integers]:
    count = like.shape[-2]
    return _MODULI[:count], _DELTAS[:count]


def _fold(high: Integers, low: Integers, moduli: Integers, deltas: Integers) -> Words:
    """high * 2^60 + low modulo each prime, for |high| < 2^62 and 0 <= low < 2^61 + 2^60."""
    upper = (high >> 30) * deltas  # below 2^50
    total = (upper >> 30) * deltas + ((upper & _LOW30) << 30) + (high & _LOW30) * deltas + low
    total += (total >> 63) & moduli
    total = (total & _LOW60) + (total >> 60) * deltas
    total -= np.where(total >= moduli, moduli, 0)
    return np.asarray(total.view(np.uint64))


def from_pieces(integers: Integers, shift: int, low: Integers | int = 0, primes: int = 2) -> Words:
    """Residues of integers * 2^shift + low, (..., n) to (..., primes, n).

    shift <= 60, -2^59 < low < 2^60; |integers * 2^shift| < 2^121; without a shift |integers| < 2^59.
    """
    moduli, deltas = _MODULI[:primes], _DELTAS[:primes]
    if shift == 0:  # below every prime
        whole = (integers + low)[..., None, :]
        return np.asarray((whole + ((whole >> 63) & moduli)).view(np.uint64))
    expanded = integers[..., None, :]
    lower = low if isinstance(low, int) else low[..., None, :]
    bottom = ((expanded & ((1 << (60 - shift)) - 1)) << shift) + lower
    return _fold(expanded >> (60 - shift), bottom, moduli, deltas)


def from_floats(values: NDArray[np.float64], bits: int, errors: Integers | int = 0) -> Words:
    """Residues of round(values * 2^bits) + errors, to the precision of float64; |values| * 2^bits < 2^118."""
    largest = int(np.frexp(np.max(np.abs(values), initial=0.0))[1])
    kept = min(bits, _MANTISSA - largest)
    return from_pieces(np.rint(np.ldexp(values, kept)).astype(np.int64), bits - kept, errors)


def add(a: Words, b: Words) -> Words:
    moduli = _moduli(a)[0].view(np.uint64)
    total = a + b
    total -= np.where(total >= moduli, moduli, np.uint64(0))
    return total


def subtract(a: Words, b: Words) -> Words:
    moduli = _moduli(a)[0].view(np.uint64)
    return a - b + np.where(a < b, moduli, np.uint64(0))


def multiply(a: Words, b: Words) -> Words:
    """Products modulo each prime, by schoolbook on 30-bit halves."""
    moduli, deltas = _moduli(a)
    x, y = a.view(np.int64), b.view(np.int64)
    x1, x0, y1, y0 = x >> 30, x & _LOW30, y >> 30, y & _LOW30
    middle = x1 * y0 + x0 * y1
    return _fold(x1 * y1 + (middle >> 30), ((middle & _LOW30) << 30) + x0 * y0, moduli, deltas)


def check_residues(residues: Words, what: str) -> Words:
    """Return residues, (..., primes, n), whose words are all below their primes; else raise BadCiphertext."""
    wrong = int((residues >= _moduli(residues)[0].view(np.uint64)).sum())
    if wrong:
        raise BadCiphertext(f"{what}: {wrong} residues are not below their prime")
    return residues


def uniform(source: ByteSource, count: int, primes: int = 2) -> Words:
    """Draw (primes, count) residues: 60 random bits each, drawn again when not below the prime."""

    def draw(words: int) -> Words:
        return np.frombuffer(source(8 * words), dtype="<u8").astype(np.uint64) & _WORD

    residues = draw(primes * count).reshape(primes, count)
    while (again := residues >= _MODULI[:primes].view(np.uint64)).any():
        residues[again] = draw(int(again.sum()))
    return residues


def gaussian(source: ByteSource, count: int, deviation: float, primes: int = 2) -> Words:
    """Draw (primes, count) residues of one rounded Gaussian each, the same integer modulo every prime."""
    high, shift, low = gaussian_integers(source, count, deviation)
    return from_pieces(high, shift, low, primes)


def expand(seed: bytes, polynomials: int, primes: int = 2, first: int = 0) -> Words:
    """Expand (polynomials, primes, N) residues from a public seed: SHAKE-128, 60 bits of a word, rejection.

    Each polynomial and prime has a stream of its own, a little longer than needed: a word is refused with a
    probability below 2**-42, so 8 spare words run out never (2**-300).
    """
    result = np.empty((polynomials, primes, DEGREE), dtype=np.uint64)
    for i in range(polynomials):
        for j in range(primes):
            label = (first + i).to_bytes(4, "little") + bytes([j])
            stream = hashlib.shake_128(seed + label).digest(8 * (DEGREE + 8))
            words = np.frombuffer(stream, dtype="<u8").astype(np.uint64) & _WORD
            result[i, j] = words[words < PRIMES[j]][:DEGREE]
    return result


def centred(residues: Words) -> NDArray[np.float64]:
    """(..., 2, n) residues modulo q to the nearest representative of 0, as float64: relative error 2^-52.

    With x = r0 + p0 * k and k = (r1 - r0) / p0 mod p1, the centred x has k centred; one rounding of k and one
    of the sum.
    """
    p0, p1 = DATA_PRIMES
    r0 = residues[..., 0, :].view(np.int64)
    moduli, deltas = _MODULI[1], _DELTAS[1]
    difference = residues[..., 1, :].view(np.int64) - r0
    difference += (difference >> 63) & np.int64(p1)
    inverse = np.int64(pow(p0, -1, p1))
    x1, x0, y1, y0 = difference >> 30, difference & _LOW30, inverse >> 30, inverse & _LOW30
    middle = x1 * y0 + x0 * y1
    low = ((middle & _LOW30) << 30) + x0 * y0
    k = _fold(x1 * y1 + (middle >> 30), low, moduli, deltas).view(np.int64)
    negative = k > p1 // 2
    # One p0 moves from k to r0, so that small negative numbers have k = 0 and no cancellation.
    k = np.where(negative, k - (p1 - 1), k)
    rest = np.where(negative, r0 - p0, r0)
    result: NDArray[np.float64] = k.astype(np.float64) * float(p0) + rest.astype(np.float64)
    return result
