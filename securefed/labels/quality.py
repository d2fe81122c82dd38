"""How good a model is, and what its scores mean: measured once, on rows that were held out.

A share of the common rows is set aside by the shared seed. At the end of the training the label party gets
their (blurred) scores, and compares with its own labels: the joint model, the label party's columns alone,
and chance. From the same scores it learns how a score becomes a probability (Platt's logistic curve; isotonic
from 1,000 rows on) and where the line between two classes is. All of it stays at the label party.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice, check_number
from securefed.errors import DataError, SettingError
from securefed.models.activations import sigmoid

__all__ = [
    "THRESHOLDS",
    "Calibration",
    "HeldOut",
    "HeldOutMeans",
    "Holdout",
    "check_threshold",
    "chosen_threshold",
    "compared",
    "uncalibrated",
]

Array = NDArray[np.float64]
ISOTONIC_ROWS = 1000
LARGEST_MARGIN = 30.0
"""Of a logarithm of a mean."""
FOLDS = 5
NEWTON_STEPS = 25
THRESHOLDS = ("half", "accuracy", "f1", "balanced")
"""Where `predict` draws the line between two classes: at a probability of a half, or where the accuracy, F1
or the mean of both classes' accuracy was best on the held-out rows."""


@dataclass(frozen=True)
class Holdout:
    """What the held-out rows said. More is better for every metric here."""

    metric: str
    """"AUC", "accuracy", "R2" or "D2" (the share of the deviance that is explained)."""
    value: float
    alone: float
    """The same for the label party's own columns, by a model of its own."""
    chance: float
    rows: int
    more: Mapping[str, float] = field(default_factory=dict)
    """Other measures of the joint model: of calibrated probabilities (each row's from a curve fitted on other
    rows), or the root mean squared error."""
    classes: Sequence[Any] = ()
    """Of three or more, with `confusion`: how many held-out rows of each class (row) were taken for each
    (column). The label party's own counts of its own labels."""
    confusion: Sequence[Sequence[int]] = ()

    @property
    def warning(self) -> str | None:
        """What to say loudly, if there is something."""
        # Differences below a standard error or so are noise; this is a rough one for all metrics.
        noise = max(0.005, 0.5 / np.sqrt(self.rows))
        if self.value < self.chance + max(0.02, 2.0 * noise):
            worse = f"not clearly better than chance ({self.chance:.4f})"
        elif self.value < self.alone - min(0.1, noise):
            worse = f"worse than the label party's own columns alone ({self.alone:.4f})"
        else:
            return None
        return (
            f"THE JOINT MODEL IS {worse.upper()}: {self.metric} {self.value:.4f} on {self.rows:,} held-out "
            "rows; likely causes: too few rounds, batches that are too small, columns that need "
            "transform='auto', rows that are not about the same people"
        )

    def to_dict(self) -> dict[str, Any]:
        counted = {"classes": list(self.classes), "counts": [list(row) for row in self.confusion]}
        plain = {key: value for key, value in asdict(self).items() if key not in ("classes", "confusion")}
        confusion = counted if self.confusion else None
        return {**plain, "more": dict(self.more), "confusion": confusion, "warning": self.warning}

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.value:.4f} on {self.rows:,} held-out rows "
            f"(the label party alone {self.alone:.4f}, chance {self.chance:.4f})"
        )


class HeldOut:
    """The metric of evaluations at the label party, which remembers the scores that it was given."""

    def __init__(self, targets: Array, *, binary: bool) -> None:
        self.targets, self.binary = targets, binary
        self.scores: list[Array] = []
        self._base: tuple[Array, float] | None = None

    def context(self, margins: Array, step: float) -> None:
        """Scores are those of a correction of the label party's own fit (securefed.labels.base_model)."""
        self._base = margins, step

    @property
    def name(self) -> str:
        if not self.binary:
            return "R2"
        return "AUC" if len(np.unique(self.targets)) == 2 else "accuracy"

    def __call__(self, scores: Array) -> float:
        # The other party decides how many scores it sends.
        if scores.shape != self.targets.shape:
            given = f"scores of shape {scores.shape} given for {len(self.targets)} labels"
            raise DataError(f"evaluation: {given}")
        if self._base is not None:
            scores = self._base[0] + self._base[1] * scores
        self.scores.append(scores)
        return self.value(scores)

    def value(self, scores: Array) -> float:
        from sklearn.metrics import r2_score, roc_auc_score

        if self.name == "AUC":
            return float(roc_auc_score(self.targets, scores))
        if self.name == "accuracy":
            return float(np.mean((scores > 0) == (self.targets > 0)))
        return float(r2_score(self.targets, scores))


class HeldOutMeans(HeldOut):
    """Of counts and amounts, by the deviance of their family."""

    def __init__(self, targets: Array, power: float) -> None:
        super().__init__(targets, binary=False)
        self._power = power

    @property
    def name(self) -> str:
        return "D2"

    def value(self, scores: Array) -> float:
        from sklearn.metrics import d2_tweedie_score

        means = np.exp(np.clip(scores, -LARGEST_MARGIN, LARGEST_MARGIN))
        return float(d2_tweedie_score(self.targets, means, power=self._power))

    @property
    def margins(self) -> Array:
        """Of the own fit that scores are around."""
        if self._base is None:
            raise DataError("evaluation: a family without the label party's own fit")
        return self._base[0]

    def compared(self, scores: Array) -> Holdout:
        """Beside the own fit."""
        off = np.exp(np.clip(scores, -LARGEST_MARGIN, LARGEST_MARGIN)) - self.targets
        more = {"RMSE": float(np.sqrt(np.mean(off**2)))}
        return Holdout(self.name, self.value(scores), self.value(self.margins), 0.0, len(scores), more)


def compared(held: HeldOut, scores: Array, own: tuple[Array, Array, Array], *, unit: float = 1.0) -> Holdout:
    """The joint model's scores beside the label party alone and chance. `own`: the label party's columns of
    the training rows, its labels of them, and its columns of the held-out rows. `unit`: of numbers.
    """
    columns, labels, seen = own
    alone = held.value(_alone(columns, labels, seen, binary=held.binary))
    if held.binary:
        chance = 0.5 if held.name == "AUC" else float(max(np.mean(labels > 0), np.mean(labels < 0)))
        more = _probabilities_measured(scores, held.targets)
    else:
        chance = 0.0
        more = {"RMSE": unit * float(np.sqrt(np.mean((scores - held.targets) ** 2)))}
    return Holdout(held.name, held.value(scores), alone, chance, len(scores), more)


def _alone(columns: Array, labels: Array, seen: Array, *, binary: bool) -> Array:
    if len(np.unique(labels)) < 2:
        return np.full(len(seen), labels[0])
    from sklearn.linear_model import LogisticRegression, RidgeCV

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: a baseline is good enough without
        if binary:
            scores: Array = LogisticRegression(max_iter=300).fit(columns, labels).decision_function(seen)
        else:
            scores = RidgeCV(np.logspace(-2, 4, 7)).fit(columns, labels).predict(seen)
    return scores


def _probabilities_measured(scores: Array, targets: Array) -> dict[str, float]:
    """Brier score, log loss and accuracy of calibrated probabilities, each row's from the other folds."""
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
    from sklearn.model_selection import StratifiedKFold

    positive = targets > 0
    least = min(int(positive.sum()), int((~positive).sum()))
    if least < FOLDS:
        return {}
    found = np.empty(len(scores))
    for fit, test in StratifiedKFold(FOLDS).split(scores[:, None], positive):
        found[test] = Calibration.of(scores[fit], targets[fit]).probabilities(scores[test])
    return {
        "Brier": float(brier_score_loss(positive, found)),
        "log loss": float(log_loss(positive, found)),
        "accuracy": float(accuracy_score(positive, found > 0.5)),
    }


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
        positive = targets > 0
        if len(np.unique(positive)) < 2:
            raise DataError("calibration: the held-out rows are all of one class")
        if len(scores) >= ISOTONIC_ROWS:
            from sklearn.isotonic import IsotonicRegression

            fitted = IsotonicRegression(out_of_bounds="clip").fit(scores, positive)
            edge = 0.5 / len(scores)
            values = np.clip(fitted.y_thresholds_, edge, 1.0 - edge)
            return cls(1.0, 0.0, np.asarray(fitted.X_thresholds_, np.float64), values)
        many, few = int(positive.sum()), int((~positive).sum())
        middle, spread = float(scores.mean()), float(scores.std()) or 1.0
        slope, offset = _logistic((scores - middle) / spread, positive)
        if slope <= 0:  # scores that say the opposite are no probabilities: the share of the class is
            return cls(0.0, float(np.log(high_share(many, few))), edge=0.5 / len(scores))
        return cls(slope / spread, offset - slope * middle / spread, edge=0.5 / len(scores))

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


def _logistic(scores: Array, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset of the logistic curve of standardised scores, by Newton's method.

    Few rows of classes that hardly overlap leave it open how steep the curve is. A normal prior of standard
    deviation 1 says that it is near the one that two normal classes with the same variance have: a fit of
    least squares, as a blind one is, is as good as that of normal classes.
    """
    first, second = scores[~positive], scores[positive]
    within = float(((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum() + 1.0)
    slope = float(second.mean() - first.mean()) * len(scores) / within
    centre = float(second.mean() + first.mean()) / 2.0
    prior = np.array([slope, np.log(len(second) / len(first)) - slope * centre])
    design, curve = np.column_stack([scores, np.ones_like(scores)]), prior.copy()

    def value(at: Array) -> float:
        margins = design @ at
        loss = np.logaddexp(0.0, margins) - positive * margins
        return float(loss.sum() + 0.5 * ((at - prior) ** 2).sum())

    for _ in range(NEWTON_STEPS):
        likely = sigmoid(design @ curve)
        gradient = design.T @ (likely - positive) + curve - prior
        hessian = (design.T * (likely * (1.0 - likely))) @ design + np.eye(2)
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
