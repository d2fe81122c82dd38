"""How far from chance a score may be before it counts as an attack's success.

Each bound is passed by pure luck with probability below FALSE_ALARM, so a red test is a finding and not bad
luck.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import comb, log, sqrt

import numpy as np
from numpy.typing import ArrayLike

FALSE_ALARM = 1e-7


def most_by_luck(trials: int, chance: float) -> int:
    """The most successes out of `trials` that guessing at probability `chance` reaches, but for FALSE_ALARM.

    The exact binomial tail: the least k with P[X > k] < FALSE_ALARM.
    """
    p, tail = Fraction(chance), Fraction(0)
    for successes in range(trials, -1, -1):
        tail += comb(trials, successes) * p**successes * (1 - p) ** (trials - successes)
        if tail >= FALSE_ALARM:
            return successes
    return 0


def chi_square(symbols: ArrayLike | Iterable[int], kinds: int) -> float:
    """Pearson's statistic of symbols 0..kinds-1 against uniform ones; kinds - 1 degrees of freedom."""
    counts = np.bincount(np.asarray(symbols, dtype=np.int64).ravel(), minlength=kinds)
    expected = counts.sum() / kinds
    return float(((counts - expected) ** 2).sum() / expected)


def chi_square_range(kinds: int) -> tuple[float, float]:
    """Where chi_square of uniform symbols lies, but for FALSE_ALARM (Laurent and Massart 2000, lemma 1)."""
    freedom, x = kinds - 1, -log(FALSE_ALARM / 2)
    return freedom - 2 * sqrt(freedom * x), freedom + 2 * sqrt(freedom * x) + 2 * x
