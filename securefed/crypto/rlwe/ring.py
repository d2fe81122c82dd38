"""The rings Z_q[X] / (X^N + 1): named parameter sets, and arithmetic on residues in numpy.

A parameter set is a name, a degree and a chain of primes; the last prime serves key switching only, so data
live modulo the product q of the others. Both sides build it from this file and compare a hash; nothing of it
is ever taken from a peer.

    set             N       data bits  all   allowed   for
    hidden-8192     8192    162        216   218       hidden arrays: one product by plain numbers, and masks
    hidden-16384    16384   240        300   438       products of two hidden arrays

"allowed" is the homomorphic encryption standard's largest modulus for 128 bits of security with a uniform
ternary secret and errors of deviation 3.2.

Every prime is 2^w - delta with a small delta, so 2^w can be replaced by delta: products are cut into halves
of w / 2 bits and folded. Arrays of residues have the primes on their last axis but one, (..., primes, N), as
SEAL stores them. Integers too wide for a machine word are `Limbs`, or numpy arrays of
Python's integers.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import BadCiphertext
from securefed.crypto.limbs import LIMB_BITS, Limbs
from securefed.crypto.wire import fingerprint

__all__ = ["HIDDEN", "PRODUCTS", "SEED_BYTES", "Ring", "Wide", "Words"]

Words = NDArray[np.uint64]
Wide = NDArray[Any]
"""Python integers of any size, in a numpy array of objects."""
SEED_BYTES = 32


@dataclass(frozen=True)
class Ring:
    """One parameter set, and what residues can do."""

    name: str
    degree: int
    word_bits: int
    """w: every prime is 2^w less something below 2^22."""
    primes: tuple[int, ...]
    """The last one serves key switching only."""

    @cached_property
    def data_primes(self) -> tuple[int, ...]:
        return self.primes[:-1]

    @cached_property
    def modulus(self) -> int:
        product = 1
        for prime in self.data_primes:
            product *= prime
        return product

    @cached_property
    def capacity_bits(self) -> int:
        """Integers below 2^this in magnitude do not wrap."""
        return self.modulus.bit_length() - 2

    @cached_property
    def parameters(self) -> bytes:
        """Hash of the set, as frames carry it."""
        return fingerprint(self.name.encode(), *(prime.to_bytes(8, "little") for prime in self.primes))

    def galois_element(self, stride: int) -> int:
        """The exponent of the automorphism that keeps X^(stride k) and negates X^(stride/2 + stride k)."""
        return 1 + 2 * self.degree // stride

    # Arithmetic

    @cached_property
    def _moduli(self) -> NDArray[np.int64]:
        return np.array(self.primes, dtype=np.int64)[:, None]

    def moduli(self, like: NDArray[np.generic]) -> NDArray[np.int64]:
        return self._moduli[: like.shape[-2]]

    def add(self, a: Words, b: Words) -> Words:
        moduli = self.moduli(a).view(np.uint64)
        total = a + b
        total -= np.where(total >= moduli, moduli, np.uint64(0))
        return total

    def subtract(self, a: Words, b: Words) -> Words:
        moduli = self.moduli(a).view(np.uint64)
        return a - b + np.where(a < b, moduli, np.uint64(0))

    def multiply(self, a: Words, b: Words) -> Words:
        """Products modulo each prime, by schoolbook on halves."""
        half = self.word_bits // 2
        mask = np.int64((1 << half) - 1)
        x, y = a.view(np.int64), b.view(np.int64)
        x1, x0, y1, y0 = x >> half, x & mask, y >> half, y & mask
        middle = x1 * y0 + x0 * y1
        high, low = x1 * y1 + (middle >> half), ((middle & mask) << half) + x0 * y0
        return self._fold(high, low, self.moduli(a))

    def _fold(self, high: NDArray[np.int64], low: NDArray[np.int64], moduli: NDArray[np.int64]) -> Words:
        """high * 2^w + low modulo each prime, for 0 <= high < 2^(w+2) and 0 <= low < 2^(w+2)."""
        width, half = self.word_bits, self.word_bits // 2
        deltas = np.int64(1 << width) - moduli
        mask = np.int64((1 << half) - 1)
        upper = (high >> half) * deltas
        total = (upper >> half) * deltas + ((upper & mask) << half) + (high & mask) * deltas + low
        total = (total & np.int64((1 << width) - 1)) + (total >> width) * deltas
        total -= np.where(total >= moduli, moduli, 0)
        return np.asarray(total.view(np.uint64))

    def scaled(self, a: Words, number: int) -> Words:
        """Residues times one integer modulo q."""
        primes = self.primes[: a.shape[-2]]
        factor = np.array([number % prime for prime in primes], dtype=np.uint64)[:, None]
        return self.multiply(a, np.broadcast_to(factor, a.shape))

    def from_small(self, integers: NDArray[np.int64], primes: int | None = None) -> Words:
        """Residues of integers below every prime in magnitude: (..., n) to (..., primes, n)."""
        moduli = self._moduli[: primes or len(self.data_primes)]
        whole = integers[..., None, :]
        return np.asarray((whole + ((whole >> 63) & moduli)).view(np.uint64))

    def from_wide(self, integers: Wide | Limbs) -> Words:
        """Residues of integers of any size: (..., n) to (..., data primes, n)."""
        if isinstance(integers, Limbs) and self.word_bits == LIMB_BITS:
            return self._from_limbs(integers)
        whole = np.asarray(integers, dtype=object)
        return np.stack([(whole % prime).astype(np.uint64) for prime in self.data_primes], axis=-2)

    def _from_limbs(self, integers: Limbs) -> Words:
        """By Horner's rule in 2^w."""
        moduli = self._moduli[: len(self.data_primes)]
        words = integers.words[..., None, :]
        total: Words = (words[-1] % moduli).view(np.uint64)
        for limb in words[-2::-1]:
            total = self._fold(total.view(np.int64), limb, moduli)
        return total

    def to_limbs(self, residues: Words) -> Limbs:
        """(..., data primes, n) residues to the representative nearest to 0, by mixed radix."""
        if self.word_bits != LIMB_BITS:
            return Limbs.of(self.to_wide(residues))
        half, mask = LIMB_BITS // 2, (1 << LIMB_BITS // 2) - 1
        *lower, last = self._digits(residues)
        total = Limbs(last.view(np.int64)[None].copy())
        for digit, prime in zip(lower[::-1], self.data_primes[-2::-1], strict=True):
            # times p = 2^54 - delta, delta below 2^22
            delta = (1 << LIMB_BITS) - prime
            high, low = (total.words >> half) * delta, (total.words & mask) * delta
            words = np.zeros((len(total.words) + 1, *total.shape), dtype=np.int64)
            words[1:] = total.words - (high >> half)
            words[:-1] -= ((high & mask) << half) + low
            words[0] += digit.view(np.int64)
            total = Limbs(words)
        modulus = Limbs.of([self.modulus]).words.reshape(-1, *(1 for _ in total.shape))
        return Limbs(total.words - modulus * (total > self.modulus // 2))

    def to_wide(self, residues: Words) -> Wide:
        """(..., data primes, n) residues to the representative nearest to 0, by mixed radix."""
        digits = self._digits(residues)
        total = digits[-1].astype(object)
        for index in range(len(digits) - 2, -1, -1):
            total = total * self.data_primes[index] + digits[index].astype(object)
        q = self.modulus
        return np.asarray(total - (total > q // 2).astype(object) * q)

    def most_bits(self, residues: Words) -> int:
        """Of the largest representative of (data primes, n) residues, in magnitude.

        Up to half of the first two primes' product, of which only the two ends become Python's integers; one
        that is larger has all bits of q.
        """
        first, second = self.data_primes[:2]
        middle = first * second // 2
        shift = np.array([middle % prime for prime in self.data_primes], dtype=np.uint64)[:, None]
        low, high, *rest = self._digits(self.add(residues, np.broadcast_to(shift, residues.shape)))
        if any(digit.any() for digit in rest):
            return self.modulus.bit_length()
        ends = [int(pick(high)) * first + int(pick(low[high == pick(high)])) for pick in (np.min, np.max)]
        return max(abs(end - middle) for end in ends).bit_length()

    def _digits(self, residues: Words) -> list[Words]:
        """Mixed radix: value = d0 + d1 p0 + d2 p0 p1 + ..., each (..., n)."""
        digits: list[Words] = []
        for index, prime in enumerate(self.data_primes):
            rest = residues[..., index : index + 1, :]
            for below, digit in enumerate(digits):
                inverse = pow(self.data_primes[below], -1, prime)
                rest = self._minus(rest, digit, prime)
                rest = self._times(rest, inverse, prime)
            digits.append(rest)
        return [digit[..., 0, :] for digit in digits]

    def _minus(self, a: Words, b: Words, prime: int) -> Words:
        """a - b modulo one prime; b may be a residue modulo another one."""
        reduced = b % np.uint64(prime)
        return a - reduced + np.where(a < reduced, np.uint64(prime), np.uint64(0))

    def _times(self, a: Words, number: int, prime: int) -> Words:
        half = self.word_bits // 2
        mask = np.int64((1 << half) - 1)
        x, y1, y0 = a.view(np.int64), number >> half, number & int(mask)
        x1, x0 = x >> half, x & mask
        middle = x1 * y0 + x0 * y1
        high, low = x1 * y1 + (middle >> half), ((middle & mask) << half) + x0 * y0
        return self._fold(high, low, np.array([[prime]], dtype=np.int64))

    # Randomness

    def uniform(self, count: int) -> Words:
        """(data primes, count) residues, uniform modulo q, from the operating system."""
        primes = len(self.data_primes)
        mask = np.uint64((1 << self.word_bits) - 1)
        residues = (_words(primes * count) & mask).reshape(primes, count)
        moduli = self._moduli[:primes].view(np.uint64)
        while (again := residues >= moduli).any():
            residues[again] = _words(int(again.sum())) & mask
        return residues

    def expand(self, seed: bytes, polynomials: int, primes: int | None = None, first: int = 0) -> Words:
        """(polynomials, primes, N) residues from a public seed: SHAKE-128, w bits of each word, rejection.

        For each polynomial and prime a stream of its own, a little longer than needed: a word is refused with
        a probability below 2^-32, so 16 spare words run out never (2^-300).
        """
        chosen = self.primes[: primes or len(self.data_primes)]
        result = np.empty((polynomials, len(chosen), self.degree), dtype=np.uint64)
        mask = np.uint64((1 << self.word_bits) - 1)
        for i in range(polynomials):
            for j, prime in enumerate(chosen):
                label = seed + (first + i).to_bytes(4, "little") + bytes([j])
                stream = hashlib.shake_128(label).digest(8 * (self.degree + 16))
                words = np.frombuffer(stream, dtype="<u8").astype(np.uint64) & mask
                result[i, j] = words[words < prime][: self.degree]
        return result

    # On the wire

    def to_bytes(self, residues: Words) -> bytes:
        """Words of w bits, without the zeros above: 6 whole bytes of each, then what is left of all."""
        words = np.ascontiguousarray(residues, dtype="<u8").reshape(-1)
        low = words.view(np.uint8).reshape(-1, 8)[:, :6].tobytes()
        return low + _pack_tops((words >> np.uint64(48)).astype(np.uint32), self.word_bits - 48)

    def byte_count(self, words: int) -> int:
        """Bytes of that many residues on the wire."""
        return 6 * words + 3 * -(-words // (24 // (self.word_bits - 48)))

    def from_bytes(self, blob: bytes | memoryview, shape: tuple[int, ...], what: str) -> Words:
        """Residues that arrived, each checked to be below its prime."""
        count = int(np.prod(shape))
        if len(blob) != self.byte_count(count):
            raise BadCiphertext(f"{what}: {len(blob)} bytes given, {self.byte_count(count)} expected")
        whole = np.zeros((count, 8), dtype=np.uint8)
        whole[:, :6] = np.frombuffer(blob, dtype=np.uint8, count=6 * count).reshape(count, 6)
        words = whole.reshape(-1).view("<u8").astype(np.uint64)
        tops = _unpack_tops(bytes(blob[6 * count :]), count, self.word_bits - 48)
        residues = (words | (tops.astype(np.uint64) << np.uint64(48))).reshape(shape)
        moduli = self.moduli(residues).view(np.uint64)
        if (residues >= moduli).any():
            wrong = int((residues >= moduli).sum())
            raise BadCiphertext(f"{what}: {wrong} residues are not below their prime")
        return residues


def _words(count: int) -> Words:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _pack_tops(tops: NDArray[np.uint32], bits: int) -> bytes:
    """The highest bits of every word, as many as go into three bytes at a time."""
    each = 24 // bits
    padded = np.zeros(-(-len(tops) // each) * each, dtype=np.uint32)
    padded[: len(tops)] = tops
    joined = np.zeros(len(padded) // each, dtype="<u4")
    for place in range(each):
        joined |= padded[place::each] << np.uint32(bits * place)
    return joined.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def _unpack_tops(blob: bytes, count: int, bits: int) -> NDArray[np.uint32]:
    each = 24 // bits
    joined = np.zeros((-(-count // each), 4), dtype=np.uint8)
    joined[:, :3] = np.frombuffer(blob, dtype=np.uint8).reshape(-1, 3)
    whole = joined.reshape(-1).view("<u4")
    tops = np.empty((len(whole), each), dtype=np.uint32)
    for place in range(each):
        tops[:, place] = (whole >> np.uint32(bits * place)) & np.uint32((1 << bits) - 1)
    return tops.reshape(-1)[:count]


HIDDEN = Ring(
    "hidden-8192", 8192, 54, (0x3FFFFFFFEF8001, 0x3FFFFFFFEB8001, 0x3FFFFFFFE7C001, 0x3FFFFFFFE64001)
)
PRODUCTS = Ring(
    "hidden-16384",
    16384,
    60,
    (
        0xFFFFFFFFFFE8001,
        0xFFFFFFFFFFD8001,
        0xFFFFFFFFFFC0001,
        0xFFFFFFFFFF28001,
        0xFFFFFFFFFE38001,
    ),
)
