"""Gain tables and scorecard points, from scores that the label party has anyway.

gains       how many of the second class are found in each tenth of the people, best scores first
points      probabilities as points of a scorecard: so many points double the odds
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_number
from securefed.errors import DataError

__all__ = ["Gain", "gains", "points"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """One group of a gain table."""

    people: int
    """In the groups so far, best scores first."""
    found: float
    """Share of all people of the second class that are among them."""
    rate: float
    """Share of the second class in this group alone."""
    lift: float
    """Share of the second class among all so far, as a multiple of the share in the whole table."""
    points: float | None = None
    """Scorecard points at the end of the group: nobody in the groups so far has more."""


def gains(truth: Array, scores: Array, groups: int = 10, probabilities: Array | None = None) -> list[Gain]:
    """Return the gain table of people in `groups` of equal size, the highest scores first.

    Parameters
    ----------
    truth: 0 and 1, 1 for the second class.
    scores: as many; the larger, the likelier.
    groups: of the table.
    probabilities: of the second class; with them each row has its scorecard points.
    """
    if truth.shape != scores.shape or not 0.0 < float(np.mean(truth)) < 1.0:
        raise DataError("gains: as many scores as labels, and labels of both classes, are allowed")
    # Ties share their hits, so that the table does not depend on the order of the rows.
    _, place, count = np.unique(-scores, return_inverse=True, return_counts=True)
    order = np.argsort(-scores, kind="stable")
    hits = (np.bincount(place, weights=truth) / count)[place][order]
    most = None if probabilities is None else np.maximum.accumulate(points(probabilities)[order])
    table, before = [], 0
    for part in np.array_split(np.arange(len(hits)), min(groups, len(hits))):
        until = before + len(part)
        share = float(hits[:until].mean())
        gained = float(hits[:until].sum() / truth.sum())
        limit = None if most is None else float(most[until - 1])
        table.append(Gain(until, gained, float(hits[part].mean()), share / float(truth.mean()), limit))
        before = until
    return table


def points(probabilities: Array, *, double: float = 20.0, anchor: float = 600.0, odds: float = 50.0) -> Array:
    """Return points of a scorecard, more for people who are less likely of the second class.

    Parameters
    ----------
    probabilities: of the second class, such as a default.
    double: points that double the odds of the first class.
    anchor, odds: so many points are odds of `odds` to 1 for the first class.
    """
    check_number("double", double, above=0.0)
    check_number("odds", odds, above=0.0)
    likely = np.clip(probabilities, 1e-12, 1.0 - 1e-12)
    log_odds = np.log1p(-likely) - np.log(likely)
    scaled: Array = anchor + double / np.log(2.0) * (log_odds - np.log(odds))
    return scaled
