"""Multipliers as integers of so many significant bits: what exact results are computed from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.fixed import exponent_for

__all__ = ["quantise"]


def quantise(multipliers: NDArray[np.float64], bits: int = 24) -> tuple[NDArray[np.int64], int]:
    """Return integers t and the largest exponent e with multipliers ~ t * 2**-e and |t| < 2**bits."""
    exponent = exponent_for(float(np.max(np.abs(multipliers), initial=0.0)), bits)
    return np.rint(np.ldexp(multipliers, exponent)).astype(np.int64), exponent
