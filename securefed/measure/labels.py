"""What the label party knows about its labels: how they become targets, and how scores become answers.

    fit      classes and signs, or numbers with mean 0 and variance 1
    learn    from held-out scores: a calibration, and the line between two classes
    apply    scores -> numbers in the labels' own units, probabilities, classes

It is the label party's alone, and is saved with its shard only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.data.labels import binary_labels
from securefed.errors import DataError, SettingError
from securefed.measure.quality import (
    Calibration,
    HeldOut,
    Holdout,
    check_threshold,
    chosen_threshold,
    compared,
    uncalibrated,
)
from securefed.protocols.losses import Loss

__all__ = ["LabelSide"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
PREFIX = "label."


@dataclass
class LabelSide:
    """The label party's view of one fit."""

    loss: Loss
    classes: NDArray[Any] | None = None
    mean: float = 0.0
    scale: float = 1.0
    taylor: bool = True
    calibration: Calibration | None = None
    threshold: float | None = None

    @classmethod
    def of(cls, labels: NDArray[Any], party: str, loss: Loss, *, standardise: bool, taylor: bool) -> Self:
        """From the labels of the training."""
        if loss.binary:
            _, classes = binary_labels(labels, party, allow_missing=False)
            return cls(loss, classes, taylor=taylor)
        numbers = _numbers(labels, party, loss)
        spread = float(numbers.std())
        if not standardise or not np.isfinite(spread) or spread <= 0:
            return cls(loss, taylor=taylor)
        return cls(loss, None, float(numbers.mean()), spread, taylor)

    def targets(self, labels: NDArray[Any], party: str, margin_bound: float) -> Array:
        """Labels as the loss takes them."""
        if self.loss.binary:
            signs, _ = binary_labels(labels, party, allow_missing=False, classes=self.classes)
            return signs
        targets = (_numbers(labels, party, self.loss) - self.mean) / self.scale
        largest = float(np.max(np.abs(targets)))
        if largest > margin_bound:
            raise DataError(
                f"{party}: labels up to {largest:.4g} given, at most margin_bound={margin_bound:g} is "
                "allowed; scale them or raise it"
            )
        return targets

    @property
    def outputs(self) -> int:
        """Columns of targets and scores."""
        return 1

    def held_out(self, targets: Array) -> HeldOut:
        """What evaluations are measured by."""
        return HeldOut(targets, binary=self.loss.binary)

    def learn(
        self, held: HeldOut, scores: Array, own: tuple[Array, Array, Array], threshold: str | float
    ) -> Holdout:
        """From the scores of rows that were held out. `own`: see securefed.measure.quality.compared."""
        self.calibrate(held, scores, threshold)
        return compared(held, scores, own, unit=self.scale)

    def calibrate(self, held: HeldOut, scores: Array, threshold: str | float) -> None:
        if self.loss.binary and held.name == "AUC":
            self.calibration = Calibration.of(scores, held.targets)
            probabilities = self.calibration.probabilities(scores)
            self.threshold = chosen_threshold(check_threshold(threshold), probabilities, held.targets)

    def numbers(self, scores: Array) -> Array:
        """Scores in the labels' own units."""
        return scores if self.loss.binary else scores * self.scale + self.mean

    def probabilities(self, scores: Array) -> Array:
        """Of the second class."""
        if self.calibration is not None:
            return self.calibration.probabilities(scores)
        if self.loss.name != "logistic":
            raise SettingError(
                f"predict_proba: the loss {self.loss.name!r} has probabilities only where held-out rows say"
                " how often a score is right (holdout)"
            )
        return uncalibrated(taylor=self.taylor)(scores)

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
        found: NDArray[Any] = self.classes[positive.astype(int)]
        return found

    def to_arrays(self) -> Arrays:
        numbers = [
            self.mean,
            self.scale,
            float(self.taylor),
            np.nan if self.threshold is None else self.threshold,
        ]
        made: Arrays = {f"{PREFIX}numbers": np.array(numbers)}
        if self.calibration is not None:
            made |= {f"{PREFIX}{name}": each for name, each in self.calibration.to_arrays().items()}
        return made

    @classmethod
    def take(cls, arrays: Arrays, loss: Loss, classes: NDArray[Any] | None) -> Self:
        """From the label party's shard; it is taken out of it."""
        found: Mapping[str, NDArray[np.generic]] = {
            name[len(PREFIX) :]: arrays.pop(name) for name in list(arrays) if name.startswith(PREFIX)
        }
        if "numbers" not in found or found["numbers"].shape != (4,):
            raise DataError("the label party's shard does not say what its labels were")
        mean, scale, taylor, line = np.asarray(found["numbers"], dtype=np.float64).tolist()
        calibration = Calibration.from_arrays(found) if "curve" in found else None
        threshold = None if np.isnan(line) else line
        return cls(loss, classes, mean, scale, bool(taylor), calibration, threshold)


def _numbers(labels: NDArray[Any], party: str, loss: Loss) -> Array:
    try:
        return loss.check_labels(labels)
    except DataError as error:
        raise DataError(f"{party}: {error}") from None
