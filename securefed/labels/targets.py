"""What the label party knows about several targets: numbers, each standardised and measured by itself.

Targets and scores have a column for each. In a blind run they are outputs of one model: as many messages as
for one. The score ledger counts a score for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel
from securefed.labels.metrics import Answers
from securefed.labels.quality import HeldOut, Holdout, compared
from securefed.protocols.losses import Loss

__all__ = ["TargetModels"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
COUNT = "targets.count"


class HeldOutTargets(HeldOut):
    """The mean of R2 over the targets."""

    def value(self, scores: Array) -> float:
        found = zip(self.targets.T, scores.T, strict=True)
        return float(np.mean([HeldOut(column, binary=False).value(each) for column, each in found]))


@dataclass
class TargetModels(LabelModel):
    """A side for each target."""

    sides: list[LabelModel] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        labels: NDArray[Any],
        party: str,
        loss: Loss,
        *,
        standardise: bool,
        taylor: bool,
        wishes: LabelOptions | None = None,
    ) -> Self:
        if loss.binary:
            raise SettingError(f"labels: {labels.shape[1]} columns given, the loss {loss.name!r} takes one")
        if wishes is not None and wishes.any:
            raise SettingError("weights, an offset, a family or base='own' take one target")
        sides = [
            LabelModel.of(column, party, loss, standardise=standardise, taylor=taylor) for column in labels.T
        ]
        return cls(loss, taylor=taylor, sides=sides)

    @property
    def outputs(self) -> int:
        return len(self.sides)

    def targets(self, labels: NDArray[Any], party: str, margin_bound: float) -> Array:
        if labels.ndim != 2 or labels.shape[1] != self.outputs:
            raise DataError(f"{party}: labels of shape {labels.shape} given, {self.outputs} targets expected")
        columns = zip(self.sides, labels.T, strict=True)
        return np.column_stack([side.targets(each, party, margin_bound) for side, each in columns])

    def held_out(self, targets: Array, columns: Array | None = None, offset: Array | None = None) -> HeldOut:
        return HeldOutTargets(targets, binary=False)

    def learn(
        self, held: HeldOut, scores: Array, own: tuple[Array, Array, Array], threshold: str | float
    ) -> Holdout:
        columns, known, seen = own
        each = [
            compared(HeldOut(truth, binary=False), found, (columns, trained, seen), unit=side.scale)
            for side, truth, found, trained in zip(self.sides, held.targets.T, scores.T, known.T, strict=True)
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
        truth, told = (((each - middle) / spread).T.ravel() for each in (labels, predictions))
        return Answers("numbers", truth, predictions=told)

    def numbers(self, scores: Array) -> Array:
        return np.column_stack([s.numbers(column) for s, column in zip(self.sides, scores.T, strict=True)])

    def to_arrays(self) -> Arrays:
        made: Arrays = {COUNT: np.array(self.outputs)}
        for place, side in enumerate(self.sides):
            made |= {f"{place}.{name}": array for name, array in side.to_arrays().items()}
        return made

    @classmethod
    def take(cls, arrays: Arrays, loss: Loss, classes: NDArray[Any] | None) -> Self:
        sides = []
        for place in range(int(arrays.pop(COUNT))):
            start = f"{place}."
            own = {n[len(start) :]: arrays.pop(n) for n in list(arrays) if n.startswith(start)}
            sides.append(LabelModel.take(own, loss, None))
        return cls(loss, taylor=all(side.taylor for side in sides), sides=sides)
