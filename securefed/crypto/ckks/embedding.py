"""The canonical embedding: slots to coefficients and back, in an order made for sums.

Slot t of a polynomial is its value at zeta^(4t + 1), zeta = exp(i pi / N), t = 0 .. N/2 - 1. The conjugates
have the same values. SEAL orders its slots by powers of 3. Nothing here rotates slots, and in our order the
sums over t = j, j + G, j + 2G, ... are again the slots of a polynomial: see `sums`.

With w = FFT(slots) / (N/2) and w_k turned by zeta^-k, coefficient k is the real part and coefficient k + N/2
the imaginary part of w_k.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.ckks.parameters import RING, SLOTS

__all__ = ["Complex", "Floats", "coefficients", "real_slots", "seal_order", "sum_coefficients", "sums"]

Complex = NDArray[np.complex128]
Floats = NDArray[np.float64]


@cache
def _turn(slots: int) -> Complex:
    """Return exp(i pi k / (2 * slots)) for k < slots, powers of the root of a ring of 2 * slots
    coefficients.
    """
    return np.asarray(np.exp(1j * np.pi * np.arange(slots) / (2 * slots)))


@cache
def seal_order() -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return our slot for each of SEAL's, and whether it is conjugated. SEAL's slot s is at zeta^(3^s)."""
    exponents = np.array([pow(3, s, 2 * RING) for s in range(SLOTS)], dtype=np.intp)
    conjugated = exponents % 4 == 3
    return (np.where(conjugated, 2 * RING - exponents, exponents) - 1) // 4, conjugated


def coefficients(slots: NDArray[np.float64] | Complex) -> Floats:
    """Return the (..., 2n) real coefficients of the polynomial with these (..., n) slots."""
    count = slots.shape[-1]
    turned = np.fft.fft(slots) * (np.conj(_turn(count)) / count)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def sum_coefficients(values: Complex, stride: int) -> Floats:
    """Return the 2G useful coefficients of an array of sums (..., G): the inverse of `sums`."""
    return coefficients(values / stride)


def sums(useful: Floats, stride: int) -> Complex:
    """Return the (..., G) sums over slots j, j + G, ... from (..., 2G) coefficients at multiples of `stride`.

    The sum over x = 1 + 4j mod 4G of p(zeta^x) keeps the coefficients at multiples of (N/2)/G and multiplies
    them by (N/2)/G: the others cancel over the roots of unity. The kept ones form a polynomial in a ring of
    2G coefficients, and the sums are its slots.
    """
    groups = useful.shape[-1] // 2
    joined = (useful[..., :groups] + 1j * useful[..., groups:]) * _turn(groups)
    return np.asarray(np.fft.ifft(joined) * (groups * stride))


def real_slots(lower: Floats) -> Floats:
    """Return the slots of a polynomial with real slots, from its coefficients 0 .. N/2 - 1.

    Real slots mean p(X) = p(1/X), so coefficient N - k is minus coefficient k and coefficient N/2 is zero.
    """
    upper = np.zeros_like(lower)
    upper[..., 1:] = -lower[..., :0:-1]
    return sums(np.concatenate([lower, upper], axis=-1), 1).real
