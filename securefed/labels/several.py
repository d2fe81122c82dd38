"""What the label party knows about labels of several columns: classes, each against the rest, or numbers.

Targets and scores have a column for each. In a blind run they are outputs of one model: as many messages as
for one. The score ledger counts a score for each.

From held-out scores of classes the label party learns one calibration for all together: a score for another
class says something about this one (securefed.labels.calibration.ClassCurve). Of too few rows it learns
none. Numbers are standardised and measured each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError, SettingError
from securefed.labels.base_model import softmax, working_targets
from securefed.labels.calibration import ClassCurve, least_rows
from securefed.labels.label_model import LabelModel, missing_labels
from securefed.labels.metrics import Answers
from securefed.labels.quality import HeldOut, Holdout, OwnRows, compared, judged, logistic
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
FEW = 10
"""Classes up to which labels may be as many as their rows."""
SLOPE = 2.0
"""The factor from scores of least squares to log odds, where no row is held out (docs/choosing.md)."""
CURVE, COUNT = "classes.curve", "targets.count"


@dataclass
class SeveralModels(LabelModel):
    """A label model for each column."""

    sides: list[LabelModel] = field(default_factory=list)

    @property
    def outputs(self) -> int:
        return len(self.sides)

    def numbers(self, scores: Array) -> Array:
        return np.column_stack([s.numbers(column) for s, column in zip(self.sides, scores.T, strict=True)])

    def to_arrays(self) -> Arrays:
        return {
            f"{place}.{name}": array
            for place, side in enumerate(self.sides)
            for name, array in side.to_arrays().items()
        }


def _take_sides(arrays: Arrays, count: int, loss: Loss) -> list[LabelModel]:
    """The label models of a shard; they are taken out of it."""
    sides = []
    for start in (f"{place}." for place in range(count)):
        own = {n[len(start) :]: arrays.pop(n) for n in list(arrays) if n.startswith(start)}
        sides.append(LabelModel.take(own, loss, np.array([0, 1]) if loss.binary else None))
    return sides


@dataclass
class ClassModels(SeveralModels):
    """The label party's view of a fit of several classes: each against the rest, and all together."""

    curve: ClassCurve | None = None
    confusion: NDArray[np.intp] | None = None
    """Counts of held-out rows by true class (row) and predicted class (column)."""

    @classmethod
    def with_gaps(cls, labels: NDArray[Any], party: str, loss: Loss) -> tuple[Self, Array]:
        """Return a model and targets; NaN where a label is missing."""
        there = ~missing_labels(labels)
        words = np.array(labels[there].tolist())
        classes, few = np.unique(words), ", ".join(map(str, np.unique(words)[:5]))
        if words.dtype.kind == "f" and (words % 1.0 != 0.0).any():
            few = ", ".join(f"{each:.3g}" for each in classes[:5])
            raise DataError(f"{party}: labels are numbers such as {few}; classes are words or whole numbers")
        if len(classes) > FEW and 2 * len(classes) > len(words):
            raise DataError(f"{party}: labels have {len(classes)} classes ({few}, ...) in {len(words)} rows")
        sides = [LabelModel(loss, np.array([0, 1])) for _ in classes]
        targets = np.full((len(labels), len(classes)), np.nan)
        targets[there] = np.where(words[:, None] == classes, 1.0, -1.0)
        return cls(loss, classes, sides=sides), targets

    def _known(self) -> NDArray[Any]:
        if self.classes is None:
            raise DataError("the label party's classes are not known")
        return self.classes

    def aim_again(
        self, scores: Array, targets: Array, places: NDArray[np.intp], margin_bound: float
    ) -> Array | None:
        truth = np.argmax(targets, axis=1)
        if len(truth) < least_rows(self.outputs):
            return None
        curve = ClassCurve.of_kind(scores, truth, "free")
        odds = scores @ curve.weights + curve.offsets
        return self._sized(working_targets(odds, targets > 0), margin_bound)

    def learn(
        self, measured: HeldOut, scores: Array, own: OwnRows, threshold: str | float = "half"
    ) -> Holdout:
        """Calibrate from held-out scores, and return the accuracy. No threshold is chosen."""
        truth, known = np.argmax(measured.targets, axis=1), np.argmax(own.targets, axis=1)
        chances = self._apart(scores)
        if len(truth) >= least_rows(self.outputs):
            chances, self.curve = ClassCurve.out_of_fold(scores, truth), ClassCurve.of(scores, truth)
        alone = replace(own, targets=known).alone(partial(logistic, ranks=False))
        ours = Answers("classes", truth, probabilities=chances, predictions=np.argmax(chances, axis=1))
        chance = float(np.max(np.bincount(known)) / len(known))
        named = self._known().tolist()
        quality = judged(ours, Answers("classes", truth, predictions=alone), chance, named)
        self.confusion = np.array(quality.confusion)
        return quality

    def _apart(self, scores: Array) -> Array:
        """Return each class's probability by itself, normalised to sum to 1."""
        if self._least_squares:
            return softmax(SLOPE * scores)
        pairs = zip(self.sides, scores.T, strict=True)
        stacked = np.column_stack([side.probabilities(column) for side, column in pairs])
        shares: Array = stacked / stacked.sum(axis=1, keepdims=True)
        return shares

    @property
    def _least_squares(self) -> bool:
        """Whether scores are a least squares fit of indicators, around no fit of the label party's own."""
        return self.taylor and self.loss.binary and all(side.link is None for side in self.sides)

    def probabilities(self, scores: Array) -> Array:
        """Return each class's probability: (rows, classes)."""
        return self._apart(scores) if self.curve is None else self.curve.probabilities(scores)

    @property
    def log_odds(self) -> tuple[Any, Any]:
        """Slopes (scores, classes) and offsets from scores to log odds, but for what classes share."""
        if self.curve is not None:
            return self.curve.weights, self.curve.offsets
        if not self._least_squares:
            raise SettingError("log odds need held-out rows: set holdout=0.2")
        return SLOPE * np.eye(self.outputs), np.zeros(self.outputs)

    def answers(self, scores: Array, threshold: str | float) -> NDArray[Any]:
        """The likeliest class; the line between two classes plays no part."""
        names: NDArray[Any] = self._known()[np.argmax(self.probabilities(scores), axis=1)]
        return names

    def to_arrays(self) -> Arrays:
        curve: Arrays = {} if self.curve is None else {CURVE: self.curve.to_array()}
        return {**super().to_arrays(), **curve}

    @classmethod
    def take(cls, arrays: Arrays, loss: Loss, classes: NDArray[Any] | None) -> Self:
        count = 0 if classes is None else len(classes)
        sides, curve = _take_sides(arrays, count, loss), None
        if CURVE in arrays:
            curve = ClassCurve.from_array(np.asarray(arrays.pop(CURVE), dtype=np.float64), count)
        return cls(loss, classes, taylor=all(side.taylor for side in sides), sides=sides, curve=curve)


@dataclass
class TargetModels(SeveralModels):
    """The label party's view of a fit of several numbers."""

    @classmethod
    def of_columns(
        cls, labels: NDArray[Any], party: str, loss: Loss, margin_bound: float, *, standardise: bool
    ) -> tuple[Self, Array]:
        """Return a model of the training labels, and targets."""
        if loss.binary:
            raise SettingError(f"labels: {labels.shape[1]} columns given, the loss {loss.name!r} takes one")
        both = [
            LabelModel.of(column, party, loss, margin_bound, standardise=standardise) for column in labels.T
        ]
        targets = np.column_stack([targets for _, targets in both])
        return cls(loss, sides=[side for side, _ in both]), targets

    def learn(self, measured: HeldOut, scores: Array, own: OwnRows, threshold: str | float) -> Holdout:
        columns = zip(self.sides, measured.targets.T, scores.T, own.targets.T, strict=True)
        each = [
            compared(HeldOut(truth, binary=False), score, replace(own, targets=known), unit=side.scale)
            for side, truth, score, known in columns
        ]
        more = {f"R2 of target {place}": one.value for place, one in enumerate(each)}
        value, alone = (float(np.mean([getattr(one, name) for one in each])) for name in ("value", "alone"))
        intervals = [one.interval for one in each if one.interval is not None]
        low, high = (float(np.mean([between[end] for between in intervals])) for end in (0, 1))
        error = float(np.mean([one.gain_error or 0.0 for one in each]))
        return Holdout("R2", value, alone, 0.0, len(scores), more, interval=(low, high), gain_error=error)

    def beside(
        self, labels: NDArray[Any], scores: Array, party: str, offset: Array | None, threshold: str | float
    ) -> Answers:
        """All targets in one column, each in units of its own spread."""
        predictions = self.numbers(scores)
        middle, spread = labels.mean(axis=0), labels.std(axis=0)
        spread[spread == 0.0] = 1.0
        truth, answers = (((each - middle) / spread).T.ravel() for each in (labels, predictions))
        return Answers("numbers", truth, predictions=answers)

    def to_arrays(self) -> Arrays:
        return {COUNT: np.array(self.outputs), **super().to_arrays()}

    @classmethod
    def take(cls, arrays: Arrays, loss: Loss, classes: NDArray[Any] | None) -> Self:
        sides = _take_sides(arrays, int(arrays.pop(COUNT)), loss)
        return cls(loss, taylor=all(side.taylor for side in sides), sides=sides)


def label_model_of(arrays: Arrays, loss: Loss, classes: Sequence[Any] | None) -> LabelModel:
    """What the label party knew of its labels, from its shard."""
    names = None if classes is None else np.array(classes)
    if COUNT in arrays:
        return TargetModels.take(arrays, loss, names)
    if names is not None and len(names) > 2:
        return ClassModels.take(arrays, loss, names)
    return LabelModel.take(arrays, loss, names)
