"""An objective from outside the package: least squares in which rows weigh differently, by weights that all
parties know (a survey's, say).

    mean over i of w_i (H_i - y_i)^2 / 2,  H_i = sum_k x_i^k . theta^k

A party contributes w_i H_i^k (the label party less w_i y_i), the sum of all is the weighted residual, and a
gradient is its product with the party's columns. Like the package's linear objective, a party opens sums of
residuals over the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.models import Linear
from securefed.protocols.objectives import Objective
from securefed.protocols.scorers import LinearScorer

Array = NDArray[np.float64]
BOUND = 64.0

WEIGHTED = Objective(
    opened_by_label_party="weighted residuals of a batch",
    opened_by_others="weighted residuals of a batch",
    unknowns=lambda rows, columns: rows,
)


class WeightedSide:
    """One party of it: what securefed.protocols.sides.Side asks for."""

    affine, exact = True, False

    def __init__(self, features: Array, weights: Array, labels: Array | None) -> None:
        self.model = Linear(features.shape[1], bias=False)
        self._features, self._weights, self._labels = features, weights, labels
        self.begin(np.arange(len(features)))

    @property
    def parameters(self) -> Array:
        return self.model.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.model.parameters = values

    @property
    def equations(self) -> int:
        return self.model.size

    def begin(self, batch: NDArray[np.intp]) -> None:
        self._rows, self._w = self._features[batch], self._weights[batch]
        self._y = None if self._labels is None else self._labels[batch]
        self._start = self.model.forward(self._rows)

    def contribution(self) -> Array:
        self._start = self.model.forward(self._rows)
        return self._part(self._start)

    def _part(self, margins: Array) -> Array:
        return self._w * (margins if self._y is None else margins - self._y)

    def fixed(self) -> FixedPoint:
        return FixedPoint(BOUND, 32)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows),)

    def multipliers(self) -> Array:
        return self._rows.T[None]

    def gradient(self, sums: Array, included: bool) -> Array:
        now = self.model.forward(self._rows)
        own = self._w * (now - self._start) if included else self._part(now)
        return np.asarray((sums + self._rows.T @ own) / len(self._rows))

    def exact_gradient(self, others: Array, included: bool) -> Array:
        return self.gradient(self._rows.T @ others, included)

    def scorer(self) -> LinearScorer:
        return LinearScorer(self.model, BOUND)
