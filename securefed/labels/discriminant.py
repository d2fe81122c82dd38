"""From the scores of all classes to their probabilities, learnt from few held-out rows.

Least squares scores of c classes hold what linear discriminant analysis needs. Let Y be the classes as 0 and
1, and F the fitted scores. The normal equations say cov(F, Y) = cov(F) and mean(F) = share. So the mean of F
over the rows of class k is share + cov(F)[k] / share(k). That takes one covariance of all rows, where means
of their own would take many rows of every class. Those means correct it, as far as there are rows. The
classes are then normal with one covariance. The largest score alone is a worse guess: a class between two
others never has it.

Two numbers are left, which all classes share: the temperature of the discriminants, and how much the softmax
of the scores themselves has a say. Both come from cross-validation on the held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.labels.calibration import folds

__all__ = ["Discriminant", "least_rows", "out_of_fold"]

Array = NDArray[np.float64]
Truth = NDArray[np.intp]
PRIOR_ROWS = 30
"""As many held-out rows say as much as what is assumed without them: a class's mean, a temperature of 1, and
equal say of discriminants and softmax."""
SHRINKAGE = 0.1
SLOPE = 8.0
"""From fitted scores of 0 and 1 to log odds, before there is a temperature: of 4 to 16 this had the least log
loss on wine and digits."""
TEMPERATURES = np.exp(np.linspace(-3.0, 1.5, 46))
SAY = np.linspace(0.0, 1.0, 11)


def least_rows(classes: int) -> int:
    """Held-out rows that it takes to learn from."""
    return max(10, 2 * classes)


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Probabilities of classes: a mixture of linear discriminants and the softmax of the scores."""

    weights: Array
    """The discriminants' log odds are scores @ weights + offsets."""
    offsets: Array
    say: float
    """The share of the discriminants in the mixture."""
    slope: float
    """The softmax takes slope * scores."""
    edge: float
    """No probability is below."""

    @classmethod
    def of(cls, scores: Array, truth: Truth, shares: Array, reach: float) -> Discriminant:
        """Learn from scores of rows whose classes are known.

        Parameters
        ----------
        scores, truth: of held-out rows, (rows, classes) and the positions of their classes.
        shares: of the classes in all rows.
        reach: the score that a perfect fit has, and its negative where the class is another.
        """
        fitted, count = scores / (2.0 * reach) + 0.5, len(truth)
        edge = 0.5 / count
        discriminants, softmax = (
            _out_of_fold(lambda f, t, learn=learn: learn(f, t, shares), fitted, truth)  # type: ignore[misc]
            for learn in (_cooled, _softmax)
        )
        losses = [
            _log_loss(_bounded(say * discriminants + (1.0 - say) * softmax, edge), truth) for say in SAY
        ]
        say = (count * SAY[int(np.argmin(losses))] + PRIOR_ROWS * 0.5) / (count + PRIOR_ROWS)
        weights, offsets = _discriminants(fitted, truth, shares)
        heat = _temperature(_held_odds(fitted, truth, shares), truth)
        slope = SLOPE * _temperature(SLOPE * (fitted - 0.5), truth)
        offsets = heat * (offsets + 0.5 * weights.sum(axis=0))
        return cls(heat * weights / (2.0 * reach), offsets, float(say), slope / (2.0 * reach), edge)

    def probabilities(self, scores: Array) -> Array:
        mixed = self.say * softmax(scores @ self.weights + self.offsets)
        return _bounded(mixed + (1.0 - self.say) * softmax(self.slope * scores), self.edge)

    def to_array(self) -> Array:
        """All numbers in one table."""
        numbers = np.zeros(len(self.offsets))
        numbers[:3] = self.say, self.slope, self.edge
        return np.vstack([self.weights, self.offsets, numbers])

    @classmethod
    def from_array(cls, table: Array, classes: int) -> Discriminant:
        if table.shape != (classes + 2, classes) or not np.isfinite(table).all():
            raise DataError("the label party's shard: malformed probabilities of classes")
        say, slope, edge = table[-1, :3].tolist()
        return cls(table[:classes], table[classes], say, slope, edge)


def out_of_fold(scores: Array, truth: Truth, shares: Array, reach: float) -> Array:
    """Return each row's probabilities, learnt from the other rows."""
    return _out_of_fold(lambda s, t: Discriminant.of(s, t, shares, reach).probabilities, scores, truth)


def softmax(odds: Array) -> Array:
    likely = np.exp(odds - odds.max(axis=1, keepdims=True))
    shares: Array = likely / likely.sum(axis=1, keepdims=True)
    return shares


def _bounded(likely: Array, edge: float) -> Array:
    kept = np.maximum(likely, edge)
    shares: Array = kept / kept.sum(axis=1, keepdims=True)
    return shares


def _log_loss(likely: Array, truth: Truth) -> float:
    return float(-np.log(likely[np.arange(len(truth)), truth]).mean())


def _out_of_fold(
    learn: Callable[[Array, Truth], Callable[[Array], Array]], scores: Array, truth: Truth
) -> Array:
    likely, fold = np.empty_like(scores), folds(truth)
    for number in np.unique(fold):
        test = fold == number
        likely[test] = learn(scores[~test], truth[~test])(scores[test])
    return likely


def _discriminants(fitted: Array, truth: Truth, shares: Array) -> tuple[Array, Array]:
    """Return weights and offsets of the log odds, of scores that are near 0 and 1."""
    apart, count = fitted - shares, len(shares)
    means = shares + apart.T @ apart / len(apart) / shares[:, None]
    for each in range(count):
        own = fitted[truth == each]
        if len(own):
            means[each] += len(own) / (len(own) + PRIOR_ROWS) * (own.mean(axis=0) - means[each])
    left = fitted - means[truth]
    within = left.T @ left / len(left)
    # The scores of a row add up to a constant, so without this there would be no inverse.
    within += max(SHRINKAGE * np.trace(within) / count, 1e-9) * np.eye(count)
    weights: Array = np.asarray(np.linalg.solve(within, means.T), dtype=np.float64)
    return weights, np.log(shares) - 0.5 * np.sum(means * weights.T, axis=1)


def _held_odds(fitted: Array, truth: Truth, shares: Array) -> Array:
    """Return each row's log odds by discriminants of the other rows."""

    def learn(scores: Array, known: Truth) -> Callable[[Array], Array]:
        weights, offsets = _discriminants(scores, known, shares)
        return lambda others: others @ weights + offsets

    return _out_of_fold(learn, fitted, truth)


def _cooled(fitted: Array, truth: Truth, shares: Array) -> Callable[[Array], Array]:
    weights, offsets = _discriminants(fitted, truth, shares)
    heat = _temperature(_held_odds(fitted, truth, shares), truth)
    return lambda others: softmax(heat * (others @ weights + offsets))


def _softmax(fitted: Array, truth: Truth, shares: Array) -> Callable[[Array], Array]:
    heat = _temperature(SLOPE * (fitted - 0.5), truth)
    return lambda others: softmax(heat * SLOPE * (others - 0.5))


def _temperature(odds: Array, truth: Truth) -> float:
    """Return the factor of log odds with the least log loss; few rows hardly move it from 1."""
    losses = [
        len(truth) * _log_loss(_bounded(softmax(heat * odds), 1e-12), truth)
        + PRIOR_ROWS * np.log(heat) ** 2 / 8.0
        for heat in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmin(losses))])
