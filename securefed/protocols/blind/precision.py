"""Fraction bits of shared numbers, and how often a share may wrap.

A number x with F fraction bits is round(x 2**F) modulo 2**105, as two shares. Truncating shares locally is
wrong with probability |x| 2**F / 2**105 a number. `wrap_bound` adds that up over a run, from public sizes
only: a refusal that depended on data would tell something about it.
"""

from __future__ import annotations

from math import ceil, log2, sqrt

from securefed.crypto.shares import WIDTH
from securefed.errors import SettingError

MATRIX_BITS = 35
"""Fraction bits of shared matrices."""
VALUE_BITS = 35
"""Fraction bits of shared vectors: parameters and gradients."""
PRODUCT_BITS = MATRIX_BITS + VALUE_BITS
SCALAR_BITS = 30
"""Fraction bits of public factors."""
ROW_BITS = 60
"""Fraction bits of a row that is scored."""
SCORE_BITS = ROW_BITS + VALUE_BITS
"""Fraction bits of a score before it is opened."""
RANGE_BITS = 6
"""m: a score is opened modulo 2**m, so it has to lie within 2**(m - 1) of 0."""
SHARE_BITS = WIDTH - MATRIX_BITS
"""A truncated share of a matrix is at most 2**SHARE_BITS in magnitude."""
MODEL_BITS = 72
"""Shares of a finished model are cut to so many bits, which keeps the noise of scores small."""
MOST_WRAPS = 2.0**-20
GRADIENT_BOUND = 2.0
"""On |M v - c| in every round, for labels of root mean square 2: |c| is at most |a| / sqrt(b) times theirs,
and accelerated rounds multiply it by a polynomial of M that is at most 1 on its spectrum."""


def feature_bits(rows: int) -> int:
    """Fraction bits of a multiplier's features in the pass: rounding and noise count alike."""
    return round((64.0 - log2(max(rows, 1))) / 2.0)


def wrap_bound(sizes: list[int], rounds: int, outputs: int, turns: int = 1) -> float:
    """Bound the probability that any truncation of a run wraps; `sizes`: columns of each party."""
    columns, parties = sum(sizes), len(sizes)
    # Entries of a cross block add up to sqrt(d_i d_j) times its Frobenius norm, at most sqrt(min)/K.
    passed = sum(
        sqrt(a * b * min(a, b)) / parties for i, a in enumerate(sizes) for b in sizes[i + 1 :]
    ) + sqrt(columns)
    moved = rounds * turns * outputs * sqrt(columns) * GRADIENT_BOUND
    moved += moved * 4.0 * 2.0 ** (SCALAR_BITS + VALUE_BITS - PRODUCT_BITS)
    told = outputs * columns * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (passed + moved + told) * 2.0 ** (PRODUCT_BITS - WIDTH)


def check_wraps(bound: float, rounds: int, columns: int, outputs: int) -> None:
    """Refuse a run whose shares wrap with a probability of up to `bound`, if that is too much."""
    if bound > MOST_WRAPS:
        raise SettingError(
            f"rounds: {rounds} rounds with {columns} columns and {outputs} outputs go wrong with a"
            f" probability of up to 2**{ceil(log2(bound))}, at most 2**{ceil(log2(MOST_WRAPS))} is allowed;"
            " use fewer rounds, columns or outputs"
        )
