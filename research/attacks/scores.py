"""How well an attack did: a score, what guessing reaches, and a confidence interval.

Intervals are 95 %: bootstrap over rows for areas under the curve and R^2, Wilson's for proportions. An
attack *succeeds* if it lies five standard errors above chance and above what its party is given by design
(its own part of the trained model knows something about labels; that is what training is for). Of intervals
alone one in forty lies above chance by luck, since masks are drawn anew in every run. Five standard errors
are one run in three million, if the error is not too small. A bootstrap's is: of a lucky area on 24 rows it
is so small that one run in 500 would succeed by luck. So beside chance an area's error is at least that of
random scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 400
Z = 1.959964
SUCCESS = 5.0
"""Standard errors."""


@dataclass(frozen=True)
class Interval:
    """A score and its 95 % confidence interval."""

    score: float
    low: float
    high: float
    least_error: float = 0.0
    """The standard error of a score that knows nothing, where it is known."""


@dataclass(frozen=True)
class Score:
    """One attack on one variant."""

    attack: str
    observer: str
    variant: str
    metric: str
    score: float
    low: float
    high: float
    chance: float
    by_design: float | None = None
    """What the observer has without any attack."""
    note: str = ""
    least_error: float = 0.0

    @classmethod
    def of(
        cls,
        attack: str,
        observer: str,
        variant: str,
        metric: str,
        interval: Interval,
        chance: float,
        by_design: float | None = None,
        note: str = "",
    ) -> Score:
        numbers = (interval.score, interval.low, interval.high)
        return cls(attack, observer, variant, metric, *numbers, chance, by_design, note, interval.least_error)

    @property
    def errors(self) -> float:
        """How far it lies above chance and design, in standard errors."""
        error = max((self.high - self.low) / (2 * Z), 1e-9)
        above_luck = (self.score - self.chance) / max(error, self.least_error)
        above_design = (self.score - (self.chance if self.by_design is None else self.by_design)) / error
        return min(above_luck, above_design)

    @property
    def succeeded(self) -> bool:
        return bool(self.errors >= SUCCESS)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "errors": min(self.errors, 1e6), "succeeded": self.succeeded}


def area(scores: Array, positive: NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a positive scores above a negative, ties half."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    for value in np.unique(scores[np.concatenate([[False], np.diff(scores[order]) == 0])[np.argsort(order)]]):
        ranks[scores == value] = ranks[scores == value].mean()
    count, total = int(positive.sum()), len(scores)
    if count in (0, total):
        return 0.5
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (total - count)))


def area_under_curve(scores: Array, positive: NDArray[np.bool_], seed: int = 0) -> Interval:
    """With a bootstrap interval, and the deviation of the area of random scores (Mann and Whitney 1947)."""
    interval = _bootstrap(lambda rows: area(scores[rows], positive[rows]), len(scores), seed)
    count, total = int(positive.sum()), len(scores)
    if count in (0, total):
        return interval
    return replace(interval, least_error=sqrt((total + 1) / (12 * count * (total - count))))


def r_squared(estimate: Array, truth: Array, seed: int = 0) -> Interval:
    """The share of the truth's variance (over rows, column by column) that is explained; at least 0.

    A guess that knows nothing but the columns' means has 0.
    """
    estimate, truth = estimate.reshape(len(estimate), -1), truth.reshape(len(truth), -1)

    def share(rows: NDArray[np.intp]) -> float:
        spread = ((truth[rows] - truth[rows].mean(axis=0)) ** 2).sum()
        return max(0.0, 1.0 - float(((estimate[rows] - truth[rows]) ** 2).sum() / (spread or 1.0)))

    return _bootstrap(share, len(truth), seed)


def proportion(right: int, trials: int) -> Interval:
    """Wilson's interval; it holds the share itself, also where rounding would leave it out."""
    share, square = right / trials, Z * Z / trials
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * sqrt(share * (1 - share) / trials + square / (4 * trials))
    return Interval(share, min(share, middle - half), max(share, middle + half))


def _bootstrap(statistic: Callable[[NDArray[np.intp]], float], rows: int, seed: int) -> Interval:
    generator = np.random.default_rng(seed)
    drawn = [statistic(generator.integers(0, rows, rows)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(statistic(np.arange(rows)), float(low), float(high))
