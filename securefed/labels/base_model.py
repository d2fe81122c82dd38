"""What the label party makes targets of: a fit of its own columns, with weights, offset and family.

What all parties compute is least squares with the same weight for every row. But it is the label party's
business what it is the least squares fit *of*. So it takes a step of Fisher's scoring from a fit of its own
columns (docs/protocols.md, "Around the label party's own fit"). Nothing about it is public: messages, ranges
and agreement are those of any run, and nobody else learns that there are weights.

eta of a training row is that of a fit without it (five folds), so that columns which fit the own rows too
well leave something to the others. Counts start from one rate for all rows, since least squares says by how
much a mean is larger, not by how much its logarithm is. Held-out rows bend what is added.

    family       mean            score r                expected curvature
    two classes  1/(1+exp(-eta)) y - mu                 mu (1 - mu), or the slope of mu by eta if larger
    numbers      eta             y - mu                 1
    power p      exp(eta)        (y - mu) mu^(1-p)      mu^(2-p)       p = 1 Poisson, 2 Gamma, else Tweedie
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.declare import check_choice, check_number
from securefed.errors import DataError, SettingError
from securefed.models.local import sigmoid
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
FAMILIES = {"poisson": 1.0, "gamma": 2.0}
FOLDS = 5
AS_IT_IS = 10.0
"""The weight of a step of 1 when it is calibrated."""
COUNT_POWER = 0.75
"""Power of the counts before they are fitted, so that one large count does not decide (docs/choosing.md)."""
LEAST_RATIO = 0.2
"""Least squares may say that a mean is below 0. It is taken to be at least this part of the mean of all."""
NEWTON_STEPS = 30
OWN_PENALTY = 20.0
"""Penalty of the own fit in transfer learning, in people."""
OWN = "own"
LARGEST_MARGIN = 30.0
"""Largest logarithm of a mean, and largest log odds."""
SIZE = 2.0
"""The root of the mean square of targets: the largest that shares are made for (GRADIENT_BOUND)."""
LEAST_CURVATURE = 1e-3
LARGEST_SCORE = 24.0
"""Largest score that a target asks for. Scores are opened modulo 64; a fit may go beyond its targets."""


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
    if value is None or value == "balanced":
        return
    if not isinstance(value, Mapping):
        raise SettingError(f"class_weight: {value!r} given, 'balanced' or a weight for each class is allowed")
    for name, weight in value.items():
        check_number(f"class_weight of {name!r}", weight, above=0.0)


@dataclass(frozen=True, eq=False)
class LabelOptions:
    """What a label party may want of its rows, beyond a fit of its labels as they are."""

    class_weight: Any = None
    family: float | None = None
    weighted: bool = False
    """Rows have weights of their own."""
    offset: bool = False
    start: bool = False
    """Begin with the own fit even if nothing else is wanted, where a run does so."""

    @property
    def any(self) -> bool:
        """Whether the user wants something."""
        return self.weighted or self.offset or self.class_weight is not None or self.family is not None

    def check(self, loss: Loss, *, taylor: bool) -> None:
        """SettingError where they do not go together."""
        check_class_weight(self.class_weight)
        if self.family is not None and loss.name != "linear":
            raise SettingError(f"family: needs loss='linear', not {loss.name!r}")
        if self.class_weight is not None and not loss.binary:
            raise SettingError(f"class_weight: the loss {loss.name!r} has no classes")
        if not self.any:
            return
        word = "class_weight" if self.class_weight is not None else "family"
        word = "weights" if self.weighted else "offset" if self.offset else word
        if loss.name not in ("logistic", "linear"):
            raise SettingError(f"{word}: needs loss='logistic' or 'linear', not {loss.name!r}")
        if loss.binary and not taylor:
            raise SettingError(f"{word}: without protection needs Plain(like='blind')")

    def weights(self, targets: Array, classes: NDArray[Any] | None, rows: Array | None) -> Array:
        """Return each training row's weight: its class weight times its own."""
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


@dataclass(frozen=True)
class Family:
    """What a score eta says of a row: its mean, and the loss of that."""

    kind: str
    """"classes", "numbers" or "power"."""
    power: float = 0.0

    @classmethod
    def of(cls, loss: Loss, options: LabelOptions) -> Family:
        kind = "classes" if loss.binary else "numbers" if options.family is None else "power"
        return cls(kind, options.family or 0.0)

    @property
    def counts(self) -> bool:
        """Whether the joint fit starts from one rate for all rows."""
        return self.kind == "power" and self.power < 2.0

    def check(self, targets: Array, party: str) -> None:
        """DataError for targets that no member of the family has."""
        if self.kind == "power" and (targets < 0).any():
            raise DataError(f"{party}: labels: negative ones given, a family of counts or amounts has none")
        if self.power == 2.0 and (targets == 0).any():
            raise DataError(
                f"{party}: labels: zeros given, the family 'gamma' takes amounts above 0; 1.5 takes both"
            )

    def working(self, eta: Array, targets: Array, weights: Array) -> Array:
        """Return eta + w r / c; the mean of the weights is 1."""
        if self.kind == "classes":
            return working_targets(eta, targets > 0, weights)
        left = weights * self.score(eta, targets)
        worked: Array = eta + left / float(np.mean(weights * self.curvature(eta)))
        return worked

    def bounded(self, eta: Array) -> Array:
        return eta if self.kind == "numbers" else np.clip(eta, -LARGEST_MARGIN, LARGEST_MARGIN)

    def mean(self, eta: Array) -> Array:
        if self.kind == "numbers":
            return eta
        return sigmoid(eta) if self.kind == "classes" else np.exp(np.minimum(eta, LARGEST_MARGIN))

    def score(self, eta: Array, targets: Array) -> Array:
        mean = self.mean(eta)
        if self.kind == "classes":
            return (targets > 0) - mean
        left: Array = targets - mean
        return left * mean ** (1.0 - self.power) if self.kind == "power" else left

    def curvature(self, eta: Array) -> Array:
        if self.kind == "numbers":
            return np.ones(len(eta))
        mean = self.mean(eta)
        return mean * (1.0 - mean) if self.kind == "classes" else mean ** (2.0 - self.power)

    def loss(self, eta: Array, targets: Array) -> Array:
        """Return the loss, without terms that depend on the targets alone."""
        if self.kind == "classes":
            return np.logaddexp(0.0, eta) - (targets > 0) * eta
        if self.kind == "numbers":
            return 0.5 * (eta - targets) ** 2
        p, eta = self.power, np.minimum(eta, LARGEST_MARGIN)
        first = eta if p == 1.0 else np.exp((1.0 - p) * eta) / (1.0 - p)
        second = eta if p == 2.0 else np.exp((2.0 - p) * eta) / (2.0 - p)
        loss: Array = second - targets * first
        return loss

    def fitted(
        self, design: Array, targets: Array, weights: Array, shift: Array, penalty: Array | None = None
    ) -> Array:
        """Penalised, by Fisher's scoring: as of one row, and none on the intercept, unless it is given."""
        coefficients, fixed = np.zeros(design.shape[1]), penalty is not None
        penalty = np.append(np.ones(len(coefficients) - 1), 1e-6) if penalty is None else penalty
        if self.kind == "power" and not fixed:
            coefficients[-1] = self.rate(targets, weights, shift)

        def value(at: Array) -> float:
            return float(weights @ self.loss(design @ at + shift, targets) + 0.5 * (penalty * at) @ at)

        now = value(coefficients)
        for _ in range(NEWTON_STEPS):
            eta = self.bounded(design @ coefficients + shift)
            gradient = design.T @ (weights * self.score(eta, targets)) - penalty * coefficients
            hessian = (design.T * (weights * self.curvature(eta))) @ design + np.diag(penalty)
            change, length = np.linalg.solve(hessian, gradient), 1.0
            while (then := value(coefficients + length * change)) > now and length > 1e-6:
                length /= 2.0
            if then >= now - 1e-9 * (1.0 + abs(now)):
                break
            coefficients, now = coefficients + length * change, then
        return coefficients

    def rate(self, targets: Array, weights: Array, shift: Array) -> float:
        """Return the constant score of all rows, beside their offsets."""
        return float(np.log(max(1e-12, float(weights @ targets) / float(weights @ np.exp(shift)))))


@dataclass(frozen=True, eq=False)
class OwnFit:
    """The label party's fit of its own columns: their coefficients and an intercept."""

    family: Family
    coefficients: Array

    @classmethod
    def learn(
        cls,
        family: Family,
        columns: Array,
        targets: Array,
        weights: Array,
        shift: Array,
        penalty: Array | None = None,
    ) -> tuple[OwnFit, Array]:
        """Fit the training rows; also return each row's out-of-fold margin."""
        design = np.column_stack([columns, np.ones(len(columns))])
        eta, fold = np.empty(len(targets)), np.arange(len(targets)) % FOLDS
        for number in range(FOLDS):
            test, train = fold == number, fold != number
            apart = family.fitted(design[train], targets[train], weights[train], shift[train], penalty)
            eta[test] = family.bounded(design[test] @ apart + shift[test])
        return cls(family, family.fitted(design, targets, weights, shift, penalty)), eta

    def margins(self, columns: Array, shift: Array | None) -> Array:
        """eta of any rows."""
        scores: Array = columns @ self.coefficients[:-1] + self.coefficients[-1]
        return self.family.bounded(scores if shift is None else scores + shift)


def transfer_targets(columns: Array, signs: Array, shared: NDArray[np.intp], share: float) -> Array:
    """Return what blind transfer learning fits of the shared people, a column for each output.

    It is the label, -1 or +1, and what a fit of the own columns says of the same person without that label:
    `share` is the part of the latter. A person without a label has the own fit alone. That fit learns from
    all own people with labels.
    """
    signs = signs.reshape(len(signs), -1)
    known = ~np.isnan(signs).any(axis=1)
    ones, penalty = np.ones(int(known.sum())), np.append(np.full(columns.shape[1], OWN_PENALTY), 1e-6)
    targets = np.empty((len(shared), signs.shape[1]))
    for place, labels in enumerate(signs.T):
        rows = columns[known], labels[known], ones, 0.0 * ones
        fit, unseen = OwnFit.learn(Family("classes"), *rows, penalty)
        margins = fit.margins(columns, None)
        margins[known] = unseen
        expected = 2.0 * sigmoid(margins) - 1.0
        mixed = np.where(known, (1.0 - share) * labels + share * expected, expected)
        targets[:, place] = mixed[shared]
    return targets


@dataclass(frozen=True)
class ScoreLink:
    """The map from joint scores to eta: o + constant + bend * log(1 + s) + line * s, s = step * score."""

    family: Family
    step: float = 1.0
    constant: float = 0.0
    bend: float = 0.0
    line: float = 1.0
    shift: float = 0.0
    """What weights of the classes add to the log odds: the logarithm of their ratio."""

    @property
    def slope(self) -> float:
        """Slope of eta in the score; for counts, at the mean of all rows."""
        return self.step * (self.bend + self.line)

    def eta(self, scores: Array, offset: Array | None) -> Array:
        more = self.step * scores
        eta: Array = self.constant + self.bend * _log_ratio(more) + self.line * more
        return eta if offset is None else eta + offset

    def calibrated(self, scores: Array, offset: Array | None, targets: Array) -> tuple[ScoreLink, Array]:
        """Fit the step and constant on held-out rows. Also return each row's out-of-fold eta.

        A single step goes too far where means differ much. To change its length takes no other party.
        """
        offset = np.zeros(len(scores)) if offset is None else offset
        fold, eta = np.arange(len(scores)) % FOLDS, np.empty(len(scores))
        for number in range(FOLDS):
            own, others = fold == number, fold != number
            eta[own] = self._along(scores[others], offset[others], targets[others]).eta(
                scores[own], offset[own]
            )
        return self._along(scores, offset, targets), eta

    def _along(self, scores: Array, offset: Array, targets: Array) -> ScoreLink:
        """Few rows hardly move it from the step as it is, or for counts from (1 + s)^(4/3)."""
        more, strength = self.step * scores, 1.0 if self.family.counts else AS_IT_IS
        terms = {"line": (more, 1.0)}
        if self.family.counts:
            terms = {"bend": (_log_ratio(more), 1.0 / COUNT_POWER), "line": (more, 0.0)}
        while True:  # a larger score is never a smaller mean: without the terms that would say so
            start = offset + self.constant + sum(term * usual for term, usual in terms.values())
            design = np.column_stack([*(term for term, _ in terms.values()), np.ones(len(more))])
            penalty = np.full(len(terms) + 1, strength)
            *far, constant = self.family.fitted(design, targets, np.ones(len(more)), start, penalty).tolist()
            slopes = {name: terms[name][1] + each for name, each in zip(terms, far, strict=True)}
            if all(slope >= 0.0 for slope in slopes.values()):
                return replace(
                    self, **{"bend": 0.0, "line": 0.0, **slopes}, constant=self.constant + constant
                )
            del terms[min(slopes, key=slopes.__getitem__)]

    def to_arrays(self) -> Arrays:
        return {OWN: np.array(json.dumps(asdict(self)))}

    @classmethod
    def take(cls, arrays: Mapping[str, NDArray[np.generic]]) -> ScoreLink | None:
        """Read a link from the label party's arrays; None if there is none."""
        if OWN not in arrays:
            return None
        try:
            facts = json.loads(str(arrays[OWN]))
            family = Family(**facts.pop("family"))
            check_choice("kind", family.kind, ("classes", "numbers", "power"))
            if not np.isfinite([float(value) for value in (family.power, *facts.values())]).all():
                raise ValueError("finite numbers are allowed")
            return cls(family, **facts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"the label party's shard is damaged (own fit: {error}); restore it") from None


def _log_ratio(more: Array) -> Array:
    """log(1 + s), of what least squares says of a mean."""
    return np.asarray(np.log(np.maximum(1.0 + more, LEAST_RATIO)))


def weighted_odds(targets: Array, weights: Array) -> float:
    """Return by how much weights move the log odds of the second class over all rows."""
    second = targets > 0
    parts = [float(each) for each in (weights[second].sum(), weights[~second].sum(), second.sum())]
    if min(*parts, float((~second).sum())) <= 0.0:
        return 0.0
    return float(np.log(parts[0] / parts[1]) - np.log(parts[2] / float((~second).sum())))


# Targets of a fit that bring least squares near to logistic regression


def softmax(odds: Array) -> Array:
    likely = np.exp(odds - odds.max(axis=1, keepdims=True))
    shares: Array = likely / likely.sum(axis=1, keepdims=True)
    return shares


def working_targets(odds: Array, positive: NDArray[np.bool_], weights: Array | None = None) -> Array:
    """Return targets from log odds: (rows,) of the second class, or (rows, classes).

    Each is eta + w (y - p) / v, with y = 1 for rows of the class, else 0. That is one step of Newton's method
    with one curvature v for all rows: the slope of p by eta. Newton's own, the mean of p (1 - p), is smaller
    where classes hardly overlap, and then the step goes too far. The slope leaves the targets uncorrelated
    with what the first fit knew of other rows' labels. What it was chosen by is in docs/choosing.md.
    """
    several = odds.ndim == 2
    odds = odds - odds.mean(axis=1, keepdims=True) if several else odds
    likely = softmax(odds) if several else sigmoid(odds)
    spread = np.maximum(odds.var(axis=0), 1e-12)
    slope = ((odds - odds.mean(axis=0)) * likely).mean(axis=0) / spread
    mean = np.maximum((likely * (1.0 - likely)).mean(axis=0), LEAST_CURVATURE)
    left = positive - likely if weights is None else weights * (positive - likely)
    targets: Array = odds + left / np.maximum(slope, mean)
    return targets


def scaled(z: Array, loss: Loss, most: float) -> tuple[Array, float]:
    """Rescale targets to fit the shares. Return them and the factor that undoes it.

    No target is larger than `most`, and no score has to wrap.
    """
    each = loss.margin_weight / abs(loss.label_weight)
    labels, most = z * each, min(most, LARGEST_SCORE * each)
    size = float(np.sqrt(np.mean(labels**2))) or 1.0
    factor = min(SIZE / size, most / max(float(np.abs(labels).max()), size))
    return labels * factor, 1.0 / factor
