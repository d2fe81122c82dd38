"""From scores to probabilities and classes, learnt by the label party from held-out scores.

A score becomes a probability by Platt's logistic curve, or by isotonic steps where cross-validation says
that these have the smaller log loss. All of it stays at the label party.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice, check_number
from securefed.errors import DataError, SettingError
from securefed.models.local import sigmoid

__all__ = [
    "THRESHOLDS",
    "Calibration",
    "Discriminant",
    "check_threshold",
    "chosen_threshold",
    "least_rows",
    "out_of_fold",
    "softmax",
    "uncalibrated",
]

Array = NDArray[np.float64]
Truth = NDArray[np.intp]
ISOTONIC_ROWS = 1000
FOLDS = 5
NEWTON_STEPS = 25
DEVIATION = 3.0
"""Of slope and offset of a curve of standardised scores. On 26 tables of the KEEL collection (splits 20 to
24) 3 and 5 had the least log loss."""
THRESHOLDS = ("half", "accuracy", "f1", "balanced")
"""Where `predict` draws the line between two classes: at a probability of a half, or where the accuracy, F1
or the mean of both classes' accuracy was best on the held-out rows."""
CLASS_ROWS = 30
"""As many held-out rows say as much as what is assumed without them: a class's mean, a temperature of 1, and
equal say of discriminants and softmax."""
SHRINKAGE = 0.1
SOFTMAX_SLOPE = 8.0
"""From fitted scores of 0 and 1 to log odds, before there is a temperature: of 4 to 16 this had the least log
loss on wine and digits."""
TEMPERATURES = np.exp(np.linspace(-3.0, 1.5, 46))
SAY = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True, eq=False)
class Calibration:
    """From a score to the probability of the second class: a logistic curve, or steps joined by lines."""

    slope: float
    offset: float
    scores: Array = field(default_factory=lambda: np.zeros(0))
    values: Array = field(default_factory=lambda: np.zeros(0))
    edge: float = 0.0

    @classmethod
    def of(cls, scores: Array, targets: Array) -> Calibration:
        """Learn from scores of rows whose targets are -1 and +1: the kind with the least log loss."""
        positive = targets > 0
        if len(np.unique(positive)) < 2:
            raise DataError("calibration: the held-out rows are all of one class")
        if len(scores) < ISOTONIC_ROWS:
            return cls.curve(scores, targets)
        kinds: list[Callable[[Array, Array], Calibration]] = [cls.curve, cls.steps]
        losses = [_log_loss(_out_of_fold(kind, scores, targets), positive) for kind in kinds]
        return kinds[int(np.argmin(losses))](scores, targets)

    @classmethod
    def curve(cls, scores: Array, targets: Array) -> Calibration:
        """Platt's logistic curve."""
        positive = targets > 0
        many, few = int(positive.sum()), int((~positive).sum())
        middle, spread = float(scores.mean()), float(scores.std()) or 1.0
        z = (scores - middle) / spread
        slope, offset = _logistic(z, positive)
        if slope <= 0:  # scores that say the opposite are no probabilities: the share of the class is
            return cls(0.0, float(np.log(high_share(many, few))), edge=0.5 / len(scores))
        return cls(slope / spread, offset - slope * middle / spread, edge=0.5 / len(scores))

    @classmethod
    def steps(cls, scores: Array, targets: Array) -> Calibration:
        """Isotonic regression, joined by lines."""
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression(out_of_bounds="clip").fit(scores, targets > 0)
        edge = 0.5 / len(scores)
        values = np.clip(fitted.y_thresholds_, edge, 1.0 - edge)
        curve = cls.curve(scores, targets)
        return cls(curve.slope, curve.offset, np.asarray(fitted.X_thresholds_, np.float64), values)

    @classmethod
    def out_of_fold(cls, scores: Array, targets: Array) -> Array | None:
        """Return each row's probability by a calibration of the other rows; None of too few rows."""
        positive = targets > 0
        if min(int(positive.sum()), int((~positive).sum())) < FOLDS:
            return None
        return _out_of_fold(cls.of, scores, targets)

    def probabilities(self, scores: Array) -> Array:
        if len(self.scores):
            return np.interp(scores, self.scores, self.values)
        # No row proves that something never happens: stay half a row away from 0 and 1.
        return np.clip(sigmoid(self.slope * scores + self.offset), self.edge, 1.0 - self.edge)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "curve": np.array([self.slope, self.offset, self.edge]),
            "scores": self.scores,
            "values": self.values,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Calibration:
        try:
            slope, offset, edge = np.asarray(arrays["curve"], dtype=np.float64).tolist()
            scores = np.asarray(arrays["scores"], dtype=np.float64)
            values = np.asarray(arrays["values"], dtype=np.float64)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"calibration: malformed ({error})") from None
        known = bool(np.isfinite([slope, offset]).all()) and 0.0 <= edge < 0.5
        if scores.shape != values.shape or scores.ndim != 1 or not known:
            raise DataError(f"calibration: {scores.shape} scores and {values.shape} values")
        return cls(slope, offset, scores, values, edge)


def _folds(classes: NDArray[Any]) -> NDArray[np.intp]:
    """Number the folds of cross-validation: the rows of each class take turns."""
    numbers = np.empty(len(classes), dtype=np.intp)
    for each in np.unique(classes):
        own = classes == each
        numbers[own] = np.arange(int(own.sum())) % FOLDS
    return numbers


def _out_of_fold(learn: Callable[[Array, Array], Calibration], scores: Array, targets: Array) -> Array:
    likely, fold = np.empty(len(scores)), _folds(targets > 0)
    for number in range(FOLDS):
        test = fold == number
        likely[test] = learn(scores[~test], targets[~test]).probabilities(scores[test])
    return likely


def _log_loss(likely: Array, positive: NDArray[np.bool_]) -> float:
    return float(-np.log(np.where(positive, likely, 1.0 - likely)).mean())


def _logistic(scores: Array, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset of the logistic curve of standardised scores, by Newton's method.

    Few rows of classes that hardly overlap leave it open how steep the curve is. A normal prior says that it
    is near the share of the second class, with this standard deviation.
    """
    share = float(positive.mean())
    prior, strength = np.array([0.0, np.log(share / (1.0 - share))]), DEVIATION**-2.0
    design, curve = np.column_stack([scores, np.ones_like(scores)]), prior.copy()

    def value(at: Array) -> float:
        margins = design @ at
        loss = np.logaddexp(0.0, margins) - positive * margins
        return float(loss.sum() + 0.5 * strength * ((at - prior) ** 2).sum())

    for _ in range(NEWTON_STEPS):
        likely = sigmoid(design @ curve)
        gradient = design.T @ (likely - positive) + strength * (curve - prior)
        hessian = (design.T * (likely * (1.0 - likely))) @ design + strength * np.eye(2)
        change, length = np.linalg.solve(hessian, gradient), 1.0
        while value(curve - length * change) > value(curve) and length > 1e-6:
            length /= 2.0
        curve = curve - length * change
    return float(curve[0]), float(curve[1])


def high_share(many: int, few: int) -> float:
    """The odds of the second class."""
    return (many + 1.0) / (few + 1.0)


def uncalibrated(*, taylor: bool) -> Callable[[Array], Array]:
    """Probabilities without held-out rows. A Taylor fit is least squares on 2 y: H/2 is near the mean y."""
    if taylor:
        return lambda scores: np.clip(0.5 + scores / 4.0, 1e-3, 1.0 - 1e-3)
    return sigmoid


def check_threshold(value: object) -> str | float:
    """A named criterion, or a probability."""
    if isinstance(value, str):
        return check_choice("threshold", value, THRESHOLDS)
    return check_number("threshold", value, above=0.0, below=1.0)


def chosen_threshold(wanted: str | float, probabilities: Array | None, targets: Array | None) -> float:
    """The probability from which on `predict` says the second class."""
    if not isinstance(wanted, str):
        return wanted
    if wanted == "half":
        return 0.5
    if probabilities is None or targets is None:
        raise SettingError(f"threshold: {wanted!r} is chosen on held-out rows, and holdout is 0")
    from sklearn.metrics import roc_curve

    positive = targets > 0
    false, true, lines = roc_curve(positive, probabilities, drop_intermediate=False)
    many, few = int(positive.sum()), int((~positive).sum())
    if wanted == "accuracy":
        worth = true * many + (1.0 - false) * few
    elif wanted == "balanced":
        worth = true - false
    else:
        worth = 2.0 * true * many / (true * many + false * few + many)
    best = int(np.argmax(worth))
    if not np.isfinite(lines[best]):  # nobody
        return float(np.clip(probabilities.max() + 1e-6, 0.5, 1.0))
    following = lines[best + 1] if best + 1 < len(lines) else 0.0
    return float((lines[best] + following) / 2.0)


# Several classes


def least_rows(classes: int) -> int:
    """Held-out rows that it takes to learn from."""
    return max(10, 2 * classes)


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Probabilities of classes: a mixture of linear discriminants and the softmax of the scores.

    Least squares scores of c classes hold what linear discriminant analysis needs. Let Y be the classes as 0
    and 1, and F the fitted scores. The normal equations say cov(F, Y) = cov(F) and mean(F) = share. So the
    mean of F over the rows of class k is share + cov(F)[k] / share(k). That takes one covariance of all rows,
    where means of their own would take many rows of every class. Those means correct it, as far as there are
    rows. The classes are then normal with one covariance. The largest score alone is a worse guess: a class
    between two others never has it.

    Two numbers are left, which all classes share: the temperature of the discriminants, and how much the
    softmax of the scores themselves has a say. Both come from cross-validation on the held-out rows.
    """

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
            _classes_out_of_fold(lambda f, t, learn=learn: learn(f, t, shares), fitted, truth)  # type: ignore[misc]
            for learn in (_cooled, _learnt_softmax)
        )
        losses = [
            _class_loss(_bounded(say * discriminants + (1.0 - say) * softmax, edge), truth) for say in SAY
        ]
        say = (count * SAY[int(np.argmin(losses))] + CLASS_ROWS * 0.5) / (count + CLASS_ROWS)
        weights, offsets = _discriminants(fitted, truth, shares)
        heat = _temperature(_held_odds(fitted, truth, shares), truth)
        slope = SOFTMAX_SLOPE * _temperature(SOFTMAX_SLOPE * (fitted - 0.5), truth)
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
    return _classes_out_of_fold(
        lambda s, t: Discriminant.of(s, t, shares, reach).probabilities, scores, truth
    )


def softmax(odds: Array) -> Array:
    likely = np.exp(odds - odds.max(axis=1, keepdims=True))
    shares: Array = likely / likely.sum(axis=1, keepdims=True)
    return shares


def _bounded(likely: Array, edge: float) -> Array:
    kept = np.maximum(likely, edge)
    shares: Array = kept / kept.sum(axis=1, keepdims=True)
    return shares


def _class_loss(likely: Array, truth: Truth) -> float:
    return float(-np.log(likely[np.arange(len(truth)), truth]).mean())


def _classes_out_of_fold(
    learn: Callable[[Array, Truth], Callable[[Array], Array]], scores: Array, truth: Truth
) -> Array:
    likely, fold = np.empty_like(scores), _folds(truth)
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
            means[each] += len(own) / (len(own) + CLASS_ROWS) * (own.mean(axis=0) - means[each])
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

    return _classes_out_of_fold(learn, fitted, truth)


def _cooled(fitted: Array, truth: Truth, shares: Array) -> Callable[[Array], Array]:
    weights, offsets = _discriminants(fitted, truth, shares)
    heat = _temperature(_held_odds(fitted, truth, shares), truth)
    return lambda others: softmax(heat * (others @ weights + offsets))


def _learnt_softmax(fitted: Array, truth: Truth, shares: Array) -> Callable[[Array], Array]:
    heat = _temperature(SOFTMAX_SLOPE * (fitted - 0.5), truth)
    return lambda others: softmax(heat * SOFTMAX_SLOPE * (others - 0.5))


def _temperature(odds: Array, truth: Truth) -> float:
    """Return the factor of log odds with the least log loss; few rows hardly move it from 1."""
    losses = [
        len(truth) * _class_loss(_bounded(softmax(heat * odds), 1e-12), truth)
        + CLASS_ROWS * np.log(heat) ** 2 / 8.0
        for heat in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmin(losses))])
