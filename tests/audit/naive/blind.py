"""Parts of blind runs as one would first make them: correct results, and each time one protection too few."""

from __future__ import annotations

import numpy as np

from securefed.crypto import shares
from securefed.crypto.blind.evaluation import Rerandomiser, Zeros, nonce_polynomials
from securefed.crypto.lattice.ring import DEGREE, RING, multiply, reduce, spectrum
from securefed.crypto.randomness import ByteSource, errors, ternary
from securefed.crypto.shares import Floats, Share


class OneZero(Rerandomiser):
    """One RLWE encryption of zero under the encryptor's key: (a u + e_1, b u + e_0), u ternary.

    Enough against an honest key. Missing: what hides u from a key whose b has a large error.
    """

    def __init__(self, nonce: bytes, public: Floats) -> None:
        super().__init__(nonce, public)
        self._first = nonce_polynomials(nonce)[:, 0], public[:, 0]

    def zeros(self, source: ByteSource, span: int) -> Zeros:
        return _OneZero(self._first, source, span)


class _OneZero(Zeros):
    def __init__(self, first: tuple[Floats, Floats], source: ByteSource, span: int) -> None:
        self._first, self._source, self._span = first, source, span

    def draw(self, count: int) -> tuple[Floats, Floats]:
        primes = len(RING.primes)
        bodies, heads = np.empty((primes, count, DEGREE)), np.empty((primes, count, self._span))
        for response in range(count):
            factor = spectrum(ternary(self._source, DEGREE).astype(np.float64))
            small = errors(self._source, DEGREE), errors(self._source, DEGREE)
            for index, prime in enumerate(RING.primes):
                for into, part, noise in zip((bodies, heads), self._first, small, strict=True):
                    whole = multiply(part[index][None].copy(), factor)[0] + noise
                    into[index, response] = reduce(whole, prime)[: into.shape[2]]
        return bodies, heads


class NoZero(Rerandomiser):
    """Nothing is added. Missing: all of it; c1 is a public polynomial times V."""

    def zeros(self, source: ByteSource, span: int) -> Zeros:
        return _NoZero(span)


class _NoZero(Zeros):
    def __init__(self, span: int) -> None:
        self._span = span

    def draw(self, count: int) -> tuple[Floats, Floats]:
        primes = len(RING.primes)
        return np.zeros((primes, count, DEGREE)), np.zeros((primes, count, self._span))


def narrow_uniform(bits: int) -> object:
    """A mask of fewer bits than the modulus has. Missing: the highest bits."""
    draw = shares.uniform_from

    def drawn(source: ByteSource, *shape: int) -> Share:
        return shares.shift_right(draw(source, *shape), shares.WIDTH - bits)

    return drawn
