"""The ring behind SEAL's ciphertexts, in plain numpy and Python integers: Z_q[X] / (X^N + 1).

What an attacker needs and SEAL does not offer: residues in and out, the number-theoretic transform in
SEAL's order, and the canonical embedding. Slow and simple on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[Any]
"""Object arrays of Python integers, so that products of 60-bit residues are exact."""


@contextmanager
def scratch() -> Iterator[str]:
    """A path that SEAL can save to and load from, in memory."""
    handle = os.memfd_create("ring")
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def read(array: Any, *shape: int) -> Residues:
    """SEAL's DynArray, as Python integers of the given shape."""
    at = array.at
    return np.array([at(i) for i in range(array.size())], dtype=object).reshape(shape)


def from_residues(residues: Residues, primes: Sequence[int]) -> Residues:
    """Residues (primes, ...) to integers of magnitude at most q/2."""
    q = int(np.prod(np.array(primes, dtype=object)))
    total: Residues = np.zeros(residues.shape[1:], dtype=object)
    for row, prime in zip(residues, primes, strict=True):
        total = total + row * (q // prime * pow(q // prime, -1, prime))
    return centred(total, q)


def centred(values: Residues, modulus: int) -> Residues:
    return (values + modulus // 2) % modulus - modulus // 2


def invert(values: Residues, prime: int) -> Residues:
    """Entry by entry; 0 stays 0, which no honest ciphertext has more than a handful of."""
    return np.array([pow(int(v), -1, prime) if v else 0 for v in values], dtype=object)


@lru_cache(maxsize=8)
def _twist(size: int, prime: int) -> tuple[Residues, NDArray[np.intp]]:
    """Powers of SEAL's 2N-th root (the least primitive one), and the bit reversal of its output order."""
    step = (prime - 1) // (2 * size)
    root = next(r for g in range(2, 200) if pow(r := pow(g, step, prime), size, prime) == prime - 1)
    square, power, least = root * root % prime, root, root
    for _ in range(size):
        least, power = min(least, power), power * square % prime
    powers = [1]
    for _ in range(2 * size - 1):
        powers.append(powers[-1] * least % prime)
    bits = size.bit_length() - 1
    order = np.array([int(format(i, f"0{bits}b")[::-1], 2) for i in range(size)], dtype=np.intp)
    return np.array(powers, dtype=object), order


def _cyclic(values: Residues, omega: Residues, prime: int) -> Residues:
    """values[k] -> sum_k values[k] * omega^(k j), radix two; omega holds the powers 0..N-1."""
    size = len(values)
    rows = values.reshape(1, size)
    while (done := len(rows)) < size:
        even, odd = np.hsplit(rows, 2)
        turned = odd * omega[: size // 2 : size // (2 * done), None]
        rows = np.vstack([even + turned, even - turned]) % prime
    return np.asarray(rows.ravel())


def ntt(coefficients: Residues, prime: int) -> Residues:
    """Index i gets the value at root^(2 * reversed(i) + 1)."""
    size = len(coefficients)
    powers, order = _twist(size, prime)
    return _cyclic(coefficients * powers[:size] % prime, powers[::2], prime)[order]


def ntt_inverse(values: Residues, prime: int) -> Residues:
    size = len(values)
    powers, order = _twist(size, prime)
    natural: Residues = np.empty(size, dtype=object)
    natural[order] = values
    backwards = np.concatenate([powers[:1], powers[:0:-1]])  # root^-k
    twisted = _cyclic(natural, backwards[::2], prime) * pow(size, -1, prime)
    return np.asarray(twisted * backwards[:size] % prime)


@lru_cache(maxsize=2)
def _slot_places(size: int) -> NDArray[np.intp]:
    """Slot j of CKKS is the value at zeta^(3^j); as an index into values at zeta^(2 i + 1)."""
    return np.array([(pow(3, j, 2 * size) - 1) // 2 for j in range(size // 2)], dtype=np.intp)


def slots_of_coefficients(coefficients: NDArray[np.float64]) -> NDArray[np.complex128]:
    size = len(coefficients)
    twist = np.exp(1j * np.pi * np.arange(size) / size)
    return np.asarray(np.fft.ifft(coefficients * twist) * size)[_slot_places(size)]


def coefficients_of_slots(slots: NDArray[Any]) -> NDArray[np.float64]:
    """The real polynomial whose slots these are."""
    size = 2 * len(slots)
    values = np.empty(size, dtype=np.complex128)
    values[_slot_places(size)] = slots
    values[size - 1 - _slot_places(size)] = np.conj(slots)
    twist = np.exp(-1j * np.pi * np.arange(size) / size)
    return np.asarray((np.fft.fft(values) / size * twist).real)
