"""From the scores of all classes to their probabilities, learnt from few held-out rows.

Least squares scores of c classes hold what linear discriminant analysis needs: with Y the classes as 0 and 1
and F the fitted scores, normal equations say cov(F, Y) = cov(F), so the mean of F over the rows of class k is
mean(F) + cov(F)[k] / share(k). That takes one covariance of all rows where means of their own would take many
rows of every class; the latter are what it is corrected by, as far as there are rows. The classes are then
normal with one covariance. The largest score alone is a worse guess: a class between two others never has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Discriminant", "unseen"]

Array = NDArray[np.float64]
PRIOR_ROWS = 30
"""Of a class: as many held-out rows say as much about its mean as the normal equations do."""
SHRINKAGE = 0.05
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Linear discriminants: the log odds of class k are scores @ weights[:, k] + offsets[k]."""

    weights: Array
    offsets: Array
    edge: float

    @classmethod
    def of(cls, scores: Array, truth: NDArray[np.intp], shares: Array, reach: float) -> Discriminant:
        """`scores` (rows, classes) of rows whose classes are `truth`; `shares` of the classes in training;
        `reach`: the score that a perfect fit has (and its negative where the class is another).
        """
        fitted = scores / (2.0 * reach) + 0.5
        middle, count = fitted.mean(axis=0), len(shares)
        means = middle + np.cov(fitted.T) / shares[:, None]
        for each in range(count):
            own = fitted[truth == each]
            if len(own):
                trust = len(own) / (len(own) + PRIOR_ROWS)
                means[each] += trust * (own.mean(axis=0) - means[each])
        apart = fitted - means[truth]
        within = apart.T @ apart / len(apart)
        # The scores of a row add up to a constant, so without this there would be no inverse.
        within += max(SHRINKAGE * np.trace(within) / count, 1e-9) * np.eye(count)
        weights = np.linalg.solve(within, means.T)
        offsets = np.log(shares) - 0.5 * np.einsum("ij,ji->i", means, weights)
        scaled = weights / (2.0 * reach)
        return cls(scaled, offsets + 0.5 * weights.sum(axis=0), 0.5 / len(scores))

    def probabilities(self, scores: Array) -> Array:
        odds = scores @ self.weights + self.offsets
        found = np.exp(odds - odds.max(axis=1, keepdims=True))
        found = np.maximum(found / found.sum(axis=1, keepdims=True), self.edge)
        likely: Array = found / found.sum(axis=1, keepdims=True)
        return likely


def unseen(scores: Array, truth: NDArray[np.intp], shares: Array, reach: float) -> Array:
    """Each row's probabilities, by discriminants of the other rows."""
    from sklearn.model_selection import KFold

    found = np.empty_like(scores)
    for fit, test in KFold(FOLDS, shuffle=True, random_state=0).split(scores):
        found[test] = Discriminant.of(scores[fit], truth[fit], shares, reach).probabilities(scores[test])
    return found
