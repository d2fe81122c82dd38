"""The ring Z_q[X]/(X**4096 + 1), q a product of primes of 21 bits, in float64.

Residues are centred, below 2**20 in magnitude. A product of two stays below 2**40, so that BLAS adds up 8,192
of them exactly. Arrays of residues have the primes first: (k, ...).

Arithmetic follows docs/proofs.md (arithmetic of the lattice ring): values at the roots of Y**t = -1 for
Y = X**D (`YDomain`), maps between q and 2**105 (`lifted`, `switched`), and products by complex transforms of
half the length (`spectrum`, `multiply`). The page bounds their errors too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from itertools import accumulate, repeat
from math import prod

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.randomness import PIECE, ByteSource, key_stream
from securefed.crypto.shares import LIMB_BITS, LIMB_MASK, LIMBS, WIDTH, Floats, Share, size_in_bytes
from securefed.crypto.wire import check_length
from securefed.errors import FormatError

DEGREE = 4096
HALF = DEGREE // 2
BATCH = 16
"""Polynomials at a time: their spectra stay in the processor's cache."""

Spectra = NDArray[np.complex128]
PackedResidues = NDArray[np.int64]
"""Residues on the wire: three of 21 bits in each word."""
PRIMES = (2056193, 1990657, 1908737, 1892353, 1843201)
"""The largest primes below 2**21 that are 1 modulo 8192."""
EXACT_TERMS = 8192
"""Products of centred residues that float64 adds up exactly."""
WHOLE_ROOTS = 64
"""Up to so many roots the Y-domain is one matrix product."""
WHOLE = 2.0**52
WHOLE_BITS = int(np.float64(WHOLE).view(np.int64))
"""A whole number below 2**52 in the lowest bits of these is the float WHOLE plus the number."""
SPARE_LIMBS = 2
"""Limbs below the unit in the constants of `switched`: its error before rounding is below 2**-20."""


_TWIST: Spectra = np.exp(1j * np.pi * np.arange(HALF) / DEGREE)
_UNTWIST = _TWIST.conj()


def spectrum(polynomials: NDArray[np.float64] | NDArray[np.int8], out: Spectra | None = None) -> Spectra:
    """Transform real polynomials, (..., 4096), to their values at the roots of X**2048 = i."""
    shape = (*polynomials.shape[:-1], HALF)
    folded = np.empty(shape, dtype=np.complex128) if out is None else out
    folded.real, folded.imag = polynomials[..., :HALF], polynomials[..., HALF:]
    folded *= _TWIST
    return np.fft.fft(folded, out=folded)


def inverse(spectra: Spectra, count: int = DEGREE, out: Floats | None = None) -> Floats:
    """Return the first `count` coefficients, rounded to whole numbers. The spectra are overwritten."""
    np.fft.ifft(spectra, out=spectra)
    kept = min(count, HALF)
    turned = spectra[..., :kept]
    turned *= _UNTWIST[:kept]
    polynomials = np.empty((*spectra.shape[:-1], count)) if out is None else out
    np.rint(turned.real, out=polynomials[..., :kept])
    if count > HALF:
        np.rint(turned.imag[..., : count - HALF], out=polynomials[..., HALF:])
    return polynomials


def multiply(polynomials: Floats, factor: Spectra, count: int = DEGREE) -> Floats:
    """Multiply polynomials, (..., 4096), by one whose spectrum is given; the first `count` coefficients."""
    flat = polynomials.reshape(-1, DEGREE)
    products = np.empty((len(flat), count))
    scratch = np.empty((min(BATCH, len(flat)), HALF), dtype=np.complex128)
    for start in range(0, len(flat), BATCH):
        batch = flat[start : start + BATCH]
        spectra = spectrum(batch, scratch[: len(batch)])
        spectra *= factor
        inverse(spectra, count, products[start : start + BATCH])
    return products.reshape(*polynomials.shape[:-1], count)


def reduce(values: Floats, prime: int) -> Floats:
    """Centre whole numbers below 2**53 - 2**21 modulo a prime, in place. The array is contiguous."""
    flat = values.reshape(-1, copy=False)
    scratch = np.empty(min(len(flat), PIECE))
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        quotients = scratch[: len(piece)]
        np.multiply(piece, 1.0 / prime, out=quotients)
        np.rint(quotients, out=quotients)
        quotients *= prime
        piece -= quotients
    return values


def uniform_residues(source: ByteSource, prime: int, count: int, out: Floats | None = None) -> Floats:
    """Draw residues modulo an odd prime uniformly, as numbers between -prime/2 and prime/2.

    A word of 32 bits with a sign is taken if it lies among the middle K * prime values, K odd and as large as
    possible, and is reduced. Every residue then has K words. Words that are not taken, fewer than 1 in 1,000,
    are replaced by later ones in order.
    """
    turns = ((1 << 32) // prime - 1) // 2 * 2 + 1
    most = (turns * prime - 1) // 2
    residues = np.empty(count) if out is None else out.reshape(-1, copy=False)
    outside: list[NDArray[np.intp]] = []
    for start in range(0, count, PIECE):
        piece = residues[start : start + PIECE]
        words = np.frombuffer(source(4 * len(piece)), dtype="<i4")
        piece[:] = words
        # Modulo 2**32, words from -most to most become those from 0 to 2 most.
        outside.append(np.flatnonzero(words.view("<u4") + np.uint32(most) > np.uint32(2 * most)) + start)
        reduce(piece, prime)
    left = np.concatenate(outside) if outside else np.empty(0, dtype=np.intp)
    while len(left):
        spare = np.frombuffer(source(4 * len(left)), dtype="<i4").astype(np.float64)
        again = np.abs(spare) > most
        residues[left] = reduce(spare, prime)
        left = left[again]
    return residues


def _centred(number: int, prime: int) -> float:
    rest = number % prime
    return float(rest - prime if rest > prime // 2 else rest)


class YDomain:
    """Values of polynomials at the roots of Y**t = -1 modulo one prime."""

    def __init__(self, prime: int, roots: int) -> None:
        self.prime = prime
        generator = 2
        while pow(generator, (prime - 1) // 2, prime) == 1:
            generator += 1
        root = pow(generator, (prime - 1) // (2 * roots), prime)
        powers = accumulate(repeat(root, 2 * roots - 1), lambda power, root: power * root % prime, initial=1)
        table = np.array([_centred(power, prime) for power in powers])
        outer = min(roots, WHOLE_ROOTS)
        inner = roots // outer
        self._shape = (outer, inner)
        h1, h2, order = np.arange(outer), np.arange(inner), 2 * roots
        odd = 2 * h1 + 1
        self.roots: Floats = table[(odd[:, None] + 2 * outer * h2[None, :]) % order].reshape(-1)
        steps = inner * np.outer(odd, h1)
        turns, twiddles = 2 * outer * np.outer(h2, h2), np.outer(odd, h2)
        # Powers of Y**-1, for evaluation and, the first of them over t, for interpolation.
        self._first, self._twiddles = table[-steps % order], table[-twiddles % order][:, :, None]
        self._second = table[-turns % order]
        share = _centred(pow(roots, -1, prime), prime)
        self._inverse = reduce(np.ascontiguousarray(self._first.T) * share, prime)

    def evaluate(self, coefficients: Floats, out: Floats | None = None) -> Floats:
        """Return the values of sum_s c_s Y**-s for c of shape (t, ...); they may use the memory of `out`."""
        outer, inner = self._shape
        into = None if out is None else out.reshape(outer, -1, copy=False)
        values = reduce(np.matmul(self._first, coefficients.reshape(outer, -1), out=into), self.prime)
        if inner > 1:
            values = values.reshape(outer, inner, -1)
            values *= self._twiddles
            values = reduce(np.matmul(self._second, reduce(values, self.prime)), self.prime)
        return values.reshape(coefficients.shape)

    def interpolate(self, values: Floats) -> Floats:
        """Return the coefficients of Y**s, (t, ...), of given values: not reduced, below 2**46."""
        (outer, inner), shape = self._shape, values.shape
        if inner > 1:
            values = reduce(np.matmul(self._second, values.reshape(outer, inner, -1)), self.prime)
            values *= self._twiddles
            reduce(values, self.prime)
        coefficients: Floats = self._inverse @ values.reshape(outer, -1)
        return coefficients.reshape(shape)


class Ring:
    primes, modulus = PRIMES, prod(PRIMES)

    @cache  # noqa: B019  # there is one ring, for ever
    def y_domain(self, index: int, roots: int) -> YDomain:
        return YDomain(self.primes[index], roots)

    def expand(self, seed: bytes, label: bytes, index: int, count: int, out: Floats | None = None) -> Floats:
        """Return residues modulo prime number `index` that everybody computes from a public seed."""
        return uniform_residues(key_stream(seed, bytes([index]) + label), self.primes[index], count, out)

    def polynomials(self, seed: bytes, label: bytes, count: int) -> Floats:
        """Return polynomials that everybody computes from a public seed, (k, count, N)."""
        drawn = [self.expand(seed, label, index, count * DEGREE) for index in range(len(self.primes))]
        return np.stack(drawn).reshape(-1, count, DEGREE)

    def uniform(self, source: ByteSource, count: int) -> Floats:
        """Draw numbers uniformly modulo q: their residues, (k, count)."""
        return np.stack([uniform_residues(source, prime, count) for prime in self.primes])

    def reduced(self, residues: Floats) -> Floats:
        """Centre whole numbers below 2**53 - 2**21, (k, ...), modulo their primes, in place."""
        for index, prime in enumerate(self.primes):
            reduce(residues[index], prime)
        return residues

    def scaled(self, residues: Floats, factor: int) -> Floats:
        """Return the residues, (k, ...), of numbers times an integer."""
        factors = np.array([_centred(factor, prime) for prime in self.primes])
        return self.reduced(residues * factors.reshape(-1, *(1 for _ in residues.shape[1:])))

    # Residues of other numbers

    def whole(self, high: PackedResidues, shift: int, low: PackedResidues | int = 0) -> Floats:
        """Return the residues, (k, ...), of machine integers high * 2**shift + low."""
        parts = [high % prime * (pow(2, shift, prime)) + low % prime for prime in self.primes]
        return self.reduced(np.stack(parts).astype(np.float64))

    def centred(self, residues: Floats) -> Floats:
        """Return the numbers nearest to 0, as floats: x / q is known to 2**-106, a third of a unit."""
        share = self.switched(residues.copy())
        return np.asarray(np.rint(shares.to_floats(share, WIDTH) * float(self.modulus)))

    @cached_property
    def _limb_residues(self) -> Floats:
        """2**(21 l) modulo each prime, for l = 0..5: (k, 6)."""
        powers = [pow(2, LIMB_BITS * limb) for limb in range(LIMBS + 1)]
        return np.array([[_centred(power, prime) for power in powers] for prime in self.primes])

    def residues(self, share: Share, *, centred: bool = False) -> Floats:
        """Reduce numbers modulo 2**105, (5, ...) to (k, ...), in [0, 2**105) or, `centred`, nearest to 0."""
        limbs = np.empty((LIMBS + 1, *share.shape[1:]))
        limbs[:LIMBS] = share
        limbs[LIMBS] = -(share[LIMBS - 1] >> (LIMB_BITS - 1)) if centred else 0
        return self.reduced(
            (self._limb_residues @ limbs.reshape(LIMBS + 1, -1)).reshape(-1, *share.shape[1:])
        )

    def lifted(self, share: Share) -> Floats:
        """Return the residues of floor(q m / 2**105 + 1/2), (k, ...), of m modulo 2**105."""
        factors = shares.from_integer(self.modulus % (1 << WIDTH)).astype(np.float64)
        lower = np.zeros((LIMBS, LIMBS))
        for limb in range(LIMBS):
            lower[limb, : limb + 1] = factors[limb::-1]
        rest = (lower @ share.reshape(LIMBS, -1).astype(np.float64)).astype(np.int64)
        rest[LIMBS - 1] += 1 << (LIMB_BITS - 1)
        lifted = self.scaled(self.residues(shares.carry(rest)), -pow(2, -WIDTH, self.modulus))
        lifted += np.array([[_centred(pow(2, -1, prime), prime)] for prime in self.primes])
        return self.reduced(lifted).reshape(-1, *share.shape[1:])

    @cached_property
    def _switch_limbs(self) -> Floats:
        """Limbs of 2**105 / p, lowest first, from 2**-42 on: (7, k)."""
        bits = LIMB_BITS * SPARE_LIMBS
        whole = [((1 << (WIDTH + bits + 1)) // prime + 1) // 2 for prime in self.primes]
        return np.array(
            [
                [float(w >> (LIMB_BITS * limb) & LIMB_MASK) for w in whole]
                for limb in range(LIMBS + SPARE_LIMBS)
            ]
        )

    def switched(self, residues: Floats, limbs: int = LIMBS) -> Share:
        """Return x 2**105 / q modulo 2**105 of x modulo q, rounded to a multiple of 2**(105 - 21 limbs).

        The error before rounding is below 2**-20, or below 2**(86 - 21 limbs) for fewer than five limbs. The
        centred residues, (k, ...), are overwritten. The result has the highest limbs, lowest first.
        """
        flat = residues.reshape(len(self.primes), -1)
        for index, prime in enumerate(self.primes):
            flat[index] *= _centred(pow(self.modulus // prime, -1, prime), prime)
            reduce(flat[index], prime)
        lowest = 0 if limbs == LIMBS else LIMBS + SPARE_LIMBS - limbs - 2
        sums = (self._switch_limbs[lowest:] @ flat).astype(np.int64)
        drop = len(sums) - limbs
        sums[drop - 1] += 1 << (LIMB_BITS - 1)
        for limb in range(len(sums) - 1):
            sums[limb + 1] += sums[limb] >> LIMB_BITS
        kept = sums[drop:]
        kept &= LIMB_MASK
        return kept.reshape(limbs, *residues.shape[1:])

    # Bytes

    def to_bytes(self, residues: Floats) -> bytes:
        """Pack centred residues, (k, ...): each plus (p - 1) / 2, in 21 bits, as `shares.to_bytes` does."""
        offsets = (np.array(self.primes) - 1) // 2
        return shares.to_bytes((residues.reshape(len(offsets), -1) + offsets[:, None]).astype(np.int64))

    def from_bytes(self, data: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
        """Read what `to_bytes` wrote: centred residues, (k, *shape). Raises FormatError for anything else."""
        residues = np.empty((len(self.primes), *shape))
        check_length("residues", data, size_in_bytes(residues.size, 1))
        words = np.frombuffer(data, dtype="<i8")
        for index in range(len(self.primes)):
            self.unpack(words, index, residues[index])
        return residues

    def pack(self, words: PackedResidues, index: int, residues: Floats) -> None:
        """Pack the residues of one prime into words that are 0 at their places.

        A whole number x from 0 to 2**52 has its bits at the end of the float 2**52 + x. That is faster than a
        conversion.
        """
        flat, offset = residues.reshape(-1, copy=False), (self.primes[index] - 1) // 2
        scratch = np.empty(min(PIECE, len(flat)))
        for place, at, first, last in self._pieces(index, len(flat), len(words)):
            shifted = np.add(flat[first:last], WHOLE + offset, out=scratch[: last - first]).view(np.int64)
            shifted &= LIMB_MASK
            shifted <<= LIMB_BITS * place
            words[at : at + len(shifted)] |= shifted

    def unpack(self, words: PackedResidues, index: int, residues: Floats) -> None:
        """Read the residues of one prime, and check them."""
        flat, prime = residues.reshape(-1, copy=False), self.primes[index]
        for place, at, first, last in self._pieces(index, len(flat), len(words)):
            packed, piece = words[at : at + last - first], flat[first:last]
            if place == 0 and int(packed.min()) < 0:
                raise FormatError("residues: a bit is set that no number has")
            bits = piece.view(np.int64)
            np.right_shift(packed, LIMB_BITS * place, out=bits)
            bits &= LIMB_MASK
            largest = int(bits.max())
            if largest >= prime:
                raise FormatError(f"a residue is {largest}, less than {prime} is allowed")
            bits |= WHOLE_BITS
            piece -= WHOLE + (prime - 1) // 2

    @staticmethod
    def _pieces(index: int, count: int, words: int) -> Iterator[tuple[int, int, int, int]]:
        """Cut one prime's residues where places in words end: (place, first word, first, last)."""
        first = 0
        while first < count:
            place, at = divmod(index * count + first, words)
            last = min(first + PIECE, first + words - at, count)
            yield place, at, first, last
            first = last


RING = Ring()
