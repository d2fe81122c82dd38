"""Products modulo X**4096 + 1 by complex transforms of half the length.

A real polynomial a becomes z_j = a_j + i a_(j + 2048). Modulo X**2048 - i these multiply as the real ones do
modulo X**4096 + 1. The roots of X**2048 = i are exp(i pi / 4096) times the roots of unity of order 2048, so a
twist and one complex transform of length 2048 evaluate z at all of them.

Polynomials lie along the last axis, (..., 4096), and spectra too, (..., 2048).

Exactness. Let A and B be Euclidean norms of the factors. A transform of length n errs by at most
log2(n) * 7 * 2**-53 of the norm (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 24.2).
A product has three transforms, so a coefficient errs by less than 2**-45 A B
(tests/crypto/blind/noise.py).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind.shares import Floats

__all__ = ["BATCH", "DEGREE", "HALF", "Spectra", "inverse", "multiply", "spectrum"]

DEGREE = 4096
HALF = DEGREE // 2
BATCH = 16
"""Polynomials at a time: their spectra stay in the processor's cache."""

Spectra = NDArray[np.complex128]


@cache
def _twist() -> Spectra:
    turns: Spectra = np.exp(1j * np.pi * np.arange(HALF) / DEGREE)
    return turns


@cache
def _untwist() -> Spectra:
    return _twist().conj()


def spectrum(polynomials: NDArray[np.float64] | NDArray[np.int8], out: Spectra | None = None) -> Spectra:
    """Transform real polynomials, (..., 4096), to their values at the roots of X**2048 = i."""
    shape = (*polynomials.shape[:-1], HALF)
    folded = np.empty(shape, dtype=np.complex128) if out is None else out
    folded.real, folded.imag = polynomials[..., :HALF], polynomials[..., HALF:]
    folded *= _twist()
    return np.fft.fft(folded, out=folded)


def inverse(spectra: Spectra, count: int = DEGREE, out: Floats | None = None) -> Floats:
    """Return the first `count` coefficients, rounded to whole numbers. The spectra are overwritten."""
    np.fft.ifft(spectra, out=spectra)
    kept = min(count, HALF)
    turned = spectra[..., :kept]
    turned *= _untwist()[:kept]
    polynomials = np.empty((*spectra.shape[:-1], count)) if out is None else out
    np.rint(turned.real, out=polynomials[..., :kept])
    if count > HALF:
        np.rint(turned.imag[..., : count - HALF], out=polynomials[..., HALF:])
    return polynomials


def multiply(polynomials: Floats, factor: Spectra, count: int = DEGREE) -> Floats:
    """Multiply polynomials, (m, 4096), by one whose spectrum is given; the first `count` coefficients."""
    products = np.empty((len(polynomials), count))
    scratch = np.empty((min(BATCH, len(polynomials)), HALF), dtype=np.complex128)
    for start in range(0, len(polynomials), BATCH):
        batch = polynomials[start : start + BATCH]
        spectra = spectrum(batch, scratch[: len(batch)])
        spectra *= factor
        inverse(spectra, count, products[start : start + BATCH])
    return products
