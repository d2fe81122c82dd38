"""A joint model around the label party's own fit: weights, offsets, rare classes and counts, blind.

What all parties compute is least squares with the same weight for every row, whatever the label party wants:
weights that depend on rows would have to multiply numbers that nobody may see. But it is the label party's
business what it is the least squares fit *of*. So it first fits its own columns, with weights, offset and
family as they should be, and then gives to the joint training what is left over:

    eta0    its own fit, with the offset; mu its mean
    z       w r / c,  r the score of the loss at eta0 and c the mean of w times its expected curvature
    eta     eta0 + the joint fit of z

which is one step of Fisher's scoring on all columns from eta0, with the mean curvature in place of each row's
own. Nothing about it is public: messages, ranges and agreement are those of any run, and nobody else learns
that there are weights. What it is worth beside row-wise weights is in docs/choosing.md.

The residuals of a training row are those of a fit without it (five folds), so that columns which fit the own
rows too well leave something to the others.

Counts (powers below 2) start from one rate for all rows instead, and the held-out rows bend what is added:

    eta     eta0 + bend * log(1 + s) + line * s,     s the joint fit of u / mean(u) - 1,  u = y^(3/4)

since least squares says by how much a mean is larger, not by how much its logarithm is. The power keeps
single large counts from deciding. 1 + s is at least 0.2. What it was chosen by is in docs/choosing.md.
Amounts of the family "gamma" lost by a start from one rate.

    family       mean            score r                expected curvature
    two classes  1/(1+exp(-eta)) y - mu                 mu (1 - mu)
    numbers      eta             y - mu                 1
    power p      exp(eta)        (y - mu) mu^(1-p)      mu^(2-p)       p = 1 Poisson, 2 Gamma, else Tweedie
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.declare import check_choice, check_number
from securefed.errors import DataError, SettingError
from securefed.labels.quality import LARGEST_MARGIN
from securefed.models.local import sigmoid
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
FAMILIES = {"poisson": 1.0, "gamma": 2.0}
FOLDS = 5
AS_IT_IS = 10.0
"""The weight of a step of 1 when it is calibrated."""
COUNT_POWER = 0.75
LEAST_RATIO = 0.2
"""Least squares may say that a mean is below 0. It is taken to be at least this part of the mean of all."""
NEWTON_STEPS = 30
RARE = 0.1
"""A class of fewer of the rows is given weight by itself."""
OWN = "own"


def check_family(value: object) -> float | None:
    """The power of the variance; None for the loss as it is."""
    if value is None:
        return None
    if isinstance(value, str):
        return FAMILIES[check_choice("family", value, FAMILIES)]
    power = check_number("family", value, least=1.0)
    if power > 2.0:
        raise SettingError(f"family: {power:g} given, at most 2 is allowed")
    return power


def check_class_weight(value: object) -> None:
    if value is None or value in ("auto", "balanced"):
        return
    if not isinstance(value, Mapping):
        raise SettingError(
            f"class_weight: {value!r} given, 'auto', 'balanced' or a weight for each class is allowed"
        )
    for name, weight in value.items():
        check_number(f"class_weight of {name!r}", weight, above=0.0)


@dataclass(frozen=True, eq=False)
class LabelOptions:
    """What a label party may want of its rows, beyond a fit from 0."""

    base: bool = False
    """Start from the own fit, with all rows alike."""
    class_weight: Any = None
    family: float | None = None
    weighted: bool = False
    """Rows have weights of their own."""
    offset: bool = False
    automatic: bool = False
    """The weights of classes were not asked for."""

    @property
    def counts(self) -> bool:
        """Whether the joint fit starts from one rate for all rows."""
        return self.family is not None and self.family < 2.0

    @property
    def any(self) -> bool:
        chosen = self.class_weight not in (None, "auto")
        return self.base or self.weighted or self.offset or chosen or self.family is not None

    def settled(self, labels: NDArray[Any], *, free: bool) -> LabelOptions:
        """Without "auto": where it is `free` to choose, a class of less than a tenth of the rows counts by
        the root of how much rarer it is, half way to "balanced".
        """
        if self.class_weight != "auto":
            return self
        chosen: dict[Any, float] | None = None
        counts = Counter(labels.tolist()) if free and labels.ndim == 1 else Counter()
        most, least = max(counts.values(), default=0), min(counts.values(), default=0)
        if len(counts) == 2 and least < RARE * (most + least):
            chosen = {name: float(np.sqrt(most / count)) for name, count in counts.items()}
        return replace(self, class_weight=chosen, automatic=chosen is not None)

    def check(self, loss: Loss, *, taylor: bool) -> None:
        """SettingError where they do not go together."""
        check_class_weight(self.class_weight)
        if self.family is not None and loss.name != "linear":
            raise SettingError(f"family: it goes with the loss 'linear', {loss.name!r} given")
        if self.class_weight not in (None, "auto") and not loss.binary:
            raise SettingError(f"class_weight: the loss {loss.name!r} has no classes")
        if not self.any:
            return
        word = "class_weight" if self.class_weight is not None else "family" if self.family else "base"
        word = "weights" if self.weighted else "offset" if self.offset else word
        if loss.name not in ("logistic", "linear"):
            raise SettingError(f"{word}: it takes the loss 'logistic' or 'linear', {loss.name!r} given")
        if loss.binary and not taylor:
            raise SettingError(f"{word}: it takes Plain(like='blind') in the clear")

    def weights(self, targets: Array, classes: NDArray[Any] | None, rows: Array | None) -> Array:
        """Of the training rows, by their classes and by themselves."""
        weights = np.ones(len(targets)) if rows is None else rows.astype(np.float64)
        if self.class_weight is None or classes is None:
            return weights
        second = targets > 0
        if self.class_weight == "balanced":
            each = [len(targets) / (2.0 * max(1.0, float(part.sum()))) for part in (~second, second)]
        else:
            known = {str(name): float(weight) for name, weight in self.class_weight.items()}
            if set(known) != {str(name) for name in classes}:
                names = " and ".join(map(str, classes))
                raise SettingError(f"class_weight: {', '.join(known)} given, the classes are {names}")
            each = [known[str(name)] for name in classes]
        return weights * np.where(second, each[1], each[0])


@dataclass(frozen=True, eq=False)
class OwnFit:
    """The label party's own part: coefficients of its columns and an intercept, and what a score of the joint
    fit is worth.
    """

    kind: str
    """"classes", "numbers" or "power"."""
    power: float
    coefficients: Array
    curvature: float = 1.0
    """c"""
    step: float = 1.0
    """eta = eta0 + step * score."""
    shift: float = 0.0
    """What weights of the classes add to the log odds: the logarithm of their ratio."""
    bend: float = 0.0
    line: float = 1.0
    """What is added to eta0 is bend * log(1 + step * score) + line * step * score."""

    @classmethod
    def learn(
        cls,
        columns: Array,
        targets: Array,
        weights: Array,
        offset: Array | None,
        loss: Loss,
        wishes: LabelOptions,
    ) -> tuple[OwnFit, Array, Array]:
        """From the training rows: the fit, what the joint training is to fit of them, and each one's margin
        by a fit without it.
        """
        kind = "classes" if loss.binary else "numbers" if wishes.family is None else "power"
        power = wishes.family or 0.0
        if kind == "power" and (targets < 0).any():
            raise DataError("labels: negative ones given, a family of counts or amounts has none")
        if kind == "power" and power == 2.0 and (targets == 0).any():
            raise DataError("labels: zeros given, the family 'gamma' takes amounts above 0; 1.5 takes both")
        weights, shift = weights / weights.mean(), np.zeros(len(targets)) if offset is None else offset
        design = np.column_stack([columns, np.ones(len(columns))])
        model = cls(kind, power, np.zeros(design.shape[1]))
        fit = model._fitted(design, targets, weights, shift)
        eta, fold = np.empty(len(targets)), np.arange(len(targets)) % FOLDS
        for number in range(FOLDS):
            test, train = fold == number, fold != number
            apart = model._fitted(design[train], targets[train], weights[train], shift[train])
            eta[test] = model._bounded(design[test] @ apart + shift[test])
        curvature = float(np.mean(weights * model._curvature(eta)))
        z = weights * model._score(eta, targets) / curvature
        step = float(np.sqrt(np.mean(z**2))) or 1.0
        odds = _weighted_odds(targets, weights) if kind == "classes" else 0.0
        return cls(kind, power, fit, curvature, step, odds), _as_labels(z / step, loss), eta

    def targets(
        self, columns: Array, targets: Array, weights: Array, offset: Array | None, loss: Loss
    ) -> Array:
        """What the joint training is to fit of rows that the own fit did not see; `weights` by the mean of
        the others'.
        """
        left = weights * self._score(self.margins(columns, offset), targets)
        return _as_labels(left / self.curvature / self.step, loss)

    def margins(self, columns: Array, offset: Array | None) -> Array:
        """eta0."""
        scores: Array = columns @ self.coefficients[:-1] + self.coefficients[-1]
        return self._bounded(scores if offset is None else scores + offset)

    def total(self, scores: Array, columns: Array, offset: Array | None) -> Array:
        """eta, from scores of the joint fit."""
        more = self.step * scores
        return self.margins(columns, offset) + self.bend * _log_ratio(more) + self.line * more

    def _bounded(self, eta: Array) -> Array:
        return eta if self.kind == "numbers" else np.clip(eta, -LARGEST_MARGIN, LARGEST_MARGIN)

    def calibrated(self, margins: Array, eta: Array, targets: Array) -> tuple[OwnFit, Array]:
        """By rows that were held out: how far to go along the joint fit, and what to add. And eta of those
        rows, each by what the others say.

        A single step from eta0 goes too far where means differ much; along it, no other party is needed.
        """
        more, rows, told = eta - margins, np.arange(len(eta)), np.empty(len(eta))
        for number in range(FOLDS):
            others = rows % FOLDS != number
            fit, constant = self._along(more[others], margins[others], targets[others])
            told[~others] = (
                margins[~others] + fit.bend * _log_ratio(more[~others]) + fit.line * more[~others] + constant
            )
        fit, constant = self._along(more, margins, targets)
        coefficients = np.append(self.coefficients[:-1], self.coefficients[-1] + constant)
        return replace(fit, coefficients=coefficients), told

    def _along(self, more: Array, margins: Array, targets: Array) -> tuple[OwnFit, float]:
        """Few rows hardly move it from the step as it is, or for counts from (1 + s)^(4/3)."""
        ones = np.ones(len(more))
        if self.power >= 2.0:
            design = np.column_stack([more, ones])
            far, constant = self._fitted(design, targets, ones, margins + more, np.full(2, AS_IT_IS))
            return replace(self, line=float(np.clip(1.0 + far, 0.0, 2.0))), float(constant)
        terms = {"bend": (_log_ratio(more), 1.0 / COUNT_POWER), "line": (more, 0.0)}
        while True:  # a larger score is never a smaller mean: without the terms that would say so
            start = margins + sum(term * usual for term, usual in terms.values())
            design = np.column_stack([*(term for term, _ in terms.values()), ones])
            *far, constant = self._fitted(design, targets, ones, start, np.ones(len(terms) + 1)).tolist()
            slopes = {name: terms[name][1] + each for name, each in zip(terms, far, strict=True)}
            if all(slope >= 0.0 for slope in slopes.values()):
                return replace(self, **{"bend": 0.0, "line": 0.0, **slopes}), constant
            del terms[min(slopes, key=slopes.__getitem__)]

    def mean(self, eta: Array) -> Array:
        if self.kind == "numbers":
            return eta
        return sigmoid(eta) if self.kind == "classes" else np.exp(np.minimum(eta, LARGEST_MARGIN))

    def _score(self, eta: Array, targets: Array) -> Array:
        mean = self.mean(eta)
        if self.kind == "classes":
            return (targets > 0) - mean
        left: Array = targets - mean
        return left * mean ** (1.0 - self.power) if self.kind == "power" else left

    def _curvature(self, eta: Array) -> Array:
        if self.kind == "numbers":
            return np.ones(len(eta))
        mean = self.mean(eta)
        return mean * (1.0 - mean) if self.kind == "classes" else mean ** (2.0 - self.power)

    def _loss(self, eta: Array, targets: Array) -> Array:
        """But for what depends on the targets alone."""
        if self.kind == "classes":
            return np.logaddexp(0.0, eta) - (targets > 0) * eta
        if self.kind == "numbers":
            return 0.5 * (eta - targets) ** 2
        p, eta = self.power, np.minimum(eta, LARGEST_MARGIN)
        first = eta if p == 1.0 else np.exp((1.0 - p) * eta) / (1.0 - p)
        second = eta if p == 2.0 else np.exp((2.0 - p) * eta) / (2.0 - p)
        loss: Array = second - targets * first
        return loss

    def _fitted(
        self, design: Array, targets: Array, weights: Array, shift: Array, penalty: Array | None = None
    ) -> Array:
        """Penalised, by Fisher's scoring: as of one row, and none on the intercept, unless it is given."""
        coefficients, fixed = np.zeros(design.shape[1]), penalty is not None
        penalty = np.append(np.ones(len(coefficients) - 1), 1e-6) if penalty is None else penalty
        if self.kind == "power" and not fixed:
            coefficients[-1] = np.log(max(1e-12, float(weights @ targets) / float(weights @ np.exp(shift))))

        def value(at: Array) -> float:
            return float(weights @ self._loss(design @ at + shift, targets) + 0.5 * (penalty * at) @ at)

        now = value(coefficients)
        for _ in range(NEWTON_STEPS):
            eta = self._bounded(design @ coefficients + shift)
            gradient = design.T @ (weights * self._score(eta, targets)) - penalty * coefficients
            hessian = (design.T * (weights * self._curvature(eta))) @ design + np.diag(penalty)
            change, length = np.linalg.solve(hessian, gradient), 1.0
            while (then := value(coefficients + length * change)) > now and length > 1e-6:
                length /= 2.0
            if then >= now - 1e-9 * (1.0 + abs(now)):
                break
            coefficients, now = coefficients + length * change, then
        return coefficients

    def to_arrays(self) -> Arrays:
        return {OWN: np.array(json.dumps({**vars(self), "coefficients": self.coefficients.tolist()}))}

    @classmethod
    def take(cls, arrays: Mapping[str, NDArray[np.generic]]) -> OwnFit | None:
        """From the arrays of a label party; None where it had none."""
        if OWN not in arrays:
            return None
        try:
            facts = json.loads(str(arrays[OWN]))
            check_choice("kind", facts["kind"], ("classes", "numbers", "power"))
            coefficients = np.array(facts.pop("coefficients"), dtype=np.float64)
            numbers = [float(value) for name, value in facts.items() if name != "kind"]
            if coefficients.ndim != 1 or not np.isfinite([*numbers, *coefficients]).all():
                raise ValueError("finite numbers are allowed")
            return cls(coefficients=coefficients, **facts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"the label party's own fit: malformed ({error})") from None


def _log_ratio(more: Array) -> Array:
    """log(1 + s), of what least squares says of a mean."""
    return np.asarray(np.log(np.maximum(1.0 + more, LEAST_RATIO)))


def _weighted_odds(targets: Array, weights: Array) -> float:
    """Return by how much weights move the log odds of the second class over all rows."""
    second = targets > 0
    parts = [float(each) for each in (weights[second].sum(), weights[~second].sum(), second.sum())]
    if min(*parts, float((~second).sum())) <= 0.0:
        return 0.0
    return float(np.log(parts[0] / parts[1]) - np.log(parts[2] / float((~second).sum())))


def _as_labels(z: Array, loss: Loss) -> Array:
    """Labels whose least squares fit, under the Taylor loss, is that of z."""
    return z * loss.margin_weight / abs(loss.label_weight)
