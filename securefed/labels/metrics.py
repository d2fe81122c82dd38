"""The registry of metrics: one entry adds a metric to estimators, results, report, command line and bench.

A metric is a function of `Answers`: true labels beside what a model says of the same rows. `measure` computes
every registered metric that fits, with its 95% interval. To add one:

    register(Metric("top tenth", ("two classes",), ("scores",), top_tenth, about="..."))

| kind of label | main metric | others |
|---|---|---|
| two classes | AUC | Gini, KS, lift, accuracy, log loss, Brier, calibration error |
| classes | accuracy | log loss, Brier, calibration error |
| numbers | R2 | RMSE |
| counts | D2 | RMSE |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import getdoc

import numpy as np
from numpy.typing import NDArray

from securefed.declare import check_choice
from securefed.errors import SettingError

Array = NDArray[np.float64]
Interval = tuple[float, float]
KINDS = ("two classes", "classes", "numbers", "counts")
LEVEL = 1.959964
"""Standard errors on either side of an interval of 95%."""
RESAMPLES = 200
MOST_RESAMPLED = 4000
"""Rows of a bootstrap sample. Of more rows, the standard error is scaled down."""
SMALLEST = 1e-15
BINS = 10


@dataclass(frozen=True, eq=False)
class Answers:
    """True labels of some rows, and what a model says of them. None where the model says no such thing."""

    kind: str
    truth: Array
    """0 and 1, the position of the class, or a number."""
    scores: Array | None = None
    """The larger, the likelier is the second of two classes."""
    probabilities: Array | None = None
    """Probabilities of the second class, or a column for each class."""
    predictions: Array | None = None
    """Positions of classes, numbers, or means of counts."""
    exposure: Array | None = None
    """What counts are in proportion to; None: all rows alike."""
    power: float = 1.0
    """Power of the variance of counts and amounts: 1 Poisson, 2 gamma."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)

    def take(self, rows: NDArray[np.intp]) -> Answers:
        """Return the same for some of the rows."""
        arrays = ("truth", "scores", "probabilities", "predictions", "exposure")
        parts = {name: getattr(self, name) for name in arrays}
        return replace(self, **{name: each[rows] for name, each in parts.items() if each is not None})

    @property
    def both_classes(self) -> bool:
        return bool(0.0 < self.truth.mean() < 1.0)


@dataclass(frozen=True)
class Metric:
    """One way to say how good a model is."""

    name: str
    kinds: tuple[str, ...]
    """Kinds of labels that it is for."""
    needs: tuple[str, ...]
    """Fields of `Answers` that it takes besides the truth."""
    function: Callable[[Answers], float]
    better: str = "more"
    """"more" or "less"."""
    interval: Callable[[Answers, float], Interval] | None = None
    """The 95% interval, from the answers and the value. None: by the bootstrap."""
    chance: Callable[[Answers], float] = field(default=lambda answers: 0.0)
    """What a model that knows nothing of the columns has, where this may be the main metric."""
    about: str = ""
    """A sentence for the report; by default the first paragraph of the function's docstring."""

    def __post_init__(self) -> None:
        check_choice("better", self.better, ("more", "less"))
        if not self.about:
            first, *_ = (getdoc(self.function) or "").partition("\n\n")
            object.__setattr__(self, "about", " ".join(first.split()))
        for kind in self.kinds:
            check_choice("kinds", kind, KINDS)

    def fits(self, answers: Answers) -> bool:
        """Whether these rows have what it takes."""
        there = answers.kind in self.kinds and all(getattr(answers, name) is not None for name in self.needs)
        ranks = "scores" in self.needs and answers.kind == "two classes"
        return there and len(answers.truth) > 0 and (answers.both_classes or not ranks)

    def between(self, answers: Answers) -> Interval:
        """Return the 95% interval of the metric."""
        value = self.function(answers)
        if self.interval is not None:
            return self.interval(answers, value)
        reach = LEVEL * _resampled_error(answers, lambda rows: self.function(answers.take(rows)))
        return value - reach, value + reach


METRICS: dict[str, Metric] = {}


def register(metric: Metric) -> Metric:
    """Add a metric everywhere that metrics are shown."""
    if metric.name in METRICS:
        raise SettingError(f"metric: {metric.name!r} is registered already")
    METRICS[metric.name] = metric
    return metric


def get_metric(name: str) -> Metric:
    return METRICS[check_choice("metric", name, METRICS)]


def main_metric(answers: Answers) -> Metric:
    """Return the first registered metric that fits: AUC, accuracy, R2 or D2."""
    for metric in METRICS.values():
        if metric.fits(answers):
            return metric
    raise SettingError(f"metric: none is registered for {answers.kind}")


def measure(answers: Answers) -> dict[str, float]:
    """Return every metric that fits, by name."""
    return {name: float(each.function(answers)) for name, each in METRICS.items() if each.fits(answers)}


def shown(value: float, interval: Interval | None = None, *, between: bool = True) -> str:
    """A value with the digits that its 95% interval supports, and the interval unless `between` is False.

    The last digit is not all chance.
    """
    places = 4
    if interval is not None and 0 < (reach := (interval[1] - interval[0]) / 2) < np.inf:
        places = int(min(4, max(2, np.ceil(-np.log10(reach)))))
    text = f"{value:.{places}f}"
    if interval is None or not between:
        return text
    return f"{text} (95%: {interval[0]:.{places}f} to {interval[1]:.{places}f})"


def better_by(metric: Metric, ours: Answers, other: Answers) -> tuple[float, float]:
    """Return by how much `ours` is better than `other` on the same rows, and the standard error of that."""
    sign = 1.0 if metric.better == "more" else -1.0

    def gain(rows: NDArray[np.intp]) -> float:
        return sign * (metric.function(ours.take(rows)) - metric.function(other.take(rows)))

    return gain(np.arange(len(ours.truth))), _resampled_error(ours, gain)


def _resampled_error(answers: Answers, function: Callable[[NDArray[np.intp]], float]) -> float:
    """Return the bootstrap's standard error; the same rows give the same one."""
    rng, count = np.random.default_rng(0), len(answers.truth)
    size, values = min(count, MOST_RESAMPLED), []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, count, size)
        if answers.kind != "two classes" or answers.truth[rows].min() < answers.truth[rows].max():
            values.append(function(rows))
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.std(finite) * np.sqrt(size / count)) if len(finite) > 1 else float("inf")


# Two classes: how well scores rank


def _ranks(scores: Array) -> Array:
    """Return ranks from 1 on; equal scores share the mean of theirs."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: Array = (last - (count - 1) / 2.0)[place]
    return ranks


def _placements(answers: Answers) -> tuple[Array, Array]:
    """For each positive the share of negatives below it; for each negative the share of positives above."""
    scores, positive = _present(answers.scores), answers.truth > 0
    ranks, own, other = _ranks(scores), _ranks(scores[positive]), _ranks(scores[~positive])
    many, few = len(own), len(other)
    return (ranks[positive] - own) / few, 1.0 - (ranks[~positive] - other) / many


def _auc(answers: Answers) -> float:
    """How well scores put people of one class above those of the other: 0.5 is chance, 1 is perfect."""
    return float(_placements(answers)[0].mean())


def _delong(answers: Answers, value: float) -> Interval:
    """DeLong's interval, on the scale of log odds so that it stays between 0 and 1.

    Separated classes have no variance. Then the bound is that of a proportion that was never missed.
    """
    first, second = _placements(answers)
    fewest = min(len(first), len(second))
    edge = 0.025 ** (1.0 / fewest)
    if value in (0.0, 1.0) or fewest < 2:
        return (edge, 1.0) if value >= 0.5 else (0.0, 1.0 - edge)
    error = np.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    reach = LEVEL * error / (value * (1.0 - value))
    middle = np.log(value / (1.0 - value))
    low, high = (float(1.0 / (1.0 + np.exp(-(middle + side * reach)))) for side in (-1.0, 1.0))
    return low, high


def _ks(answers: Answers) -> float:
    """The largest distance between the distributions of scores of the two classes."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(answers.truth, _present(answers.scores))
    return float(np.max(np.abs(true - false)))


def _lift(answers: Answers) -> float:
    """How many times as frequent the second class is in the tenth with the highest scores."""
    scores, count = _present(answers.scores), max(1, round(len(answers.truth) / 10))
    line = np.sort(scores)[-count]
    above, tied = scores > line, scores == line
    hits = answers.truth[above].sum() + answers.truth[tied].mean() * (count - above.sum())
    return float(hits / count / answers.truth.mean())


# Probabilities and classes


def _present(array: Array | None) -> Array:
    if array is None:
        raise SettingError("metric: the model does not say what this metric takes")
    return array


def _of_classes(answers: Answers) -> Array:
    """Probabilities with a column for each class."""
    likely = _present(answers.probabilities)
    return likely if likely.ndim == 2 else np.column_stack([1.0 - likely, likely])


def _log_loss(answers: Answers) -> float:
    """The mean of minus the logarithm of the probability that the true class was given."""
    likely, rows = _of_classes(answers), np.arange(len(answers.truth))
    return float(-np.log(np.maximum(likely[rows, answers.truth.astype(int)], SMALLEST)).mean())


def _brier(answers: Answers) -> float:
    """The mean squared distance of probabilities from what happened."""
    likely = _present(answers.probabilities)
    if likely.ndim == 1:
        return float(np.mean((likely - answers.truth) ** 2))
    indicators = np.eye(likely.shape[1])[answers.truth.astype(int)]
    return float(np.mean(np.sum((likely - indicators) ** 2, axis=1)))


def _calibration_error(answers: Answers) -> float:
    """How far probabilities are from frequencies, in ten groups of people.

    Groups have equally many rows. Of three classes or more, the probability of the class that the model takes
    for the likeliest.
    """
    likely = _present(answers.probabilities)
    right = answers.truth
    if likely.ndim == 2:
        right = (np.argmax(likely, axis=1) == answers.truth).astype(np.float64)
        likely = likely.max(axis=1)
    parts = np.array_split(np.argsort(likely, kind="stable"), min(BINS, len(likely)))
    distances = [abs(float(likely[part].mean() - right[part].mean())) * len(part) for part in parts]
    return float(sum(distances) / len(likely))


def _accuracy(answers: Answers) -> float:
    """The share of people whose class is predicted right."""
    return float(np.mean(_present(answers.predictions) == answers.truth))


def _wilson(answers: Answers, value: float) -> Interval:
    """Wilson's interval of a proportion."""
    count, square = len(answers.truth), LEVEL**2
    middle = (value + square / (2 * count)) / (1 + square / count)
    reach = LEVEL / (1 + square / count) * np.sqrt(value * (1 - value) / count + square / (4 * count**2))
    return float(max(0.0, middle - reach)), float(min(1.0, middle + reach))


def _share_of_the_largest(answers: Answers) -> float:
    return float(np.bincount(answers.truth.astype(int)).max() / len(answers.truth))


# Numbers and counts


def _r2(answers: Answers) -> float:
    """The part of a number's variation that the model explains: 0 is the mean alone, 1 is perfect."""
    left = np.sum((answers.truth - _present(answers.predictions)) ** 2)
    whole = np.sum((answers.truth - answers.truth.mean()) ** 2)
    if whole <= 0.0:
        return 1.0 if left <= 0.0 else 0.0
    return float(1.0 - left / whole)


def _rmse(answers: Answers) -> float:
    """The root of the mean squared error, in the unit of the labels."""
    return float(np.sqrt(np.mean((answers.truth - _present(answers.predictions)) ** 2)))


def _null(answers: Answers) -> Array:
    """What is predicted without columns: the mean, or for counts one rate times the exposure of a row."""
    exposure = np.ones(len(answers.truth)) if answers.exposure is None else answers.exposure
    means: Array = exposure * (answers.truth.sum() / exposure.sum())
    return means


def _deviance(truth: Array, means: Array, power: float) -> float:
    """Half of the deviance of a Tweedie distribution: Poisson for power 1, gamma for power 2."""
    means = np.maximum(means, SMALLEST)
    if power == 1.0:
        ratio = np.where(truth > 0, truth, 1.0) / means
        return float(np.mean(truth * np.log(np.where(truth > 0, ratio, 1.0)) - truth + means))
    if power == 2.0:
        ratio = np.maximum(truth, SMALLEST) / means
        return float(np.mean(ratio - np.log(ratio) - 1.0))
    first = np.maximum(truth, 0.0) ** (2.0 - power) / ((1.0 - power) * (2.0 - power))
    second = truth * means ** (1.0 - power) / (1.0 - power)
    return float(np.mean(first - second + means ** (2.0 - power) / (2.0 - power)))


def _d2(answers: Answers) -> float:
    """The part of the deviance that the model explains: 0 is one rate for all, 1 is perfect.

    Of rows without a single count there is none, and any mean is too large: -1, as for twice the deviance. A
    bootstrap of few counts has such rows.
    """
    if not answers.truth.any():
        return -1.0
    whole = _deviance(answers.truth, _null(answers), answers.power)
    left = _deviance(answers.truth, _present(answers.predictions), answers.power)
    return 1.0 - left / whole if whole > 0 else 0.0


def _gini(answers: Answers) -> float:
    """2 AUC - 1."""
    return 2.0 * _auc(answers) - 1.0


TWO, ANY, NUMBER = ("two classes",), ("two classes", "classes"), ("numbers", "counts")
for entry in (
    Metric("AUC", TWO, ("scores",), _auc, interval=_delong, chance=lambda answers: 0.5),
    Metric("accuracy", ANY, ("predictions",), _accuracy, interval=_wilson, chance=_share_of_the_largest),
    Metric("R2", ("numbers",), ("predictions",), _r2),
    Metric("D2", ("counts",), ("predictions",), _d2),
    Metric("RMSE", NUMBER, ("predictions",), _rmse, "less"),
    Metric("log loss", ANY, ("probabilities",), _log_loss, "less"),
    Metric("Brier", ANY, ("probabilities",), _brier, "less"),
    Metric("calibration error", ANY, ("probabilities",), _calibration_error, "less"),
    Metric("Gini", TWO, ("scores",), _gini),
    Metric("KS", TWO, ("scores",), _ks),
    Metric("lift", TWO, ("scores",), _lift),
):
    register(entry)
