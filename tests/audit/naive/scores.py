"""Scores as they are usually opened: correct to their precision, and each time one protection too few.

The blurs take what protocols.scoring.blur.blur takes, and where they draw from, and give whole numbers to
add to exact scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def no_blur(rows: Array, **sizes: Any) -> list[int]:
    """Exact scores."""
    return [0] * len(rows)


def blur_by_floats(
    rng: np.random.Generator, rows: Array, *, precision_bits: int, fraction_bits: int, **_: bytes
) -> list[int]:
    """Over a whole step, but drawn with 24 bits: what is below them is exact."""
    fine = fraction_bits - precision_bits - 24
    return [(_bits(rng, 24) - 2**23) << fine for _ in rows]


def blur_of_rounding(rng: np.random.Generator, rows: Array, *, fraction_bits: int, **_: Any) -> list[int]:
    """At full resolution, but no wider than the rounding of a factor of 32 fraction bits."""
    return [_bits(rng, fraction_bits - 32) for _ in rows]


def fresh_blur(
    rng: np.random.Generator, rows: Array, *, precision_bits: int, fraction_bits: int, **_: bytes
) -> list[int]:
    """A whole step at full resolution, and another one each time that somebody asks."""
    width = fraction_bits - precision_bits
    return [_bits(rng, width) - (1 << (width - 1)) for _ in rows]


def _bits(rng: np.random.Generator, count: int) -> int:
    """Not secret, so that a test's verdict is the same each time."""
    return int.from_bytes(rng.bytes(-(-count // 8)), "little") % (1 << count)


def truncated(score: int, mask: int, precision_bits: int, fraction_bits: int) -> tuple[int, int]:
    """The opener cuts low bits off a masked score. Whoever knows the mask knows the score to lie within these
    two, the second excluded.
    """
    width = fraction_bits - precision_bits
    opened = (score + mask) >> width
    return (opened << width) - mask, ((opened + 1) << width) - mask
