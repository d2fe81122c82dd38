"""Probabilities and classes from scores, learnt by the label party from held-out scores.

A score becomes a probability by Platt's logistic curve, which may bend. All of it stays at the label party.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from securefed.declare import check_choice, check_number
from securefed.errors import DataError, SettingError
from securefed.labels.base_model import Family, softmax
from securefed.models.local import sigmoid

Array = NDArray[np.float64]
Truth = NDArray[np.intp]
FOLDS = 5
DEVIATION, BEND_DEVIATION = 3.0, 0.5
"""Prior standard deviations of slope and offset, and of the bend (docs/choosing.md)."""
THRESHOLDS = ("half", "accuracy", "f1", "balanced")
"""Where `predict` draws the line between two classes: at a probability of a half, or where the accuracy, F1
or the mean of both classes' accuracy was best on the held-out rows."""
CLASS_VARIANCE, FREE_VARIANCE = 0.5, 3.0
"""Prior variances of per-class weights: beside one slope for all own scores, and without one."""
NEVER = -30.0
"""The log odds of a class that no held-out row has."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """The probability of the second class for a score: a logistic curve.

    `bend`: the lowest and the highest score of a bent curve, and the coefficients of its log odds.
    """

    slope: float
    offset: float
    edge: float = 0.0
    bend: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, scores: Array, targets: Array) -> Calibration:
        """Learn from scores of rows whose targets are -1 and +1.

        The log odds have a square of the score too, as far as they rise with it. Below and above the held-out
        scores, and where they would fall, they are level.
        """
        straight = cls.straight(scores, targets)
        middle, spread = float(scores.mean()), float(scores.std()) or 1.0
        z = Polynomial([-middle / spread, 1.0 / spread])
        odds = Polynomial(_logistic(z(scores), targets > 0, 2))(z)
        if odds.degree() < 2 or not odds.coef[2]:  # all scores are equal
            return straight
        (turn,), (low, high) = odds.deriv().roots(), (scores.min(), scores.max())
        low, high = (max(low, turn), high) if odds.coef[2] > 0 else (low, min(high, turn))
        return replace(straight, bend=np.array([low, high, *odds.coef])) if low < high else straight

    @classmethod
    def straight(cls, scores: Array, targets: Array) -> Calibration:
        """Learn Platt's logistic curve."""
        positive = targets > 0
        if len(np.unique(positive)) < 2:
            raise DataError("calibration: the held-out rows are all of one class")
        many, few = int(positive.sum()), int((~positive).sum())
        middle, spread = float(scores.mean()), float(scores.std()) or 1.0
        z = (scores - middle) / spread
        offset, slope = _logistic(z, positive, 1).tolist()
        if slope <= 0:  # scores that say the opposite are no probabilities: the share of the class is
            return cls(0.0, float(np.log((many + 1.0) / (few + 1.0))), edge=0.5 / len(scores))
        return cls(slope / spread, offset - slope * middle / spread, edge=0.5 / len(scores))

    @classmethod
    def out_of_fold(cls, scores: Array, targets: Array) -> Array | None:
        """Return each row's probability by a calibration of the other rows; None of too few rows."""
        positive = targets > 0
        if min(int(positive.sum()), int((~positive).sum())) < FOLDS:
            return None
        likely, fold = np.empty(len(scores)), _folds(positive)
        for number in range(FOLDS):
            test = fold == number
            likely[test] = cls.of(scores[~test], targets[~test]).probabilities(scores[test])
        return likely

    def probabilities(self, scores: Array) -> Array:
        odds = self.slope * scores + self.offset
        if len(self.bend):
            low, high, *coefficients = self.bend.tolist()
            odds = Polynomial(coefficients)(np.clip(scores, low, high))
        # No row proves that something never happens: stay half a row away from 0 and 1.
        return np.clip(sigmoid(odds), self.edge, 1.0 - self.edge)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"curve": np.array([self.slope, self.offset, self.edge]), "bend": self.bend}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Calibration:
        try:
            slope, offset, edge = np.asarray(arrays["curve"], dtype=np.float64).tolist()
            bend = np.asarray(arrays.get("bend", np.zeros(0)), dtype=np.float64)  # version 0.1 has none
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"calibration: malformed ({error})") from None
        known = bool(np.isfinite([slope, offset, *bend.ravel()]).all()) and 0.0 <= edge < 0.5
        if not known or bend.shape not in ((0,), (5,)):
            raise DataError("calibration: malformed numbers")
        return cls(slope, offset, edge, bend)


def _folds(classes: NDArray[Any]) -> NDArray[np.intp]:
    """Number the folds of cross-validation: the rows of each class take turns."""
    numbers = np.empty(len(classes), dtype=np.intp)
    for each in np.unique(classes):
        own = classes == each
        numbers[own] = np.arange(int(own.sum())) % FOLDS
    return numbers


def _logistic(scores: Array, positive: NDArray[np.bool_], degree: int) -> Array:
    """Coefficients of the log odds by powers of standardised scores.

    Few rows of classes that hardly overlap leave it open how steep the curve is. A normal prior says that it
    is near the share of the second class, with these standard deviations.
    """
    share, ones = float(positive.mean()), np.ones(len(scores))
    usual, strength = np.log(share / (1.0 - share)), np.array([DEVIATION, DEVIATION, BEND_DEVIATION]) ** -2.0
    design = np.vander(scores, degree + 1, increasing=True)
    curve = Family("classes").fitted(
        design, positive.astype(np.float64), ones, usual * ones, strength[: degree + 1]
    )
    curve[0] += usual
    return curve


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
class ClassCurve:
    """Probabilities of classes: a multinomial logistic regression of the scores of all classes.

    A score for another class says something about this one. The largest score alone is a worse guess: of
    least squares a class between two others never has it. docs/choosing.md says what the mean of
    three kinds of curves was chosen by.
    """

    weights: Array
    """The log odds, but for what classes share, are scores @ weights + offsets."""
    offsets: Array
    edge: float
    """No probability is below."""

    @classmethod
    def of(cls, scores: Array, truth: Truth) -> ClassCurve:
        """Learn from scores of rows, (rows, classes), and the positions of their classes.

        Each curve of the three kinds errs in its own way. The mean of their log odds errs less.
        """
        curves = [cls.of_kind(scores, truth, kind) for kind in ("near", "free", "slope")]
        weights = np.mean([curve.weights for curve in curves], axis=0)
        return cls(weights, np.mean([curve.offsets for curve in curves], axis=0), curves[0].edge)

    @classmethod
    def of_kind(cls, scores: Array, truth: Truth, kind: str) -> ClassCurve:
        """Learn one curve. "slope": own scores have one slope, and nothing else counts. "near": few rows
        hardly depart from it. "free": each class takes what it likes of all scores.
        """
        from scipy.optimize import minimize

        (rows, count), spread, known = scores.shape, float(scores.std()) or 1.0, np.unique(truth)
        weights, offsets, scaled = np.zeros((count, count)), np.full(count, NEVER), scores / spread
        own, indicators = (kind != "free") * np.eye(count)[:, known], truth[:, None] == known
        variance = FREE_VARIANCE if kind == "free" else CLASS_VARIANCE

        def parts(at: Array) -> tuple[float, Array, Array]:
            """The slope of own scores, all that is taken of scores beside it, and offsets."""
            return float(at[0]), at[1 : -len(known)].reshape(own.shape), at[-len(known) :]

        def value(at: Array) -> tuple[float, Array]:
            slope, more, starts = parts(at)
            likely = softmax(scaled @ (slope * own + more) + starts)
            loss = -np.log(np.maximum(likely[indicators], 1e-300)).sum()
            loss += 0.5 * (more**2).sum() / variance + 0.5 * (slope / DEVIATION) ** 2
            left = likely - indicators
            change = scaled.T @ left
            first = (change * own).sum() + slope / DEVIATION**2
            rest = np.concatenate([(change + more / variance).ravel(), left.sum(axis=0)])
            return loss, np.append(first, 0.0 * rest if kind == "slope" else rest)

        start = np.zeros(1 + own.size + len(known))
        slope, more, starts = parts(minimize(value, start, jac=True, method="L-BFGS-B").x)
        weights[:, known], offsets[known] = (slope * own + more) / spread, starts - starts.mean()
        return cls(weights, offsets, 0.5 / rows)

    @staticmethod
    def out_of_fold(scores: Array, truth: Truth) -> Array:
        """Return each row's probabilities, learnt from the other rows."""
        likely, fold = np.empty_like(scores), _folds(truth)
        for number in np.unique(fold):
            test = fold == number
            likely[test] = ClassCurve.of(scores[~test], truth[~test]).probabilities(scores[test])
        return likely

    def probabilities(self, scores: Array) -> Array:
        likely = np.maximum(softmax(scores @ self.weights + self.offsets), self.edge)
        shares: Array = likely / likely.sum(axis=1, keepdims=True)
        return shares

    def to_array(self) -> Array:
        """All numbers in one table."""
        return np.vstack([self.weights, self.offsets, np.full(len(self.offsets), self.edge)])

    @classmethod
    def from_array(cls, table: Array, classes: int) -> ClassCurve:
        if table.shape != (classes + 2, classes) or not np.isfinite(table).all() or np.ptp(table[-1]):
            raise DataError("the label party's shard: malformed probabilities of classes")
        return cls(table[:classes], table[classes], float(table[-1, 0]))
