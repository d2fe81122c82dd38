"""How good a model is: measured once, on rows that were held out, beside chance and the label party alone.

A share of the common rows is set aside by the shared seed. At the end of the training the label party gets
their (blurred) scores and compares them with its own labels, by every metric of securefed.labels.metrics.
All of it stays at the label party.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.labels.base_model import LARGEST_MARGIN
from securefed.labels.calibration import Calibration
from securefed.labels.metrics import Answers, better_by, main_metric, measure, shown

Array = NDArray[np.float64]
SURE = 1.0
"""Standard errors by which the joint model has to be better than the label party alone."""
MOST_POINTS = 100
GROUPS = 10
LEAST_GROUP = 5
"""People of a group; fewer say little."""
LEAST_SHARE = 1e-4
"""An empty group counts as this share; its logarithm would be infinite otherwise."""


class QualityWarning(UserWarning):
    """A model that is not clearly better than chance, or than the label party alone."""


@dataclass(frozen=True)
class Holdout:
    """What the held-out rows said of a model. More is better for every main metric."""

    metric: str
    """"AUC", "accuracy", "R2" or "D2" (the share of the deviance that is explained)."""
    value: float
    alone: float
    """The same for the label party's own columns, by a model of its own."""
    chance: float
    rows: int
    more: Mapping[str, float] = field(default_factory=dict)
    """Every other metric of the joint model. Probabilities are calibrated, each row's on the other rows."""
    classes: Sequence[Any] = ()
    """With `confusion`: how many held-out rows of each class (row) were taken for each (column). These are
    the label party's own counts of its own labels."""
    confusion: Sequence[Sequence[int]] = ()
    interval: tuple[float, float] | None = None
    """The 95% interval of the value."""
    gain_error: float | None = None
    """The standard error of value - alone, on the same rows."""
    curves: Mapping[str, Any] = field(default_factory=dict)
    """The curves of two classes: "roc", "calibration" and "gain" (`curves`)."""

    @property
    def low(self) -> float:
        """The lower end of the interval; where none was computed, a rough one."""
        return self.value - 1.0 / np.sqrt(self.rows) if self.interval is None else self.interval[0]

    @property
    def warning(self) -> str | None:
        """What to say loudly, if there is something."""
        error = 0.5 / np.sqrt(self.rows) if self.gain_error is None else self.gain_error
        gain = self.value - self.alone
        if self.low <= self.chance:
            worse = f"not clearly better than chance ({self.beside(self.chance)})"
            reasons = "labels that these columns say little about, rows that are not about the same people"
        elif gain <= SURE * error:
            how = "worse" if gain < -SURE * error else "not clearly better"
            worse = f"{how} than the label party's own columns alone ({self.beside(self.alone)})"
            reasons = "rows of another party in another order or about other people, columns that add nothing"
            reasons += " or are too many for so few rows (a larger l2)"
        else:
            return None
        few = f", only {self.rows} rows to measure with" if self.rows < 100 else ""
        return (
            f"THE JOINT MODEL IS {worse.upper()}: {self.measured}. Likely reasons: {reasons}, columns that "
            f"need transform='auto'{few}"
        )

    @property
    def measured(self) -> str:
        """The value with its interval, and how many rows it is of."""
        return f"{self.metric} {shown(self.value, self.interval)} on {self.rows:,} held-out rows"

    def beside(self, value: float) -> str:
        """Another value of the metric with as many digits as this one's interval supports."""
        return shown(value, self.interval, between=False)

    def to_dict(self) -> dict[str, Any]:
        facts = {**asdict(self), "more": dict(self.more), "warning": self.warning}
        facts["interval"] = None if self.interval is None else list(self.interval)
        counted = {"classes": list(facts.pop("classes")), "counts": [list(row) for row in self.confusion]}
        return {**facts, "confusion": counted if self.confusion else None}

    def __str__(self) -> str:
        alone, chance = self.beside(self.alone), self.beside(self.chance)
        return f"{self.measured} (the label party alone {alone}, chance {chance})"


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The label party's own rows: what the joint model is compared with."""

    columns: Array
    """Columns of the training rows; `targets` are those of the same rows."""
    targets: Array
    test: Array
    """Columns of the rows to measure with."""
    folds: Sequence[NDArray[np.intp]] = ()
    """Where rows are held out in turns: the places of each fold among the training rows."""

    def alone(self, learn: Callable[[Array, Array, Array], Array]) -> Array:
        """Return what a model of the own columns says of the rows that it did not learn from.

        `learn` takes columns and targets to learn from, and columns to answer for.
        """
        if not self.folds:
            return learn(self.columns, self.targets, self.test)
        answers, start = [], 0
        for fold in self.folds:
            others = np.setdiff1d(np.arange(len(self.targets)), fold)
            test = self.test[start : start + len(fold)]
            answers.append(learn(self.columns[others], self.targets[others], test))
            start += len(fold)
        return np.concatenate(answers)


class HeldOut:
    """The metric of evaluations at the label party, which remembers the scores that it was given.

    `targets` of several columns: the mean of what each column is measured by. `total`: what the label party
    makes of scores first.
    """

    def __init__(
        self, targets: Array, *, binary: bool, total: Callable[[Array], Array] = lambda scores: scores
    ) -> None:
        self.targets, self.binary, self._total = targets, binary, total
        self.scores: list[Array] = []

    def answers(self, scores: Array) -> Answers:
        """The rows as metrics take them."""
        if self.binary:
            positive, sign = (self.targets > 0).astype(np.float64), (scores > 0).astype(np.float64)
            return Answers("two classes", positive, scores, predictions=sign)
        return Answers("numbers", self.targets, predictions=scores)

    def each(self) -> list[HeldOut]:
        """The same for each column of several."""
        return [HeldOut(column, binary=self.binary) for column in self.targets.T]

    @property
    def name(self) -> str:
        if self.targets.ndim == 2:
            names = {each.name for each in self.each()}
            return names.pop() if len(names) == 1 else "accuracy"
        return main_metric(self.answers(np.zeros_like(self.targets))).name

    def __call__(self, scores: Array) -> float:
        # The other party decides how many scores it sends.
        if scores.shape != self.targets.shape:
            problem = f"scores of shape {scores.shape} given for {len(self.targets)} labels"
            raise DataError(f"evaluation: {problem}")
        scores = self._total(scores)
        self.scores.append(scores)
        return self.value(scores)

    def value(self, scores: Array) -> float:
        if self.targets.ndim == 2 and self.name == "accuracy":  # some class is not among the rows
            return float(np.mean(np.argmax(scores, axis=1) == np.argmax(self.targets, axis=1)))
        if self.targets.ndim == 2:
            return float(np.mean([each.value(own) for each, own in zip(self.each(), scores.T, strict=True)]))
        answers = self.answers(scores)
        return float(main_metric(answers).function(answers))


class HeldOutMeans(HeldOut):
    """The measure of counts and amounts: the deviance of their family.

    `offset`: the logarithm of the exposure. `alone`: predictions of the label party's own fit for these rows.
    `learnt`: returns the out-of-fold eta of these rows for their scores.
    """

    def __init__(
        self,
        targets: Array,
        power: float,
        offset: Array | None,
        alone: Array,
        learnt: Callable[[Array], Array],
    ) -> None:
        super().__init__(targets, binary=False)
        self._power, self._exposure = power, None if offset is None else np.exp(offset)
        self.alone, self.offset, self._learnt = alone, offset, learnt

    def value(self, scores: Array) -> float:
        return super().value(self._learnt(scores))

    def answers(self, scores: Array) -> Answers:
        means = np.exp(np.clip(scores, -LARGEST_MARGIN, LARGEST_MARGIN))
        return Answers("counts", self.targets, predictions=means, exposure=self._exposure, power=self._power)


def judged(
    ours: Answers, alone: Answers, chance: float | None = None, classes: Sequence[Any] = ()
) -> Holdout:
    """Compare a model's answers with those of the label party alone, on the same rows, and with chance.

    `classes`: in the order of their positions, for the confusion matrix.
    """
    metric, confusion = main_metric(ours), list[list[int]]()
    if classes and ours.predictions is not None:
        places, count = (ours.truth * len(classes) + ours.predictions).astype(int), len(classes)
        confusion = np.bincount(places, minlength=count**2).reshape(count, count).tolist()
    more = {name: value for name, value in measure(ours).items() if name != metric.name}
    return Holdout(
        metric.name,
        float(metric.function(ours)),
        float(metric.function(alone)),
        metric.chance(ours) if chance is None else chance,
        len(ours.truth),
        more,
        classes if confusion else (),
        confusion,
        interval=metric.between(ours),
        gain_error=better_by(metric, ours, alone)[1],
        curves=curves(ours),
    )


def compared(
    measured_rows: HeldOut,
    scores: Array,
    own: OwnRows,
    *,
    unit: float = 1.0,
    classes: Sequence[Any] = (),
    line: float = 0.5,
) -> Holdout:
    """Compare the joint model's scores with the label party alone and chance.

    `unit`: of numbers. `classes`, `line`: the two classes, and the probability above which it is the second.
    """
    ours = measured_rows.answers(scores)
    alone = measured_rows.answers(own.alone(logistic if measured_rows.binary else _ridge))
    if not measured_rows.binary:
        return judged(_in_units(ours, unit), _in_units(alone, unit))
    likely = Calibration.out_of_fold(scores, measured_rows.targets)
    if likely is not None:
        ours = replace(ours, probabilities=likely, predictions=(likely > line).astype(np.float64))
    majority = float(max(np.mean(own.targets > 0), np.mean(own.targets < 0)))
    return judged(ours, alone, None if measured_rows.name == "AUC" else majority, classes)


def _in_units(answers: Answers, unit: float) -> Answers:
    predictions = None if answers.predictions is None else unit * answers.predictions
    return replace(answers, truth=unit * answers.truth, predictions=predictions)


def logistic(columns: Array, labels: Array, test: Array, *, ranks: bool = True) -> Array:
    """Return the scores of rows by a logistic regression; their classes if it `ranks` none."""
    if len(np.unique(labels)) < 2:
        return np.full(len(test), labels[0])
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: a baseline is good enough without
        model = LogisticRegression(max_iter=300).fit(columns, labels)
    answers: Array = model.decision_function(test) if ranks else model.predict(test)
    return answers


def _ridge(columns: Array, labels: Array, test: Array) -> Array:
    from sklearn.linear_model import RidgeCV

    scores: Array = RidgeCV(np.logspace(-2, 4, 7)).fit(columns, labels).predict(test)
    return scores


# Curves of two classes, and stability of scores


def roc_curve(truth: Array, scores: Array) -> list[tuple[float, float]]:
    """Return points (share of the first class, share of the second class) with scores above each line.

    `truth`: 0 and 1, 1 for the second class.
    """
    from sklearn import metrics

    false, true, _ = metrics.roc_curve(truth, scores)
    points = list(zip(false.tolist(), true.tolist(), strict=True))
    if len(points) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int))
        points = [points[place] for place in chosen.tolist()]
    return points


def calibration_curve(truth: Array, probabilities: Array) -> list[tuple[float, float, int]]:
    """Return (mean probability, share of the second class, people) of equal groups, by probability."""
    order = np.argsort(probabilities, kind="stable")
    groups = max(1, min(GROUPS, len(order) // LEAST_GROUP))
    return [
        (float(probabilities[part].mean()), float(truth[part].mean()), len(part))
        for part in np.array_split(order, groups)
    ]


def curves(answers: Answers) -> dict[str, Any]:
    """Return the curves and the gain table that these answers allow, ready for JSON."""
    if answers.kind != "two classes" or answers.scores is None or not answers.both_classes:
        return {}
    curves: dict[str, Any] = {"roc": [list(point) for point in roc_curve(answers.truth, answers.scores)]}
    table = gains(answers.truth, answers.scores)
    curves["gain"] = [asdict(group) for group in table]
    if answers.probabilities is not None:
        groups = calibration_curve(answers.truth, answers.probabilities)
        curves["calibration"] = [list(group) for group in groups]
    return curves


def stability(expected: Array, actual: Array, groups: int = GROUPS) -> float:
    """Return the population stability index (PSI) of two sets of scores.

    Below 0.1 the people are alike; above 0.25 the model should be looked at again.
    """
    if not len(expected) or not len(actual):
        raise DataError("stability: scores of both groups of people are needed")
    borders = np.unique(np.quantile(expected, np.linspace(0.0, 1.0, groups + 1)[1:-1]))

    def shares(scores: Array) -> Array:
        counts = np.bincount(np.searchsorted(borders, scores), minlength=len(borders) + 1)
        return np.maximum(counts / len(scores), LEAST_SHARE)

    first, second = shares(expected), shares(actual)
    return float(np.sum((second - first) * np.log(second / first)))


# Gain tables


@dataclass(frozen=True)
class Gain:
    """One group of a gain table."""

    people: int
    """People so far, highest scores first."""
    found: float
    """Share of all people of the second class that are among them."""
    rate: float
    """Share of the second class in this group alone."""
    lift: float
    """Share of the second class among all so far, as a multiple of the share in the whole table."""


def gains(truth: Array, scores: Array, groups: int = 10) -> list[Gain]:
    """Return the gain table of people in `groups` of equal size, the highest scores first.

    `truth`: 0 and 1, 1 for the second class.
    """
    if truth.shape != scores.shape or not 0.0 < float(np.mean(truth)) < 1.0:
        raise DataError("gains needs one score per label, and labels of both classes")
    # Ties share their hits, so that the table does not depend on the order of the rows.
    _, place, count = np.unique(-scores, return_inverse=True, return_counts=True)
    order = np.argsort(-scores, kind="stable")
    hits = (np.bincount(place, weights=truth) / count)[place][order]
    table, before = [], 0
    for part in np.array_split(np.arange(len(hits)), min(groups, len(hits))):
        until = before + len(part)
        share = float(hits[:until].mean())
        gained = float(hits[:until].sum() / truth.sum())
        table.append(Gain(until, gained, float(hits[part].mean()), share / float(truth.mean())))
        before = until
    return table
