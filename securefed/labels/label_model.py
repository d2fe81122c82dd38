"""What the label party knows about its labels: how they become targets, and how scores become answers.

    fit      classes and signs, or numbers with mean 0 and variance 1
    aim      a step from a fit of the own columns, with weights, offset and family (base_model.py)
    learn    from held-out scores: a calibration, and the line between two classes
    apply    scores -> numbers in the labels' own units, probabilities, classes

It is the label party's alone, and is saved with its shard only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError, SettingError
from securefed.labels.base_model import (
    COUNT_POWER,
    Family,
    LabelOptions,
    OwnFit,
    ScoreLink,
    scaled,
    weighted_odds,
    working_targets,
)
from securefed.labels.calibration import (
    Calibration,
    check_threshold,
    chosen_threshold,
)
from securefed.labels.metrics import Answers, get_metric
from securefed.labels.quality import (
    HeldOut,
    HeldOutMeans,
    Holdout,
    OwnRows,
    QualityWarning,
    compared,
    judged,
)
from securefed.models.local import sigmoid
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
PREFIX = "label."
LEAST_ROWS = 3
LEAST_SEPARATED = 10
"""People of each class from which a column that separates the classes is no accident."""


@dataclass(frozen=True, eq=False)
class Start:
    """The label party's fit of its own columns, and what it knew of each row that was aimed at."""

    fit: OwnFit
    margins: Array
    """Out-of-fold margins of the training rows."""
    weights: Array
    shift: Array
    """The offset."""


@dataclass
class LabelModel:
    """The label party's view of one fit."""

    loss: Loss
    classes: NDArray[Any] | None = None
    mean: float = 0.0
    scale: float = 1.0
    taylor: bool = True
    calibration: Calibration | None = None
    threshold: float | None = None
    wishes: LabelOptions = field(default_factory=LabelOptions)
    link: ScoreLink | None = None
    """The map from scores to log odds, numbers or logarithms of means, where targets were made."""
    start: Start | None = None
    """What targets were made from. Not saved."""

    @classmethod
    def of(
        cls,
        labels: NDArray[Any],
        party: str,
        loss: Loss,
        margin_bound: float,
        *,
        standardise: bool = True,
        taylor: bool = True,
        wishes: LabelOptions | None = None,
    ) -> tuple[Self, Array]:
        """Return a model of the training labels, and targets: the labels as the loss takes them."""
        if len(labels) < LEAST_ROWS:
            raise DataError(
                f"{party}: {len(labels)} rows in common, at least {LEAST_ROWS} are needed to learn from"
            )
        wishes = wishes or LabelOptions()
        if loss.binary:
            signs, classes = binary_labels(labels, party, allow_missing=False)
            return cls(loss, classes, taylor=taylor, wishes=wishes), signs
        numbers = _numbers(labels, party, loss)
        spread = float(numbers.std())
        if numbers.min() == numbers.max():
            raise DataError(f"{party}: all labels are {numbers[0]:g}; there is nothing to learn")
        side = cls(loss, taylor=taylor, wishes=wishes)
        if wishes.family is not None:
            return side, numbers
        if standardise and 0 < spread < np.inf:
            side.mean, side.scale = float(numbers.mean()), spread
        targets = (numbers - side.mean) / side.scale
        largest = float(np.max(np.abs(targets)))
        if not largest <= margin_bound:  # nor is NaN
            raise DataError(
                f"{party}: labels up to {largest:.4g} given, at most margin_bound={margin_bound:g} is "
                "allowed; scale them or raise it"
            )
        return side, targets

    def aim(
        self,
        party: str,
        margin_bound: float,
        columns: Array,
        targets: Array,
        weights: Array | None,
        offset: Array | None,
        trained: NDArray[np.intp],
    ) -> Array:
        """Return the targets of joint training: one scoring step from the label party's own fit.

        The own fit learns from `columns` of the rows `trained`.
        """
        if not (self.wishes.any or self.wishes.start):
            return targets
        family = Family.of(self.loss, self.wishes)
        weights = self.wishes.weights(targets, self.classes, weights)
        if not weights[trained].any():
            raise DataError(f"{party}: all rows to learn from have weight 0; at least one above 0 is allowed")
        weights = weights / weights[trained].mean()
        shift = np.zeros(len(targets)) if offset is None else offset / self.scale
        family.check(targets[trained], party)
        rows = targets[trained], weights[trained], shift[trained]
        fit, unseen = OwnFit.learn(family, columns[trained], *rows)
        eta = fit.margins(columns, shift)
        eta[trained] = unseen
        self.start, constant = Start(fit, eta, weights, shift), -float(shift[trained].mean())
        if family.counts:
            constant, counts = family.rate(*rows), targets
            targets = counts**COUNT_POWER
            targets *= (rows[1] @ rows[0]) / max(1e-12, float(rows[1] @ targets[trained]))  # the same rate
            eta = constant + shift
        odds = weighted_odds(targets, weights) if self.loss.binary else 0.0
        self.link = ScoreLink(family, constant=constant, shift=odds)
        return self._sized(family.working(eta, targets, weights) - (constant + shift), margin_bound)

    def _sized(self, z: Array, margin_bound: float) -> Array:
        """Scale targets to the allowed range, and store the factor in the link."""
        aims, step = scaled(z, self.loss, margin_bound)
        if self.link is not None:
            self.link = replace(self.link, step=step)
        return aims

    def aim_again(
        self, scores: Array, targets: Array, places: NDArray[np.intp], margin_bound: float
    ) -> Array | None:
        """Return the targets of a second stage, from the scores of the first one and the labels of the same
        rows. None: they stay as they are.

        `places`: of these rows among those that were aimed at.
        """
        start, link = self.start, self.link
        if start is None or link is None:
            return None
        shift = start.shift[places]
        known = link.eta(scores, shift)
        curve = Calibration.straight(known, targets)
        odds = curve.slope * known + curve.offset + link.shift
        z = working_targets(odds, targets > 0, start.weights[places]) - (link.constant + shift)
        return self._sized(z, margin_bound)

    def total(self, scores: Array, party: str, offset: Array | None) -> Array:
        """Scores of the joint fit as log odds or numbers, with what the label party adds to them."""
        if self.wishes.offset and offset is None:
            raise DataError(f"{party}: no offset given, and training had one")
        if offset is not None and not self.wishes.offset:
            raise DataError(f"{party}: an offset given, and training had none")
        shift = None if offset is None else offset / self.scale
        return scores if self.link is None else self.link.eta(scores, shift)

    def check_measured(self, party: str, holdout: int) -> None:
        """Refuse a family without held-out rows: these say how far a step along the joint fit may go."""
        if self.wishes.family is not None and not holdout:
            raise SettingError(
                f"family: {party} has no held-out rows; counts and amounts take them, since they say how far "
                "to go from the label party's own fit. Say holdout=0.2, and give at least 50 people in common"
            )

    @property
    def outputs(self) -> int:
        """Columns of targets and scores."""
        return 1

    def unseen(self, targets: Array) -> list[Any]:
        """Classes that none of these rows has."""
        if self.classes is None:
            return []
        table = targets if targets.ndim == 2 else np.column_stack([-targets, targets])
        missing: list[Any] = self.classes[~(table > 0).any(axis=0)].tolist()
        return missing

    def held_out(
        self, targets: Array, columns: Array, offset: Array | None, places: NDArray[np.intp] | None
    ) -> HeldOut:
        """Return the object that measures rows with these targets, own columns and offsets.

        `places`: where these rows are among those that were aimed at, if all were held out in turns.
        """
        link, start, shift = self.link, self.start, None if offset is None else offset / self.scale
        if link is None or start is None or self.wishes.family is None:
            return HeldOut(
                targets, binary=self.loss.binary, total=lambda scores: self.total(scores, "", offset)
            )
        margins = start.fit.margins(columns, shift) if places is None else start.margins[places]
        return HeldOutMeans(
            targets,
            self.wishes.family,
            offset,
            margins,
            lambda scores: link.calibrated(scores, shift, targets)[1],
        )

    def learn(self, measured: HeldOut, scores: Array, own: OwnRows, threshold: str | float) -> Holdout:
        """Calibrate from held-out scores, and return the quality."""
        if isinstance(measured, HeldOutMeans) and self.link is not None:
            self.link, eta = self.link.calibrated(scores, measured.offset, measured.targets)
            return judged(measured.answers(eta), measured.answers(measured.alone))
        if self.loss.binary and measured.name == "AUC":
            self.calibration = Calibration.of(scores, measured.targets)
            probabilities = self.calibration.probabilities(scores)
            self.threshold = chosen_threshold(check_threshold(threshold), probabilities, measured.targets)
        line = 0.5 if self.threshold is None else self.threshold
        classes = [] if self.classes is None else self.classes.tolist()
        return compared(measured, scores, own, unit=self.scale, classes=classes, line=line)

    def numbers(self, scores: Array) -> Array:
        """Scores in the labels' own units."""
        if self.link is not None and self.wishes.family is not None:
            return self.link.family.mean(scores)
        return scores if self.loss.binary else scores * self.scale + self.mean

    def probabilities(self, scores: Array) -> Array:
        """Return probabilities of the second class."""
        if self.calibration is not None:
            return self.calibration.probabilities(scores)
        if self.loss.name != "logistic":
            raise SettingError(
                f"predict_proba: the loss {self.loss.name!r} has probabilities only where held-out rows say"
                " how often a score is right (holdout)"
            )
        if self.link is not None:  # log odds; without held-out rows, what weights add is taken off again
            return sigmoid(scores - self.link.shift)
        # A Taylor fit is least squares on 2 y: H/2 is near the mean y.
        return np.clip(0.5 + scores / 4.0, 1e-3, 1.0 - 1e-3) if self.taylor else sigmoid(scores)

    @property
    def log_odds(self) -> tuple[Any, Any]:
        """Slope and offset from scores to the log odds of the second class, by the logistic curve."""
        if not self.loss.binary:
            raise SettingError(f"log odds: two classes have them, the loss {self.loss.name!r} has none")
        if self.calibration is not None:
            return self.calibration.slope, self.calibration.offset
        if self.link is not None:
            return 1.0, -self.link.shift
        # A Taylor fit without held-out rows: the slope of its probability 1/2 + H/4 at a half.
        return 1.0, 0.0

    def answers(self, scores: Array, threshold: str | float) -> NDArray[Any]:
        """Classes, or numbers."""
        if self.classes is None:
            return self.numbers(scores)
        if self.threshold is not None:
            positive = self.probabilities(scores) > self.threshold
        elif self.loss.name == "logistic" or not isinstance(threshold, str):
            positive = self.probabilities(scores) > chosen_threshold(check_threshold(threshold), None, None)
        else:
            positive = scores > 0
        names: NDArray[Any] = self.classes[positive.astype(int)]
        return names

    def beside(
        self, labels: NDArray[Any], scores: Array, party: str, offset: Array | None, threshold: str | float
    ) -> Answers:
        """Known labels beside what the model says of the same rows, for any metric."""
        if self.classes is not None:
            check_known(labels, party)
            classes, answers = self.classes.tolist(), self.answers(scores, threshold).tolist()
            truth = _positions(labels, classes, party)
            kind = "two classes" if len(classes) == 2 else "classes"
            predictions = np.array([classes.index(each) for each in answers], dtype=np.float64)
            ranked = scores if kind == "two classes" else None
            likely = self.probabilities(scores) if self.has_probabilities else None
            return Answers(kind, truth, ranked, likely, predictions)
        numbers, predictions = _numbers(labels, party, self.loss), self.numbers(scores)
        if self.wishes.family is None:
            return Answers("numbers", numbers, predictions=predictions)
        exposure = None if offset is None else np.exp(offset)
        return Answers(
            "counts", numbers, predictions=predictions, exposure=exposure, power=self.wishes.family
        )

    def score(self, answers: Answers, metric: str | None) -> float:
        """One metric of answers: the named one, else accuracy, R2 or D2."""
        usual = {"numbers": "R2", "counts": "D2"}.get(answers.kind, "accuracy")
        chosen = get_metric(usual if metric is None else metric)
        if not chosen.fits(answers):
            raise SettingError(f"metric: {chosen.name!r} does not go with these labels ({answers.kind})")
        return float(chosen.function(answers))

    @property
    def has_probabilities(self) -> bool:
        """Whether scores can become probabilities."""
        return self.calibration is not None or self.loss.name == "logistic"

    def to_arrays(self) -> Arrays:
        numbers = [
            self.mean,
            self.scale,
            float(self.taylor),
            np.nan if self.threshold is None else self.threshold,
        ]
        arrays: Arrays = {f"{PREFIX}numbers": np.array(numbers)}
        if self.calibration is not None:
            arrays |= {f"{PREFIX}{name}": each for name, each in self.calibration.to_arrays().items()}
        if self.link is not None:
            arrays |= {f"{PREFIX}{name}": each for name, each in self.link.to_arrays().items()}
            arrays[f"{PREFIX}offset"] = np.array(self.wishes.offset)
        return arrays

    @classmethod
    def take(cls, arrays: Arrays, loss: Loss, classes: NDArray[Any] | None) -> Self:
        """Read the model from the label party's shard, and remove its arrays there."""
        entries: Mapping[str, NDArray[np.generic]] = {
            name[len(PREFIX) :]: arrays.pop(name) for name in list(arrays) if name.startswith(PREFIX)
        }
        if "numbers" not in entries or entries["numbers"].shape != (4,):
            raise DataError("the label party's shard does not say what its labels were")
        mean, scale, taylor, line = np.asarray(entries["numbers"], dtype=np.float64).tolist()
        calibration = Calibration.from_arrays(entries) if "curve" in entries else None
        threshold, link = None if np.isnan(line) else line, ScoreLink.take(entries)
        family = link.family.power if link is not None and link.family.kind == "power" else None
        wishes = LabelOptions(family=family, offset=bool(entries.get("offset", False)))
        return cls(loss, classes, mean, scale, bool(taylor), calibration, threshold, wishes, link)


def _positions(labels: NDArray[Any], classes: list[Any], party: str) -> Array:
    """The place of each label among the classes."""
    places = {name: place for place, name in enumerate(classes)}
    strange = sorted({str(label) for label in labels.tolist() if label not in places})
    if strange:
        due = ", ".join(map(str, classes))
        raise DataError(f"{party}: labels {', '.join(strange[:5])} given, the classes are {due}")
    return np.array([places[label] for label in labels.tolist()], dtype=np.float64)


def _numbers(labels: NDArray[Any], party: str, loss: Loss) -> Array:
    try:
        return loss.check_labels(labels)
    except DataError as error:
        raise DataError(f"{party}: {error}") from None


def missing_labels(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a label is None, NaN or another value that does not equal itself (pandas has several)."""

    def missing(value: Any) -> bool:
        same = value == value
        return value is None or not isinstance(same, bool | np.bool_) or not same

    if labels.dtype.kind in "biuUS":
        return np.zeros(len(labels), dtype=np.bool_)
    if labels.dtype.kind == "f":
        return np.asarray(np.isnan(labels), dtype=np.bool_)
    return np.array([missing(value) for value in labels.tolist()])


def warn_of_label_columns(labels: NDArray[Any], numbers: Array, names: Sequence[str], party: str) -> None:
    """Warn of a column that separates two classes by itself: most often it is the label."""
    if labels.ndim != 1:
        return
    known = ~missing_labels(labels)
    words = labels[known].tolist()
    one = np.array([bool(label == words[0]) for label in words])
    if len(set(words)) != 2 or min(one.sum(), (~one).sum()) < LEAST_SEPARATED:
        return
    for name, column in zip(names, numbers[known].T, strict=True):
        inside, outside = column[one], column[~one]
        if inside.min() > outside.max() or inside.max() < outside.min():
            warnings.warn(
                f"{party}: column {name!r} alone tells the two classes apart without a mistake. If it is the "
                "label, or known only afterwards, leave it out",
                QualityWarning,
                stacklevel=3,
            )


def check_known(labels: NDArray[Any], party: str) -> None:
    """DataError where labels are missing."""
    missing = missing_labels(labels)
    if missing.any():
        raise DataError(f"{party}: {int(missing.sum())} of {len(labels)} labels are missing")


def binary_labels(labels: NDArray[Any], party: str, *, allow_missing: bool) -> tuple[Array, NDArray[Any]]:
    """Labels as -1, +1 (NaN where missing) and the two classes in sorted order."""
    if labels.ndim != 1:
        raise DataError(f"{party}: labels of {labels.shape[1]} columns given, classes are one column")
    if not allow_missing:
        check_known(labels, party)
    missing = missing_labels(labels)
    known = np.array([value for value, gone in zip(labels.tolist(), missing, strict=True) if not gone])
    classes = np.unique(known)
    if len(classes) != 2:
        few = ", ".join(str(value) for value in classes[:5]) + (", ..." if len(classes) > 5 else "")
        raise DataError(
            f"{party}: labels have {len(classes)} classes ({few}), two are allowed{_kinds(classes)}"
        )
    signs = np.full(len(labels), np.nan)
    signs[~missing] = np.where(known == classes[1], 1.0, -1.0)
    return signs, classes


def _kinds(classes: NDArray[Any]) -> str:
    """What labels may be, where they are not two classes."""
    if len(classes) < 2:
        return "; with one class there is nothing to learn"
    if classes.dtype.kind in "iuf":
        return (
            "; numbers that are to be predicted as numbers take loss = 'linear', and several classes "
            f"the default loss in Python, or classes = {len(classes)} in [run]"
        )
    return f"; several classes take classes = {len(classes)} in [run]"
